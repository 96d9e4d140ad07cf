"""``brownout audit`` on a store that is written to: what it finds, what it says, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, delete, func, select, update

from cluster.gateway.audit import Audit, Closing, Opening
from cluster.gateway.audit_cli import main
from cluster.gateway.audit_record import Record
from cluster.gateway.store.opening import open_store
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import AUDIT
from tests.fakes.audit_records import BEGAN_AT, chain_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def opened(path: Path) -> Store:
    store = await open_store(f"sqlite:///{path}", path.parent)
    assert store is not None
    return store


def fill(path: Path, *chains: Iterable[Record]) -> None:
    async def write() -> None:
        store = await opened(path)
        for records in chains:
            rows = [record.row() for record in records]
            await store.write(lambda connection, rows=rows: connection.execute(AUDIT.insert(), rows).rowcount)
        await store.close()

    asyncio.run(write())


def change(path: Path, *statements: object) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]
    engine.dispose()


def count(path: Path) -> int:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        found = connection.execute(select(func.count()).select_from(AUDIT)).scalar_one()
    engine.dispose()
    return found


class Ran:
    def __init__(self, capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> None:
        self.code = main([*arguments[:1], "--store", f"sqlite:///{path}", *arguments[1:]])
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str], path: Path) -> Iterator[object]:
    return lambda *arguments: Ran(capsys, path, *arguments)


def test_a_whole_audit_is_fine_and_tells_what_was_never_closed(audit, path):
    fill(path, chain_of(50, unclosed=(9,)), chain_of(5, name="chain-b"))
    ran = audit("verify")
    assert ran.code == 0
    assert "outcome unknown: request r9" in ran.out
    assert "whole: 111 records in 2 chains; 0 problems, 1 outcomes unknown" in ran.out
    told = json.loads(audit("verify", "--json").out)
    assert (told["status"], told["records"], len(told["unclosed"])) == ("fine", 111, 1)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (update(AUDIT).where(AUDIT.c.seq == 7).values(request_id="r0"), "altered: chain chain-a, record 7"),
        (delete(AUDIT).where(AUDIT.c.seq == 7), "missing: chain chain-a, record 7: 1 record before record 8"),
        (delete(AUDIT).where(AUDIT.c.seq < 3), "missing: chain chain-a, record 0: 3 records before record 3"),
    ],
)
def test_what_was_changed_is_told_and_ends_with_one(audit, path, statement, said):
    fill(path, chain_of(50))
    change(path, statement)
    ran = audit("verify")
    assert ran.code == 1
    assert said in ran.out
    assert "BROKEN" in ran.out


def test_two_records_that_changed_places_are_told(audit, path):
    fill(path, chain_of(50))
    change(
        path,
        update(AUDIT).where(AUDIT.c.seq == 7).values(seq=-1),
        update(AUDIT).where(AUDIT.c.seq == 8).values(seq=7),
        update(AUDIT).where(AUDIT.c.seq == -1).values(seq=8),
    )
    ran = audit("verify")
    assert ran.code == 1
    assert "reordered: chain chain-a, record 7 of request r3: was written as record 8" in ran.out


def test_an_end_that_was_cut_off_is_found_with_the_heads(audit, path, tmp_path):
    fill(path, chain_of(50), chain_of(5, name="chain-b"))
    heads = str(tmp_path / "heads.json")
    assert audit("heads", "--out", heads).code == 0
    assert audit("verify", "--heads", heads).code == 0
    change(path, delete(AUDIT).where(AUDIT.c.seq > 90))
    assert audit("verify").code == 0
    ran = audit("verify", "--heads", heads)
    assert ran.code == 1
    assert "the end is cut off" in ran.out


def test_no_record_at_all_is_no_proof_of_anything(audit, path):
    fill(path)
    assert audit("verify").code == 2


def test_wrong_usage_and_a_store_that_is_not_there_have_codes_of_their_own(audit, path, tmp_path):
    assert audit("verify").code == 3, "there is no such file"
    assert not path.exists(), "looking must not make one"
    fill(path, chain_of(2))
    other = tmp_path / "other.json"
    other.write_text("[]")
    ran = audit("verify", "--heads", str(other))
    assert (ran.code, "was not written by" in ran.err) == (4, True)
    assert audit("verify", "--heads", str(tmp_path / "none.json")).code == 3
    assert main(["verify", "--store", "none"]) == 4
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--since", "yesterday"])
    assert ended.value.code == 4


def test_requests_are_listed_and_shown(audit, path):
    fill(path, chain_of(10, unclosed=(4,)))
    listed = audit("list", "--limit", "3").out.splitlines()
    assert [line.split("  ")[1] for line in listed] == ["r7", "r8", "r9"]
    assert listed[0].endswith("t/p  POST /v1/chat/completions  ok 200")
    assert audit("list", "--unknown").out.count("outcome unknown") == 1
    assert audit("list", "--tenant", "nobody").out == ""
    since = audit("list", "--since", "2023-11-14T22:13:28")
    assert [line.split("  ")[1] for line in since.out.splitlines()] == ["r8", "r9"]
    shown = audit("show", "r5")
    assert next(line for line in shown.out.splitlines() if "chain" in line).endswith(
        "open  chain chain-a, record 10"
    )
    assert "outcome: ok" in shown.out
    assert [one["kind"] for one in json.loads(audit("show", "r5", "--json").out)] == ["open", "close"]
    assert audit("show", "nobody").code == 2


def test_chains_that_ended_before_can_be_left_out(audit, path):
    fill(path, chain_of(10), chain_of(100, name="chain-b"))
    change(path, delete(AUDIT).where(AUDIT.c.seq == 2, AUDIT.c.chain == "chain-a"))
    assert audit("verify").code == 1
    ran = audit("verify", "--since", "2023-11-14T22:14:00")
    assert ran.code == 0
    assert "1 chains left out" in ran.out


def test_pruning_removes_what_is_old_and_closed_and_the_rest_verifies(audit, path, tmp_path):
    fill(path, chain_of(50, unclosed=(30,)))
    heads = str(tmp_path / "heads.json")
    audit("heads", "--out", heads)
    before = ("--before", "2023-11-14T22:13:40")  # 20 s after the first
    assert audit("prune", *before, "--dry-run").out.startswith("41 records would be removed")
    assert count(path) == 100
    assert audit("prune", *before).out.startswith("41 records removed from 1 chains")
    assert count(path) == 60
    assert audit("verify").code == 0
    assert audit("verify", "--heads", heads).code == 0
    assert audit("prune", *before).out.startswith("0 records removed")
    again = audit("prune", "--before", "2100-01-01")
    assert count(path) == 40, "nothing from the request on that was never closed"
    assert again.code == 0
    audit("prune", "--before", "2100-01-01", "--with-unknown")
    assert count(path) == 3, "the head that is left, and the last request"
    ran = audit("verify", "--heads", heads)
    assert ran.code == 0
    assert "0 outcomes unknown" in ran.out
    left = json.loads(audit("show", "", "--json").out)[0]["body"]["pruned"]
    assert (left["seq"], left["records"], left["unknown"]) == (97, 98, 1)


def test_heads_that_were_pruned_since_are_told_as_not_compared(audit, path, tmp_path):
    fill(path, chain_of(50))
    heads = str(tmp_path / "heads.json")
    audit("heads", "--out", heads)
    document = json.loads(Path(heads).read_text())
    document["chains"][0]["seq"] = 5
    Path(heads).write_text(json.dumps(document))
    assert audit("verify", "--heads", heads).code == 1, "that was not record 5"
    audit("prune", "--before", "2023-11-14T22:13:40")
    ran = audit("verify", "--heads", heads)
    assert ran.code == 2
    assert "has been pruned through record 40, past the head" in ran.out


def test_an_audit_that_is_not_whole_is_not_pruned(audit, path):
    fill(path, chain_of(50))
    change(path, delete(AUDIT).where(AUDIT.c.seq == 60))
    ran = audit("prune", "--before", "2023-11-14T22:13:40")
    assert ran.code == 1
    assert "what is left is evidence" in ran.err
    assert count(path) == 100


async def test_a_gateway_goes_on_with_a_chain_that_was_pruned(path, tmp_path):
    store = await opened(path)
    try:
        log = Audit(store, now=lambda: BEGAN_AT)
        for number in range(5):
            log.close(await log.open(Opening(f"r{number}")), Closing("ok", 200))
        last = await log.open(Opening("last"))
        command = ["prune", "--before", "2030-01-01", "--store", f"sqlite:///{path}"]
        pruned = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cluster.gateway.audit_cli", *command, stdout=subprocess.PIPE
        )
        said, _ = await pruned.communicate()
        assert said.startswith(b"11 records removed")
        log.close(last, Closing("ok", 200))
        await log.aclose()
    finally:
        await store.close()
    assert await asyncio.to_thread(main, ["verify", "--store", f"sqlite:///{path}"]) == 0


def test_a_hundred_thousand_records_are_verified_with_progress(path):
    fill(path, chain_of(50_000, unclosed=(49_999,)))
    command = [sys.executable, "-m", "chaos", "audit", "verify", "--store", f"sqlite:///{path}", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["records"] == 100_000
    assert [one["request_id"] for one in told["unclosed"]] == ["r49999"]
    assert told["seconds"] < 1.5 or "of about 100000 records" in ran.stderr
