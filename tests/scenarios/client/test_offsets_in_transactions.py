"""send_offsets against a scripted cluster: what is sent, in which order, and what a refusal does to the transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace import AsyncConsumer, AsyncProducer, Consumer, GroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from headrace.errors import (
    ClosedError,
    CoordinatorLoadInProgressError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidProducerEpochError,
    NoOffsetForPartitionError,
    ProducerFencedError,
    RequestTimedOutError,
    StaleMemberEpochError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from headrace.group import commits
from tests.worlds.waiting import until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("g", 4, "m-1", "i-1")


def producer(cluster: Any, **settings: Any) -> Producer:
    given = {"transactional_id": "payments", "retry_backoff_ms": 5, "retry_backoff_max_ms": 20, **settings}
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **given)


def consumer(cluster: Any, **settings: Any) -> Consumer:
    given = {"group_id": "g", "auto_offset_reset": "earliest", "retry_backoff_ms": 5, **settings}
    made = Consumer(bootstrap_servers=cluster.bootstrap_servers, **given)
    made.assign([TopicPartition("in", 0)])
    return made


@pytest.fixture
def inputs(fake: Any, transactions: Any) -> Any:
    """Create a topic "in" with the records 0 to 9."""
    fake.create("in")
    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        out.send_many("in", [b"%d" % number for number in range(10)]).result(10)
    return fake


def committed(transactions: Any) -> dict[tuple[str, str, int], int]:
    with transactions.lock:
        return dict(transactions.offsets)


def test_offsets_take_effect_with_the_commit(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        with out.transaction():
            out.send("t", b"a")
            out.send_offsets({T0: 5, T1: OffsetAndMetadata(7, "note", 3)}, group=GROUP)
            assert committed(transactions) == {}
        assert committed(transactions) == {("g", "t", 0): 5, ("g", "t", 1): 7}
        with pytest.raises(KeyError), out.transaction():  # noqa: PT012
            out.send_offsets({T0: 6}, GROUP)
            raise KeyError
        assert committed(transactions)["g", "t", 0] == 5
    (first, second) = transactions.asked("CommitTransactionOffsets")
    assert (first.transactional_id, first.transaction_version, first.producer_epoch) == ("payments", 2, 0)
    assert (first.group_id, first.member_id, first.member_epoch, first.instance_id) == ("g", "m-1", 4, "i-1")
    zero, one = first.offsets
    assert (zero.topic, zero.partition, zero.offset, zero.leader_epoch) == ("t", 0, 5, -1)
    assert (one.offset, one.metadata, one.leader_epoch) == (7, "note", 3)
    assert second.producer_epoch == 1
    assert transactions.records("t") == [b"a"]


def test_each_request_takes_the_next_number_of_the_members_commits(
    fake: Any, transactions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = None
    of_member = commits.Commits(engine, engine, "g", lambda: commits.Who("m-1"))
    monkeypatch.setitem(commits._OF_MEMBERS, "m-1", of_member)  # as its first commit does
    with producer(fake) as out, out.transaction():
        for group in (GROUP, GROUP._replace(member_id="m-2"), GroupMetadata("g"), GROUP):
            out.send_offsets({T0: 5}, group)
    assert [each.commit_sequence for each in transactions.asked("CommitTransactionOffsets")] == [1, 0, 0, 2]


def test_transaction_of_offsets_alone_ends_at_the_coordinator(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        with out.transaction():
            out.send_offsets({T0: 5}, GROUP)
        with out.transaction():
            out.send_offsets({}, GROUP)
    assert [end.commit for end in transactions.asked("EndTransaction")] == [True], "without offsets nothing was begun"
    assert committed(transactions) == {("g", "t", 0): 5}


def test_requests_are_numbered_and_a_repeated_one_keeps_its_number(fake: Any, transactions: Any) -> None:
    fates = ["lost", CoordinatorLoadInProgressError("an error set by the test"), None, None]
    transactions.on_call = lambda method, request: (
        fates.pop(0) if method == "CommitTransactionOffsets" and fates else None
    )
    with producer(fake) as out:
        with out.transaction():
            out.send_offsets({T0: 5}, GROUP)
            out.send_offsets({T0: 6}, GROUP)
        with out.transaction():
            out.send_offsets({T0: 7}, GROUP)
    sent = [(each.sequence, each.offsets[0].offset) for each in transactions.asked("CommitTransactionOffsets")]
    assert sent == [(1, 5), (1, 5), (1, 5), (2, 6), (1, 7)]
    assert committed(transactions) == {("g", "t", 0): 7}


def test_positions_of_a_consumer_are_sent(inputs: Any, transactions: Any) -> None:
    with producer(inputs) as out, consumer(inputs) as inp:
        for records in inp.batches(timeout=5, max_records=4):
            with out.transaction():
                for record in records:
                    out.send("t", record.value)
                out.send_offsets(inp)
            if records[-1].offset == 9:
                break
    assert transactions.records("t") == [b"%d" % number for number in range(10)]
    assert committed(transactions) == {("g", "in", 0): 10}
    (first, *_) = transactions.asked("CommitTransactionOffsets")
    assert (first.group_id, first.member_id, first.member_epoch, first.offsets[0].offset) == ("g", "", -1, 4)
    assert not transactions.asked("CommitOffsets"), "the consumer does not commit by itself"


def test_records_of_an_iteration_are_sent_with_the_current_one(inputs: Any, transactions: Any) -> None:
    with producer(inputs) as out, consumer(inputs) as inp:
        for record in inp:
            with out.transaction():
                out.send("t", record.value)
                out.send_offsets(inp)
            if record.offset == 2:
                break
        assert committed(transactions) == {("g", "in", 0): 3}
    assert committed(transactions) == {("g", "in", 0): 3}


def test_after_an_abort_the_consumer_goes_back_to_the_committed_offsets(inputs: Any, transactions: Any) -> None:
    with producer(inputs) as out, consumer(inputs) as inp:
        assert [record.offset for record in inp.poll(5, max_records=3)] == [0, 1, 2]
        with pytest.raises(KeyError), out.transaction():  # noqa: PT012
            out.send_offsets(inp)
            raise KeyError
        inp.seek_to_committed()
        assert [record.offset for record in inp.poll(5, max_records=3)] == [0, 1, 2], "auto.offset.reset: no offset yet"
        with out.transaction():
            out.send_offsets(inp)
        assert [record.offset for record in inp.poll(5, max_records=3)] == [3, 4, 5]
        inp.seek_to_committed(TopicPartition("in", 0))
        assert inp.position(TopicPartition("in", 0)) == 3
        assert [record.offset for record in inp.poll(5, max_records=1)] == [3]


def test_offsets_of_pending_transactions_are_awaited(inputs: Any, transactions: Any) -> None:
    with producer(inputs) as out, consumer(inputs) as inp:
        inp.poll(5, max_records=3)
        transactions.markers_held = True
        with out.transaction():
            out.send_offsets(inp)
        with pytest.raises(RequestTimedOutError, match="pending"):
            inp.seek_to_committed(timeout=2)
        transactions.markers_held = False
        transactions.write_markers()
        inp.seek_to_committed()
        assert inp.position(TopicPartition("in", 0)) == 3


def test_without_a_committed_offset_and_without_a_reset_the_consumer_says_so(inputs: Any, transactions: Any) -> None:
    with consumer(inputs, auto_offset_reset="none") as inp, pytest.raises(NoOffsetForPartitionError):
        inp.seek_to_committed()
    with Consumer(bootstrap_servers=inputs.bootstrap_servers) as alone:
        alone.assign([T0])
        with pytest.raises(InvalidGroupIdError, match=r"set group\.id"):
            alone.seek_to_committed()


REFUSALS = {
    "of a member that was replaced": StaleMemberEpochError("the member epoch is 5"),
    "of an ended epoch": InvalidProducerEpochError("late"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_offsets_make_the_transaction_abortable(fake: Any, transactions: Any, name: str) -> None:
    refusal = REFUSALS[name]
    with producer(fake) as out:
        transactions.on_call = lambda method, request: refusal if method == "CommitTransactionOffsets" else None
        aborted = pytest.raises(TransactionAbortableError, match=rf"{refusal.code}.*abort_transaction\(\)")
        with aborted, out.transaction():
            record = out.send("t", b"a")
            with pytest.raises(TransactionAbortableError):
                out.send_offsets({T0: 5}, GROUP)
            with pytest.raises(TransactionAbortableError):
                out.send("t", b"b")
        with contextlib.suppress(TransactionAbortedError):
            record.result(10)
        transactions.on_call = lambda method, request: None
        with out.transaction():
            out.send("t", b"c")
            out.send_offsets({T0: 6}, GROUP)
    assert transactions.records("t") == [b"c"]
    assert committed(transactions) == {("g", "t", 0): 6}


def test_offsets_without_an_answer_cannot_be_committed(fake: Any, transactions: Any) -> None:
    """The coordinator may or may not have the offsets, so the records must not be committed without them."""
    transactions.on_call = lambda method, request: (
        CoordinatorLoadInProgressError("an error set by the test") if method == "CommitTransactionOffsets" else None
    )
    with producer(fake, max_block_ms=2_000) as out:
        out.begin_transaction()
        out.send("t", b"a").result(10)
        with pytest.raises(TransactionAbortableError, match=r"REQUEST_TIMED_OUT.*an error set by the test"):
            out.send_offsets({T0: 5}, GROUP)
        with pytest.raises(TransactionAbortableError):
            out.commit_transaction()
        out.abort_transaction()
    assert transactions.records("t") == []


def test_zombies_offsets_are_refused(fake: Any, transactions: Any) -> None:
    with producer(fake) as zombie, producer(fake) as out:
        with pytest.raises(ProducerFencedError, match="fenced"), zombie.transaction():  # noqa: PT012
            zombie.send("t", b"z").result(10)
            out.init_transactions()
            zombie.send_offsets({T0: 5}, GROUP)
        with pytest.raises(ProducerFencedError, match="has ended"):
            zombie.send_offsets({T0: 5}, GROUP)
        with out.transaction():
            out.send_offsets({T0: 9}, GROUP)
    assert committed(transactions) == {("g", "t", 0): 9}


def test_offsets_belong_to_a_prepared_transaction(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        out.begin_transaction()
        out.send_offsets({T0: 5}, GROUP)
        token = out.prepare()
        with pytest.raises(IllegalStateError, match=r"complete\(token"):
            out.send_offsets({T0: 6}, GROUP)
        assert committed(transactions) == {}
        out.complete(token, commit=True)
    assert committed(transactions) == {("g", "t", 0): 5}


def test_wrong_order_of_calls_names_the_right_one(inputs: Any, transactions: Any) -> None:
    with producer(inputs) as out, consumer(inputs) as inp:
        for _ in range(2):
            with pytest.raises(IllegalStateError, match=r"send_offsets\(\) is not legal now.*begin_transaction\(\)"):
                out.send_offsets({T0: 5}, GROUP)
            with out.transaction():
                out.send("t", b"v").result(10)
        out.begin_transaction()
        wrong: dict[str, tuple[Callable[[], object], type[Exception]]] = {
            r"group=consumer.group_metadata\(\)": (lambda: out.send_offsets({T0: 5}), InvalidArgumentError),
            "must be None when you pass a consumer": (lambda: out.send_offsets(inp, GROUP), InvalidArgumentError),
            "pass the consumer": (lambda: out.send_offsets(7), InvalidArgumentError),  # type: ignore[arg-type]
            "offset of t-0": (lambda: out.send_offsets({T0: -1}, GROUP), InvalidArgumentError),
            "empty group_id": (lambda: out.send_offsets({T0: 1}, GroupMetadata("")), InvalidGroupIdError),
        }
        for words, (call, error) in wrong.items():
            with pytest.raises(error, match=words):
                call()
        out.commit_transaction()
    with producer(inputs) as out, out.transaction():
        with pytest.raises(ClosedError):
            out.send_offsets(inp)
        with Consumer(bootstrap_servers=inputs.bootstrap_servers) as alone, pytest.raises(InvalidGroupIdError):
            out.send_offsets(alone)
    refused = pytest.raises(IllegalStateError, match=r"send_offsets\(\) needs a transactional producer")
    with Producer(bootstrap_servers=inputs.bootstrap_servers) as plain, refused:
        plain.send_offsets({T0: 5}, GROUP)
    assert not transactions.asked("CommitTransactionOffsets")


def test_async_clients_have_the_same_calls(inputs: Any, transactions: Any) -> None:
    async def main() -> None:
        at = inputs.bootstrap_servers
        async with (
            AsyncProducer(bootstrap_servers=at, transactional_id="payments") as out,
            AsyncConsumer(bootstrap_servers=at, group_id="g", auto_offset_reset="earliest") as inp,
        ):
            await inp.assign([TopicPartition("in", 0)])
            async for records in inp.batches(timeout=5, max_records=5):
                with contextlib.suppress(KeyError):
                    async with out.transaction():
                        await out.send_offsets(inp)
                        raise KeyError
                await inp.seek_to_committed()
                async with out.transaction():
                    await out.send_offsets({TopicPartition("in", 0): records[-1].offset}, inp.group_metadata())
                await inp.seek_to_committed()
                assert await inp.position(TopicPartition("in", 0)) == 4
                break

    asyncio.run(asyncio.wait_for(main(), 60))
    assert committed(transactions) == {("g", "in", 0): 4}


def test_interrupted_call_fails_the_transaction(fake: Any, transactions: Any) -> None:
    """After an interrupted call, the coordinator may or may not have the offsets of the call."""
    transactions.on_call = lambda method, request: (
        CoordinatorLoadInProgressError("an error set by the test") if method == "CommitTransactionOffsets" else None
    )

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:
            await out.begin_transaction()
            call = asyncio.create_task(out.send_offsets({T0: 5}, GROUP))
            await asyncio.to_thread(until, lambda: transactions.asked("CommitTransactionOffsets"))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            with pytest.raises(TransactionAbortableError, match="interrupted"):
                await out.commit_transaction()
            await out.abort_transaction()

    asyncio.run(asyncio.wait_for(main(), 60))
