"""``Consumer.process`` on a real cluster: throughput, order for each key, retries, dead letters, kills, rebalances."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, AsyncConsumer, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.consumer.processing.progress import PREFIX, decode_done
from headrace.errors import IllegalStateError, InvalidArgumentError, InvalidGroupIdError, ProcessingError
from headrace_core.records import Record
from tests.worlds.waiting import until, work, work_async

WORKER = Path(__file__).with_name("processing_worker.py")
LIMIT_S = 60.0
COMMIT_S = 15.0  #: Time for a commit, which a worker makes every second.
_names = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        controllers=1,
        brokers=1,
        coordinators=1,
        config={"group.consumer.assignment.interval.ms": 0, "group.consumer.min.session.timeout.ms": 1_000},
    ) as made:
        yield made


class World:
    """A topic of the test, its group, and what handlers have seen."""

    def __init__(self, cluster: LocalCluster, partitions: int = 2) -> None:
        self.bootstrap = cluster.bootstrap_servers
        number = next(_names)
        self.topic, self.group = f"work-{os.getpid()}-{number}", f"workers-{os.getpid()}-{number}"
        self.lock = threading.Lock()
        self.seen: list[tuple[int, int, Any]] = []
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, partitions), NewTopic(f"{self.topic}.dead-letters", 1)])

    def write(self, count: int, keys: int = 40) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            producer.send_many(self.topic, [(b"k%d" % (each % keys), b"%d" % each) for each in range(count)]).result(30)

    def consumer(self, **more: Any) -> Consumer:
        made = Consumer(bootstrap_servers=self.bootstrap, group_id=self.group, auto_offset_reset="earliest", **more)
        made.subscribe([self.topic])
        return made

    def note(self, record: Record) -> None:
        with self.lock:
            self.seen.append((record.partition, record.offset, record.key))

    def committed(self) -> dict[TopicPartition, Any]:
        with Consumer(bootstrap_servers=self.bootstrap, group_id=self.group) as reader:
            return reader.committed([TopicPartition(self.topic, 0), TopicPartition(self.topic, 1)])

    def process(self, handler: Callable[[Record], object], done: Callable[[], bool], **options: Any) -> None:
        """Process in this thread until ``done()``."""
        stop = threading.Event()
        watch = threading.Thread(target=_stop_when, args=(done, stop), daemon=True)
        watch.start()
        with self.consumer(**options.pop("config", {})) as consumer:
            consumer.process(handler, stop=stop, **options)
        watch.join()
        assert done(), "the run ended before its work was done"


def _stop_when(done: Callable[[], bool], stop: threading.Event) -> None:
    until(done, within_s=LIMIT_S)
    stop.set()


def in_order(seen: list[tuple[int, int, Any]]) -> bool:
    of_key = defaultdict(list)
    for partition, offset, key in seen:
        of_key[partition, key].append(offset)
    return all(offsets == sorted(offsets) for offsets in of_key.values())


def test_it_is_twenty_times_a_serial_consumer_and_keeps_the_order_of_keys(cluster: LocalCluster) -> None:
    """The handler takes so long that the time of a busy processor between two records does not count."""
    world = World(cluster)
    world.write(2_000, keys=400)

    def handle(record: Record) -> None:
        work(0.05)
        world.note(record)

    began = time.monotonic()
    with Consumer(
        bootstrap_servers=world.bootstrap, group_id=f"{world.group}-serial", auto_offset_reset="earliest"
    ) as serial:
        serial.subscribe([world.topic])
        records = serial.poll(timeout=30, max_records=20)
        began = time.monotonic()
        for _ in records:
            work(0.05)
    serial_per_s = len(records) / (time.monotonic() - began)
    times: list[float] = []

    def timed(record: Record) -> None:
        handle(record)
        times.append(time.monotonic())

    world.process(timed, lambda: len(world.seen) >= 2_000, concurrency=64)
    per_s = (len(times) - 1) / (max(times) - min(times))
    assert sorted(Counter(world.seen).values()) == [1] * 2_000
    assert in_order(world.seen)
    assert per_s >= 20 * serial_per_s, f"{per_s:.0f} records/s against {serial_per_s:.0f}"
    assert sum(each.offset for each in world.committed().values()) == 2_000


def test_failures_are_tried_again_and_then_become_dead_letters(cluster: LocalCluster) -> None:
    world = World(cluster)
    world.write(60, keys=6)
    tries: Counter[bytes] = Counter()

    def handle(record: Record) -> None:
        with world.lock:
            tries[record.value] += 1
            count = tries[record.value]
        if record.value == b"7" or (record.value == b"13" and count < 3):
            raise ValueError(f"no {record.value!r}")
        world.note(record)

    dead = f"{world.topic}.dead-letters"
    world.process(
        handle, lambda: len(world.seen) == 59, retries=3, retry_backoff=0.02, dead_letters=dead, concurrency=8
    )
    assert tries[b"7"] == 4
    assert tries[b"13"] == 3
    assert in_order(world.seen)
    with Consumer(bootstrap_servers=world.bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(dead, 0)])
        (letter,) = reader.poll(timeout=30)
    headers = dict(letter.headers)
    assert letter.value == b"7"
    assert headers["headrace.dead-letter.reason"] == b"ValueError: no b'7'"
    assert headers["headrace.dead-letter.topic"] == world.topic.encode()
    assert headers["headrace.dead-letter.tries"] == b"4"


def test_bytes_that_cannot_be_deserialized_are_dead_letters_as_they_are(cluster: LocalCluster) -> None:
    world = World(cluster)
    with Producer(bootstrap_servers=world.bootstrap) as producer:
        for value in (b"1", b"{", b"2"):
            producer.send(world.topic, value=value, key=b"k")
    values: list[Any] = []
    dead = f"{world.topic}.dead-letters"
    world.process(
        lambda record: values.append(record.value),
        lambda: values == [1, 2],
        dead_letters=dead,
        config={"value_deserializer": _from_json},
    )
    with Consumer(bootstrap_servers=world.bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(dead, 0)])
        (letter,) = reader.poll(timeout=30)
    assert (letter.key, letter.value) == (b"k", b"{")


def _from_json(topic: str, data: bytes) -> Any:
    import json

    return json.loads(data)


def test_without_a_topic_for_dead_letters_the_run_ends_and_nothing_is_skipped(cluster: LocalCluster) -> None:
    world = World(cluster)
    world.write(30, keys=30)
    is_mended = False

    def handle(record: Record) -> None:
        if record.value == b"11" and not is_mended:
            raise ValueError("broken")
        world.note(record)

    with world.consumer() as consumer:
        with pytest.raises(ProcessingError, match=r"after 2 tries: ValueError: broken; .*dead_letters") as failed:
            consumer.process(handle, retries=1, retry_backoff=0.01)
        assert isinstance(failed.value.__cause__, ValueError)
        committed = consumer.committed(TopicPartition(world.topic, failed.value.partition))
        assert committed is None or committed <= failed.value.offset
        is_mended = True
        stop = threading.Event()
        watch = threading.Thread(target=_stop_when, args=(lambda: len(world.seen) == 30, stop), daemon=True)
        watch.start()
        consumer.process(handle, stop=stop)
        watch.join()
    assert sorted(Counter(world.seen).values()) == [1] * 30, "what was finished is not handled again"


def test_a_killed_worker_repeats_only_what_was_not_committed(cluster: LocalCluster, tmp_path: Path) -> None:
    world = World(cluster)
    world.write(6_000, keys=300)
    notes = tmp_path / "notes"
    notes.touch()

    def lines() -> list[tuple[int, int, str]]:
        found = []
        for line in notes.read_text().splitlines():
            partition, offset, key = line.split(" ")
            found.append((int(partition), int(offset), key))
        return found

    def committed_as_finished() -> set[tuple[int, int]]:
        found = set()
        for tp, each in world.committed().items():
            if each is not None:
                later = decode_done(each.offset, each.metadata)
                found |= {(tp.partition, offset) for offset in (*range(each.offset), *later)}
        return found

    def killed_after(wanted: int) -> set[tuple[int, int]]:
        """Kill a worker when ``wanted`` records are finished and committed; return all committed ones."""
        worker = subprocess.Popen([sys.executable, WORKER, world.bootstrap, world.topic, world.group, notes])

        def finished() -> set[tuple[int, int]]:
            assert worker.poll() is None, "the worker ended by itself"
            return {each[:2] for each in lines()}

        try:
            until(lambda: len(finished()) >= wanted, within_s=LIMIT_S, pause_s=0.02)
            done = finished()
            # The worker commits every second while it works.
            until(
                lambda: finished() and done <= committed_as_finished(), "the finished records to be committed", COMMIT_S
            )
        finally:
            worker.kill()
            worker.wait()
        return committed_as_finished()

    committed: list[set[tuple[int, int]]] = [set()]  # before each run
    counts = [0]
    for wanted in (2_000, 4_000, 6_000):
        committed.append(killed_after(wanted))
        counts.append(len(lines()))
    runs = [lines()[begin:end] for begin, end in itertools.pairwise(counts)]
    assert len({each[:2] for run in runs for each in run}) == 6_000, "at least once"
    for run, old in zip(runs, committed[:-1], strict=True):
        handled = {each[:2] for each in run}
        assert len(handled) == len(run), "twice in one run"
        assert in_order([(partition, offset, key) for partition, offset, key in run])
        assert not old & handled, "committed before a kill, and handled again"


def test_partitions_that_move_take_nothing_along(cluster: LocalCluster) -> None:
    world = World(cluster)
    world.write(1_500, keys=100)

    def handle(record: Record) -> None:
        work(0.005)
        world.note(record)

    stops = [threading.Event(), threading.Event()]
    consumers = [world.consumer(), world.consumer()]
    threads = [
        threading.Thread(target=consumer.process, args=(handle,), kwargs={"stop": stop, "concurrency": 8})
        for consumer, stop in zip(consumers, stops, strict=True)
    ]
    try:
        threads[0].start()
        until(lambda: len(world.seen) > 200, within_s=LIMIT_S)
        threads[1].start()
        until(lambda: len(world.seen) >= 1_500, within_s=LIMIT_S)
    finally:
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(LIMIT_S)
        for consumer in consumers:
            consumer.close()
    assert sorted(Counter(world.seen).values()) == [1] * 1_500
    assert in_order(world.seen)


def test_misuse_is_named(cluster: LocalCluster) -> None:
    world = World(cluster)
    with Consumer(bootstrap_servers=world.bootstrap) as consumer:
        consumer.assign([TopicPartition(world.topic, 0)])
        with pytest.raises(InvalidGroupIdError, match="process needs a consumer group"):
            consumer.process(print)
    with world.consumer() as consumer:
        with pytest.raises(InvalidArgumentError, match="concurrency=0: must be an integer from 1"):
            consumer.process(print, concurrency=0)
        with pytest.raises(InvalidArgumentError, match="retry_backoff=-1"):
            consumer.process(print, retry_backoff=-1)
        stop = threading.Event()
        errors: list[BaseException] = []

        def handle(record: Record) -> None:
            takes: tuple[Callable[[], object], ...] = (
                lambda: consumer.process(print),
                lambda: consumer.poll(0),
                lambda: next(iter(consumer)),
                lambda: consumer.fetch_arrow(0),
            )
            for take in takes:
                try:
                    take()
                except IllegalStateError as error:
                    errors.append(error)
            stop.set()

        world.write(1)
        consumer.process(handle, stop=stop)
        assert "one process() at a time" in str(errors[0])
        taken = [str(error).partition("]")[2] or str(error) for error in errors[1:]]
        assert [what in each for what, each in zip(("poll", "iteration", "fetch_arrow"), taken, strict=True)] == [
            True
        ] * 3
        assert consumer.poll(0) == []


def test_async_handlers(cluster: LocalCluster) -> None:
    world = World(cluster)
    world.write(1_000, keys=200)
    running: list[int] = [0, 0]

    async def main() -> None:
        stop = asyncio.Event()

        async def handle(record: Record) -> None:
            running[0] += 1
            running[1] = max(running)
            await work_async(0.005)
            running[0] -= 1
            if record.value == b"5":
                raise ValueError("broken")
            if record.value == b"6":
                raise asyncio.CancelledError  # as from a task that the handler awaits, and that was cancelled
            world.note(record)
            if len(world.seen) == 998:
                stop.set()

        async with AsyncConsumer(
            bootstrap_servers=world.bootstrap, group_id=world.group, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.subscribe([world.topic])
            dead = f"{world.topic}.dead-letters"
            await consumer.process(handle, concurrency=32, retries=0, dead_letters=dead, stop=stop)

    asyncio.run(main())
    assert running[1] == 32
    assert sorted(Counter(world.seen).values()) == [1] * 998
    assert in_order(world.seen)
    with Consumer(bootstrap_servers=world.bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(f"{world.topic}.dead-letters", 0)])
        letters: dict[bytes | None, dict[str, Any]] = {}
        until(
            lambda: letters.update({each.value: dict(each.headers) for each in reader.poll(0.2)}) or len(letters) == 2
        )
    assert letters[b"5"]["headrace.dead-letter.reason"] == b"ValueError: broken"
    assert b"the handler awaited a task or future that was cancelled" in letters[b"6"]["headrace.dead-letter.reason"]


def test_a_cancelled_run_keeps_what_is_unfinished(cluster: LocalCluster) -> None:
    world = World(cluster, partitions=2)
    world.write(20, keys=20)

    async def main() -> None:
        hangs = asyncio.Event()

        async def handle(record: Record) -> None:
            if record.value == b"3":
                hangs.set()
                await asyncio.Event().wait()
            world.note(record)

        async with AsyncConsumer(
            bootstrap_servers=world.bootstrap, group_id=world.group, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.subscribe([world.topic])
            task = asyncio.create_task(consumer.process(handle))
            async with asyncio.timeout(LIMIT_S):
                await hangs.wait()
                while len(world.seen) < 19:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    metadata = [each.metadata for each in world.committed().values() if each is not None]
    assert any(text.startswith(PREFIX) for text in metadata)
    world.process(world.note, lambda: len(world.seen) == 20)
    assert sorted(Counter(world.seen).values()) == [1] * 20
