"""One replica: vLLM's own server application in a Ray Serve replica of its own port.

Ray Serve owns the process (placement, health, restart), vLLM owns the API. Nothing of ours stands in the
data path, so what experiments measure is the engine and not a wrapper.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, Final

from ray import serve

from cluster import engine, serve_listener
from cluster.served import Size
from cluster.settings import Settings

WATCH_PERIOD_S: Final = 0.2
LAST_WORDS_S: Final = 0.3
"""Between the death of the engine and the end of the replica: calls in flight get vLLM's error in it."""

_log = logging.getLogger("ray.serve")


@serve.ingress()
class Replica:
    """What applications ``llm`` and ``llm-small`` run; ``settings`` are the fields of Settings as JSON values."""

    async def __init__(self, settings: dict[str, Any], size: Size = "full") -> None:  # type: ignore[misc]  # Serve awaits it
        configured = Settings(**settings)
        serve_listener.keep_on(configured.bind_host)
        self._engine, self._app = await engine.start(configured, size)
        self._watch = asyncio.create_task(self._end_with_engine(), name="watch-engine")

    def __serve_build_asgi_app__(self) -> Any:
        return self._app

    async def check_health(self) -> None:
        """Ask the engine.

        Raises:
            RuntimeError: it is dead. vLLM's own exception must not leave this process: Serve's controller would
                import vLLM to read it, and replace nobody for the six seconds that this takes.
        """
        try:
            await self._engine.check_health()
        except Exception as error:
            raise RuntimeError(f"the engine is dead: {error}") from None

    async def _end_with_engine(self) -> None:
        """End this process soon after its engine died.

        Serve acts only on the third failed health check, and lets connections linger. The end of the process
        cuts every stream that is still open and makes Serve start the replacement at once.
        """
        while not self._engine.errored:  # noqa: ASYNC110 - vLLM sets a flag and offers no event
            await asyncio.sleep(WATCH_PERIOD_S)
        _log.error("the engine is dead: this replica ends")
        await asyncio.sleep(LAST_WORDS_S)
        os._exit(1)

    def __del__(self) -> None:
        if hasattr(self, "_watch"):
            self._watch.cancel()
            self._engine.shutdown()
