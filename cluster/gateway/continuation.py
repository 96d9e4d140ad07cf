"""Goes on with a cut answer on another replica: what is asked of it, and what its stream becomes for the client.

The first attempt's stream tells the ids of the prompt, rendered once by the engine, and of every token. The rest
is asked for as a completion of all these ids, whatever API the client uses; its events are turned into what the
first stream would have gone on with, their text made from the ids here, so that a character which was cut in two
comes out whole. Before that it is proven that ids and text agree: what this process makes of the ids so far
must be what the client has got.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cluster.gateway.answer import Answer
from cluster.gateway.detokenize import Detokenizer
from cluster.gateway.record import Record
from cluster.gateway.sse import DONE, EventStream, note_of
from policies.call import Call
from policies.errors import AttemptError, ReplicaFailed
from policies.progress import Progress
from policies.work import Work

if TYPE_CHECKING:
    from cluster.gateway.generation import Generation

_PASSED_ON: Final = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "logit_bias",
    "ignore_eos",
    "vllm_xargs",
    "skip_special_tokens",
    "stream_interval",
    "priority",
    "cache_salt",
    "session_id",
    "user",
)
"""What of the original request the continuation repeats; the rest is either in the ids already or changes nothing."""
_DEFAULT_MAX_TOKENS: Final = 16
"""vLLM's, for ``/v1/completions``."""


class Refused:
    """Stands in for a continuation where there can be none, so that a cut stream can say why."""

    def __init__(self, why: str) -> None:
        self.refusal: str | None = why
        self.tokens = 0
        self.complete = False

    def continued(self, call: Call) -> Call:
        """Never called: it refuses."""
        raise NotImplementedError(self.refusal)

    def forget(self) -> None:
        """Forget nothing."""

    async def end(self, call: Call) -> Any:
        """Never called: it refuses."""
        raise NotImplementedError(self.refusal)


class Continuation:
    """The tokens of one call, across its attempts, and how to go on from them (:class:`policies.call.Resumable`).

    ``tokenizer`` is the model's ``tokenizers.Tokenizer``, ``context`` its longest sequence, ``defaults`` its own
    generation config.
    """

    def __init__(self, tokenizer: Any, context: int, defaults: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._defaults = defaults
        self._detokenizer: Detokenizer | None = None
        self._asked: dict[str, Any] = {}
        self.generation: Generation | None = None
        self.record: Record | None = None

    def begin(self, generation: Generation) -> tuple[Record, Any]:
        """Return the record of a new attempt from the beginning, and what to call at its first token.

        Only then does the record become this call's, so that an attempt which is overtaken leaves no trace.
        """
        record = Record(chat=generation.api == "chat", shows_ids=generation.shows_ids)

        def adopt() -> None:
            self.record, self.generation = record, generation

        return record, adopt

    @property
    def refusal(self) -> str | None:
        """Return why the answer cannot be gone on from; checks the text when it is asked for the first time."""
        record = self.record
        if record is None or self.generation is None:
            return "its tokens are not known"
        if record.problem or self._detokenizer is not None:
            return record.problem or None
        transcript = record.transcript
        self._asked = asked = json.loads(self.generation.body)
        transcript.context = self._context
        transcript.limit = self._limit(asked, chat=record.chat)
        skip = asked.get("skip_special_tokens")
        detokenizer = Detokenizer(
            self._tokenizer, transcript.prompt, skip_special_tokens=skip is None or bool(skip)
        )
        if detokenizer.feed(transcript.output, stopped=transcript.finish_reason == "stop") != record.text:
            return "the gateway's tokenizer makes another text of its tokens"
        self._detokenizer = detokenizer
        return None

    @property
    def tokens(self) -> int:
        """Return how many tokens of output have been received."""
        return 0 if self.record is None else len(self.record.transcript.output)

    @property
    def complete(self) -> bool:
        """Tell whether every token is there."""
        return self.record is not None and self.record.transcript.complete

    def continued(self, call: Call) -> Call:
        """Return the call for the rest."""
        record, generation = self._adopted()
        transcript = record.transcript
        ids, rest = transcript.ids, transcript.remaining or 1
        body = {name: self._asked[name] for name in _PASSED_ON if self._asked.get(name) is not None}
        body.update(
            prompt=ids,
            max_tokens=rest,
            stream=True,
            stream_options={"include_usage": True},
            return_token_ids=True,
        )
        expected = max(1, min(call.work.output_tokens - len(transcript.output), rest))
        payload = replace(
            generation,
            api="completions",
            body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
            continues=True,
        )
        return replace(call, work=Work(len(ids), expected), payload=payload)

    def forget(self) -> None:
        """Forget every token."""
        self.record = self.generation = self._detokenizer = None

    async def end(self, call: Call) -> Answer:
        """Give a complete answer its end: what of finish, usage and ``[DONE]`` the client has not got yet."""
        _, generation = self._adopted()
        rest = ContinuedStream(self, Progress(call.deadline.clock), note_of(call.delivery))
        out = rest.close()
        if generation.stream:
            await generation.receiver.write(out)
        return rest.answer()

    def usage(self) -> dict[str, Any]:
        """Return the usage of the whole call so far, as vLLM counts it."""
        transcript = self._adopted()[0].transcript
        prompt, output = len(transcript.prompt), len(transcript.output)
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}

    def detokenizer(self) -> Detokenizer:
        """Return what turns further ids into text."""
        assert self._detokenizer is not None, "a refusal is asked for before anything is continued"
        return self._detokenizer

    def tells_usage_with_each_token(self) -> bool:
        """Tell whether the client asked for running totals."""
        return bool((self._asked.get("stream_options") or {}).get("continuous_usage_stats"))

    def _limit(self, asked: Mapping[str, Any], *, chat: bool) -> int | None:
        given = asked.get("max_tokens")
        if not chat:
            return int(given) if given is not None else _DEFAULT_MAX_TOKENS
        limit = asked.get("max_completion_tokens")
        limit = given if limit is None else limit
        limit = self._defaults.get("max_new_tokens") if limit is None else limit
        return None if limit is None else int(limit)

    def _adopted(self) -> tuple[Record, Generation]:
        assert self.record is not None, "nothing is continued before its first token"
        assert self.generation is not None
        return self.record, self.generation


