"""Calibration of a run: capacity with all replicas, and with one really lost, on the cluster that is then tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.admin import AdminError
from chaos.bounds import Bounds
from chaos.calibrate import CalibrationError, Capacity, saturated
from chaos.experiment import Load
from chaos.faults import FaultContext
from chaos.faults.force import InForce
from chaos.faults.kill_replica import KillReplica
from chaos.history import CalibrationRecord, CheckRecord, Record
from chaos.load.client import LoadClient
from chaos.load.plan import choose_target
from chaos.progress import Progress
from chaos.recovery import all_serving
from chaos.undo import UndoLog
from chaos.waiting import until


@dataclass(frozen=True)
class Calibration:
    """Measures capacity and writes it to ``sink``."""

    context: FaultContext
    client: LoadClient
    load: Load
    seed: int
    undo: UndoLog
    bounds: Bounds
    progress: Progress
    sink: Callable[[Record], None]

    async def measure(self, replicas: int, *, with_loss: bool) -> dict[int, Capacity]:
        """Return the capacity by number of live replicas: with all, and with one fewer when ``with_loss``.

        Raises:
            CalibrationError: nothing was answered, or the lost replica did not come back.
        """
        self.progress.say(f"calibrating with {replicas} replicas")
        label = f"{self.seed}/{replicas}"
        admin, bounds = self.context.admin, self.bounds
        async with saturated(admin, self.client, self.load, label, bounds.settle_s) as saturation:
            full = await saturation.settle(replicas)
            whole = await saturation.measure(bounds.window_s)
        self._keep(replicas, whole, full)
        if not with_loss:
            return {replicas: whole}
        return {replicas: whole, replicas - 1: await self._with_loss(replicas)}

    async def _with_loss(self, replicas: int) -> Capacity:
        admin, bounds = self.context.admin, self.bounds
        labels = [link.label for link in await admin.replica_links()]
        target = choose_target("replica-*", labels, self.seed)
        fault = await KillReplica.resolve(self.context, target, {})
        self.progress.say(f"calibrating with {replicas - 1} replicas: killing {fault.target}")
        limit_s = bounds.fault_limit_s + bounds.window_s
        async with InForce(fault, self.undo, self.context.substrate.name, limit_s) as held:
            label = f"{self.seed}/{replicas - 1}"
            async with saturated(admin, self.client, self.load, label, bounds.settle_s) as saturation:
                saturation.fill(replicas - 1)
                await held.inject()
                injected_at = time.time()
                proof = await fault.verify()
                if not proof.ok or not await self._survivors_alone(fault.target):
                    raise CalibrationError(
                        f"{fault.target} was killed, but it still takes part ({proof.detail}); 'brownout heal', "
                        f"then 'brownout status'"
                    )
                full = await saturation.settle(replicas - 1)
                less = await saturation.measure(bounds.window_s)
                alone = len(await admin.replica_links()) == replicas - 1
        self._keep(replicas - 1, less, full)
        if not alone:
            self._unknown("calibration_with_loss", "the successor came back while capacity was measured")
        self.progress.say(f"waiting for the successor of {fault.target}")
        lost = {fault.target}
        back = await all_serving(admin, self.client, replicas, lost, bounds.return_s, bounds.poll_s)
        if not back.ok:
            raise CalibrationError(
                f"the successor of {fault.target} took no load within {bounds.return_s:g} s ({back.detail}); "
                f"see the logs that 'brownout status' names"
            )
        self.progress.say(f"the successor takes load {time.time() - injected_at:.0f} s after the kill")
        return less

    async def _survivors_alone(self, lost: str) -> bool:
        async def alone() -> bool:
            try:
                links = {link.name for link in await self.context.admin.replica_links()}
                held = {replica for _, replica, _ in (await self.context.admin.in_flight()).attempts}
            except AdminError:
                return False
            return lost not in links and lost not in held

        return bool(await until(alone, self.bounds.quiet_s, self.bounds.poll_s))

    def _keep(self, replicas: int, found: Capacity, full: bool | None) -> None:
        self.sink(
            CalibrationRecord(
                replicas=replicas,
                calls_per_s=round(found.calls_per_s, 4),
                tokens_per_s=round(found.tokens_per_s, 3),
                duration_s=round(found.duration_s, 4),
                calls=found.calls,
                measured_at=round(time.time(), 3),
            )
        )
        self.progress.say(
            f"{replicas} replicas carry {found.calls_per_s:.1f} calls/s, {found.tokens_per_s:.0f} output tokens/s"
        )
        if not full:
            why = "their queues could not be read" if full is None else "a replica's own queue stayed empty"
            self._unknown("calibration_saturated", f"{replicas} replicas: {why}")

    def _unknown(self, name: str, reason: str) -> None:
        self.sink(CheckRecord("", name, None, time.time(), {"reason": reason}))
