"""Reads of data outside the page cache: they run on a thread, stay in order, and end with their stream."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from headrace_core import errors
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop


class ColdFileSystem(CrashingFileSystem):
    """A file system without cached files. Reads off the main thread wait for ``go``, and can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.cold = False
        self.hot: set[str] = set()  # directories whose files are cached all the same
        self.go = threading.Event()
        self.go.set()
        self.reading = threading.Event()
        self.failure: OSError | None = None

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        return _ColdFile(self, super().open(path, write=write, create=create))


class _ColdFile:
    def __init__(self, fs: ColdFileSystem, file: Any) -> None:
        self._fs = fs
        self._file = file

    def pread_cached(self, size: int, position: int) -> bytes | None:
        is_hot = not self._fs.cold or self._file.path.split("/")[-2] in self._fs.hot
        return self._file.pread(size, position) if is_hot else None

    def pread(self, size: int, position: int) -> bytes:
        if threading.current_thread() is not threading.main_thread() and self._fs.cold:
            self._fs.reading.set()
            assert self._fs.go.wait(60), "the test never let the disk go"
            if self._fs.failure is not None:
                raise self._fs.failure
        return self._file.pread(size, position)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


async def reading(fs: ColdFileSystem) -> None:
    assert await asyncio.to_thread(fs.reading.wait, 20)


async def filled(fs: ColdFileSystem) -> SoloBroker:
    broker = SoloBroker(fs)
    await broker.__aenter__()
    for name in ("orders", "payments"):
        await broker.topic(name)
        for value in (b"a", b"b"):
            await broker.append(name, batch(value))
    fs.cold = True
    return broker


def offsets(answer: Any) -> list[tuple[str, int, int]]:
    return [(result.topic, result.fetch_offset, result.next_offset) for result in answer.results if result.records]


@in_loop
async def test_cold_partitions_are_read_and_the_session_goes_on():
    fs = ColdFileSystem()
    broker = await filled(fs)
    consumer, answers = broker.consumer()
    for number in range(3):
        consumer.on_request(fetch(number, *(("orders", "payments") if number == 0 else ()), max_wait_ms=0))
    await answers.wait_sent(3)
    assert [answer.correlation_id for answer in answers.sent] == [0, 1, 2]
    assert sorted(each for answer in answers.sent for each in offsets(answer)) == [
        ("orders", 0, 2),
        ("payments", 0, 2),
    ]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_poll_that_wants_more_than_one_cold_partition_has_gets_both_from_the_disk():
    fs = ColdFileSystem()
    broker = await filled(fs)
    consumer, answers = broker.consumer()
    of_both = 4 * len(batch(b"a"))
    consumer.on_request(fetch(1, "orders", "payments", min_bytes=of_both, max_wait_ms=60_000))
    await answers.wait_sent(1)
    assert offsets(answers.sent[0]) == [("orders", 0, 2), ("payments", 0, 2)]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_records_that_arrive_during_a_cold_read_are_not_forgotten():
    fs = ColdFileSystem()
    broker = await filled(fs)
    consumer, answers = broker.consumer()
    fs.go.clear()
    consumer.on_request(fetch(1, "orders"))
    await reading(fs)
    await broker.append("orders", batch(b"c"))
    fs.go.set()
    await answers.wait_sent(1)
    consumer.on_request(fetch(2))
    await answers.wait_sent(2)
    read = [each for answer in answers.sent for each in offsets(answer)]
    assert read == [("orders", 0, 2), ("orders", 2, 3)]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_seek_during_a_cold_read_drops_what_was_read():
    fs = ColdFileSystem()
    broker = await filled(fs)
    consumer, answers = broker.consumer()
    fs.go.clear()
    consumer.on_request(fetch(1, "orders"))
    await reading(fs)
    consumer.on_request(fetch(2, "orders", offset=1))
    fs.go.set()
    await answers.wait_sent(2)
    assert [offsets(answer) for answer in answers.sent] == [[("orders", 0, 2)], [("orders", 1, 2)]]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_stream_dropped_during_a_cold_read_leaves_nothing_behind():
    fs = ColdFileSystem()
    broker = await filled(fs)
    consumer, answers = broker.consumer()
    fs.go.clear()
    consumer.on_request(fetch(1, "orders"))
    await reading(fs)
    consumer.on_closed()
    fs.go.set()
    assert not (await broker.append("orders", batch(b"c"))).error.code
    assert answers.sent == []
    assert broker.partitions.leader(TopicPartition("orders", 0)).leader.waiting == (0, 0)
    await broker.__aexit__()


@in_loop
async def test_a_disk_that_cannot_be_read_has_failed():
    fs = ColdFileSystem()
    broker = await filled(fs)
    fs.failure = OSError(5, "Input/output error")
    consumer, answers = broker.consumer()
    consumer.on_request(fetch(1, "orders"))
    (answer,) = await answers.wait_sent(1)
    assert answer.results[0].error.code == errors.StorageError.number
    fs.failure = None
    assert (await broker.append("orders", batch(b"x"))).error.code == errors.StorageError.number
    assert "Input/output error" in broker.storage.offline_directories()["/data"]
    consumer.on_closed()
    await broker.__aexit__()


@in_loop
async def test_a_lack_of_descriptors_is_not_the_disks_fault():
    fs = ColdFileSystem()
    broker = await filled(fs)
    fs.failure = OSError(24, "Too many open files")
    consumer, answers = broker.consumer()
    consumer.on_request(fetch(1, "orders"))
    (answer,) = await answers.wait_sent(1)
    assert answer.results[0].error.code == errors.StorageError.number
    fs.failure = None
    consumer.on_request(fetch(2, "orders"))
    await answers.wait_sent(2)
    assert offsets(answers.sent[1]) == [("orders", 0, 2)]
    consumer.on_closed()
    await broker.__aexit__()
