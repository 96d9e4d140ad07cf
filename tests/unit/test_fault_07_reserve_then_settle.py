"""Fault 7: N parallel calls pass a quota check before any is counted: reserve atomically, settle later."""

from __future__ import annotations

import asyncio

import pytest

from policies.admission import Admission, AdmissionSettings
from policies.call import Call
from policies.errors import QuotaExceeded
from policies.fair_queue import QueueSettings
from policies.fleet import Fleet, Replica
from policies.shares import ShareSettings
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, call
from tests.fakes.virtual_time import run


def test_of_many_that_arrive_in_one_instant_only_as_many_as_the_limit_are_let_in() -> None:
    async def main() -> int:
        admission = Admission(lambda: 3, clock=CLOCK)
        running = most = 0

        async def handler(_: Call) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1

        await asyncio.gather(*(admission(call(str(n)), handler) for n in range(100)))
        assert admission.in_use() == 0
        return most

    assert run(main()) == 3


def test_the_cache_is_reserved_with_the_expected_tokens_before_any_token_comes() -> None:
    async def main() -> int:
        admission = Admission(
            lambda: 100, settings=AdmissionSettings(most_active_tokens=1000, large_share=1.0), clock=CLOCK
        )
        most = 0

        async def handler(_: Call) -> None:
            nonlocal most
            most = max(most, admission.active_tokens)
            await asyncio.sleep(0.1)

        await asyncio.gather(*(admission(call(str(n), work=Work(200, 100)), handler) for n in range(20)))
        assert admission.active_tokens == 0
        return most

    assert run(main()) == 900


def test_the_share_of_a_tenant_counts_every_call_at_once() -> None:
    """One after the other they are refused from the sixth on; all in one instant they must be, too."""

    async def main() -> list[BaseException | None]:
        queue = QueueSettings(most_calls=10, least_share=0)
        admission = Admission(
            lambda: 1,
            settings=AdmissionSettings(queue=queue, tenant_share=0.5, shares=ShareSettings((0, 0, 0, 0))),
            clock=CLOCK,
        )

        async def handler(_: Call) -> None:
            await asyncio.sleep(0.1)

        first = [admission(call("holder"), handler), admission(call("other", tenant="other"), handler)]
        many = [admission(call(str(n), tenant="greedy"), handler) for n in range(30)]
        results = await asyncio.gather(*first, *many, return_exceptions=True)
        return results[2:]

    results = run(main())
    assert [type(one) for one in results] == [type(None)] * 5 + [QuotaExceeded] * 25


def test_what_is_charged_to_a_tenant_is_settled_with_what_was_used() -> None:
    """Two tenants expect 1,000 tokens a call; one gets 10 each time. Its sixty come to less than one of the other."""

    async def main() -> list[str]:
        admission = Admission(lambda: 1, 1e6, clock=CLOCK, settings=AdmissionSettings())
        order: list[str] = []

        async def handler(own: Call) -> None:
            order.append(own.tenant)
            await asyncio.sleep(0.001)
            own.delivery.attempts = 1
            own.delivery.output_tokens = 10 if own.tenant == "short" else 1000

        names = ["short"] * 60 + ["long"] * 60
        await asyncio.gather(
            *(admission(call(str(n), tenant=t, work=Work(0, 1000)), handler) for n, t in enumerate(names))
        )
        return order

    order = run(main())
    assert order[:61].count("long") == 1
    assert order.count("long") == 60


def test_reservations_at_the_replicas_are_made_in_the_step_that_chooses_them() -> None:
    ledger, fleet = WorkLedger(), Fleet([Replica("a")])
    held = [ledger.reserve(fleet.replicas[0], Work(10, 5)) for _ in range(100)]
    assert ledger.total.tokens == 1500
    for one in held:
        one.tokens(2)
    assert ledger.total.tokens == 300
    for one in held:
        one.release()
    assert ledger.total.tokens == ledger.total.attempts == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_who_gets_nothing_pays_nothing(leaves: bool) -> None:
    async def main() -> list[str]:
        admission = Admission(lambda: 1, 1e6, clock=CLOCK)
        order: list[str] = []

        async def handler(own: Call) -> None:
            order.append(own.request_id)
            await asyncio.sleep(1)
            if not leaves:
                raise RuntimeError("no answer")

        failing = asyncio.create_task(admission(call("f", tenant="unlucky", work=Work(0, 10_000)), handler))
        await asyncio.sleep(0.5)
        rest = [
            asyncio.create_task(admission(call(name, tenant=name, work=Work(0, 100)), handler))
            for name in ("unlucky", "lucky", "lucky", "lucky")
        ]
        await asyncio.sleep(0)
        if leaves:
            failing.cancel()
        await asyncio.gather(failing, *rest, return_exceptions=True)
        return order

    assert "unlucky" in run(main())[1:3], (
        "it has its turn, although 10,000 tokens were charged to it at first"
    )
