"""A fault strikes at a moment at which its condition really holds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from chaos.admin import Admin, Held
from chaos.bounds import Bounds
from chaos.experiment import FaultPlan
from chaos.faults import FaultContext
from chaos.faults.noop import Noop
from chaos.history import CheckRecord, FaultRecord, Record
from chaos.scenarios.worker_loss import WORKER_LOSS
from chaos.strike import CONFIRM_S, Strike
from chaos.substrate import Endpoints, Substrate
from chaos.undo import UndoLog

WHEN = {"streaming": 3, "awaiting": 1}


class ScriptedAdmin:
    """Answers waits from a script; None is a wait whose condition did not hold."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []

    async def wait(self, replica: str, when: Mapping[str, int], timeout_s: float) -> Held | None:
        assert (replica, when) == ("replica-0.a", WHEN)
        self.asked.append(timeout_s)
        name = self.answers.pop(0)
        return None if name is None else Held(replica, time.time(), (name,), ("s1", "s2", "s3"))


class NamedSubstrate:
    name = "fake"


async def strike(admin: ScriptedAdmin, tmp_path: Path) -> list[Record]:
    context = FaultContext(cast(Substrate, NamedSubstrate()), Endpoints("", "", "", ""), cast(Admin, admin))
    written: list[Record] = []
    plan = FaultPlan("noop", "replica-0", when=WHEN)
    experiment = replace(WORKER_LOSS, faults=(plan,))
    one = Strike(context, experiment, "naive", 7, UndoLog(tmp_path), Bounds(), written.append)
    async with one.in_force([(plan, Noop("replica-0.a"))], time.time()):
        await one.verify(5)
    return written


def steps(records: list[Record]) -> list[str]:
    return [record.step for record in records if isinstance(record, FaultRecord)]


async def test_a_condition_that_holds_twice_is_struck_at_once(tmp_path: Path) -> None:
    admin = ScriptedAdmin("a", "a")
    written = await strike(admin, tmp_path)
    assert steps(written) == ["condition", "injected", "verified", "reverted"]
    assert admin.asked[1] == CONFIRM_S


async def test_a_call_that_gets_its_token_in_the_step_that_made_the_condition_true_does_not_count(
    tmp_path: Path,
) -> None:
    """Seen on a real cluster: the third stream and the only awaiting call got their tokens a millisecond apart."""
    admin = ScriptedAdmin("gone-at-once", None, "stays", "stays")
    written = await strike(admin, tmp_path)
    injected = next(r for r in written if isinstance(r, FaultRecord) and r.step == "injected")
    assert injected.detail["awaiting"] == ["stays"]
    assert admin.answers == []


async def test_a_condition_that_never_held_injects_nothing(tmp_path: Path) -> None:
    written = await strike(ScriptedAdmin(None), tmp_path)
    assert steps(written) == []
    (check,) = [record for record in written if isinstance(record, CheckRecord)]
    assert (check.name, check.ok) == ("fault_condition", None)
    assert UndoLog(tmp_path).entries() == []
