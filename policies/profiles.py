"""Named settings, made into one composed pipeline.

A profile says which policies are on; each can be switched off by name, to see what it is worth. The order is
fixed here and nowhere else::

    deadline → ladder → early rejection → admission → (throttling) → retry (backoff, budget, resume) → (hedging)
             → dispatch (balance, isolation, slow start, ejection, stall watch) → time-outs → handler

Those in brackets are in no profile and are switched on by name.

To add a policy, write it in a module of its own with a function that makes it from :class:`Parts`, and add one
line to ``STAGES``; its name is then known to the gateway, to ``--without`` and to the reports.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic

from policies import retry_only
from policies.admission import Admission
from policies.breakers import Breakers
from policies.call import Call, Handler, Policy, T, compose
from policies.degradation import Degradation
from policies.dispatch import Dispatch
from policies.early_rejection import EarlyRejection, nothing_queues
from policies.entrance import make_admission, make_limits
from policies.fleet import Replica
from policies.hedging import Hedging
from policies.observe import AttemptObserver
from policies.parts import Parts, ProfileSettings, Stage, Surroundings
from policies.pressure import FleetPressure
from policies.priority import Priority
from policies.retry import Retry
from policies.retry_budget import RetryBudget
from policies.routing import make_dispatch
from policies.throttling import ClientThrottling
from policies.timeouts import AttemptTimeouts, DeadlineGuard


class UnknownName(ValueError):
    """A profile or policy that does not exist; ``nearest`` are the names that come close."""

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        names = tuple(known)
        self.nearest = tuple(difflib.get_close_matches(given, names, n=3, cutoff=0.4)) or names
        super().__init__(f"unknown {kind} {given!r}: did you mean {', '.join(self.nearest)}?")


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T]):
    """A handler with the policies of a profile around it."""

    profile: str
    without: tuple[str, ...]
    extra: tuple[str, ...]
    """Policies that were switched on beyond those of the profile."""
    active: tuple[str, ...]
    handle: Handler[T]
    dispatch: Dispatch
    tool_deadline_s: float | None
    """Longest tool phase; None where nothing but the call's deadline bounds it."""
    tool_breakers: Breakers | None
    """What keeps calls from a method of the tool that has been failing; None where nothing does."""
    default_deadline_s: float | None
    """Deadline of a call whose client names none; None where there is none."""
    ladder: Degradation | None = None
    """For what is decided before the pipeline; None where the ladder is off."""
    admission: Admission | None = None
    """For what is shown of it; None where it is off."""

    async def __call__(self, call: Call, /) -> T:
        """Answer the call."""
        return await self.handle(call)

    def rotation(self) -> Sequence[Replica]:
        """Return the replicas that get new attempts now."""
        return self.dispatch.rotation()


def _ladder(parts: Parts) -> Policy:
    around, knobs = parts.around, parts.knobs
    queued = nothing_queues if parts.admission is None else parts.admission.backlog
    return Degradation(
        knobs.ladder,
        pressure=FleetPressure(
            rotation=parts.rotation,
            ledger=around.ledger,
            rates=around.rates,
            objective_s=knobs.ttft_objective_s,
            queued=partial(queued, Priority.SHEDDABLE),
        ),
        classes=knobs.classes,
        entitled=around.entitled,
        handlers=around.rung_handlers,
        clock=around.clock,
        sink=around.sink,
    )


def _early_rejection(parts: Parts) -> Policy:
    around = parts.around
    return EarlyRejection(
        parts.knobs.ttft_objective_s,
        rotation=parts.rotation,
        ledger=around.ledger,
        rates=around.rates,
        queued=nothing_queues if parts.admission is None else parts.admission.backlog,
        rng=around.rng,
        sink=around.sink,
    )


def _admission(parts: Parts) -> Policy:
    assert parts.admission is not None
    return parts.admission


def _retry(parts: Parts) -> Policy:
    around, knobs = parts.around, parts.knobs
    return Retry(
        max_attempts=knobs.max_attempts,
        backoff=knobs.backoff,
        budget=parts.budget,
        resume=knobs.resume if "resume" in parts.active else None,
        clock=around.clock,
        rng=around.rng,
        sink=around.sink,
    )


def _hedging(parts: Parts) -> Policy:
    return Hedging(
        parts.knobs.hedging,
        budget=parts.budget,
        deposits="retry" not in parts.active,
        rotation=parts.rotation,
        max_attempts=parts.knobs.max_attempts,
        clock=parts.around.clock,
        sink=parts.around.sink,
    )


def _throttling(parts: Parts) -> Policy:
    around = parts.around
    return ClientThrottling(parts.knobs.throttling, clock=around.clock, rng=around.rng, sink=around.sink)


def _timeouts(parts: Parts) -> Policy:
    return AttemptTimeouts(parts.knobs.timeouts, clock=parts.around.clock)


DISPATCH: Final = "dispatch"
"""The stage that is always there: stages before it see a call once, stages after it each attempt."""

