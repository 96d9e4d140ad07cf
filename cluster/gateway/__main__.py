"""``python -m cluster.gateway``: runs the gateway until SIGTERM or SIGINT, then lets calls in flight end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from typing import Final

import uvicorn
from prometheus_client import disable_created_metrics
from starlette.applications import Starlette

from cluster import public
from cluster.gateway.admin import Admin
from cluster.gateway.app import public_app
from cluster.gateway.jobs_service import run_jobs
from cluster.gateway.service import Gateway
from cluster.gateway.state import open_state
from cluster.gateway.store.opening import StoreOpenError, open_store
from cluster.gateway.tenants import Tenants
from cluster.gateway.tenants_file import TenantsError
from cluster.gateway.tokens import load as load_counter
from cluster.gateway.upstream import new_session
from cluster.settings import Settings, SettingsError, current

_LOG = logging.getLogger("cluster.gateway")
_DRAIN_S: Final = 10
"""How long calls in flight may go on after SIGTERM; what is left then is cancelled."""
_KEEP_ALIVE_S: Final = 75
_BACKLOG: Final = 4096


class _Server(uvicorn.Server):
    """Leaves signals to :func:`serve`, which has two servers to end."""

    def capture_signals(self) -> _NoSignals:  # type: ignore[override]
        return _NoSignals()


class _NoSignals:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _server(app: Starlette) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    return _Server(config)


def _listen(host: str, port: int, field: str) -> socket.socket:
    """Return a listening socket.

    Raises:
        SettingsError: the port cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise SettingsError(
            f"cannot listen on {host}:{port} ({error.strerror}); end what holds the port, or set {field} "
            f"(BROWNOUT_{field.upper()}) to another one"
        ) from error
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock


async def serve(settings: Settings) -> None:
    """Run both applications until a signal comes."""
    loop = asyncio.get_running_loop()
    closing = asyncio.Event()
    tenants = Tenants.of(settings)
    try:
        tenants.require()
    except TenantsError as error:
        raise SettingsError(str(error)) from None
    sockets = [
        _listen(settings.bind_host, settings.port_gateway, "port_gateway"),
        _listen(settings.bind_host, settings.port_gateway_admin, "port_gateway_admin"),
    ]
    counter = await asyncio.to_thread(load_counter, settings)
    async with new_session() as session, contextlib.AsyncExitStack() as opened:
        store = await open_store(settings.store, public.default_run_dir(), answer_s=settings.store_answer_s)
        if store is None:
            _LOG.warning("no store (BROWNOUT_STORE=none): nothing is recorded, claimed, limited or kept")
        state = await open_state(settings, store)
        opened.push_async_callback(state.aclose)
        gateway = Gateway(settings, session, counter, state=state)
        servers = [_server(public_app(gateway)), _server(Admin(gateway, closing).app())]

        def close() -> None:
            gateway.draining = True
            closing.set()
            for server in servers:
                server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, close)
        background = [
            asyncio.create_task(gateway.discovery.run()),
            asyncio.create_task(run_jobs(gateway)),
        ]
        gc.freeze()  # what is loaded by now lives as long as the process
        _LOG.info(
            "gateway on %s:%d, admin on port %d, profile %s",
            settings.bind_host,
            settings.port_gateway,
            settings.port_gateway_admin,
            gateway.pipeline.profile,
        )
        try:
            await asyncio.gather(
                *(server.serve(sockets=[sock]) for server, sock in zip(servers, sockets, strict=True))
            )
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)


def main() -> int:
    """Run the gateway; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        settings = current()
        _run(settings)
    except (SettingsError, StoreOpenError) as error:
        print(error, file=sys.stderr)
        return 4
    return 0


def _run(settings: Settings) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(settings))
    else:
        uvloop.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
