"""The HTTP side of the links service: the list for the gateway, metrics of replicas, discovery for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, get_args

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from cluster.links.controller import Controller
from cluster.links.records import Kind, Link
from cluster.public import KIND_REPLICA, KIND_REPLICA_SMALL, SMALL_PATH

LONGEST_WAIT_S: Final = 30.0
_REPLICA_METRICS_S: Final = 0.5
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class LinksService:
    """Routes of the service.

    Args:
        connect_host: host under which the gateway reaches the link proxy.
        session: for the metrics of replicas.
    """

    def __init__(self, controller: Controller, session: aiohttp.ClientSession, connect_host: str) -> None:
        self._controller = controller
        self._session = session
        self._connect_host = connect_host
        self._registry = CollectorRegistry()
        self._registry.register(_LinkMetrics(controller))

    def build_app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/links", self._links),
                web.get("/replicas/{link}/metrics", self._replica_metrics),
                web.get("/sd", self._discovery),
                web.get("/healthz", self._health),
                web.get("/metrics", self._metrics),
            ]
        )
        return app

    async def _links(self, request: web.Request) -> web.Response:
        """Answer the list, with ``after`` and ``wait_s`` as soon as it has another version than ``after``.

        A version that is not the current one is answered at once, also a greater one: it is of an earlier run.
        Before the list rests on an answer of both Serve and the link proxy the status is 503, so that a gateway
        keeps what it has.
        """
        try:
            after = _number(request, "after")
            wait_s = _number(request, "wait_s")
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        book = self._controller.book
        if after is not None:
            longest = LONGEST_WAIT_S if wait_s is None else min(max(wait_s, 0.0), LONGEST_WAIT_S)
            await self._controller.wait_for_change(int(after), longest)
        if not book.ready:
            reasons = [
                text for text in (self._controller.serve_error, self._controller.toxiproxy_error) if text
            ]
            return web.json_response({"error": "no list yet: " + "; ".join(reasons)}, status=503)
        return web.json_response(
            {"version": book.version, "links": [self._json(link) for link in book.links]}
        )

    async def _replica_metrics(self, request: web.Request) -> web.Response:
        """Fetch ``/metrics`` of a replica past its link, so that a toxic there does not blind the observer."""
        wanted = request.match_info["link"]
        link = next((link for link in self._replicas() if wanted in (link.name, link.label)), None)
        if link is None:
            known = ", ".join(link.name for link in self._replicas()) or "none"
            return web.json_response({"error": f"no replica link {wanted!r}; there are: {known}"}, status=404)
        timeout = aiohttp.ClientTimeout(total=_REPLICA_METRICS_S)
        try:
            async with self._session.get(
                f"http://{link.upstream}{_metrics_path(link)}", timeout=timeout
            ) as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise aiohttp.ClientError(f"status {answer.status}")
        except TimeoutError:
            return web.json_response(
                {"error": f"{link.name}: {link.upstream} gave no metrics within {_REPLICA_METRICS_S} s"},
                status=504,
            )
        except (aiohttp.ClientError, OSError) as error:
            return web.json_response({"error": f"{link.name}: {link.upstream}: {error}"}, status=502)
        return web.Response(body=text, headers=_PROMETHEUS)

    async def _discovery(self, request: web.Request) -> web.Response:
        """Answer Prometheus's HTTP service discovery: the replicas themselves, not their links."""
        groups = [
            {
                "targets": [link.upstream],
                "labels": {"__metrics_path__": _metrics_path(link), "replica": link.label, "link": link.name},
            }
            for link in self._replicas()
        ]
        return web.json_response(groups)

    async def _health(self, request: web.Request) -> web.Response:
        """Answer 200 while the service works, also when Serve or the link proxy is away: it says which."""
        controller = self._controller
        away = [text for text in (controller.serve_error, controller.toxiproxy_error) if text]
        problems = [*away, *controller.book.problems]
        return web.json_response(
            {
                "status": "degraded" if problems else "ok",
                "problems": problems,
                "ready": controller.book.ready,
                "version": controller.book.version,
                "links": len(controller.book.links),
                "pending_removals": controller.book.pending_removals,
            }
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers=_PROMETHEUS)

    def _replicas(self) -> list[Link]:
        """Return the links of replicas of both models: everybody wants to observe all of them."""
        return [
            link for link in self._controller.book.links if link.kind in (KIND_REPLICA, KIND_REPLICA_SMALL)
        ]

    def _json(self, link: Link) -> dict[str, Any]:
        return {
            "name": link.name,
            "label": link.label,
            "kind": link.kind,
            "listen": f"{self._connect_host}:{link.port}",
            "upstream": link.upstream,
            "replica_id": link.replica_id,
            "since": link.since,
        }


class _LinkMetrics(Collector):
    """Reads the figures from where they are kept, when they are asked for."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        book = self._controller.book
        created = CounterMetricFamily("brownout_links_created", "Proxies made.", labels=["kind"])
        removed = CounterMetricFamily("brownout_links_removed", "Proxies removed.", labels=["kind"])
        listed = GaugeMetricFamily("brownout_links", "Links that the gateway may use.", labels=["kind"])
        for kind in get_args(Kind):
            created.add_metric([kind], book.created[kind])
            removed.add_metric([kind], book.removed[kind])
            listed.add_metric([kind], sum(link.kind == kind for link in book.links))
        asked = CounterMetricFamily(
            "brownout_links_serve_polls", "Questions to Ray Serve.", labels=["outcome"]
        )
        asked.add_metric(["ok"], self._controller.serve_answers)
        asked.add_metric(["failed"], self._controller.serve_failures)
        yield from (created, removed, listed, asked)
        yield GaugeMetricFamily(
            "brownout_links_pending_removals",
            "Proxies that are unlisted and not yet gone.",
            book.pending_removals,
        )


def _metrics_path(link: Link) -> str:
    return f"{SMALL_PATH}/metrics" if link.kind == KIND_REPLICA_SMALL else "/metrics"


def _number(request: web.Request, name: str) -> float | None:
    given = request.query.get(name)
    if given is None:
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} is {given!r}; give a number")
    return value
