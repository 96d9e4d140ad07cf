"""Command line of the links service: everything it needs is in the settings."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from typing import Final

from cluster.links.server import serving
from cluster.settings import Settings, SettingsError, load

_EXIT_COULD_NOT: Final = 3
_EXIT_USAGE: Final = 4


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(settings) as work:
        print(f"links service listens on {settings.bind_host}:{settings.port_links}", flush=True)
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if work.done():
            work.result()  # raises what ended it


def main() -> int:
    """Serve until SIGTERM or SIGINT; 3 when the address cannot be used, 4 for bad settings."""
    argparse.ArgumentParser(
        prog="python -m cluster.links",
        description="Keeps one link for every replica that Ray Serve runs. Settings: BROWNOUT_* or brownout.toml.",
    ).parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = load()
    except SettingsError as error:
        print(f"links service: {error}", file=sys.stderr)
        return _EXIT_USAGE
    try:
        asyncio.run(_serve(settings))
    except OSError as error:
        print(
            f"links service: cannot listen on {settings.bind_host}:{settings.port_links}: {error}; "
            "end what holds it, or set BROWNOUT_PORT_LINKS",
            file=sys.stderr,
        )
        return _EXIT_COULD_NOT
    return 0


if __name__ == "__main__":
    sys.exit(main())
