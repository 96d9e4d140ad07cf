"""Puts the links service together from the settings and serves it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web

from cluster import public
from cluster.links import naming
from cluster.links.book import LinkBook
from cluster.links.controller import Controller
from cluster.links.serve_client import ServeClient
from cluster.links.service import LinksService
from cluster.links.toxiproxy_client import ToxiproxyClient
from cluster.serve_listener import is_loopback
from cluster.settings import Settings


@contextlib.asynccontextmanager
async def serving(settings: Settings, token_file: Path | None = None) -> AsyncIterator[asyncio.Task[None]]:
    """Serve for the length of the block; gives the task that does the work, which ends only by a failure.

    The proxies stay when the service ends: the next one takes them over.

    Raises:
        OSError: ``bind_host:port_links`` cannot be used.
    """
    book = LinkBook(
        client=(settings.port_client, f"{settings.gateway_host}:{settings.port_gateway}"),
        tool_port=settings.port_tool_link,
        ports=naming.Ports(settings.port_replica_links, public.REPLICA_LINK_PORTS),
        version=int(time.time() * 1000),
        store=(settings.port_store_link, settings.store_upstream) if settings.store_upstream else None,
    )
    async with aiohttp.ClientSession() as session:
        host = settings.bind_host if is_loopback(settings.bind_host) else None
        serve = ServeClient(session, settings.dashboard_url, host=host, token_file=token_file)
        toxiproxy = ToxiproxyClient(session, settings.toxiproxy_url)
        controller = Controller(book, serve, toxiproxy, settings.link_listen_host)
        service = LinksService(controller, session, settings.link_connect_host)
        runner = web.AppRunner(
            service.build_app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        work: asyncio.Task[None] | None = None
        try:
            await web.TCPSite(runner, settings.bind_host, settings.port_links).start()
            work = asyncio.create_task(controller.run())
            yield work
        finally:
            if work is not None:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            await runner.cleanup()
