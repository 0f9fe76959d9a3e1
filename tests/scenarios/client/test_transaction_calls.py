"""Make every public call of a transactional producer in every state. A call that is not allowed in a state raises a
typed error that names the right call, and sends nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import AsyncProducer, Producer, TopicPartition, TransactionToken
from headrace.errors import IllegalStateError, ProducerFencedError, TransactionAbortableError
from headrace.models import GroupMetadata
from headrace.producer.sequences import Identity
from headrace.producer.transaction_state import CALLS, Call, State

TOKEN = TransactionToken("payments", 7, 0)


def _block(out: Any) -> Any:
    if isinstance(out, Producer):
        with out.transaction():
            raise AssertionError("the block runs")

    async def block() -> None:
        async with out.transaction():
            raise AssertionError("the block runs")

    return block()


#: The public calls, by name; the asynchronous ones have the same names.
WAYS: dict[str, tuple[Call, Callable[[Any], Any]]] = {
    "init_transactions": (Call.INIT, lambda out: out.init_transactions()),
    "begin_transaction": (Call.BEGIN, lambda out: out.begin_transaction()),
    "transaction": (Call.BEGIN, _block),
    "send": (Call.SEND, lambda out: out.send("t", b"v")),
    "send to an unknown topic": (Call.SEND, lambda out: out.send("unknown", b"v")),
    "send_many": (Call.SEND, lambda out: out.send_many("t", [b"v"])),
    "send_arrow": (Call.SEND, lambda out: out.send_arrow("t", pa.table({"value": [b"v"]}))),
    "send_offsets": (Call.SEND_OFFSETS, lambda out: out.send_offsets({TopicPartition("t", 0): 1}, GroupMetadata("g"))),
    "commit_transaction": (Call.COMMIT, lambda out: out.commit_transaction()),
    "prepare": (Call.PREPARE, lambda out: out.prepare()),
    "abort_transaction": (Call.ABORT, lambda out: out.abort_transaction()),
    "complete": (Call.COMPLETE, lambda out: out.complete(TOKEN, commit=True)),
}


def test_every_public_call_is_here() -> None:
    assert {call for call, _ in WAYS.values()} == set(Call)
    names = {name.partition(" ")[0] for name in WAYS}
    for kind in (Producer, AsyncProducer):
        assert names <= set(dir(kind))
        public = {name for name in dir(kind) if "transaction" in name and not name.startswith("_")}
        assert public <= names, f"{kind.__name__}: calls without a row"


def put(out: Any, state: State) -> None:
    """Bring a producer into the state."""
    transactions = out._core.transactions
    producer = transactions.producer
    producer.identity, producer.token, producer.state = Identity(7, 0), TOKEN, state
    if state is State.FAILED:
        producer._cause = TransactionAbortableError("t-0: the record failed")
    elif state is State.DEAD:
        producer._cause = ProducerFencedError("another producer has the id")
    transactions._hold(state is not State.OPEN)


def check(state: State, call: Call, error: BaseException) -> None:
    if state is State.DEAD:
        assert isinstance(error, ProducerFencedError)
        assert "make a new producer" in str(error)
    elif state is State.FAILED and call in (Call.SEND, Call.SEND_OFFSETS, Call.COMMIT, Call.PREPARE):
        assert isinstance(error, TransactionAbortableError)
        assert "abort_transaction()" in str(error)
        assert "t-0: the record failed" in str(error)
    else:
        assert isinstance(error, IllegalStateError)
        right = [each.value.removesuffix(")") for each in CALLS[state]]
        assert any(name in str(error) for name in right), f"{error} names none of {right}"


def wrong(state: State) -> list[str]:
    return [name for name, (call, _) in WAYS.items() if call not in CALLS[state]]


@pytest.mark.parametrize("state", State)
def test_each_wrong_call_names_a_right_one(fake: Any, transactions: Any, state: State) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:
        for name in wrong(state):
            put(out, state)
            with pytest.raises((IllegalStateError, TransactionAbortableError, ProducerFencedError)) as raised:
                WAYS[name][1](out)
            check(state, WAYS[name][0], raised.value)
            assert out._core.transactions.producer.state is state, name
        put(out, State.DEAD)
    assert fake.produced == []
    assert transactions.asked("EndTransaction") == []


@pytest.mark.parametrize("state", State)
def test_each_wrong_call_of_the_async_producer_names_a_right_one(fake: Any, transactions: Any, state: State) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:
            for name in wrong(state):
                put(out, state)
                with pytest.raises((IllegalStateError, TransactionAbortableError, ProducerFencedError)) as raised:  # noqa: PT012
                    called = WAYS[name][1](out)
                    if inspect.isawaitable(called):
                        await called
                check(state, WAYS[name][0], raised.value)
                assert out._core.transactions.producer.state is state, name
            put(out, State.DEAD)

    asyncio.run(main())
    assert fake.produced == []
    assert transactions.asked("EndTransaction") == []
