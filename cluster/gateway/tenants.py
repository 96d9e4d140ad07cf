"""Identifies callers by their keys. The tenants file is looked at for each request, so that a revoked key fails on the
next one; while it is invalid or gone nobody is let in, because what it said last may be what it was edited to end.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from starlette.types import Scope

from cluster import public
from cluster.gateway.api_keys import ApiKey, matches, parse
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.exchange import only_header
from cluster.gateway.identity import OPEN, OPEN_CLASSES, PLAIN, Identity, WorkClass
from cluster.gateway.tenants_file import Book, TenantsError
from cluster.gateway.tenants_file import parse as parse_file
from cluster.settings import Settings
from policies.errors import FailedClosed
from policies.ladder import DEFERRED, ClassRungs, depth

_LOG = logging.getLogger(__name__)
_SETTLED_S: Final = 0.1
"""A file that was changed more lately than this can change again without its time showing it."""
_RETRY_AFTER_S: Final = 5.0
REASONS: Final = ("missing", "malformed", "unknown", "wrong", "expired", "revoked", "unavailable")
"""Why somebody was not identified."""

Signature = tuple[int, int, int, int]


class Unauthenticated(InvalidRequest):
    """Nobody knows who asks (401). ``reason`` is one of ``REASONS`` and is not told to the caller."""

    kind: ClassVar[str] = public.ERROR_AUTHENTICATION

    def __init__(self, message: str, reason: str, *, code: str = "invalid_api_key") -> None:
        super().__init__(message, status=401, code=code, headers={"www-authenticate": "Bearer"})
        self.reason = reason


class TenantsUnavailable(FailedClosed):
    """The tenants file cannot be used now, so nobody can be identified (503)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, what="tenants", retry_after_s=_RETRY_AFTER_S)


class Tenants:
    """What is known of callers. ``path`` is the tenants file; None is open mode, in which everybody is let in.

    Args:
        model: the first model, which a tenant may use that names none.
        open_classes: what classes of work mean in open mode.
        counted: told of each caller who was not identified, with one of ``REASONS``.
        now: wall-clock seconds since the epoch, for keys that end.
    """

    def __init__(
        self,
        path: Path | None,
        model: str,
        *,
        open_classes: Mapping[str, WorkClass] = OPEN_CLASSES,
        counted: Callable[[str], None] = lambda reason: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._model = model
        self._anybody = Identity(
            OPEN.tenant, OPEN.principal, classes=open_classes, cache_salt=OPEN.cache_salt
        )
        self.counted = counted
        self._now = now
        self._signature: Signature | None = None
        self._book: Book | None = None
        self._problem = ""

    @classmethod
    def of(cls, settings: Settings) -> Tenants:
        """Return what the settings ask for."""
        path = settings.tenants_file
        return cls(
            Path(path).expanduser() if path else None,
            settings.model_name,
            open_classes=classes_in_open_mode(settings.rungs_by_class, settings.cacheable),
        )

    @property
    def open(self) -> bool:
        """Tell whether everybody is let in."""
        return self._path is None

    @property
    def usable(self) -> bool:
        """Tell whether callers can be identified now."""
        return self.open or self._current() is not None

    def require(self) -> None:
        """See that the file can be used.

        Raises:
            TenantsError: it cannot.
        """
        if not self.usable:
            raise TenantsError(self._problem)

    def identify(self, scope: Scope) -> Identity:
        """Return who sends a request.

        Raises:
            Unauthenticated: there is no key that is known.
            TenantsUnavailable: nobody can be identified now.
        """
        if self.open:
            return self._anybody
        try:
            return self._identify(scope)
        except (Unauthenticated, TenantsUnavailable) as error:
            self.counted(error.reason if isinstance(error, Unauthenticated) else "unavailable")
            raise

    def current(self, identity: Identity) -> Identity | None:
        """Return what the file says by now of somebody who was identified before; None where their key has ended.

        For what is done later than the request itself: a job, a rung of the ladder, an answer of before.

        Raises:
            TenantsUnavailable: nobody can tell now.
        """
        return identity if self.open else self.of_key(identity.key_id)

    def of_key(self, key_id: str) -> Identity | None:
        """Return whose key has that id; None where there is none or it has ended. It proves nothing by itself.

        Raises:
            TenantsUnavailable: nobody can tell now.
        """
        if self.open:
            return self._anybody
        found = self._require().find(key_id)
        return found[1] if found is not None and found[0].state(self._utc()) == "valid" else None

    def _identify(self, scope: Scope) -> Identity:
        book = self._require()
        key = _key_of(scope)
        found = book.find(key.id)
        if not matches(key, None if found is None else found[0].sha256):
            raise _wrong("unknown" if found is None else "wrong")
        assert found is not None
        state = found[0].state(self._utc())
        if state != "valid":
            raise _wrong(state)
        return found[1]

    def _utc(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)

    def _require(self) -> Book:
        book = self._current()
        if book is None:
            raise TenantsUnavailable("callers cannot be identified at the moment")
        return book

    def _current(self) -> Book | None:
        """Return the book as the file says it now; it is read again only when it has changed."""
        assert self._path is not None
        try:
            seen = os.stat(self._path)
        except OSError as error:
            self._fail(f"{self._path}: cannot be read ({error.strerror}); put it back, or unset tenants_file")
            self._signature = None
            return None
        if self._signature == _signature(seen):
            return self._book
        self._read(self._path)
        return self._book

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                text = file.read().decode()
            self._book = Book(parse_file(text, path), self._model)
        except OSError as error:
            self._signature = None
            self._fail(f"{path}: cannot be read ({error.strerror}); let the gateway's user read it")
            return
        except (TenantsError, UnicodeDecodeError) as error:
            problem = (
                str(error) if isinstance(error, TenantsError) else f"{path}: is not UTF-8; save it as that"
            )
            self._fail(problem)
        else:
            if self._problem:
                _LOG.warning("the tenants file %s can be used again", path)
            self._problem = ""
        settled = not 0 <= time.time() - state.st_mtime < _SETTLED_S
        self._signature = _signature(state) if settled else None

    def _fail(self, problem: str) -> None:
        self._book = None
        if problem != self._problem:
            _LOG.error("nobody is let in: %s", problem)
        self._problem = problem


def classes_in_open_mode(rungs: Mapping[str, str], cacheable: Set[str]) -> dict[str, WorkClass]:
    """Return the classes of open mode: those known of old, and what ``class_rungs`` lets go down that far.

    ``cacheable`` names those that may be answered from the cache: nobody else is, because anybody can say there that
    their call belongs to a class.
    """
    named = {
        name: WorkClass(rungs=ClassRungs.down_to(rung), deferrable=depth(rung) >= depth(DEFERRED))
        for name, rung in rungs.items()
    }
    classes = {**dict.fromkeys(cacheable, PLAIN), **OPEN_CLASSES, **named}
    return {name: replace(one, cacheable=name in cacheable) for name, one in classes.items()}


def _key_of(scope: Scope) -> ApiKey:
    try:
        given = only_header(scope, "authorization")
    except InvalidRequest:
        raise Unauthenticated("authorization is given more than once; send one key", "malformed") from None
    if given is None:
        raise Unauthenticated(
            "no API key was given; send it as 'Authorization: Bearer KEY'", "missing", code="missing_api_key"
        )
    scheme, _, text = given.partition(" ")
    key = parse(text.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        raise _wrong("malformed")
    return key


def _wrong(reason: str) -> Unauthenticated:
    return Unauthenticated("the API key is not valid; ask whoever runs the service for one", reason)


def _signature(state: os.stat_result) -> Signature:
    return state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size
