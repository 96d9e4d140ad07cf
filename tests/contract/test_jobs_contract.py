"""The queue of jobs on SQLite and on PostgreSQL: the same rules, and several processes at once."""

from __future__ import annotations

import pytest

from cluster.gateway.jobs_queue import SqlQueue
from cluster.gateway.store.store import Store
from tests.fakes.work_queue_contract import Make, WorkQueueContract


class TestSqlQueue(WorkQueueContract):
    @pytest.fixture
    def make(self, store: Store) -> Make:
        return lambda rules: SqlQueue(store, rules)
