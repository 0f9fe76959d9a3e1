"""Cancel each call of an AsyncConsumer at each of its suspension points: no record is lost or returned twice, the next
call works, and no task is left."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headrace import AsyncConsumer, OffsetAndMetadata, TopicPartition
from headrace.consumer.inbox import Slice
from headrace.errors import ClosedError
from headrace_core.records import encode_batch
from tests.unit.client.test_group_consumer import T0, Coordinator, Make, make, parties
from tests.worlds import coordinators_standin
from tests.worlds.cut_points import LEAST, RUNTIMES, Cancelled, cut_everywhere, cuts, run
from tests.worlds.waiting import until_async

__all__ = ["cuts", "make", "parties"]
pytestmark = pytest.mark.usefixtures("cuts")

TP = TopicPartition("t", 0)
BATCHES, BATCH = 400, 5


def fill(fake: Any) -> None:
    fake.create("t")
    for _ in range(BATCHES):
        fake.append("t", 0, encode_batch([(1, None, b"v", None)] * BATCH))


async def poll(consumer: AsyncConsumer) -> list[int]:
    return [record.offset for record in await consumer.poll(30, max_records=3)]


async def batches(consumer: AsyncConsumer) -> list[int]:
    async for records in consumer.batches(max_records=3):
        return [record.offset for record in records]
    return []


async def iterate(consumer: AsyncConsumer) -> list[int]:
    async for record in consumer:
        return [record.offset]
    return []


async def fetch_arrow(consumer: AsyncConsumer) -> list[int]:
    return (await consumer.fetch_arrow(30, max_bytes=1)).column("offset").to_pylist()  # type: ignore[no-any-return]


READS: dict[str, Callable[[AsyncConsumer], Awaitable[list[int]]]] = {
    "poll": poll,
    "batches": batches,
    "__aiter__": iterate,
    "fetch_arrow": fetch_arrow,
}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("waits", [False, True])
def test_cut_read_loses_no_record(fake: Any, runtime: str, way: str, waits: bool) -> None:
    """``waits``: the position was just set, so the call waits for a fetch."""
    fill(fake)

    async def main() -> None:
        points, position = 0, 0
        async with AsyncConsumer(
            bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest", max_partition_fetch_bytes=400
        ) as consumer:
            consumer.assign([TP])
            assert await poll(consumer) == [0, 1, 2]
            position = 3
            loop = consumer._core.engine.io.loop
            tasks = len(asyncio.all_tasks(loop))

            async def call() -> list[int]:
                if waits:
                    consumer.seek(TP, position)
                return await READS[way](consumer)

            async for outcome in cut_everywhere(runtime, call):
                points += outcome is Cancelled
                got = [] if outcome is Cancelled else outcome
                got += await READS[way](consumer)
                assert got == list(range(position, position + len(got))), "records were lost"
                position += len(got)
                assert await consumer.position(TP) == position
                await until_async(lambda: len(asyncio.all_tasks(loop)) <= tasks)
        assert points >= (LEAST[runtime] if way != "__aiter__" or waits else 0)
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


ASKS: dict[str, tuple[Callable[[AsyncConsumer], Awaitable[Any]], Any]] = {
    "position": (lambda consumer: consumer.position(TP), 0),
    "beginning_offsets": (lambda consumer: consumer.beginning_offsets([TP]), {TP: 0}),
    "end_offsets": (lambda consumer: consumer.end_offsets([TP]), {TP: BATCHES * BATCH}),
    "offsets_for_times": (lambda consumer: consumer.offsets_for_times({TP: 0}), None),
    "partitions_for": (lambda consumer: consumer.partitions_for("t"), [0]),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", ASKS)
@pytest.mark.parametrize("is_new", [False, True])
def test_cut_question_is_asked_again(fake: Any, runtime: str, way: str, is_new: bool) -> None:
    """``is_new``: the consumer knows nothing about the cluster yet."""
    fill(fake)
    ask, expected = ASKS[way]

    async def main() -> None:
        points = 0
        consumer = AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest")

        def call() -> Awaitable[Any]:
            consumer.assign([])
            consumer.assign([TP])
            return ask(consumer)

        if not is_new:
            await consumer.partitions_for("t")
        async for outcome in cut_everywhere(runtime, call):
            points += outcome is Cancelled
            answer = await ask(consumer)
            assert answer == (expected or answer)
            assert outcome in (Cancelled, answer)
            if is_new:
                await consumer.close()
                consumer = AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest")
        await consumer.close()
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


# --- offsets of a group ----------------------------------------------------------------------------------------------


@pytest.fixture
def standin() -> Iterator[coordinators_standin.StandinGroupsWorld]:
    with coordinators_standin.serving() as world:
        yield world


ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", ["commit", "commit_async", "committed", "seek_to_committed"])
def test_cut_call_about_offsets_is_repeated(standin: Any, runtime: str, way: str) -> None:
    async def main() -> None:
        points = 0
        offsets = itertools.count(1)
        async with AsyncConsumer(
            bootstrap_servers=standin.coordinators[0].address, group_id="a", enable_auto_commit=False
        ) as consumer:
            consumer.assign([ORDERS])
            await consumer.commit({ORDERS: next(offsets)})

            def call() -> Awaitable[Any]:
                nonlocal before
                before = standin.committed["a"]["orders", 0][0]
                if way.startswith("commit") and way != "committed":
                    return getattr(consumer, way)({ORDERS: OffsetAndMetadata(next(offsets))})  # type: ignore[no-any-return]
                return getattr(consumer, way)(*([ORDERS] if way == "committed" else []))  # type: ignore[no-any-return]

            before = 0
            async for outcome in cut_everywhere(runtime, call):
                points += outcome is Cancelled
                assert not isinstance(outcome, BaseException), outcome
                assert standin.committed["a"]["orders", 0][0] >= before, "what was committed stays"
                last = next(offsets)
                await consumer.commit({ORDERS: last})
                assert await consumer.committed(ORDERS) == last
                await consumer.seek_to_committed()
                assert await consumer.position(ORDERS) == last
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


# --- a member of a group ---------------------------------------------------------------------------------------------


class Closing(Coordinator):
    async def close(self) -> None: ...


def member(make: Make, heard: list[str]) -> tuple[AsyncConsumer, Coordinator]:
    """A consumer whose callbacks suspend, with a fake core, which needs no network."""
    coordinator = Closing(0)
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:1")
    consumer._finalizer.detach()
    consumer._core = make(coordinator, enable_auto_commit=False, auto_offset_reset="earliest").core

    def noting(what: str) -> Callable[[AsyncConsumer, list[TopicPartition]], Awaitable[None]]:
        async def note(_: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            heard.append(f"{what} begins")
            await asyncio.sleep(0)
            heard.append(f"{what} ends")

        return note

    consumer.subscribe(["t"], **{f"on_{what}": noting(what) for what in ("assigned", "revoked", "lost")})
    return consumer, coordinator


def put(consumer: AsyncConsumer, base: int) -> None:
    """Three fetched records."""
    assigned = consumer._core.reading.partitions[T0]
    if assigned.position is None:
        assigned.position = base
    data = encode_batch([(1, None, b"v", None)] * 3, base_offset=base)
    consumer._core.reading.inbox.put(Slice(assigned, base, base + 3, [data], len(data)))


async def assigned(consumer: AsyncConsumer) -> None:
    while not consumer.assignment():
        await consumer.poll(0.01)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", ["poll", "unsubscribe", "close", "__aexit__"])
def test_cut_rebalance_runs_each_callback_once_and_whole(make: Make, runtime: str, way: str) -> None:
    async def main() -> None:
        points = 0
        heard: list[str] = []

        async def begin() -> AsyncConsumer:
            heard.clear()
            consumer, _ = member(make, heard)
            if way != "poll":
                await assigned(consumer)
                assert heard == ["assigned begins", "assigned ends"]
            return consumer

        consumer = await begin()

        def call() -> Awaitable[Any]:
            if way == "poll":
                return assigned(consumer)
            return getattr(consumer, way)(*([None] * 3 if way == "__aexit__" else []))  # type: ignore[no-any-return]

        async for outcome in cut_everywhere(runtime, call):
            points += outcome is Cancelled
            assert outcome in (None, Cancelled), outcome
            await call()
            if way == "poll":
                assert consumer.assignment() == {T0}
                assert heard == ["assigned begins", "assigned ends"]
            else:
                assert heard == ["assigned begins", "assigned ends", "revoked begins", "revoked ends"]
            await consumer.close()
            with pytest.raises(ClosedError):
                await consumer.poll(0)
            consumer = await begin()
        await consumer.close()
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_cut_process_commits_only_what_was_handled(make: Make, runtime: str) -> None:
    async def main() -> None:
        points, base = 0, 10  # the committed offset
        consumer, coordinator = member(make, [])
        await assigned(consumer)
        handled: set[int] = set()
        stop = asyncio.Event()

        async def handle(record: Any) -> None:
            await asyncio.sleep(0)
            handled.add(record.offset)
            if record.offset % 3 == 0:
                stop.set()

        def call() -> Awaitable[None]:
            nonlocal base
            stop.clear()
            put(consumer, base)
            base += 3
            return consumer.process(handle, stop=stop, concurrency=4)

        async for outcome in cut_everywhere(runtime, call):
            points += outcome is Cancelled
            assert outcome in (None, Cancelled), outcome
            for each in itertools.chain.from_iterable(request.offsets for request in coordinator.commits):
                assert set(range(10, each.offset)) <= handled, "a record was committed that was not handled"
            await consumer.unsubscribe()
            consumer, coordinator = member(make, [])
            handled.clear()
            base = 10
            await assigned(consumer)
        await consumer.close()
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", ["close", "__aexit__"])
def test_cut_close_leaves_no_connection(fake: Any, runtime: str, way: str) -> None:
    fill(fake)

    async def main() -> None:
        points = 0

        async def opened() -> AsyncConsumer:
            consumer = AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest")
            consumer.assign([TP])
            await poll(consumer)
            return consumer

        consumer = await opened()

        def call() -> Awaitable[None]:
            return getattr(consumer, way)(*([None] * 3 if way == "__aexit__" else []))  # type: ignore[no-any-return]

        async for outcome in cut_everywhere(runtime, call):
            points += outcome is Cancelled
            assert outcome in (None, Cancelled), outcome
            await consumer.close()
            engine = consumer._core.engine
            await until_async(lambda: not engine._keepers and not engine.connections._pool._by_address)  # noqa: B023
            with pytest.raises(ClosedError):
                await poll(consumer)
            consumer = await opened()
        await consumer.close()
        assert points >= LEAST[runtime]
        print(f"cut points ({runtime}): {points}")

    run(runtime, main)


#: Methods that wait for nothing.
AT_ONCE = {
    *("metrics", "partition_metrics", "from_properties", "subscribe", "subscription", "assign", "assignment"),
    *("seek", "seek_to_beginning", "seek_to_end", "pause", "resume", "paused", "group_metadata"),
}


def test_every_method_of_the_consumer_is_cut() -> None:
    public = {name for name in dir(AsyncConsumer) if not name.startswith("_")} - AT_ONCE
    of_groups = {"commit", "commit_async", "committed", "seek_to_committed", "unsubscribe", "process", "close"}
    assert public == (READS.keys() - {"__aiter__"}) | ASKS.keys() | of_groups | {"start"}  # start is beside the admin's
