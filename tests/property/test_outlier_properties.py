"""What holds of ejection for every order of events: the floor, the leases, the times."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.errors import AttemptError, ReplicaBusy, ReplicaLost
from policies.events import Ejected, Returned
from policies.fleet import Fleet, Replica
from policies.observe import ObservedAttempt
from policies.outlier import OutlierDetection, OutlierSettings
from policies.progress import Progress
from policies.work import Work
from tests.fakes.policy_bench import FixedClock, Remembering

KINDS = ("fail", "ok", "late", "busy", "cancel", "stall", "begin", "wait", "leave", "join")

steps = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(KINDS)), max_size=200)


@settings(deadline=None)
@given(
    steps=steps,
    count=st.integers(1, 6),
    floor_share=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    probes=st.integers(1, 3),
)
def test_the_floor_stays_probes_keep_to_their_leases_and_nothing_is_out_for_ever(
    steps: list[tuple[int, str]], count: int, floor_share: float, probes: int
) -> None:
    clock, sink = FixedClock(), Remembering()
    fleet = Fleet(Replica(f"r{n}", str(n)) for n in range(count))
    knobs = OutlierSettings(floor_share=floor_share, probes=probes, lease_s=6.0, base_s=5.0, max_s=20.0)
    outlier = OutlierDetection(fleet, clock=clock, settings=knobs, rng=random.Random(1), sink=sink)
    live: list[ObservedAttempt] = []
    probing: dict[ObservedAttempt, float] = {}
    for number, (which, what) in enumerate(steps):
        replicas = fleet.replicas
        chosen = replicas[which % len(replicas)]
        if what == "begin":
            admitted = outlier.admitted(outlier.rotation())
            assert admitted, "somebody can always be asked"
            replica = admitted[which % len(admitted)]
            attempt = ObservedAttempt(
                "c", 1, replica, Work(10, 10), Progress(clock), clock.at, True, print, expected_ttft_s=0.1
            )
            if outlier._standings.trial(replica) is not None:
                probing[attempt] = clock.at + knobs.lease_s
            outlier.started(attempt)
            live.append(attempt)
        elif what == "wait":
            clock.at += which * 2.0
        elif what == "leave" and len(replicas) > 1:
            fleet.update(one for one in replicas if one is not chosen)
        elif what == "join" and len(replicas) < 8:
            fleet.update([*replicas, Replica(f"n{number}", "x")])
        elif what == "stall":
            outlier.stalled(chosen, "silence")
        elif live:
            attempt = live.pop(which % len(live))
            probing.pop(attempt, None)
            end(outlier, attempt, what)

        rotation = outlier.rotation()
        full = [one for one in rotation if outlier._standings.trial(one) is None]
        assert set(rotation) <= set(fleet.replicas)
        assert len(full) >= max(1, math.ceil(floor_share * len(fleet.replicas)))
        for replica in rotation:
            if outlier._standings.trial(replica) is not None:
                held = [a for a, until in probing.items() if a.replica is replica and until > clock.at]
                assert len(held) <= probes
    assert all(knobs.base_s * 0.8 <= event.for_s <= knobs.max_s * 1.2 + 1e-9 for event in sink.of(Ejected))
    clock.at += knobs.max_s * 1.2 + 0.1
    assert set(outlier.rotation()) == set(fleet.replicas)
    clock.at += knobs.lease_s
    assert set(outlier.admitted(outlier.rotation())) == set(fleet.replicas), "every lease came back"
    for replica in fleet.replicas:
        for _ in range(knobs.good_probes):
            outlier.succeeded(replica)
        assert outlier._standings.trial(replica) is None
    assert len(sink.of(Returned)) <= len(sink.of(Ejected))
    assert len(outlier._records) <= len(fleet.replicas)


def end(outlier: OutlierDetection, attempt: ObservedAttempt, what: str) -> None:
    """End the attempt in one of the ways there are."""
    errors: dict[str, AttemptError] = {"fail": ReplicaLost("cut"), "busy": ReplicaBusy("503")}
    if what in ("ok", "late"):
        attempt.first_token_at = attempt.started_at + (0.1 if what == "ok" else 3.0)
        outlier.first_token(attempt)
    attempt.outcome = {"ok": "ok", "late": "ok", "fail": "failed", "busy": "failed"}.get(what, "cancelled")
    outlier.ended(attempt, errors.get(what))
