"""What a request must look like before it may reach a replica.

Only what the gateway itself relies on is checked, strictly; every other field passes through, and a replica's
own 400 passes back. Ranges are OpenAI's.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cluster.gateway.errors import InvalidRequest
from cluster.xargs import Extras

Tokens = Annotated[int, Field(ge=1, strict=True)]
TokenId = Annotated[int, Field(ge=0, strict=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True)]
_MOST_TOOL_CALLS: Final = 8
_MAY_BE_NO_TEXT: Final = re.compile(rb"\\u[dD]|\xed|\x00")
"""Bytes without one of which a body holds no half of a surrogate pair."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class ToolCall(_Model):
    """The extension fields ``tool_call`` and ``tool_calls``: what a tool is asked, before generation or after it.

    An answer that came before goes into the prompt, one that came after into the field ``brownout.tools``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Annotated[str, Field(min_length=1, max_length=128)]
    params: dict[str, Any] = Field(default_factory=dict)
    optional: Annotated[bool, Field(strict=True)] = False
    when: Literal["before", "after"] = "before"


class StreamOptions(_Model):
    include_usage: bool | None = None


class Message(_Model):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[dict[str, Any]] | None = None


class GenerationRequest(_Model):
    """What both APIs share."""

    model: Annotated[str, Field(strict=True, min_length=1)]
    stream: Annotated[bool, Field(strict=True)] | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128, strict=True)] | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(strict=True)] | None = None
    stop: Text | list[Text] | None = None
    tool_call: ToolCall | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=_MOST_TOOL_CALLS)] | None = None
    resume: Literal["exact", "best_effort"] | None = None
    """Extension: whether an answer that is cut may go on with tokens that are drawn anew."""
    return_token_ids: Annotated[bool, Field(strict=True)] | None = None
    vllm_xargs: dict[str, Any] | None = None

    @property
    def asked_tools(self) -> tuple[ToolCall, ...]:
        """Return all tool calls in their order."""
        first = () if self.tool_call is None else (self.tool_call,)
        return (*first, *(self.tool_calls or ()))

    @field_validator("vllm_xargs")
    @classmethod
    def _extras_are_known(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Check what is the project's own in it: a replica would refuse it only inside the stream."""
        Extras.read(value)
        return value

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are only allowed when stream is true")
        return self


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None


class CompletionRequest(GenerationRequest):
    prompt: (
        Text
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)]
    )


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the body as a JSON object.

    Raises:
        InvalidRequest: it is not one.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest(f"the body is not valid JSON: {reason}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_type")
    if _MAY_BE_NO_TEXT.search(body) and not _is_text(value):
        raise InvalidRequest(
            "the body is not valid JSON: a string has half of a surrogate pair, which is no character",
            code="invalid_json",
        )
    return value


def _is_text(value: Any) -> bool:
    """Tell whether all strings in a value can be sent on: JSON's escapes can write what UTF-8 cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def validate(api: str, body: dict[str, Any]) -> ChatRequest | CompletionRequest:
    """Return the checked request; ``api`` is ``chat`` or ``completions``.

    Raises:
        InvalidRequest: naming the first field that is wrong.
    """
    try:
        return (ChatRequest if api == "chat" else CompletionRequest).model_validate(body)
    except ValidationError as error:
        raise _first(error, body) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


_ABSENT = object()


def _child(value: Any, step: int | str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _ABSENT)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return _ABSENT


def _first(error: ValidationError, body: dict[str, Any]) -> InvalidRequest:
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    path: list[str] = []
    value: Any = body
    for step in first["loc"]:  # a union's branch names are in the path too: keep what is really in the body
        inside = value
        value = _child(inside, step)
        if value is not _ABSENT:
            path.append(str(step))
        elif first["type"] == "missing":
            path.append(str(step))
            break
        else:
            value = inside
    param = ".".join(path) or None
    message = first["msg"].removeprefix("Value error, ")
    if param == "prompt":
        message = (
            "must be a string, a list of strings, a list of token ids, or a list of such lists, not empty"
        )
    elif first["type"] in ("string_type", "list_type", "model_type", "bool_type", "int_type"):
        message = f"{message}, not {type(value).__name__}"
    code = _CODES.get(first["type"], "invalid_type" if first["type"].endswith("_type") else "invalid_value")
    return InvalidRequest(f"{param}: {message}" if param else message, param=param, code=code)
