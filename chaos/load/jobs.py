"""A call that was accepted for later: its job is asked for until it is over, as a client that wants its result does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from chaos.load.answer import Answer

LOOK_EVERY_S: Final = 0.5
OVER: Final = ("done", "failed", "cancelled", "expired")
"""States in which a job stays."""


async def job_state(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return a job's state and the reason for it; ``unknown`` when nobody answers, ``missing`` when it is not there."""
    try:
        async with session.get(url, headers=dict(headers)) as response:
            raw = await response.read()
            if response.status == 404:
                return "missing", raw[:200].decode(errors="replace")
            if response.status != 200:
                return "unknown", f"status {response.status}"
            body = json.loads(raw)
            return str(body["status"]), str(body.get("reason") or "")
    except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
        return "unknown", f"{type(error).__name__}: {error}"


async def job_result(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], answer: Answer
) -> bool:
    """Take a finished job's result into ``answer``; False when it could not be had just now."""
    try:
        async with session.get(f"{url}/result", headers=dict(headers)) as response:
            raw = await response.read()
            if response.status in (404, 409, 429, 503):
                return False
            answer.result(response.status, raw)
            return True
    except (aiohttp.ClientError, OSError):
        return False


async def follow(
    session: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    answer: Answer,
    clock: Callable[[], float] = time.time,
) -> None:
    """Ask for the job until it is over and its result is here; cut off by the caller's deadline."""
    while True:
        answer.job_state, answer.job_reason = await job_state(session, url, headers)
        if answer.job_state in OVER[1:]:
            return
        if answer.job_state == OVER[0] and await job_result(session, url, headers, answer):
            answer.result_at = clock()
            return
        await asyncio.sleep(LOOK_EVERY_S)
