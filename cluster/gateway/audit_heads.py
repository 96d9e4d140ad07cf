"""Where each chain ended at a time, in a file that is kept elsewhere: only that shows that an end was cut off."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cluster.gateway.audit_chain import Place

_FORMAT = 1


class HeadsError(ValueError):
    """A file that is no list of heads; the text says why."""


def as_document(places: Iterable[Place], at: float) -> dict[str, Any]:
    """Return what is written down; ``at`` is in seconds since the epoch."""
    chains = [{"chain": one.chain, "seq": one.seq, "digest": one.digest} for one in places]
    return {"format": _FORMAT, "at": round(at, 3), "chains": chains}


def write_heads(path: Path, document: dict[str, Any]) -> None:
    """Write it in one step.

    Raises:
        OSError: it cannot be written.
    """
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text(json.dumps(document, indent=1) + "\n")
    scratch.replace(path)


def read_heads(path: Path) -> dict[str, Place]:
    """Return where each chain ended.

    Raises:
        HeadsError: the file is none of ours.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_text())
        if document["format"] != _FORMAT:
            raise HeadsError(f"{path}: has format {document['format']!r}, this version knows {_FORMAT}")
        places = [Place(str(one["chain"]), int(one["seq"]), str(one["digest"])) for one in document["chains"]]
    except HeadsError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise HeadsError(f"{path}: was not written by 'brownout audit heads --out' ({error!r})") from error
    return {place.chain: place for place in places}
