"""Random lives of a broker with three directories. The lives contain appends, moves, deletions, elections and settings
at the same time, disks that fill up or fail, no descriptors left, crashes, and starts without one of the directories.

At the end, all directories are sound. Every partition has all acknowledged records at their offsets, and no deleted
record. Idempotent and transactional producers repeat what was not answered, in the next life too: each of their records
is there once, the aborted transactions are known, and the stable part reaches the log's end.

The order of threads and the event loop is not fixed, so the same seed does not repeat the same steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace_broker.handlers.transactions import MarkersStream
from headrace_core import errors
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.moving import MARKER
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import ConfigRecord
from headrace_core.records import encode_batch
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, TraceEntry
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2
from tests.worlds.solo_broker import FakeStream, PlayedCoordinator, SoloBroker, batch, produce

#: The number of random lives. The variable HEADRACE_RANDOM_LIVES sets another number of random lives.
LIVES = int(os.environ.get("HEADRACE_RANDOM_LIVES", "24"))
ROOTS = ("/one", "/two", "/three")
TOPICS = ("a", "b", "c")
#: Operations that may meet each error.
MEET = {
    errno.EMFILE: ("open", "create", "listdir", "sync_directory"),
    errno.ENOSPC: ("write", "create", "mkdir", "rename", "sync_directory"),
    errno.EIO: ("write", "sync", "sync_directory", "read", "rename"),
}


#: Error codes with which a broker that lost or confused the state of producers refuses a request.
CONFUSED = {
    "DUPLICATE_SEQUENCE_NUMBER",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_TXN_STATE",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "PRODUCER_FENCED",
    "UNKNOWN_PRODUCER_ID",
}


@dataclass
class Writer:
    """An idempotent or a transactional producer of a topic. It repeats each request until it is answered."""

    producer_id: int
    is_transactional: bool
    epoch: int = 0
    sequence: int = 0
    value: bytes | None = None  #: The record that is not answered.
    ending: bool | None = None  #: The outcome of the marker that is not answered.
    first_offset: int | None = None  #: Of the open transaction.
    #: The first offset of each transaction that has ended -> whether it was committed.
    ended: dict[int, bool] = field(default_factory=dict)
    is_busy: bool = False

    async def step(self, broker: SoloBroker, topic: str, known: Known, value: bytes, rng: random.Random) -> None:
        """Begin something new, or repeat what is not answered."""
        if self.value is None and self.first_offset is not None and self.ending is None and rng.random() < 0.4:
            self.ending = rng.random() < 0.5
        await (self._send(broker, topic, known, value) if self.ending is None else self._end(broker, topic))
        self.is_busy = False

    async def _send(self, broker: SoloBroker, topic: str, known: Known, value: bytes) -> None:
        self.value = self.value or value
        records = encode_batch(
            [(1000, None, self.value, [])],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=self.is_transactional,
        )
        request = produce(1, topic, records)
        if self.is_transactional:
            request.transactional_id, request.transaction_version = f"t{self.producer_id}", 2
        handler, stream = broker.producer()
        handler.on_request(request)
        (answer,) = await stream.wait_sent(1)
        handler.on_closed()
        if _is_done(answer.results[0]):
            offset = answer.results[0].base_offset
            known.acknowledged[offset] = self.value
            self.sequence, self.value = self.sequence + 1, None
            if self.is_transactional and self.first_offset is None:
                self.first_offset = offset

    async def _end(self, broker: SoloBroker, topic: str) -> None:
        stream = FakeStream()
        handler = MarkersStream(broker.context, stream)  # type: ignore[arg-type]
        marker = transactions_pb2.WriteMarkersRequest(
            correlation_id=1,
            producer_id=self.producer_id,
            producer_epoch=self.epoch + 1,
            commit=bool(self.ending),
            transaction_version=2,
            coordinator_epoch=1,
            partitions=[groups_pb2.PartitionName(topic=topic, partition=0)],
        )
        handler.on_request(transactions_pb2.WriteMarkersRequests(requests=[marker]))
        (answer,) = await stream.wait_sent(1)
        handler.on_closed()
        if _is_done(answer.results[0]):
            assert self.first_offset is not None
            self.ended[self.first_offset] = bool(self.ending)
            self.first_offset = self.ending = None
            self.epoch, self.sequence = self.epoch + 1, 0

    async def finish(self, broker: SoloBroker, topic: str, known: Known) -> None:
        """Everything is well again: each request succeeds at once."""
        if self.value is not None:
            await self._send(broker, topic, known, self.value)
        if self.first_offset is not None:
            self.ending = bool(self.ending)
            await self._end(broker, topic)
        assert self.value is None
        assert self.ending is None


def _is_done(result: Any) -> bool:
    code = errors.from_number(result.error.code, "").code if result.error.code else ""
    assert code not in CONFUSED, f"{code}: {result.error.message}"
    return not code


class Confirming(PlayedCoordinator):
    """Each transaction is open."""

    def _verify(self, transaction: Any, partition: TopicPartition, done: Callable[[None], None]) -> None:
        done(None)


class Known:
    """The expected state of a topic's partition."""

    def __init__(self, producer_ids: Iterator[int]) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.writers = [Writer(next(producer_ids), is_transactional) for is_transactional in (False, True)]
        #: Offsets up to which records are certainly deleted, and up to which they are perhaps deleted.
        self.start = self.start_at_most = 0


