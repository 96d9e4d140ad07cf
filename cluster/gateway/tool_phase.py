"""The phase before generation in which a request may have a tool asked; it holds no slot of any replica."""

from __future__ import annotations

from typing import Any

from cluster import public
from cluster.gateway.answer import Answer
from cluster.gateway.generation import Api, with_tool_answer
from cluster.gateway.schema import ToolCall
from cluster.gateway.service import Gateway
from policies.clock import Deadline
from policies.errors import DeadlineExceeded, ToolError
from policies.events import ToolEnded
from policies.profiles import Pipeline


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

    Without an answer an optional tool is gone without.

    Raises:
        ToolError: the tool is not optional and gave no answer.
        DeadlineExceeded: the deadline of the call came first.
    """
    with_tool_answer(api, body, tool.method, None)  # whether an answer could be placed at all is known now
    began_at = gateway.clock.now()
    outcome = "cancelled"
    try:
        result = await gateway.tools.ask(
            gateway.discovery.tool_address,
            tool,
            request_id,
            limit_s=pipeline.tool_deadline_s,
            deadline=deadline,
        )
        outcome = "ok"
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
