"""What ``brownout profiles`` prints: what each profile of the gateway contains, and what each policy protects from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cluster.public import OPTIONAL_POLICIES, PART_POLICIES, PROFILE_POLICIES, PROTECTS


def show_profiles(*, as_json: bool) -> int:
    """Print the profiles, each in the order of the pipeline; return the exit code."""
    print(_json() if as_json else "\n".join(_lines()))
    return 0


def _json() -> str:
    profiles = {name: _told(policies) for name, policies in PROFILE_POLICIES.items()}
    return json.dumps({"profiles": profiles, "optional": _told(OPTIONAL_POLICIES)}, indent=2)


def _told(policies: Iterable[str]) -> list[dict[str, Any]]:
    """``stage`` is false for what is part of another policy, or of the phase before the pipeline."""
    return [
        {"policy": one, "protects_from": PROTECTS[one], "stage": one not in PART_POLICIES} for one in policies
    ]


def _lines() -> Iterable[str]:
    for name, policies in PROFILE_POLICIES.items():
        if not policies:
            yield f"profile {name}: no policy; only a deadline that the client names"
            continue
        yield f"profile {name}, outermost first:"
        yield from _protecting(one for one in policies if one not in PART_POLICIES)
        if parts := [one for one in policies if one in PART_POLICIES]:
            yield " and as part of these:"
            yield from _protecting(parts)
    yield "in no profile, switched on by name:"
    yield from _protecting(OPTIONAL_POLICIES)


def _protecting(policies: Iterable[str]) -> Iterable[str]:
    width = max(len(name) for name in PROTECTS)
    return (f"  {one:{width}}  protects from {PROTECTS[one]}" for one in policies)
