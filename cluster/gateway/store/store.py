"""What every part of the gateway's state asks of the store: whole transactions, and one kind of failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")

Work = Callable[[Connection], T]
"""What is done inside one transaction: SQLAlchemy Core on a synchronous connection, in a thread or a greenlet that is
not the event loop's. It changes nothing but the store, because it can be run again after a conflict, and it waits for
nothing but the store. It lets the database's errors through: after one PostgreSQL does nothing more in a transaction.
Where a row may be there already, see :func:`~cluster.gateway.store.portable.insert_if_absent`."""


class StoreUnavailable(Exception):
    """The store did not do what was asked, or did not say in time whether it did.

    Args:
        maybe_done: the work was under way when the answer was lost; what it wrote may stand or not.
    """

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


class Store(Protocol):
    """A database with the project's tables. Safe to use from any number of tasks of one event loop.

    A caller that is cancelled leaves its transaction to end by itself: its answer is never given to another.
    """

    kind: str
    """``sqlite`` or ``postgresql``."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Do ``work`` in one transaction and return what it returns, once it is on disk.

        Small pieces of work that arrive together share one flush to disk. What ``work`` raises undoes it alone, and is
        raised here.

        Raises:
            StoreUnavailable: it was not done, or nobody can tell.
        """
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Do ``work``, which only reads, on one consistent view.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        ...

    async def close(self) -> None:
        """Let what is under way end, and close. Safe twice."""
        ...
