"""The logits processor against vLLM's own interface: who is touched, and where a sequence stands."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    from cluster.logits import PositionKeyed

END = 1
VOCABULARY = 32


def processor(*, embeddings: bool = False) -> PositionKeyed:
    config = SimpleNamespace(model_config=SimpleNamespace(enable_prompt_embeds=embeddings))
    return PositionKeyed(config, torch.device("cpu"), False)


def params(**extras: Any) -> SamplingParams:
    made = SamplingParams(temperature=0, extra_args=extras or None)
    made.update_from_generation_config({}, END)
    return made


def update(
    *added: tuple[int, SamplingParams, list[int], list[int]], removed: tuple[int, ...] = (), moved: Any = ()
) -> BatchUpdate:
    return BatchUpdate(batch_size=4, removed=removed, added=added, moved=moved)


def logits() -> torch.Tensor:
    return torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(5))


def only(row: torch.Tensor) -> int | None:
    """Return the one token that is possible, or None when there are several."""
    possible = torch.isfinite(row).nonzero().flatten().tolist()
    return int(possible[0]) if len(possible) == 1 else None


def test_rows_that_asked_for_nothing_are_left_alone() -> None:
    subject = processor()
    subject.update_state(update((0, params(), [5] * 9, []), (1, params(brownout_end_at=3), [5] * 3, [])))
    before = logits()
    after = subject.apply(before.clone())
    assert only(after[1]) == END
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])


def test_a_batch_without_our_parameters_is_not_looked_at() -> None:
    subject = processor()
    subject.update_state(update((0, params(), [5], []), (1, params(other=1), [5], [])))
    given = logits()
    assert subject.apply(given) is given
    assert torch.equal(given, logits())


def test_end_is_forced_at_the_absolute_position_and_not_before() -> None:
    subject = processor()
    output: list[int] = []
    subject.update_state(update((0, params(brownout_end_at=6), [5] * 4, output)))
    for expected in (None, None, END, END):
        assert only(subject.apply(logits())[0]) == expected
        output.append(7)  # as vLLM does, in its own list
        subject.update_state(None)


def test_choice_is_the_same_in_a_prompt_and_in_an_output() -> None:
    asked = params(brownout_seed=11, brownout_temperature=1.5)
    whole, cut = processor(), processor()
    whole.update_state(update((0, asked, [5] * 4, [6, 7, 8])))
    cut.update_state(update((0, asked, [5] * 4 + [6, 7], [8])))
    chosen = only(whole.apply(logits())[0])
    assert chosen is not None
    assert chosen == only(cut.apply(logits())[0])


def test_rows_follow_their_requests_when_the_batch_is_condensed() -> None:
    subject = processor()
    subject.update_state(
        update(
            (0, params(brownout_end_at=1), [5], []),
            (1, params(), [5], []),
            (2, params(brownout_seed=1), [5], []),
        )
    )
    seeded = only(subject.apply(logits())[2])
    subject.update_state(update(removed=(0,), moved=((2, 0, MoveDirectionality.UNIDIRECTIONAL),)))
    same = logits()
    same[0] = logits()[2]
    after = subject.apply(same)
    assert only(after[0]) == seeded
    assert [only(after[row]) for row in (1, 2, 3)] == [None, None, None]
    subject.update_state(update((0, params(), [5], [])))  # another request takes the row
    assert only(subject.apply(logits())[0]) is None


def test_more_rows_than_are_drawn_at_once() -> None:
    subject = processor()
    many = 40
    asked = [params(brownout_seed=n) for n in range(many)]
    subject.update_state(update(*((n, asked[n], [5], []) for n in range(many))))
    rows = torch.zeros(many, VOCABULARY)
    together = [only(row) for row in subject.apply(rows.clone())]
    for n in (0, 15, 16, 39):
        alone = processor()
        alone.update_state(update((0, asked[n], [5], [])))
        assert only(alone.apply(rows[:1].clone())[0]) == together[n]
    assert len(set(together)) > 10


def test_stop_token_of_the_request_ends_where_the_model_has_no_end() -> None:
    subject = processor()
    asked = SamplingParams(temperature=0, stop_token_ids=[9, 4], extra_args={"brownout_end_at": 1})
    subject.update_state(update((0, asked, [5], [])))
    assert only(subject.apply(logits())[0]) == 4


def test_bad_parameters_are_refused_before_they_reach_the_engine() -> None:
    PositionKeyed.validate_params(params(brownout_end_at=3, brownout_seed=1))
    with pytest.raises(ValueError, match="brownout_end_at"):
        PositionKeyed.validate_params(params(brownout_end_at=0))
    with pytest.raises(ValueError, match=r"'temperature' has value 0\.7"):
        PositionKeyed.validate_params(SamplingParams(temperature=0.7, extra_args={"brownout_seed": 1}))


def test_prompts_without_a_known_length_are_refused_at_start() -> None:
    with pytest.raises(ValueError, match="enable-prompt-embeds"):
        processor(embeddings=True)


def test_greedy_requests_are_told_to_need_it() -> None:
    assert not processor().is_argmax_invariant()
