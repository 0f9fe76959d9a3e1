"""A thread looks up offsets in the active segment while the owner appends to it. The last tests of this file run
appends, flushes and cleanings without a free descriptor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace_core.errors import ServerBusyError
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.compaction.manager import CleanerManager
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.log_world import NOW_MS, ORDERS, ROOT, TOPIC_ID, batch, begun, formatted, open_directory, values_of

EVERY_BATCH = LogConfig(index_interval_bytes=0)


def reopened(*values: str) -> PartitionLog:
    """After a clean stop the segment's indexes are not loaded yet."""
    fs = formatted()
    directory = open_directory(fs)
    directory.create(ORDERS, TOPIC_ID, LogConfig()).append(batch(*values), 0)
    directory.close()
    return open_directory(fs).logs[ORDERS]


def test_a_lookup_of_the_largest_timestamp_does_not_undo_what_was_appended_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = reopened("a")
    segment = log.active
    look_up, is_under_way = segment._find_largest_timestamp, False

    def overtaken() -> Any:
        nonlocal is_under_way
        found = look_up()
        if not is_under_way:
            is_under_way = True
            log.append(batch("b", timestamp_ms=NOW_MS + 5000), 0)
        return found

    monkeypatch.setattr(segment, "_find_largest_timestamp", overtaken)
    assert segment.largest_timestamp.timestamp_ms == NOW_MS + 5000
    log.append(batch("c"), 0)
    assert segment.largest_timestamp == (NOW_MS + 5000, 1)
    log.roll()
    segment.unload_indexes()
    assert log.offset_for_timestamp(NOW_MS + 5000) == (NOW_MS + 5000, 1, 0)
    assert segment.index_fault is None


def test_the_end_of_a_segment_that_was_looked_up_while_it_grew_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = reopened("a")
    segment = log.active
    look_up: Callable[[int], int] = segment.offset_before

    def overtaken(position: int) -> int:
        found = look_up(position)
        monkeypatch.undo()
        log.append(batch("b"), 0)
        log.roll()
        log.append(batch("c"), 0)
        return found

    monkeypatch.setattr(segment, "offset_before", overtaken)
    assert segment.largest_timestamp.timestamp_ms == NOW_MS
    assert segment.end_offset == 2
    assert values_of(log) == ["a", "b", "c"]
    assert log.offset_for_timestamp(NOW_MS + 1) is None


@pytest.mark.parametrize("index", ["index", "time_index"])
def test_an_index_entry_is_never_seen_before_its_batch(monkeypatch: pytest.MonkeyPatch, index: str) -> None:
    directory = open_directory(formatted(), EVERY_BATCH)
    log = directory.create(ORDERS, TOPIC_ID, EVERY_BATCH)
    for number in range(3):
        log.append(batch(f"v{number}", timestamp_ms=NOW_MS + number * 1000), 0)
    segment = log.active
    target, name = (segment.index, "append") if index == "index" else (segment.time_index, "maybe_append")
    add, looks = getattr(target, name), 0

    def and_a_reader_looks(*entry: int, **more: Any) -> None:
        nonlocal looks
        add(*entry, **more)
        looks += 1
        assert log.offset_for_timestamp(NOW_MS + 2000) == (NOW_MS + 2000, 2, 0)
        segment.floor(NOW_MS + 10_000)
        segment.find_or_end(3)
        assert log.read(0, 1 << 20, 3) is not None

    monkeypatch.setattr(target, name, and_a_reader_looks)
    log.append(batch("v3", timestamp_ms=NOW_MS + 3000), 0)
    assert looks == 1
    assert segment.index_fault is None


def test_index_entries_wait_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, directory, log = begun(EVERY_BATCH)

    def none_left() -> Any:
        raise ServerBusyError("no file descriptor left")

    files = (log.active.index.file, log.active.time_index.file)
    with monkeypatch.context() as patch:
        for file in files:
            patch.setattr(type(file), "_open", lambda self: none_left())
        for number in range(600):
            log.append(batch(f"v{number}", timestamp_ms=NOW_MS + number), 0)
    assert values_of(log) == [f"v{number}" for number in range(600)]
    directory.close()
    log = open_directory(fs, EVERY_BATCH).logs[ORDERS]
    assert len(log.active.index) == 599
    assert values_of(log, 300) == [f"v{number}" for number in range(600)]
    assert log.active.index_fault is None


def test_a_file_that_was_not_synced_keeps_its_descriptor_when_its_neighbour_has_none() -> None:
    fs = CrashingFileSystem()
    cache = DescriptorCache(fs, 1)
    first, second = cache.open_lazily("/one.log", create=True), cache.open_lazily("/two.log", create=True)
    second.close()
    first.pwritev([b"unsynced"], 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        cache.sync_files([first, second])
    cache.open_lazily("/three.log", create=True).pwritev([b"more"], 0)
    assert first.is_open, "its write-back error would be told to nobody"


def test_a_log_for_which_there_is_no_descriptor_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LogConfig(cleanup_compact=True, min_compaction_lag_ms=1, min_dirty_ratio=0.0)
    directory = open_directory(formatted(), config)
    log = directory.create(ORDERS, TOPIC_ID, LogConfig())
    log.append(batch("a"), 0)
    log.roll()
    log.reconfigure(config)
    manager = CleanerManager(directory.fs, ROOT)

    def plan() -> int:
        return len(manager.plan(directory.logs, stable_offset_of=lambda log: 1, now_ms=NOW_MS + 1000))

    def none_left(segment: object) -> Any:
        raise ServerBusyError("no file descriptor left")

    with monkeypatch.context() as patch:
        patch.setattr(type(log.active), "largest_timestamp", property(none_left))
        assert plan() == 0
    assert manager.uncleanable == {}
    assert plan() == 1
