"""What a caller is told who is turned away: whose fault it is, when to come back, and whether that is of use."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cluster import public
from cluster.gateway.errors import HttpError, to_http
from policies import errors
from policies.progress import Reached

REFUSALS: list[errors.CallRefused | errors.ReplicaBusy] = [
    errors.QuotaExceeded("no", retry_after_s=2.25),
    errors.Overloaded("no", retry_after_s=2.25, predicted_s=9),
    errors.QueueFull("no", retry_after_s=2.25),
    errors.WaitedTooLong("no", retry_after_s=2.25),
    errors.Throttled("no", retry_after_s=2.25),
    errors.BreakerOpen("no", retry_after_s=2.25),
    errors.NoReplica("no", retry_after_s=2.25),
    errors.FailedClosed("no", what="audit", retry_after_s=2.25),
    errors.ReplicaBusy("no", retry_after_s=2.25),
]
each_refusal = pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)


def said(answer: HttpError) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer.body)
    return body


@each_refusal
def test_the_body_is_a_problem_document_and_the_openai_shape_at_once(
    error: errors.CallRefused | errors.ReplicaBusy,
) -> None:
    answer = to_http(error)
    body = said(answer)
    assert answer.content_type == "application/problem+json"
    assert set(body) == {"type", "title", "status", "detail", "retry_after_s", "error"}
    assert (body["status"], body["detail"], body["retry_after_s"]) == (answer.status, "no", 2.25)
    assert body["type"] == f"urn:brownout:problem:{body['error']['code']}"
    assert body["title"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == "no"


@each_refusal
def test_it_says_when_to_come_back_without_losing_the_jitter(
    error: errors.CallRefused | errors.ReplicaBusy,
) -> None:
    headers = to_http(error).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("3", "2250")


@each_refusal
def test_only_ones_own_quota_is_ones_own_fault(error: errors.CallRefused | errors.ReplicaBusy) -> None:
    assert to_http(error).status == (429 if isinstance(error, errors.QuotaExceeded) else 503)


@each_refusal
def test_a_retry_is_advised_where_it_adds_no_load(error: errors.CallRefused | errors.ReplicaBusy) -> None:
    useful = isinstance(
        error, errors.QuotaExceeded | errors.BreakerOpen | errors.NoReplica | errors.FailedClosed
    )
    assert to_http(error).headers[public.HEADER_SHOULD_RETRY] == ("true" if useful else "false")


def test_every_kind_of_refusal_is_told_apart() -> None:
    kinds = {type(error) for error in REFUSALS}
    assert {
        kind for kind in errors.CallRefused.__subclasses__() if kind.__module__ == errors.__name__
    } <= kinds
    codes = [
        said(to_http(error))["error"]["code"] for error in REFUSALS if isinstance(error, errors.CallRefused)
    ]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    ("given", "header"), [(0.0, "1"), (-3.0, "1"), (0.2, "1"), (math.inf, "3600"), (1e9, "3600")]
)
def test_the_time_to_stay_away_is_bounded(given: float, header: str) -> None:
    answer = to_http(errors.QueueFull("no", retry_after_s=given))
    assert answer.headers["retry-after"] == header
    assert 0 <= said(answer)["retry_after_s"] <= 3600


def test_a_deadline_that_is_used_up_is_not_worth_a_retry() -> None:
    headers = to_http(errors.DeadlineExceeded("late")).headers
    assert headers == {public.HEADER_SHOULD_RETRY: "false"}


@pytest.mark.parametrize(
    "error", [errors.ReplicaLost("cut"), errors.ReplicaFailed("500"), errors.AttemptTimeout("silent")]
)
def test_whether_to_repeat_what_failed_is_left_to_the_client(error: errors.AttemptError) -> None:
    answer = to_http(error)
    assert answer.headers == {}
    assert answer.content_type == "application/json"


def test_a_stream_that_must_not_be_continued_ends_with_an_error_of_its_own() -> None:
    error = errors.NotResumable("cut after 7 tokens: sampled without a seed", why="seed")
    body = said(to_http(error, started=True))
    assert body == {
        "error": {
            "message": "cut after 7 tokens: sampled without a seed",
            "type": public.ERROR_NOT_RESUMABLE,
            "param": None,
            "code": public.ERROR_NOT_RESUMABLE,
        }
    }


@pytest.mark.parametrize(
    "error",
    [errors.ReplicaBusy("full", reached=Reached.MID_STREAM), errors.NoReplica("nobody", retry_after_s=1)],
)
def test_in_a_stream_that_has_begun_there_are_no_refusals(error: errors.PolicyError) -> None:
    body = said(to_http(error, started=True))
    assert set(body) == {"error"}
    assert body["error"]["type"] == public.ERROR_UPSTREAM_LOST
