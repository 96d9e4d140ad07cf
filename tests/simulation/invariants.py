"""The invariants of every run. To add one, write a class and add it here."""

from __future__ import annotations

from typing import Final

from tests.simulation.account_invariants import BudgetKept, EventsPair, LedgerMatches, NothingIsLeft
from tests.simulation.admission_invariants import LimitInBounds, NobodyWaitsTooLong, PermitsMatch
from tests.simulation.call_invariants import (
    AttemptsBounded,
    EndsOnce,
    ErrorsTellTheTruth,
    NobodyWorksForTheGone,
    OnTime,
    TextIntact,
)
from tests.simulation.frozen_invariant import FrozenLeave
from tests.simulation.judging import Invariant
from tests.simulation.repeat_invariants import FailuresHaveAReason
from tests.simulation.replica_invariants import (
    AllComeBack,
    EjectedAreLeftAlone,
    EjectionKeepsFloor,
    FloorKept,
    RetriesGoElsewhere,
)

INVARIANTS: Final[tuple[type[Invariant], ...]] = (
    EndsOnce,
    NobodyWorksForTheGone,
    TextIntact,
    OnTime,
    AttemptsBounded,
    ErrorsTellTheTruth,
    LedgerMatches,
    NothingIsLeft,
    EventsPair,
    BudgetKept,
    FailuresHaveAReason,
    NobodyWaitsTooLong,
    PermitsMatch,
    LimitInBounds,
    FrozenLeave,
    FloorKept,
    AllComeBack,
    EjectionKeepsFloor,
    EjectedAreLeftAlone,
    RetriesGoElsewhere,
)
