"""Long responses are computed in slices: other calls continue between the slices, and the work for a cancelled call
stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.handlers.offsets import OffsetsService
from headrace_core.errors import OffsetOutOfRangeError, RequestTimedOutError
from headrace_core.membership.metadata_view import MetadataView, concerns
from headrace_core.membership.metadata_watch import MetadataWatch
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.rpc import turns
from headrace_core.rpc.limits import limit_of
from headrace_core.types import LATEST_TIMESTAMP
from headrace_protos.v1 import metadata_pb2, offsets_pb2
from tests.worlds.waiting import in_loop

NAMES = 10_000


@pytest.fixture(autouse=True)
def clock_that_goes_on_by_a_millisecond_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock() -> Iterator[float]:
        now = 0.0
        while True:
            now += 0.001
            yield now

    ticking = clock()
    monkeypatch.setattr(turns, "PAUSE_S", 0)
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: next(ticking)))


def request() -> metadata_pb2.MetadataRequest:
    return metadata_pb2.MetadataRequest(topics=[f"unknown-{number}" for number in range(NAMES)])


def respond(view: MetadataView) -> Any:
    return view.response(MetadataImage(), request(), controller_id=1)


def test_others_go_on_while_ten_thousand_names_are_looked_up() -> None:
    async def scenario() -> None:
        passes = 0

        async def other() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        answer = await respond(MetadataView())
        beside.cancel()
        assert len(answer.topics) == NAMES
        assert passes > NAMES / 10

    asyncio.run(scenario())


def test_work_for_a_cancelled_call_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []
    look_up = MetadataView._topic
    monkeypatch.setattr(MetadataView, "_topic", lambda *args: (looked_up.append(args), look_up(*args))[1])

    async def scenario() -> None:
        call = asyncio.create_task(respond(MetadataView()))
        for _ in range(3):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert 0 < len(looked_up) < 100

    asyncio.run(scenario())


def test_long_work_takes_one_turn_at_a_time_and_short_work_waits_for_none() -> None:
    async def scenario() -> None:
        async def work(items: int) -> None:
            async with turns.Turns(items) as mine:
                for _ in range(20):
                    await mine.next()

        async with turns.Turns(NAMES):
            await work(turns.SHORT_ITEMS)  # it does not wait for the long response
            waiting = [asyncio.create_task(work(NAMES)) for _ in range(5)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            waiting[0].cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert done[1:] == [None] * 4
        async with turns.Turns(NAMES):  # the cancelled call has released its lock
            pass

    asyncio.run(asyncio.wait_for(scenario(), 10))


class Clock:
    """A clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(turns, "PAUSE_S", 3 * turns.TURN_S)
        monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: self.now_s))


async def _has_a_turn_soon() -> bool:
    async def work() -> None:
        async with turns.Turns(NAMES):
            pass

    other = asyncio.create_task(work())
    for _ in range(50):
        await asyncio.sleep(0)
    other.cancel()
    return other.done() and not other.cancelled()


