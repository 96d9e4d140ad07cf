"""The chat template of the small model: one rendering for each conversation, and a clear refusal."""

from __future__ import annotations

from typing import Any, NoReturn

import jinja2
import pytest

from cluster.model import tokenizer


def render(messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    template = jinja2.Environment(autoescape=False).from_string(tokenizer.CHAT_TEMPLATE)
    return template.render(
        messages=messages, add_generation_prompt=add_generation_prompt, raise_exception=raise_exception
    )


def test_each_message_stands_between_its_role_and_the_end() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert render(messages) == "<|system|>Be brief.<|end|><|user|>Why?<|end|><|assistant|>"


def test_without_generation_prompt_the_last_message_is_the_end() -> None:
    assert render([{"role": "user", "content": "Why?"}], False) == "<|user|>Why?<|end|>"


def test_developer_speaks_as_system() -> None:
    assert render([{"role": "developer", "content": "x"}]).startswith("<|system|>x")


def test_message_without_content_is_empty() -> None:
    assert render([{"role": "assistant", "content": None}], False) == "<|assistant|><|end|>"


def test_unknown_role_is_refused_by_name() -> None:
    with pytest.raises(jinja2.TemplateError, match="unknown role narrator"):
        render([{"role": "narrator", "content": "x"}])


def test_markers_of_the_template_are_single_tokens() -> None:
    trained = tokenizer.train(tokenizer.training_text(), 2048)
    for marker in tokenizer.SPECIAL:
        assert trained.encode(marker).ids == [tokenizer.SPECIAL.index(marker)]
