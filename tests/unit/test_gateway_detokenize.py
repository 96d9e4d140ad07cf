"""Ids to text: letters that are cut in two, and ends that have no text."""

from __future__ import annotations

import random

from cluster.gateway.detokenize import Detokenizer
from cluster.model.tokenizer import END, SPECIAL, train, training_text

TOKENIZER = train(training_text(), 600)
PROMPT = TOKENIZER.encode("Wohin? ").ids
TEXT = "Größe 語 — «élève» 🙂 ok"
IDS = TOKENIZER.encode(TEXT).ids
END_ID = SPECIAL.index(END)


def test_the_text_comes_out_whole_however_the_ids_are_grouped() -> None:
    assert len(IDS) > len(TEXT.split())
    for size in range(1, len(IDS)):
        words = Detokenizer(TOKENIZER, PROMPT)
        parts = [words.feed(IDS[at : at + size]) for at in range(0, len(IDS), size)]
        assert "".join(parts) == TEXT
        assert all("\ufffd" not in part for part in parts)


def test_some_ids_have_no_text_of_their_own() -> None:
    words = Detokenizer(TOKENIZER, PROMPT)
    assert "" in [words.feed([one]) for one in IDS]


def test_a_letter_that_is_not_whole_at_the_end_never_comes() -> None:
    half = TOKENIZER.encode("語").ids[:-1]
    assert half
    assert Detokenizer(TOKENIZER, PROMPT).feed(half) == ""


def test_the_id_that_ended_the_answer_has_no_text_even_where_special_tokens_are_shown() -> None:
    words = Detokenizer(TOKENIZER, PROMPT, skip_special_tokens=False)
    assert words.feed([*IDS, END_ID], stopped=True) == TEXT
    assert Detokenizer(TOKENIZER, PROMPT, skip_special_tokens=False).feed([*IDS, END_ID]) == TEXT + END
    assert Detokenizer(TOKENIZER, PROMPT).feed([*IDS, END_ID]) == TEXT


def test_any_ids_at_all_make_the_text_that_the_whole_makes() -> None:
    rng = random.Random(5)
    for _ in range(50):
        ids = [rng.randrange(len(SPECIAL), 600) for _ in range(60)]
        one, other = Detokenizer(TOKENIZER, PROMPT), Detokenizer(TOKENIZER, PROMPT)
        cut = rng.randrange(60)
        assert one.feed(ids[:cut]) + one.feed(ids[cut:]) == other.feed(ids)


def test_ids_that_are_none_have_no_text() -> None:
    words = Detokenizer(TOKENIZER, PROMPT)
    assert words.feed([2**40]) == ""
    assert words.feed(IDS) == TEXT
