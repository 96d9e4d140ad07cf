"""What an error of the database means for a transaction: run it again, give up, or tell its author."""

from __future__ import annotations

import enum
import re
from typing import Final

from sqlalchemy.exc import DBAPIError


class Failure(enum.Enum):
    """Kinds of failure of a transaction."""

    CONFLICT = "conflict"
    """The server undid it in favour of another: it can be run again."""
    LOST = "lost"
    """The connection is gone, and with it whatever was not committed."""
    AWAY = "away"
    """The server cannot or may not do it now."""
    OTHER = "other"
    """The statement is at fault, or the data are."""


_CONFLICTS = ("40001", "40P01", "0A000")  # serialization, deadlock, a plan from before a change of the schema
_LOST = ("57P01", "57P02", "57P03", "57P05", "25P03")  # ended, crashed, starting, idle too long (twice)
_AWAY = (
    "25006",  # a standby takes no writes
    "55P03",  # a lock was not to be had
)
_AWAY_CLASSES = ("28", "3D", "53", "54", "57", "58", "XX")
_ARGUMENT: Final = re.compile(r"(invalid input for query argument \$\d+).*", re.DOTALL)
"""The driver shows the value that it cannot send."""


def failure_of(error: BaseException) -> Failure:
    """Return what kind of failure an error of SQLAlchemy or of the network is."""
    if not isinstance(error, DBAPIError):
        return Failure.AWAY  # no connection could be made, or had in time
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _CONFLICTS:
        return Failure.CONFLICT
    if error.connection_invalidated or state in _LOST or state.startswith("08"):
        return Failure.LOST
    if state in _AWAY or state[:2] in _AWAY_CLASSES:
        return Failure.AWAY
    return Failure.OTHER


def words(error: BaseException) -> str:
    """Return the database's own words, without the statement and the row: they are other people's prompts."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return str(error.orig.args[0] if error.orig.args else error.orig)
    return str(error) or type(error).__name__


def without_row(error: DBAPIError) -> DBAPIError:
    """Take from an error what the driver tells of the row, so that no traceback shows it."""
    error.args = tuple(_ARGUMENT.sub(r"\1", str(arg)) for arg in error.args)
    orig = error.orig
    if orig is not None:
        orig.__cause__ = orig.__context__ = None
        orig.args = tuple(_ARGUMENT.sub(r"\1", str(arg)) for arg in orig.args)
        orig.detail = None  # type: ignore[attr-defined]
    return error


def never_mends(error: BaseException) -> bool:
    """Tell whether waiting is of no use: user, password or database are wrong."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return state[:2] in ("28", "3D")
