"""vLLM's logits processor for what :mod:`cluster.xargs` names: forced ends and position-keyed sampling.

vLLM loads the class by its name, in the replica (to check parameters) and in EngineCore (to apply them). It keeps
nothing but the rows of requests that asked for it: a batch without any costs one look at an empty table. The
position is read off vLLM's own live lists of prompt and output ids, so preemption, chunked prefill and prefix
caching, which change what is computed and not what the sequence is, cannot move it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from cluster.position_noise import sample
from cluster.xargs import Extras, Sampling

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

ROWS_AT_ONCE: Final = 16
"""Rows whose noise is computed together: bounds the memory (about 100 bytes an entry of the vocabulary)."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One request of the batch that asked for something of ours."""

    extras: Extras
    end_id: int | None
    prompt_length: int
    output: list[int]
    """vLLM's own list, which grows."""

    @property
    def position(self) -> int:
        """Position of the token that is sampled next, which is the sequence's length so far."""
        return self.prompt_length + len(self.output)

    @property
    def ends(self) -> bool:
        return self.extras.end_at is not None and self.position >= self.extras.end_at


class PositionKeyed(LogitsProcessor):  # type: ignore[misc]  # vLLM is not typed for us
    """Leaves one token possible where a request asked for that, and touches no other row."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check one request in the replica's server.

        Raises:
            ValueError: a parameter that cannot be used; the client gets it with status 400.
        """
        extras = Extras.read(sampling_params.extra_args)
        if extras is not None:
            extras.check_with(sampling_params)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        if vllm_config.model_config.enable_prompt_embeds:
            raise ValueError(
                "prompts as embeddings have no known length: start without --enable-prompt-embeds"
            )
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """Say that greedy requests need it too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow who joins, leaves and moves in the batch."""
        process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose the tokens of this step."""
        if not self._rows:
            return logits
        chosen: dict[int, int] = {}
        drawn: list[tuple[int, Sampling, int]] = []
        for index, row in self._rows.items():
            if row.ends and row.end_id is not None:
                chosen[index] = row.end_id
            elif row.extras.sampling is not None:
                drawn.append((index, row.extras.sampling, row.position))
        for start in range(0, len(drawn), ROWS_AT_ONCE):
            indices, requests, positions = zip(*drawn[start : start + ROWS_AT_ONCE], strict=True)
            tokens = sample(logits[list(indices)], requests, positions)
            chosen.update(zip(indices, tokens.tolist(), strict=True))
        if chosen:
            rows = list(chosen)
            logits[rows] = -torch.inf
            logits[rows, list(chosen.values())] = 0.0
        return logits


def _row(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> _Row | None:
    extras = Extras.read(params.extra_args)
    if extras is None:
        return None
    end_id: Any = params.eos_token_id
    if end_id is None:
        end_id = min(params.all_stop_token_ids, default=None)
    return _Row(extras, end_id, len(prompt or ()), output)
