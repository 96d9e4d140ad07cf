"""The tokenizer: byte-level BPE, trained on the text that lies beside this module.

The text is kept in the project because anything found on a machine (a dictionary, the standard library)
differs from one machine to the next, and with it every token id.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD: Final = "<|pad|>"
END: Final = "<|end|>"
ROLES: Final = ("system", "user", "assistant", "tool")
SPECIAL: Final = (PAD, END, *(f"<|{role}|>" for role in ROLES))

CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{%- set role = 'system' if message['role'] == 'developer' else message['role'] -%}"
    "{%- if role not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{ raise_exception('unknown role ' ~ message['role'] ~ ': use system, user, assistant or tool') }}"
    "{%- endif -%}"
    "{{ '<|' ~ role ~ '|>' ~ (message['content'] or '') ~ '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def training_text() -> str:
    """Return the text that the tokenizer is trained on."""
    return resources.files("cluster.model").joinpath("training_text.txt").read_text(encoding="utf-8")


def train(text: str, vocabulary: int) -> Tokenizer:
    """Train on ``text`` and return a tokenizer with exactly ``vocabulary`` ids; special tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def files(text: str, vocabulary: int) -> dict[str, bytes]:
    """Return the tokenizer's files by name, in a form that does not depend on how a library prints JSON."""
    trained = json.loads(train(text, vocabulary).to_str())
    config = {
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": 4096,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {"tokenizer.json": canonical(trained), "tokenizer_config.json": canonical(config)}


def canonical(value: object) -> bytes:
    """Return JSON with sorted keys and fixed spacing."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