@pytest.mark.parametrize(("took_s", "is_soon"), [(0.0002, True), (100.0, False)])
def test_pause_is_in_proportion_to_the_turn_also_when_the_work_is_done(
    took_s: float, is_soon: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        clock = Clock(monkeypatch)
        async with turns.Turns(NAMES):
            clock.now_s += took_s
        assert await _has_a_turn_soon() is is_soon

    asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.parametrize(("took_s", "is_soon"), [(0.0002, True), (100.0, False)])
def test_what_work_outside_does_before_it_waits_belongs_to_the_turn(
    took_s: float, is_soon: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        clock = Clock(monkeypatch)
        answer = asyncio.get_running_loop().create_future()

        async def outside() -> None:
            clock.now_s += took_s
            await answer

        async def work() -> None:
            async with turns.Turns(NAMES) as mine:
                await mine.outside(outside())

        task = asyncio.create_task(work())
        assert await _has_a_turn_soon() is is_soon
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_work_outside_that_does_not_wait_keeps_the_turn() -> None:
    async def scenario() -> None:
        async def at_once() -> int:
            return 7

        async with turns.Turns(NAMES) as mine:
            assert await mine.outside(at_once()) == 7
            assert not await _has_a_turn_soon()
        assert await _has_a_turn_soon()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def ends_of(*pieces: tuple[int, int, int]) -> list[int]:
    """The end of each piece of work (arrival, items, needed turns), in turns of simulated time."""
    order: turns.TurnOrder[int] = turns.TurnOrder()
    left, ends, now = [needed for *_, needed in pieces], [0] * len(pieces), 0
    while any(left):
        for number, (arrival, items, _) in enumerate(pieces):
            if arrival == now:
                order.add(items, number, number)
        number = order.next()
        now += 1
        if number is None:
            continue
        left[number] -= 1
        if left[number]:
            order.add(pieces[number][1], number, number)
        else:
            ends[number] = now
    return ends


def test_equal_pieces_end_one_after_the_other_so_their_mean_time_is_half_of_that_of_all() -> None:
    ends = ends_of(*[(0, NAMES, 30)] * 50)
    assert ends == [30 * (number + 1) for number in range(50)]
    assert sum(ends) / 50 < 0.52 * ends[-1]


def test_smaller_piece_waits_one_turn_of_the_larger_ones_between_its_own() -> None:
    """The order of waiting work holds for any number of earlier, larger requests."""
    *_, small = ends_of(*[(0, NAMES, 30)] * 50, (5, 300, 3))
    assert small <= 5 + 2 * 3


def test_small_pieces_that_come_without_end_do_not_keep_a_large_one_waiting() -> None:
    large, *_ = ends_of((0, NAMES, 30), *[(number, 300, 1) for number in range(500)])
    assert large <= 2 * 30


def test_no_piece_waits_longer_than_its_class_and_one_turn_of_each_other_class() -> None:
    sizes = (300, 2_000, 8_000, 40_000)
    pieces = [(number % 7, items, 10) for number in range(20) for items in sizes]
    for (_, items, _), end in zip(pieces, ends_of(*pieces), strict=True):
        before = sum(other == items for _, other, _ in pieces)
        assert end <= 7 + before * 10 * len(sizes)


def test_first_come_is_served_first_in_the_loop_too() -> None:
    """The product's Turns, with a clock that a test advances."""
    ended = []

    async def work(number: int, items: int) -> None:
        async with turns.Turns(items) as mine:
            for _ in range(10):
                await mine.next()
        ended.append(number)

    async def scenario() -> None:
        await asyncio.gather(*(work(number, NAMES) for number in range(5)), work(5, 300))

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert ended == [0, 5, 1, 2, 3, 4]


def offsets_of(replica: Any) -> OffsetsService:
    """The service of a broker that leads every partition by ``replica``."""
    partitions = SimpleNamespace(leader=lambda partition: replica, for_clients=lambda partition, error: error)
    clock = SimpleNamespace(monotonic_ms=lambda: time.monotonic() * 1000)
    return OffsetsService(SimpleNamespace(partitions=partitions, clock=clock))  # type: ignore[arg-type]


def test_others_have_their_turns_while_long_work_waits_for_a_disk() -> None:
    """A lookup by time reads from the disk on a thread. A disk that hangs delays no response that needs no disk
    read."""

    async def scenario() -> None:
        disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        leader = SimpleNamespace(leader_epoch=0, check_latest_known=lambda: None, high_watermark=7)
        replica = SimpleNamespace(leader=leader, timestamp_offset=lambda timestamp_ms, end: asyncio.shield(disk))
        service = offsets_of(replica)
        wanted = offsets_pb2.ListOffsetsRequest()
        for number in range(turns.SHORT_ITEMS + 1):
            wanted.partitions.add(topic="t", partition=number, timestamp_ms=1)
        lookups = [asyncio.create_task(service.ListOffsets(wanted, None)) for _ in range(2)]
        await asyncio.sleep(0)
        answer = await asyncio.wait_for(respond(MetadataView()), 10)
        assert len(answer.topics) == NAMES
        lookups[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await lookups[0]
        disk.set_result(None)
        assert len((await lookups[1]).results) == turns.SHORT_ITEMS + 1
        async with turns.Turns(NAMES):  # the cancelled call has released its lock
            pass

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize(
    ("call", "request_of"),
    [
        ("ListOffsets", offsets_pb2.ListOffsetsRequest),
        ("OffsetForLeaderEpoch", offsets_pb2.OffsetForLeaderEpochRequest),
    ],
)
def test_others_go_on_while_the_offsets_of_ten_thousand_partitions_are_looked_up(call: str, request_of: Any) -> None:
    leader = SimpleNamespace(check_latest_known=lambda: None, high_watermark=7, leader_epoch=0)
    service = offsets_of(SimpleNamespace(leader=leader, epoch_end=lambda epoch: (3, 7), past_gap=lambda end: None))
    wanted = request_of()
    for number in range(NAMES):
        wanted.partitions.add(topic="t", partition=number)
        if call == "ListOffsets":
            wanted.partitions[number].timestamp_ms = LATEST_TIMESTAMP

    async def scenario() -> None:
        passes = 0

        async def other() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        answer = await getattr(service, call)(wanted, None)
        beside.cancel()
        assert [each.partition for each in answer.results] == list(range(NAMES))
        assert passes > NAMES / 10

    asyncio.run(scenario())


def test_records_of_few_partitions_are_deleted_at_the_same_time() -> None:
    """In an early version, the deletions in 2,000 partitions all ended in one pass of the event loop and blocked it for
    60 ms. Now a few deletions run at a time, and the request's timeout covers all of them."""

    class Replica:
        leader = SimpleNamespace(leader_epoch=0, high_watermark=7)
        partition = "t-0"
        under_way = most = begun = 0

        async def delete_records(self, before: int) -> None:
            self.begun += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            for _ in range(3):
                await asyncio.sleep(0)
            self.under_way -= 1
            if not is_sound:
                await asyncio.Event().wait()
            raise OffsetOutOfRangeError("deleted, as far as this test goes")

    wanted = offsets_pb2.DeleteRecordsRequest(timeout_ms=60_000)
    for number in range(limit_of("Offsets/DeleteRecords", "partitions")):
        wanted.partitions.add(topic="t", partition=number)
    is_sound, replica = True, Replica()
    answer = asyncio.run(offsets_of(replica).DeleteRecords(wanted, None))
    assert {each.error.code for each in answer.results} == {OffsetOutOfRangeError.number}
    assert (replica.begun, replica.most <= 250) == (len(wanted.partitions), True)

    wanted.timeout_ms = 50
    is_sound, replica = False, Replica()
    answer = asyncio.run(asyncio.wait_for(offsets_of(replica).DeleteRecords(wanted, None), 30))
    assert {each.error.code for each in answer.results} == {RequestTimedOutError.number}


@in_loop
async def test_long_work_within_long_work_of_its_task_fails_at_once() -> None:
    async with turns.Turns(NAMES) as outer:
        with pytest.raises(RuntimeError, match="outside"):
            async with turns.Turns(NAMES):
                pass

        async def inner() -> str:
            async with turns.Turns(NAMES):
                return "done"

        assert await outer.outside(inner()) == "done"
    assert await inner() == "done"


def test_newer_metadata_in_between_leave_no_stale_entry_behind() -> None:
    """A response for an older image may look up a value late. The value is not cached for requests with a newer
    image."""
    view = MetadataView()
    old, new = MetadataImage(), MetadataImage()
    parts = view._building(old, request(), 1, None, None)
    next(parts)
    asyncio.run(view.response(new, metadata_pb2.MetadataRequest(), controller_id=1))
    assert len(list(parts)) == NAMES
    assert view._image is new
    assert not view._topics


@in_loop
async def test_answer_in_turns_is_the_answer() -> None:
    answer = await respond(MetadataView())
    *_, whole = MetadataView()._building(MetadataImage(), request(), 1, None, None)
    assert answer == whole


def test_watch_of_many_topics_costs_what_changed() -> None:
    """In an early version, each change was compared with every name of every watch."""

    class Names:
        """A repeated field that counts iterations over it."""

        walks = 0

        def __iter__(self) -> Iterator[str]:
            self.walks += 1
            return iter(["a"])

        def __bool__(self) -> bool:
            return True

    names = Names()
    asked = SimpleNamespace(all_topics=False, topics=names)
    watch = MetadataWatch(asked, lambda: None, lambda watcher: lambda: None, lambda: 0.0)  # type: ignore[arg-type,return-value]
    assert names.walks == 1
    for _ in range(3):
        watch._changed(MetadataImage(), MetadataDelta(from_offset=0, next_offset=1))
    assert names.walks == 1
    assert not concerns(asked, MetadataImage(), MetadataDelta(from_offset=0, next_offset=1), frozenset(names))  # type: ignore[arg-type]
