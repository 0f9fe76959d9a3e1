"""The transactional producer against a scripted cluster whose coordinator is the real state machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import Admin, AsyncProducer, Producer, SinkState, TransactionToken
from headrace.errors import (
    ClosedError,
    CoordinatorLoadInProgressError,
    HeadraceError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimedOutError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from headrace_core.records import read_header
from headrace_core.sinks import SinkTransaction, sink_id
from tests.worlds.waiting import until, until_async


def producer(cluster: Any, **settings: Any) -> Producer:
    given = {"transactional_id": "payments", "retry_backoff_ms": 5, "retry_backoff_max_ms": 20, **settings}
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **given)


def identities(cluster: Any, topic: str = "t", partition: int = 0) -> list[tuple[int, int]]:
    """(epoch, base sequence) of each batch in the log."""
    headers = [read_header(batch, 0) for batch in cluster.logs[topic, partition]]
    return [(header.producer_epoch, header.base_sequence) for header in headers]


def test_block_commits_its_records_and_the_next_one_has_the_next_epoch(fake: Any, transactions: Any) -> None:
    with producer(fake, transaction_timeout_ms=30_000) as out:
        for number in range(3):
            with out.transaction():
                for item in range(4):
                    out.send("t", b"%d.%d" % (number, item))
            assert transactions.records("t")[-4:] == [b"%d.%d" % (number, item) for item in range(4)]
        assert "transactional id 'payments'" in repr(out)
    assert len(transactions.records("t")) == 12
    (init,) = transactions.asked("InitProducer")
    assert init.transaction_timeout_ms == 30_000
    ends = transactions.asked("EndTransaction")
    assert [(end.producer_epoch, end.commit, end.transaction_version) for end in ends] == [
        (0, True, 2),
        (1, True, 2),
        (2, True, 2),
    ]
    assert {epoch for epoch, _ in identities(fake)} == {0, 1, 2}
    assert (1, 0) in identities(fake)
    assert {request.transactional_id for _, request in fake.produced} == {"payments"}
    assert {request.transaction_version for _, request in fake.produced} == {2}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_way_to_send_carries_the_flag(fake: Any, transactions: Any, compression: str) -> None:
    with producer(fake, compression_type=compression) as out, out.transaction():
        out.send("t", b"one")
        out.flush(10)
        out.send_many("t", [b"two", (b"k", b"three")]).result(10)
        out.send_arrow("t", pa.table({"value": [b"four"]})).result(10)
    assert transactions.records("t") == [b"one", b"two", b"three", b"four"]


def test_block_that_raises_aborts_and_raises_again(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        with pytest.raises(KeyError, match="work"), out.transaction():  # noqa: PT012
            out.send("t", b"lost").result(10)
            out.send("t", b"perhaps sent")
            raise KeyError("work")
        with out.transaction():
            out.send("t", b"kept")
    assert transactions.records("t") == [b"kept"]
    assert [end.commit for end in transactions.asked("EndTransaction")] == [False, True]


def test_abort_does_not_wait_for_records_without_an_acknowledgement(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        out.begin_transaction()
        out.send("t", b"first").result(10)
        fake.hold_answers(True)
        in_flight = [out.send("t", b"%d" % number) for number in range(3)]
        until(lambda: len(fake.produced) >= 2)
        out.abort_transaction()
        for future in in_flight:
            assert isinstance(future.exception(0), TransactionAbortedError)
            assert "its transaction was aborted" in str(future.exception(0))
        fake.hold_answers(False)
        with out.transaction():
            out.send("t", b"kept")
    assert transactions.records("t") == [b"kept"]


def test_transaction_without_a_record_asks_no_coordinator(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        with out.transaction():
            pass
        out.begin_transaction()
        out.abort_transaction()
        with out.transaction():
            out.send("t", b"v")
    assert len(transactions.asked("EndTransaction")) == 1


SENDS: dict[str, Callable[[Producer], object]] = {
    "send": lambda out: out.send("t", b"v"),
    "send of an unknown topic": lambda out: out.send("unknown", b"v"),
    "send_many": lambda out: out.send_many("t", [b"v"]),
    "send_arrow": lambda out: out.send_arrow("t", pa.table({"value": [b"v"]})),
}


@pytest.mark.parametrize("way", SENDS)
def test_send_outside_of_a_transaction_names_the_call(fake: Any, transactions: Any, way: str) -> None:
    with producer(fake) as out:
        for _ in range(2):
            with pytest.raises(IllegalStateError, match=r"begin one: `with producer.transaction\(\):`"):
                SENDS[way](out)
            with out.transaction():
                out.send("t", b"v").result(10)
    assert transactions.records("t") == [b"v", b"v"]


def test_wrong_order_of_calls_names_the_right_one(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        for call in (out.commit_transaction, out.abort_transaction, out.prepare):
            with pytest.raises(IllegalStateError, match=r"begin_transaction\(\)"):
                call()
        out.begin_transaction()
        for call in (out.begin_transaction, out.init_transactions):
            with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) or abort_transaction\(\)"):
                call()  # type: ignore[operator]
        out.commit_transaction()
    with pytest.raises(ClosedError):
        out.begin_transaction()
    with Producer(bootstrap_servers=fake.bootstrap_servers) as plain:
        for call in (plain.begin_transaction, plain.commit_transaction, plain.abort_transaction, plain.prepare):
            with pytest.raises(IllegalStateError, match=r"transactional_id='payments-1'"):
                call()
        with pytest.raises(IllegalStateError, match="transactional_id"), plain.transaction():
            pass


def test_end_whose_answer_is_lost_is_repeated_and_has_one_outcome(fake: Any, transactions: Any) -> None:
    lost = []

    def lose(method: str, request: Any) -> str | None:
        if method == "EndTransaction" and len(lost) < 3:
            lost.append(request)
            return "lost"
        return None

    transactions.on_call = lose
    with producer(fake) as out:
        with out.transaction():
            out.send("t", b"a")
        with out.transaction():
            out.send("t", b"b")
    assert transactions.records("t") == [b"a", b"b"]
    assert [end.producer_epoch for end in transactions.asked("EndTransaction")] == [0, 0, 0, 0, 1]


def test_commit_that_times_out_is_called_again(fake: Any, transactions: Any) -> None:
    transactions.on_call = lambda method, request: (
        CoordinatorLoadInProgressError("an error set by the test") if method == "EndTransaction" else None
    )
    with producer(fake, max_block_ms=2_000) as out:  # (the first calls need their connections within this time)
        out.begin_transaction()
        out.send("t", b"a")
        with pytest.raises(RequestTimedOutError, match=r"may have taken effect; repeat it.*an error set by the test"):
            out.commit_transaction()
        with pytest.raises(IllegalStateError, match=r"repeat commit_transaction\(\)"):
            out.abort_transaction()
        with pytest.raises(IllegalStateError, match=r"repeat commit_transaction\(\)"):
            out.send("t", b"b")
        transactions.on_call = lambda method, request: None
        out.commit_transaction()
    assert transactions.records("t") == [b"a"]


def test_failed_record_aborts_the_transaction(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        transactions.on_produce = lambda broker, item: 87 if b"bad" in item.records else 0
        failed = pytest.raises(TransactionAbortableError, match=r"INVALID_RECORD.*abort_transaction")
        with failed, out.transaction():
            good = out.send("t", b"good")
            good.result(10)
            bad = out.send("t", b"bad")
            until(bad.done)
            with pytest.raises(TransactionAbortableError):
                out.send("t", b"too late")
        with out.transaction():
            out.send("t", b"again")
    assert transactions.records("t") == [b"again"]
    assert [end.commit for end in transactions.asked("EndTransaction")] == [False, True]


def test_gap_in_the_numbers_aborts_the_transaction(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        transactions.on_produce = lambda broker, item: 45
        with pytest.raises(TransactionAbortableError), out.transaction():
            out.send("t", b"a")
        transactions.on_produce = lambda broker, item: 0
        with out.transaction():
            out.send("t", b"b")
    assert transactions.records("t") == [b"b"]


def test_record_that_send_refuses_does_not_end_the_transaction(fake: Any, transactions: Any) -> None:
    with producer(fake, max_request_size=1_000) as out, out.transaction():
        with pytest.raises(RecordTooLargeError):
            out.send("t", b"x" * 10_000)
        out.send("t", b"small")
    assert transactions.records("t") == [b"small"]


def test_transaction_that_the_coordinator_aborted_is_repeated(fake: Any, transactions: Any) -> None:
    """Abort the transaction as a timeout does: the epoch grows, and the producer may continue."""
    with producer(fake) as out:
        with pytest.raises(TransactionAbortableError), out.transaction():  # noqa: PT012
            out.send("t", b"a").result(10)
            transactions.abort("payments")
        with pytest.raises(TransactionAbortableError), out.transaction():  # noqa: PT012
            out.send("t", b"b").result(10)
            transactions.abort("payments")
            late = out.send("t", b"c")
            assert isinstance(late.exception(10), InvalidProducerEpochError)
        with out.transaction():
            out.send("t", b"d")
    assert transactions.records("t") == [b"d"]


ZOMBIES: dict[str, Callable[[Producer], object]] = {
    **SENDS,
    "nothing": lambda out: None,
    "prepare": lambda out: out.prepare(),
}


@pytest.mark.parametrize("way", ZOMBIES)
def test_zombie_is_refused_on_every_path(fake: Any, transactions: Any, way: str) -> None:
    fake.create("unknown")
    with producer(fake) as zombie, producer(fake) as out:
        with pytest.raises(ProducerFencedError, match="make a new producer"), zombie.transaction():  # noqa: PT012
            zombie.send("t", b"z").result(10)
            out.init_transactions()
            with contextlib.suppress(ProducerFencedError):  # prepare
                ZOMBIES[way](zombie)
        for call in (zombie.begin_transaction, zombie.commit_transaction, zombie.abort_transaction):
            with pytest.raises(ProducerFencedError, match="has ended"):
                call()
        with pytest.raises(ProducerFencedError):
            SENDS["send"](zombie)
        with out.transaction():
            out.send("t", b"kept")
    assert transactions.records("t") == [b"kept"]
    assert transactions.records("unknown") == []


def test_block_that_hides_the_fence_raises_at_its_end(fake: Any, transactions: Any) -> None:
    ended = pytest.raises(ProducerFencedError, match="has ended")
    with producer(fake) as zombie, producer(fake) as out, ended, zombie.transaction():
        zombie.send("t", b"z").result(10)
        out.init_transactions()
        with contextlib.suppress(ProducerFencedError):
            zombie.commit_transaction()
    assert transactions.records("t") == []


def test_block_that_has_aborted_ends_quietly(fake: Any, transactions: Any) -> None:
    with producer(fake) as out, out.transaction():
        out.send("t", b"a")
        out.abort_transaction()
    assert transactions.records("t") == []


def test_next_transaction_is_sent_while_markers_are_on_their_way(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        with out.transaction():
            out.send("t", b"a")
        transactions.markers_held = True
        with out.transaction():
            out.send("t", b"b")
        out.begin_transaction()
        waiting = out.send("t", b"c")
        until(lambda: sum(1 for _, request in fake.produced if b"c" in request.partitions[0].records) >= 2)
        assert not waiting.done(), "it is refused with CONCURRENT_TRANSACTIONS until the markers are written"
        transactions.markers_held = False
        transactions.write_markers()
        out.commit_transaction()
    assert transactions.records("t") == [b"a", b"b", b"c"]


def test_second_transaction_has_many_requests_in_flight_at_once(fake: Any, transactions: Any) -> None:
    with producer(fake, batch_size=100) as out:
        with out.transaction():
            out.send("t", b"a")
        fake.hold_answers(True)
        out.begin_transaction()
        for number in range(4):
            out.send("t", b"%03d" % number * 30)
        until(lambda: out.metrics()["requests-in-flight"] >= 3)
        fake.hold_answers(False)
        out.commit_transaction()
    assert len(transactions.records("t")) == 5


def test_producer_that_is_closed_aborts(fake: Any, transactions: Any, caplog: Any) -> None:
    out = producer(fake)
    out.begin_transaction()
    out.send("t", b"a").result(10)
    out.close()
    assert [end.commit for end in transactions.asked("EndTransaction")] == [False]
    assert "aborting the open transaction of 'payments'" in caplog.text


def test_close_waits_for_the_abort_no_longer_than_its_timeout(fake: Any, transactions: Any, caplog: Any) -> None:
    asked = threading.Event()

    def refuse(method: str, request: Any) -> HeadraceError | None:
        if method != "EndTransaction":
            return None
        asked.set()
        return CoordinatorLoadInProgressError("an error set by the test")

    transactions.on_call = refuse
    out = producer(fake)
    out.begin_transaction()
    out.send("t", b"a").result(10)
    out.close(2.0)
    assert asked.is_set()
    assert caplog.text.count("aborting the open transaction of 'payments'") == 1


def test_close_during_an_abort_waits_for_it(fake: Any, transactions: Any, caplog: Any) -> None:
    held, let = threading.Event(), threading.Event()

    def hold(method: str, request: Any) -> None:
        if method == "EndTransaction":
            held.set()
            assert let.wait(10)

    transactions.on_call = hold
    out = producer(fake)
    out.begin_transaction()
    out.send("t", b"a").result(10)
    aborting = threading.Thread(target=out.abort_transaction)
    aborting.start()
    assert held.wait(10)
    closing = threading.Thread(target=out.close)
    closing.start()
    until(lambda: out._core.accumulator.state != 0)
    let.set()
    aborting.join(10)
    closing.join(10)
    assert not closing.is_alive()
    assert "the abort of the open transaction" not in caplog.text


def test_sends_of_another_thread_are_refused_during_a_commit(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        out.begin_transaction()
        fake.hold_answers(True)
        out.send("t", b"a")
        commit = threading.Thread(target=out.commit_transaction)
        commit.start()

        def refused() -> bool:
            try:
                out.send("t", b"b")
            except IllegalStateError:
                return True
            return False

        until(refused)
        fake.hold_answers(False)
        commit.join(30)
        sent = len(transactions.records("t"))
        assert sent == fake.ends["t", 0], "whatever was accepted is committed"


def test_timeout_that_the_brokers_do_not_allow_ends_the_producer(fake: Any, transactions: Any) -> None:
    with producer(fake, transaction_timeout_ms=10_000_000) as out:
        for _ in range(2):
            with pytest.raises(InvalidTransactionTimeoutError, match=r"transaction\.max\.timeout\.ms"):
                out.begin_transaction()


# --- two-phase commit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_prepared_transaction_is_completed_by_its_producer(fake: Any, transactions: Any, commit: bool) -> None:
    with producer(fake) as out:
        with out.transaction():
            out.send("t", b"a")
            token = out.prepare()
        assert TransactionToken.parse(str(token)) == token
        assert transactions.records("t") == []
        with pytest.raises(IllegalStateError, match=r"complete\(token, commit=True or False\)"):
            out.begin_transaction()
        out.complete(token, commit=commit)
        out.complete(str(token), commit=commit)
        with pytest.raises(InvalidTxnStateError):
            out.complete(token, commit=not commit)
        with out.transaction():
            out.send("t", b"b")
    assert transactions.records("t") == ([b"a", b"b"] if commit else [b"b"])


def test_prepared_transaction_survives_its_producer(fake: Any, transactions: Any) -> None:
    with producer(fake) as out, pytest.raises(KeyError), out.transaction():  # noqa: PT012
        out.send("t", b"a")
        token = out.prepare()
        raise KeyError
    with producer(fake, transactional_id="other") as other:
        other.complete(token, commit=True)
    assert transactions.records("t") == [b"a"]
    with Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
        admin.complete_transaction(str(token), commit=True)
        with pytest.raises(InvalidTxnStateError):
            admin.complete_transaction(token, commit=False)


def test_a_sinks_batch_is_decided_once(fake: Any, transactions: Any) -> None:
    sink = sink_id("query", "t")

    def prepared(nonce: str, *, generation: int = 0) -> TransactionToken:
        name = str(SinkTransaction(sink, 0, generation, 0, nonce))
        with producer(fake, transactional_id=name) as out, out.transaction():
            out.send("t", nonce.encode())
            return out.prepare()

    lost = iter(["lost"])
    transactions.on_call = lambda method, request: next(lost, None) if method == "CommitSinkBatch" else None
    with Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
        assert admin.describe_sink(sink) == SinkState(-1, 0)
        aborted = prepared("a")
        assert admin.abort_sink_batch(sink, 0, 0) == SinkState(-1, 1)
        with pytest.raises(ProducerFencedError, match="write the batch again"):
            prepared("late")
        with pytest.raises(ProducerFencedError):
            admin.commit_sink_batch(sink, 0, [aborted])
        first, second = prepared("b", generation=1), prepared("c", generation=1)
        assert admin.commit_sink_batch(sink, 0, [str(first)]) == SinkState(0, 1)
        assert admin.commit_sink_batch(sink, 0, [second], is_final=True) == SinkState(0, 1)
        assert admin.abort_sink_batch(sink, 0, 1) == SinkState(0, 1)
        with pytest.raises(InvalidTxnStateError, match="already aborted"):
            admin.complete_transaction(second, commit=True)
    assert transactions.records("t") == [b"b"]


def test_keep_prepared_leaves_the_transaction_to_the_next_producer(fake: Any, transactions: Any) -> None:
    with producer(fake) as out:
        out.begin_transaction()
        out.send("t", b"a")
        token = out.prepare()
        with producer(fake) as heir:
            assert heir.init_transactions(keep_prepared=True) == token
            with pytest.raises(IllegalStateError, match="complete"):
                heir.begin_transaction()
            heir.complete(token, commit=True)
            with heir.transaction():
                heir.send("t", b"b")
            assert transactions.records("t") == [b"a", b"b"]
            with pytest.raises(ProducerFencedError):
                out.complete(token, commit=True)
        with producer(fake) as third:
            assert third.init_transactions() is None


# --- asyncio ---------------------------------------------------------------------------------------------------------


def test_async_twin(fake: Any, transactions: Any) -> None:
    async def main() -> None:
        async with AsyncProducer(
            bootstrap_servers=fake.bootstrap_servers, transactional_id="payments", retry_backoff_ms=5
        ) as out:
            with pytest.raises(IllegalStateError, match="begin one"):
                await out.send("t", b"v")
            async with out.transaction():
                await out.send("t", b"a")
                await out.send_many("t", [b"b"])
                await out.send_arrow("t", pa.table({"value": [b"c"]}))
            with pytest.raises(KeyError):  # noqa: PT012
                async with out.transaction():
                    await out.send("t", b"lost")
                    raise KeyError
            await out.begin_transaction()
            await out.send("t", b"lost too")
            await out.abort_transaction()
            await out.begin_transaction()
            await out.send("t", b"d")
            token = await out.prepare()
            await out.complete(token, commit=True)

    asyncio.run(main())
    assert transactions.records("t") == [b"a", b"b", b"c", b"d"]


def test_async_commit_that_is_cancelled_is_called_again(fake: Any, transactions: Any) -> None:
    async def main() -> None:
        async with AsyncProducer(
            bootstrap_servers=fake.bootstrap_servers, transactional_id="payments", retry_backoff_ms=5
        ) as out:
            await out.begin_transaction()
            fake.hold_answers(True)
            await out.send("t", b"a")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(out.commit_transaction(), 0.2)
            fake.hold_answers(False)
            with pytest.raises(IllegalStateError, match="interrupted"):
                await out.begin_transaction()
            await out.commit_transaction()

    asyncio.run(main())
    assert transactions.records("t") == [b"a"]


def test_async_block_that_is_cancelled_aborts(fake: Any, transactions: Any) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:
            inside = asyncio.Event()

            async def work() -> None:
                async with out.transaction():
                    await (await out.send("t", b"a"))
                    inside.set()
                    await asyncio.Event().wait()

            working = asyncio.create_task(work())
            await until_async(lambda: inside.is_set() or working.done())
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            async with out.transaction():
                await out.send("t", b"b")

    asyncio.run(main())
    assert transactions.records("t") == [b"b"]
