"""Sampling whose randomness is a pure function of seed, absolute position and token: the mathematics.

An engine draws its random numbers from a generator that moves on with each token, so a stream that is continued
on another replica starts the generator again and goes another way. Here the noise of each token at each position
is *computed* (a counter-based generator: SplitMix64's finaliser over a keyed counter), and by the Gumbel-max
trick the argmax of ``logits / temperature + Gumbel noise`` is an exact sample of the softmax. Nothing of what was
drawn before, nor of who else is in the batch, enters.

Sources: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014); Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011); Gumbel-max: Maddison, Tarlow and Minka (NIPS 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from cluster.xargs import Sampling

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_MASK_64: Final = 2**64 - 1
_BITS: Final = 52
"""Bits of a uniform number; with one half added it is still exact in float64, and never 0 or 1."""


def mixed(value: int) -> int:
    """Return SplitMix64's finaliser of an unsigned 64-bit integer."""
    value &= _MASK_64
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK_64
    return value ^ (value >> 31)


def key(seed: int, position: int) -> int:
    """Return the 64-bit key of the noise at one position of one seed."""
    return mixed(mixed(seed + _GOLDEN) + position * _GOLDEN)


def uniform(keys: Sequence[int], vocabulary: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return float64 numbers in (0, 1), one row a key and one column a token id."""
    start = torch.tensor([_signed(one) for one in keys], dtype=torch.int64, device=device).unsqueeze(1)
    counter = torch.arange(1, vocabulary + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN)
    value = start + counter
    value = (value ^ _shifted(value, 30)) * _signed(_MIX_1)
    value = (value ^ _shifted(value, 27)) * _signed(_MIX_2)
    value = value ^ _shifted(value, 31)
    return (_shifted(value, 64 - _BITS).double() + 0.5) * 2.0**-_BITS


def gumbel(keys: Sequence[int], vocabulary: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return standard Gumbel noise in float64, one row a key and one column a token id."""
    return -torch.log(-torch.log(uniform(keys, vocabulary, device)))


def sample(logits: torch.Tensor, requests: Sequence[Sampling], positions: Sequence[int]) -> torch.Tensor:
    """Return one token id a row: an exact sample of ``softmax(logits / temperature)``, cut to ``top_p``.

    ``positions`` are those of the tokens that are drawn, counted from the start of the prompt. The cut leaves the
    tokens that fewer than ``top_p`` of the probability is ahead of; equally likely ones stay or go together.
    """
    device = logits.device
    temperature = torch.tensor([one.temperature for one in requests], dtype=torch.float64, device=device)
    scaled = logits.double() / temperature.unsqueeze(1)
    keys = [key(one.seed, position) for one, position in zip(requests, positions, strict=True)]
    scores = scaled + gumbel(keys, logits.shape[-1], device)
    if all(one.top_p >= 1 for one in requests):
        return scores.argmax(-1)
    most = [one.top_p if one.top_p < 1 else torch.inf for one in requests]
    return _best_within(scores, scaled.softmax(-1), torch.tensor(most, dtype=torch.float64, device=device))


def _best_within(scores: torch.Tensor, probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the tokens with the best scores among those that ``top_p`` leaves; ``scores`` are used up.

    Nothing is sorted, which would cost the most: the best token is nearly always one of those. Where it is not, neither
    is any that is no more likely, and the next best of the others is looked at.
    """
    while True:
        tokens = scores.argmax(-1, keepdim=True)
        likely = probabilities.gather(-1, tokens)
        ahead = torch.where(probabilities > likely, probabilities, 0.0).sum(-1, keepdim=True)
        outside = ahead >= top_p.unsqueeze(1)
        if not bool(outside.any()):
            return tokens.squeeze(-1)
        scores.masked_fill_(outside & (probabilities <= likely), -torch.inf)


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without the sign, which torch's own shift would drag in."""
    return (value >> bits) & (2 ** (64 - bits) - 1)


def _signed(value: int) -> int:
    """Return the same 64 bits as a signed integer, which is what torch can hold."""
    return value - 2**64 if value >= 2**63 else value
