"""For any cuts: the client never gets anything but a beginning of the true answer, and all of it unless it is told."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.gateway.record import Record
from cluster.gateway.sse import EventStream
from policies.call import compose
from policies.errors import AttemptError
from policies.progress import Progress
from policies.resume import ResumeSettings, Transcript
from policies.retry import Retry
from policies.work import Work
from tests.fakes.policy_bench import FixedClock, call
from tests.fakes.token_stream import Client, Engine, undisturbed
from tests.fakes.virtual_time import run


@given(
    cuts=st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=12),
    limit=st.integers(1, 12),
    streams=st.booleans(),
    refusal=st.one_of(st.none(), st.just("sampled")),
    max_attempts=st.integers(1, 4),
    max_resumes=st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_what_is_delivered_is_true_and_bounded(
    cuts: list[int | None],
    limit: int,
    streams: bool,
    refusal: str | None,
    max_attempts: int,
    max_resumes: int,
) -> None:
    prompt = [1, 2, 3]
    client = Client(Transcript(prompt, limit=limit), refusal=refusal)
    engine = Engine(client, list(cuts), streams=streams)
    one = call(resumable=client, payload=(prompt, limit), work=Work(3, limit))
    policy = Retry(max_attempts=max_attempts, resume=ResumeSettings(max_resumes), rng=random.Random(1))
    truth = undisturbed(prompt, limit)
    try:
        run(compose([policy], engine)(one))
        assert client.transcript.output == truth
        assert client.got == (truth if streams else [])
    except AttemptError:
        assert client.got == truth[: len(client.got)]
    assert one.delivery.resumes <= max_resumes
    assert len(engine.attempts) <= max_attempts * (max_resumes + 1)


@given(
    tokens=st.lists(
        st.tuples(st.text(max_size=6), st.lists(st.integers(0, 200_000), min_size=1, max_size=3)),
        min_size=1,
        max_size=12,
    ),
    chat=st.booleans(),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_text_and_ids_in_any_pieces_are_kept_and_taken_out(
    tokens: list[tuple[str, list[int]]], chat: bool, data: st.DataObject
) -> None:
    def written(told: bool) -> bytes:
        out = b""
        for number, (text, ids) in enumerate(tokens):
            choice: dict[str, object] = {
                "index": 0,
                **({"delta": {"content": text}} if chat else {"text": text}),
            }
            choice.update(logprobs=None, finish_reason="stop" if number == len(tokens) - 1 else None)
            prompt = [1, 2] if told and number == 0 else None
            if not chat:
                choice["prompt_token_ids"] = prompt
            choice["token_ids"] = ids if told else None
            chunk: dict[str, object] = {"id": "x", "choices": [choice]}
            if chat:
                chunk["prompt_token_ids"] = prompt
            out += f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n".encode(
                "utf-8", "surrogatepass"
            )
        return out + b"data: [DONE]\n\n"

    whole = written(told=True)
    record, counted = Record(chat=chat), [0]
    reading = EventStream(Progress(FixedClock(), lambda _, count: counted.append(count)), record=record)
    out, rest = b"", whole
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out += reading.feed(rest[:size])
        rest = rest[size:]
    reading.end()
    assert out == written(told=False)
    assert record.text == "".join(text for text, _ in tokens)
    ids = [one for _, ids in tokens for one in ids]
    assert record.transcript.output == ids
    assert sum(counted) == len(ids)
    assert record.problem == ""
