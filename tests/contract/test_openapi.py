"""The gateway keeps to its OpenAPI document, whatever is sent to it, over real sockets."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from cluster.gateway.app import public_app
from cluster.gateway.openapi import PATH, document
from tests.fakes.gateway import rig
from tests.fakes.replica import MODEL

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
NEVER = {500, 502, 504}
"""Nothing here is lost, slow or hung: these are documented, and would be faults all the same."""
EXAMPLES = 10


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in front of fake replicas, in a loop and a thread of its own."""
    up, ended, found = threading.Event(), asyncio.Event(), []
    path: Path = tmp_path_factory.mktemp("openapi") / "store.db"
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        async with rig(2, store=path) as made:
            found.append(made.url)
            up.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert up.wait(30), "the gateway did not start"
    yield found[0]
    loops[0].call_soon_threadsafe(ended.set)
    thread.join(30)
    assert not thread.is_alive()


def usable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the model that is there, so that not every request stops at its name."""
    for name in ("ChatRequest", "CompletionRequest"):
        schema["components"]["schemas"][name]["properties"]["model"] = {"type": "string", "enum": [MODEL]}
    return schema


def config() -> SchemathesisConfig:
    generation = GenerationConfig(deterministic=True, with_security_parameters=False)
    return SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))


SCHEMA = schemathesis.openapi.from_dict(usable(document()), config=config())
TRY = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@SCHEMA.parametrize()
@TRY
def test_what_is_answered_is_what_the_document_says(case: schemathesis.Case, url: str) -> None:
    response = case.call(base_url=url, timeout=20)
    assert response.status_code not in NEVER, response.text
    case.validate_response(response, checks=CHECKS)


async def test_the_document_is_served_and_names_every_path_and_method(tmp_path: Path) -> None:
    async with rig(1, store=tmp_path / "store.db") as made:
        async with made.http.get(made.url + PATH) as answer:
            assert answer.status == 200
            served = await answer.json()
        routes = public_app(made.gateway).routes
    assert served == document()
    for schema in served["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    there = {
        (shape(route.path), method.lower())
        for route in routes
        if isinstance(route, Route) and route.path.startswith("/v1/")
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert {(shape(path), method) for path, item in served["paths"].items() for method in item} == there


def shape(path: str) -> str:
    """Return a path without the names of its parameters."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def fits(name: str, answer: Any) -> None:
    """See that an answer is what the document calls ``name``."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer)


async def test_whole_answers_and_a_job_s_life_are_as_the_document_says(tmp_path: Path) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    async with rig(1, store=tmp_path / "store.db") as made:

        async def ask(method: str, path: str, **more: Any) -> tuple[int, Any]:
            async with made.http.request(method, made.url + path, **more) as answer:
                return answer.status, await answer.json()

        status, answer = await ask("POST", "/v1/chat/completions", json={**chat, "n": 2})
        assert status == 200
        fits("ChatCompletion", answer)
        status, answer = await ask("POST", "/v1/completions", json={"model": MODEL, "prompt": "hi"})
        assert status == 200
        fits("TextCompletion", answer)
        later = {"prefer": "respond-async", "x-brownout-class": "summary"}
        status, job = await ask("POST", "/v1/chat/completions", json=chat, headers=later)
        assert status == 202
        fits("Job", job)
        status, listed = await ask("GET", "/v1/jobs")
        assert [one["id"] for one in listed["data"]] == [job["id"]]
        fits("JobList", listed)
        async with asyncio.timeout(20):
            while job["status"] != "done":
                status, job = await ask("GET", f"/v1/jobs/{job['id']}")
                fits("Job", job)
                await asyncio.sleep(0.02)
        status, answer = await ask("GET", f"/v1/jobs/{job['id']}/result")
        assert status == 200
        fits("ChatCompletion", answer)
        made.gateway.fleet.update([])
        status, answer = await ask("POST", "/v1/chat/completions", json=chat)
        assert status == 503
        fits("Problem", answer)


def test_an_answer_that_is_not_as_the_document_says_would_be_found() -> None:
    with pytest.raises(jsonschema.ValidationError):
        fits("ChatCompletion", {"id": "x", "object": "text_completion"})
    with pytest.raises(jsonschema.ValidationError):
        fits("Job", {"id": "x", "object": "job", "status": "asleep"})
