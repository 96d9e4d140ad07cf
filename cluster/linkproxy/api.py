"""Toxiproxy's HTTP API over the registry: the same routes, statuses, content types and bodies.

What looks odd here is what the Go server does: errors are JSON sent as ``text/plain``, a toxic's creation answers
200 and a link's 201, a POST updates like a PATCH, and a wrong method has no body.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from cluster.linkproxy import body, errors
from cluster.linkproxy.flow import AppliedToxic, Direction
from cluster.linkproxy.proxy import Proxy
from cluster.linkproxy.registry import PopulateError, ProxySpec, Registry
from cluster.linkproxy.stage import Toxic
from cluster.linkproxy.toxics import TOXICS

VERSION: Final = "2.12.0+brownout"
"""The release of Toxiproxy whose API this is."""

_JSON: Final = "application/json"
_PLAIN: Final = "text/plain; charset=utf-8"
_PROXY_FIELDS: Final = {"name": str, "listen": str, "upstream": str, "enabled": bool}
_TOXIC_FIELDS: Final = {"name": str, "type": str, "stream": str, "toxicity": float, "attributes": dict}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_NAME: Final = web.AppKey("registry", Registry)


def build_app(registry: Registry) -> web.Application:
    """Return the application that serves the API of a registry."""
    app = web.Application(middlewares=[_like_go, _stop_browsers], client_max_size=64 * 1024 * 1024)
    app[_NAME] = registry
    proxy, toxic = "/proxies/{proxy}", "/proxies/{proxy}/toxics/{toxic}"
    routes: list[tuple[str, str, _Handler]] = [
        ("POST", "/reset", _reset),
        ("GET", "/proxies", _list_proxies),
        ("POST", "/proxies", _create_proxy),
        ("POST", "/populate", _populate),
        ("GET", proxy, _show_proxy),
        ("POST", proxy, _update_proxy),
        ("PATCH", proxy, _update_proxy),
        ("DELETE", proxy, _delete_proxy),
        ("GET", f"{proxy}/toxics", _list_toxics),
        ("POST", f"{proxy}/toxics", _create_toxic),
        ("GET", toxic, _show_toxic),
        ("POST", toxic, _update_toxic),
        ("PATCH", toxic, _update_toxic),
        ("DELETE", toxic, _delete_toxic),
        ("GET", "/version", _version),
        ("GET", "/metrics", _metrics),
    ]
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    return app


@web.middleware
async def _like_go(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Turn errors into the answers of the Go server."""
    try:
        return await handler(request)
    except errors.ApiError as error:
        return _plain(_dump({"error": error.message, "status": error.status}), error.status)
    except web.HTTPMethodNotAllowed:
        return web.Response(status=405)
    except web.HTTPNotFound:
        return _plain("404 page not found", 404)


