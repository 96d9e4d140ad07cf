"""What every queue of jobs does, whatever it is kept in. A subclass gives the fixture ``make`` (rules to queue)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from policies.errors import QueueFull, QuotaExceeded
from policies.priority import Priority
from policies.work_queue import (
    CANCELLED,
    DONE,
    EXPIRED,
    FAILED,
    LIVE,
    OVER,
    QUEUED,
    RUNNING,
    Lease,
    LeaseLost,
    NewJob,
    QueueRules,
    Result,
    WorkQueue,
)

Make = Callable[[QueueRules], WorkQueue]
SHORT = QueueRules(lease_s=0.05, tenant_share=1.0)


def new(job_id: str, **fields: Any) -> NewJob:
    known = {"tenant": "acme", "priority": int(Priority.SHEDDABLE), "tokens": 10, "payload": b"ask"}
    return NewJob(job_id, **{**known, **fields})


async def leased(queue: WorkQueue, owner: str = "w") -> Lease:
    """Lease the next job, once there is one to be had."""
    async with asyncio.timeout(10):
        while (lease := await queue.lease(owner)) is None:  # noqa: ASYNC110 - a store has no event for it
            await asyncio.sleep(0.01)
    return lease


async def state(queue: WorkQueue, job_id: str, tenant: str = "acme") -> str:
    job = await queue.get(tenant, job_id)
    assert job is not None
    return job.state


class WorkQueueContract:
    """The tests."""

    async def test_a_job_is_put_leased_and_ended_once(self, make: Make) -> None:
        queue = make(QueueRules())
        about = {"principal": "p", "key_id": "k", "path": "/v1/x", "request_id": "r"}
        put = await queue.put(new("a", service_class="summary", about=about))
        assert (put.state, put.about, put.service_class) == (QUEUED, about, "summary")
        lease = await leased(queue)
        assert (lease.payload, lease.job.state, lease.job.attempts) == (b"ask", RUNNING, 1)
        assert await queue.lease("another") is None
        assert await queue.extend(lease) is False
        await queue.end(lease, DONE, result=Result(b"said", 200, {"x": "1"}))
        assert await state(queue, "a") == DONE
        assert await queue.result("acme", "a") == Result(b"said", 200, {"x": "1"})
        assert await queue.lease("w") is None

    async def test_ending_twice_the_same_way_changes_nothing(self, make: Make) -> None:
        """As after an answer of the store that was lost."""
        queue = make(QueueRules(most_jobs=1))
        await queue.put(new("a"))
        lease = await leased(queue)
        await queue.end(lease, DONE, result=Result(b"first"))
        await queue.end(lease, DONE, result=Result(b"second"))
        assert await queue.result("acme", "a") == Result(b"first")
        with pytest.raises(LeaseLost):
            await queue.end(lease, FAILED, "no")
        await queue.put(new("b"))  # its room was given back once
        with pytest.raises((QueueFull, QuotaExceeded)):
            await queue.put(new("c"))

    async def test_the_same_id_is_one_job(self, make: Make) -> None:
        queue = make(QueueRules(most_jobs=1))
        first = await queue.put(new("a"))
        assert await queue.put(new("a", payload=b"other")) == first
        assert (await leased(queue)).payload == b"ask"

    async def test_a_lease_that_ran_out_is_taken_over_and_the_first_worker_has_no_say(
        self, make: Make
    ) -> None:
        queue = make(SHORT)
        await queue.put(new("a"))
        old = await leased(queue, "dead")
        now = await leased(queue, "alive")
        assert now.fence > old.fence
        assert now.job.attempts == 2
        for late in (
            queue.extend(old),
            queue.end(old, DONE, result=Result(b"late")),
            queue.release(old, "late"),
        ):
            with pytest.raises(LeaseLost):
                await late
        await queue.end(now, DONE, result=Result(b"right"))
        assert await queue.result("acme", "a") == Result(b"right")

    async def test_a_lease_that_is_extended_stays(self, make: Make) -> None:
        queue = make(QueueRules(lease_s=0.3))
        await queue.put(new("a"))
        lease = await leased(queue)
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.7
        while loop.time() < until:
            await queue.extend(lease)
            assert await queue.lease("thief") is None
            await asyncio.sleep(0.02)
        await queue.end(lease, DONE)

    async def test_attempts_are_limited_and_the_last_reason_is_told(self, make: Make) -> None:
        queue = make(QueueRules(most_attempts=2))
        await queue.put(new("a"))
        await queue.release(await leased(queue), "replica lost")
        assert await state(queue, "a") == QUEUED
        await queue.release(await leased(queue), "replica lost again")
        job = await queue.get("acme", "a")
        assert job is not None
        assert job.state == FAILED
        assert "2 times" in job.reason
        assert "replica lost again" in job.reason
        assert await queue.lease("w") is None

    async def test_a_job_that_kills_its_workers_fails_too(self, make: Make) -> None:
        queue = make(QueueRules(lease_s=0.03, most_attempts=2))
        await queue.put(new("a"))
        for _ in range(2):
            await leased(queue)
        async with asyncio.timeout(10):
            while await state(queue, "a") != FAILED:
                assert await queue.lease("w") is None
                await asyncio.sleep(0.01)

    async def test_giving_back_what_was_not_begun_costs_no_attempt(self, make: Make) -> None:
        queue = make(QueueRules(most_attempts=1))
        await queue.put(new("a"))
        for _ in range(3):
            await queue.release(await leased(queue), "no capacity", counted=False)
        await queue.release(await leased(queue), "no capacity", counted=False, after_s=60)
        assert await state(queue, "a") == QUEUED
        assert await queue.lease("w") is None, "not before it is due"

    async def test_bounds_hold_for_work_jobs_and_tenants(self, make: Make) -> None:
        queue = make(QueueRules(most_jobs=4, most_tokens=100, tenant_share=0.5))
        await queue.put(new("a", tokens=50))
        with pytest.raises(QuotaExceeded):
            await queue.put(new("b", tokens=1))
        await queue.put(new("b", tenant="other", tokens=1))
        await queue.put(new("c", tenant="other", tokens=1))
        with pytest.raises(QuotaExceeded):
            await queue.put(new("d", tenant="other", tokens=1))
        await queue.put(new("d", tenant="third", tokens=40))
        with pytest.raises(QueueFull):
            await queue.put(new("e", tenant="fourth", tokens=1))
        assert await queue.get("fourth", "e") is None, "what was refused is not there"
        await queue.cancel("acme", "a")
        await queue.put(new("e", tenant="fourth", tokens=50))
        with pytest.raises(QueueFull):
            await queue.put(new("f", tenant="fifth", tokens=50))

    async def test_many_at_once_do_not_get_past_the_bound(self, make: Make) -> None:
        queue = make(QueueRules(most_jobs=7, tenant_share=1.0))
        tries = [queue.put(new(f"j{n}", tenant=f"t{n % 3}")) for n in range(30)]
        ends = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(not isinstance(one, Exception) for one in ends) == 7
        assert {type(one) for one in ends if isinstance(one, Exception)} <= {QueueFull, QuotaExceeded}

    async def test_the_important_go_first_and_tenants_take_turns_by_work(self, make: Make) -> None:
        queue = make(QueueRules())
        for n in range(3):
            await queue.put(new(f"big{n}", tenant="big", tokens=100))
        for n in range(3):
            await queue.put(new(f"small{n}", tenant="small", tokens=40))
        await queue.put(new("urgent", tenant="big", priority=int(Priority.CRITICAL)))
        order = [(await leased(queue)).job.id for _ in range(7)]
        assert order[0] == "urgent"
        assert order[1:] == ["small0", "big0", "small1", "small2", "big1", "big2"]

    async def test_who_was_away_is_not_owed_for_it(self, make: Make) -> None:
        queue = make(QueueRules())
        for n in range(20):
            await queue.put(new(f"a{n}"))
        for _ in range(10):
            await leased(queue)
        for n in range(5):
            await queue.put(new(f"late{n}", tenant="late"))
        tenants = [(await leased(queue)).job.tenant for _ in range(8)]
        assert tenants.count("acme") == tenants.count("late") == 4

    async def test_waiting_makes_a_job_more_important(self, make: Make) -> None:
        queue = make(QueueRules(age_s=0.05))
        await queue.put(new("old", priority=int(Priority.SHEDDABLE)))
        await asyncio.sleep(0.2)  # its age is what is tested
        await queue.put(new("new", tenant="other", priority=int(Priority.CRITICAL)))
        assert (await leased(queue)).job.id == "old"

    async def test_who_waits_too_long_expires_and_makes_room(self, make: Make) -> None:
        queue = make(QueueRules(longest_wait_s=0.05, most_jobs=1))
        await queue.put(new("a"))
        async with asyncio.timeout(10):
            while await state(queue, "a") == QUEUED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await state(queue, "a") == EXPIRED, "told before anybody has tidied up"
        assert await queue.lease("w") is None
        assert await queue.tidy() == 1
        await queue.put(new("b"))

    async def test_a_job_that_was_begun_does_not_expire(self, make: Make) -> None:
        queue = make(QueueRules(longest_wait_s=1.0))
        await queue.put(new("a"))
        await queue.release(await leased(queue), "replica lost")
        await asyncio.sleep(1.1)  # its wait is what is tested
        assert await queue.tidy() == 0
        assert (await leased(queue)).job.id == "a"

    async def test_cancelling_what_waits_is_at_once(self, make: Make) -> None:
        queue = make(QueueRules())
        await queue.put(new("a"))
        job = await queue.cancel("acme", "a")
        assert job is not None
        assert job.state == CANCELLED
        assert await queue.lease("w") is None
        again = await queue.cancel("acme", "a")
        assert again == job

    async def test_cancelling_what_is_worked_on_reaches_the_worker(self, make: Make) -> None:
        queue = make(QueueRules())
        await queue.put(new("a"))
        lease = await leased(queue)
        job = await queue.cancel("acme", "a")
        assert job is not None
        assert (job.state, job.cancel_asked) == (RUNNING, True)
        assert await queue.extend(lease) is True
        await queue.release(lease, "cancelled")
        assert await state(queue, "a") == CANCELLED, "not begun again"

    async def test_nobody_sees_or_cancels_another_tenants_job(self, make: Make) -> None:
        queue = make(QueueRules())
        await queue.put(new("a"))
        assert await queue.get("other", "a") is None
        assert await queue.result("other", "a") is None
        assert await queue.cancel("other", "a") is None
        assert await queue.page("other", 10) == []
        assert await state(queue, "a") == QUEUED

    async def test_pages_are_newest_first_without_gap_or_repeat(self, make: Make) -> None:
        queue = make(QueueRules())
        for n in range(7):
            await queue.put(new(f"a{n}"))
        seen: list[str] = []
        before = None
        while page := await queue.page("acme", 3, before):
            seen += [one.id for one in page]
            before = (page[-1].created_at, page[-1].id)
        assert sorted(seen) == [f"a{n}" for n in range(7)]
        assert len(seen) == 7

    async def test_a_page_can_be_of_one_principal_only(self, make: Make) -> None:
        queue = make(QueueRules())
        for n in range(4):
            await queue.put(new(f"a{n}", about={"principal": f"p{n % 2}"}))
        page = await queue.page("acme", 10, about={"principal": "p1"})
        assert {one.id for one in page} == {"a1", "a3"}

    async def test_a_place_counts_those_before(self, make: Make) -> None:
        queue = make(QueueRules())
        jobs = [await queue.put(new(f"a{n}", tokens=10)) for n in range(3)]
        urgent = await queue.put(new("b", priority=int(Priority.CRITICAL), tokens=10))
        assert [(await queue.place(one)).ahead for one in (*jobs, urgent)] == [1, 2, 3, 0]
        assert (await queue.place(jobs[2])).tokens == 40

    async def test_results_are_removed_after_their_time(self, make: Make) -> None:
        queue = make(QueueRules(keep_s=0.05, longest_wait_s=60))
        await queue.put(new("a"))
        await queue.put(new("waits"))
        await queue.end(await leased(queue), DONE, result=Result(b"said"))
        async with asyncio.timeout(10):
            while not await queue.tidy():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await queue.get("acme", "a") is None
        assert await state(queue, "waits") == QUEUED

    @pytest.mark.parametrize("seed", range(3))
    async def test_whatever_is_done_every_job_ends_once_and_the_room_is_free_again(
        self, make: Make, seed: int
    ) -> None:
        rng = random.Random(seed)
        queue = make(QueueRules(lease_s=0.02, most_attempts=2, most_jobs=30, tenant_share=1.0))
        held: list[Lease] = []
        put: list[tuple[str, str]] = []
        ended: dict[str, str] = {}

        async def finish(lease: Lease, how: str) -> None:
            try:
                await queue.end(lease, how, result=Result(how.encode()))
                assert ended.setdefault(lease.job.id, how) == how, "two results"
            except LeaseLost:
                pass

        for n in range(100):
            what = rng.random()
            if what < 0.4:
                tenant = rng.choice("xyz")
                try:
                    await queue.put(new(f"j{n}", tenant=tenant, priority=rng.randrange(4)))
                    put.append((tenant, f"j{n}"))
                except QueueFull:
                    pass
            elif what < 0.7:
                if (lease := await queue.lease("w")) is not None:
                    held.append(lease)
            elif what < 0.8 and put:
                await queue.cancel(*rng.choice(put))
            elif held:
                lease = held.pop(rng.randrange(len(held)))
                if rng.random() < 0.7:
                    await finish(lease, rng.choice([DONE, FAILED]))
        states = {}
        async with asyncio.timeout(120):
            while True:
                states = {job_id: await state(queue, job_id, tenant) for tenant, job_id in put}
                if not any(one in LIVE for one in states.values()):
                    break
                if (lease := await queue.lease("last")) is not None:
                    await finish(lease, DONE)
        assert set(states.values()) <= set(OVER)
        for job_id, how in ended.items():
            assert states[job_id] == how
        for n in range(30):
            await queue.put(new(f"after{n}", tenant=rng.choice("xyz")))
