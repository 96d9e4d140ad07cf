"""What a request may ask of a replica beyond vLLM's own parameters: names, limits and checks.

A request carries them in ``vllm_xargs``; :mod:`cluster.logits` carries them out inside the engine. Both depend on
the absolute position of a token only, so that a request which is continued elsewhere from its prompt and the
tokens generated so far goes on as if nothing had happened. This module imports no engine: a gateway can use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PREFIX: Final = "brownout_"
END_AT: Final = "brownout_end_at"
"""Absolute length (prompt and output, in tokens) from which on only the end token is possible."""
SEED: Final = "brownout_seed"
"""Seed of position-keyed sampling; the request itself must have ``temperature`` 0."""
TEMPERATURE: Final = "brownout_temperature"
TOP_P: Final = "brownout_top_p"

_NAMES: Final = (END_AT, SEED, TEMPERATURE, TOP_P)
_SEED_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class Sampling:
    """A random choice that depends on seed, position and logits only.

    Raises:
        ValueError: a value outside its range, with field, value and mend.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not -_SEED_LIMIT <= self.seed < _SEED_LIMIT:
            raise _bad(SEED, self.seed, "give an integer of 64 bits")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise _bad(
                TEMPERATURE,
                self.temperature,
                "give a number above 0, or leave the seed out for greedy output",
            )
        if not 0 < self.top_p <= 1:
            raise _bad(TOP_P, self.top_p, "give a number above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Extras:
    """The checked extra parameters of one request; at least one of the two is there."""

    end_at: int | None
    sampling: Sampling | None

    @classmethod
    def read(cls, arguments: Mapping[str, Any] | None) -> Extras | None:
        """Read ``vllm_xargs``; None when nothing in it is ours. Names of others are left alone.

        Raises:
            ValueError: an unknown name with our prefix, or a value of another type or range.
        """
        ours = {name: value for name, value in (arguments or {}).items() if name.startswith(PREFIX)}
        if not ours:
            return None
        for name in ours:
            if name not in _NAMES:
                raise ValueError(
                    f"field 'vllm_xargs' has the unknown name {name!r}: use one of {', '.join(_NAMES)}"
                )
        end_at = _integer(END_AT, ours[END_AT]) if END_AT in ours else None
        if end_at is not None and end_at < 1:
            raise _bad(END_AT, end_at, "give the length of prompt and output in tokens, at least 1")
        if SEED not in ours:
            for name in (TEMPERATURE, TOP_P):
                if name in ours:
                    raise _bad(
                        name, ours[name], f"give {SEED} too, or use temperature and top_p of the request"
                    )
            return cls(end_at, None)
        sampling = Sampling(
            _integer(SEED, ours[SEED]),
            _number(TEMPERATURE, ours.get(TEMPERATURE, 1.0)),
            _number(TOP_P, ours.get(TOP_P, 1.0)),
        )
        return cls(end_at, sampling)

    def check_with(self, request: Any) -> None:
        """Check that the request's own parameters (vLLM's ``SamplingParams``) do not contradict.

        Raises:
            ValueError: one does, with field, value and mend.
        """
        if request.structured_outputs is not None:
            raise ValueError(
                f"field 'structured_outputs' cannot be used together with {PREFIX}*: leave one out"
            )
        if self.end_at is not None:
            _must_be("ignore_eos", request.ignore_eos, False, END_AT)
            _must_be("min_tokens", request.min_tokens, 0, END_AT)
        if self.sampling is not None:
            _must_be("temperature", request.temperature, 0, SEED)
            _must_be("n", request.n, 1, SEED)
            _must_be("presence_penalty", request.presence_penalty, 0, SEED)
            _must_be("frequency_penalty", request.frequency_penalty, 0, SEED)
            _must_be("repetition_penalty", request.repetition_penalty, 1, SEED)


def _must_be(field: str, value: object, needed: object, because: str) -> None:
    if value != needed:
        raise _bad(field, value, f"with {because} it must be {needed}")


def _bad(field: str, value: object, mend: str) -> ValueError:
    return ValueError(f"field {field!r} has value {value!r}: {mend}")


def _integer(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad(field, value, "give an integer")
    return value


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(field, value, "give a number")
    return float(value)
