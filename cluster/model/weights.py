"""Seeded weights whose bytes do not depend on the machine.

Random generators of numerical libraries may differ in the last bit between processors and versions. Here
every weight is a sum of twelve bytes of a SHAKE-256 stream (close to normal, by the central limit theorem),
computed in integers and rounded to bfloat16 once, so that the file can be pinned by its hash.

Untied embeddings and a standard deviation of 0.1 are needed: with the usual small initial values greedy
output repeats one token for ever, and comparing outputs would then prove nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

import numpy as np
import numpy.typing as npt

from cluster.model.shape import Architecture

_BYTES_PER_WEIGHT: Final = 12
_MEAN: Final = _BYTES_PER_WEIGHT * 255 / 2
_SIGMA: Final = float(np.sqrt(_BYTES_PER_WEIGHT * (256**2 - 1) / 12))


def normal(seed: str, name: str, count: int, std: float) -> npt.NDArray[np.float32]:
    """Return ``count`` values with mean 0 and deviation ``std`` that depend on seed and name only."""
    stream = hashlib.shake_256(f"{seed}/{name}".encode()).digest(count * _BYTES_PER_WEIGHT)
    sums = np.frombuffer(stream, dtype=np.uint8).reshape(count, _BYTES_PER_WEIGHT).sum(1, dtype=np.int32)
    return ((sums - _MEAN) * (std / _SIGMA)).astype(np.float32)


def to_bfloat16(values: npt.NDArray[np.float32]) -> bytes:
    """Round to nearest even and return little-endian bfloat16."""
    bits = values.astype("<f4").view("<u4")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return bytes((rounded >> 16).astype("<u2").tobytes())


def safetensors(shape: Architecture, silent: range) -> bytes:
    """Return the checkpoint in the safetensors format.

    The output rows of the ``silent`` token ids are zero: special tokens are then never generated, so that a
    call ends at the length that it asked for.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, dimensions in sorted(shape.shapes().items()):
        count = int(np.prod(dimensions))
        is_norm = len(dimensions) == 1
        values = np.ones(count, np.float32) if is_norm else normal(shape.seed, name, count, shape.std)
        if name == "lm_head.weight":
            values[silent.start * shape.hidden : silent.stop * shape.hidden] = 0.0
        data = to_bfloat16(values)
        header[name] = {
            "dtype": "BF16",
            "shape": list(dimensions),
            "data_offsets": [offset, offset + len(data)],
        }
        parts.append(data)
        offset += len(data)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + b"".join(parts)
