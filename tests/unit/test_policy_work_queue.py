"""The rules of the durable queue, on the queue in memory."""

from __future__ import annotations

import pytest

from policies.memory_queue import MemoryQueue
from policies.work_queue import Head, NewJob, QueueRules, in_turn
from tests.fakes.work_queue_contract import Make, WorkQueueContract


class TestMemoryQueue(WorkQueueContract):
    @pytest.fixture
    def make(self) -> Make:
        return MemoryQueue


def test_turns_go_by_priority_raised_by_age_then_by_work_served_then_by_age() -> None:
    rules = QueueRules(age_s=100)
    heads = [
        Head("a", 3, created_at=990.0, served=5),
        Head("b", 3, created_at=995.0, served=4),
        Head("c", 2, created_at=999.0, served=99),
        Head("d", 3, created_at=800.0, served=99),
    ]
    assert [one.tenant for one in in_turn(heads, 1000.0, rules)] == ["d", "c", "b", "a"]


@pytest.mark.parametrize(
    "name", ["most_jobs", "most_tokens", "most_attempts", "longest_wait_s", "lease_s", "age_s", "keep_s"]
)
def test_rules_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        QueueRules(**{name: 0})


def test_shares_and_jobs_are_checked() -> None:
    with pytest.raises(ValueError, match="tenant_share is 0"):
        QueueRules(tenant_share=0)
    with pytest.raises(ValueError, match="neither may be empty"):
        NewJob("a", "", 0, 1, b"")
    with pytest.raises(ValueError, match="tokens=-1"):
        NewJob("a", "t", 0, -1, b"")
