"""What each of the two Serve applications with engines serves: ``llm``, and ``llm-small`` for degraded answers.

The second is off by default. Its model has the tokenizer of the first, so that a prompt that was rendered and counted
once has the same length for both, and its modelled accelerator takes half the time for a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from cluster.settings import Settings

if TYPE_CHECKING:
    from cluster.model.build import Pinned

Size = Literal["full", "small"]

OWN_MODEL_KV_BYTES: Final = 1024**3
"""KV cache of a user's own model where ``kv_cache_bytes`` is left as it is: that fits the project's model only."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model as its replicas serve it."""

    name: str
    source: str
    """Path or hub id of a user's own model; empty for one that the project builds."""
    built: Pinned
    """Which one that is, where ``source`` is empty."""
    kv_cache_bytes: int
    pace_base_s: float
    """Modelled time of a step without tokens, where replicas are paced."""

    @property
    def kv_tokens(self) -> int | None:
        """Return how many tokens a replica's KV cache holds; None for a user's own model: the engine knows.

        vLLM says it itself in ``vllm:cache_config_info{kv_cache_size_tokens=...}``, once it runs.
        """
        return None if self.source else self.kv_cache_bytes // self.built.shape.kv_bytes_per_token


def served(settings: Settings, size: Size = "full") -> Served:
    """Return what the settings say of one of the two."""
    from cluster.model.build import FULL_MODEL, SMALL_MODEL  # the links service needs no tokenizer

    kv_bytes, standard = settings.kv_cache_bytes, Settings.model_fields["kv_cache_bytes"].default
    if size == "full":
        if settings.model and kv_bytes == standard:
            kv_bytes = OWN_MODEL_KV_BYTES
        return Served(settings.model_name, settings.model, FULL_MODEL, kv_bytes, settings.pace_base_s)
    if settings.small_model:
        kv_bytes = OWN_MODEL_KV_BYTES if kv_bytes == standard else kv_bytes
    else:  # as many tokens as the first model's cache holds
        kv_bytes = kv_bytes * SMALL_MODEL.shape.kv_bytes_per_token // FULL_MODEL.shape.kv_bytes_per_token
    return Served(
        settings.small_model_name, settings.small_model, SMALL_MODEL, kv_bytes, settings.small_pace_base_s
    )


def built_here(settings: Settings) -> list[Pinned]:
    """Return the models that the project has to build before the replicas can start."""
    wanted = [served(settings)]
    if settings.small_replicas:
        wanted.append(served(settings, "small"))
    return [one.built for one in wanted if not one.source]


def deployed(settings: Settings) -> dict[str, Any]:
    """Return ``small_replicas`` and ``small_model`` for the file that describes a running cluster."""
    count = settings.small_replicas
    return {"small_replicas": count, "small_model": settings.small_model_name if count else ""}
