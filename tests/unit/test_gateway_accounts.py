"""The gateway's own accounts: events, what is in flight, metrics, and errors as HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster import public
from cluster.gateway.calls import Calls
from cluster.gateway.errors import InvalidRequest, to_http
from cluster.gateway.event_log import EventLog
from cluster.gateway.inflight import InFlight, Snapshot
from cluster.gateway.metrics import Metrics
from cluster.gateway.service import OVERRIDES, BadOverride, profile_settings
from cluster.settings import Settings
from policies import errors
from policies.events import (
    AttemptEnded,
    AttemptFirstToken,
    AttemptHeaders,
    AttemptStarted,
    CallEnded,
    Ejected,
    Refused,
    RetryScheduled,
    Returned,
    ToolEnded,
)
from policies.progress import Reached
from tests.fakes.policy_bench import FixedClock, Remembering
from tests.fakes.virtual_time import run

# --- events ----------------------------------------------------------------------------------------------


def test_events_are_numbered_and_read_from_where_one_stopped() -> None:
    log = EventLog()
    log.emit(Returned("a"))
    log.emit(RetryScheduled("id", 2, 0.1))
    page = log.after(0)
    assert [(event["seq"], event["event"]) for event in page.events] == [(1, "returned"), (2, "retry")]
    assert page.events[1]["delay_s"] == 0.1
    assert page.events[0]["at"] > 1e9
    assert (page.last, page.dropped) == (2, 0)
    assert log.after(2).events == []
    log.emit(Returned("b"))
    assert [event["replica"] for event in log.after(page.last).events] == ["b"]


def test_overwritten_events_are_counted_and_pages_can_be_bounded() -> None:
    log = EventLog(capacity=10)
    for number in range(25):
        log.emit(Returned(str(number)))
    page = log.after(3)
    assert (len(page.events), page.events[0]["seq"], page.last, page.dropped) == (10, 16, 25, 12)
    page = log.after(18, limit=3)
    assert ([event["seq"] for event in page.events], page.last, page.dropped) == ([19, 20, 21], 21, 0)
    assert log.after(99).last == 25, "numbers from before a restart lead back to the present"


# --- in flight -------------------------------------------------------------------------------------------


def start(inflight: InFlight, request_id: str, replica: str, *, phase: str = "headers") -> None:
    inflight.emit(AttemptStarted(request_id, 1, replica))
    if phase != "headers":
        inflight.emit(AttemptHeaders(request_id, 1, replica))
    if phase == "streaming":
        inflight.emit(AttemptFirstToken(request_id, 1, replica, 0.1))


def test_attempts_are_followed_through_their_phases() -> None:
    inflight = InFlight()
    start(inflight, "a", "replica-0.x")
    start(inflight, "b", "replica-0.x", phase="first_token")
    start(inflight, "c", "replica-0.x", phase="streaming")
    start(inflight, "d", "replica-1.y")
    assert [one.phase for one in inflight.attempts] == ["headers", "first_token", "streaming", "headers"]
    snapshot = inflight.snapshot("replica-0.x")
    assert (snapshot.awaiting, snapshot.streaming) == (["a", "b"], ["c"])
    inflight.emit(AttemptEnded("c", 1, "replica-0.x", "ok"))
    assert len(inflight.attempts) == 3


@pytest.mark.parametrize("name", ["replica-0", "replica-0.x"])
def test_a_waiter_is_told_at_the_very_change_that_makes_its_condition_true(name: str) -> None:
    async def main() -> tuple[Snapshot | None, list[str]]:
        inflight = InFlight()
        task = asyncio.ensure_future(inflight.until(name, streaming=2, awaiting=1, timeout_s=60))
        await asyncio.sleep(0)
        start(inflight, "other", "replica-1.y", phase="streaming")
        start(inflight, "a", "replica-0.x", phase="streaming")
        start(inflight, "b", "replica-0.x")
        await asyncio.sleep(0)
        assert not task.done()
        inflight.emit(AttemptHeaders("b", 1, "replica-0.x"))
        start(inflight, "c", "replica-0.x", phase="streaming")
        at_once = [one.request_id for one in inflight.attempts]
        inflight.emit(AttemptEnded("a", 1, "replica-0.x", "ok"))
        return await task, at_once

    snapshot, _ = run(main())
    assert snapshot is not None
    assert (snapshot.replica, snapshot.awaiting, snapshot.streaming) == ("replica-0.x", ["b"], ["a", "c"])


def test_a_condition_that_holds_already_is_answered_at_once_and_one_that_never_does_times_out() -> None:
    async def main() -> tuple[Snapshot | None, Snapshot | None]:
        inflight = InFlight()
        start(inflight, "a", "replica-0.x")
        at_once = await inflight.until("replica-0", streaming=0, awaiting=1, timeout_s=1e-9)
        never = await inflight.until("replica-0", streaming=5, awaiting=1, timeout_s=30)
        assert not inflight._waiters
        return at_once, never

    at_once, never = run(main())
    assert at_once is not None
    assert at_once.replica == "replica-0.x"
    assert never is None


def test_calls_end_once_with_their_outcome_and_their_first_token_counts_once() -> None:
    sink, seen = Remembering(), list[float]()
    calls = Calls(sink, FixedClock(), seen.append)
    with calls.open("id") as live:
        assert (len(calls), calls.waiting) == (1, 1)
        live.first_token()
        live.first_token()
        assert (len(calls), calls.waiting) == (1, 0)
        live.outcome = "ok"
    with pytest.raises(KeyError), calls.open("id"):
        raise KeyError
    assert (len(calls), calls.waiting, len(seen)) == (0, 0, 1)
    assert sink.of(CallEnded) == [CallEnded("id", "ok"), CallEnded("id", "cancelled")]


def test_two_calls_with_one_id_are_kept_apart() -> None:
    calls = Calls(Remembering(), FixedClock(), lambda _: None)
    with calls.open("id") as first, calls.open("id") as second:
        assert (first.request_id, second.request_id) == ("id", "id~2")
    assert len(calls) == 0


# --- metrics ---------------------------------------------------------------------------------------------


def test_metrics_count_the_events_under_the_public_names() -> None:
    metrics = Metrics()
    for event in (
        CallEnded("a", "ok"),
        CallEnded("b", "failed"),
        AttemptEnded("a", 1, "r", "ok"),
        RetryScheduled("a", 2, 0.1),
        Refused("a", "overloaded"),
        CallEnded("c", "refused", "overloaded", "refuse"),
        CallEnded("d", "refused", "something new"),
        CallEnded("e", "ok", rung="short_output"),
        Ejected("r", "why", 5.0),
        ToolEnded("a", "deadline", 1.0),
    ):
        metrics.emit(event)
    metrics.ttft(0.2)
    metrics.gauge(public.METRIC_HEADROOM, "text", lambda: 0.25)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    assert samples[public.METRIC_CALLS, "ok"] == samples[public.METRIC_CALLS, "refused"] == 2
    assert samples[public.METRIC_CALLS, "invalid"] == 0, "present from the start"
    assert samples[public.METRIC_ATTEMPTS, "ok"] == 1
    assert samples[(public.METRIC_RETRIES,)] == samples[(public.METRIC_EJECTIONS,)] == 1
    assert samples[public.METRIC_REFUSED, "overloaded"] == samples[public.METRIC_TOOL_CALLS, "deadline"] == 1
    assert samples[public.METRIC_REFUSED, "other"] == 1, "the label set is bounded"
    assert samples[public.METRIC_REFUSED, "quota"] == 0
    assert samples[public.METRIC_RUNGS, "refuse"] == samples[public.METRIC_RUNGS, "short_output"] == 1
    assert samples[(f"{public.METRIC_TTFT}_count",)] == 1
    assert samples[(public.METRIC_HEADROOM,)] == 0.25


# --- errors as HTTP --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "type_"),
    [
        (errors.Overloaded("x", retry_after_s=1.2, predicted_s=9), 503, public.ERROR_OVERLOADED),
        (errors.NoReplica("x", retry_after_s=2), 503, public.ERROR_NO_REPLICA),
        (errors.QueueFull("x", retry_after_s=2), 503, public.ERROR_OVERLOADED),
        (errors.WaitedTooLong("x", retry_after_s=2), 503, public.ERROR_OVERLOADED),
        (errors.BreakerOpen("x", retry_after_s=2), 503, public.ERROR_BREAKER),
        (errors.QuotaExceeded("x", retry_after_s=2), 429, public.ERROR_QUOTA),
        (errors.NotResumable("x", why="seed"), 502, public.ERROR_NOT_RESUMABLE),
        (errors.EngineStalled("x"), 504, public.ERROR_TIMEOUT),
        (errors.DeadlineExceeded("x"), 504, public.ERROR_TIMEOUT),
        (errors.AttemptTimeout("x"), 504, public.ERROR_TIMEOUT),
        (errors.ReplicaLost("x"), 502, public.ERROR_UPSTREAM_LOST),
        (errors.ReplicaFailed("x"), 502, public.ERROR_UPSTREAM_LOST),
        (errors.ReplicaBusy("x"), 503, public.ERROR_OVERLOADED),
        (errors.CallRejected("x", status=422), 422, public.ERROR_INVALID),
        (errors.ToolDeadline("x"), 504, public.ERROR_TOOL),
        (errors.ToolError("x"), 502, public.ERROR_TOOL),
        (InvalidRequest("x", status=413), 413, public.ERROR_INVALID),
        (KeyError("x"), 500, "internal_error"),
    ],
)
def test_each_error_has_its_status_and_the_openai_shape(error: Exception, status: int, type_: str) -> None:
    answer = to_http(error)
    said = json.loads(answer.body)["error"]
    assert (answer.status, said["type"]) == (status, type_)
    assert set(said) == {"message", "type", "param", "code"}
    assert ("retry-after" in answer.headers) == (status in (429, 503))


def test_every_error_of_the_policies_is_in_the_table() -> None:
    def leaves(kind: type[Exception]) -> list[type[Exception]]:
        below = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
        return [one for sub in below for one in leaves(sub)] or [kind]

    arguments: dict[type[Exception], dict[str, Any]] = {
        kind: {"retry_after_s": 1} for kind in leaves(errors.CallRefused)
    }
    arguments[errors.Overloaded]["predicted_s"] = 1
    arguments[errors.FailedClosed]["what"] = "audit"
    arguments[errors.CallRejected] = {"status": 400}
    arguments[errors.ToolUnknown] = {"may_be_found": True}
    arguments[errors.NotResumable] = {"why": "x"}
    for kind in leaves(errors.PolicyError):
        assert to_http(kind("x", **arguments.get(kind, {}))).status != 500, kind


def test_retry_after_is_whole_seconds_and_rounded_up() -> None:
    assert to_http(errors.NoReplica("x", retry_after_s=1.2)).headers["retry-after"] == "2"
    refused = to_http(errors.Overloaded("x", retry_after_s=0.1, predicted_s=9))
    assert refused.headers["retry-after"] == "1"
    assert refused.headers[public.HEADER_SHOULD_RETRY] == "false"


def test_a_replicas_own_words_pass_through_when_they_have_the_shape() -> None:
    body = b'{"error": {"message": "too long", "type": "BadRequestError", "param": "x", "code": 400}}'
    assert to_http(errors.CallRejected("x", status=400, body=body)).body == body
    for other in (b'{"detail": "Not Found"}', b"<html>", b"[1]", b""):
        wrapped = json.loads(to_http(errors.CallRejected("said", status=404, body=other)).body)
        assert wrapped["error"]["message"] == "said"


def test_after_the_first_token_a_silent_replica_is_a_lost_one_but_the_callers_deadline_is_its_own() -> None:
    silent = errors.AttemptTimeout("x", reached=Reached.MID_STREAM)
    event = to_http(silent, started=True).event()
    assert event.startswith(b"data: {")
    assert event.endswith(b"\n\n")
    said = json.loads(event[6:])["error"]
    assert (said["type"], said["code"]) == (public.ERROR_UPSTREAM_LOST, public.ERROR_UPSTREAM_LOST)
    said = json.loads(to_http(errors.DeadlineExceeded("x"), started=True).body)["error"]
    assert said["type"] == public.ERROR_TIMEOUT


# --- overrides -------------------------------------------------------------------------------------------


def test_overrides_replace_settings_and_are_checked() -> None:
    made = profile_settings(Settings(), {"header_timeout_s": 0.5, "ttft_objective_s": 2})
    assert (made.timeouts.header_s, made.ttft_objective_s) == (0.5, 2)
    assert set(OVERRIDES) <= set(Settings.model_fields)
    for wrong, said in (
        ({"heder_timeout_s": 1}, "header_timeout_s"),
        ({"header_timeout_s": "soon"}, "soon"),
        ({"header_timeout_s": 0}, "header_timeout_s"),
        ({"header_timeout_s": 9}, "first_token_s"),
    ):
        with pytest.raises(BadOverride, match=said):
            profile_settings(Settings(), wrong)
