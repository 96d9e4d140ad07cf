"""All links of one server: create, replace, reset, remove.

Changes are made one at a time, but none waits for an upstream: the longest of them is a bind.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from cluster.linkproxy import errors
from cluster.linkproxy.counters import ByteCounters
from cluster.linkproxy.proxy import Proxy, Shared


@dataclass(frozen=True, slots=True)
class ProxySpec:
    """What a client asks for when it makes a link."""

    name: str
    listen: str
    upstream: str
    enabled: bool


class PopulateError(errors.ApiError):
    """Some links could not be made; ``done`` are those before the first that failed."""

    def __init__(self, cause: errors.ApiError, done: list[Proxy]) -> None:
        super().__init__(cause.message, cause.status)
        self.done = done


class Registry:
    """The links by name. ``seed`` makes toxicity and jitter repeatable; None draws them anew."""

    def __init__(self, seed: int | None = None) -> None:
        self._shared = Shared(random.Random(seed))
        self._proxies: dict[str, Proxy] = {}
        self._lock = asyncio.Lock()

    @property
    def counters(self) -> ByteCounters:
        return self._shared.counters

    def all(self) -> list[Proxy]:
        return [self._proxies[name] for name in sorted(self._proxies)]

    def get(self, name: str) -> Proxy:
        """Return a link by name.

        Raises:
            ApiError: 404.
        """
        try:
            return self._proxies[name]
        except KeyError:
            raise errors.proxy_not_found() from None

    async def create(self, spec: ProxySpec) -> Proxy:
        """Make a link.

        Raises:
            ApiError: 409 the name is taken, 500 the address cannot be used.
        """
        async with self._lock:
            if spec.name in self._proxies:
                raise errors.proxy_exists()
            return await self._make(spec)

    async def populate(self, specs: list[ProxySpec]) -> list[Proxy]:
        """Leave each unchanged link alone, toxics and all; replace a changed one; make a new one.

        Raises:
            PopulateError: an address cannot be used.
        """
        done: list[Proxy] = []
        async with self._lock:
            for spec in specs:
                try:
                    known = self._proxies.get(spec.name)
                    if known is None or known.differs(spec.listen, spec.upstream):
                        if known is not None:
                            known.stop()
                        known = await self._make(spec)
                except errors.ApiError as error:
                    raise PopulateError(error, done) from error
                done.append(known)
        return done

    async def update(
        self, name: str, listen: str | None, upstream: str | None, enabled: bool | None
    ) -> Proxy:
        """Change what is not None.

        Raises:
            ApiError: 404, or 500 the address cannot be used.
        """
        async with self._lock:
            proxy = self.get(name)
            await proxy.update(
                proxy.listen if listen is None else listen,
                proxy.upstream if upstream is None else upstream,
                proxy.enabled if enabled is None else enabled,
            )
            return proxy

    async def remove(self, name: str) -> None:
        """Stop and forget a link.

        Raises:
            ApiError: 404.
        """
        async with self._lock:
            self.get(name).stop()
            del self._proxies[name]

    async def reset(self) -> None:
        """Enable every link and take every toxic off.

        Raises:
            ApiError: 500, an address cannot be used.
        """
        async with self._lock:
            for proxy in self.all():
                await proxy.start()
                proxy.remove_all()

    def stop(self) -> None:
        """Close everything: the server is going down."""
        for proxy in self.all():
            proxy.stop()

    async def _make(self, spec: ProxySpec) -> Proxy:
        proxy = Proxy(spec.name, spec.listen, spec.upstream, self._shared)
        if spec.enabled:
            await proxy.start()
        self._proxies[spec.name] = proxy
        return proxy
