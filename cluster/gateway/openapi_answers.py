"""What the gateway answers with, as JSON Schema; fields that are not named here are a replica's own."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]
_TEXT: Final[Json] = {"type": "string"}
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Json] = {"type": "number"}


def ref(name: str) -> Json:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(required: Json, optional: Json | None = None) -> Json:
    return {
        "type": "object",
        "required": sorted(required),
        "properties": {**required, **(optional or {})},
    }


_ERROR: Final = _object(
    {"message": _TEXT, "type": _TEXT},
    {"param": _or_null(_TEXT), "code": _or_null({"type": ["string", "integer"]})},
)
_USAGE: Final = _object({}, {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT})
_NOTE: Final = _object(
    {}, {"rung": _TEXT, "resumes": _COUNT, "tools": {"type": "array", "items": {"type": "object"}}}
)


def _completion(kind: str, choice: Json) -> Json:
    said = {
        "id": _TEXT,
        "object": {"const": kind},
        "created": {"type": "integer"},
        "model": _TEXT,
        "choices": {"type": "array", "items": choice},
        "usage": ref("Usage"),
    }
    return _object(said, {"brownout": ref("Note")})


def _list(item: str, more: Json | None = None) -> Json:
    return _object(
        {"object": {"const": "list"}, "data": {"type": "array", "items": ref(item)}, **(more or {})}
    )


ANSWERS: Final[Json] = {
    "Error": _object({"error": _ERROR}),
    "Problem": _object(
        {
            "type": _TEXT,
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "retry_after_s": {"type": "number", "minimum": 0},
            "error": _ERROR,
        }
    ),
    "Usage": _USAGE,
    "Note": {**_NOTE, "description": "What the gateway took away from the answer, or added to it."},
    "ChatCompletion": _completion(
        "chat.completion",
        _object({"index": _COUNT, "message": {"type": "object"}, "finish_reason": _or_null(_TEXT)}),
    ),
    "TextCompletion": _completion(
        "text_completion",
        _object({"index": _COUNT, "text": _TEXT, "finish_reason": _or_null(_TEXT)}),
    ),
    "Model": _object(
        {"id": _TEXT, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": _TEXT},
        {"max_model_len": _COUNT},
    ),
    "ModelList": _list("Model"),
    "Job": _object(
        {
            "id": _TEXT,
            "object": {"const": "job"},
            "status": ref("JobStatus"),
            "path": _TEXT,
            "class": _TEXT,
            "priority": _TEXT,
            "request_id": _TEXT,
            "attempts": _COUNT,
            "created_at": _NUMBER,
            "started_at": _or_null(_NUMBER),
            "ended_at": _or_null(_NUMBER),
        },
        {
            "position": {"type": "integer", "minimum": 1},
            "estimate_s": _or_null(_NUMBER),
            "expires_at": _NUMBER,
            "kept_until": _NUMBER,
            "reason": _TEXT,
            "cancelling": {"type": "boolean"},
            "error": _or_null(_ERROR),
        },
    ),
    "JobList": _list("Job", {"has_more": {"type": "boolean"}, "last_id": _or_null(_TEXT)}),
}
