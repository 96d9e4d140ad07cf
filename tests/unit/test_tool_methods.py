"""What the tool does: prices that never move, transfers that happen once, faults that a test switches on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cluster.tool.control import INJECTED_ERROR, AnswerLost, Control, Faults
from cluster.tool.jsonrpc import INVALID_PARAMS, RpcError
from cluster.tool.ledger import KeyReusedError, Ledger, Transfer
from cluster.tool.methods import KEY_REUSED, price, table

PAY = {"from": "alice", "to": "bob", "amount": "12.50", "idempotency_key": "k1"}


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(clock=lambda: 1000.0)


async def submit(ledger: Ledger, **changes: Any) -> Any:
    return await table(ledger)["submit_transfer"](PAY | changes)


async def test_price_depends_on_the_symbol_alone(ledger: Ledger) -> None:
    read = table(ledger)["get_price"]
    assert await read({"symbol": "ETH"}) == {"symbol": "ETH", "price": price("ETH"), "currency": "USD"}
    assert price("ETH") == price("ETH") != price("BTC")
    assert 1 <= float(price("ETH")) < 10_000
    assert ledger.effects() == []


async def test_transfer_is_written_down_once(ledger: Ledger) -> None:
    assert await submit(ledger) == {"seq": 1, "replayed": False}
    assert await submit(ledger) == {"seq": 1, "replayed": True}
    assert [effect.to_json() for effect in ledger.effects()] == [
        {
            "seq": 1,
            "at": 1000.0,
            "idempotency_key": "k1",
            "sender": "alice",
            "receiver": "bob",
            "amount": "12.5",
        }
    ]
    assert ledger.replays == 1


@pytest.mark.parametrize("amount", ["12.5", 12.5, "12.500", "1.25e1"])
async def test_same_amount_written_otherwise_is_the_same_transfer(ledger: Ledger, amount: Any) -> None:
    await submit(ledger)
    assert (await submit(ledger, amount=amount))["replayed"] is True


async def test_key_with_another_transfer_is_refused(ledger: Ledger) -> None:
    await submit(ledger)
    with pytest.raises(RpcError) as caught:
        await submit(ledger, amount="13")
    assert caught.value.code == KEY_REUSED
    assert len(ledger.effects()) == 1
    assert ledger.replays == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": 0},
        {"amount": "-1"},
        {"amount": "NaN"},
        {"amount": "much"},
        {"idempotency_key": ""},
        {"to": ""},
        {"from": None},
        {"memo": "x"},
    ],
)
async def test_bad_transfer_names_the_field_and_has_no_effect(
    ledger: Ledger, changes: dict[str, Any]
) -> None:
    with pytest.raises(RpcError) as caught:
        await submit(ledger, **changes)
    assert caught.value.code == INVALID_PARAMS
    assert str(caught.value.data).find(next(iter(changes))) >= 0
    assert ledger.effects() == []


@pytest.mark.parametrize("params", [None, ["ETH"], {}, {"symbol": "eth usd"}, {"symbol": 5}, {"sym": "ETH"}])
async def test_bad_parameters_of_a_read(ledger: Ledger, params: Any) -> None:
    with pytest.raises(RpcError) as caught:
        await table(ledger)["get_price"](params)
    assert caught.value.code == INVALID_PARAMS


def test_ledger_can_be_read_from_a_place_on(ledger: Ledger) -> None:
    for number in range(1, 6):
        ledger.submit(f"k{number}", Transfer("a", "b", str(number)))
    assert [effect.seq for effect in ledger.effects(after=3)] == [4, 5]
    assert ledger.effects(after=5) == []
    assert len(ledger.effects(after=-2)) == 5


def test_refused_key_leaves_the_ledger_as_it_was(ledger: Ledger) -> None:
    ledger.submit("k", Transfer("a", "b", "1"))
    with pytest.raises(KeyReusedError, match="belongs to transfer 1"):
        ledger.submit("k", Transfer("a", "c", "1"))
    assert len(ledger.effects()) == 1


class Counted:
    """A method with an effect that can be counted, and a sleep whose lengths can be read."""

    def __init__(self) -> None:
        self.ran = 0
        self.slept: list[float] = []

    async def method(self, params: Any) -> Any:
        self.ran += 1
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_without_faults_the_method_just_runs() -> None:
    counted = Counted()
    assert await Control(counted.sleep).wrap("m", counted.method)(None) == "done"
    assert counted.slept == []


async def test_latency_passes_before_the_effect() -> None:
    counted = Counted()
    control = Control(counted.sleep)
    control.set(Faults(latency_s=2.5))
    assert await control.wrap("m", counted.method)(None) == "done"
    assert counted.slept == [2.5]


@pytest.mark.parametrize(("rate", "failed"), [(0.0, 0), (0.25, 25), (0.1, 10), (1.0, 100)])
async def test_errors_come_at_exactly_the_rate_and_without_effect(rate: float, failed: int) -> None:
    counted = Counted()
    control = Control()
    control.set(Faults(error_rate=rate))
    faulty = control.wrap("m", counted.method)
    answers = await asyncio.gather(*(faulty(None) for _ in range(100)), return_exceptions=True)
    errors = [one for one in answers if isinstance(one, RpcError)]
    assert [error.code for error in errors] == [INJECTED_ERROR] * failed
    assert counted.ran == 100 - failed


async def test_lost_answer_has_its_effect() -> None:
    counted = Counted()
    control = Control()
    control.set(Faults(lose_answer=True))
    with pytest.raises(AnswerLost):
        await control.wrap("m", counted.method)(None)
    assert counted.ran == 1


async def test_hung_call_has_no_effect_until_the_fault_is_taken_away() -> None:
    counted = Counted()
    control = Control()
    control.set(Faults(hang=True))
    call = asyncio.create_task(control.wrap("m", counted.method)(None))
    await asyncio.sleep(0)
    control.set(Faults(hang=True, latency_s=1))
    await asyncio.sleep(0)
    assert not call.done()
    assert counted.ran == 0
    control.set(Faults())
    assert await call == "done"


async def test_faults_hit_the_named_methods_only() -> None:
    counted = Counted()
    control = Control()
    control.set(Faults(error_rate=1, methods=frozenset({"write"})))
    assert await control.wrap("read", counted.method)(None) == "done"
    with pytest.raises(RpcError):
        await control.wrap("write", counted.method)(None)


async def test_what_was_submitted_under_a_key_can_be_looked_up(ledger: Ledger) -> None:
    look_up = table(ledger)["get_transfer"]
    assert await look_up({"idempotency_key": "k1"}) is None
    await submit(ledger)
    assert await look_up({"idempotency_key": "k1"}) == await submit(ledger)
    assert ledger.replays == 1, "a look is no replay"


async def test_a_ledger_with_a_journal_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    journal = tmp_path / "ledger"
    await submit(Ledger(lambda: 1000.0, journal))
    with journal.open("ab") as file:
        file.write(b'{"seq": 2, "at"')  # killed while it wrote
    again = Ledger(lambda: 2000.0, journal)
    assert await submit(again) == {"seq": 1, "replayed": True}
    assert (await submit(again, idempotency_key="k2"))["seq"] == 2
    assert [effect.at for effect in Ledger(lambda: 3000.0, journal).effects()] == [1000.0, 2000.0]
