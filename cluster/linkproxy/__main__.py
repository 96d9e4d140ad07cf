"""Command line of the embedded link proxy."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import signal
import sys
from typing import Final

from cluster import public
from cluster.linkproxy.server import serving

_EXIT_COULD_NOT: Final = 3


async def _serve(host: str, port: int, seed: int | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(host, port, seed) as url:
        print(f"link proxy listens on {url}", flush=True)
        await stop.wait()


def main() -> int:
    """Serve until SIGTERM or SIGINT; 3 when the address cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m cluster.linkproxy",
        description="Links that can be slowed, cut and reset (Toxiproxy's API).",
    )
    parser.add_argument("--host", default="127.0.0.1", help="host of the API (default: %(default)s)")
    parser.add_argument(
        "--port", default=public.PORT_TOXIPROXY, type=int, help="port of the API (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="make toxicity and jitter repeatable")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with contextlib.suppress(OSError, ValueError):  # two sockets a connection
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        asyncio.run(_serve(options.host, options.port, options.seed))
    except (OSError, OverflowError) as error:
        print(
            f"link proxy: cannot listen on {options.host}:{options.port}: {error}; "
            "end what holds it, or give another --port",
            file=sys.stderr,
        )
        return _EXIT_COULD_NOT
    return 0


if __name__ == "__main__":
    sys.exit(main())
