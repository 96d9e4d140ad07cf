"""``python -m tests.bench.throughput``: what stands between the client and full replicas costs, as ratios in one run.

Three paced replicas of real vLLM, as many callers as they have slots, and the same calls in every arm: straight to the
replicas, through the gateway's profiles, and through other gateways where they are installed. The arms take turns,
in another order each round, so that other work on the machine meets all of them.

With ``--fakes`` the replicas are stand-ins with the same slots and steps, which take no CPU time from the rest: what is
missing then is the gateway's own doing. On a small machine engines, gateway and client press one another besides.

``direct`` is the best that any balancing could do: a caller stays with its replica, so that each has exactly the
sequences that it has slots for. ``round robin`` is what a client does that knows the replicas and takes them in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from chaos.load.prompts import Ask
from tests.bench.closed_loop import NothingMeasuredError, Route, asks, cpu_clock, measure
from tests.bench.peers import PEERS, VENV, VENV_VARIABLE, program, running
from tests.bench.ratios import Goal, Sample, table, verdict
from tests.bench.stand import NoStandError, Stand, on_cluster, on_fakes

BASE: Final = "direct"
PROFILES: Final = ("naive", "resilient")
PROMPT_TOKENS: Final = (40, 80)
"""Below a block of the prefix cache, so that a prompt that comes again in the next round is computed again."""
OUTPUT_TOKENS: Final = (24, 32)
GOALS: Final = (
    Goal(
        "throughput, resilient of direct",
        lambda one: one.tokens_per_s,
        "resilient",
        BASE,
        0.97,
        at_least=True,
    ),
    Goal("TTFT p50, resilient of direct", lambda one: one.ttft_p50_s, "resilient", BASE, 1.1),
    Goal("CPU a token, resilient of naive", lambda one: one.cpu_us_per_token, "resilient", "naive", 2.0),
    Goal("CPU a call, resilient of naive", lambda one: one.cpu_us_per_call, "resilient", "naive", 2.0),
)
COULD_NOT: Final = 3
SPARE: Final = 0.2
"""Share of the machine that is idle while the replicas alone are full, for the rest to have room beside them."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to the replicas, the profile that the gateway has meanwhile, and whose CPU time counts."""

    name: str
    route: Route
    profile: str | None = None
    cpu: Callable[[], float] | None = None
    optional: bool = False
    """Whether the rest is measured without it where it answers nothing."""


def own_arms(stand: Stand) -> list[Arm]:
    """Return the arms that need nothing but the stand."""
    cpu, through = cpu_clock(stand.gateway_pid), Route((stand.gateway,))
    return [
        Arm(BASE, Route(stand.replicas)),
        Arm("round robin", Route(stand.replicas, in_turn=True)),
        *(Arm(profile, through, profile, cpu) for profile in PROFILES),
    ]


async def take_turns(
    stand: Stand, session: aiohttp.ClientSession, arms: Sequence[Arm], calls: Sequence[Ask], rounds: int
) -> list[Sample]:
    """Run every arm once a round, after one round that warms up and is not kept."""
    taking, samples = list(arms), list[Sample]()
    for number in range(rounds + 1):
        first = number % len(taking)
        for arm in (*taking[first:], *taking[:first]):
            if arm.profile is not None:
                await stand.set_profile(session, arm.profile)
            some = calls if number else calls[: 2 * stand.callers]
            try:
                one = await measure(arm.name, arm.route, stand.callers, stand.model, some, arm.cpu)
            except NothingMeasuredError as error:
                if not arm.optional:
                    raise
                print(f"left out: {error}", file=sys.stderr)
                taking.remove(arm)
                samples = [sample for sample in samples if sample.arm != arm.name]
                continue
            if number:
                samples.append(one)
                print(f"round {number}  {one}", flush=True)
    return samples


async def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        stand = await stack.enter_async_context(
            on_fakes(session, 0.04, slots=8) if options.fakes else on_cluster(session)
        )
        arms = own_arms(stand)
        if not options.without_peers:
            arms += await _peer_arms(stand, session, options.peers_venv, stack)
        await stack.enter_async_context(stand.keeping_its_profile(session))
        calls = asks(options.seed, stand.callers * options.calls_per_caller, PROMPT_TOKENS, OUTPUT_TOKENS)
        print(
            f"{len(stand.replicas)} replicas of {stand.slots} slots ({stand.pace}), {stand.callers} callers, "
            f"{len(calls)} calls an arm and round, {options.rounds} rounds, seed {options.seed}",
            flush=True,
        )
        samples = await take_turns(stand, session, arms, calls, options.rounds)
    print(*table(samples, BASE), sep="\n")
    if statistics.median(one.idle or 0.0 for one in samples if one.arm == BASE) < SPARE:
        print(
            f"the machine had less than {100 * SPARE:.0f} % to spare: what an arm takes is missing at the replicas"
        )
    verdicts = [verdict(samples, goal) for goal in GOALS]
    print(*(line for _, line in verdicts), sep="\n")
    print(f"took {time.monotonic() - began:.0f} s")
    return 1 if options.check and not all(met for met, _ in verdicts) else 0


async def _peer_arms(
    stand: Stand, session: aiohttp.ClientSession, venv: Path | None, stack: contextlib.AsyncExitStack
) -> list[Arm]:
    """Start the peers that are installed; they stay until the stack is left."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brownout-peers-")))
    arms = []
    for peer in PEERS:
        command = program(peer, venv)
        if command is None:
            print(f"{peer.name} is not installed ('make bench-peers' installs what can be had)")
            continue
        try:
            url, pid = await stack.enter_async_context(
                running(peer, command, stand.replicas, stand.model, folder, session)
            )
        except NoStandError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        arms.append(Arm(peer.name, Route((url,)), cpu=cpu_clock(pid), optional=True))
    return arms


async def _until_told(options: argparse.Namespace) -> int:
    """Run; SIGTERM ends it as Ctrl-C does, so that what was started is ended too."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(options)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one that warms up")
    parser.add_argument(
        "--calls-per-caller", type=int, default=6, help="calls of a caller in a round (at least 3)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument(
        "--fakes",
        action="store_true",
        help="fake replicas with slots and paced steps: no engine that takes CPU time from the rest",
    )
    parser.add_argument("--without-peers", action="store_true", help="leave other gateways out")
    parser.add_argument(
        "--peers-venv",
        type=Path,
        help=f"environment with other gateways (else ${VENV_VARIABLE}, {VENV}, or the PATH)",
    )
    options = parser.parse_args()
    if options.rounds < 1 or options.calls_per_caller < 3:
        parser.error("at least 1 round and 3 calls a caller are needed for a figure")
    try:
        return asyncio.run(_until_told(options))
    except (NoStandError, NothingMeasuredError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return COULD_NOT
    except asyncio.CancelledError:
        return 143
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
