"""No check may take a healthy log out of service, or report its sound indexes as damaged."""

from __future__ import annotations

import errno

import pytest

from headrace_core.errors import CorruptLogError, DiskFullError
from headrace_core.log import Append, LogConfig, LogDirectory, PartitionLog
from headrace_core.log.dump import Problem
from headrace_core.log.index import OFFSET_ENTRY, TIME_ENTRY
from headrace_core.log.scrubbing import scrub_segment
from headrace_core.log.verify import verify
from headrace_core.records import decode_batch
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.log_world import NOW_MS, ORDERS, ROOT, TOPIC_ID, batch, begun, formatted, open_directory, values_of


def scrubbed(directory: LogDirectory, log: PartitionLog) -> list[str]:
    """The index faults of all segments; CorruptLogError where a scrubber would quarantine."""
    found = [
        scrub_segment(directory.fs, log, segment, spend=lambda size: None, should_stop=lambda: False)
        for segment in log.segments
    ]
    assert [each.size for each in found] == [segment.size for segment in log.segments]
    return [each.index_fault for each in found if each.index_fault is not None]


def test_what_lies_below_a_start_where_the_log_was_cut_is_no_damage() -> None:
    _, directory, log = begun()
    for number in range(4):
        log.append(batch(f"v{number}"), 3)
    log.flush()
    directory.delete_records(log, 2)
    directory.truncate(log, 2)
    assert log.epochs.entries == ()
    assert scrubbed(directory, log) == []
    log.append(batch("new"), 5)
    assert scrubbed(directory, log) == []
    assert values_of(log) == ["new"]


