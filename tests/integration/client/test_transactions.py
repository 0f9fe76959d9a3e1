"""The transactional producer on real processes, read with read_committed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import (
    Admin,
    AsyncProducer,
    Consumer,
    NewTopic,
    Producer,
    SinkState,
    TopicPartition,
    TransactionToken,
)
from headrace.errors import (
    IllegalStateError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
)
from headrace.models import GroupMetadata
from headrace_core.sinks import SinkTransaction, sink_id
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import until

_names = itertools.count()
PARTITIONS = 3


@pytest.fixture
def bootstrap(headrace: Any) -> str:
    return str(headrace.bootstrap_servers)


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"transactions-{os.getpid()}-{next(_names)}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS)])
    return name


def producer(bootstrap: str, topic: str, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=bootstrap, transactional_id=f"id-of-{topic}", **settings)


def values(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> set[bytes]:
    """The records up to the last stable offset (or the end), without duplicates."""
    everywhere = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level) as inp:
        inp.assign(everywhere)
        found = [record.value or b"" for record in read_to_end(inp)]
        assert len(found) == len(set(found)), "each record once"
        return set(found)


def test_commits_are_seen_and_aborts_are_not(bootstrap: str, topic: str) -> None:
    expected = set()
    with producer(bootstrap, topic) as out:
        for number in range(10):
            records = {b"%d.%d" % (number, item) for item in range(20)}
            if number % 3 == 2:
                with pytest.raises(KeyError), out.transaction():  # noqa: PT012
                    for value in records:
                        out.send(topic, value, key=value)
                    out.flush()
                    raise KeyError
            else:
                with out.transaction():
                    for value in records:
                        out.send(topic, value, key=value)
                expected |= records
        with out.transaction():
            out.send_many(topic, [b"many"]).result(30)
            out.send_arrow(topic, pa.table({"value": [b"arrow"]})).result(30)
            assert b"many" in values(bootstrap, topic, "read_uncommitted")
        expected |= {b"many", b"arrow"}
    until(lambda: values(bootstrap, topic) == expected)
    assert values(bootstrap, topic, "read_uncommitted") > expected


#: The zombie sends its last record to a partition of its transaction, or to another partition.
ZOMBIES: dict[str, Callable[[Producer, str, int], object]] = {
    "send": lambda out, topic, number: out.send(topic, b"zz", partition=number),
    "send_many": lambda out, topic, number: out.send_many(topic, [b"zz"], partition=number),
    "send_arrow": lambda out, topic, number: out.send_arrow(topic, pa.table({"value": [b"zz"], "partition": [number]})),
    "send_offsets": lambda out, topic, number: out.send_offsets(
        {TopicPartition(topic, number): 1}, GroupMetadata(f"group-of-{topic}")
    ),
    "prepare": lambda out, topic, number: out.prepare(),
}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("way", ZOMBIES)
def test_zombie_is_fenced(bootstrap: str, topic: str, way: str, number: int) -> None:
    with producer(bootstrap, topic) as zombie, producer(bootstrap, topic) as out:
        with pytest.raises(ProducerFencedError), zombie.transaction():  # noqa: PT012
            zombie.send(topic, b"z", partition=0).result(30)
            out.init_transactions()
            with contextlib.suppress(ProducerFencedError, TransactionAbortableError):
                ZOMBIES[way](zombie, topic, number)
        with pytest.raises(ProducerFencedError):
            zombie.begin_transaction()
        with out.transaction():
            out.send(topic, b"kept")
    until(lambda: values(bootstrap, topic) == {b"kept"})
    if way == "send_offsets":
        with Consumer(bootstrap_servers=bootstrap, group_id=f"group-of-{topic}") as inp:
            assert inp.committed(TopicPartition(topic, number)) is None


def test_transaction_that_times_out_is_aborted_and_the_producer_continues(bootstrap: str, topic: str) -> None:
    t0 = TopicPartition(topic, 0)
    with producer(bootstrap, topic, transaction_timeout_ms=4_000) as out:
        with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as inp:
            assert inp.end_offsets([t0]) == {t0: 0}  # and the consumer is connected
            out.begin_transaction()
            out.send(topic, b"late", partition=0).result(30)
            assert inp.end_offsets([t0]) == {t0: 0}
            until(lambda: inp.end_offsets([t0])[t0] > 0)
        with pytest.raises(TransactionAbortableError):
            out.commit_transaction()
        with pytest.raises(TransactionAbortableError):
            out.commit_transaction()
        out.abort_transaction()
        with out.transaction():
            out.send(topic, b"kept")
    until(lambda: values(bootstrap, topic) == {b"kept"})


@pytest.mark.parametrize("commit", [True, False])
def test_prepared_transaction_is_completed_elsewhere(bootstrap: str, topic: str, commit: bool) -> None:
    with producer(bootstrap, topic) as out, out.transaction():
        for number in range(10):
            out.send(topic, b"%d" % number, key=b"%d" % number)
        token = out.prepare()
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.complete_transaction(str(token), commit=commit)
        assert values(bootstrap, topic) == ({b"%d" % number for number in range(10)} if commit else set())
        admin.complete_transaction(token, commit=commit)
        with pytest.raises(InvalidTxnStateError):
            admin.complete_transaction(token, commit=not commit)
    with producer(bootstrap, topic) as out, out.transaction():
        out.send(topic, b"next")
    until(lambda: b"next" in values(bootstrap, topic))


def test_a_sinks_batch_becomes_visible_whole_when_its_commit_returns(bootstrap: str, topic: str) -> None:
    sink = sink_id(f"query-{os.getpid()}", topic)

    def prepared(batch: int, task: int, nonce: str) -> TransactionToken:
        name = str(SinkTransaction(sink, batch, 0, task, nonce))
        with Producer(bootstrap_servers=bootstrap, transactional_id=name) as out, out.transaction():
            out.send_many(topic, [(b"%d" % n, f"{batch}.{task}.{n}.{nonce}".encode()) for n in range(10)])
            return out.prepare()

    expected: set[bytes] = set()
    producer_ids = set()
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.describe_sink(sink) == SinkState(-1, 0)
        for batch in range(4):
            tokens = [prepared(batch, task, "kept") for task in (0, 1)]
            losers = [prepared(batch, 1, "lost")]
            assert values(bootstrap, topic) == expected
            assert admin.commit_sink_batch(sink, batch, tokens) == SinkState(batch, 0)
            expected |= {f"{batch}.{task}.{n}.kept".encode() for task in (0, 1) for n in range(10)}
            assert values(bootstrap, topic) == expected, "the commit waits for the markers, also of the losers"
            assert admin.commit_sink_batch(sink, batch, losers) == SinkState(batch, 0)
            producer_ids |= {token.producer_id for token in (*tokens, *losers)}
        assert admin.describe_sink(sink) == SinkState(3, 0)
    assert values(bootstrap, topic) == expected
    assert len(producer_ids) <= 3, "later tasks use the producer ids of completed ones"


def test_keep_prepared_hands_the_transaction_over(bootstrap: str, topic: str) -> None:
    with producer(bootstrap, topic) as out:
        with out.transaction():
            out.send(topic, b"a")
            token = out.prepare()
        with producer(bootstrap, topic) as heir:
            assert heir.init_transactions(keep_prepared=True) == token
            with pytest.raises(IllegalStateError, match="complete"):
                heir.begin_transaction()
            heir.complete(token, commit=True)
            assert values(bootstrap, topic) == {b"a"}
            with heir.transaction():
                heir.send(topic, b"b")
    until(lambda: values(bootstrap, topic) == {b"a", b"b"})


def test_many_small_transactions_in_a_row(bootstrap: str, topic: str) -> None:
    """The next transaction begins while the markers of the previous transaction are written."""
    count = 100
    with producer(bootstrap, topic) as out:
        for number in range(count):
            with out.transaction():
                out.send(topic, b"%d" % number, partition=number % PARTITIONS)
                out.send(topic, b"%d again" % number, partition=(number + 1) % PARTITIONS)
    expected = {b"%d" % number for number in range(count)} | {b"%d again" % number for number in range(count)}
    until(lambda: values(bootstrap, topic) == expected)


def test_async_transactions(bootstrap: str, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=bootstrap, transactional_id=f"id-of-{topic}") as out:
            async with out.transaction():
                await out.send(topic, b"a")
            with pytest.raises(KeyError):  # noqa: PT012
                async with out.transaction():
                    await out.send(topic, b"b")
                    raise KeyError
            await out.begin_transaction()
            await out.send(topic, b"c")
            token = await out.prepare()
            await out.complete(token, commit=True)

    asyncio.run(main())
    until(lambda: values(bootstrap, topic) == {b"a", b"c"})