STAGES: Final[tuple[Stage | str, ...]] = (
    Stage("ladder", _ladder, "refusals, where a lesser answer could have been given"),
    Stage("early_rejection", _early_rejection, "answers that would come too late to be of use to anybody"),
    Stage(
        "admission",
        _admission,
        "more work at once than the replicas do well, and the important behind the rest",
    ),
    Stage("throttling", _throttling, "a service that spends itself on turning calls away"),
    Stage("retry", _retry, "the loss of one replica, as far as nothing was delivered yet"),
    Stage("hedging", _hedging, "the odd attempt whose first token is late"),
    DISPATCH,
    Stage("timeouts", _timeouts, "a replica that takes a call and then says nothing"),
)
"""Outermost first."""

INSIDE: Final[dict[str, str]] = {
    "resume": "the loss of a replica in mid-stream, of which the client sees nothing then",
    "adaptive_limit": "a limit that was right for other hardware, another model or other prompts",
    "retry_budget": "retries that keep the fleet overloaded after its cause has gone",
    "ejection": "a replica that fails again and again and would be asked again and again",
    "stall_watch": "an engine that hangs behind a green health check, and holds every stream that it has",
    "slow_start": "a cold replica that is the emptiest of all and so gets every call",
    "least_work": "long prompts that pile up at one replica while another idles",
    "isolation": "short calls that wait behind long prompts on every replica",
    "tool_deadline": "a tool that hangs and holds its callers for as long as they stay",
    "tool_breaker": "a tool that is down and costs each of its callers the wait until that is clear",
}
"""Policies that are no stage of their own, with what each protects from: they are part of retry, of dispatch, or of
the phase before generation."""

OPTIONAL: Final = ("throttling", "hedging")
"""Policies that are in no profile: admission does better what the one does, and the other adds load."""

POLICIES: Final = (
    *(stage.name for stage in STAGES if isinstance(stage, Stage) and stage.name not in OPTIONAL),
    *INSIDE,
)
PROTECTS: Final[dict[str, str]] = {
    **{stage.name: stage.protects for stage in STAGES if isinstance(stage, Stage)},
    **INSIDE,
}
"""Policy to the one line that ``brownout profiles`` prints about it."""
PROFILES: Final[dict[str, tuple[str, ...]]] = {
    "naive": (),
    retry_only.NAME: retry_only.POLICIES,
    "resilient": POLICIES,
}
"""Profile to the policies that are on in it."""
PROFILE_KNOBS: Final[dict[str, Callable[[ProfileSettings], ProfileSettings]]] = {
    retry_only.NAME: retry_only.eagerly
}
"""Profile to what it makes of the knobs, where it has some of its own."""


def active_policies(profile: str, without: Iterable[str] = (), extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the policies that are on in a profile, and those switched on, less those switched off.

    Raises:
        UnknownName: no such profile, or no such policy.
    """
    if profile not in PROFILES:
        raise UnknownName("profile", profile, PROFILES)
    off, on = tuple(without), tuple(extra)
    known = (*POLICIES, *OPTIONAL)
    for name in (*off, *on):
        if name not in known:
            raise UnknownName("policy", name, known)
    return tuple(name for name in known if name in (*PROFILES[profile], *on) and name not in off)


def build(
    profile: str,
    handler: Handler[T],
    around: Surroundings,
    settings: ProfileSettings | None = None,
    *,
    without: Iterable[str] = (),
    extra: Iterable[str] = (),
) -> Pipeline[T]:
    """Compose the pipeline of a profile around a handler; nothing is shared with an earlier one but ``around``.

    ``without`` names policies to switch off, ``extra`` those to switch on besides.

    Raises:
        UnknownName: no such profile, or no such policy.
    """
    off, on = tuple(dict.fromkeys(without)), tuple(dict.fromkeys(extra))
    active = active_policies(profile, off, on)
    knobs = PROFILE_KNOBS.get(profile, _as_given)(settings or ProfileSettings())
    clock = around.clock

    limits = make_limits(around, knobs)
    observers: list[AttemptObserver] = [limits] if "adaptive_limit" in active else []
    dispatch = make_dispatch(around, knobs, active, observers, limits if observers else None)

    budget = RetryBudget(clock, knobs.budget) if "retry_budget" in active else None
    admission = make_admission(around, knobs, dispatch.rotation, limits) if "admission" in active else None
    parts = Parts(around, knobs, active, dispatch.rotation, budget, admission)
    policies: list[Policy] = [DeadlineGuard(clock=clock)]
    for stage in STAGES:
        if not isinstance(stage, Stage):
            policies.append(dispatch)
        elif stage.name in active:
            policies.append(stage.make(parts))

    return Pipeline(
        profile=profile,
        without=off,
        extra=on,
        active=active,
        handle=compose(policies, handler),
        dispatch=dispatch,
        tool_deadline_s=knobs.tool_deadline_s if "tool_deadline" in active else None,
        tool_breakers=(
            Breakers("tool", knobs.tool_breaker, clock=clock, rng=around.rng, sink=around.sink)
            if "tool_breaker" in active
            else None
        ),
        default_deadline_s=None if profile == "naive" else knobs.default_deadline_s,
        admission=admission,
        ladder=next((policy for policy in policies if isinstance(policy, Degradation)), None),
    )


def _as_given(knobs: ProfileSettings) -> ProfileSettings:
    return knobs
