"""Cancel each call of an AsyncProducer at each of its suspension points: the next call works, nothing is left open, and
what was acknowledged stays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import AsyncProducer, Producer, TopicPartition, TransactionToken
from headrace.errors import (
    CoordinatorLoadInProgressError,
    HeadraceError,
    IllegalStateError,
    RequestTimedOutError,
    TransactionAbortableError,
)
from headrace.models import GroupMetadata
from tests.worlds.cut_points import LEAST, RUNTIMES, Cancelled, cut_everywhere, cuts, run
from tests.worlds.waiting import until, until_async

__all__ = ["cuts"]
pytestmark = pytest.mark.usefixtures("cuts")


class World:
    """One producer, whose calls are cut; values are numbers that occur once."""

    def __init__(self, fake: Any, transactions: Any, out: AsyncProducer) -> None:
        self.fake, self.transactions, self.out = fake, transactions, out
        self.numbers = itertools.count()
        self.acknowledged: list[bytes] = []
        self.points = 0
        self.tasks = 0

    def value(self) -> bytes:
        return b"%d" % next(self.numbers)

    async def send(self) -> bytes:
        value = self.value()
        await self.out.send("t", value)
        return value

    def committed(self, *values: bytes) -> bool:
        """Whether the transaction with these records is committed; never a part of it, and no record twice."""
        found = self.transactions.records("t")
        assert len(set(found)) == len(found), "a record is there twice"
        there = {value in found for value in values}
        assert len(there) == 1, "a part of a transaction is committed"
        return there.pop()

    async def next_transaction_works(self) -> None:
        async with self.out.transaction():
            value = self.value()
            await self.out.send_and_wait("t", value)
        assert self.committed(value)
        self.acknowledged.append(value)
        assert [each for each in self.transactions.records("t") if each in self.acknowledged] == self.acknowledged
        assert self.transactions._open == {}, "a transaction is open"

    async def leaves_no_task(self) -> None:
        """The producer's background tasks are left on the I/O thread, and no other ones."""
        loop = self.out._core.engine.io.loop
        self.tasks = self.tasks or len(asyncio.all_tasks(loop))
        await until_async(lambda: len(asyncio.all_tasks(loop)) <= self.tasks)

    async def outcomes(self, runtime: str, call: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
        async for outcome in cut_everywhere(runtime, call):
            self.points += outcome is Cancelled
            yield outcome


def cutting(fake: Any, transactions: Any, runtime: str, scenario: Callable[[World], Awaitable[None]]) -> World:
    made: list[World] = []

    async def main() -> None:
        async with AsyncProducer(
            bootstrap_servers=fake.bootstrap_servers, transactional_id="payments", retry_backoff_ms=5
        ) as out:
            world = World(fake, transactions, out)
            made.append(world)
            await world.next_transaction_works()
            await asyncio.wait_for(scenario(world), 120)
            await world.next_transaction_works()

    run(runtime, main)
    print(f"cut points ({runtime}): {made[0].points}")
    assert made[0].points >= LEAST[runtime]
    return made[0]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_block_that_is_cut_anywhere_is_whole_or_nothing_and_the_next_one_works(
    fake: Any, transactions: Any, runtime: str
) -> None:
    async def scenario(world: World) -> None:
        values: list[bytes] = []

        async def block() -> None:
            async with world.out.transaction():
                values[:] = [world.value(), world.value()]
                await world.out.send_and_wait("t", values[0])
                await world.out.send("t", values[1])

        async for outcome in world.outcomes(runtime, block):
            assert outcome in (None, Cancelled), outcome
            await world.next_transaction_works()
            await world.leaves_no_task()
            if values and outcome is None:
                assert world.committed(*values)
            elif values:
                world.committed(*values)

    cutting(fake, transactions, runtime, scenario)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("then", ["transaction", "begin", "abort"])
def test_cut_begin_leaves_nothing_open(fake: Any, transactions: Any, runtime: str, then: str) -> None:
    async def scenario(world: World) -> None:
        out = world.out
        async for outcome in world.outcomes(runtime, out.begin_transaction):
            assert outcome in (None, Cancelled), outcome
            if outcome is None or then == "abort":
                await out.abort_transaction()
            elif then == "begin":
                await out.begin_transaction()
                value = await world.send()
                await out.commit_transaction()
                assert world.committed(value)
            await world.next_transaction_works()
            await world.leaves_no_task()

    cutting(fake, transactions, runtime, scenario)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("then", ["commit", "abort", "begin"])
def test_cut_commit_is_repeated_or_aborted_or_finished(fake: Any, transactions: Any, runtime: str, then: str) -> None:
    async def scenario(world: World) -> None:
        out = world.out

        async def begin() -> bytes:
            await out.begin_transaction()
            return await world.send()

        value = await begin()
        async for outcome in world.outcomes(runtime, out.commit_transaction):
            assert outcome in (None, Cancelled), outcome
            if outcome is None:
                assert world.committed(value)
            elif then == "commit":
                await out.commit_transaction()
                assert world.committed(value)
            elif then == "abort":
                try:
                    await out.abort_transaction()
                except IllegalStateError:  # the commit had been sent
                    await out.begin_transaction()
                    await out.abort_transaction()
                    assert world.committed(value)
                else:
                    assert not world.committed(value)
            else:
                try:
                    await out.begin_transaction()
                    await out.abort_transaction()
                except IllegalStateError as error:  # the commit had not been sent
                    assert "interrupted" in str(error)  # noqa: PT017
                    await out.commit_transaction()
                assert world.committed(value)
            await world.next_transaction_works()
            await world.leaves_no_task()
            value = await begin()
        await out.abort_transaction()

    cutting(fake, transactions, runtime, scenario)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("then", ["abort", "begin"])
def test_cut_abort_is_finished(fake: Any, transactions: Any, runtime: str, then: str) -> None:
    async def scenario(world: World) -> None:
        out = world.out
        await out.begin_transaction()
        value = await world.send()
        async for outcome in world.outcomes(runtime, out.abort_transaction):
            assert outcome in (None, Cancelled), outcome
            if outcome is Cancelled and then == "abort":
                await out.abort_transaction()
            await world.next_transaction_works()
            assert not world.committed(value)
            await world.leaves_no_task()
            await out.begin_transaction()
            value = await world.send()
            await out.flush()
        await out.abort_transaction()

    cutting(fake, transactions, runtime, scenario)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_transaction_with_cut_offsets_cannot_be_committed(fake: Any, transactions: Any, runtime: str) -> None:
    async def scenario(world: World) -> None:
        out = world.out
        offset = itertools.count(1)

        async def send_offsets() -> None:
            await out.send_offsets({TopicPartition("in", 0): next(offset)}, GroupMetadata("g"))

        await out.begin_transaction()
        value = await world.send()
        async for outcome in world.outcomes(runtime, send_offsets):
            assert outcome in (None, Cancelled), outcome
            if outcome is Cancelled:
                with pytest.raises(TransactionAbortableError, match="interrupted"):
                    await out.commit_transaction()
                await out.abort_transaction()
                assert not world.committed(value)
            else:
                await out.commit_transaction()
            await world.next_transaction_works()
            assert transactions.pending == {}
            await world.leaves_no_task()
            await out.begin_transaction()
            value = await world.send()
        await out.abort_transaction()

    cutting(fake, transactions, runtime, scenario)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("then", ["prepare", "abort", "block"])
def test_cut_prepare_is_repeated_or_aborted(fake: Any, transactions: Any, runtime: str, then: str) -> None:
    async def scenario(world: World) -> None:
        out = world.out
        value, token = b"", None

        async def begin() -> None:
            nonlocal value
            await out.begin_transaction()
            value = await world.send()

        async def block() -> None:
            nonlocal value, token
            value, token = b"", None
            async with out.transaction():
                value = await world.send()
                token = await out.prepare()

        async def prepare() -> None:
            nonlocal token
            token = None
            token = await out.prepare()

        if then != "block":
            await begin()
        async for outcome in world.outcomes(runtime, block if then == "block" else prepare):
            assert outcome in (None, Cancelled), outcome
            if then == "prepare" and token is None:
                token = await out.prepare()
            if token is not None:
                await out.complete(token, commit=True)
                assert world.committed(value)
            else:
                if then == "abort":
                    await out.abort_transaction()
                await world.next_transaction_works()
                assert not value or not world.committed(value)
            await world.leaves_no_task()
            await world.next_transaction_works()
            if then != "block":
                await begin()
        if then != "block":
            await out.abort_transaction()

    cutting(fake, transactions, runtime, scenario)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("then", ["complete", "begin"])
def test_cut_complete_has_its_one_outcome(fake: Any, transactions: Any, runtime: str, commit: bool, then: str) -> None:
    async def scenario(world: World) -> None:
        out = world.out

        async def prepared() -> tuple[bytes, TransactionToken]:
            await out.begin_transaction()
            return await world.send(), await out.prepare()

        value, token = await prepared()
        async for outcome in world.outcomes(runtime, lambda: out.complete(token, commit=commit)):  # noqa: B023
            assert outcome in (None, Cancelled), outcome
            try:
                if outcome is Cancelled and then == "begin":
                    await world.next_transaction_works()
                else:
                    await out.complete(token, commit=commit)
            except IllegalStateError as error:  # the outcome had not been sent
                assert "complete(token" in str(error)  # noqa: PT017
                await out.complete(token, commit=commit)
            assert world.committed(value) is commit
            await world.next_transaction_works()
            await world.leaves_no_task()
            value, token = await prepared()
        await out.complete(token, commit=commit)

    cutting(fake, transactions, runtime, scenario)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("then", ["init", "begin"])
def test_cut_init_is_repeated_and_keeps_what_is_prepared(fake: Any, transactions: Any, runtime: str, then: str) -> None:
    settings = {"bootstrap_servers": fake.bootstrap_servers, "transactional_id": "payments", "retry_backoff_ms": 5}

    async def main() -> None:
        points = 0
        async with contextlib.AsyncExitStack() as stack:

            async def prepared() -> tuple[TransactionToken, AsyncProducer]:
                """An older producer's token, and the next producer."""
                async with AsyncProducer(**settings) as older, older.transaction():
                    await older.send("t", b"v")
                    token = await older.prepare()
                return token, await stack.enter_async_context(AsyncProducer(**settings))

            token, out = await prepared()
            async for outcome in cut_everywhere(runtime, lambda: out.init_transactions(keep_prepared=True)):  # noqa: B023
                points += outcome is Cancelled
                if outcome is Cancelled and then == "begin":
                    with pytest.raises(IllegalStateError, match="is prepared"):
                        await out.begin_transaction()
                if outcome is Cancelled:
                    outcome = await out.init_transactions(keep_prepared=True)
                assert outcome == token
                await out.complete(token, commit=False)
                async with out.transaction():
                    await out.send("t", b"kept")
                token, out = await prepared()
            await out.init_transactions()
        assert points >= LEAST[runtime]
        assert set(transactions.records("t")) == {b"kept"}

    run(runtime, main)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's handler for SIGINT: a shell that starts the tests in the background ignores the signal."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("Ctrl-C interrupts only the main thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Held:
    """Holds the answers of the brokers, or the commit on its way to the coordinator."""

    def __init__(self, fake: Any, transactions: Any) -> None:
        self.fake, self.transactions = fake, transactions
        self.came, self.let = threading.Event(), threading.Event()
        self.holds_records = False

    def has_come(self) -> bool:
        """Whether the commit, or the record "cut", is there. (The fake broker fences no epoch: a record that it appends
        after an abort would belong to the next transaction.)"""
        if not self.holds_records:
            return self.came.is_set()
        return any(record.value == b"cut" for record in self.fake.records("t"))

    def acknowledgements(self) -> None:
        self.fake.hold_answers(True)
        self.holds_records = True

    def commit(self) -> None:
        def hold(method: str, request: Any) -> None:
            if method == "EndTransaction" and not self.let.is_set():
                self.came.set()
                assert self.let.wait(30)

        self.transactions.on_call = hold

    def release(self) -> None:
        self.let.set()
        self.fake.hold_answers(False)


@pytest.mark.parametrize("is_sent", [False, True])
def test_block_cancelled_before_its_commit_is_sent_is_aborted_and_afterwards_committed(
    fake: Any, transactions: Any, is_sent: bool
) -> None:
    held = Held(fake, transactions)

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:

            async def block(value: bytes) -> None:
                async with out.transaction():
                    await out.send("t", value)

            await block(b"first")
            held.commit() if is_sent else held.acknowledgements()
            cut = asyncio.create_task(block(b"cut"))
            await until_async(held.has_come)
            cut.cancel()
            await asyncio.wait([cut])
            assert cut.cancelled(), "the cancellation takes effect at once"
            following = asyncio.create_task(block(b"next"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not following.done(), "the next transaction waits for the end of the cut one"
            held.release()
            await following

    asyncio.run(main())
    assert transactions.records("t") == ([b"first", b"cut", b"next"] if is_sent else [b"first", b"next"])


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("is_sent", [False, True])
def test_ctrl_c_in_the_commit_of_a_block_is_a_cancellation(fake: Any, transactions: Any, is_sent: bool) -> None:
    held = Held(fake, transactions)
    main = threading.main_thread().ident
    assert main is not None

    left = threading.Event()

    def press() -> None:
        until(held.has_come)
        signal.pthread_kill(main, signal.SIGINT)  # type: ignore[arg-type]
        if not left.wait(20):  # CPython misses a signal between its last look and its sleep
            signal.pthread_kill(main, signal.SIGINT)  # type: ignore[arg-type]

    with Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:
        with out.transaction():
            out.send("t", b"first")
        held.commit() if is_sent else held.acknowledgements()
        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt), out.transaction():
            out.send("t", b"cut")
        left.set()
        pressing.join(30)
        held.release()
        with out.transaction():
            out.send("t", b"next")
    assert transactions.records("t") == ([b"first", b"cut", b"next"] if is_sent else [b"first", b"next"])


@pytest.mark.parametrize("is_sent", [False, True])
def test_close_after_a_cancelled_commit_leaves_nothing_open(fake: Any, transactions: Any, is_sent: bool) -> None:
    held = Held(fake, transactions)

    async def main() -> None:
        out = AsyncProducer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments")
        await out.begin_transaction()
        held.commit() if is_sent else held.acknowledgements()
        await out.send("t", b"cut")
        cut = asyncio.create_task(out.commit_transaction())
        await until_async(held.has_come)
        cut.cancel()
        await asyncio.wait([cut])
        closing = asyncio.create_task(out.close())
        await asyncio.sleep(0)
        held.release()
        await closing

    asyncio.run(main())
    assert transactions.records("t") == ([b"cut"] if is_sent else [])
    assert transactions._open == {}


def test_commit_that_fails_after_its_program_left_is_finished_by_the_next_begin(fake: Any, transactions: Any) -> None:
    """The background commit times out, and the coordinator comes back later."""
    gone = threading.Event()

    def refuse(method: str, request: Any) -> HeadraceError | None:
        if method != "EndTransaction" or not gone.is_set():
            return None
        return CoordinatorLoadInProgressError("an error set by the test")

    transactions.on_call = refuse

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments") as out:

            async def block(value: bytes) -> None:
                async with out.transaction():
                    await out.send("t", value)

            await block(b"first")
            assert out._core.transactions is not None
            out._core.transactions._max_block_s = 0.3
            gone.set()
            cut = asyncio.create_task(block(b"cut"))
            asked = len(transactions.asked("EndTransaction"))
            await until_async(lambda: len(transactions.asked("EndTransaction")) > asked)
            cut.cancel()
            await asyncio.wait([cut])
            with pytest.raises(RequestTimedOutError):
                await block(b"never sent")
            gone.clear()
            await block(b"next")

    asyncio.run(main())
    assert transactions.records("t") == [b"first", b"cut", b"next"]


# --- calls that need no transaction ----------------------------------------------------------------------------------

VALUES = [b"a", b"b"]
TABLE = pa.table({"value": VALUES})

#: Calls that send ``count`` records to a topic that the producer does not know.
SENDS: dict[str, tuple[int, Callable[[AsyncProducer, str], Awaitable[Any]]]] = {
    "send": (1, lambda out, topic: out.send(topic, b"a")),
    "send_and_wait": (1, lambda out, topic: out.send_and_wait(topic, b"a")),
    "send_many": (2, lambda out, topic: out.send_many(topic, VALUES)),
    "send_arrow": (2, lambda out, topic: out.send_arrow(topic, TABLE)),
    "partitions_for": (0, lambda out, topic: out.partitions_for(topic)),
    "flush": (1, lambda out, topic: _send_and_flush(out, topic)),
}


async def _send_and_flush(out: AsyncProducer, topic: str) -> None:
    await out.send(topic, b"a")
    await out.flush()


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", SENDS)
def test_cut_send_leaves_at_most_its_records(fake: Any, runtime: str, way: str) -> None:
    count, call = SENDS[way]
    points = 0

    async def main() -> None:
        nonlocal points
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, retry_backoff_ms=5) as out:
            await out.send_and_wait("t", b"first")
            loop = out._core.engine.io.loop
            tasks = len(asyncio.all_tasks(loop))
            topics = (f"topic-{number}" for number in itertools.count())
            topic = ""

            def next_call() -> Awaitable[Any]:
                nonlocal topic
                topic = next(topics)
                fake.create(topic)
                return call(out, topic)

            async for outcome in cut_everywhere(runtime, next_call):
                assert not isinstance(outcome, BaseException), outcome
                points += outcome is Cancelled
                await out.send_and_wait(topic, b"next")
                await out.flush()
                found = [record.value for record in fake.records(topic)]
                assert found == [*VALUES[:count], b"next"] or (outcome is Cancelled and found == [b"next"])
                assert sum(batch.count for batch in out._core.accumulator.snapshot_unfinished()) == 0
                await until_async(lambda: len(asyncio.all_tasks(loop)) <= tasks)
            assert [record.value for record in fake.records("t")] == [b"first"]

    run(runtime, main)
    print(f"cut points ({runtime}): {points}")
    assert points >= LEAST[runtime]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_cut_send_into_a_full_buffer_leaves_the_room_to_the_next_one(fake: Any, runtime: str) -> None:
    fake.create("t")

    async def main() -> None:
        points = 0
        async with AsyncProducer(
            bootstrap_servers=fake.bootstrap_servers, buffer_memory=20_000, batch_size=10_000, linger_ms=0
        ) as out:

            async def fill() -> list[Any]:
                fake.hold_answers(True)
                return [await out.send("t", b"%05d" % number + bytes(9_000)) for number in range(2)]

            async def send() -> Any:
                if len(out._core.accumulator.snapshot_unfinished()) >= 2:
                    asyncio.get_running_loop().call_later(0.05, fake.hold_answers, False)
                return await out.send("t", b"more" + bytes(9_000))

            filling = await fill()
            async for outcome in cut_everywhere(runtime, send):
                assert not isinstance(outcome, BaseException), outcome
                points += outcome is Cancelled
                fake.hold_answers(False)
                await asyncio.gather(*filling)
                await out.send_and_wait("t", b"next")
                assert out._core.accumulator.buffered_bytes == 0
                filling = await fill()
            fake.hold_answers(False)
        assert points >= LEAST[runtime]

    run(runtime, main)


@pytest.mark.filterwarnings("ignore:.*unacknowledged")
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("way", ["close", "__aexit__"])
def test_cut_close_is_completed_by_the_next_one(
    fake: Any, transactions: Any, runtime: str, is_transactional: bool, way: str
) -> None:
    name = {"transactional_id": "payments"} if is_transactional else {}
    acknowledged: list[bytes] = []

    async def main() -> None:
        points = 0

        async def opened() -> AsyncProducer:
            out = AsyncProducer(bootstrap_servers=fake.bootstrap_servers, retry_backoff_ms=5, **name)
            if is_transactional:
                await out.begin_transaction()
            value = b"%d" % len(acknowledged)
            await out.send_and_wait("t", value)
            acknowledged.append(value)
            await out.send("t", b"pending")
            return out

        out = await opened()
        core = out._core
        async for outcome in cut_everywhere(runtime, lambda: getattr(out, way)()):  # noqa: B023
            assert outcome in (None, Cancelled), outcome
            points += outcome is Cancelled
            await out.close()
            assert not core.engine._keepers
            assert not core.sender.links
            assert not core.accumulator.snapshot_unfinished()
            assert core.transactions is None
            with pytest.raises(HeadraceError):
                await out.send("t", b"late")
            out = await opened()
            core = out._core
        await out.close()
        assert points >= LEAST[runtime]

    run(runtime, main)
    if not is_transactional:
        assert [each.value for each in fake.records("t") if each.value != b"pending"] == acknowledged
    else:
        assert transactions.records("t") == []


#: Methods that wait for nothing.
AT_ONCE = {"metrics", "partition_metrics", "from_properties"}


def test_every_method_of_the_producer_is_cut() -> None:
    public = {name for name in dir(AsyncProducer) if not name.startswith("_")} - AT_ONCE
    transactional = {"init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"}
    ends = {"transaction", "send_offsets", "prepare", "complete", "close"}
    assert public == {*SENDS, *transactional, *ends, "start"}  # start is beside the admin's
