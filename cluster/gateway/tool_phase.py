"""The phase before generation in which a request may have a tool asked; it holds no slot of any replica."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

from cluster import public
from cluster.gateway.answer import Answer
from cluster.gateway.generation import Api, with_tool_answer
from cluster.gateway.schema import ToolCall
from cluster.gateway.service import Gateway
from policies.clock import Deadline
from policies.errors import BreakerOpen, DeadlineExceeded, ToolError
from policies.events import Refused, ToolEnded
from policies.profiles import Pipeline

NOT_ASKED: Final = ("skipped", "breaker")
"""Outcomes with which the tool cannot have acted: the ladder went without it, or it has been failing."""


async def run_tool_phase(
    gateway: Gateway,
    pipeline: Pipeline[Answer],
    api: Api,
    body: dict[str, Any],
    tool: ToolCall,
    *,
    request_id: str,
    deadline: Deadline,
    headers: dict[str, str],
) -> dict[str, Any]:
    """Ask the tool and return the body with its answer in the prompt; say in ``headers`` what became of it.

    Without an answer an optional tool is gone without. While the tool's breaker is open it is not even asked.

    Raises:
        ToolError: the tool is not optional and gave no answer.
        BreakerOpen: it is not optional and was not asked, because it has been failing.
        DeadlineExceeded: the deadline of the call came first.
    """
    with_tool_answer(api, body, tool.method, None)  # whether an answer could be placed at all is known now
    began_at = gateway.clock.now()
    outcome = "cancelled"
    breaker = pipeline.tool_breaker
    try:
        with nullcontext() if breaker is None else breaker.permit():
            result = await gateway.tools.ask(
                gateway.discovery.tool_address,
                tool,
                request_id,
                limit_s=pipeline.tool_deadline_s,
                deadline=deadline,
            )
        outcome = "ok"
    except BreakerOpen as error:
        outcome = "breaker"
        if not tool.optional:
            gateway.sink.emit(Refused(request_id, error.reason))
            raise
        return body
    except ToolError as error:
        outcome = error.outcome
        if not tool.optional:
            raise
        return body
    except DeadlineExceeded:
        outcome = "deadline"
        raise
    finally:
        headers[public.HEADER_TOOL] = outcome
        gateway.sink.emit(ToolEnded(request_id, outcome, gateway.clock.now() - began_at))
    return with_tool_answer(api, body, tool.method, result)
