"""The command line: ``brownout list | profiles | up | down | status | run | report | heal | calibrate | demo``,
and what is the cluster's own: ``brownout keys | tenants``.

Exit codes: 0 pass, 1 fail, 2 inconclusive, 3 could not run, 4 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
import threading
import traceback
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

from chaos import commands
from chaos.calibrate import CalibrationError
from chaos.conduct import FolderTakenError
from chaos.demo import demo
from chaos.faults import FaultError
from chaos.links import LinkFaultError
from chaos.names import UnknownName, require
from chaos.passed_on import PASSED_ON, passed_on
from chaos.profiles import show_profiles
from chaos.substrate import ConfigurationError, SubstrateError
from chaos.substrates import default_substrate

EXIT_COULD_NOT_RUN = 3
EXIT_USAGE = 4
EXIT_INTERRUPTED = 130
MOST_CALLS_PER_S = 10_000.0
MOST_SMALL_REPLICAS = 32
COMMANDS = (
    *("list", "profiles", "up", "down", "status", "run", "report", "heal", "calibrate", "demo"),
    *PASSED_ON,
)
DEFAULT_SEED = 7


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_CALLS_PER_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a rate: calls a second, above 0 and at most {MOST_CALLS_PER_S:g}"
        )
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_SMALL_REPLICAS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: 0 to {MOST_SMALL_REPLICAS}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = _Parser(prog="brownout", description="Break a real LLM-serving cluster on purpose, and judge it.")
    commands_of = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def add(name: str, text: str, *, on: bool = True) -> argparse.ArgumentParser:
        command = commands_of.add_parser(name, help=text, description=text)
        if on:
            place = default_substrate()
            command.add_argument("--on", default=place, metavar="SUBSTRATE", help=f"default here: {place}")
        return command

    add("list", "List scenarios, arms, faults, policies and substrates.", on=False)
    profiles = add(
        "profiles", "Tell what each profile contains, and what each policy protects from.", on=False
    )
    profiles.add_argument("--json", action="store_true", help="as JSON")
    bring_up = add("up", "Bring a cluster up; returns when real tokens flow.")
    small = "replicas of the smaller model too (default: small_replicas of the settings)"
    bring_up.add_argument("--small", type=_count, metavar="N", help=small)
    add("down", "Take a cluster down and leave nothing.")
    add("status", "Tell what runs and which faults are in force.")
    add("heal", "Revert what a run that died has left in force.")
    run = add("run", "Run a scenario, judge it, and write its report.")
    run.add_argument("scenario", help="its name; 'brownout list' has them")
    run.add_argument("--out", type=Path, metavar="DIR", help="report folder (default: one below reports/)")
    run.add_argument("--arms", action="append", default=[], metavar="ARM,...", help="only these arms")
    run.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="POLICY",
        help="switch policies off in the resilient arm (again, or with commas, for several)",
    )
    run.add_argument(
        "--rate", type=_rate, metavar="CALLS/S", help="offer this instead of the calibrated share"
    )
    run.add_argument(
        "--up", action="store_true", help="bring the cluster up if it is not, and down afterwards"
    )
    for name, (_, text) in PASSED_ON.items():
        add(name, text, on=False)
    report = add("report", "Judge a history again and write its report.", on=False)
    report.add_argument("path", type=Path, help="a report folder, or a history.jsonl")
    calibrate = add("calibrate", "Measure what the cluster carries.")
    calibrate.add_argument("scenario", nargs="?", default="worker_loss", help="whose mix of calls to use")
    show = add("demo", "Bring a cluster up, lose a worker, report, clean up; says what it took.")
    for command in (run, calibrate, show):
        command.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"default {DEFAULT_SEED}")
    return top


def _split(names: Sequence[str]) -> list[str]:
    return [name for part in names for name in part.split(",") if name]


def _work(options: argparse.Namespace) -> Coroutine[Any, Any, int] | int:
    match options.command:
        case "list":
            return commands.show_list()
        case "profiles":
            return show_profiles(as_json=options.json)
        case "report":
            return commands.judged(options.path)
        case "up":
            return commands.up(options.on, small_replicas=options.small)
        case "down":
            return commands.down(options.on)
        case "status":
            return commands.status(options.on)
        case "heal":
            return commands.heal_now(options.on)
        case "demo":
            return demo(options.on, options.seed)
        case "calibrate":
            return commands.calibrate(options.scenario, options.on, options.seed)
        case _:
            return commands.run(
                options.scenario,
                options.on,
                seed=options.seed,
                out=options.out,
                arms=_split(options.arms),
                without=_split(options.without),
                rate_per_s=options.rate,
                bring_up=options.up,
            )


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    """Let SIGTERM and SIGHUP end the work as Ctrl-C does: by cancelling it, so that faults are reverted."""
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await work


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises for what a user or a cluster did."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and not given[0].startswith("-"):
            require("command", given[0], COMMANDS)
        if given and given[0] in PASSED_ON:
            return passed_on(given[0], given[1:])
        work = _work(parser().parse_args(given))
        return work if isinstance(work, int) else asyncio.run(_interruptible(work))
    except (UnknownName, FolderTakenError, ConfigurationError) as error:
        print(f"brownout: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (SubstrateError, FaultError, CalibrationError, LinkFaultError) as error:
        print(f"brownout: could not run: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    except OSError as error:
        print(f"brownout: could not run: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("brownout: interrupted; what was in force is reverted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception:
        # A bug. Python's own exit code for it is 1, which would tell CI that the service failed its objectives.
        traceback.print_exc()
        print("brownout: could not run: an unexpected error, see above", file=sys.stderr)
        return EXIT_COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
