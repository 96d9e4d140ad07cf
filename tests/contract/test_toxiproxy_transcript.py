"""Replays what was recorded from the real Toxiproxy: the embedded server must answer every call the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.toxiproxy import under_test
from tests.ports import free_ports

_PORT = re.compile(r"127\.0\.0\.1:(220\d\d)")
_WORDING = ("bad request body:", "listen tcp")
"""What follows these in an error may be worded otherwise."""


def _recorded_calls(shared: Path) -> list[dict[str, Any]]:
    """Return the recorded calls, moved to ports that are free here."""
    path = shared / "toxiproxy" / "transcript.json"
    if not path.is_file():
        pytest.skip(f"{path} is absent (BROWNOUT_SHARED names another place)")
    text = json.dumps(json.loads(path.read_text())["api"])
    recorded = sorted(set(_PORT.findall(text)))
    moved = dict(zip(recorded, free_ports(len(recorded)), strict=True))
    calls: list[dict[str, Any]] = json.loads(
        _PORT.sub(lambda found: f"127.0.0.1:{moved[found.group(1)]}", text)
    )
    return calls


def _comparable(value: Any) -> Any:
    """Take out what differs between two runs of the same server: ports it chose, versions, wording."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _comparable(item) for key, item in value.items() if key != "Logger"}
    if kept.get("name") == "auto":
        kept["listen"] = "chosen by the system"
    if "version" in kept:
        kept["version"] = "any"
    error = kept.get("error")
    for start in _WORDING:
        if isinstance(error, str) and error.startswith(start):
            kept["error"] = start
    return kept


async def _replay(session: aiohttp.ClientSession, url: str, call: dict[str, Any]) -> tuple[Any, ...]:
    body = call["body"]
    headers = {} if call["user_agent"] is None else {"User-Agent": call["user_agent"]}
    data = body if body is None or isinstance(body, str) else json.dumps(body)
    skip = () if data is None else ("Content-Type",)
    async with session.request(
        call["method"], url + call["path"], data=data, headers=headers, skip_auto_headers=skip
    ) as answer:
        text = await answer.text()
        kind = answer.headers.get("Content-Type")
    is_text = isinstance(call["response"], str)
    return answer.status, kind, text if is_text else _comparable(json.loads(text))


async def test_every_recorded_api_call_is_answered_the_same(shared: Path) -> None:
    calls = _recorded_calls(shared)
    assert len(calls) >= 57
    differing = []
    async with under_test() as url, aiohttp.ClientSession() as session:
        for call in calls:
            expected = (call["status"], call["content_type"], _comparable(call["response"]))
            answered = await _replay(session, url, call)
            if answered != expected:
                differing.append(f"{call['note']}:\n  recorded {expected}\n  answered {answered}")
    assert not differing, "\n".join(differing)
