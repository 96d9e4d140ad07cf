"""The undo log outlives its process, and the lock does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.substrate import SubstrateError
from chaos.undo import UndoLog, run_lock

DIES_WITH_A_FAULT_IN_FORCE = """
import os, signal, sys
from pathlib import Path
from chaos.undo import UndoLog, run_lock
with run_lock(Path(sys.argv[1])):
    UndoLog(Path(sys.argv[1])).add("latency", "local", "tool", {"proxy": "tool"})
    print("in force", flush=True)
    sys.stdin.read()
"""


def test_entries_are_in_force_until_they_are_removed(tmp_path: Path) -> None:
    undo = UndoLog(tmp_path)
    assert undo.entries() == []
    first = undo.add("latency", "local", "tool", {"proxy": "tool"})
    second = undo.add("kill_replica", "local", "replica-1.x", {"replica": {}})
    assert undo.entries() == [first, second]
    undo.remove(first)
    undo.remove(first)
    assert UndoLog(tmp_path).entries() == [second]


def test_a_killed_run_leaves_its_entry_and_frees_its_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIES_WITH_A_FAULT_IN_FORCE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in force\n"
        with pytest.raises(SubstrateError, match=rf"pid {process.pid}"), run_lock(tmp_path):
            pass
        process.kill()
    with run_lock(tmp_path):
        (entry,) = UndoLog(tmp_path).entries()
    assert (entry.kind, entry.target, entry.data) == ("latency", "tool", {"proxy": "tool"})


def test_a_file_that_is_no_entry_is_set_aside_and_kept(tmp_path: Path) -> None:
    undo = UndoLog(tmp_path)
    entry = undo.add("latency", "local", "tool", {})
    (undo.folder / "0-half.json").write_text('{"kind": ')
    assert undo.entries() == [entry]
    assert (undo.folder / "0-half.unreadable").read_text() == '{"kind": '


def test_the_lock_can_be_taken_again_when_it_was_given_back(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        pass
    with run_lock(tmp_path):
        pass