class ContinuedStream:
    """Reads the stream of a continuation and says what the client gets of it; used like :class:`EventStream`."""

    def __init__(self, continuation: Continuation, progress: Progress, note: Mapping[str, Any]) -> None:
        record, generation = continuation._adopted()
        self._continuation = continuation
        self._record = record
        self._stream = generation.stream
        self._want_usage = generation.want_usage
        self._note = note
        self._fingerprint: str | None = None
        self._read: list[dict[str, Any]] = []
        self._inner = EventStream(progress, collect=self._read)
        self._progress = progress
        self.failure: AttemptError | None = None

    @property
    def first_token_seen(self) -> bool:
        """Tell whether this attempt has brought a token."""
        return self._inner.first_token_seen

    @property
    def done(self) -> bool:
        """Tell whether the answer has come to its end."""
        return self._inner.done

    @property
    def usage(self) -> dict[str, Any]:
        """Return what the replica has counted in this attempt."""
        return self._inner.usage

    def feed(self, data: bytes) -> bytes:
        """Take what has been received and return what may be passed on.

        Raises:
            AttemptError: the stream holds an error, an aborted generation, or is no event stream.
        """
        try:
            self._inner.feed(data)
        except AttemptError as error:
            if not self._read:
                raise
            self.failure = error  # what came before it is to be kept
        self.failure = self.failure or self._inner.failure
        out = bytearray()
        for number, chunk in enumerate(self._read):
            try:
                out += self._take(chunk)
            except AttemptError as error:
                if not number:
                    raise
                self.failure = error
                break
        self._read.clear()
        if self._inner.done and self.failure is None:
            out += self.close()
        return bytes(out)

    def end(self) -> None:
        """The connection has ended.

        Raises:
            AttemptError: the stream has not.
        """
        if self.failure is not None:
            raise self.failure
        self._inner.end()

    def answer(self) -> Answer:
        """Return the answer when it has ended; each of its tokens counts once."""
        return Answer(self._continuation.usage(), tuple(self._record.chunks))

    def close(self) -> bytes:
        """Return what of finish, usage and ``[DONE]`` is still to be told."""
        out, record = b"", self._record
        if record.transcript.finish_reason is None:
            record.transcript.finish_reason = "length"
            out += self._tell("", [], finish="length", stop_reason=None)
        if self._want_usage and not record.usage_told:
            record.usage_told = True
            chunk = {**record.head, "choices": [], "usage": self._continuation.usage()}
            if self._fingerprint is not None:
                chunk["system_fingerprint"] = self._fingerprint
            out += _event({**chunk, **self._noted()})
        return out + DONE

    def _take(self, chunk: dict[str, Any]) -> bytes:
        self._fingerprint = chunk.get("system_fingerprint") or self._fingerprint
        choices = chunk.get("choices")
        transcript = self._record.transcript
        if not choices or transcript.finish_reason is not None:
            return b""
        choice = choices[0]
        ids, finish = choice.get("token_ids"), choice.get("finish_reason")
        if not isinstance(ids, list):
            raise ReplicaFailed("the replica does not tell token ids", reached=self._progress.reached)
        if not ids and finish is None:
            return b""
        text = self._continuation.detokenizer().feed(ids, stopped=finish == "stop")
        transcript.output += ids
        transcript.finish_reason = finish
        return self._tell(text, ids, finish, choice.get("stop_reason"))

    def _tell(self, text: str, ids: list[int], finish: str | None, stop_reason: Any) -> bytes:
        """Return an event in the shape of the first stream's; for a whole answer it is kept instead."""
        record = self._record
        told = list(ids) if record.shows_ids else None
        choice: dict[str, Any] = {"index": 0}
        if record.chat:
            choice.update(delta={"content": text}, logprobs=None, finish_reason=finish)
            if finish is not None:
                choice["stop_reason"] = stop_reason
        else:
            choice.update(text=text, logprobs=None, finish_reason=finish, stop_reason=stop_reason)
            choice["prompt_token_ids"] = None
        choice["token_ids"] = told
        chunk = {**record.head, "choices": [choice]}
        if self._continuation.tells_usage_with_each_token():
            details = {"completion_tokens_details": None} if record.chat else {}
            chunk["usage"] = {**self._continuation.usage(), **details}
        if not self._stream:
            record.chunks.append(chunk)
            return b""
        if finish is not None and not self._want_usage:
            chunk.update(self._noted())
        return _event(chunk)

    def _noted(self) -> dict[str, Any]:
        return {"brownout": dict(self._note)} if self._note else {}


def _event(chunk: dict[str, Any]) -> bytes:
    text = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