@web.middleware
async def _stop_browsers(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuse browsers, so that no page can reach the API across sites."""
    known_route = request.match_info.http_exception is None
    if known_route and request.headers.get("User-Agent", "").startswith("Mozilla/"):
        return _plain("User agent not allowed", 403)
    return await handler(request)


# --- links ---------------------------------------------------------------------------------------------------


async def _list_proxies(request: web.Request) -> web.Response:
    return _json({proxy.name: _proxy_json(proxy) for proxy in _registry(request).all()})


async def _create_proxy(request: web.Request) -> web.Response:
    given = body.fields(body.parse(await request.read()), _PROXY_FIELDS)
    return _json(_proxy_json(await _registry(request).create(_spec(given))), 201)


async def _populate(request: web.Request) -> web.Response:
    error: errors.ApiError | None = None
    made: list[Proxy] | None = None
    try:
        entries = body.parse(await request.read())
        if not isinstance(entries, list):
            raise errors.bad_body("expected a list of proxies")
        given = [body.fields(entry, _PROXY_FIELDS) for entry in entries]
        specs = [_spec(entry, f" at proxy {index}") for index, entry in enumerate(given, start=1)]
        made = await _registry(request).populate(specs)
    except PopulateError as failed:
        error, made = failed, failed.done
    except errors.ApiError as failed:
        error = failed
    answer: dict[str, Any] = {} if error is None else {"error": error.message, "status": error.status}
    answer["proxies"] = [_proxy_json(proxy) for proxy in made] if made else None
    return _json(answer, 201 if error is None else error.status)


async def _show_proxy(request: web.Request) -> web.Response:
    return _json(_proxy_json(_proxy(request)))


async def _update_proxy(request: web.Request) -> web.Response:
    name = _proxy(request).name
    given = body.fields(body.parse(await request.read()), _PROXY_FIELDS)
    changes = (given.get("listen"), given.get("upstream"), given.get("enabled"))
    return _json(_proxy_json(await _registry(request).update(name, *changes)))


async def _delete_proxy(request: web.Request) -> web.Response:
    await _registry(request).remove(request.match_info["proxy"])
    return web.Response(status=204)


async def _reset(request: web.Request) -> web.Response:
    await _registry(request).reset()
    return web.Response(status=204)


# --- toxics --------------------------------------------------------------------------------------------------


async def _list_toxics(request: web.Request) -> web.Response:
    return _json([_toxic_json(applied) for applied in _proxy(request).toxics])


async def _create_toxic(request: web.Request) -> web.Response:
    proxy = _proxy(request)
    given = body.fields(body.parse(await request.read()), _TOXIC_FIELDS)
    stream = given.get("stream", "downstream")
    direction = _direction(stream)
    kind = given.get("type", "")
    if kind not in TOXICS:
        raise errors.invalid_toxic_type()
    name = given.get("name") or f"{kind}_{stream}"
    toxic = TOXICS[kind]()
    if any(applied.name == name for applied in proxy.toxics):
        raise errors.toxic_exists()
    _set_attributes(toxic, given)
    applied = AppliedToxic(name, kind, stream, direction, given.get("toxicity", 1.0), toxic)
    proxy.add(applied)
    return _json(_toxic_json(applied))


async def _show_toxic(request: web.Request) -> web.Response:
    return _json(_toxic_json(_proxy(request).find(request.match_info["toxic"])))


async def _update_toxic(request: web.Request) -> web.Response:
    content = await request.read()
    proxy = _proxy(request)
    applied = proxy.find(request.match_info["toxic"])
    given = body.fields(body.parse(content), {"toxicity": float, "attributes": dict})
    _set_attributes(applied.toxic, given)
    applied.toxicity = given.get("toxicity", applied.toxicity)
    proxy.changed(applied)
    return _json(_toxic_json(applied))


async def _delete_toxic(request: web.Request) -> web.Response:
    proxy = _proxy(request)
    proxy.remove(proxy.find(request.match_info["toxic"]))
    return web.Response(status=204)


# --- the rest --------------------------------------------------------------------------------------------------


async def _version(request: web.Request) -> web.Response:
    text = f'{{"version": "{VERSION}"}}\n'
    return web.Response(body=text.encode(), headers={"Content-Type": "application/json;charset=utf-8"})


async def _metrics(request: web.Request) -> web.Response:
    headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    return web.Response(body=_registry(request).counters.exposition(), headers=headers)


def _registry(request: web.Request) -> Registry:
    return request.app[_NAME]


def _proxy(request: web.Request) -> Proxy:
    return _registry(request).get(request.match_info["proxy"])


def _spec(given: dict[str, Any], where: str = "") -> ProxySpec:
    for field in ("name", "upstream"):
        if not given.get(field):
            raise errors.missing_field(field + where)
    return ProxySpec(given["name"], given.get("listen", ""), given["upstream"], given.get("enabled", True))


def _direction(stream: str) -> Direction:
    match stream.lower():
        case "upstream":
            return "upstream"
        case "downstream":
            return "downstream"
        case _:
            raise errors.invalid_stream()


def _set_attributes(toxic: Toxic, given: dict[str, Any]) -> None:
    kinds: dict[str, type] = {field.name: int for field in dataclasses.fields(toxic)}
    for name, value in body.fields(given.get("attributes"), kinds).items():
        setattr(toxic, name, value)


def _toxic_json(applied: AppliedToxic) -> dict[str, Any]:
    whole = applied.toxicity.is_integer()
    return {
        "attributes": dataclasses.asdict(applied.toxic),
        "name": applied.name,
        "type": applied.type,
        "stream": applied.stream,
        "toxicity": int(applied.toxicity) if whole else applied.toxicity,
    }


def _proxy_json(proxy: Proxy) -> dict[str, Any]:
    return {
        "name": proxy.name,
        "listen": proxy.listen,
        "upstream": proxy.upstream,
        "enabled": proxy.enabled,
        "toxics": [_toxic_json(applied) for applied in proxy.toxics],
    }


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=_dump(value).encode(), status=status, headers={"Content-Type": _JSON})


def _plain(text: str, status: int) -> web.Response:
    return web.Response(body=(text + "\n").encode(), status=status, headers={"Content-Type": _PLAIN})
