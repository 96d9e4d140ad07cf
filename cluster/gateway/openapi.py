"""The OpenAPI 3.1 document of the public port, ``GET /openapi.json``; requests are described by what checks them."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cluster import public
from cluster.gateway.audit import process
from cluster.gateway.jobs import PATH as JOBS
from cluster.gateway.openapi_answers import ANSWERS, ref
from cluster.gateway.schema import ChatRequest, CompletionRequest
from policies.priority import Priority
from policies.work_queue import LIVE, OVER

PATH: Final = "/openapi.json"
Json = dict[str, Any]

_STATUSES: Final = {
    "400": "The request is wrong in itself; `error.param` names the field.",
    "401": "There is no key, or none that is valid.",
    "403": "The key is valid, but not for this.",
    "404": "There is no such model or job, or it is somebody else's.",
    "405": "The path has no such method.",
    "408": "The body did not arrive in time.",
    "409": "The same idempotency key is being worked on, or the job does not stand so that this can be done.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "The idempotency key was used with another body.",
    "429": "The tenant's own share is used up.",
    "500": "The gateway itself has failed.",
    "502": "A replica or a tool was lost or failed, and nothing else could answer.",
    "503": "Capacity is short, or what no call is answered without cannot be done; nothing was done.",
    "504": "A deadline ran out.",
}
_OF_READS: Final = ("400", "401", "403", "404", "405", "429", "500", "503")
_HEADERS: Final = (
    (public.HEADER_REQUEST_ID, "Names the call in every event and record.", {"type": "string"}),
    (public.HEADER_DEADLINE, "Seconds that the client will still wait.", {"type": "string"}),
    (
        public.HEADER_PRIORITY,
        "How much the call matters; at most the key's ceiling.",
        {"type": "string", "enum": [priority.label for priority in Priority]},
    ),
    (public.HEADER_TENANT, "Must be the key's own tenant where keys are asked for.", {"type": "string"}),
    (public.HEADER_CLASS, "The class of work.", {"type": "string"}),
)
_KEY: Final = (
    public.HEADER_IDEMPOTENCY_KEY,
    "Names the request, so that sending it again does nothing twice; required where a tool is to act.",
    {"type": "string", "minLength": 1, "maxLength": 255},
)
_PREFER: Final = ("prefer", "`respond-async`: rather a job now than an answer later.", {"type": "string"})


def document() -> Json:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Brownout gateway",
            "version": process()["version"],
            "description": "The OpenAI API with extensions; docs/api.md and docs/headers.md explain them.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/chat/completions": {"post": _generation("ChatRequest", "ChatCompletion", "Answer a chat.")},
            "/v1/completions": {
                "post": _generation("CompletionRequest", "TextCompletion", "Go on with a text.")
            },
            "/v1/models": {"get": _read("listModels", "List the models.", "ModelList")},
            "/v1/models/{model}": {"get": _read("getModel", "Describe a model.", "Model", "model")},
            JOBS: {"get": _job_list()},
            f"{JOBS}/{{id}}": {
                "get": _read("getJob", "Tell how a job stands.", "Job", "id"),
                "delete": _cancel("deleteJob"),
            },
            f"{JOBS}/{{id}}/cancel": {"post": _cancel("cancelJob")},
            f"{JOBS}/{{id}}/result": {"get": _job_result()},
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def route() -> Route:
    """Return the route that serves the document; it is the same for everybody, and asks for no key."""
    body = json.dumps(document()).encode()

    async def serve(request: Request) -> Response:
        return Response(body, headers={"content-type": "application/json"})

    return Route(PATH, serve, methods=["GET"])


def _schemas() -> Json:
    _, made = models_json_schema(
        [(ChatRequest, "validation"), (CompletionRequest, "validation")],
        ref_template="#/components/schemas/{model}",
    )
    jobs = {"type": "string", "enum": sorted({*LIVE, *OVER})}
    return {**made["$defs"], **ANSWERS, "JobStatus": jobs}


def _parameters(headers: tuple[tuple[str, str, Json], ...], *names: str) -> list[Json]:
    return [
        *(
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ),
        *(
            {"name": name, "in": "header", "description": text, "schema": kind}
            for name, text, kind in headers
        ),
    ]


def _errors(statuses: tuple[str, ...]) -> Json:
    plain = {
        "application/json": {"schema": ref("Error")},
        "application/problem+json": {"schema": ref("Problem")},
    }
    return {status: {"description": _STATUSES[status], "content": plain} for status in statuses}


def _generation(request: str, answer: str, summary: str) -> Json:
    return {
        "operationId": f"create{answer}",
        "summary": summary,
        "parameters": _parameters((*_HEADERS, _KEY, _PREFER)),
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(request)}}},
        "responses": {
            "200": {
                "description": "The answer; a stream of events where `stream` is true.",
                "content": {
                    "application/json": {"schema": ref(answer)},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            },
            "202": _told("Job", "Accepted for later; `location` is where it can be followed.", located=True),
            **_errors(tuple(_STATUSES)),
        },
    }


def _told(schema: str, text: str, *, located: bool = False) -> Json:
    told: Json = {"description": text, "content": {"application/json": {"schema": ref(schema)}}}
    if located:
        told["headers"] = {"location": {"required": True, "schema": {"type": "string"}}}
    return told


def _read(name: str, summary: str, schema: str, *path: str) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": _parameters((_HEADERS[0],), *path),
        "responses": {"200": _told(schema, summary), **_errors(_OF_READS)},
    }


def _job_list() -> Json:
    query = [
        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100}},
        {
            "name": "after",
            "in": "query",
            "description": "`last_id` of the page before.",
            "schema": {"type": "string"},
        },
    ]
    listed = _read("listJobs", "List one's jobs, the newest first.", "JobList")
    return {**listed, "parameters": [*listed["parameters"], *query]}


def _cancel(name: str) -> Json:
    made = _read(name, "Cancel a job.", "Job", "id")
    made["responses"]["202"] = _told("Job", "It is being worked on, and will end soon.")
    return made


def _job_result() -> Json:
    made = _read("getJobResult", "Give the answer of a job that is done.", "Job", "id")
    answers = {"anyOf": [ref("ChatCompletion"), ref("TextCompletion")]}
    made["responses"]["200"] = {
        "description": "The answer, as the call itself would have got it.",
        "content": {"application/json": {"schema": answers}},
    }
    made["responses"].update(_errors(("409",)))
    return made
