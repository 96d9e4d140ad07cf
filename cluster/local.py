"""Brings the cluster up and down as processes of this machine: ``python -m cluster.local up|down|status|gateway``.

``up`` returns when real tokens flow through every link. It is safe to run twice, cleans up what an earlier
run that died has left, and leaves nothing behind when it fails or is interrupted. ``gateway`` starts the gateway of a
running cluster again where it has ended; with ``--set NAME=VALUE`` it runs with other settings, ``--plain`` with those
of ``up``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cluster import exported, gateway_again, processes, public, settings
from cluster.bring_up import BringUp, LocalError, check_ports, first_tokens, say
from cluster.public import ClusterState

EXIT_COULD_NOT = 3
EXIT_USAGE = 4
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP: everything that was started is taken down again."""


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Hold the folder's lock: two ``up`` or ``down`` at a time would end each other's processes."""
    public.claim_run_dir(run_dir)
    with (run_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError(
                f"another 'brownout up' or 'down' is at work in {run_dir}; wait for it, or set "
                f"BROWNOUT_RUN_DIR (and other ports) for a second cluster"
            ) from None
        yield


def _healthy(state: ClusterState) -> bool:
    supervised = [record for record in state.processes if record.name != "deploy"]
    return (
        bool(supervised)
        and all(processes.alive(record) for record in supervised)
        and first_tokens(state.base_url, state.model)
    )


def _clear(run_dir: Path, state: ClusterState | None) -> int:
    mark = state.run_mark if state else None
    count = processes.end_all(run_dir, state.processes if state else (), mark)
    shutil.rmtree(run_dir / processes.RAY_TEMP, ignore_errors=True)
    for left in (ClusterState.path(run_dir), run_dir / exported.FILE):
        left.unlink(missing_ok=True)
    return count


def up(conf: settings.Settings, run_dir: Path) -> ClusterState:
    """Bring the cluster up, or find that it already is.

    Raises:
        LocalError: it cannot be; nothing that this call started is left.
    """
    with _locked(run_dir):
        started = time.monotonic()
        earlier = ClusterState.load(run_dir)
        if earlier is not None and _healthy(earlier):
            say(f"already up: {earlier.base_url}/v1 ('brownout down' ends it)", started)
            if earlier.small_replicas != conf.small_replicas:
                has, asked = earlier.small_replicas, conf.small_replicas
                say(f"it has {has} replicas of the smaller model, not {asked}: end it first", started)
            return earlier
        if earlier is not None or processes.belonging(run_dir):
            say("an earlier cluster is only half alive: cleaning it up first", started)
            _clear(run_dir, earlier)
        check_ports(conf)
        attempt = BringUp(conf, run_dir)
        try:
            return attempt.go()
        except BaseException as error:
            word = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
            with _uninterrupted():
                say(f"{word}: taking down what was started", started)
                _clear(run_dir, attempt.state)
            if isinstance(error, subprocess.CalledProcessError | OSError):
                raise LocalError(f"could not start: {error}") from error
            raise


def down(run_dir: Path) -> int:
    """Take the cluster down, and whatever an earlier one left; return how many processes ended. Safe twice."""
    with _uninterrupted(), _locked(run_dir):
        return _clear(run_dir, ClusterState.load(run_dir))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a clean-up finish although Ctrl-C is pressed again."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.local", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status", "gateway"))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of 'gateway'")
    parser.add_argument("--plain", action="store_true", help="of 'gateway'")
    given = parser.parse_args(arguments)
    command = given.command
    run_dir = public.default_run_dir()
    for number in INTERRUPTS:
        signal.signal(number, _interrupt)
    try:
        if command == "down":
            count = down(run_dir)
            print(f"down: {count} processes ended" if count else "down: nothing was running")
            return 0
        if command == "up":
            up(settings.load(), run_dir)
            return 0
        if command == "gateway":
            changes = dict(one.partition("=")[::2] for one in given.set)
            with _locked(run_dir):
                gateway_again.have_gateway(run_dir, changes if given.set or given.plain else None)
            return 0
        state = ClusterState.load(run_dir)
        if state is None:
            print("not running; 'brownout up --on local' starts it")
            return EXIT_COULD_NOT
        healthy = _healthy(state)
        models = f"{state.replicas} x {state.model}"
        if state.small_replicas:
            models += f", {state.small_replicas} x {state.small_model}"
        print(f"{'up' if healthy else 'half alive'}: {state.base_url}/v1 ({models}), logs in {state.logs}")
        return 0 if healthy else EXIT_COULD_NOT
    except settings.SettingsError as error:
        print(f"brownout: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"brownout: {error}; the run folder is {run_dir} (BROWNOUT_RUN_DIR moves it)", file=sys.stderr)
        return EXIT_COULD_NOT
    except LocalError as error:
        print(f"brownout: {error}", file=sys.stderr)
        return EXIT_COULD_NOT
    except (Interrupted, KeyboardInterrupt):
        print("brownout: interrupted; what was started is taken down again", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
