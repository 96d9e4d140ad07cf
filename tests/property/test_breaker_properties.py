"""What holds of a breaker and of leases for every order of events."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from policies.breaker import Breaker, BreakerSettings, Permit, State, Verdict
from policies.errors import BreakerOpen
from policies.events import BreakerChanged
from policies.leases import Lease, Leases
from policies.window import OutcomeWindow
from tests.fakes.policy_bench import FixedClock, Remembering

MAY_FOLLOW: Final = {"closed": {"open"}, "open": {"half_open"}, "half_open": {"open", "closed"}}

steps = st.lists(
    st.tuples(st.sampled_from(["begin", "good", "bad", "neutral", "abandoned", "wait"]), st.integers(0, 40)),
    max_size=200,
)


@given(steps=steps, probes=st.integers(1, 3), good_probes=st.integers(1, 3), minimum=st.integers(1, 5))
def test_the_machine_of_states(
    steps: list[tuple[str, int]], probes: int, good_probes: int, minimum: int
) -> None:
    clock, sink = FixedClock(), Remembering()
    settings = BreakerSettings(probes=probes, good_probes=good_probes, minimum_calls=minimum, lease_s=5.0)
    breaker = Breaker("b", settings, clock=clock, rng=random.Random(1), sink=sink)
    live: list[Permit] = []
    probing: list[tuple[Permit, float]] = []
    refusals: list[tuple[State, float]] = []
    for what, amount in steps:
        state = breaker.state
        if what == "wait":
            clock.at += amount / 4
        elif what == "begin":
            try:
                permit = breaker.permit()
            except BreakerOpen as refused:
                refusals.append((state, refused.retry_after_s))
            else:
                assert state is not State.OPEN, "open, it lets nobody through"
                live.append(permit)
                if state is State.HALF_OPEN:
                    probing.append((permit, clock.at + settings.lease_s))
        elif live:
            permit = live.pop(amount % len(live))
            probing = [entry for entry in probing if entry[0] is not permit]
            permit.close(Verdict(what))
        if breaker.state is not State.HALF_OPEN:
            probing.clear()
        probing = [entry for entry in probing if entry[1] > clock.at]
        assert len(probing) <= probes
    for state, retry_after_s in refusals:
        assert state is not State.CLOSED, "closed, it refuses nobody"
        assert 0 <= retry_after_s <= settings.max_open_s * 1.2 + 1e-6
    states = ["closed", *(event.state for event in sink.of(BreakerChanged))]
    assert all(after in MAY_FOLLOW[before] for before, after in pairwise(states))
    for permit in live:
        permit.close(Verdict.NEUTRAL)
    clock.at += 1000.0
    for _ in range(good_probes):
        breaker.permit().close(Verdict.GOOD)
    assert breaker.state is State.CLOSED, "whatever happened, it can close again"


@given(
    steps=st.lists(st.tuples(st.sampled_from(["take", "back", "wait"]), st.integers(0, 20)), max_size=200),
    most=st.integers(1, 4),
)
def test_leases_are_never_exceeded_and_always_come_back(steps: list[tuple[str, int]], most: int) -> None:
    clock = FixedClock()
    leases = Leases(clock, most=most, lease_s=10.0)
    out: list[tuple[Lease, float]] = []
    every: list[Lease] = []
    for what, amount in steps:
        if what == "wait":
            clock.at += amount
        elif what == "take":
            lease = leases.take()
            if lease is not None:
                out.append((lease, clock.at + 10.0))
                every.append(lease)
        elif every:
            lease = every[amount % len(every)]
            lease.give_back()
            out = [entry for entry in out if entry[0] is not lease]
        out = [entry for entry in out if entry[1] > clock.at]
        assert leases.free == most - len(out)
    clock.at += 10.0
    assert leases.free == most


@given(
    outcomes=st.lists(st.tuples(st.floats(0, 5), st.booleans(), st.booleans()), max_size=100),
    most=st.integers(1, 20),
)
def test_a_window_counts_what_is_in_it(outcomes: list[tuple[float, bool, bool]], most: int) -> None:
    window, now = OutcomeWindow(most=most, age_s=10.0), 0.0
    past: list[tuple[float, bool, bool]] = []
    for wait_s, bad, slow in outcomes:
        now += wait_s
        window.add(now, bad=bad, slow=slow)
        past.append((now, bad, slow))
        inside = [one for one in past[-most:] if one[0] > now - 10.0]
        assert (len(window), window.bad, window.slow) == (
            len(inside),
            sum(one[1] for one in inside),
            sum(one[2] for one in inside),
        )
