"""Reads request bodies as leniently as Toxiproxy does, because its clients lean on that.

Keys match without regard to case, ``null`` leaves a field as it was, unknown keys are ignored, whatever follows
the first JSON value is ignored; a value of the wrong type is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from cluster.linkproxy.errors import bad_body

_INT64: Final = 2**63
_NAMES: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}


def parse(body: bytes) -> Any:
    """Return the first JSON value of a body.

    Raises:
        ApiError: 400, there is none.
    """
    try:
        text = body.decode().lstrip()
        value, _ = json.JSONDecoder(parse_constant=_refuse).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise bad_body(str(error) if body.strip() else "EOF") from error
    return value


def fields(value: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return those fields of a JSON object that are in ``kinds`` and not null.

    Args:
        value: a parsed JSON value; null counts as an empty object.
        kinds: ``str``, ``bool``, ``int`` (64 bit), ``float`` or ``dict`` (taken as it is) by field.

    Raises:
        ApiError: 400, not an object, or a field of the wrong type.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_body(f"expected an object, got {_kind(value)}")
    spelt = {name.lower(): name for name in kinds}
    found: dict[str, Any] = {}
    for key, given in value.items():
        name = spelt.get(key.lower())
        if name is None or given is None:
            continue
        kind = kinds[name]
        if kind is float and type(given) is int:
            given = float(given)
        if type(given) is not kind and kind is not dict:
            raise bad_body(f"field {name!r}: expected {_NAMES[kind]}, got {_kind(given)}")
        if kind is int and not -_INT64 <= given < _INT64:
            raise bad_body(f"field {name!r}: {given} does not fit into 64 bits")
        found[name] = given
    return found


def _kind(value: Any) -> str:
    return {dict: "an object", list: "an array", type(None): "null"}.get(type(value)) or _NAMES[type(value)]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
