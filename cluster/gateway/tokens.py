"""Counts the tokens of a prompt exactly, with the model's own tokenizer and chat template.

The gateway has to be light and quick to start, so this needs only ``tokenizers`` and ``jinja2``. Where the
model's files are out of reach, or a request uses what only the engine can render, the count is an estimate
and says so: nobody is refused because of an estimate.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cluster.settings import Settings

_LOG = logging.getLogger(__name__)
_BYTES_PER_TOKEN: Final = 3.5
"""For estimates: between natural language (4) and code (3)."""


@dataclass(frozen=True, slots=True)
class Count:
    """Tokens of a prompt, and whether that is the exact number."""

    tokens: int
    exact: bool


class TokenCounter:
    """Counts; made by :func:`load`. Without a tokenizer every count is an estimate."""

    def __init__(
        self,
        tokenizer: Any = None,
        template: str = "",
        special: dict[str, str] | None = None,
        defaults: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = self._tokenizer = tokenizer
        """The model's own, or None."""
        self.defaults = defaults or {}
        """The model's generation config: what the engine takes for what a request does not say."""
        self._special = special or {}
        self._template = None
        if template:
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.filters["tojson"] = _to_json
            environment.globals["raise_exception"] = _raise
            environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
            self._template = environment.from_string(template)

    @property
    def exact(self) -> bool:
        """Tell whether prompts can be counted exactly."""
        return self._tokenizer is not None

    def text(self, prompt: str) -> Count:
        """Count a prompt of ``/v1/completions``."""
        if self._tokenizer is None:
            return _estimate(prompt)
        return Count(len(self._tokenizer.encode(prompt, add_special_tokens=True)), exact=True)

    def chat(self, messages: Sequence[dict[str, Any]], tools: Any = None, *, plain: bool = True) -> Count:
        """Count a prompt of ``/v1/chat/completions``.

        ``plain`` is False when the request changes how the engine renders it; the count is then an estimate.
        """
        textual = all(isinstance(message.get("content"), str | None) for message in messages)
        if self._tokenizer is None or self._template is None or not textual:
            return _estimate(json.dumps([*messages, tools or ""], ensure_ascii=False))
        try:
            text = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=True, **self._special
            )
        except (TemplateError, TypeError, ValueError, KeyError):  # the replica will say what is wrong with it
            return _estimate(json.dumps([*messages, tools or ""], ensure_ascii=False))
        return Count(len(self._tokenizer.encode(text, add_special_tokens=False)), exact=plain)


def load(settings: Settings) -> TokenCounter:
    """Return the counter for the configured model; blocks for up to some seconds when that must be built."""
    folder = _folder(settings)
    if folder is None:
        _LOG.warning("no tokenizer of the model is at hand: prompt lengths are estimates")
        return TokenCounter()
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return TokenCounter(tokenizer, *_template(folder), defaults=_generation_config(folder))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
        _LOG.warning("the tokenizer in %s cannot be used (%s): prompt lengths are estimates", folder, error)
        return TokenCounter()


def _folder(settings: Settings) -> Path | None:
    """Return the folder that holds the model's ``tokenizer.json``."""
    if not settings.model:
        try:
            from cluster.model import ModelBuildError, ensure_text
        except ImportError as error:
            _LOG.warning("the model's tokenizer cannot be built here (%s)", error)
            return None
        try:
            return ensure_text(settings.cache_path)
        except ModelBuildError as error:
            _LOG.warning("%s", error)
            return None
    candidates = [Path(settings.model).expanduser()]
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    snapshots = home / "hub" / f"models--{settings.model.replace('/', '--')}" / "snapshots"
    if snapshots.is_dir():
        candidates.extend(sorted(snapshots.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True))
    return next((folder for folder in candidates if (folder / "tokenizer.json").is_file()), None)


def _template(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the chat template and the special tokens that it may name."""
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    special = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            special[name] = token
    separate = folder / "chat_template.jinja"
    template = separate.read_text() if separate.is_file() else config.get("chat_template") or ""
    if isinstance(template, list):  # several named ones
        template = next((one["template"] for one in template if one.get("name") == "default"), "")
    return template, special


def _generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    return config if isinstance(config, dict) else {}


def _estimate(text: str) -> Count:
    return Count(max(1, round(len(text.encode()) / _BYTES_PER_TOKEN)), exact=False)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
