"""Changes the keys in a tenants file and leaves all else in it as it is, comments too: all of a change, or nothing.

A gateway reads the file at any moment, and other commands may change it: there is one writer at a time, and the file
is replaced in one step. What would not be a valid tenants file is never written.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import secrets
import tempfile
import tomllib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit

from cluster.gateway.tenants_file import TenantsError, parse

_HEAD = "# Tenants, their keys and what they may: docs/tenants.md. 'brownout keys' changes the keys.\n"
Table = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """What the file keeps of a key."""

    id: str
    sha256: str
    created_at: datetime
    expires_at: datetime | None = None

    def fields(self) -> dict[str, Any]:
        """Return its table."""
        known = {
            "id": self.id,
            "sha256": self.sha256,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
        }
        return {name: value for name, value in known.items() if value is not None}


class Editing:
    """A tenants file that is being changed: its text with all that the parser leaves out, and its meaning beside it.

    Both get every change, so that it can be seen in the end that the text says what was meant.
    """

    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        self._meaning: dict[str, Any] = tomllib.loads(text)  # first, for its errors
        self._document = tomlkit.parse(text)
        if not self._meaning.get("salt_secret"):
            self._set("salt_secret", secrets.token_hex(32))

    def add(self, tenant: str, principal: str, roles: list[str], key: Stored, *, new: bool) -> None:
        """Give a principal a key; one that is not there yet is added with these roles.

        Raises:
            TenantsError: there is no such tenant, and it is not to be added.
        """
        known = self._meaning.get("tenants", {})
        if tenant not in known and not new:
            near = difflib.get_close_matches(tenant, known, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}?" if near else "give --new to add it"
            raise TenantsError(f"{self._path}: there is no tenant {tenant!r}; {hint}")
        for top in (self._document, self._meaning):
            principals = _table(_table(_table(top, "tenants", outer=True), tenant), "principals", outer=True)
            if principal not in principals:
                _table(principals, principal)["roles"] = list(roles)
            _append(principals[principal], key)

    def rotate(self, key_id: str, key: Stored, until: datetime) -> None:
        """Give the principal of a key another one; the first ends at ``until``, or when it would have ended before.

        Raises:
            TenantsError: there is no such key, or it has ended.
        """
        for top in (self._document, self._meaning):
            principal, old = self._find(top, key_id)
            _append(principal, key)
            ends = old.get("expires_at")
            if ends is not None and ends.tzinfo is None:
                ends = ends.replace(tzinfo=UTC)
            if until <= key.created_at:
                old["revoked_at"] = until
            elif ends is None or until < ends:
                old["expires_at"] = until

    def revoke(self, key_id: str, at: datetime) -> None:
        """End a key.

        Raises:
            TenantsError: there is no such key, or it has ended.
        """
        for top in (self._document, self._meaning):
            self._find(top, key_id)[1]["revoked_at"] = at

    def text(self) -> str:
        """Return the changed text.

        Raises:
            TenantsError: it would not be in order.
        """
        text = tomlkit.dumps(self._document)
        parse(text, self._path)
        if tomllib.loads(text) != self._meaning:
            raise TenantsError(
                f"{self._path}: cannot be changed without changing more in it; edit it by hand"
            )
        return text

    def _set(self, name: str, value: str) -> None:
        self._meaning[name] = value
        if name in self._document:
            self._document[name] = value
            return
        # Before the first table: behind one it would belong to it.
        line = tomlkit.parse(f'{name} = "{value}"\n')
        self._document = tomlkit.parse(f"{tomlkit.dumps(line)}{tomlkit.dumps(self._document)}")

    def _find(self, top: Table, key_id: str) -> tuple[Table, Table]:
        ids = []
        for tenant in top.get("tenants", {}).values():
            for principal in tenant.get("principals", {}).values():
                for key in principal.get("keys", ()):
                    if key["id"] == key_id:
                        if "revoked_at" in key:
                            raise TenantsError(
                                f"{self._path}: key {key_id} has ended already; 'brownout keys add' makes another"
                            )
                        return principal, key
                    ids.append(str(key["id"]))
        near = difflib.get_close_matches(key_id, ids, n=3) or ["'brownout keys list' has them"]
        raise TenantsError(f"{self._path}: there is no key {key_id!r}; {', '.join(near)}")


@contextlib.contextmanager
def edited(path: Path, *, may_be_new: bool = False) -> Iterator[Editing]:
    """Change the file: what was done to it inside the context is written when that ends well.

    Raises:
        TenantsError: it is not in order, or would not be; it is as it was then.
        OSError: it cannot be read or written.
    """
    with path.with_name(path.name + ".lock").open("w") as lock:
        os.fchmod(lock.fileno(), 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            text = path.read_text()
        except FileNotFoundError:
            if not may_be_new:
                raise TenantsError(
                    f"{path}: there is no such file; 'brownout keys add --new' makes it"
                ) from None
            text = f'{_HEAD}salt_secret = "{secrets.token_hex(32)}"\n'
        try:
            editing = Editing(text, path)
        except tomllib.TOMLDecodeError as error:
            raise TenantsError(f"{path}: is not valid TOML ({error}); mend that line") from None
        yield editing
        _replace(path, editing.text())


def _replace(path: Path, text: str) -> None:
    """Put the text in the file's place in one step, on disk when this returns."""
    number, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(number, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _table(within: Table, name: str, *, outer: bool = False) -> Table:
    """Return the table of that name, made if it is not there; an ``outer`` one has no line of its own."""
    if name not in within:
        within[name] = {} if type(within) is dict else tomlkit.table(is_super_table=outer)
    found: Table = within[name]
    return found


def _append(principal: Table, key: Stored) -> None:
    plain = type(principal) is dict
    if "keys" not in principal:
        principal["keys"] = [] if plain else tomlkit.aot()
    if plain or not isinstance(principal["keys"], tomlkit.items.AoT):
        principal["keys"].append(key.fields())
        return
    table = tomlkit.table()
    for name, value in key.fields().items():
        table.add(name, value)
    principal["keys"].append(table)
