"""Replicas that fail in every way, behind a real gateway on loopback."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from cluster import public
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour, FakeReplica
from tests.fakes.toy_model import token_text

CHAT = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "say something"}]
FAST: dict[str, float] = {"header_timeout_s": 0.3, "first_token_timeout_s": 0.3, "stall_timeout_s": 0.3}
TOKENS = 6
EXPECTED = "".join(token_text(number) for number in range(TOKENS))


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(2, **FAST) as built:
        yield built


def never() -> asyncio.Event:
    return asyncio.Event()


async def ask(
    made: Rig, *, stream: bool, headers: dict[str, str] | None = None, **fields: Any
) -> tuple[int, Any, Any]:
    """Return status, headers, and the body: text of a stream, JSON otherwise."""
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, "stream": stream, **fields}
    async with made.http.post(made.url + CHAT, json=body, headers=headers) as response:
        raw = (await response.read()).decode()
    is_json = response.headers["content-type"] in ("application/json", "application/problem+json")
    return response.status, response.headers, json.loads(raw) if is_json else raw


def text_of(events: str) -> str:
    chunks = [json.loads(line[6:]) for line in events.split("\n\n") if line.startswith("data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


def first_goes_to(made: Rig, behaviour: Behaviour) -> None:
    """Let whichever replica is asked first behave so, once."""
    shared = [behaviour]
    for replica in made.replicas:
        replica.script = _Shared(shared)  # type: ignore[assignment]


class _Shared:
    """A script that several replicas take from."""

    def __init__(self, steps: list[Behaviour]) -> None:
        self._steps = steps

    def __bool__(self) -> bool:
        return bool(self._steps)

    def popleft(self) -> Behaviour:
        return self._steps.pop(0)


BEFORE_THE_FIRST_TOKEN = {
    "connection cut before headers": lambda: Behaviour(cut_before_headers=True),
    "silent before headers": lambda: Behaviour(headers_gate=never()),
    "silent after headers": lambda: Behaviour(first_token_gate=never()),
    "connection cut after headers": lambda: Behaviour(cut_after=0),
    "answer ends after headers": lambda: Behaviour(end_after=0),
    "500": lambda: Behaviour(status=500),
    "502": lambda: Behaviour(status=502),
    "503": lambda: Behaviour(status=503, retry_after="0.05"),
    "429": lambda: Behaviour(status=429, retry_after="0.05"),
    "error event": lambda: Behaviour(error_event=500),
    "busy event": lambda: Behaviour(error_event=503),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_TOKEN)
async def test_before_the_first_token_the_call_is_answered_by_another_replica(
    made: Rig, fault: str, stream: bool
) -> None:
    first_goes_to(made, BEFORE_THE_FIRST_TOKEN[fault]())
    status, headers, body = await ask(made, stream=stream)
    assert status == 200
    assert headers[public.HEADER_ATTEMPTS] == "2"
    assert (text_of(body) if stream else body["choices"][0]["message"]["content"]) == EXPECTED
    started = made.events("attempt_started")
    assert started[0]["replica"] != started[1]["replica"]
    assert headers[public.HEADER_REPLICA] == started[1]["replica"]
    assert [event["outcome"] for event in made.events("attempt_ended")] == ["failed", "ok"]
    assert len(made.events("retry")) == 1
    await made.idle()


@pytest.mark.parametrize("fault", [*BEFORE_THE_FIRST_TOKEN])
async def test_naive_passes_every_fault_on_to_the_client(made: Rig, fault: str) -> None:
    await made.profile("naive")
    first_goes_to(made, BEFORE_THE_FIRST_TOKEN[fault]())
    status, headers, body = await ask(made, stream=True, headers={public.HEADER_DEADLINE: "0.5"})
    assert status in (502, 503, 504)
    assert headers[public.HEADER_ATTEMPTS] == "1"
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert len(made.events("attempt_started")) == 1
    await made.idle()


AFTER_THE_FIRST_TOKEN = {
    "connection cut": lambda: Behaviour(cut_after=3, token_interval_s=0.02),
    "answer ends": lambda: Behaviour(end_after=3, token_interval_s=0.02),
    "aborted": lambda: Behaviour(finish_reason="abort", token_interval_s=0.02),
    "no [DONE]": lambda: Behaviour(without_done=True, token_interval_s=0.02),
    "error event": lambda: Behaviour(error_event=500, error_after=3, token_interval_s=0.02),
    "silent": lambda: Behaviour(token_gate=never(), stall_after=3),
}


@pytest.mark.parametrize("profile", ["resilient", "naive"])
@pytest.mark.parametrize("fault", AFTER_THE_FIRST_TOKEN)
async def test_after_the_first_token_a_stream_ends_with_a_typed_error_event(
    made: Rig, fault: str, profile: str
) -> None:
    if profile == "naive":
        await made.profile("naive")
    first_goes_to(made, AFTER_THE_FIRST_TOKEN[fault]())
    deadline = {public.HEADER_DEADLINE: "1.0"} if (profile, fault) == ("naive", "silent") else {}
    status, headers, body = await ask(made, stream=True, headers=deadline)
    assert status == 200
    assert headers[public.HEADER_ATTEMPTS] == "1"
    assert "[DONE]" not in body.split("\n\n")[-2]
    last = json.loads(body.split("\n\n")[-2].removeprefix("data: "))
    expected = public.ERROR_UPSTREAM_LOST if profile == "naive" else public.ERROR_NOT_RESUMABLE
    expected = public.ERROR_TIMEOUT if deadline else expected
    assert (last["error"]["type"], last["error"]["code"], last["error"]["param"]) == (
        expected,
        expected,
        None,
    )
    assert EXPECTED.startswith(text_of(body))
    assert len(made.events("attempt_started")) == 1, "what was delivered is never repeated"
    await made.idle()


@pytest.mark.parametrize("fault", AFTER_THE_FIRST_TOKEN)
async def test_a_client_that_waits_for_the_whole_answer_gets_one_from_another_replica(
    made: Rig, fault: str
) -> None:
    first_goes_to(made, AFTER_THE_FIRST_TOKEN[fault]())
    status, headers, body = await ask(made, stream=False)
    assert status == 200
    assert headers[public.HEADER_ATTEMPTS] == "2"
    assert body["choices"][0]["message"]["content"] == EXPECTED, "from the start, nothing twice"
    assert body["usage"]["completion_tokens"] == TOKENS
    await made.idle()


async def test_naive_does_not_repeat_a_whole_answer(made: Rig) -> None:
    await made.profile("naive")
    first_goes_to(made, Behaviour(cut_after=3))
    status, _, body = await ask(made, stream=False)
    assert status == 502
    assert body["error"]["type"] == public.ERROR_UPSTREAM_LOST
    assert len(made.events("attempt_started")) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 404, 422])
async def test_what_the_replica_finds_wrong_passes_through_untried_and_ejects_nobody(
    made: Rig, stream: bool, status: int
) -> None:
    for replica in made.replicas:
        replica.behaviour = Behaviour(status=status)
    for _ in range(10):
        got, headers, body = await ask(made, stream=stream)
        assert got == status
        assert headers[public.HEADER_ATTEMPTS] == "1"
        assert body["error"]["message"] == f"status {status} on purpose"
    assert len(made.events("attempt_started")) == 10
    assert made.gateway.live_replicas() == 2
    assert {event["outcome"] for event in made.events("call_ended")} == {"invalid"}


async def test_a_replicas_error_event_about_the_request_becomes_the_status_it_names(made: Rig) -> None:
    first_goes_to(made, Behaviour(error_event=400))
    status, _, body = await ask(made, stream=True)
    assert status == 400
    assert body["error"]["message"] == "broken"


async def test_when_every_attempt_fails_the_last_error_is_the_answer() -> None:
    async with rig(4, **FAST) as made:
        for replica in made.replicas:
            replica.behaviour = Behaviour(status=500)
        status, headers, body = await ask(made, stream=True)
        assert status == 502
        assert headers[public.HEADER_ATTEMPTS] == "3"
        assert len({event["replica"] for event in made.events("attempt_started")}) == 3
        assert body["error"]["type"] == public.ERROR_UPSTREAM_LOST


# --- ejection --------------------------------------------------------------------------------------------


async def test_a_dead_replica_is_ejected_and_takes_load_again_when_it_is_back(made: Rig) -> None:
    dead = made.replicas[0]
    dead.behaviour = Behaviour(cut_before_headers=True)
    for _ in range(20):
        status, _, _ = await ask(made, stream=True)
        assert status == 200
    assert [event["replica"] for event in made.events("ejected")] == ["replica-0.a"]
    assert len(dead.seen) == 3
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        assert "brownout_live_replicas 1.0" in await response.text()
    dead.behaviour = Behaviour()
    replacement = FakeReplica()
    await replacement.start()
    made.replicas.append(replacement)
    await made.announce(("replica-0.b", replacement), ("replica-1.a", made.replicas[1]))
    for _ in range(4):
        assert (await ask(made, stream=True))[0] == 200
    assert len(replacement.seen) == 2, "a new incarnation starts with a clean record"
    await replacement.stop()


async def test_streams_that_are_cut_together_eject_their_replica_at_once(made: Rig) -> None:
    gate = asyncio.Event()
    victim = made.replicas[0]
    for replica in made.replicas:
        replica.behaviour = Behaviour(token_gate=gate, stall_after=2)
    await made.profile("resilient", "least_work", stall_timeout_s=20)
    calls = [asyncio.ensure_future(ask(made, stream=True)) for _ in range(6)]
    await made.until(lambda: sum(one.phase == "streaming" for one in made.gateway.inflight.attempts) == 6)
    await victim.stop()
    await made.until(lambda: made.events("ejected"))
    gate.set()
    bodies = [body for _, _, body in await asyncio.gather(*calls)]
    assert sum(public.ERROR_NOT_RESUMABLE in body for body in bodies) == 3
    assert sum(body.endswith("data: [DONE]\n\n") for body in bodies) == 3
    assert made.gateway.live_replicas() == 1


async def test_without_ejection_the_dead_replica_is_tried_again_and_again(made: Rig) -> None:
    await made.profile("resilient", "ejection", "least_work")
    made.replicas[0].behaviour = Behaviour(cut_before_headers=True)
    for _ in range(10):
        assert (await ask(made, stream=True))[0] == 200
    assert made.events("ejected") == []
    assert len(made.replicas[0].seen) == 5


# --- nobody there, nobody in time ------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["naive", "resilient"])
@pytest.mark.parametrize("stream", [True, False])
async def test_all_replicas_gone_is_said_at_once(made: Rig, profile: str, stream: bool) -> None:
    await made.profile(profile)
    await made.announce()
    began = time.monotonic()
    status, headers, body = await ask(made, stream=stream)
    assert time.monotonic() - began < 5, "not a hang"
    assert (status, body["error"]["type"]) == (503, public.ERROR_NO_REPLICA)
    assert int(headers["retry-after"]) >= 1
    assert [event["reason"] for event in made.events("refused")] == ["no_replica"]
    async with made.http.get(f"{made.url}/readyz") as response:
        assert response.status == 503
    async with made.http.get(f"{made.url}/healthz") as response:
        assert response.status == 200


async def test_a_call_whose_first_token_would_be_late_is_refused_at_once() -> None:
    gate = asyncio.Event()
    async with rig(1, max_num_seqs=2, ttft_objective_s=0.5) as made:
        made.replicas[0].behaviour = Behaviour(first_token_gate=gate)
        await made.profile("resilient", "timeouts", ttft_objective_s=0.5)
        running = [asyncio.ensure_future(ask(made, stream=True, max_tokens=50)) for _ in range(2)]
        await made.until(lambda: made.replicas[0].running == 2)
        status, headers, body = await ask(made, stream=True, max_tokens=50)
        assert (status, body["error"]["type"]) == (503, public.ERROR_OVERLOADED)
        assert int(headers["retry-after"]) >= 1
        assert headers[public.HEADER_SHOULD_RETRY] == "false"
        assert made.replicas[0].running == 2
        assert [event["outcome"] for event in made.events("call_ended")] == ["refused"]
        gate.set()
        assert {status for status, _, _ in await asyncio.gather(*running)} == {200}


async def test_an_exhausted_budget_suppresses_retries_and_not_first_attempts() -> None:
    async with rig(3, **FAST) as made:
        for replica in made.replicas:
            replica.behaviour = Behaviour(status=500)
        await asyncio.gather(*(ask(made, stream=True) for _ in range(60)))
        assert made.events("retry_suppressed")
        firsts = [event for event in made.events("attempt_started") if event["attempt"] == 1]
        assert len(firsts) == 60
        assert len(made.events("retry")) <= 20 + 0.2 * 60 + 20, (
            "half of what may be saved, earned, and reserve"
        )


# --- deadlines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["naive", "resilient"])
async def test_the_clients_deadline_ends_the_call(made: Rig, profile: str) -> None:
    await made.profile(profile, first_token_timeout_s=30)
    for replica in made.replicas:
        replica.behaviour = Behaviour(first_token_gate=never())
    status, _, body = await ask(made, stream=True, headers={public.HEADER_DEADLINE: "0.4"})
    assert (status, body["error"]["type"]) == (504, public.ERROR_TIMEOUT)
    await made.idle()


async def test_no_retry_is_begun_that_the_deadline_would_cut_off(made: Rig) -> None:
    for replica in made.replicas:
        replica.behaviour = Behaviour(status=503, retry_after="5")
    status, _, _ = await ask(made, stream=True, headers={public.HEADER_DEADLINE: "2"})
    assert status == 503
    assert [event["reason"] for event in made.events("retry_suppressed")] == ["deadline"]


# --- changes in flight -----------------------------------------------------------------------------------


async def test_a_profile_is_swapped_under_calls_in_flight(made: Rig) -> None:
    gate = asyncio.Event()
    for replica in made.replicas:
        replica.behaviour = Behaviour(headers_gate=gate)
    await made.profile("naive")
    old = asyncio.ensure_future(ask(made, stream=False))
    await made.until(lambda: sum(replica.running for replica in made.replicas) == 1)
    await made.profile("resilient", header_timeout_s=20, first_token_timeout_s=20)
    new = asyncio.ensure_future(ask(made, stream=False))
    await made.until(lambda: sum(replica.running for replica in made.replicas) == 2)
    gate.set()
    assert (await old)[1][public.HEADER_PROFILE] == "naive"
    assert (await new)[1][public.HEADER_PROFILE] == "resilient"


async def test_a_replica_that_is_removed_finishes_what_it_has_and_gets_nothing_more(made: Rig) -> None:
    gate = asyncio.Event()
    for replica in made.replicas:
        replica.behaviour = Behaviour(token_gate=gate)
    await made.profile("resilient", stall_timeout_s=20)
    running = asyncio.ensure_future(ask(made, stream=True))
    await made.until(lambda: any(one.phase == "streaming" for one in made.gateway.inflight.attempts))
    on = made.gateway.inflight.attempts[0].replica
    left = 1 - int(on[8])
    await made.announce((f"replica-{left}.a", made.replicas[left]))
    gate.set()
    assert (await running)[2].endswith("data: [DONE]\n\n")
    for _ in range(4):
        assert (await ask(made, stream=True))[1][public.HEADER_REPLICA] == f"replica-{left}.a"


async def test_the_last_list_stands_while_the_links_service_is_away(made: Rig) -> None:
    port = int(made.links.url.rsplit(":", 1)[1])
    await made.links.stop()
    assert (await ask(made, stream=True))[0] == 200
    await made.links.start(port)
    made.links._version = 0  # a restarted service counts from the start
    await made.announce(("replica-7.z", made.replicas[0]))
    assert (await ask(made, stream=True))[1][public.HEADER_REPLICA] == "replica-7.z"


async def test_a_client_library_that_retries_does_not_multiply_attempts_on_a_refusal(made: Rig) -> None:
    """`x-should-retry: false` is honoured by the official client: one owner of retries."""
    await made.profile("resilient", ttft_objective_s=0.0001, stall_timeout_s=20)
    gate = asyncio.Event()
    for replica in made.replicas:
        replica.behaviour = Behaviour(token_gate=gate)
    running = [asyncio.ensure_future(ask(made, stream=True)) for _ in range(2)]
    await made.until(lambda: sum(replica.running for replica in made.replicas) == 2)
    with pytest.raises(openai.InternalServerError):
        await made.openai(max_retries=3).completions.create(model=MODEL, prompt="x", max_tokens=2)
    assert [event["outcome"] for event in made.events("call_ended")] == ["refused"]
    gate.set()
    await asyncio.gather(*running)
