"""One call on its way: the tool phase, the pipeline, and the answer as it goes out."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Final

from cluster import public
from cluster.gateway import generation
from cluster.gateway.allowance import Allowance
from cluster.gateway.answer import Answer
from cluster.gateway.assemble import whole_answer
from cluster.gateway.calls import LiveCall
from cluster.gateway.continuation import Continuation, Refused
from cluster.gateway.crash_points import reached
from cluster.gateway.errors import to_http
from cluster.gateway.exactness import by_position, why_not
from cluster.gateway.exchange import Exchange
from cluster.gateway.identity import OPEN, Identity
from cluster.gateway.keyed import UnderKey
from cluster.gateway.ladder import Asked, Lesser
from cluster.gateway.later import Later
from cluster.gateway.recall import Earlier
from cluster.gateway.run_as import run_as
from cluster.gateway.schema import ChatRequest, CompletionRequest
from cluster.gateway.service import Gateway
from cluster.gateway.sse import DONE, note_of
from cluster.gateway.standing import Standing
from cluster.gateway.tokens import Count
from cluster.gateway.tool_phase import ToolPhase
from cluster.gateway.tools import Step
from policies.call import FULL, Call, Delivery
from policies.clock import Deadline
from policies.errors import ToolUnknown
from policies.idempotency import Keyed
from policies.ladder import NO_TOOLS, ClassRungs
from policies.profiles import Pipeline

_COUNT_IN_THREAD_FROM: Final = 64 * 1024
"""Bodies of more bytes are tokenised in a thread, so that other calls' tokens are not held up."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that has been found in order."""

    request: ChatRequest | CompletionRequest
    body: dict[str, Any]
    deadline: Deadline
    size: int
    """Bytes of the body."""
    standing: Standing
    identity: Identity = OPEN
    steps: tuple[Step, ...] = ()
    """Its tool calls, each of which is told there what becomes of it."""
    keyed: Keyed | None = None
    """The request as its idempotency key names it, where it has one."""


