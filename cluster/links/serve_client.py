"""Asks Ray's dashboard for the state of Serve."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from cluster.links.serve_status import ServeStatus, ServeStatusError, parse


class ServeUnreachableError(RuntimeError):
    """The dashboard did not give a usable answer; the text says why."""


class ServeClient:
    """Reads Serve's REST answer.

    Args:
        session: an open session.
        dashboard_url: root URL of Ray's dashboard.
        host: see ``serve_status.parse``.
        token_file: where Ray keeps its token; read anew for each question, for it may come later. Without the
            file no token is sent.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        dashboard_url: str,
        *,
        host: str | None = None,
        token_file: Path | None = None,
        timeout_s: float = 2.0,
    ) -> None:
        self._session = session
        self._url = f"{dashboard_url.rstrip('/')}/api/serve/applications/"
        self._host = host
        self._token_file = token_file if token_file is not None else Path.home() / ".ray" / "auth_token"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def status(self) -> ServeStatus:
        """Return what Serve says now.

        Raises:
            ServeUnreachableError: no answer in time, an error, or an answer that cannot be read.
        """
        headers = {}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with self._session.get(self._url, headers=headers, timeout=self._timeout) as answer:
                body = await answer.read()
                if answer.status in (401, 403):
                    raise ServeUnreachableError(
                        f"{self._url}: status {answer.status}: Ray wants its token; {self._token_file} holds "
                        + ("another one" if token else "none that can be read")
                    )
                if answer.status != 200:
                    text = body[:200].decode(errors="replace").strip()
                    raise ServeUnreachableError(f"{self._url}: status {answer.status}: {text}")
            return parse(body, host=self._host)
        except TimeoutError as error:
            raise ServeUnreachableError(f"{self._url}: no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError, ServeStatusError) as error:
            raise ServeUnreachableError(f"{self._url}: {error}") from error

    def _token(self) -> str:
        try:
            return self._token_file.read_text().strip()
        except OSError:
            return ""
