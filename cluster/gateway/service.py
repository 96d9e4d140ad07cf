"""The gateway itself: what outlives a pipeline, and the pipeline that new calls go through."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from cluster import public
from cluster.gateway.admission_gauges import add_admission_gauges
from cluster.gateway.answer import Answer
from cluster.gateway.calls import Calls
from cluster.gateway.deferral import defer
from cluster.gateway.entitlement import Entitlement
from cluster.gateway.event_log import EventLog
from cluster.gateway.generation import Context
from cluster.gateway.inflight import InFlight
from cluster.gateway.ladder import LadderKnobs
from cluster.gateway.metrics import Metrics
from cluster.gateway.recall import answer_earlier
from cluster.gateway.replicas import Discovery
from cluster.gateway.small import SmallModel
from cluster.gateway.state import State
from cluster.gateway.tenant_metrics import add_tenant_metrics
from cluster.gateway.tenants import Tenants
from cluster.gateway.tokens import TokenCounter
from cluster.gateway.tool_client import ToolClient
from cluster.gateway.tools import METHODS, ToolMethod
from cluster.gateway.upstream import Upstream
from cluster.settings import Settings
from policies.admission import AdmissionSettings
from policies.clock import SystemClock
from policies.events import Fanout
from policies.fleet import Fleet
from policies.isolation import IsolationSettings
from policies.ladder import CACHED, DEFERRED, SMALL_MODEL, ClassRungs, LadderSettings
from policies.parts import EagerSettings, ProfileSettings, Surroundings
from policies.prediction import best_ttft_s
from policies.profiles import Pipeline, UnknownName, build
from policies.rates import RatePriors, Rates
from policies.resume import ResumeSettings
from policies.retry_budget import BudgetSettings
from policies.timeouts import TimeoutSettings
from policies.work import Backlog, OutputEstimator, WorkLedger

OVERRIDES: Final = (
    "header_timeout_s",
    "first_token_timeout_s",
    "stall_timeout_s",
    "attempt_timeout_s",
    "default_deadline_s",
    "ttft_objective_s",
    "tool_deadline_s",
    "max_resumes",
)
"""Settings that a change of profile may carry with it."""
_TYPICAL_PROMPT: Final = 100
_LEAST_HEADROOM: Final = -10.0
"""The gauge's floor: minus infinity (load but no replica) cannot be written as JSON."""


class BadOverride(ValueError):
    """An override that does not exist or has a value that cannot be used; the text says which."""


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """What was asked for: a profile, what is switched off in it and on besides, and settings other than configured."""

    profile: str
    without: tuple[str, ...] = ()
    overrides: tuple[tuple[str, float], ...] = ()
    extra: tuple[str, ...] = ()


