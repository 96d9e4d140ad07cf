"""Forced ends and position-keyed sampling on real replicas: the same alone, in a batch, continued and preempted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.model import ensure
from cluster.public import VLLM_PREEMPTIONS, ClusterState
from cluster.settings import current
from tests.fakes.live import Answer, Live, Replica, look_at

pytestmark = pytest.mark.cluster

END = 1
FIRST_PLAIN, VOCABULARY = 6, 2048
TOKENS = 40


@pytest.fixture
async def live(cluster: ClusterState) -> AsyncIterator[Live]:
    async with look_at(cluster) as view:
        await view.whole()
        yield view


@pytest.fixture
async def replicas(live: Live) -> list[Replica]:
    return await live.replicas()


def prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(FIRST_PLAIN, VOCABULARY) for _ in range(length)]


async def ask(replica: Replica, ids: list[int], most: int, **extras: Any) -> Answer:
    answer = await replica.stream(ids, most, ignore_eos=False, vllm_xargs=extras)
    assert (answer.error, answer.broken) == (None, ""), "the replica did not answer"
    return answer


def seeded(rng: random.Random) -> dict[str, Any]:
    return {
        "brownout_seed": rng.randrange(2**62),
        "brownout_temperature": rng.choice([0.7, 1.0, 1.5]),
        "brownout_top_p": rng.choice([1.0, 0.9, 0.5]),
    }


async def test_end_is_forced_at_any_position_alone_and_in_a_batch(replicas: list[Replica]) -> None:
    rng = random.Random(1)
    ids = prompt(rng, 150)
    free = (await ask(replicas[0], ids, TOKENS)).token_ids
    assert len(free) == TOKENS
    ends = [150, 151, 153, 160, 171, 180, 188, 3]
    together = await asyncio.gather(*(ask(replicas[0], ids, TOKENS, brownout_end_at=end) for end in ends))
    alone = await ask(replicas[1], ids, TOKENS, brownout_end_at=160)
    for end, answer in zip([*ends, 160], [*together, alone], strict=True):
        before = max(0, end - len(ids))
        assert answer.token_ids == [*free[:before], END]
        assert answer.finish_reason == "stop"


async def test_continued_request_ends_where_the_whole_one_does(replicas: list[Replica]) -> None:
    rng = random.Random(2)
    ids = prompt(rng, 140)
    whole = await ask(replicas[0], ids, TOKENS, brownout_end_at=165)
    for cut in (1, 13, 25):
        rest = await ask(replicas[1], ids + whole.token_ids[:cut], TOKENS - cut, brownout_end_at=165)
        assert whole.token_ids[:cut] + rest.token_ids == whole.token_ids
        assert rest.finish_reason == "stop"


async def test_seeded_sample_is_the_same_in_a_batch_alone_and_continued(replicas: list[Replica]) -> None:
    rng = random.Random(3)
    asked = [(prompt(rng, rng.randrange(5, 300)), seeded(rng)) for _ in range(8)]
    together = await asyncio.gather(*(ask(replicas[0], ids, TOKENS, **how) for ids, how in asked))
    assert (await ask(replicas[1], asked[0][0], TOKENS, **asked[0][1])).token_ids == together[0].token_ids

    async def continued(ids: list[int], how: dict[str, Any], first: Answer) -> list[int]:
        cut = rng.randrange(1, TOKENS)
        rest = await ask(replicas[1], ids + first.token_ids[:cut], TOKENS - cut, **how)
        return first.token_ids[:cut] + rest.token_ids

    again = await asyncio.gather(
        *(continued(ids, how, first) for (ids, how), first in zip(asked, together, strict=True))
    )
    assert again == [answer.token_ids for answer in together]


async def test_seed_and_temperature_matter(replicas: list[Replica]) -> None:
    ids = prompt(random.Random(4), 20)
    greedy, one, other, cold = await asyncio.gather(
        ask(replicas[0], ids, TOKENS),
        ask(replicas[0], ids, TOKENS, brownout_seed=1),
        ask(replicas[0], ids, TOKENS, brownout_seed=2),
        ask(replicas[0], ids, TOKENS, brownout_seed=1, brownout_temperature=1e-3),
    )
    assert len({tuple(answer.token_ids) for answer in (greedy, one, other)}) == 3
    assert cold.token_ids == greedy.token_ids


async def test_neighbours_in_the_batch_are_not_disturbed(replicas: list[Replica]) -> None:
    rng = random.Random(5)
    plain = [prompt(rng, 30) for _ in range(3)]
    alone = await asyncio.gather(*(ask(replicas[1], ids, TOKENS) for ids in plain))
    mixed = await asyncio.gather(
        *(ask(replicas[0], ids, TOKENS) for ids in plain),
        *(ask(replicas[0], prompt(rng, 30), TOKENS, **seeded(rng)) for _ in range(3)),
        *(ask(replicas[0], prompt(rng, 30), TOKENS, brownout_end_at=40 + n) for n in range(2)),
    )
    assert [answer.token_ids for answer in mixed[:3]] == [answer.token_ids for answer in alone]


async def test_preempted_sequences_choose_and_end_as_others_do(replicas: list[Replica]) -> None:
    if current().model or current().kv_cache_bytes != type(current()).model_fields["kv_cache_bytes"].default:
        pytest.skip("the lengths here overflow the cache of the small model at its default size")
    rng = random.Random(6)
    asked = [(prompt(rng, 1370), seeded(rng) | {"brownout_end_at": 1430 + n}) for n in range(8)]
    before = await replicas[0].metric(VLLM_PREEMPTIONS)
    crowded = await asyncio.gather(*(ask(replicas[0], ids, 200, **how) for ids, how in asked))
    assert await replicas[0].metric(VLLM_PREEMPTIONS) > before, "nothing was preempted: this proves nothing"
    roomy = await asyncio.gather(
        *(ask(replicas[1 + n % 2], ids, 200, **how) for n, (ids, how) in enumerate(asked))
    )
    assert [answer.token_ids for answer in crowded] == [answer.token_ids for answer in roomy]
    assert {answer.finish_reason for answer in crowded} == {"stop"}


@pytest.mark.parametrize(
    ("extras", "field"),
    [
        ({"brownout_end_at": 0}, "brownout_end_at"),
        ({"brownout_seed": 1, "brownout_top_p": 0}, "brownout_top_p"),
        ({"brownout_sed": 1}, "brownout_sed"),
    ],
)
async def test_bad_value_is_the_callers_error(
    replicas: list[Replica], extras: dict[str, Any], field: str
) -> None:
    body = replicas[0].body([9, 9], 4, ignore_eos=False, stream=False, vllm_xargs=extras)
    async with replicas[0].session.post(f"{replicas[0].url}/v1/completions", json=body) as response:
        assert response.status == 400
        assert field in (await response.json())["error"]["message"]


async def test_output_has_characters_that_a_cut_can_fall_into(replicas: list[Replica]) -> None:
    from tokenizers import Tokenizer

    rng = random.Random(7)
    answers = await asyncio.gather(
        *(ask(replicas[0], prompt(rng, 50), 100, **(seeded(rng) if n % 2 else {})) for n in range(8))
    )
    tokenizer = Tokenizer.from_file(str(ensure(current().cache_path) / "tokenizer.json"))
    decoded = [
        tokenizer.decode(answer.token_ids[:cut], skip_special_tokens=False)
        for answer in answers
        for cut in range(1, len(answer.token_ids))
    ]
    inside = sum(text.endswith("\ufffd") for text in decoded)
    print(f"{inside} of {len(decoded)} cuts fall inside a character")
    assert inside > len(decoded) / 50
