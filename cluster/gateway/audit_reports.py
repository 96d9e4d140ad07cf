"""What each command of ``brownout audit`` does and prints; the parser and the exit codes are in ``audit_cli.py``."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from cluster.gateway.audit_heads import as_document, read_heads, write_heads
from cluster.gateway.audit_prune import PruneConflict, all_prunable, prune_chain
from cluster.gateway.audit_reading import Found, ends, of_request, records_of, verify
from cluster.gateway.audit_record import CLOSE, OPEN, Record, body_of, time_of
from cluster.gateway.store.store import Store

FINE: Final = 0
BROKEN: Final = 1
INCONCLUSIVE: Final = 2
_SHOWN: Final = 50
"""Problems and unclosed requests that are printed one by one; JSON has them all."""
_TELL_EVERY_S: Final = 1.0
_JUST_NOW_S: Final = 60.0


async def run_verify(store: Store, *, heads: Path | None, since: float | None, as_json: bool) -> int:
    """Check every chain and tell what was found."""
    known = {} if heads is None else read_heads(heads)
    found = await verify(store, heads=known, since=since, progress=telling(sys.stderr))
    code = _code(found)
    if as_json:
        print(json.dumps({"status": ("fine", "broken", "inconclusive")[code], **asdict(found)}))
        return code
    for problem in found.problems[:_SHOWN]:
        who = f" of request {problem.request_id}" if problem.request_id else ""
        print(f"{problem.kind}: chain {problem.chain}, record {problem.seq}{who}: {problem.text}")
    _more(len(found.problems), "problems")
    now = time.time()
    for one in found.unclosed[:_SHOWN]:
        just = " (or still under way)" if now - one.at < _JUST_NOW_S else ""
        print(f"outcome unknown{just}: request {one.request_id}, opened {stamp(one.at)}, record {one.seq}")
    _more(len(found.unclosed), "requests whose outcome is unknown")
    for text in found.untold:
        print(f"not compared: {text}")
    rate = found.records / max(found.seconds, 1e-9)
    left_out = f", {found.skipped} chains left out" if found.skipped else ""
    print(
        f"{('whole', 'BROKEN', 'nothing can be said')[code]}: {found.records} records in {found.chains} chains"
        f"{left_out}; {len(found.problems)} problems, {len(found.unclosed)} outcomes unknown "
        f"({found.seconds:.1f} s, {rate:.0f} records/s)"
    )
    return code


def _code(found: Found) -> int:
    if found.problems:
        return BROKEN
    return INCONCLUSIVE if found.untold or not (found.records or found.skipped) else FINE


def _more(count: int, what: str) -> None:
    if count > _SHOWN:
        print(f"... {count - _SHOWN} more {what}; --json has them all")


@dataclass(slots=True)
class _Line:
    """A request in a list."""

    opened: Record
    closed: Record | None = None

    def text(self) -> str:
        asked, ended = body_of(self.opened), {} if self.closed is None else body_of(self.closed)
        who = f"{asked.get('tenant') or '-'}/{asked.get('principal') or '-'}"
        what = f"{asked.get('method', '')} {asked.get('path', '')}"
        how = (
            "outcome unknown" if self.closed is None else f"{ended.get('outcome')} {ended.get('status', '')}"
        )
        why = f" ({ended['reason']})" if ended.get("reason") else ""
        return f"{stamp(time_of(self.opened))}  {self.opened.request_id}  {who}  {what}  {how.strip()}{why}"

    def as_json(self) -> dict[str, Any]:
        closed = None if self.closed is None else body_of(self.closed)
        return {"request_id": self.opened.request_id, "opened": body_of(self.opened), "closed": closed}


async def run_list(
    store: Store, *, since: float | None, tenant: str | None, unknown: bool, limit: int, as_json: bool
) -> int:
    """List requests."""
    wanted: deque[_Line] = deque(maxlen=limit)
    under_way: dict[tuple[str, int], _Line] = {}
    for end in await store.read(ends):
        async for record in records_of(store, end):
            if record.kind == OPEN:
                line = under_way[end.chain, record.seq] = _Line(record)
                if not unknown and _matches(line, since, tenant):
                    wanted.append(line)
            elif record.kind == CLOSE:
                body = body_of(record)
                closed = under_way.pop((body.get("chain", end.chain), body.get("opened", -1)), None)
                if closed is not None:
                    closed.closed = record
    if unknown:
        wanted.extend(line for line in under_way.values() if _matches(line, since, tenant))
    for line in wanted:
        print(json.dumps(line.as_json()) if as_json else line.text())
    return FINE


def _matches(line: _Line, since: float | None, tenant: str | None) -> bool:
    return (since is None or time_of(line.opened) >= since) and (
        tenant is None or body_of(line.opened).get("tenant") == tenant
    )


async def run_show(store: Store, request_id: str, *, as_json: bool) -> int:
    """Show the records of a request."""
    records = await store.read(of_request(request_id))
    if as_json:
        print(json.dumps([{**record.row(), "body": body_of(record)} for record in records]))
    for record in [] if as_json else records:
        print(f"{stamp(time_of(record))}  {record.kind}  chain {record.chain}, record {record.seq}")
        print("\n".join(f"  {key}: {_plain(value)}" for key, value in body_of(record).items() if key != "at"))
    if not records:
        print(f"no request {request_id!r} is recorded", file=sys.stderr)
    return FINE if records else INCONCLUSIVE


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


async def run_heads(store: Store, *, out: Path | None, as_json: bool) -> int:
    """Tell where each chain ends."""
    document = as_document(await store.read(ends), time.time())
    if out is not None:
        write_heads(out, document)
    if as_json:
        print(json.dumps(document))
        return FINE
    for one in document["chains"]:
        print(f"{one['chain']}  {one['seq']}  {one['digest']}")
    if out is not None:
        print(f"written to {out}: keep it where who can change the store cannot", file=sys.stderr)
    return FINE


async def run_prune(
    store: Store, *, before: float, with_unknown: bool, dry_run: bool, by: str, as_json: bool
) -> int:
    """Remove old beginnings of chains that are whole; of an audit that is not, remove nothing."""
    checked = await verify(store, progress=telling(sys.stderr))
    if checked.problems:
        print(
            f"nothing is removed: {len(checked.problems)} problems were found, and what is left is evidence; "
            f"'brownout audit verify' tells them",
            file=sys.stderr,
        )
        return BROKEN
    found = await all_prunable(store, before, with_unknown=with_unknown)
    conflicts = 0
    for one in [] if dry_run else found:
        try:
            await prune_chain(store, one, by)
        except PruneConflict as error:
            conflicts += 1
            print(error, file=sys.stderr)
    done = {
        "records": sum(one.records for one in found),
        "unknown": sum(one.unknown for one in found),
        "chains": [{"chain": one.last.chain, "through": one.last.seq} for one in found],
        "dry_run": dry_run,
    }
    if as_json:
        print(json.dumps(done))
    else:
        verb = "would be removed" if dry_run else "removed"
        print(f"{done['records']} records {verb} from {len(found)} chains, before {stamp(before)}")
    return INCONCLUSIVE if conflicts else FINE


def stamp(at: float) -> str:
    """Return a time as people read it."""
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def telling(stream: TextIO) -> Callable[[int, int], None]:
    """Return what tells of progress, not more often than each second."""
    last = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _TELL_EVERY_S:
            last = now
            share = 100 * done // max(1, of)
            print(f"{done} of about {of} records ({share} %)", file=stream, flush=True)

    return tell
