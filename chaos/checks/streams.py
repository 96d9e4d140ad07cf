"""Streams: one that counts as answered is whole, and one that was cut says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaos.checks.check import Check
from chaos.history import CallRecord
from chaos.load.answer import FULL_RUNG
from chaos.measures import Measures, is_cut
from chaos.slo import answered
from chaos.text import count
from cluster.public import (
    ERROR_BREAKER,
    ERROR_NO_REPLICA,
    ERROR_NOT_RESUMABLE,
    ERROR_OVERLOADED,
    ERROR_QUOTA,
    ERROR_TIMEOUT,
    ERROR_TOOL,
    ERROR_UPSTREAM_LOST,
)

TYPED_ERRORS: Final = frozenset(
    {
        ERROR_UPSTREAM_LOST,
        ERROR_NOT_RESUMABLE,
        ERROR_TIMEOUT,
        ERROR_OVERLOADED,
        ERROR_NO_REPLICA,
        ERROR_QUOTA,
        ERROR_BREAKER,
        ERROR_TOOL,
    }
)
"""Types of error that the gateway gives; any other is the client's word for what it found broken."""
_WHOLE: Final = frozenset({"ok", "deferred_done"})
_ENDS: Final = frozenset({"length", "stop", "tool_calls"})


def flaw(call: CallRecord) -> str:
    """Return what is wrong with a call that was taken for answered; empty when nothing is."""
    if call.finish_reason not in _ENDS:
        return f"finish_reason {call.finish_reason!r}"
    stream = call.stream and call.outcome != "deferred_done"
    if stream and not call.done:
        return "no [DONE]"
    if stream and call.first_token_at is None:
        return "no token arrived"
    if call.output_tokens <= 0:
        return "no token count in its usage"
    if call.finish_reason == "length" and call.output_tokens != call.max_tokens and not shortened(call):
        return f"{call.output_tokens} tokens where {call.max_tokens} were due"
    if call.output_tokens > call.max_tokens:
        return f"{call.output_tokens} tokens, more than the {call.max_tokens} that were asked for"
    if stream and len(call.token_at) > call.output_tokens:
        return f"{len(call.token_at)} chunks of text for {call.output_tokens} tokens: something was repeated"
    return ""


def shortened(call: CallRecord) -> bool:
    """Tell whether the gateway said that it gave less than was asked for, on purpose."""
    return call.rung not in FULL_RUNG


def streams_unaltered(measures: Measures) -> Iterator[Check]:
    """No token is lost, repeated or changed: a fault leaves the text of an answered call as it is without the fault.

    Decoding is greedy, so the same prompt gives the same text wherever and beside whatever it is decoded. Calls that
    were answered with less on purpose (a lower rung, no tool) may differ and are left out, and so are those with an
    effect: the tool numbers what it does, and its answer stands in their prompt.
    """
    control = measures.evidence.role("control")
    if control is None:
        yield Check("streams_unaltered", "inconclusive", "no control arm was run to compare texts with")
        return
    whole = {call.n: call for call in control.calls if _comparable(call)}
    for arm in measures.evidence.arms:
        if arm is control:
            continue
        both = [(whole[call.n], call) for call in arm.calls if _comparable(call) and call.n in whole]
        altered = [call for twin, call in both if _text(twin) != _text(call)]
        resumed = arm.resumed()
        if altered:
            call = altered[0]
            also = ", which was resumed" if call.request_id in resumed else ""
            summary = (
                f"{count(len(altered), 'answer')} of {len(both)} differ from the same call's answer without the fault; "
                f"call {call.n}{also}: {call.output_tokens} tokens, text {call.text_sha}"
            )
            detail = {"calls": [c.n for c in altered[:50]]}
            yield Check("streams_unaltered", "fail", summary, arm.name, detail)
        elif not both:
            summary = "no call was answered in full both here and without the fault"
            yield Check("streams_unaltered", "inconclusive", summary, arm.name)
        else:
            carried = sum(1 for _, call in both if call.request_id in resumed)
            also = f"; {carried} of them were resumed on another replica" if carried else ""
            summary = f"{count(len(both), 'answer')}, each with the text that it has without the fault{also}"
            yield Check("streams_unaltered", "pass", summary, arm.name)


def _comparable(call: CallRecord) -> bool:
    return call.outcome in _WHOLE and not shortened(call) and not call.effect


def _text(call: CallRecord) -> tuple[str, int, str]:
    return call.text_sha, call.output_tokens, call.finish_reason


def stream_integrity(measures: Measures) -> Iterator[Check]:
    """No call counts as answered with a wrong token count, a missing ``[DONE]`` or no valid end."""
    for arm in measures.evidence.arms:
        good = [call for call in arm.calls if answered(call)]
        flaws = [(call, wrong) for call in good if (wrong := flaw(call))]
        if flaws:
            call, wrong = flaws[0]
            summary = f"{count(len(flaws), 'call')} taken for answered, but not whole; call {call.n}: {wrong}"
            detail = {str(call.n): wrong for call, wrong in flaws[:50]}
            yield Check("stream_integrity", "fail", summary, arm.name, detail)
        elif not good:
            yield Check("stream_integrity", "inconclusive", "no call was answered", arm.name)
        else:
            summary = f"{count(len(good), 'answered call')}, each whole to its last token"
            yield Check("stream_integrity", "pass", summary, arm.name)


def visible_failures(measures: Measures) -> Iterator[Check]:
    """With the policies on, a stream that is cut after its first token ends with a typed error event."""
    resilient = measures.evidence.role("resilient")
    if resilient is None:
        yield Check("visible_failures", "inconclusive", "no arm with the policies on was run")
        return
    cut = [call for call in resilient.calls if is_cut(call)]
    silent = [call for call in cut if call.error_type not in TYPED_ERRORS]
    name = resilient.name
    if silent:
        call = silent[0]
        what = call.error_type or "no error at all"
        summary = f"{count(len(silent), 'stream')} cut without a typed error event; call {call.n}: {what}"
        yield Check("visible_failures", "fail", summary, name, {"calls": [c.n for c in silent]})
    elif not resilient.calls:
        yield Check("visible_failures", "inconclusive", "no calls were recorded", name)
    else:
        summary = (
            f"{count(len(cut), 'stream')} cut after the first token, each with a typed error event"
            if cut
            else "no stream was cut after its first token"
        )
        yield Check("visible_failures", "pass", summary, name)
