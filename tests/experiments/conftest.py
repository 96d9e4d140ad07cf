"""How many seeds each scenario runs with: one in `make test`, three in `make test-seeds`."""

from __future__ import annotations

import os
from typing import Final

import pytest

SEEDS: Final = (7, 11, 23)
ENVIRONMENT: Final = "BROWNOUT_SEEDS"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that asks for a ``seed`` the first so many seeds."""
    if "seed" not in metafunc.fixturenames:
        return
    given = os.environ.get(ENVIRONMENT, "1")
    if given not in {str(count) for count in range(1, len(SEEDS) + 1)}:
        raise pytest.UsageError(f"{ENVIRONMENT} is {given!r}, it must be 1 to {len(SEEDS)}")
    metafunc.parametrize("seed", SEEDS[: int(given)])