class Gateway:
    """One gateway. It must be made where an event loop runs."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        counter: TokenCounter,
        *,
        rng: random.Random | None = None,
        state: State | None = None,
        tool_methods: Mapping[str, ToolMethod] = METHODS,
    ) -> None:
        self.settings = settings
        self.state = state or State()
        self.tenants = Tenants.of(settings)
        self.counter = counter
        self.context = Context(settings.model_name, settings.max_model_len)
        self.clock = SystemClock()
        self.metrics = Metrics()
        self.events = EventLog()
        self.inflight = InFlight()
        self.sink = Fanout(self.inflight, self.events, self.metrics)
        self.calls = Calls(self.sink, self.clock, self.metrics.ttft)
        self.fleet = Fleet(sink=self.sink)
        self.ledger = WorkLedger()
        self.rates = Rates(self.clock, _priors(settings))
        self.outputs = OutputEstimator()
        self.tool_methods = tool_methods
        self.tools = ToolClient(session, self.clock, tool_methods)
        rng = rng or random.Random()
        self.small = SmallModel(
            settings, session, _priors(settings), clock=self.clock, rng=rng, sink=self.sink
        )
        self.ladder_knobs = LadderKnobs(
            settings.short_output_share, settings.short_output_tokens, settings.short_context_tokens
        )
        self.discovery = Discovery(
            settings.links_url,
            self.fleet,
            session,
            tool_address=f"{settings.link_connect_host}:{settings.port_tool_link}",
            small_fleet=self.small.fleet,
        )
        self.draining = False
        self._upstream = Upstream(session, self.rates)
        self._around = Surroundings(
            self.fleet,
            self.ledger,
            self.rates,
            self.clock,
            rng,
            self.sink,
            entitled=Entitlement(self.tenants, settings.small_model_name),
            rung_handlers={SMALL_MODEL: self.small, CACHED: answer_earlier, DEFERRED: defer},
        )
        self.choice = ProfileChoice(settings.profile, extra=_configured_extra(settings))
        self.pipeline = self._build(self.choice)
        self._add_gauges()
        add_tenant_metrics(self.metrics, self.tenants, self.state.quotas)
        if self.state.answers is not None:
            self.state.answers.bind(self)

    def change_profile(
        self,
        profile: str,
        without: Iterable[str] = (),
        overrides: Mapping[str, Any] | None = None,
        extra: Iterable[str] | None = None,
    ) -> None:
        """Put a fresh pipeline in; calls in flight end on the old one.

        ``extra`` are policies to switch on beyond the profile's; None stands for what is configured, where the
        profile is the configured one, and for nothing elsewhere.

        Raises:
            UnknownName: no such profile or policy.
            BadOverride: no such setting, or not with that value.
        """
        if extra is None:
            extra = _configured_extra(self.settings) if profile == self.settings.profile else ()
        choice = ProfileChoice(profile, tuple(without), tuple((overrides or {}).items()), tuple(extra))
        self.pipeline = self._build(choice)
        self.choice = choice

    def is_ready(self) -> bool:
        """Tell whether calls can be answered."""
        return bool(self.fleet.replicas) and not self.draining

    def _build(self, choice: ProfileChoice) -> Pipeline[Answer]:
        knobs = profile_settings(self.settings, dict(choice.overrides))
        self.small.rebuild(choice.profile, knobs, choice.without, choice.extra)
        return build(
            choice.profile, self._upstream, self._around, knobs, without=choice.without, extra=choice.extra
        )

    def _add_gauges(self) -> None:
        gauge, calls = self.metrics.gauge, self.calls
        gauge(public.METRIC_QUEUE_DEPTH, "Calls without a first token yet.", lambda: calls.waiting)
        gauge(public.METRIC_IN_FLIGHT, "Calls whose answer has not ended.", lambda: len(calls))
        gauge(
            public.METRIC_ACTIVE_TOKENS,
            "Tokens of work outstanding at the replicas.",
            lambda: self.ledger.total.tokens,
        )
        gauge(
            public.METRIC_HEADROOM,
            "1 - offered work / service capacity of the live replicas.",
            lambda: max(_LEAST_HEADROOM, self.rates.headroom(self.live_replicas())),
        )
        gauge(public.METRIC_OFFERED, "Replica-seconds of work that arrive per second.", self.rates.offered)
        gauge(
            public.METRIC_CAPACITY,
            "Replica-seconds per second that the replicas in rotation can do.",
            lambda: self.rates.capacity(self.live_replicas()),
        )
        gauge(
            public.METRIC_PREDICTED_TTFT,
            f"Predicted time to first token of a call of {_TYPICAL_PROMPT} prompt tokens that arrived now.",
            self.predicted_ttft_s,
        )
        gauge(public.METRIC_LIVE_REPLICAS, "Replicas in rotation.", self.live_replicas)
        add_admission_gauges(self.metrics, lambda: self.pipeline.admission)
        gauge(public.METRIC_LADDER_LEVEL, "Rungs that the ladder is down.", self.ladder_level)

    def ladder_level(self) -> int:
        """Return how many rungs the ladder is down; 0 is full service."""
        return 0 if self.pipeline.ladder is None else self.pipeline.ladder.level

    def predicted_ttft_s(self) -> float:
        """Return the prediction for a call of usual length, behind what waits for a permit; 0 without replicas."""
        replicas, admission = self.pipeline.rotation(), self.pipeline.admission
        if not replicas:
            return 0.0
        queued = Backlog() if admission is None else admission.backlog()
        best_s = best_ttft_s(replicas, self.ledger, self.rates, queued, _TYPICAL_PROMPT)
        return self.rates.unloaded_ttft_s(_TYPICAL_PROMPT) if best_s is None else best_s

    def live_replicas(self) -> int:
        """Return the number of replicas in rotation."""
        return len(self.pipeline.rotation())


def profile_settings(settings: Settings, overrides: Mapping[str, Any]) -> ProfileSettings:
    """Return the policies' settings: the configured ones with the overrides.

    Raises:
        BadOverride: no such setting, or not with that value.
    """
    for name in overrides:
        if name not in OVERRIDES:
            raise BadOverride(str(UnknownName("override", name, OVERRIDES)))
    try:
        chosen = Settings.model_validate(
            {**{name: getattr(settings, name) for name in OVERRIDES}, **overrides}
        )
        return ProfileSettings(
            timeouts=TimeoutSettings(
                header_s=chosen.header_timeout_s,
                first_token_s=chosen.first_token_timeout_s,
                stall_s=chosen.stall_timeout_s,
            ),
            budget=BudgetSettings(gateways=settings.gateways),
            resume=ResumeSettings(chosen.max_resumes),
            admission=AdmissionSettings(most_active_tokens=settings.usable_cache_tokens),
            isolation=_isolation(settings),
            eager=EagerSettings(attempt_s=chosen.attempt_timeout_s),
            ladder=LadderSettings(dwell_s=settings.ladder_dwell_s),
            classes={name: ClassRungs.down_to(rung) for name, rung in settings.rungs_by_class.items()},
            ttft_objective_s=chosen.ttft_objective_s,
            tool_deadline_s=chosen.tool_deadline_s,
            default_deadline_s=chosen.default_deadline_s,
        )
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        raise BadOverride(f"override {name!r} has value {overrides.get(name)!r}: {problem['msg']}") from None
    except ValueError as error:
        raise BadOverride(str(error)) from None


def _configured_extra(settings: Settings) -> tuple[str, ...]:
    return tuple(name.strip() for name in settings.with_policies.split(",") if name.strip())


def _isolation(settings: Settings) -> IsolationSettings:
    """Let long prompts hold half of a replica's cache, where its size is known."""
    usable = settings.usable_cache_tokens
    return (
        IsolationSettings() if usable is None else IsolationSettings(most_active_tokens=max(1, usable // 2))
    )


def _priors(settings: Settings) -> RatePriors:
    """Return what the rates are believed to be at first: the pace, where replicas are paced."""
    if settings.pace != "on":
        return RatePriors(slots=settings.max_num_seqs)
    return RatePriors(
        slots=settings.max_num_seqs,
        prefill_base_s=settings.pace_base_s,
        prefill_s_per_token=max(settings.pace_per_token_s, 1e-6),
        tpot_s=max(settings.pace_base_s, 1e-4),
    )
