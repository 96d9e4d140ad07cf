"""``python -m cluster.gateway.keys add|list|rotate|revoke|check``: the keys in the tenants file (``brownout keys``).

The secret of a key is printed once, alone on standard output, when it is made; the file gets its digest. A running
gateway looks at the file for each request, so that what is done here holds from the next one on.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

from cluster.gateway.api_keys import ApiKey, new_key
from cluster.gateway.identity import CALLER, ROLES
from cluster.gateway.tenants_edit import Stored, edited
from cluster.gateway.tenants_file import Book, TenantsError, parse
from cluster.settings import SettingsError, current

EXIT_USAGE: Final = 4
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, as 30s, 15m, 12h or 90d")
    return timedelta(seconds=int(found.group(1)) * _UNITS[found.group(2)])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = _Parser(prog="brownout keys", description="The API keys in the tenants file (docs/tenants.md).")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--file", type=Path, help="the tenants file (default: the setting tenants_file)")
        return made

    add = command("add", "Make a key for a principal of a tenant, and print it: this once.")
    add.add_argument("tenant")
    add.add_argument("principal", help="added if the tenant has none of that name")
    add.add_argument("--new", action="store_true", help="add the tenant, and the file, if there is none")
    add.add_argument("--role", action="append", choices=ROLES, help="of a new principal (again for several)")
    add.add_argument("--expires-in", type=_duration, metavar="TIME", help="as 90d; default: it does not end")
    listing = command("list", "List keys and whose they are; never their secrets.")
    listing.add_argument("--json", action="store_true", help="as JSON")
    rotate = command("rotate", "Make a new key in place of one, and print it: this once.")
    rotate.add_argument("key_id")
    rotate.add_argument(
        "--grace",
        type=_duration,
        default=timedelta(0),
        metavar="TIME",
        help="how long the old one holds on, as 1h",
    )
    command("revoke", "End a key: it fails from the next request on.").add_argument("key_id")
    command("check", "See whether the tenants file is in order.")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, or 4 where it could not be done."""
    options = parser().parse_args(arguments)
    try:
        return _run(options, _path(options.file))
    except (TenantsError, SettingsError) as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{error.filename or 'the tenants file'}: {error.strerror}", file=sys.stderr)
    return EXIT_USAGE


def _path(named: Path | None) -> Path:
    if named is None:
        configured = current().tenants_file
        if not configured:
            raise TenantsError(
                "no tenants file is named: set tenants_file (BROWNOUT_TENANTS_FILE), or give --file"
            )
        named = Path(configured)
    return named.expanduser().resolve()


def _run(options: argparse.Namespace, path: Path) -> int:
    now = datetime.now(UTC).replace(microsecond=0)
    match options.command:
        case "add":
            ends = None if options.expires_in is None else now + options.expires_in
            key = new_key()
            stored = Stored(key.id, key.digest, now, ends)
            with edited(path, may_be_new=options.new) as editing:
                editing.add(
                    options.tenant, options.principal, options.role or [CALLER], stored, new=options.new
                )
            _hand_over(key, f"added to {options.tenant}/{options.principal}")
        case "rotate":
            key = new_key()
            with edited(path) as editing:
                editing.rotate(options.key_id, Stored(key.id, key.digest, now), now + options.grace)
            held = f"holds on for {options.grace}" if options.grace else "has ended"
            _hand_over(key, f"in place of {options.key_id}, which {held}")
        case "revoke":
            with edited(path) as editing:
                editing.revoke(options.key_id, now)
            print(f"key {options.key_id} has ended", file=sys.stderr)
        case "list":
            _list(path, now, as_json=options.json)
        case _:
            _check(path)
    return 0


def _hand_over(key: ApiKey, what: str) -> None:
    print(f"key {key.id} {what}; keep it now, it is not shown again:", file=sys.stderr)
    print(key.text, flush=True)


def _list(path: Path, now: datetime, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "key": key.id,
            "tenant": tenant,
            "principal": principal,
            "roles": list(who.roles),
            "state": key.state(now),
            "created_at": _when(key.created_at),
            "expires_at": _when(key.expires_at),
        }
        for tenant, says in parse(path.read_text(), path).tenants.items()
        for principal, who in says.principals.items()
        for key in who.keys
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        roles, ends = "+".join(row["roles"]), row["expires_at"] or "never"
        print(f"{row['key']}  {row['state']:8}  {row['tenant']}/{row['principal']}  {roles}  ends {ends}")


def _when(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _check(path: Path) -> None:
    table = parse(path.read_text(), path)
    keys = len(Book(table, ""))
    if path.stat().st_mode & 0o077:
        print(f"{path}: others can read it; 'chmod 600' it", file=sys.stderr)
    print(
        f"{path}: in order; {len(table.tenants)} tenants, {keys} keys, {len(table.classes)} classes of work"
    )


if __name__ == "__main__":
    sys.exit(main())
