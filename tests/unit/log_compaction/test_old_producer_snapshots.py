"""Producer snapshots that are older than a compaction: what a start, a power loss and a truncation make of them.

The history of every test: a transaction of producer 11 is open when a segment is rolled, so the snapshot of the next
segment names it. It ends; compaction removes its data and, a horizon later, its marker. No marker in the log ends the
transaction of the old snapshot any more.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from headrace_core.errors import ServerBusyError
from headrace_core.log import Append, AppendInfo, PartitionLog
from headrace_core.log.producer_files import correct_open_transactions
from headrace_core.records import ABORT, COMMIT, encode_batch, read_header
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, TraceEntry
from tests.worlds.compaction_world import Ledger

PRODUCER = 11


class TransactionalLedger(Ledger):
    def __init__(self, *, segment_bytes: int = 1 << 20) -> None:
        super().__init__(segment_bytes=segment_bytes, delete_retention_ms=0, min_dirty_ratio=0.0)
        self.sequence = 0

    def append(self, data: bytes) -> int:
        (info,) = self.log.append_many([Append(data=data, leader_epoch=0, headers=[read_header(data)])])
        assert isinstance(info, AppendInfo)
        return info.base_offset

    def send(self, key: str, value: str = "in a transaction") -> int:
        data = encode_batch(
            [(self.clock.now_ms(), key.encode(), value.encode(), None)],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.sequence += 1
        return self.append(data)

    def end(self, how: int) -> int:
        data = encode_batch(
            [(self.clock.now_ms(), struct.pack(">hh", 0, how), b"\0" * 6, None)],
            producer_id=PRODUCER,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
        return self.append(data)

    def roll(self) -> int:
        self.log.roll()
        return self.log.log_end_offset

    def clean_all(self, rounds: int = 3) -> None:
        """Clean, with the producers that the log knows; in three rounds the horizon of each marker passes."""
        for _ in range(rounds):
            self.clock.advance(10)
            self.put(("next", "round"))
            self.roll()
            self.put(("active", "stays"))
            self.log.flush()
            manager = self.manager()
            manager.clean(
                self.cleaner(),
                self.log,
                self.target(manager),
                execute=lambda action: action(),
                producers=self.log.producers.last_records(),
            )

    def control_offsets(self, log: PartitionLog | None = None) -> list[int]:
        segments = (log or self.log).segments
        return [
            place.header.base_offset
            for segment in segments
            for place in segment.places(0, segment.size)
            if place.header.is_control
        ]


def tear_newer_snapshots(fs: CrashingFileSystem, directory: str, kept: int) -> int:
    """Empty every snapshot behind ``kept``, as a power loss leaves files that were not forced."""
    torn = 0
    for name in fs.listdir(directory):
        if name.endswith(".snapshot") and int(name.split(".")[0]) > kept:
            file = fs.open(f"{directory}/{name}", write=True)
            file.truncate(0)
            file.close()
            torn += 1
    return torn


def grown(how: int) -> tuple[TransactionalLedger, int, int]:
    """A compacted log, the offset of the snapshot that names the ended transaction, and the offset of the transaction
    of the same producer that is open at the end. Retention has removed the first segment, so the old snapshot belongs
    to the oldest segment and stays."""
    ledger = TransactionalLedger()
    ledger.put(("before", "all"))
    ledger.send("key")
    named = ledger.roll()
    marker = ledger.end(how)
    ledger.put(("key", "newer"))
    ledger.roll()
    ledger.log.delete_records(named)
    ledger.log.drop_segments_below_start()
    ledger.clean_all()
    assert marker not in ledger.control_offsets(), "compaction removed the marker"
    begun = ledger.send("last")
    ledger.log.flush()
    assert ledger.log.producers.first_unstable_offset == begun
    return ledger, named, begun


@pytest.mark.parametrize("how", [COMMIT, ABORT])
def test_a_transaction_whose_marker_compaction_removed_is_not_open_after_newer_snapshots_are_torn(how: int) -> None:
    ledger, named, begun = grown(how)
    fs = ledger.fs.crash_clone()
    assert fs.exists(f"{ledger.directory}/{named:020d}.snapshot")
    assert tear_newer_snapshots(fs, ledger.directory, named) > 0
    ledger.log = log = ledger.open(fs)
    assert log.producers.first_unstable_offset == begun
    assert log.producers.last_stable_offset(log.log_end_offset) == begun
    ledger.end(how)
    assert log.producers.last_stable_offset(log.log_end_offset) == log.log_end_offset
    assert [aborted.first_offset for aborted in log.aborted_in(log.active)] == ([begun] if how == ABORT else [])


def test_a_truncation_below_the_newer_snapshots_opens_no_transaction_that_has_no_data() -> None:
    ledger, named, _ = grown(COMMIT)
    log = ledger.log
    log.truncate_to(log.segments[1].base_offset - 1)
    assert [segment.base_offset for segment in log.segments] == [named]
    assert log.producers.first_unstable_offset is None
    assert log.producers.last_stable_offset(log.log_end_offset) == log.log_end_offset


def test_a_transaction_whose_marker_was_truncated_is_open_from_the_batch_that_compaction_left() -> None:
    ledger = TransactionalLedger(segment_bytes=400)
    first, second = ledger.send("key"), ledger.send("unique")
    ledger.put(("filler", "." * 100))
    named = ledger.roll()
    marker = ledger.end(COMMIT)
    ledger.put(("key", "newer" + "." * 150))
    ledger.clean_all(rounds=1)
    assert ledger.fs.exists(f"{ledger.directory}/{named:020d}.snapshot"), "compaction merged no segments"
    assert marker in ledger.control_offsets()
    assert next(record.offset for record in ledger.records()) == second > first
    ledger.log.truncate_to(marker)  # an unclean election
    assert ledger.log.producers.first_unstable_offset == second
    ledger.log.flush()
    again = ledger.open(ledger.fs.crash_clone())
    assert again.producers.first_unstable_offset == second


@pytest.mark.parametrize("kept", [0, 1], ids=["at the snapshot", "a batch behind it"])
def test_a_truncation_and_a_start_after_it_find_the_same_transactions_open(kept: int) -> None:
    """Found by a random history (test_compaction_with_cuts.py, seed 41): the truncation took a compacted batch before
    the snapshot, or behind the new end, for a sign that a marker may be missing, and the start did not."""
    ledger = TransactionalLedger(segment_bytes=400)
    begun = ledger.send("deleted")
    start = ledger.roll()
    ledger.put(("key", "old"), ("filler", "." * 150))
    named = ledger.roll()
    ledger.put(("stays", "." * 50))
    ledger.end(COMMIT)
    ledger.put(("key", "newer" + "." * 150))
    ledger.log.delete_records(start)
    ledger.log.drop_segments_below_start()
    ledger.clean_all()
    assert [segment.base_offset for segment in ledger.log.segments][:2] == [start, named]
    ledger.log.truncate_to(named + kept)  # an unclean election
    assert (ledger.log.log_start_offset, ledger.log.log_end_offset) == (start, named + kept)
    assert ledger.log.producers.first_unstable_offset == begun, "its marker is truncated"
    ledger.log.flush()
    assert ledger.open(ledger.fs.crash_clone()).producers.first_unstable_offset == begun
    ledger.roll()
    ledger.log.flush()
    assert ledger.open(ledger.fs.crash_clone()).producers.first_unstable_offset == begun


def test_a_damaged_log_keeps_the_open_transactions_of_the_snapshot() -> None:
    ledger, named, begun = grown(COMMIT)
    fs = ledger.fs.crash_clone()
    tear_newer_snapshots(fs, ledger.directory, named)
    log = ledger.open(fs)
    notes: list[str] = []
    table = log.producers
    table.correct_transactions({PRODUCER: begun - 1})
    file = fs.open(log.segments[-1].path, write=True)
    file.pwritev([b"\xff" * 17], 0)
    file.close()
    correct_open_transactions(table, log.segments, log.log_end_offset, notes)
    assert table.first_unstable_offset == begun - 1
    assert "the open transactions are those of the producer snapshot" in notes[0]


class IdempotentLedger(TransactionalLedger):
    def read_offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def write(self, key: str) -> int:
        data = encode_batch(
            [(self.clock.now_ms(), key.encode(), b"idempotent", None)],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        self.sequence += 1
        return self.append(data)


def known_by_a_snapshot_only() -> tuple[IdempotentLedger, int]:
    """A log without a batch of the producer: compaction removed its first batch because of a later one, which an
    unclean election has truncated. Only a snapshot has the first batch's sequence."""
    ledger = IdempotentLedger(segment_bytes=400)
    only = ledger.write("key")
    ledger.put(("filler", "." * 200))
    ledger.roll()
    later = ledger.write("key")
    ledger.put(("more", "." * 200))
    ledger.clean_all(rounds=1)
    assert ledger.read_offsets()[0] > only
    ledger.log.truncate_to(later)
    entry = ledger.log.producers.get(PRODUCER)
    assert entry is not None
    assert entry.last_batch is not None
    assert entry.last_batch.last_offset == only
    return ledger, only


