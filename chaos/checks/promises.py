"""What is never lost, doubled or leaked, in any arm: effects of tools, accepted jobs, answers of other tenants."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from chaos.checks.check import Check, Status
from chaos.evidence import ArmEvidence
from chaos.faults.new_revision import NewRevision
from chaos.faults.revoke_key import RevokeKey
from chaos.history import CallRecord, FaultRecord
from chaos.load.jobs import OVER
from chaos.measures import Measures
from chaos.slo import answered
from chaos.text import count

NOT_DONE: Final = frozenset({400, 401, 403, 422, 429})
"""Statuses of an answer that says of itself that nothing was done."""
HIT: Final = ("hit", "stale")
"""What the gateway says of an answer that it gave from its cache."""


def effects_truthful(measures: Measures) -> Iterator[Check]:
    """No effect happens twice, none is claimed that did not happen, and none happens that was said not to.

    An arm whose clients take a new key for each try asks for a second effect, and gets it: there only the claims are
    looked at.
    """
    for arm in measures.evidence.arms:
        asked = [call for call in arm.calls if call.effect]
        if not asked:
            continue
        if any(call.effects is None for call in asked):
            why = "the tool's ledger was not read"
            yield Check("effects_truthful", "inconclusive", why, arm.name)
            continue
        problems = [(call, wrong) for call in asked if (wrong := _untrue(call, arm))]
        happened = sum(call.effects or 0 for call in asked)
        if problems:
            call, wrong = problems[0]
            summary = f"{count(len(problems), 'call')} of {len(asked)} with an effect; call {call.n}: {wrong}"
            detail = {str(call.n): wrong for call, wrong in problems[:50]}
            yield Check("effects_truthful", "fail", summary, arm.name, detail)
        else:
            told = sum(1 for call in asked if answered(call))
            summary = f"{count(len(asked), 'call')} with an effect: {told} told that it happened, {happened} happened"
            yield Check("effects_truthful", "pass", summary, arm.name)


def _untrue(call: CallRecord, arm: ArmEvidence) -> str:
    effects = call.effects or 0
    if effects > 1 and arm.arm.clients != "new_keys":
        return f"its effect happened {effects} times"
    if answered(call) and not effects:
        return "it was answered as done, and the ledger does not have it"
    statuses = {one["status"] for one in call.tries} or {call.status}
    if effects and statuses <= NOT_DONE:
        return f"it was refused with {call.status}, and its effect happened"
    return ""


def jobs_accounted(measures: Measures) -> Iterator[Check]:
    """Every job that was accepted ends, in one way and with one result."""
    for arm in measures.evidence.arms:
        accepted = {call.n: call for call in arm.calls if call.job}
        if not accepted:
            continue
        found = {record.n: record for record in arm.jobs}
        states = Counter(found[n].state if n in found else "not looked at" for n in accepted)
        shared = [job for job, times in Counter(call.job for call in accepted.values()).items() if times > 1]
        changed = [n for n, call in accepted.items() if call.text_sha and _differs(call, found[n].text_sha)]
        unknown = states["unknown"] + states["not looked at"]
        lost = sum(times for state, times in states.items() if state not in OVER) - unknown
        said = ", ".join(f"{times} {state}" for state, times in states.most_common())
        summary = f"{count(len(accepted), 'job')} accepted: {said}"
        if lost or shared or changed:
            wrong = [
                f"{lost} lost or without an end" if lost else "",
                f"{len(shared)} given to two calls" if shared else "",
                f"{len(changed)} with a second result" if changed else "",
            ]
            summary += f"; {', '.join(filter(None, wrong))}"
            yield Check("jobs_accounted", "fail", summary, arm.name)
        else:
            yield Check("jobs_accounted", "inconclusive" if unknown else "pass", summary, arm.name)


def _differs(call: CallRecord, now: str) -> bool:
    return bool(now) and now != call.text_sha


def answers_of_the_tenant(measures: Measures) -> Iterator[Check]:
    """Each answer from the cache has its source: a call of the same tenant for the very same, of the same revision.

    While another revision of the model is in force the source must have been sent since that came.
    """
    keys = measures.evidence.experiment.keys

    def tenant_of(call: CallRecord) -> str:
        return keys[call.api_key].split("/")[0] if call.api_key in keys else call.tenant

    def what(call: CallRecord) -> tuple[str, str, int]:
        return tenant_of(call), call.prompt_sha, call.max_tokens

    for arm in measures.evidence.arms:
        hits = [call for call in arm.calls if call.cache in HIT]
        if not hits and not any(call.cache for call in arm.calls):
            continue
        changed = list(_in_force(arm, NewRevision.kind))
        sources: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        for call in arm.calls:
            if call.cache and call.cache not in HIT:
                sources[what(call)].append(call.sent_at)
        foreign = [
            call
            for call in hits
            if not any(_since(call, changed) <= at < call.ended_at for at in sources[what(call)])
        ]
        of = Counter(tenant_of(call) for call in hits)
        said = ", ".join(f"{times} of {tenant or 'nobody'}" for tenant, times in sorted(of.items()))
        summary = f"{count(len(hits), 'answer')} from the cache ({said})"
        if foreign:
            summary += f"; {len(foreign)} that its tenant had not had computed under that revision; call {foreign[0].n}"
            yield Check("answers_of_the_tenant", "fail", summary, arm.name)
        else:
            yield Check("answers_of_the_tenant", "pass", f"{summary}, each its tenant's own", arm.name)


def _since(call: CallRecord, changed: Sequence[tuple[FaultRecord, float]]) -> float:
    """Return since when the source of an answer may have been sent."""
    begun = [
        one.at - float(one.detail.get("took_s", 0.0))
        for one, until in changed
        if one.at < call.sent_at < until
    ]
    return max(begun, default=0.0)


def _in_force(arm: ArmEvidence, kind: str) -> Iterator[tuple[FaultRecord, float]]:
    """Yield each fault of a kind as it was injected, and when it was taken back."""
    for injected in arm.faults:
        if injected.kind == kind and injected.step == "injected":
            reverted = (one.at for one in arm.faults if one.kind == kind and one.step == "reverted")
            yield injected, min((at for at in reverted if at > injected.at), default=math.inf)


def nothing_after_revocation(measures: Measures) -> Iterator[Check]:
    """Whose key was revoked gets no answer any more to what they ask after that, from the cache or otherwise."""
    for arm in measures.evidence.arms:
        for injected, until in _in_force(arm, RevokeKey.kind):
            after = [
                call
                for call in arm.calls
                if call.api_key == injected.target and injected.at <= call.sent_at and call.ended_at < until
            ]
            given = [call for call in after if answered(call)]
            summary = (
                f"{count(len(after), 'call')} with the revoked key {injected.target!r}, {len(given)} answered"
            )
            status: Status = "fail" if given else "pass" if after else "inconclusive"
            yield Check("nothing_after_revocation", status, summary, arm.name)
