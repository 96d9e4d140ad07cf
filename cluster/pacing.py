"""The modelled step time of a paced replica: pure numbers, and where they travel.

On a machine without accelerators several replicas share the cores, so that losing one loses no capacity
and latencies are those of a crowded CPU. A paced replica computes each step for real and then sleeps until
``base + per_token x scheduled tokens`` has passed: scheduler, batching, KV cache and prefix cache stay
real, a replica has a capacity of its own, and the cores are mostly idle.

The worker that sleeps is :class:`cluster.paced_worker.PacedWorker`; it is a module of its own because it
imports vLLM, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cluster.settings import Settings

WORKER_CLASS: Final = "cluster.paced_worker.PacedWorker"
"""Value of vLLM's ``--worker-cls``."""
CONFIG_KEY: Final = "brownout_pace"


@dataclass(frozen=True, slots=True)
class Pace:
    """Step time of the modelled accelerator, in seconds."""

    base_s: float
    per_token_s: float

    def __post_init__(self) -> None:
        if self.base_s < 0 or self.per_token_s < 0:
            raise ValueError(f"a pace cannot be negative: base {self.base_s} s, {self.per_token_s} s a token")

    @classmethod
    def of(cls, settings: Settings, base_s: float | None = None) -> Pace | None:
        """Return the configured pace, or None where the engine runs at its own speed.

        ``base_s`` stands in for ``pace_base_s``, for another model.
        """
        if settings.pace != "on":
            return None
        return cls(settings.pace_base_s if base_s is None else base_s, settings.pace_per_token_s)

    def step_s(self, tokens: int) -> float:
        """Return how long a step lasts that computes ``tokens`` tokens; an empty step takes no time."""
        return self.base_s + self.per_token_s * tokens if tokens > 0 else 0.0

    def rest_s(self, tokens: int, elapsed_s: float) -> float:
        """Return how long to sleep when computing took ``elapsed_s``; 0 when that was too long already."""
        return max(0.0, self.step_s(tokens) - elapsed_s)

    def to_config(self) -> dict[str, Any]:
        """Return what goes into vLLM's ``--additional-config`` for the worker to find."""
        return {CONFIG_KEY: {"base_s": self.base_s, "per_token_s": self.per_token_s}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Pace:
        """Read what :meth:`to_config` wrote.

        Raises:
            KeyError: the engine was started without it.
        """
        return cls(**config[CONFIG_KEY])
