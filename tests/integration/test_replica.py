"""A replica of the real cluster: vLLM's own server and engine, paced, inside Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psutil
import pytest

from cluster.public import VLLM_KV_USAGE, VLLM_RUNNING, VLLM_WAITING, ClusterState
from cluster.settings import current
from tests.fakes.live import GENERATED, Answer, Live, Replica, gone, look_at, observed

pytestmark = pytest.mark.cluster

PROMPTS = ("The gateway asked another replica", "Why is the queue so long?", "In the café on Königstraße")


@pytest.fixture
async def live(cluster: ClusterState) -> AsyncIterator[Live]:
    async with look_at(cluster) as view:
        await view.whole()
        yield view


@pytest.fixture
async def replica(live: Live) -> Replica:
    return (await live.replicas())[0]


async def running(replica: Replica, count: int) -> None:
    """Wait until the engine says that it runs exactly ``count`` requests."""

    async def as_many() -> bool:
        return await replica.metric(VLLM_RUNNING) == count

    await observed(f"{replica.link} runs {count} requests", as_many)


async def begun(answer: Answer) -> None:
    async def has_token() -> bool:
        return bool(answer.token_ids)

    await observed("the first token of a stream", has_token)


async def test_greedy_output_is_varied(replica: Replica) -> None:
    for prompt in PROMPTS:
        ids = (await replica.stream(prompt, 96)).token_ids
        assert len(ids) == 96
        assert len(set(ids)) >= 48, f"{prompt!r} gave only {len(set(ids))} distinct tokens of 96"


async def test_replicas_agree_and_repeat_themselves(live: Live) -> None:
    replicas = await live.replicas()
    for prompt in PROMPTS:
        answers = await asyncio.gather(*(one.stream(prompt, 40) for one in [*replicas, replicas[0]]))
        assert len({tuple(answer.token_ids) for answer in answers}) == 1


async def test_special_tokens_are_never_generated(replica: Replica) -> None:
    answer = await replica.stream("end", 400)
    assert answer.finish_reason == "length"
    assert min(answer.token_ids) >= 6


async def test_steps_take_the_modelled_time(live: Live, replica: Replica) -> None:
    if live.state.pace == "off":
        pytest.skip("the cluster is not paced")
    alone = await replica.stream("tick", 30)
    assert alone.arrived[-1] - alone.arrived[0] >= 28 * current().pace_base_s, "steps were not slowed down"
    together = await asyncio.gather(*(replica.stream(f"tock {n}", 30) for n in range(current().max_num_seqs)))
    first = min(answer.arrived[0] for answer in together)
    last = max(answer.arrived[-1] for answer in together)
    one_by_one = len(together) * 29 * current().pace_base_s
    assert last - first < one_by_one / 2, "sequences were not decoded together"


async def test_sequences_beyond_the_slots_wait_in_the_engine(replica: Replica) -> None:
    slots = current().max_num_seqs
    calls = [asyncio.create_task(replica.stream(f"call {n}", 60)) for n in range(slots + 2)]

    async def full_and_waiting() -> bool:
        return (await replica.metric(VLLM_RUNNING), await replica.metric(VLLM_WAITING)) == (slots, 2)

    await observed(f"{slots} requests run and 2 wait", full_and_waiting)
    assert {answer.finish_reason for answer in await asyncio.gather(*calls)} == {"length"}


async def test_cache_holds_three_full_contexts_and_not_four(replica: Replica) -> None:
    prompts = [
        [6 + (499 * which + (7 + which) * place) % 2000 for place in range(3800)] for which in range(4)
    ]
    calls = [asyncio.create_task(replica.stream(prompt, 100)) for prompt in prompts]

    async def full_and_waiting() -> bool:
        return await replica.metric(VLLM_KV_USAGE) > 0.9 and await replica.metric(VLLM_WAITING) >= 1

    await observed("the cache is full and a call waits", full_and_waiting)
    assert [answer.finish_reason for answer in await asyncio.gather(*calls)] == ["length"] * 4


async def test_prompt_that_is_too_long_is_refused_in_the_api_shape(replica: Replica) -> None:
    status, body = await replica.complete("token " * 5000, 10)
    assert status == 400
    assert body["error"]["type"]
    assert "4096" in body["error"]["message"]


async def test_client_that_leaves_its_stream_frees_the_engine(replica: Replica) -> None:
    await running(replica, 0)
    before = await replica.metric(GENERATED)
    answer = Answer()
    call = asyncio.create_task(replica.stream("a long story", 3000, answer))
    await begun(answer)
    await running(replica, 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await running(replica, 0)
    assert await replica.metric(GENERATED) - before < 1000, "the engine went on after its client had left"


async def test_storm_of_leaving_clients_leaves_nothing_behind(replica: Replica) -> None:
    answers = [Answer() for _ in range(24)]
    calls = [asyncio.create_task(replica.stream(f"story {n}", 3000, one)) for n, one in enumerate(answers)]
    await running(replica, current().max_num_seqs)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await running(replica, 0)
    assert await replica.metric(VLLM_WAITING) == 0
    assert (await replica.stream("still there?", 5)).finish_reason == "length"


async def test_lost_engine_ends_every_call_cleanly_and_the_replica_is_replaced(live: Live) -> None:
    replica = (await live.replicas())[-1]
    process, engine_core = replica.process(), replica.engine_core()
    answer = Answer()
    streaming = asyncio.create_task(replica.stream("a long story", 3000, answer))
    whole = asyncio.create_task(replica.complete("another long story", 3000))
    await begun(answer)
    await running(replica, 2)
    engine_core.kill()
    status, body = await whole
    assert status == 500
    assert body["error"]["message"]
    assert (await streaming).error is not None, "the stream ended without saying that it failed"
    assert answer.finish_reason is None
    await gone(process, bound_s=10)
    assert len(await live.whole(without=replica.link)) == live.state.replicas


async def test_lost_replica_takes_its_engine_along_and_is_replaced(live: Live) -> None:
    replica = (await live.replicas())[0]
    process, engine_core = replica.process(), replica.engine_core()
    answer = Answer()
    streaming = asyncio.create_task(replica.stream("a long story", 3000, answer))
    await begun(answer)
    process.kill()
    await streaming
    assert answer.broken, "the stream of a killed replica ended as if it were whole"
    assert answer.finish_reason is None
    await gone(engine_core)
    assert len(await live.whole(without=replica.link)) == live.state.replicas


async def test_nothing_listens_off_this_machine(live: Live) -> None:
    processes: set[int] = set()
    for record in live.state.processes:
        if psutil.pid_exists(record.pid):
            started = psutil.Process(record.pid)
            processes |= {started.pid, *(child.pid for child in started.children(recursive=True))}
    listening = [
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in processes
    ]
    assert len(listening) > 10, "the cluster's listeners were not found"
    open_to_all = [one for one in listening if one[0] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")]
    assert open_to_all == []
