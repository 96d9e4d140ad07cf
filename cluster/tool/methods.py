"""What the tool can do: read a price, submit a transfer, and tell whether one was submitted under a key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.tool.jsonrpc import INVALID_PARAMS, Method, RpcError
from cluster.tool.ledger import KeyReusedError, Ledger, Transfer

KEY_REUSED = -32001
"""The idempotency key was used before, for another transfer."""

_Params = TypeVar("_Params", bound=BaseModel)


class PriceParams(BaseModel):
    """Parameters of ``get_price``."""

    model_config = ConfigDict(extra="forbid")
    symbol: str = Field(pattern=r"^[A-Z0-9]{1,12}$")


class TransferParams(BaseModel):
    """Parameters of ``submit_transfer``."""

    model_config = ConfigDict(extra="forbid")
    sender: str = Field(alias="from", min_length=1, max_length=128)
    receiver: str = Field(alias="to", min_length=1, max_length=128)
    amount: Decimal = Field(gt=0, max_digits=30, allow_inf_nan=False)
    idempotency_key: str = Field(min_length=1, max_length=256)


class KeyParams(BaseModel):
    """Parameters of ``get_transfer``."""

    model_config = ConfigDict(extra="forbid")
    idempotency_key: str = Field(min_length=1, max_length=256)


def price(symbol: str) -> str:
    """Return a price between 1.00 and 9999.99 that depends on the symbol alone.

    It never moves, so that the same seed gives the same prompts in every run and arm.
    """
    cents = 100 + int.from_bytes(hashlib.sha256(symbol.encode()).digest()[:8]) % 999_900
    return f"{cents // 100}.{cents % 100:02d}"


def table(ledger: Ledger) -> dict[str, Method]:
    """Return the tool's methods by name."""

    async def get_price(params: Any) -> dict[str, Any]:
        asked = _validated(PriceParams, params)
        return {"symbol": asked.symbol, "price": price(asked.symbol), "currency": "USD"}

    async def submit_transfer(params: Any) -> dict[str, Any]:
        asked = _validated(TransferParams, params)
        transfer = Transfer(asked.sender, asked.receiver, f"{asked.amount.normalize():f}")
        try:
            effect, replayed = ledger.submit(asked.idempotency_key, transfer)
        except KeyReusedError as error:
            raise RpcError(KEY_REUSED, "Idempotency key reused", str(error)) from error
        return {"seq": effect.seq, "replayed": replayed}

    async def get_transfer(params: Any) -> dict[str, Any] | None:
        asked = _validated(KeyParams, params)
        effect = ledger.find(asked.idempotency_key)
        return None if effect is None else {"seq": effect.seq, "replayed": True}

    return {"get_price": get_price, "get_transfer": get_transfer, "submit_transfer": submit_transfer}


def _validated(model: Callable[..., _Params], params: Any) -> _Params:
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "Invalid params", "parameters are given by name, in an object")
    try:
        return model(**params)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg']} (value {one['input']!r})"
            for one in error.errors(include_url=False)
        ]
        raise RpcError(INVALID_PARAMS, "Invalid params", problems) from error
