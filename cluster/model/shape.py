"""The shapes of the models that the project builds: numbers only, so that a gateway can read them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FLOAT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shape of the model; its head dimension is ``hidden // heads``.

    With two key-value heads a token takes 4,096 bytes of KV cache in float32.
    """

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 640
    vocabulary: int = 2048
    positions: int = 4096
    std: float = 0.1
    seed: str = "brownout-1"

    @property
    def kv_bytes_per_token(self) -> int:
        """Return what one token takes in the KV cache: keys and values of every layer, in float32."""
        return self.layers * 2 * self.kv_heads * (self.hidden // self.heads) * _FLOAT32_BYTES

    def config(self, end_id: int, pad_id: int) -> dict[str, object]:
        """Return ``config.json`` as ``transformers`` and vLLM read it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "bos_token_id": None,
            "dtype": "bfloat16",
            "eos_token_id": end_id,
            "head_dim": self.hidden // self.heads,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": self.std,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": pad_id,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": self.vocabulary,
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by its name in the checkpoint; vectors are norms."""
        kv_width = self.hidden // self.heads * self.kv_heads
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            shapes[f"{prefix}.input_layernorm.weight"] = (self.hidden,)
            for name, rows in (("q", self.hidden), ("k", kv_width), ("v", kv_width), ("o", self.hidden)):
                shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (rows, self.hidden)
            shapes[f"{prefix}.post_attention_layernorm.weight"] = (self.hidden,)
            shapes[f"{prefix}.mlp.gate_proj.weight"] = (self.intermediate, self.hidden)
            shapes[f"{prefix}.mlp.up_proj.weight"] = (self.intermediate, self.hidden)
            shapes[f"{prefix}.mlp.down_proj.weight"] = (self.hidden, self.intermediate)
        shapes["model.norm.weight"] = (self.hidden,)
        shapes["lm_head.weight"] = (self.vocabulary, self.hidden)
        return shapes


SMALL: Final = Architecture(
    hidden=128, layers=2, heads=2, kv_heads=1, intermediate=320, seed="brownout-small-1"
)
"""The second model, for degraded answers: half of everything but the vocabulary and the context, so that its
tokenizer is the same and a prompt has the same length for both. With one key-value head in two layers a token
takes 1,024 bytes of KV cache."""
