"""A client that sends a transfer under one key until it has an answer that is final, as a careful client does."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cluster import public
from tests.fakes.replica import MODEL

TOKENS = 12
_LONGEST_WAIT_S = 0.5
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Final:
    """An answer that is whole and says that it is one."""

    status: int
    body: bytes
    replayed: bool
    tool: str


@dataclass
class Payment:
    """One request. ``key`` is its receiver too, so that the ledger tells whose effect is whose."""

    key: str
    stream: bool
    after: bool
    cut: int = 0
    """Sendings whose connection ended in the middle."""
    refused: list[tuple[int, str]] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        transfer = {"from": "alice", "to": self.key, "amount": "1"}
        call = {"method": "submit_transfer", "params": transfer, "when": "after" if self.after else "before"}
        asked = {"model": MODEL, "prompt": f"pay {self.key}", "max_tokens": TOKENS, "stream": self.stream}
        return asked | {"tool_call": call}

    async def until_final(self, http: aiohttp.ClientSession, *urls: str) -> Final:
        """Send it to each gateway in turn until one gives a final answer."""
        tries = 0
        while True:
            url = urls[tries % len(urls)]
            tries += 1
            answer = await self.once(http, url)
            if answer is not None:
                return answer

    async def once(self, http: aiohttp.ClientSession, url: str) -> Final | None:
        """Send it once; wait as long as is advised when the answer is not final."""
        headers = {public.HEADER_IDEMPOTENCY_KEY: self.key}
        try:
            async with http.post(f"{url}/v1/completions", json=self.body, headers=headers) as response:
                body = await response.read()
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.05)  # nobody is there
            return None
        except (aiohttp.ClientError, OSError):
            self.cut += 1
            return None
        status = response.status
        if status == 200 and (body.endswith(DONE) or not self.stream):
            told = response.headers
            return Final(status, body, public.HEADER_REPLAYED in told, told.get(public.HEADER_TOOL, ""))
        if status == 200:
            assert b'"error"' in body, "a stream ends with its mark, with an error, or is cut"
            self.refused.append((status, "stream"))
            await asyncio.sleep(0.1)
            return None
        code = json.loads(body)["error"]["code"]
        assert status in (409, 502, 503, 504), (status, body)
        assert (
            response.headers.get(public.HEADER_SHOULD_RETRY) != "false" or code != public.ERROR_TOOL_UNKNOWN
        )
        self.refused.append((status, code))
        after_ms = response.headers.get("retry-after-ms")
        wait_s = int(after_ms) / 1000 if after_ms else float(response.headers.get("retry-after", 0.1))
        await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
        return None
