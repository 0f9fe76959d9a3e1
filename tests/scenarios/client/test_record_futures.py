"""Record futures used elsewhere: concurrent.futures.wait and as_completed, asyncio.wrap_future, copies."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import pickle
import random
import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import Any

import pytest

from headrace import Producer, RecordMetadata
from headrace.accumulator import Accumulator, NativeProducer, TopicQueues
from headrace.errors import HeadraceError, IllegalStateError, NetworkError
from tests.worlds.waiting import until


class Batches:
    """An accumulator whose sender is the test: one record per batch."""

    def __init__(self) -> None:
        self.acc = Accumulator(batch_bytes=100, buffer_bytes=1 << 30, wake=lambda: None, slow=lambda *_: None)
        self.topic = self.acc.topics["t"] = TopicQueues(self.acc, "t", 1, 1 << 20)
        self.sent = 0

    def send(self) -> tuple[Any, Any]:
        """A future and its batch."""
        future = NativeProducer(self.acc).send("t", b"x" * 60)
        return future, self.acc.take(self.topic.queues[0], partial=True)

    def finish(self, batch: Any, error: HeadraceError | None = None) -> None:
        from headrace.producer.sender import finish

        finish(batch, self.sent, -1, error)
        self.sent += 1


@pytest.fixture
def batches() -> Batches:
    return Batches()


def in_thread(call: Any) -> concurrent.futures.Future[Any]:
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


@pytest.mark.parametrize("finished_before", [0, 1, 3])
def test_wait_ends_when_all_are_done(batches: Batches, finished_before: int) -> None:
    pairs = [batches.send() for _ in range(3)]
    futures = [future for future, _ in pairs]
    for _, batch in pairs[:finished_before]:
        batches.finish(batch)
    waiting = in_thread(lambda: concurrent.futures.wait(futures, 60))
    if finished_before < 3:
        until(lambda: pairs[-1][1].watch is not None)
    for _, batch in pairs[finished_before:]:
        assert not waiting.done()
        batches.finish(batch)
    done, not_done = waiting.result(60)
    assert (done, not_done) == (set(futures), set())
    assert all(batch.watch is None or not batch.watch.entries for _, batch in pairs)  # nothing is kept


def test_wait_ends_at_the_first_outcome_and_at_the_first_error(batches: Batches) -> None:
    (one, first), (two, second), (three, third) = (batches.send() for _ in range(3))
    assert concurrent.futures.wait([one, two], 0, FIRST_COMPLETED) == (set(), {one, two})
    waiting = in_thread(lambda: concurrent.futures.wait([one, two, three], 60, FIRST_COMPLETED))
    batches.finish(first)
    assert waiting.result(60) == ({one}, {two, three})
    waiting = in_thread(lambda: concurrent.futures.wait([one, two, three], 60, FIRST_EXCEPTION))
    batches.finish(second, NetworkError("cut"))
    assert waiting.result(60) == ({one, two}, {three})
    assert concurrent.futures.wait([one, two, three], 0, ALL_COMPLETED) == ({one, two}, {three})
    batches.finish(third)
    assert concurrent.futures.wait([one, two, three], 0, ALL_COMPLETED) == ({one, two, three}, set())


def test_as_completed_gives_each_once_in_the_order_of_outcomes(batches: Batches) -> None:
    pairs = [batches.send() for _ in range(50)]
    order = list(pairs)
    random.Random(7).shuffle(order)
    batches.finish(order[0][1])
    given = concurrent.futures.as_completed([future for future, _ in pairs], 60)
    assert next(given) is order[0][0]
    for future, batch in order[1:]:
        batches.finish(batch)
        assert next(given) is future
    assert list(given) == []


def waiting_for(futures: list[Any], seed: int) -> concurrent.futures.Future[Any]:
    shuffled = random.Random(seed).sample(futures, len(futures))
    return in_thread(lambda: concurrent.futures.wait(shuffled, 60))


def test_waiters_of_many_threads_and_a_racing_sender_all_hear_of_everything(batches: Batches) -> None:
    for _ in range(30):
        pairs = [batches.send() for _ in range(40)]
        futures = [future for future, _ in pairs]
        other: concurrent.futures.Future[None] = concurrent.futures.Future()
        waits = [waiting_for([*futures, other], seed) for seed in range(4)]
        for _, batch in pairs:
            batches.finish(batch)
        other.set_result(None)
        for each in waits:
            assert each.result(60) == ({*futures, other}, set())


def test_wrapped_future_is_awaited(fake: Any) -> None:
    async def run(out: Producer) -> None:
        metadata = await asyncio.wait_for(asyncio.wrap_future(out.send("t", b"v")), 60)
        assert isinstance(metadata, RecordMetadata)
        assert metadata.offset == 0
        fake.on_produce = lambda broker, item: 87
        with pytest.raises(HeadraceError) as caught:
            await asyncio.wait_for(asyncio.wrap_future(out.send("t", b"bad")), 60)
        assert caught.value.code == "INVALID_RECORD"
        fake.on_produce = lambda broker, item: 0
        future = out.send("t", b"w")
        asyncio.wrap_future(future).cancel()
        assert future.result(60).offset == 1
        assert not future.cancelled()

    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        asyncio.run(run(out))


def test_waiting_for_real_sends_mixed_with_other_futures(fake: Any) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers) as out, concurrent.futures.ThreadPoolExecutor(1) as pool:
        futures: list[Any] = [out.send("t", b"%d" % number) for number in range(200)]
        futures.append(pool.submit(lambda: 5))
        assert concurrent.futures.wait(futures, 60).not_done == set()
        assert set(concurrent.futures.as_completed(futures, 60)) == set(futures)
        caught: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def waits(metadata: Any, error: Any) -> None:
            fake.hold_answers(True)
            try:
                concurrent.futures.wait([out.send("t", b"never while we wait")])
            except Exception as failure:  # noqa: BLE001
                caught.set_result(failure)
            fake.hold_answers(False)

        out.send("t", b"v", on_delivery=waits)
        assert isinstance(caught.result(60), IllegalStateError)


def test_future_is_one_to_isinstance_and_shows_its_state(batches: Batches) -> None:
    future, batch = batches.send()
    assert isinstance(future, concurrent.futures.Future)
    assert (future.running(), future.cancel(), future.cancelled()) == (True, False, False)
    assert repr(future) == "<RecordFuture t-0 pending>"
    batches.finish(batch)
    assert repr(future) == "<RecordFuture t-0 acknowledged at offset 0>"
    assert not future.running()
    future, batch = batches.send()
    batches.finish(batch, NetworkError("cut"))
    assert repr(future) == "<RecordFuture t-0 failed: NETWORK_EXCEPTION>"
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="RecordFuture cannot be pickled or copied"):
            copied(future)
