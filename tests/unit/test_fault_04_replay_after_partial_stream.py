"""Fault 4: a replay after a partial stream repeats text; an empty partial restarts the output."""

from __future__ import annotations

import random

import pytest

from policies.call import Call, compose
from policies.errors import ReplicaLost
from policies.resume import ResumeSettings, Transcript
from policies.retry import Retry
from policies.work import Work
from tests.fakes.policy_bench import call
from tests.fakes.token_stream import Client, Engine, undisturbed
from tests.fakes.virtual_time import run

PROMPT = [1, 2, 3]


@pytest.mark.parametrize("resume", [ResumeSettings(), None], ids=["resume", "without resume"])
@pytest.mark.parametrize("cut", [0, 1, 9, 10])
def test_the_client_never_gets_a_token_twice(resume: ResumeSettings | None, cut: int) -> None:
    client = Client(Transcript(PROMPT, limit=10))
    engine = Engine(client, [cut])
    one = call(resumable=client, payload=(PROMPT, 10), work=Work(3, 10))
    pipeline = compose([Retry(resume=resume, rng=random.Random(1))], engine)
    truth = undisturbed(PROMPT, 10)
    if resume is None and cut:
        with pytest.raises(ReplicaLost):
            run(pipeline(one))
        assert client.got == truth[:cut]
    else:
        run(pipeline(one))
        assert client.got == truth


def test_an_attempt_that_brings_nothing_after_a_resume_does_not_start_the_output_again() -> None:
    client = Client(Transcript(PROMPT, limit=10))
    engine = Engine(client, [4, 0, 0])
    one = call(resumable=client, payload=(PROMPT, 10), work=Work(3, 10))
    run(compose([Retry(resume=ResumeSettings(), rng=random.Random(1))], engine)(one))
    assert client.got == undisturbed(PROMPT, 10)
    starts: list[Call] = [attempt for attempt in engine.attempts if attempt.payload == (PROMPT, 10)]
    assert len(starts) == 1
