"""Builds the model into a cache folder, once, and proves each time that what lies there is whole.

Several replicas start at the same moment and each may be the first, so one builds under a lock while the
others wait; the folder appears in one rename, so that nobody ever loads half a model.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tokenizers

from cluster.model import tokenizer
from cluster.model.shape import SMALL, Architecture

MODEL_SHA256: Final = "e9265bfec17f0493193ee3e5f2284e55f6345bb236f62e6415f3b2d772ee5bb1"
"""Hash of the whole model (:func:`digest`); a build with other bytes is refused."""
SMALL_SHA256: Final = "b76e0850d0a6c296cf2b5b093bef3ad3fe67f0861edaa02109842c165763b14d"
"""Of the second, smaller one."""
TEXT_SHA256: Final = "eb24b1cd389eb6bc3f8825a075515e4fc9a3819eab6e2301f16ca346aee99f5f"
"""Of the first one's files without the weights, which is all that a gateway needs."""

_BUILT_WITH: Final = "tokenizers 0.23"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A model that can be built: its shape, and the hash that the result must have."""

    name: str
    shape: Architecture
    sha256: str
    weights: bool = True

    @property
    def folder(self) -> str:
        """Return the name of its folder in the cache."""
        return f"{self.name}-{self.sha256[:12]}"


FULL_MODEL: Final = Pinned("model", Architecture(), MODEL_SHA256)
SMALL_MODEL: Final = Pinned("small-model", SMALL, SMALL_SHA256)
TEXT_ONLY: Final = Pinned("text", Architecture(), TEXT_SHA256, weights=False)


class ModelBuildError(RuntimeError):
    """The model cannot be built here; the text says why and what to do."""


def contents(shape: Architecture | None = None, *, weights: bool = True) -> dict[str, bytes]:
    """Return the model's files by name; a pure function of the code and the training text."""
    shape = shape or Architecture()
    files = tokenizer.files(tokenizer.training_text(), shape.vocabulary)
    end_id, pad_id = tokenizer.SPECIAL.index(tokenizer.END), tokenizer.SPECIAL.index(tokenizer.PAD)
    files["config.json"] = tokenizer.canonical(shape.config(end_id, pad_id))
    files["generation_config.json"] = tokenizer.canonical({"eos_token_id": end_id, "pad_token_id": pad_id})
    if weights:
        from cluster.model.weights import safetensors  # needs numpy

        files["model.safetensors"] = safetensors(shape, silent=range(len(tokenizer.SPECIAL)))
    return files


def digest(files: dict[str, bytes]) -> str:
    """Return one SHA-256 over names, lengths and bytes of all files."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()


def is_whole(folder: Path, expected: str = MODEL_SHA256) -> bool:
    """Tell whether the folder holds exactly the expected files (reads all of them, at most 8 MB)."""
    try:
        return digest({path.name: path.read_bytes() for path in folder.iterdir()}) == expected
    except OSError:
        return False


def ensure(cache: Path, model: Pinned = FULL_MODEL) -> Path:
    """Return the model's folder below ``cache``; build it first when it is missing or damaged.

    Raises:
        ModelBuildError: the cache cannot be written, or the build gave other bytes than are pinned.
    """
    folder = cache / model.folder
    if is_whole(folder, model.sha256):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{folder.name}.lock"):
            if not is_whole(folder, model.sha256):
                _install(contents(model.shape, weights=model.weights), folder, model.sha256)
    except OSError as error:
        raise ModelBuildError(
            f"cannot write to {cache} ({error.strerror}); set cache_dir (BROWNOUT_CACHE_DIR) to a folder "
            "that this user may write to"
        ) from error
    return folder


def ensure_text(cache: Path) -> Path:
    """Return a folder with the tokenizer, the chat template and the generation config of both models.

    It is the whole model's where that is there; else one without weights, which takes no numpy to build.

    Raises:
        ModelBuildError: as :func:`ensure`.
    """
    whole = cache / FULL_MODEL.folder
    return whole if is_whole(whole) else ensure(cache, TEXT_ONLY)


def _install(files: dict[str, bytes], folder: Path, expected: str) -> None:
    built = digest(files)
    if built != expected:
        raise ModelBuildError(
            f"the built model has hash {built[:12]}, expected {expected[:12]}: the training text was "
            f"changed, or tokenizers {tokenizers.__version__} trains otherwise than {_BUILT_WITH}; "
            "install the pinned versions"
        )
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        for name, data in files.items():
            (scratch / name).write_bytes(data)
        scratch.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file; it is released even when this process is killed."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
