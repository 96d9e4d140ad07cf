"""The replicas of the smaller model: a fleet of its own, behind a pipeline of its own.

Nothing is shared with the first model's: neither accounts nor learned rates (it is faster), nor what is held against
a replica. The policies around it are the same, but for the ladder, which is what leads here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import aiohttp

from cluster.gateway.answer import Answer
from cluster.gateway.upstream import Upstream
from cluster.settings import Settings
from policies.call import Call
from policies.clock import Clock
from policies.events import EventSink
from policies.fleet import Fleet
from policies.parts import ProfileSettings, Surroundings
from policies.profiles import Pipeline, build
from policies.rates import RatePriors, Rates
from policies.work import WorkLedger

LADDER = "ladder"


class SmallModel:
    """Answers calls at the rung ``small_model``; discovery fills ``fleet``, which stays empty where none is served."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        priors: RatePriors,
        *,
        clock: Clock,
        rng: random.Random,
        sink: EventSink,
    ) -> None:
        self._name = settings.small_model_name
        if settings.pace == "on":
            priors = replace(
                priors,
                prefill_base_s=settings.small_pace_base_s,
                tpot_s=max(settings.small_pace_base_s, 1e-4),
            )
        self.fleet = Fleet(sink=sink)
        self.ledger = WorkLedger()
        self._rates = Rates(clock, priors)
        self._upstream = Upstream(session, self._rates)
        self._around = Surroundings(self.fleet, self.ledger, self._rates, clock, rng, sink)
        self._pipeline: Pipeline[Answer] | None = None

    def rebuild(
        self, profile: str, knobs: ProfileSettings, without: Iterable[str], extra: Iterable[str]
    ) -> None:
        """Put a fresh pipeline in.

        Raises:
            UnknownName: no such profile or policy.
        """
        self._pipeline = build(
            profile, self._upstream, self._around, knobs, without=(*without, LADDER), extra=extra
        )

    def name(self) -> str | None:
        """Return the name of the model, or None while no replica of it is in rotation."""
        return self._name if self._pipeline is not None and self._pipeline.rotation() else None

    async def __call__(self, call: Call, /) -> Answer:
        """Answer a call whose payload already names this model."""
        assert self._pipeline is not None, "name() says whether there is one"
        self._rates.arrived(call.work)
        return await self._pipeline(call)
