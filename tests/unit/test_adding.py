"""docs/adding.md is true: what it says is followed to the letter in a copy of the packages, and the result is used."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding.md"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with every file and line of the page added."""
    place = tmp_path_factory.mktemp("adding")
    for package in ("policies", "cluster", "chaos"):
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    for block in re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text(), re.S):
        first, rest = block.split("\n", 1)
        if match := re.fullmatch(r"# file: (\S+)", first):
            target = place / match[1]
            assert not target.exists()
            target.write_text(rest)
        elif match := re.fullmatch(r'# line: (\S+) after "(.*)"', first):
            registry = place / match[1]
            before = registry.read_text()
            assert before.count(match[2] + "\n") == 1, f"{match[1]} has no single line {match[2]!r}"
            imported, line = rest.splitlines()
            assert imported.startswith("from "), "the page promises one line, with its import"
            future = "from __future__ import annotations\n"
            added = before.replace(match[2] + "\n", f"{match[2]}\n{line}\n")
            registry.write_text(added.replace(future, f"{future}{imported}\n", 1))
        else:
            raise AssertionError(f"a block of the page says neither file nor line: {first}")
    return place


def run(place: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_lists_all_that_was_added(copy: Path) -> None:
    listed = run(copy, "from chaos.cli import main; raise SystemExit(main(['list']))")
    assert "scenario  my_slow_link" in listed
    assert "quick_share >= 0.9" in listed
    assert re.search(r"^faults: .*my_fault", listed, re.M)
    assert re.search(r"^policies: .*my_cap", listed, re.M)


def test_the_added_policy_works_in_the_composed_pipeline(copy: Path) -> None:
    program = """
import asyncio
from policies import profiles
from policies.call import Call
from policies.clock import SystemClock
from policies.fleet import Fleet
from policies.rates import Rates
from policies.work import WorkLedger

running = highest = 0

async def handler(call):
    global running, highest
    running += 1
    highest = max(highest, running)
    for _ in range(3):
        await asyncio.sleep(0)
    running -= 1
    return call.request_id

from policies.my_cap import MyCap
from policies.call import compose

async def main():
    capped = compose([MyCap(2)], handler)
    return await asyncio.gather(*(capped(Call(request_id=str(n))) for n in range(8)))

assert asyncio.run(main()) == [str(n) for n in range(8)]
assert highest == 2, highest
assert "my_cap" in profiles.active_policies("resilient")
assert "my_cap" not in profiles.active_policies("resilient", ["my_cap"])
"""
    run(copy, program)


def test_the_added_fault_shapes_a_real_link_and_takes_it_back(copy: Path) -> None:
    program = """
import asyncio
from types import SimpleNamespace
import aiohttp
from chaos.faults import FAULTS
from chaos.links import LinkFaults
from tests_proxy import serving

async def main():
    async with serving() as url:
        async with aiohttp.ClientSession() as session:
            body = {"name": "replica-0.aaaa", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}
            async with session.post(url + "/proxies", json=body) as made:
                assert made.status == 201, await made.text()
            async def links():
                return [SimpleNamespace(label="replica-0", name="replica-0.aaaa")]
            context = SimpleNamespace(
                admin=SimpleNamespace(links=links), endpoints=SimpleNamespace(toxiproxy_url=url)
            )
            fault = await FAULTS["my_fault"].resolve(context, "replica-0", {})
            assert not (await fault.verify()).ok
            await fault.inject()
            assert (await fault.verify()).ok
            again = FAULTS["my_fault"].restored(context, fault.undo_data())
            await again.revert()
            await again.revert()
            assert not (await fault.verify()).ok

asyncio.run(main())
"""
    (copy / "tests_proxy.py").write_text(
        """
import asyncio, contextlib, sys

@contextlib.asynccontextmanager
async def serving():
    port = FREE_PORT
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cluster.linkproxy", "--host", "127.0.0.1", "--port", str(port)
    )
    try:
        for _ in range(400):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()
""".replace("FREE_PORT", str(free_port()))
    )
    run(copy, program)
