"""The tool as a Ray Serve deployment: one replica, whose process holds the ledger."""

from __future__ import annotations

from typing import Any

from ray import serve

from cluster import serve_listener
from cluster.tool.app import create_app


@serve.ingress()
class Tool:
    """What application ``tool`` runs; never more than one replica, or there would be two ledgers."""

    def __init__(self, bind_host: str) -> None:
        serve_listener.keep_on(bind_host)

    def __serve_build_asgi_app__(self) -> Any:
        return create_app()
