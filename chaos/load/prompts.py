"""Seeded prompts and lengths. Call ``n`` of a seed asks the same whatever the rate and whatever the arm."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Final

from chaos.experiment import CallClass, Load

_TEXT: Final = (
    "account advice after against analyst answer application audit auditor backlog before behind bill "
    "blocked both branch bridge broker budget cache calendar call caller card care careful chapter chart "
    "check claim clear clearing climate cluster collects committee compares component confirms counts "
    "customer customs deadline decimal delay describes desk discount document during each election "
    "electricity engine engineer exchange explains file follow forecast form formula fragment fraud "
    "freight from funnel garden gateway handbook harbour house incident income insurance invoice journal "
    "journey judge kernel key letter level library limit line loan map margin market measures memory "
    "merchant metric missing mistake monthly morning mountain needs never night notice now once operator "
    "orbit order parcel patient payment planet platform postpones price programme prompt protects "
    "protocol quarter question queue quiet radar railway record refuses regulator releases replica "
    "reservoir result returned reviews risk schedule score second segment sent settlement shadow shipping "
    "signal single slow station statement stock store summarises surgeon symbol tax teacher team "
    "temperature template tenant thousand thread time timetable token town transfer treaty triangle twice "
    "valid validator valley verifies voice voucher wagon warehouse watches water whisper wire without "
    "witness work writing "
)
WORDS: Final = tuple(_TEXT.split())
SYMBOLS: Final = ("BTC", "ETH", "SOL", "ADA", "DOT", "XRP", "LTC", "UNI")
TOKENS_PER_WORD: Final = 1.0
"""Frequent words are a token each for most vocabularies; the history keeps what the service counted."""
TEMPLATE_TOKENS: Final = 3
"""What a chat template puts around one message."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one call asks for; lengths in tokens. ``tool_symbol`` is empty when no tool is asked for.

    ``call_class`` is None where the load is of one kind.
    """

    prompt: str
    max_tokens: int
    stream: bool
    tool_symbol: str = ""
    transfer: bool = False
    """Whether the tool is to submit a transfer, which the answer cannot do without."""
    call_class: CallClass | None = None

    @property
    def sha(self) -> str:
        """The first 16 hex digits of the prompt's SHA-256."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()[:16]


def text_of(tokens: int, draws: random.Random) -> str:
    """Return a text of about ``tokens`` tokens; the first words differ, so that no prefix is shared by chance."""
    count = max(1, round((tokens - TEMPLATE_TOKENS) / TOKENS_PER_WORD))
    return " ".join(draws.choice(WORDS) for _ in range(count))


def class_of(load: Load, seed: int | str, n: int, *, surge: bool = False) -> CallClass | None:
    """Return the class of call ``n``, drawn by the shares (of a surge, when the call is one of its); None without."""
    if not load.classes:
        return None
    shares = [one.of_a_surge if surge else one.share for one in load.classes]
    return random.Random(f"{seed}/class/{n}").choices(load.classes, shares)[0]


def ask(load: Load, seed: int | str, n: int, *, surge: bool = False) -> Ask:
    """Return what call ``n`` of a seed asks, with lengths and kind drawn as ``load`` says."""
    call_class = class_of(load, seed, n, surge=surge)
    drawn_as = call_class or load
    pool = call_class.prompts if call_class else 0
    which = f"pool/{random.Random(f'{seed}/pool/{n}').randrange(pool)}" if pool else f"call/{n}"
    draws = random.Random(f"{seed}/{which}")
    prompt_tokens = draws.randint(*drawn_as.prompt_tokens)
    max_tokens = draws.randint(*drawn_as.output_tokens)
    stream = draws.random() < drawn_as.stream_share
    symbol = draws.choice(SYMBOLS)
    return Ask(
        prompt=text_of(prompt_tokens, draws),
        max_tokens=max_tokens,
        stream=stream,
        tool_symbol=symbol if load.tool else "",
        transfer=call_class is not None and call_class.transfer,
        call_class=call_class,
    )