class Answering:
    """One call on its way; it is also what the pipeline's bottom hands the answer to."""

    def __init__(
        self,
        gateway: Gateway,
        api: generation.Api,
        exchange: Exchange,
        pipeline: Pipeline[Answer],
        wanted: Wanted,
        live: LiveCall,
    ) -> None:
        self._gateway = gateway
        self._api: generation.Api = api
        self.exchange = exchange
        self._pipeline = pipeline
        self.wanted = wanted
        self._live = live
        self._call: Call | None = None
        self._delivery = Delivery()
        self._unsent = b""
        self._done = b""
        """The mark of the stream's end, while something has to be done before the client sees it."""
        self.under: UnderKey | None = None
        """What holds the request's idempotency key."""
        self._phase = ToolPhase(
            gateway,
            pipeline,
            wanted.steps,
            request_id=live.request_id,
            deadline=wanted.deadline,
            headers=exchange.headers,
        )
        self._allowance = Allowance()
        self._later = Later(
            gateway,
            api,
            exchange,
            body=wanted.body,
            identity=wanted.identity,
            standing=wanted.standing,
            request_id=live.request_id,
        )
        self.usage: dict[str, Any] = {}
        """Of the answer, once it is there."""
        self.origin = ""
        """Where the answer was taken from, in a word, if nothing was asked for it."""
        self.earlier: Earlier | None = None
        """An answer of before, for the rung ``cached``, where there is one that the caller may see."""

    @property
    def call(self) -> Call | None:
        """Return the call, once it has reached the ladder."""
        return self._call

    @property
    def rung(self) -> str:
        """Return the rung of the ladder at which the call was answered; empty before it reached the ladder."""
        return "" if self._call is None else self._delivery.rung

    @property
    def attempts(self) -> int:
        """Return how many attempts it took so far."""
        return self._delivery.attempts

    @property
    def replica(self) -> str:
        """Return the link of the replica that answered, or tried last; empty where none was asked."""
        return self._delivery.replica

    async def reserve(self) -> None:
        """Hold the call's part of its tenant's quotas.

        Raises:
            QuotaExceeded: the tenant has had its share.
            InvalidRequest: the call is too large for the context or for the quota.
            FailedClosed: nobody can tell.
        """
        gateway, wanted = self._gateway, self.wanted
        await self._allowance.reserve(
            gateway.state.quotas,
            wanted.identity,
            wanted.request,
            lambda: self._count(wanted.body),
            gateway.outputs,
            gateway.context,
            counts_as=1 if run_as(self.exchange.scope) is None else 0,
        )

    def settle_quota(self, outcome: str) -> None:
        """Give back what was held of the quotas and not used."""
        self._allowance.settle(
            outcome,
            attempts=self.attempts,
            acted=any(step.state for step in self.wanted.steps),
            output_tokens=self._delivery.output_tokens,
            usage=self.usage,
        )

    def tools_told(self) -> list[dict[str, object]]:
        """Return what became of each tool call, and whether it changed something."""
        return self._phase.told()

    async def serve(self) -> None:
        """Make a job of it, where that is preferred; answer from the cache, where an answer of before will do; else
        have the answer made."""
        answers = self._gateway.state.answers
        self._later.under = self.under
        if await self._later.accepted_before():
            await self._later.tell()
        elif self._later.preferred and self._may_be_put_off():
            await self._put_off()
        elif answers is None:
            await self.run()
        else:
            await answers.serve(self._api, self.exchange, self.wanted, self._live, self)

    async def _put_off(self) -> None:
        gateway, later = self._gateway, self._later
        counts = await self._count(self.wanted.body)
        later.work = generation.estimate_work(self.wanted.request, counts, gateway.outputs, gateway.context)
        await later.accept()
        await later.tell()

    async def run(self) -> None:
        """Tool phase, generation, and the end of the answer."""
        request, body = self.wanted.request, self.wanted.body
        if self.wanted.steps:
            # A tool may act: everything that could refuse the call without it is asked first.
            self._pipeline.dispatch.require_replica(self._live.request_id)
            await self._count(body)
            if any(step.call.optional for step in self.wanted.steps) and self._goes_without_tools():
                self._delivery.rung = NO_TOOLS
                self._phase.skip_optional()
            body = await self._phase.before(self._api, body, self.under)
        self._call = call = await self._build_call(body)
        self._later.work = call.work
        self._gateway.rates.arrived(call.work)
        answer = await self._pipeline(call)
        if self._later.job is not None:
            self._stamp(call)
            await self._later.tell()
            return
        self._settle(answer, call)
        after = await self._phase.after(self.under)
        if request.stream:
            await self.exchange.end(self._told_after(after) + self._done)
        else:
            self._stamp(call)
            whole = whole_answer(self._api, answer.chunks, answer.usage)
            if note := note_of(call.delivery) | ({"tools": after} if after else {}):
                whole["brownout"] = note
            await self.exchange.json(200, json.dumps(whole, ensure_ascii=False).encode())

    def opened(self, call: Call) -> None:
        """The first token of an attempt is there."""
        self._live.first_token()
        if self.wanted.request.stream and not call.delivery.started:
            call.delivery.started = True
            self._stamp(call)

    async def write(self, data: bytes) -> None:
        """Pass events on; a stream begins with the first, and with the headers that only now are known.

        An attempt can be given up while its client does not read. What it wanted to write is kept, and goes out
        before what the next attempt writes. (The server writes in one step once the client reads again.)
        """
        if data.endswith(DONE) and self._waits_with_its_end():
            data, self._done = data[: -len(DONE)], DONE
        reached("mid_stream" if self.exchange.started else "first_token")
        self._unsent += data
        if not self.exchange.started:
            await self.exchange.start_stream()
        await self.exchange.write(self._unsent)
        self._unsent = b""

    def _waits_with_its_end(self) -> bool:
        return self.exchange.before_end is not None or bool(self._phase.of("after"))

    async def fail(self, error: Exception) -> None:
        """Tell the client, in the way that is still open."""
        if self._call is not None:
            self._stamp(self._call)
        answer = to_http(error, started=self.exchange.started)
        if self.under is not None and isinstance(error, ToolUnknown):
            self.under.keeps_error = not error.may_be_found
        note = None if self._call is None else note_of(self._call.delivery)
        await self.exchange.fail(answer, note)

    async def _count(self, body: dict[str, Any]) -> list[Count]:
        """Return the length of each prompt.

        Raises:
            InvalidRequest: they do not fit the context.
        """
        gateway = self._gateway
        if self.wanted.size > _COUNT_IN_THREAD_FROM:
            counts = await asyncio.to_thread(generation.count_prompts, self._api, body, gateway.counter)
        else:
            counts = generation.count_prompts(self._api, body, gateway.counter)
        generation.check_length(self.wanted.request, counts, gateway.context)
        return counts

    def _goes_without_tools(self) -> bool:
        """Tell whether the ladder stands so low that a call of this kind does without what it can do without."""
        ladder, standing = self._pipeline.ladder, self.wanted.standing
        return ladder is not None and ladder.would_start_at(
            Call(
                self._live.request_id,
                deadline=self.wanted.deadline,
                priority=standing.priority,
                tenant=standing.tenant,
                service_class=standing.service_class,
                caller=self.wanted.identity,
                rungs=self._rungs(),
            ),
            NO_TOOLS,
        )

    def _may_be_put_off(self) -> bool:
        """Tell whether it may become a job: not once a tool may have acted, because the job has a key of its own."""
        acts = any(step.method.effect for step in self.wanted.steps)
        may_have_acted = acts and self.under is not None and self.under.again
        return self._later.possible and not self._phase.asked and not may_have_acted

    def _rungs(self) -> ClassRungs | None:
        return self.wanted.identity.work_class(self.wanted.standing.service_class).rungs

    async def _build_call(self, body: dict[str, Any]) -> Call:
        counts = await self._count(body)
        return self._call_for(Asked(self._api, self.wanted.request, body, counts))

    def _call_for(self, asked: Asked) -> Call:
        """Return the call of a request, as the client asked it or as a rung of the ladder left it."""
        gateway, request, body, counts = self._gateway, asked.request, asked.body, asked.counts
        standing, options = self.wanted.standing, request.stream_options
        if gateway.settings.samples_by_position:
            body = by_position(body, prompts=len(counts), defaults=gateway.counter.defaults)
        resumable = self._resumable(body, len(counts))
        continuation = resumable if isinstance(resumable, Continuation) else None
        payload = generation.Generation(
            api=self._api,
            body=generation.upstream_body(
                body,
                token_ids=continuation is not None,
                cache_salt=self.wanted.identity.cache_salt,
                trusted=self.wanted.identity.open,
            ),
            stream=bool(request.stream),
            want_usage=bool(options is not None and options.include_usage),
            choices=(request.n or 1) * len(counts),
            receiver=self,
            shows_ids=bool(body.get("return_token_ids")),
            continuation=continuation,
        )
        return Call(
            request_id=self._live.request_id,
            deadline=self.wanted.deadline,
            work=generation.estimate_work(request, counts, gateway.outputs, gateway.context),
            payload=payload,
            delivery=self._delivery,
            tools=self._phase.asked or bool(body.get("tools")),
            priority=standing.priority,
            tenant=standing.tenant,
            service_class=standing.service_class,
            caller=self.wanted.identity,
            rungs=self._rungs(),
            resumable=resumable,
            degradable=Lesser(
                asked,
                gateway.ladder_knobs,
                gateway.counter,
                small_model=gateway.small.name,
                earlier=lambda: self.earlier,
                later=lambda: self._later if self._may_be_put_off() else None,
                build=self._call_for,
            ),
        )

    def _resumable(self, body: dict[str, Any], prompts: int) -> Continuation | Refused | None:
        """Return what could go on with the answer, or tells why nothing may; None where nobody asks."""
        if not {"retry", "resume"} <= set(self._pipeline.active):
            return None
        counter = self._gateway.counter
        if counter.tokenizer is None:
            return Refused("the model's tokenizer is not at hand")
        if body["model"] != self._gateway.context.model and not self._gateway.settings.models_share_tokenizer:
            return Refused("the smaller model's tokenizer is not at hand")
        why = why_not(body, prompts=prompts, defaults=counter.defaults)
        if why is not None:
            return Refused(why)
        return Continuation(counter.tokenizer, self._gateway.context.max_model_len, counter.defaults)

    def _settle(self, answer: Answer, call: Call) -> None:
        self.usage = answer.usage
        prompt, completion = answer.usage.get("prompt_tokens"), answer.usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int):
            self._gateway.metrics.tokens(prompt, completion)
            if self.rung == FULL:  # an answer that was made shorter says nothing of how long they get
                self._gateway.outputs.observe(
                    completion // call.work.sequences, generation.output_limit(self.wanted.request)
                )

    def _stamp(self, call: Call) -> None:
        headers = self.exchange.headers
        headers[public.HEADER_RUNG] = call.delivery.rung
        if call.delivery.attempts:
            headers[public.HEADER_ATTEMPTS] = str(call.delivery.attempts)
            headers[public.HEADER_REPLICA] = call.delivery.replica

    def _told_after(self, after: list[dict[str, object]]) -> bytes:
        """Return the event that tells of the tools that were asked after generation; empty where there were none."""
        if not after:
            return b""
        chunk: dict[str, Any] = {
            "id": self._live.request_id,
            "object": "chat.completion.chunk" if self._api == "chat" else "text_completion",
            "created": int(time.time()),
            "model": self.wanted.request.model,
            "choices": [],
            "brownout": {"tools": after},
        }
        return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
