"""Resuming: what goes on where, what it costs, what stops it, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from policies.call import Call, compose
from policies.errors import CallRejected, NotResumable, ReplicaLost
from policies.events import Resumed, RetryScheduled, RetrySuppressed, Wasted
from policies.progress import Reached
from policies.resume import ResumeSettings, Transcript
from policies.retry import Retry
from policies.retry_budget import BudgetSettings, RetryBudget
from policies.work import Work
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.token_stream import Client, Engine, undisturbed
from tests.fakes.virtual_time import run

PROMPT = [7, 8, 9]
TRUTH = undisturbed(PROMPT, 20)


def stand(*cuts: int | None, refusal: str | None = None, streams: bool = True) -> tuple[Client, Engine, Call]:
    client = Client(Transcript(PROMPT, limit=20), refusal=refusal)
    made = call(resumable=client, payload=(PROMPT, 20), work=Work(len(PROMPT), 20))
    return client, Engine(client, list(cuts), streams=streams), made


def retry(sink: Remembering | None = None, **options: Any) -> Retry:
    options.setdefault("resume", ResumeSettings())
    return Retry(rng=random.Random(1), sink=sink, **options)


@pytest.mark.parametrize("cuts", [(1,), (19,), (7, 3, 0, 2), (0, 5), (4, 0, 0, 4)])
def test_a_cut_stream_goes_on_at_its_next_token_and_is_the_undisturbed_one(cuts: tuple[int, ...]) -> None:
    client, engine, one = stand(*cuts)
    assert run(compose([retry()], engine)(one)) == "answer"
    assert client.got == TRUTH
    assert len(engine.attempts) == len(cuts) + 1


def test_a_whole_answer_is_continued_too_instead_of_started_again() -> None:
    client, engine, one = stand(15, streams=False)
    assert run(compose([retry()], engine)(one)) == "answer"
    assert client.transcript.output == TRUTH
    assert engine.attempts[1].payload == ([*PROMPT, *TRUTH[:15]], 5)


def test_what_was_cut_before_its_first_token_is_started_again() -> None:
    sink = Remembering()
    _, engine, one = stand(0)
    run(compose([retry(sink)], engine)(one))
    assert engine.attempts[1].payload == (PROMPT, 20)
    assert one.delivery.resumes == 0
    assert sink.names() == ["retry"]


def test_where_only_the_end_was_lost_no_replica_is_asked_again() -> None:
    client, engine, one = stand(20)
    assert run(compose([retry()], engine)(one)) == "answer"
    assert client.ended == 1
    assert len(engine.attempts) == 1


def test_events_and_accounts_tell_of_every_resume() -> None:
    sink = Remembering()
    _, engine, one = stand(4, 5)
    run(compose([retry(sink)], engine)(one))
    assert [(event.attempt, event.at_token) for event in sink.of(Resumed)] == [(2, 4), (3, 9)]
    assert [(event.prefill, event.decode) for event in sink.of(Wasted)] == [(3 + 4, 0), (3 + 9, 0)]
    assert one.delivery.resumes == 2
    assert one.delivery.wasted_tokens == 7 + 12
    assert sink.of(RetryScheduled) == []


def test_attempts_without_progress_are_what_max_attempts_counts() -> None:
    client, engine, one = stand(3, 0, 1, 0, 0, 1)
    assert run(compose([retry(max_attempts=3)], engine)(one)) == "answer"
    assert client.got == TRUTH
    sink = Remembering()
    client, engine, one = stand(3, 0, 0, 0)
    with pytest.raises(ReplicaLost):
        run(compose([retry(sink, max_attempts=3)], engine)(one))
    assert len(engine.attempts) == 4
    assert sink.of(RetrySuppressed)[0].reason == "attempts"


def test_an_answer_is_continued_at_most_max_resumes_times() -> None:
    sink = Remembering()
    _, engine, one = stand(*[1] * 10)
    with pytest.raises(ReplicaLost):
        run(compose([retry(sink, resume=ResumeSettings(max_resumes=3))], engine)(one))
    assert len(engine.attempts) == 4
    assert sink.of(RetrySuppressed)[0].reason == "resumes"


def test_a_resume_pays_for_reading_prompt_and_output_again_and_not_for_the_rest() -> None:
    async def main() -> tuple[float, float]:
        budget = RetryBudget(
            CLOCK, BudgetSettings(ratio=0, reserve_tokens_per_s=0, reserve_output_tokens_per_s=0)
        )
        before, decode = budget.tokens
        _, engine, one = stand(12)
        await compose([retry(budget=budget)], engine)(one)
        assert budget.tokens[1] == decode
        return before, budget.tokens[0]

    before, after = run(main())
    assert before - after == len(PROMPT) + 12


def test_without_budget_a_cut_stream_stays_cut() -> None:
    async def main() -> None:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0, reserve_per_s=0, burst=1))
        _, engine, one = stand(12)
        with pytest.raises(ReplicaLost):
            await compose([retry(budget=budget)], engine)(one)

    run(main())


def test_what_is_not_proven_to_go_on_identically_fails_with_the_reason() -> None:
    client, engine, one = stand(5, refusal="penalties count output tokens")
    with pytest.raises(NotResumable, match="penalties") as caught:
        run(compose([retry()], engine)(one))
    assert caught.value.why == "penalties count output tokens"
    assert client.got == TRUTH[:5], "and nothing is repeated"
    assert isinstance(caught.value.__cause__, ReplicaLost)


def test_what_is_refused_but_was_not_delivered_is_started_again_and_its_tokens_are_wasted() -> None:
    sink = Remembering()
    client, engine, one = stand(5, 6, refusal="sampled", streams=False)
    assert run(compose([retry(sink)], engine)(one)) == "answer"
    assert [attempt.payload for attempt in engine.attempts] == [(PROMPT, 20)] * 3
    assert client.transcript.output == TRUTH
    assert [(event.prefill, event.decode) for event in sink.of(Wasted)] == [(3, 5), (3, 6)]


def test_starting_again_is_bounded_by_max_attempts_however_far_each_attempt_gets() -> None:
    _, engine, one = stand(5, 10, 15, 18, refusal="sampled", streams=False)
    with pytest.raises(ReplicaLost):
        run(compose([retry(max_attempts=3)], engine)(one))
    assert len(engine.attempts) == 3


def test_an_error_that_no_other_replica_could_do_better_on_is_not_resumed() -> None:
    client, engine, one = stand(5)

    async def reject(inner: Call) -> Any:
        try:
            return await engine(inner)
        except ReplicaLost:
            raise CallRejected("the prompt is wrong", status=400, reached=Reached.MID_STREAM) from None

    with pytest.raises(CallRejected):
        run(compose([retry()], reject)(one))
    assert client.got == TRUTH[:5]


def test_switched_off_a_cut_stream_raises_its_own_error() -> None:
    _, engine, one = stand(5)
    with pytest.raises(ReplicaLost):
        run(compose([retry(resume=None)], engine)(one))


def test_a_resume_is_never_begun_after_the_deadline() -> None:
    async def main() -> None:
        client, engine, one = stand(5)
        late = call(within_s=0.0, resumable=client, payload=one.payload, work=one.work)
        with pytest.raises(ReplicaLost):
            await compose([retry()], engine)(late)
        assert len(engine.attempts) == 1

    run(main())


def test_a_transcript_knows_what_is_left() -> None:
    assert Transcript([1, 2]).remaining is None
    assert Transcript([1, 2], limit=5, output=[3]).remaining == 4
    assert Transcript([1, 2], limit=5, context=4, output=[3]).remaining == 1
    assert Transcript([1, 2], context=3, output=[3]).complete
    assert Transcript([1, 2], limit=5, output=[3], finish_reason="stop").complete
    assert Transcript([1, 2], limit=1, output=[3, 4]).remaining == 0
    assert Transcript((1, 2), output=[3]).ids == [1, 2, 3]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="max_resumes is 0"):
        ResumeSettings(max_resumes=0)
