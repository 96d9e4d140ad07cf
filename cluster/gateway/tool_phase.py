"""The phases before and after generation in which tools are asked; they hold no slot of any replica.

Calls that only read are made together, each in its own bulkhead; a call that acts is made alone, in its place in the
order. What may act is on disk before the tool is asked (:mod:`~cluster.gateway.steps`), and what may have acted is
looked up, or told as unknown, and never asked again blindly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any, Final

from cluster import public
from cluster.gateway.answer import Answer
from cluster.gateway.crash_points import reached
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.generation import Api, with_tool_answer
from cluster.gateway.keyed import UnderKey
from cluster.gateway.service import Gateway
from cluster.gateway.steps import Before, StepKey, StepReused, Steps, StepState
from cluster.gateway.store.store import StoreUnavailable
from cluster.gateway.tool_client import ToolFailed
from cluster.gateway.tools import BUDGET, KEY_PARAM, Step
from policies.clock import Deadline
from policies.errors import (
    BreakerOpen,
    DeadlineExceeded,
    FailedClosed,
    ToolBusy,
    ToolError,
    ToolRejected,
    ToolUnknown,
)
from policies.events import Refused, ToolEnded
from policies.idempotency import ClaimLost
from policies.profiles import Pipeline

_NOTHING: Final = object()
"""In place of a result that there is not."""


class ToolPhase:
    """The tools of one call."""

    def __init__(
        self,
        gateway: Gateway,
        pipeline: Pipeline[Answer],
        steps: Sequence[Step],
        *,
        request_id: str,
        deadline: Deadline,
        headers: dict[str, str],
    ) -> None:
        self.steps = steps
        self._gateway = gateway
        self._pipeline = pipeline
        self._request_id = request_id
        self._deadline = deadline
        self._headers = headers
        self._under: UnderKey | None = None
        limit_s = pipeline.tool_deadline_s
        self._left_s = None if limit_s is None else BUDGET * limit_s

    @property
    def asked(self) -> bool:
        """Tell whether a tool has been asked anything."""
        return any(step.state for step in self.steps)

    def told(self) -> list[dict[str, object]]:
        """Return the steps and their effects, for the audit."""
        return [step.told() for step in self.steps]

    def of(self, when: str) -> list[Step]:
        """Return the steps of a phase that have not been skipped."""
        return [step for step in self.steps if step.call.when == when and step.outcome != "skipped"]

    def skip_optional(self) -> None:
        """Go without what the call can do without."""
        for step in self.steps:
            if step.call.optional:
                self._ended(step, "skipped", 0.0)

    async def before(self, api: Api, body: dict[str, Any], under: UnderKey | None) -> dict[str, Any]:
        """Ask what is to be asked before generation, and return the body with the answers in the prompt.

        ``under`` is what holds the request's key; there is one wherever a step acts.

        Raises:
            ToolError: a step that is not optional gave no answer.
            BreakerOpen: it was not asked, because the method has been failing.
            DeadlineExceeded: the deadline of the call came first.
            FailedClosed: the store could not record a step that acts, or the claim was lost.
        """
        self._under = under
        for step in self.steps:  # whether an answer could be placed at all is known now
            if step.call.when == "before":
                with_tool_answer(api, body, step.method.name, None)
        for step, result in await self._all(self.of("before")):
            body = with_tool_answer(api, body, step.method.name, result)
        return body

    async def after(self, under: UnderKey | None) -> list[dict[str, object]]:
        """Ask what is to be asked after generation, and return what the answer tells of it. Raises as `before`."""
        self._under = under
        results = {step.name: result for step, result in await self._all(self.of("after"))}
        told = []
        for step in self.steps:
            if step.call.when == "after":
                one: dict[str, object] = {"method": step.method.name, "outcome": step.outcome}
                told.append(one | ({"result": results[step.name]} if step.name in results else {}))
        return told

    async def _all(self, steps: list[Step]) -> list[tuple[Step, Any]]:
        answered: list[tuple[Step, Any]] = []
        for acts, group in groupby(steps, key=lambda step: step.method.effect):
            together = list(group)
            if acts or len(together) == 1:
                results = [await self._one(step) for step in together]
            else:
                results = await _together([self._one(step) for step in together])
            answered += [one for one in zip(together, results, strict=True) if one[1] is not _NOTHING]
        return answered

    async def _one(self, step: Step) -> Any:
        """Return the step's result, or that there is none and it can be gone without."""
        clock = self._gateway.clock
        began_at = clock.now()
        outcome = "cancelled"
        try:
            result = await (self._act(step) if step.method.effect else self._read(step))
            outcome = "ok"
        except BreakerOpen as error:
            outcome = "breaker"
            if not step.call.optional:
                self._gateway.sink.emit(Refused(self._request_id, error.reason))
                raise
            return _NOTHING
        except ToolError as error:
            outcome = error.outcome
            if not step.call.optional:
                raise
            return _NOTHING
        except DeadlineExceeded:
            outcome = "deadline"
            raise
        except (FailedClosed, InvalidRequest):
            outcome = "error"
            raise
        finally:
            took_s = clock.now() - began_at
            if self._left_s is not None:
                self._left_s = max(0.0, self._left_s - took_s)
            self._ended(step, outcome, took_s)
        return result

    def _ended(self, step: Step, outcome: str, took_s: float) -> None:
        step.outcome = outcome
        known = [one for one in self.steps if one.outcome]
        if len(self.steps) == 1:
            self._headers[public.HEADER_TOOL] = outcome
        else:
            self._headers[public.HEADER_TOOL] = ", ".join(f"{one.method.name}={one.outcome}" for one in known)
        self._gateway.sink.emit(ToolEnded(self._request_id, outcome, took_s))

    async def _read(self, step: Step) -> Any:
        try:
            result = await self._ask(step.method.name, step.call.params, step)
        except (BreakerOpen, ToolBusy):
            raise
        except BaseException:
            step.state = "failed"
            raise
        step.state = "done"
        return result

    async def _act(self, step: Step) -> Any:
        under, steps = self._under, self._gateway.state.steps
        assert under is not None
        assert isinstance(steps, Steps)
        key = StepKey.of(under.scope, step.name, step.method.name, step.call.params)
        under.acted = True
        before = await self._begin(steps, key, under)
        reached("tool_asked")
        if before is None:
            step.state, step.effect = "asked", "unknown"
        elif before.state is StepState.DONE:
            step.state, step.effect, step.reused = "done", "done", True
            return before.result
        else:
            step.state, step.effect = "unknown", "unknown"
            found = await self._look_up(step, key)
            if found is not None:
                return await self._done(step, steps, key, found, reused=True)
        return await self._ask_to_act(step, steps, key, first=before is None)

    async def _begin(self, steps: Steps, key: StepKey, under: UnderKey) -> Before | None:
        try:
            return await steps.begin(key, under.guard, request_id=self._request_id)
        except StoreUnavailable as error:
            raise FailedClosed(
                "the tool call could not be recorded before it is made", what="tool_record"
            ) from error
        except ClaimLost as error:
            raise FailedClosed(str(error), what="idempotency") from error
        except StepReused as error:
            raise InvalidRequest(
                f"{public.HEADER_IDEMPOTENCY_KEY} was used before for another tool call; take a new one",
                status=422,
                param=public.HEADER_IDEMPOTENCY_KEY,
                code="idempotency_key_reused",
            ) from error

    async def _ask_to_act(self, step: Step, steps: Steps, key: StepKey, *, first: bool) -> Any:
        """Ask under the key. With ``first`` nothing was asked under it before, so that a refusal is the whole truth."""
        params = {**step.call.params, KEY_PARAM: key.tool_key}
        try:
            result = await self._ask(step.method.name, params, step)
        except (BreakerOpen, ToolBusy, ToolRejected):
            if first:
                step.state, step.effect = "refused", "none"
                await self._end(steps, key, StepState.REFUSED)
            raise
        except ToolError as error:
            return await self._find_out(step, steps, key, error, first=first)
        reached("tool_acted")
        return await self._done(step, steps, key, result)

    async def _find_out(
        self, step: Step, steps: Steps, key: StepKey, error: ToolError, *, first: bool
    ) -> Any:
        """Return what the tool did although its answer was none.

        Raises:
            ToolError: it did nothing, and will not.
            ToolUnknown: nobody can tell, or not yet.
        """
        step.state, step.effect = "unknown", "unknown"
        if step.method.lookup is None:
            await self._end(steps, key, StepState.UNKNOWN)
            raise ToolUnknown(f"{error}; it cannot be looked up", may_be_found=False) from error
        found = await self._look_up(step, key)
        if found is not None:
            return await self._done(step, steps, key, found)
        if first and isinstance(error, ToolFailed):
            step.state, step.effect = "refused", "none"
            await self._end(steps, key, StepState.REFUSED)
            raise error
        raise ToolUnknown(f"{error}; it has not acted so far", may_be_found=True) from error

    async def _look_up(self, step: Step, key: StepKey) -> Any:
        """Return what the tool did under the key; None when it has done nothing.

        Raises:
            ToolUnknown: the tool does not tell.
        """
        method = step.method
        if method.lookup is None:
            raise ToolUnknown(
                f"{method.name!r} was asked before and its answer was lost; it is not asked again",
                may_be_found=False,
            )
        try:
            return await self._ask(method.lookup, {KEY_PARAM: key.tool_key}, step)
        except (ToolError, BreakerOpen) as error:
            raise ToolUnknown(
                f"{method.name!r} may have acted, and the tool does not tell: {error}", may_be_found=True
            ) from error

    async def _done(
        self, step: Step, steps: Steps, key: StepKey, result: Any, *, reused: bool = False
    ) -> Any:
        step.state, step.effect, step.reused = "done", "done", reused
        await self._end(steps, key, StepState.DONE, result)
        reached("tool_recorded")
        return result

    async def _end(self, steps: Steps, key: StepKey, state: StepState, result: Any = None) -> None:
        try:
            await steps.end(key, state, result)
        except StoreUnavailable as error:
            raise FailedClosed("what the tool did could not be recorded", what="tool_record") from error

    async def _ask(self, method: str, params: dict[str, Any], step: Step) -> Any:
        gateway, breakers = self._gateway, self._pipeline.tool_breakers
        with nullcontext() if breakers is None else breakers[method].permit():
            return await gateway.tools.ask(
                gateway.discovery.tool_address,
                method,
                params,
                self._request_id,
                limit_s=self._limit_s(method),
                deadline=self._deadline,
            )

    def _limit_s(self, method: str) -> float | None:
        """Return how long the method may take: its own deadline, or what is left to the tools of this call."""
        usual_s = self._pipeline.tool_deadline_s
        if usual_s is None or self._left_s is None:
            return None
        own_s = self._gateway.tool_methods[method].deadline_s
        limit_s = min(usual_s if own_s is None else own_s, self._left_s)
        if limit_s <= 0:
            raise ToolBusy("the tools of this call have used up their time; it was not asked")
        return limit_s


async def _together(asking: Sequence[Any]) -> list[Any]:
    """Return all results; the first error ends the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in asking]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
