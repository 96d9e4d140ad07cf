"""``python -m cluster.gateway.audit_cli verify|list|show|heads|prune``: reads the audit (``brownout audit``).

It works on the store while gateways write to it. Exit codes: 0 all is whole, 1 something was changed, 2 nothing can be
said, 3 the store cannot be read, 4 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from cluster import public
from cluster.gateway.audit_heads import HeadsError
from cluster.gateway.audit_reports import run_heads, run_list, run_prune, run_show, run_verify
from cluster.gateway.store.address import parse_address
from cluster.gateway.store.opening import StoreOpenError, open_store
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.settings import SettingsError, current

EXIT_CANNOT_READ: Final = 3
EXIT_USAGE: Final = 4
_ANSWER_S: Final = 60.0
_WAIT_S: Final = 5.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


class UsageError(ValueError):
    """What was asked for cannot be meant; the text says why."""


def _time(text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time, as 2026-11-30 or 2026-11-30T12:00:00 (UTC unless it says otherwise)"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of at least 1")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = _Parser(prog="brownout audit", description="The record of who asked for what (docs/audit.md).")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--store", help="as the setting 'store', which is the default")
        made.add_argument("--json", action="store_true", help="as JSON")
        return made

    verify = command("verify", "Find what was altered, removed or reordered, and what was never closed.")
    verify.add_argument("--heads", type=Path, metavar="FILE", help="what 'heads --out' wrote earlier")
    verify.add_argument("--since", type=_time, metavar="TIME", help="leave out chains that ended before")
    listing = command("list", "List requests, the newest of each process last.")
    listing.add_argument("--since", type=_time, metavar="TIME", help="only those that arrived from then on")
    listing.add_argument("--tenant", help="only those of this tenant")
    listing.add_argument("--unknown", action="store_true", help="only those that were never closed")
    listing.add_argument(
        "--limit", type=_count, default=50, metavar="N", help="at most the last N (default 50)"
    )
    command("show", "Show all that is recorded of a request.").add_argument("request_id")
    heads = command("heads", "Tell where each chain ends, to be kept where nobody can change it.")
    heads.add_argument("--out", type=Path, metavar="FILE", help="write it there for 'verify --heads'")
    prune = command("prune", "Remove old records whose requests are closed; what is left still verifies.")
    prune.add_argument("--before", type=_time, required=True, metavar="TIME", help="records older than this")
    prune.add_argument("--with-unknown", action="store_true", help="those too that were never closed")
    prune.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = parser().parse_args(arguments)
    try:
        setting = options.store or current().store
        _require_there(setting)
        return asyncio.run(_run(options, setting))
    except (StoreUnavailable, StoreOpenError, OSError) as error:
        print(f"brownout audit: cannot read: {error}", file=sys.stderr)
        return EXIT_CANNOT_READ
    except (SettingsError, UsageError, HeadsError) as error:
        print(f"brownout audit: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("brownout audit: interrupted", file=sys.stderr)
        return 130


def _require_there(setting: str) -> None:
    """See that there is something to read: a file that is not there must not be made by looking at it.

    Raises:
        UsageError: the setting names no store.
        StoreOpenError: there is no such file.
    """
    try:
        address = parse_address(setting, public.default_run_dir())
    except ValueError as error:
        raise UsageError(f"store: {error}") from None
    if address.kind == "none":
        raise UsageError(
            "the gateway is set to run without a store, so there is no audit; name one with --store"
        )
    if address.path is not None and not address.path.is_file():
        raise StoreOpenError(f"there is no {address.path}; name the store with --store")


async def _run(options: argparse.Namespace, setting: str) -> int:
    store = await open_store(setting, public.default_run_dir(), answer_s=_ANSWER_S, wait_s=_WAIT_S)
    assert store is not None
    try:
        return await _command(options, store)
    finally:
        await store.close()


async def _command(options: argparse.Namespace, store: Store) -> int:
    match options.command:
        case "verify":
            return await run_verify(store, heads=options.heads, since=options.since, as_json=options.json)
        case "list":
            return await run_list(
                store,
                since=options.since,
                tenant=options.tenant,
                unknown=options.unknown,
                limit=options.limit,
                as_json=options.json,
            )
        case "show":
            return await run_show(store, options.request_id, as_json=options.json)
        case "heads":
            return await run_heads(store, out=options.out, as_json=options.json)
        case _:
            return await run_prune(
                store,
                before=options.before,
                with_unknown=options.with_unknown,
                dry_run=options.dry_run,
                by=getpass.getuser(),
                as_json=options.json,
            )


if __name__ == "__main__":
    sys.exit(main())
