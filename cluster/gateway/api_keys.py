"""API keys: ``bo_<id>_<secret>``. The id is public and finds the key, the secret proves it; only its digest is kept.

A plain SHA-256 is right for these, and a slow password hash would be wrong. What makes passwords need one is that
people choose them: a stolen hash is guessed by trying likely words. The secret here is 256 bits from the operating
system's generator, which nobody can guess at any speed, while a slow hash would cost every request, with wrong keys
too, the time that it costs an attacker.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "bo"
KEY_ID: Final = r"[a-z0-9]{6,32}"
_FORMAT: Final = re.compile(rf"{PREFIX}_({KEY_ID})_([0-9a-f]{{64}})")
_NOBODY: Final = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
"""Compared with where no key has that id, so that the time does not say which ids there are."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as its owner has it."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"ApiKey({self.id})"

    @property
    def text(self) -> str:
        """Return what goes after ``Bearer``."""
        return f"{PREFIX}_{self.id}_{self.secret}"

    @property
    def digest(self) -> str:
        """Return what is kept of it: SHA-256 of the secret, hexadecimal."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


def new_key() -> ApiKey:
    """Return a key that nobody has yet."""
    return ApiKey(secrets.token_hex(6), secrets.token_hex(32))


def parse(text: str) -> ApiKey | None:
    """Return the key, or None where the text cannot be one."""
    found = _FORMAT.fullmatch(text)
    return None if found is None else ApiKey(found.group(1), found.group(2))


def matches(key: ApiKey, digest: str | None) -> bool:
    """Tell whether the digest is that key's; for None the answer is no, after the same work."""
    same = hmac.compare_digest(key.digest.encode(), (digest or _NOBODY).encode())
    return same and digest is not None
