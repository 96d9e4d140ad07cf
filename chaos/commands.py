"""What each command of ``brownout`` does; the parser and the exit codes are in ``cli.py``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from chaos import report
from chaos.admin import Admin
from chaos.bounds import DEFAULT_BOUNDS
from chaos.capacity import Calibration
from chaos.conduct import Request, conduct
from chaos.experiment import Experiment
from chaos.faults import FAULTS, FaultContext
from chaos.heal import heal, profile_kept
from chaos.history import HistoryError
from chaos.load.client import LoadClient
from chaos.names import UnknownName
from chaos.progress import LineProgress
from chaos.recovery import all_serving
from chaos.runner import HISTORY, READY_WITHIN_S
from chaos.scenarios import SCENARIOS, scenario
from chaos.substrate import Substrate, SubstrateError
from chaos.substrates import SUBSTRATES, substrate
from chaos.tailor import tailored
from chaos.tenants import own_key
from chaos.undo import UndoLog, run_lock
from cluster.public import POLICIES, PROFILES, ClusterState, default_run_dir

_SMALL_REPLICAS: Final = "BROWNOUT_SMALL_REPLICAS"


def show_list() -> int:
    """Print everything that has a name."""
    for name, experiment in SCENARIOS.items():
        print(f"scenario  {name}: {experiment.question}")
        print(f"          arms: {', '.join(arm.name for arm in experiment.arms)}")
        print(f"          objectives: {'; '.join(o.describe() for o in experiment.objectives)}")
    for title, names in (("substrates", SUBSTRATES), ("faults", FAULTS), ("profiles", PROFILES)):
        print(f"{title}: {', '.join(names)}")
    print(f"policies: {', '.join(POLICIES)} (switch off with --without)")
    return 0


async def up(on: str, small_replicas: int | None = None) -> int:
    """Heal what a dead run left, then bring the cluster up.

    ``small_replicas`` stands in for the setting of that name.
    """
    if small_replicas is not None:
        os.environ[_SMALL_REPLICAS] = str(small_replicas)
    place = substrate(on)
    with run_lock(default_run_dir()):
        await _healed(place)
        await place.up()
    urls = await place.endpoints()
    print(f"up on {on}: {urls.base_url}/v1")
    return 0


async def down(on: str) -> int:
    """Take the cluster down; faults that were in force there are gone with it.

    Raises:
        SubstrateError: a run is going on there; it must end first.
    """
    place = substrate(on)
    with run_lock(default_run_dir()):
        await place.down()
        await _healed(place)
    return 0


async def status(on: str) -> int:
    """Print what runs, and what is in force."""
    place = substrate(on)
    urls = await place.endpoints()
    async with Admin(urls) as admin:
        profile, without = await admin.profile()
        held = await admin.in_flight()
        lacking = f" without {', '.join(without)}" if without else ""
        print(f"up on {on}: {urls.base_url}/v1, profile {profile}{lacking}, {held.calls} calls in flight")
        for link in await admin.links():
            print(f"link {link.name}: {link.listen} -> {link.upstream}")
    for key, value in sorted(place.settings().items()):
        print(f"{key}: {value}")
    if on == "local" and (state := ClusterState.load()):
        print(f"logs: {state.logs}")
    for entry in UndoLog(default_run_dir()).entries():
        print(
            f"in force: {entry.kind} on {entry.target} ('brownout heal' reverts it, unless a run is going on)"
        )
    return 0


async def heal_now(on: str) -> int:
    """Revert what a dead run left."""
    place = substrate(on)
    with run_lock(default_run_dir()):
        healed = await heal(UndoLog(default_run_dir()), place)
    print("\n".join(healed) if healed else "nothing was in force")
    return 0


async def _healed(place: Substrate) -> None:
    progress = LineProgress()
    for what in await heal(UndoLog(default_run_dir()), place):
        progress.say(f"left by an earlier run: {what}")


async def calibrate(name: str, on: str, seed: int) -> int:
    """Print what the cluster carries with the mix of a scenario, with a real loss where the scenario asks for it."""
    experiment, place, progress = scenario(name), substrate(on), LineProgress()
    run_dir = default_run_dir()
    with run_lock(run_dir):
        await _healed(place)
        urls, key = await place.endpoints(), own_key()
        async with (
            Admin(urls, key) as admin,
            LoadClient(
                urls.base_url, await admin.model(), experiment.load.client_deadline_s, {"": key}
            ) as client,
        ):
            replicas = int(place.settings().get("replicas") or len(await admin.replica_links()))
            ready = await all_serving(admin, client, replicas, (), READY_WITHIN_S, DEFAULT_BOUNDS.poll_s)
            if not ready.ok:
                raise SubstrateError(f"not every one of {replicas} replicas answers: {ready.detail}")
            context = FaultContext(place, urls, admin)
            problems: list[Any] = []
            calibration = Calibration(
                context,
                client,
                experiment.load,
                seed,
                UndoLog(run_dir),
                DEFAULT_BOUNDS,
                progress,
                problems.append,
            )
            async with profile_kept(admin, UndoLog(run_dir), place.name):
                found = await calibration.measure(replicas, with_loss=experiment.calibrate_loss)
    for count, capacity in found.items():
        print(
            f"{count} replicas: {capacity.calls_per_s:.2f} calls/s, {capacity.tokens_per_s:.0f} output tokens/s"
        )
    return 0


async def run(
    name: str,
    on: str,
    *,
    seed: int,
    out: Path | None,
    arms: list[str],
    without: list[str],
    rate_per_s: float | None,
    bring_up: bool,
) -> int:
    """Run a scenario, judge it, write its report; return the exit code of the verdict."""
    experiment: Experiment = tailored(scenario(name), arms=arms, without=without)
    request = Request(experiment, seed, out, bring_up, rate_per_s)
    history = await conduct(request, substrate(on), LineProgress())
    return judged(history)


def judged(path: Path) -> int:
    """Judge a history (or the one in a folder), write the report beside it, and print where.

    Raises:
        UnknownName: there is no such history.
    """
    history = path / HISTORY if path.is_dir() else path
    if not history.is_file():
        raise UnknownName(f"no history at {history}; give a report folder, or its {HISTORY}")
    try:
        verdict = report.write(history, history.parent)
    except HistoryError as error:
        raise UnknownName(str(error)) from error
    print(f"verdict: {verdict.status}. {report.conclusion(verdict)}")
    for check in verdict.deciding[1:]:
        print(f"  {check.status}: {check.name}{f' ({check.arm})' if check.arm else ''}: {check.summary}")
    print(f"report: {(history.parent / 'report.html').resolve()}")
    return verdict.exit_code
