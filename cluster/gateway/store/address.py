"""Reads the setting ``store``. Light, because every process that reads the settings imports it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from cluster import public

FORMS: Final = "sqlite, sqlite:///FILE, postgresql://USER:PASSWORD@HOST:PORT/DATABASE or none"
_PASSWORD: Final = re.compile(r"(//[^:/@]*):.*@")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the store is. ``path`` is of SQLite, ``url`` (with its password) of PostgreSQL."""

    kind: Literal["none", "sqlite", "postgresql"]
    path: Path | None = None
    url: str = ""

    def __str__(self) -> str:
        return without_password(self.url) or (f"sqlite:///{self.path}" if self.path else self.kind)


def without_password(value: str) -> str:
    """Return a URL as it may stand in a log."""
    return _PASSWORD.sub(r"\1:***@", value)


def parse_address(value: str, run_dir: Path) -> StoreAddress:
    """Take the setting apart; ``sqlite`` alone is a file in the run folder.

    Raises:
        ValueError: it is none of ``FORMS``. The text holds no password.
    """
    if value == "none":
        return StoreAddress("none")
    if value == "sqlite":
        return StoreAddress("sqlite", run_dir / public.STORE_FILE)
    scheme, colon, rest = value.partition("://")
    if scheme == "sqlite" and colon:
        path = rest.removeprefix("/")
        if path == rest or path in ("", ":memory:") or "?" in path:
            raise ValueError(
                "name a file after sqlite:/// (sqlite:////var/lib/brownout/store.db: three slashes and the path)"
            )
        return StoreAddress("sqlite", Path(path))
    if scheme in ("postgresql", "postgres") and colon:
        return StoreAddress("postgresql", url=_postgresql(f"postgresql://{rest}"))
    raise ValueError(f"is none of {FORMS}")


def _postgresql(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(
            "host or port of this URL cannot be read; write @ : / # ? in a password as %40 %3A %2F %23 %3F"
        ) from None
    if not host or parts.path in ("", "/"):
        missing = "database" if host else "host"
        raise ValueError(f"has no {missing}: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return url
