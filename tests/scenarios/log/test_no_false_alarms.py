"""What is legal is no damage: no check may take a healthy log out of service, or call its indexes damaged."""

from __future__ import annotations

import errno

import pytest
from log_world import ORDERS, TOPIC_ID, batch, formatted, open_directory, values_of

from headrace_core.errors import DiskFullError
from headrace_core.log import Append, LogConfig, LogDirectory, PartitionLog
from headrace_core.log.scrubbing import scrub_segment


def scrubbed(directory: LogDirectory, log: PartitionLog) -> list[str]:
    """The index faults of all segments; CorruptLogError where a scrubber would quarantine."""
    found = [
        scrub_segment(directory.fs, log, segment, spend=lambda size: None, should_stop=lambda: False)
        for segment in log.segments
    ]
    assert [each.size for each in found] == [segment.size for segment in log.segments]
    return [each.index_fault for each in found if each.index_fault is not None]


def test_what_lies_below_a_start_where_the_log_was_cut_is_no_damage() -> None:
    directory = open_directory(formatted())
    log = directory.create(ORDERS, TOPIC_ID, LogConfig())
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
    directory = open_directory(formatted())
    log = directory.create(ORDERS, TOPIC_ID, LogConfig())
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
