"""Mixes of classes and bursts: drawn by the seed, the same in all arms, marked, and held behind the gate."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import asdict, replace

import pytest

from chaos.evidence import experiment_from
from chaos.experiment import Arm, CallClass, Experiment, FaultPlan, Load, Objective, Phases
from chaos.history import CallRecord
from chaos.load.client import LoadClient, request_headers
from chaos.load.plan import PlannedCall, choose_targets, make_plan
from chaos.load.prompts import ask
from chaos.load.surge import Surge, extra_rate
from chaos.names import UnknownName
from chaos.scenarios import SCENARIOS
from chaos.scenarios.worker_loss import WORKER_LOSS
from tests.fakes.cluster import FakeCluster

CRITICAL = CallClass(
    "critical", 0.25, (8, 12), (6, 10), priority="critical", tenant="fraud", service_class="explanation"
)
BULK = CallClass(
    "bulk",
    0.75,
    (200, 300),
    (40, 60),
    priority="sheddable",
    stream_share=0.0,
    client_deadline_s=2.0,
    surge_share=9.75,
)
MIX = Load(share=0.5, classes=(CRITICAL, BULK))
BURSTING = replace(
    WORKER_LOSS,
    name="bursting",
    load=MIX,
    faults=(FaultPlan("burst", "client", settings={"times": 4.0}),),
    objectives=(Objective("success_rate", 1.0, call_class="critical"),),
    phases=Phases(warm_up_s=1, steady_s=2, hold_s=10, recovery_s=1),
)


def test_classes_are_drawn_by_their_shares_with_their_own_lengths_and_kind() -> None:
    asks = [ask(MIX, 7, n) for n in range(800)]
    names = Counter(one.call_class.name for one in asks if one.call_class)
    assert names.keys() == {"critical", "bulk"}
    assert 0.2 < names["critical"] / 800 < 0.3
    for one in asks:
        assert one.call_class is not None
        low, high = one.call_class.output_tokens
        assert low <= one.max_tokens <= high
        assert one.stream is (one.call_class.stream_share == 1.0)
    lengths = {
        name: [len(a.prompt.split()) for a in asks if a.call_class and a.call_class.name == name]
        for name in names
    }
    assert max(lengths["critical"]) < min(lengths["bulk"])


def test_a_load_of_one_kind_asks_what_it_always_asked() -> None:
    """Histories of earlier versions hold the same prompts for the same seed."""
    one = ask(Load(share=0.5), 7, 3)
    assert (one.call_class, one.max_tokens, one.stream, one.sha) == (None, 18, True, "e29873c9380b89cd")


def test_what_a_class_says_goes_into_headers_and_nothing_else_does() -> None:
    asked = next(a for n in range(50) if (a := ask(MIX, 7, n)).call_class is CRITICAL)
    assert request_headers(asked, "id") == {
        "x-request-id": "id",
        "x-brownout-priority": "critical",
        "x-brownout-tenant": "fraud",
        "x-brownout-class": "explanation",
    }
    assert request_headers(replace(asked, call_class=BULK), "id") == {
        "x-request-id": "id",
        "x-brownout-priority": "sheddable",
    }
    assert request_headers(replace(asked, call_class=None), "id") == {"x-request-id": "id"}


def test_a_bursts_arrivals_are_planned_marked_and_only_for_arms_with_the_fault() -> None:
    plan = make_plan(BURSTING, 20, 7)
    control, others = plan.calls_of(fault=False), plan.calls_of(fault=True)
    extra = others[len(control) :]
    assert control == make_plan(replace(BURSTING, faults=()), 20, 7).calls
    assert not any(call.surge for call in control)
    assert all(call.surge for call in extra)
    assert [call.n for call in others] == list(range(len(others)))
    # 60 calls a second for ten seconds, beside the 20 that are always there; five standard deviations are 122
    assert abs(len(extra) - 600) < 122
    begin = plan.fault_offset_s
    assert all(begin <= call.offset_s < begin + 10 for call in extra)
    assert (plan.rate_per_s, plan.extra_per_s) == (20, 60)
    assert make_plan(BURSTING, 20, 7) == plan
    assert [c.offset_s for c in make_plan(BURSTING, 20, 8).calls] != [c.offset_s for c in plan.calls]


def test_a_burst_has_a_mix_of_its_own_and_other_prompts() -> None:
    plan = make_plan(BURSTING, 20, 7)
    names = Counter(call.ask.call_class.name for call in plan.calls if call.surge and call.ask.call_class)
    assert names["critical"] / names.total() < 0.05  # 0.25 of 10 is 0.025
    prompts = [call.ask.sha for call in plan.calls]
    assert len(set(prompts)) == len(prompts)


def test_an_experiment_may_have_one_burst_that_adds_something() -> None:
    assert extra_rate(WORKER_LOSS, 10) == 0
    assert extra_rate(BURSTING, 10) == 30
    twice = replace(BURSTING, faults=BURSTING.faults * 2)
    with pytest.raises(ValueError, match="one at a time"):
        extra_rate(twice, 10)
    with pytest.raises(ValueError, match="above 1"):
        extra_rate(replace(BURSTING, faults=(FaultPlan("burst", "client", settings={"times": 1.0}),)), 10)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ((CRITICAL, CRITICAL), "a name of its own"),
        ((replace(CRITICAL, share=-1),), "none below 0"),
        ((replace(CRITICAL, share=0),), "one above"),
        ((replace(CRITICAL, surge_share=0.0),), "surge_share"),
    ],
)
def test_a_mix_from_which_nothing_can_be_drawn_is_refused(classes: tuple[CallClass, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Load(share=0.5, classes=classes)


def test_an_objective_about_a_class_that_is_not_offered_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'critical'"):
        replace(BURSTING, objectives=(Objective("success_rate", 1.0, call_class="critcal"),))


def test_with_every_all_links_that_match_are_hit() -> None:
    labels = ["client", "replica-1", "replica-0", "tool"]
    assert choose_targets("replica-*", labels, 7, every=True) == ["replica-0", "replica-1"]
    assert len(choose_targets("replica-*", labels, 7)) == 1
    assert choose_targets("tool", labels, 7, every=True) == ["tool"]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_comes_back_whole_from_its_history(name: str) -> None:
    assert experiment_from(asdict(SCENARIOS[name])) == SCENARIOS[name]


def test_an_arms_role_follows_from_what_it_does_and_can_be_named() -> None:
    roles = {
        Arm("control", "resilient", fault=False): "control",
        Arm("retry_only", "retry-only", fault=True): "naive",
        Arm("naive", "naive", fault=True): "naive",
        Arm("resilient", "resilient", fault=True): "resilient",
        Arm("other", "naive", fault=True, role="resilient"): "resilient",
    }
    assert {arm.name: arm.role for arm in roles} == {arm.name: role for arm, role in roles.items()}
    with pytest.raises(UnknownName, match="role"):
        Arm("a", "naive", fault=True, role="hero")  # type: ignore[arg-type]


async def sent(calls: tuple[PlannedCall, ...], surge: Surge | None, cluster: FakeCluster) -> list[CallRecord]:
    records: list[CallRecord] = []
    async with LoadClient(cluster.url, "fake", 5.0) as client:
        await client.run(calls, "naive", time.time(), "run", records.append, surge)
    return sorted(records, key=lambda record: record.n)


def planned(*kinds: str) -> tuple[PlannedCall, ...]:
    asked = ask(replace(MIX, classes=(CRITICAL,)), 7, 0)
    return tuple(PlannedCall(n, 0.01 * n, asked, surge=kind == "surge") for n, kind in enumerate(kinds))


async def test_calls_of_a_burst_wait_for_the_gate_and_their_latency_counts_from_their_time() -> None:
    async with FakeCluster().serving() as cluster:
        surge = Surge(1, 1)
        asyncio.get_running_loop().call_later(0.15, surge.open)
        records = await sent(planned("base", "surge", "base"), surge, cluster)
    assert [(r.n, r.surge, r.call_class, r.outcome) for r in records] == [
        (0, False, "critical", "ok"),
        (1, True, "critical", "ok"),
        (2, False, "critical", "ok"),
    ]
    assert surge.sent == 1
    assert records[1].sent_at - records[1].scheduled_at >= 0.1
    assert {headers["x-brownout-tenant"] for headers in cluster.headers} == {"fraud"}


async def test_a_burst_that_never_struck_sends_nothing_and_the_load_ends_all_the_same() -> None:
    async with FakeCluster().serving() as cluster:
        surge = Surge(1, 1)
        asyncio.get_running_loop().call_later(0.1, surge.close)
        async with asyncio.timeout(5):
            records = await sent(planned("base", "surge"), surge, cluster)
    assert [r.n for r in records] == [0]


async def test_a_burst_that_was_taken_back_sends_no_more() -> None:
    async with FakeCluster().serving() as cluster:
        surge = Surge(1, 1)
        surge.open()
        late = replace(planned("surge")[0], n=2, offset_s=0.6)
        asyncio.get_running_loop().call_later(0.3, surge.close)
        records = await sent((*planned("base", "surge"), late), surge, cluster)
    assert [r.n for r in records] == [0, 1]


async def test_the_deadline_of_a_class_is_its_own() -> None:
    hasty = replace(CRITICAL, client_deadline_s=0.05)
    async with FakeCluster(first_token_s=2.0).serving() as cluster:
        asked = ask(Load(share=0.5, classes=(hasty,)), 7, 0)
        async with LoadClient(cluster.url, "fake", 60.0) as client:
            async with asyncio.timeout(5):
                record = await client.call(asked, "a", 0, 0.0, time.time(), "id")
    assert record.outcome == "late"


def test_the_scenarios_burst_reaches_three_times_the_capacity() -> None:
    burst: Experiment = SCENARIOS["burst"]
    assert burst.load.share * burst.faults[0].settings["times"] == pytest.approx(3.0)
    critical = next(one for one in burst.load.classes if one.name == "critical")
    total = sum(one.of_a_surge for one in burst.load.classes)
    extra = burst.load.share * (burst.faults[0].settings["times"] - 1)
    of_critical = burst.load.share * critical.share + extra * critical.of_a_surge / total
    assert of_critical < 0.6, "critical calls alone must fit well into the capacity"