def test_an_epoch_whose_first_batch_met_a_full_disk_begins_where_its_next_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, directory, log = begun()
    log.append(batch("a"), 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr(log.active, "write", full)
        outcomes = log.append_many([Append(data=batch("b"), leader_epoch=0), Append(data=batch("c"), leader_epoch=1)])
        assert all(isinstance(outcome, DiskFullError) for outcome in outcomes)
    log.append(batch("d"), 1)
    assert values_of(log) == ["a", "d"]
    assert scrubbed(directory, log) == []
    assert log.epoch_end_offset(0).end_offset == 1
    log.flush()
    directory.close()
    assert values_of(open_directory(directory.fs._fs).logs[ORDERS]) == ["a", "d"]  # type: ignore[attr-defined]


def a_log_that_kafka_compacted() -> CrashingFileSystem:
    """Whole batches are missing in and at the end of the log's first segment, because Kafka's compaction removes empty
    batches. The topic is no longer compacted."""
    fs, directory, log = begun()
    for number in range(6):
        log.append(batch(f"v{number}"), 0)
    log.roll()
    log.append(batch("v6"), 0)
    log.roll()
    log.append(batch("v7"), 0)
    log.flush()
    directory.close()
    path = f"{ROOT}/{ORDERS}/{0:020d}.log"
    data = fs.files()[path]
    size = len(data) // 6
    fs.replace(path, b"".join(data[at * size :][:size] for at in (0, 2, 4)))
    for suffix in (".index", ".timeindex"):
        fs.unlink(f"{ROOT}/{ORDERS}/{0:020d}{suffix}")
    return fs


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_that_was_compacted_before_its_policy_was_changed_is_served(is_clean: bool) -> None:
    fs = a_log_that_kafka_compacted()
    if not is_clean:
        fs.unlink(f"{ROOT}/.kafka_cleanshutdown")
        fs.unlink(f"{ROOT}/recovery-point-offset-checkpoint")
    directory = open_directory(fs)
    log = directory.logs[ORDERS]
    for _ in range(2):
        offset, found = 0, []
        while offset < log.log_end_offset:
            result = log.read(offset, 1, wait=False) or log.read(offset, 1)
            assert result is not None
            found += [record.value for record in decode_batch(result.records)]
            offset = result.next_offset
        assert found == [b"v0", b"v2", b"v4", b"v6", b"v7"]
        assert log.offset_for_timestamp(NOW_MS) is not None
        assert log.offset_for_timestamp(NOW_MS + 1) is None
        assert scrubbed(directory, log) == []
    assert not [line for line in verify(ROOT, fs=fs) if isinstance(line, Problem)]


def test_a_file_that_ends_early_is_still_damage_where_no_compaction_was() -> None:
    fs, directory, log = begun()
    for number in range(6):
        log.append(batch(f"v{number}"), 0)
    log.roll()
    log.append(batch("v6"), 0)
    log.flush()
    directory.close()
    path = f"{ROOT}/{ORDERS}/{0:020d}.log"
    data = fs.files()[path]
    fs.replace(path, data[: len(data) // 6 * 5])
    directory = open_directory(fs)
    log = directory.logs[ORDERS]
    with pytest.raises(CorruptLogError, match="records are missing"):
        log.read(0, 1 << 20)
    with pytest.raises(CorruptLogError, match="records are missing"):
        scrubbed(directory, log)


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_epoch_that_kafkas_checkpoint_lacks_is_no_damage_ever_after(is_clean: bool) -> None:
    """Kafka writes its checkpoint without waiting for the disk; entries lost in a crash are never restored."""
    fs, directory, log = begun()
    for epoch in (0, 1):
        log.append(batch(f"v{epoch}"), epoch)
    directory.close()
    path = f"{ROOT}/{ORDERS}/leader-epoch-checkpoint"
    fs.replace(path, b"0\n1\n0 0\n")
    for epoch in (2, 3):
        if not is_clean:
            fs.unlink(f"{ROOT}/.kafka_cleanshutdown")
        directory = open_directory(fs)
        directory.logs[ORDERS].append(batch(f"v{epoch}"), epoch)
        directory.close()
    directory = open_directory(fs)
    assert not directory.quarantined
    log = directory.logs[ORDERS]
    assert values_of(log) == ["v0", "v1", "v2", "v3"]
    assert scrubbed(directory, log) == []
    assert log.epochs.is_checksummed is not is_clean, "made anew from the batches, or still Kafka's"
    assert [entry.epoch for entry in log.epochs.entries] == ([0, 2, 3] if is_clean else [0, 1, 2, 3])


def test_an_index_with_one_entry_for_batches_that_came_together_is_believed() -> None:
    """Kafka up to 3.9 wrote indexes on followers and in compaction with entries for several batches: with the first
    batch's position and the last batch's last offset."""
    fs = formatted()
    config = LogConfig(index_interval_bytes=0)
    directory = open_directory(fs, config)
    log = directory.create(ORDERS, TOPIC_ID, config)
    for number in range(40):
        log.append(batch(f"v{number}", timestamp_ms=NOW_MS + number * 10), 0)
    log.roll()
    log.append(batch("v40", timestamp_ms=NOW_MS + 400), 0)
    places = [(place.position, place.header.last_offset) for place in log.segments[0].places(0, log.segments[0].size)]
    directory.close()
    stem = f"{ROOT}/{ORDERS}/{0:020d}"
    groups = [places[at : at + 8] for at in range(8, 40, 8)]
    fs.replace(f"{stem}.index", b"".join(OFFSET_ENTRY.pack(group[-1][1], group[0][0]) for group in groups))
    fs.replace(
        f"{stem}.timeindex", b"".join(TIME_ENTRY.pack(NOW_MS + group[-1][1] * 10, group[-1][1]) for group in groups)
    )
    log = open_directory(fs, config).logs[ORDERS]
    for offset in range(41):
        for max_bytes in (1, 200, 1000):
            result = log.read(offset, max_bytes)
            assert result is not None
            assert decode_batch(result.records)[0].offset == offset
        for ms in (offset * 10 - 5, offset * 10):
            assert log.offset_for_timestamp(NOW_MS + ms) == (NOW_MS + offset * 10, offset, 0)
    for position, last_offset in places:
        assert log.segments[0].offset_before(position) == last_offset
    assert log.segments[0].end_offset == 40
    assert log.segments[0].index_fault is None
