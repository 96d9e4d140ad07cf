"""vLLM's CPU worker with a modelled step time (:mod:`cluster.pacing` says what for).

vLLM loads the class by its name inside the EngineCore process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.worker.cpu_worker import CPUWorker

from cluster.pacing import Pace

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput


class PacedWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not typed for us
    """Computes each step for real, then sleeps for the rest of its modelled time."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._pace = Pace.from_config(dict(vllm_config.additional_config))

    def execute_model(
        self, scheduler_output: SchedulerOutput
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        """Run one step; requests that arrive or leave meanwhile are seen by the next one, as on a device."""
        started = time.monotonic()
        output = super().execute_model(scheduler_output)
        tokens = scheduler_output.total_num_scheduled_tokens
        time.sleep(self._pace.rest_s(tokens, time.monotonic() - started))
        return output
