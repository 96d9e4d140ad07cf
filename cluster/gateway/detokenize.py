"""Token ids to text, one after the other, exactly as the engine does it.

A token need not be whole characters: the text of an id depends on those before it, and about one in fifteen has
none of its own. vLLM goes through ``tokenizers``' ``DecodeStream``, primed with the ids of the prompt
(``vllm/v1/engine/detokenizer.py``); so does this, so that a character that was cut in two comes out whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_INVALID_PREFIX: Final = "Invalid prefix encountered"


class Detokenizer:
    """The text of one answer, id by id. ``tokenizer`` is a ``tokenizers.Tokenizer``."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stream = _stream(self._skip, prompt)

    def feed(self, ids: Sequence[int], *, stopped: bool = False) -> str:
        """Return the text that the ids add.

        ``stopped`` says that the last of them ended the answer: that one has no text. A character that is not
        whole at the end never comes out, as in the engine.
        """
        return "".join(map(self._step, ids[:-1] if stopped else ids))

    def _step(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except (OverflowError, TypeError):
            return ""
        except Exception as error:  # the library raises bare Exception
            if not str(error).startswith(_INVALID_PREFIX):
                raise
            self._stream = _stream(self._skip)
            return self._stream.step(self._tokenizer, token) or ""


def _stream(skip_special_tokens: bool, prompt: Sequence[int] | None = None) -> Any:
    from tokenizers.decoders import DecodeStream

    if prompt is None:
        return DecodeStream(skip_special_tokens=skip_special_tokens)
    return DecodeStream(ids=list(prompt), skip_special_tokens=skip_special_tokens)