def last_offset_after_power_loss(ledger: Ledger) -> int | None:
    log = ledger.open(ledger.fs.crash_clone(random.Random(1), Loss.ALL))
    entry = log.producers.get(PRODUCER)
    return None if entry is None or entry.last_batch is None else entry.last_batch.last_offset


def test_what_only_a_snapshot_knows_after_a_truncation_survives_a_power_loss() -> None:
    ledger, only = known_by_a_snapshot_only()
    assert last_offset_after_power_loss(ledger) == only


def test_what_only_a_snapshot_knows_survives_a_power_loss_at_every_step_of_a_later_cleaning() -> None:
    ledger, only = known_by_a_snapshot_only()
    found: dict[str, int | None] = {}

    def crash(entry: TraceEntry) -> None:
        if entry.operation in {"write", "rename", "unlink", "sync", "create"}:
            found[f"{len(found)} {entry.operation} {entry.path}"] = last_offset_after_power_loss(ledger)

    ledger.config = replace(ledger.config, segment_bytes=1 << 20)  # compaction merges the segments
    ledger.log.reconfigure(ledger.config)
    ledger.fs.on_operation = crash
    ledger.clean_all()
    ledger.fs.on_operation = None
    assert len(found) > 20
    assert {step: offset for step, offset in found.items() if offset != only} == {}
    assert last_offset_after_power_loss(ledger) == only


def test_compaction_removes_no_snapshot_while_the_newest_cannot_be_made_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, only = known_by_a_snapshot_only()
    ledger.config = replace(ledger.config, segment_bytes=1 << 20)  # compaction merges the segments
    ledger.log.reconfigure(ledger.config)
    monkeypatch.setattr(ledger.log._snapshots, "force", lambda offset: False)
    with pytest.raises(ServerBusyError, match="producer snapshot durable"):
        ledger.clean_all()
    monkeypatch.undo()
    assert last_offset_after_power_loss(ledger) == only
    assert not [name for name in ledger.fs.listdir(ledger.directory) if name.endswith(".cleaned")]
    ledger.clean_all()
    assert last_offset_after_power_loss(ledger) == only


def test_the_newest_snapshot_is_forced_with_its_name() -> None:
    ledger = IdempotentLedger()
    ledger.write("key")
    ledger.roll()
    seen: list[TraceEntry] = []
    ledger.fs.on_operation = seen.append
    assert ledger.log.force_newest_snapshot()
    ledger.fs.on_operation = None
    paths = [entry.path for entry in seen if "sync" in entry.operation]
    assert ledger.directory in paths
    assert any(path.endswith(".snapshot") for path in paths)
