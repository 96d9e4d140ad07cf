"""``python -m tests.simulation --seed N [--plant NAME]``: one run again, with all that happened in it."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.world import run_world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--plant", help="a bug of planted.py to run with")
    parser.add_argument("--quiet", action="store_true", help="only the verdict and the trace's digest")
    given = parser.parse_args()
    report = run_world(given.seed, given.plant)
    if not given.quiet:
        for line in report.trace.lines():
            print(line)
    print(f"seed {report.seed}: {report.outcomes}, {report.attempts} attempts, trace {report.digest}")
    for one in report.violations:
        print(f"violated at {one.at_s:.3f} s: {one.invariant}: {one.text}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