class Life:
    """One history, over several starts of the broker."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fs = CrashingFileSystem(keep_trace=False)
        self.image: MetadataImage | None = None
        self.producer_ids = itertools.count(1)
        self.known = {topic: Known(self.producer_ids) for topic in TOPICS}
        self.history: list[str] = []
        self._broker: SoloBroker
        self._number = self._lives = self._epoch = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        for _ in range(self.rng.randint(3, 5)):
            await self._one_start()
        await self._check()

    async def _one_start(self) -> None:
        rng, fs = self.rng, self.fs
        if self.image is not None and rng.random() < 0.3:
            away = rng.choice(ROOTS)
            self.history.append(f"{away} is away")
            fs.break_disk(away, errno.EIO, reads=True)
        cached = DescriptorCache(fs, 20) if rng.random() < 0.7 else None
        broker = self._broker = SoloBroker(fs, *ROOTS, image=self.image, storage_fs=cached, segment_bytes="300")
        broker.context.verifier = Confirming()  # type: ignore[assignment]
        async with broker:
            if self.image is None:
                for topic in TOPICS:
                    await broker.topic(topic)
            for _ in range(rng.randint(5, 40)):
                await self._step()
            if rng.random() < 0.5:
                await self._ended()
            fs.on_operation = None
            crashed = None
            if rng.random() < 0.5:
                acknowledged = {topic: dict(known.acknowledged) for topic, known in self.known.items()}
                starts = {topic: known.start for topic, known in self.known.items()}
                writers = copy.deepcopy({topic: known.writers for topic, known in self.known.items()})
                crashed = fs.crash_clone(rng, rng.choice(list(Loss)))
            await self._ended()
        self.image = broker.image
        self.history.append("stopped" if crashed is None else "crashed")
        if crashed is not None:
            self.fs = crashed
            for topic, known in self.known.items():
                known.acknowledged, known.start, known.writers = acknowledged[topic], starts[topic], writers[topic]
                for writer in known.writers:
                    writer.is_busy = False
        for root in ROOTS:
            with contextlib.suppress(KeyError):
                self.fs.mend_disk(root)

    async def _ended(self) -> None:
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    def _soon(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _step(self) -> None:
        rng, broker, topic = self.rng, self._broker, self.rng.choice(TOPICS)
        known, partition = self.known[topic], TopicPartition(topic, 0)
        steps: list[tuple[float, str, Callable[[], Any]]] = [
            (45, "append", lambda: self._appends(topic, known)),
            (20, "produce", lambda: self._writes(topic, known)),
            (17, "move", lambda: self._soon(self._move(partition, rng.choice(ROOTS)))),
            (8, "checkpoint", lambda: broker.storage.checkpoint(self._high_watermarks())),
            (6, "delete records", lambda: self._soon(self._delete_records(partition, known))),
            (4, "elect", lambda: self._elect(topic)),
            (
                4,
                "settings",
                lambda: broker.change(ConfigRecord(2, "", "log.segment.bytes", rng.choice(["250", "500"]))),
            ),
            (3, "delete topic", lambda: self._another(topic)),
            (6, "trouble", self._trouble),
            (3, "no trouble", lambda: setattr(self.fs, "on_operation", None)),
            (4, "retry", broker.roles.retry_full),
        ]
        _, name, step = rng.choices(steps, [weight for weight, _, _ in steps])[0]
        self.history.append(f"{name} {topic}")
        doing = step()
        if doing is not None:
            await doing
        if rng.random() < 0.3:
            await asyncio.sleep(0)

    async def _appends(self, topic: str, known: Known) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self._number += 1
            self._soon(self._append(topic, known, b"%05d" % self._number))
            if self.rng.random() < 0.5:
                await asyncio.sleep(0)

    def _writes(self, topic: str, known: Known) -> None:
        for writer in known.writers:
            if not writer.is_busy:
                self._number += 1
                writer.is_busy = True
                self._soon(writer.step(self._broker, topic, known, b"%05d" % self._number, self.rng))

    async def _append(self, topic: str, known: Known, value: bytes) -> None:
        result = await self._broker.append(topic, batch(value))
        if not result.error.code:
            known.acknowledged[result.base_offset] = value

    async def _move(self, partition: TopicPartition, root: str) -> None:
        try:
            await self._broker.storage.move(partition, root)
        except errors.HeadraceError as error:
            self.history.append(f"not moved: {type(error).__name__}")

    async def _delete_records(self, partition: TopicPartition, known: Known) -> None:
        try:
            replica = self._broker.partitions.leader(partition)
            before = self.rng.randint(0, replica.leader.high_watermark)
            known.start_at_most = max(known.start_at_most, before)
            await replica.delete_records(before)
            known.start = max(known.start, before)
        except errors.HeadraceError as error:
            self.history.append(f"not deleted: {type(error).__name__}")

    async def _elect(self, topic: str) -> None:
        self._epoch += 1
        await self._broker.new_leader(topic, 1, self._epoch)

    async def _another(self, topic: str) -> None:
        """The topic is deleted, and another topic gets its name."""
        await self._ended()
        self._lives += 1
        await self._broker.delete(topic)
        self.known[topic] = Known(self.producer_ids)
        await self._broker.topic(topic, topic_id=(b"%s%d" % (topic.encode(), self._lives)).ljust(16, b"."))

    def _trouble(self) -> None:
        error = self.rng.choices(list(MEET), [4, 5, 1])[0]
        first, times = self.rng.randint(0, 60), self.rng.randint(1, 4)
        self.history.append(f"{errno.errorcode[error]} after {first}, {times} times")
        left = [first + times]

        def meet(entry: TraceEntry) -> None:
            if entry.operation in MEET[error] and left[0] > 0:
                left[0] -= 1
                if left[0] < times:
                    raise OSError(error, errno.errorcode[error], entry.path)

        self.fs.on_operation = meet

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {replica.partition: replica.leader.high_watermark for replica in self._broker.partitions.led.values()}

    async def _check(self) -> None:
        fs = self.fs
        async with SoloBroker(fs, *ROOTS, image=self.image, segment_bytes="300") as broker:
            broker.context.verifier = Confirming()  # type: ignore[assignment]
            assert not broker.storage.offline_directories()
            for topic, known in self.known.items():
                replica = broker.partitions.leader(TopicPartition(topic, 0))
                start = replica.leader.log_start
                assert known.start <= start <= known.start_at_most, f"{topic} starts at {start}"
                for writer in known.writers:
                    await writer.finish(broker, topic, known)
                end = replica.log.log_end_offset
                assert replica.last_stable_offset == end, f"{topic} is stable up to {replica.last_stable_offset}"
                aborted = {each.first_offset for each in replica.log.aborted_transactions(start, end)}
                ended = {first: committed for writer in known.writers for first, committed in writer.ended.items()}
                assert {first for first, committed in ended.items() if not committed and first >= start} <= aborted
                assert not [first for first in aborted if ended.get(first)]
                found = dict(enumerate(broker.values(topic), start))
                data = [value for value in found.values() if value is not None and value.isdigit()]
                assert len(data) == len(set(data)), f"{topic} has a record twice"
                for offset, value in known.acknowledged.items():
                    assert offset < start or found.get(offset) == value, f"{topic} at {offset}"
                assert not (await broker.append(topic, batch(b"more"))).error.code
            for root in ROOTS:
                names = fs.listdir(root)
                assert not [name for name in names if name.endswith("-future")]
                assert not [name for name in names if fs.exists(f"{root}/{name}/{MARKER}") and name[1:] == "-0"]


@pytest.mark.parametrize("seed", range(LIVES))
def test_whatever_happens_all_that_was_acknowledged_is_there_when_all_is_well_again(seed: int) -> None:
    life = Life(seed)
    try:
        asyncio.run(asyncio.wait_for(life.run(), 60))
    except BaseException as error:
        error.add_note(f"HEADRACE_RANDOM_LIVES: seed {seed}: " + "; ".join(life.history))
        raise
