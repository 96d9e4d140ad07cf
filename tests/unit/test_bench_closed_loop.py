"""What the bench counts, and where it sends its calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.history import CallRecord, Outcome
from tests.bench.closed_loop import NothingMeasuredError, Route, asks, measure, sample
from tests.bench.peers import PEERS, VENV_VARIABLE, program
from tests.fakes.replica import Behaviour, FakeReplica


def record(
    sent_at: float, token_at: list[float], *, outcome: Outcome = "ok", output: int = 4, error_type: str = ""
) -> CallRecord:
    return CallRecord(
        arm="a",
        n=0,
        request_id="r",
        offset_s=0.0,
        scheduled_at=sent_at,
        sent_at=sent_at,
        ended_at=token_at[-1] if token_at else sent_at,
        stream=True,
        prompt_sha="",
        prompt_tokens=9,
        max_tokens=4,
        outcome=outcome,
        status=200,
        error_type=error_type,
        first_token_at=token_at[0] if token_at else None,
        token_at=token_at,
        output_tokens=output,
        done=True,
    )


def test_only_what_lies_in_the_window_counts() -> None:
    before, inside = record(0.5, [0.9, 1.0, 1.1, 1.2]), record(1.5, [1.6, 1.7, 2.5, 2.6])
    found = sample("a", [before, inside], 1.0, 2.0)
    assert (found.tokens, found.calls, found.unwhole) == (5, 1, 0)
    assert found.ttft_s == pytest.approx([0.1])


def test_a_chunk_of_several_tokens_counts_as_several() -> None:
    assert sample("a", [record(1.0, [1.1, 1.2])], 1.0, 2.0).tokens == 4


def test_a_short_answer_and_a_failed_one_are_not_whole() -> None:
    short = record(1.0, [1.1, 1.2], outcome="degraded", output=2)
    failed = record(1.0, [1.1], outcome="failed", error_type="cut")
    found = sample("a", [short, failed], 1.0, 2.0)
    assert (found.tokens, found.unwhole) == (2, 2)


def test_an_answer_whose_tokens_were_counted_anew_is_as_long_as_was_asked_for() -> None:
    anew = record(1.0, [1.1, 1.2, 1.3, 1.4], outcome="failed", output=6, error_type="wrong_length")
    found = sample("a", [anew], 1.0, 2.0)
    assert (found.tokens, found.unwhole) == (4, 0)


def test_an_arm_that_answers_nothing_says_what_came_instead() -> None:
    with pytest.raises(NothingMeasuredError, match=r"a: nothing was answered.*failed: cut"):
        sample("a", [record(1.0, [], outcome="failed", error_type="cut")], 1.0, 2.0)


def test_a_caller_stays_with_its_replica_or_calls_take_them_in_turn() -> None:
    urls = ("x", "y")
    assert [Route(urls).url(1, call) for call in range(3)] == ["y", "y", "y"]
    assert [Route(urls, in_turn=True).url(1, call) for call in range(3)] == ["x", "y", "x"]


async def test_the_loop_keeps_every_caller_at_work_until_the_calls_are_gone() -> None:
    replica = FakeReplica()
    replica.behaviour = Behaviour(token_interval_s=0.001)
    await replica.start()
    ticks = iter((1.0, 1.5))
    try:
        calls = asks(1, 12, (40, 80), (4, 8))
        route = Route((f"http://{replica.address}",))
        found = await measure("a", route, 3, "brownout-tiny", calls, lambda: next(ticks))
        with pytest.raises(NothingMeasuredError, match="2 calls are too few to keep 3 callers at work"):
            await measure("a", route, 3, "brownout-tiny", calls[:2])
    finally:
        await replica.stop()
    assert len(replica.seen) == 14
    assert found.unwhole == 0
    assert found.cpu_s == 0.5
    assert found.idle is not None
    assert 0 <= found.idle <= 1
    assert 0 < found.tokens < sum(one.max_tokens for one in calls)


def test_a_peer_is_looked_for_in_the_environment_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "bin" / PEERS[0].name
    command.parent.mkdir()
    command.touch(mode=0o755)
    assert program(PEERS[0], tmp_path) == str(command)
    monkeypatch.setenv(VENV_VARIABLE, str(tmp_path))
    assert program(PEERS[0], None) == str(command)
    assert program(PEERS[1], None) is None
