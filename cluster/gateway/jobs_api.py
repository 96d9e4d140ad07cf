"""``/v1/jobs``: how a job stands, what came of it, and an end to it. Nobody learns of a job that is not theirs."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster import public
from cluster.gateway.audit_trail import acted_on, looked_at
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.exchange import request_id_of
from cluster.gateway.identity import OPERATOR, Identity
from cluster.gateway.jobs import PATH, Jobs, come_back_s, document, may_see, unavailable
from cluster.gateway.service import Gateway
from cluster.gateway.standing import claimed_by, recognised
from cluster.gateway.store.store import StoreUnavailable
from policies.work_queue import DONE, FAILED, LIVE, QUEUED, RUNNING, Job

MOST_LISTED: Final = 100
_LISTED: Final = 20
_ID: Final = re.compile(r"job-[0-9a-f]{32}")
"""Nothing else is looked for: PostgreSQL takes no NUL in a text."""


def job_routes(gateway: Gateway) -> list[Route]:
    """Return the routes; none where the gateway has no store."""
    if gateway.state.jobs is None:
        return []
    api = _Api(gateway, gateway.state.jobs)
    cancel = acted_on(gateway, api.cancel)
    return [
        Route(PATH, looked_at(gateway, api.listed), methods=["GET"]),
        Route(f"{PATH}/{{id}}", looked_at(gateway, api.job), methods=["GET"]),
        Route(f"{PATH}/{{id}}", cancel, methods=["DELETE"]),
        Route(f"{PATH}/{{id}}/cancel", cancel, methods=["POST"]),
        Route(f"{PATH}/{{id}}/result", looked_at(gateway, api.result), methods=["GET"]),
    ]


class _Api:
    def __init__(self, gateway: Gateway, jobs: Jobs) -> None:
        self._gateway = gateway
        self._jobs = jobs

    async def job(self, request: Request, identity: Identity) -> Response:
        job = await self._own(request, identity)
        try:
            told = await self._told(job)
            if job.state == FAILED:
                result = await self._jobs.queue.result(job.tenant, job.id)
                told["error"] = None if result is None else _error_in(result.body)
        except StoreUnavailable as error:
            raise unavailable() from error
        return self._answer(request, told)

    async def listed(self, request: Request, identity: Identity) -> Response:
        who = recognised(identity, claimed_by(request.scope))
        limit = _limit(request.query_params.get("limit"))
        after = request.query_params.get("after")
        only = None if OPERATOR in who.roles else {"principal": who.principal}
        try:
            last = None if after is None else await self._find(after, who)
            if after is not None and last is None:
                raise InvalidRequest(
                    f"after is {after[:80]!r}, which is no job of yours; take last_id of the page before",
                    param="after",
                    code="invalid_value",
                )
            before = None if last is None else (last.created_at, last.id)
            page = await self._jobs.queue.page(who.tenant, limit + 1, before, about=only)
        except StoreUnavailable as error:
            raise unavailable() from error
        data = [document(job) for job in page[:limit]]
        listed = {
            "object": "list",
            "data": data,
            "has_more": len(page) > limit,
            "last_id": data[-1]["id"] if data else None,
        }
        return JSONResponse(listed, headers=self._stamp(request))

    async def result(self, request: Request, identity: Identity) -> Response:
        job = await self._own(request, identity)
        if job.state in LIVE:
            after = str(come_back_s(await self._told(job)))
            message = f"job {job.id} is {job.state}; its result is not there yet"
            raise InvalidRequest(message, status=409, code="job_not_over", headers={"retry-after": after})
        try:
            result = await self._jobs.queue.result(job.tenant, job.id)
        except StoreUnavailable as error:
            raise unavailable() from error
        if job.state != DONE or result is None:
            why = f": {job.reason}" if job.reason else ""
            raise InvalidRequest(
                f"job {job.id} is {job.state} and has no result{why}", status=409, code=f"job_{job.state}"
            )
        return Response(result.body, result.status, {**self._stamp(request), **result.headers})

    async def cancel(self, request: Request, identity: Identity) -> Response:
        job = await self._jobs.cancel(await self._own(request, identity))
        if job is None:
            raise _unknown(request)
        return self._answer(request, document(job), 202 if job.state == RUNNING else 200)

    async def _own(self, request: Request, identity: Identity) -> Job:
        who = recognised(identity, claimed_by(request.scope))
        try:
            job = await self._find(request.path_params["id"], who)
        except StoreUnavailable as error:
            raise unavailable() from error
        if job is None:
            raise _unknown(request)
        return job

    async def _find(self, job_id: str, who: Identity) -> Job | None:
        if not _ID.fullmatch(job_id):
            return None
        job = await self._jobs.queue.get(who.tenant, job_id)
        return job if job is not None and may_see(who, job) else None

    async def _told(self, job: Job) -> dict[str, Any]:
        return await self._jobs.told(job, self._gateway.rates, self._gateway.live_replicas())

    def _answer(self, request: Request, told: dict[str, Any], status: int = 200) -> Response:
        headers = self._stamp(request)
        if told["status"] in (QUEUED, RUNNING):
            headers["retry-after"] = str(come_back_s(told))
        return JSONResponse(told, status, headers)

    def _stamp(self, request: Request) -> dict[str, str]:
        return {
            public.HEADER_REQUEST_ID: request_id_of(request.scope),
            public.HEADER_PROFILE: self._gateway.pipeline.profile,
        }


def _limit(given: str | None) -> int:
    if given is None:
        return _LISTED
    if given.isascii() and given.isdigit() and len(given) < 6 and 1 <= int(given) <= MOST_LISTED:
        return int(given)
    raise InvalidRequest(
        f"limit is {given[:40]!r}, it must be a whole number from 1 to {MOST_LISTED}",
        param="limit",
        code="invalid_value",
    )


def _unknown(request: Request) -> InvalidRequest:
    name = str(request.path_params["id"])[:80]
    return InvalidRequest(f"there is no job {name!r}", status=404, param="id", code="job_not_found")


def _error_in(body: bytes) -> Any:
    """Return the error in the OpenAI shape that a body holds; None where it holds none."""
    try:
        found = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return found
