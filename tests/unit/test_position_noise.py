"""The noise is a pure function of seed, position and token, and what it samples has the right distribution."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from cluster.position_noise import gumbel, key, mixed, sample, uniform  # noqa: E402
from cluster.xargs import Sampling  # noqa: E402

DRAWS = 20_000


def limit(freedom: int) -> float:
    """Return the 0.999999 quantile of chi-square (Wilson and Hilferty): no luck goes beyond, only faults do."""
    return freedom * float((1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3)


def chi_square(counts: list[int], expected: list[float]) -> float:
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in zip(counts, expected, strict=True) if wanted)


def draws(logits: list[float], how: Sampling) -> list[int]:
    """Count tokens over many positions of one seed."""
    rows = torch.tensor([logits], dtype=torch.float32).expand(DRAWS, -1)
    tokens = sample(rows, [how] * DRAWS, range(DRAWS))
    return [int(count) for count in torch.bincount(tokens, minlength=len(logits))]


def test_finaliser_is_the_published_one() -> None:
    state, found = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        found.append(mixed(state))
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_tensors_hold_what_plain_integers_give() -> None:
    one = key(-5, 77)
    plain = [((mixed(one + (token + 1) * 0x9E3779B97F4A7C15) >> 12) + 0.5) * 2.0**-52 for token in range(300)]
    assert uniform([one], 300)[0].tolist() == plain


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    keys = [key(seed, 9) for seed in range(11)]
    together = gumbel(keys, 2048)
    for index, one in enumerate(keys):
        assert torch.equal(together[index], gumbel([one], 2048)[0])


def test_noise_is_finite() -> None:
    noise = gumbel([key(0, position) for position in range(200)], 2048)
    assert bool(torch.isfinite(noise).all())
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02


def test_every_seed_and_position_has_noise_of_its_own() -> None:
    keys = {key(seed, position) for seed in range(-20, 20) for position in range(200)}
    assert len(keys) == 40 * 200


def test_uniform_numbers_are_uniform_and_neighbours_are_independent() -> None:
    values = uniform([key(1, position) for position in range(300)], 300)
    boxes = (values * 8).long()
    counts = torch.bincount(boxes.flatten(), minlength=8).tolist()
    assert chi_square(counts, [90_000 / 8] * 8) < limit(7)
    for first, second in ((boxes[:-1], boxes[1:]), (boxes[:, :-1], boxes[:, 1:])):
        pairs = torch.bincount((first * 8 + second).flatten(), minlength=64).tolist()
        assert chi_square(pairs, [first.numel() / 64] * 64) < limit(63)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_samples_have_the_distribution_of_the_softmax(temperature: float) -> None:
    logits = [2.0, 1.0, 0.5, 0.0, -1.0, -1.5]
    wanted = (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(0) * DRAWS
    assert chi_square(draws(logits, Sampling(42, temperature)), wanted.tolist()) < limit(5)


def test_top_p_cuts_the_tail_and_keeps_proportions() -> None:
    logits = [math.log(part) for part in (0.4, 0.3, 0.2, 0.06, 0.04)]
    counts = draws(logits, Sampling(7, 1.0, top_p=0.85))
    assert counts[3:] == [0, 0]
    assert chi_square(counts[:3], [DRAWS * part / 0.9 for part in (0.4, 0.3, 0.2)]) < limit(2)


def test_top_p_always_leaves_the_most_likely_token() -> None:
    logits = [0.0, 3.0, 1.0]
    assert draws(logits, Sampling(7, 1.0, top_p=1e-9)) == [0, DRAWS, 0]


def test_cut_is_the_one_that_sorting_gives_row_by_row() -> None:
    logits = torch.randn(200, 300, generator=torch.Generator().manual_seed(2)) * 3
    ways = [Sampling(n, 0.5 + n / 100, top_p=(n % 21 or 1) / 21) for n in range(200)]
    drawn = sample(logits, ways, range(200))
    for row, how, token in zip(logits.double(), ways, drawn.tolist(), strict=True):
        scaled = row / how.temperature
        ordered, ids = scaled.softmax(0).sort(descending=True)
        kept = ids[: int((ordered.cumsum(0) - ordered < how.top_p).sum())]
        noise = gumbel([key(how.seed, how.seed)], 300)[0]
        assert token == int(kept[(scaled + noise)[kept].argmax()])


def test_equally_likely_tokens_stay_together() -> None:
    counts = draws([0.0, 0.0, 0.0, -5.0], Sampling(7, 1.0, top_p=0.5))
    assert counts[3] == 0
    assert chi_square(counts[:3], [DRAWS / 3] * 3) < limit(2)


def test_masked_tokens_are_never_drawn() -> None:
    assert draws([-math.inf, 0.0, -math.inf, 0.0], Sampling(3))[::2] == [0, 0]


def test_a_batch_with_different_parameters_gives_what_each_gives_alone() -> None:
    logits = torch.randn(16, 2048, generator=torch.Generator().manual_seed(1)) * 2
    ways = [Sampling(n, 0.5 + n / 8, 1.0 if n % 3 else 0.7) for n in range(16)]
    positions = [n * 37 for n in range(16)]
    together = sample(logits, ways, positions)
    for n in range(16):
        assert int(together[n]) == int(sample(logits[n : n + 1], [ways[n]], [positions[n]])[0])
