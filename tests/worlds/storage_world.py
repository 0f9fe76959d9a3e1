"""The storage of a voter on a file system that crashes, with a model of the data that it must hold.

The model is a history of log entries. ``Model.wrong`` compares the storage after a crash with the model, and returns
the contradictions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from headrace_controller import storage as storage_module
from headrace_controller.control_records import encode_control
from headrace_controller.raft import (
    Entry,
    EntryKind,
    HardState,
    Place,
    ReplicaKey,
    SnapshotChunk,
    SnapshotId,
    Stored,
    VoterSet,
)
from headrace_controller.storage import MetadataStorage, write_first_voters
from headrace_core.metadata import (
    EMPTY_IMAGE,
    ClusterRecord,
    ConfigRecord,
    ImageBuilder,
    MetadataImage,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from headrace_core.metadata.codec import decode_batches, encode_decision
from headrace_core.node.meta_properties import format_directories
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.cluster_world import CLUSTER

ROOT = "/data"
DIRECTORY = f"{ROOT}/__cluster_metadata-0"
KEYS = [ReplicaKey(number, bytes([number]) * 16) for number in range(1, 6)]
VOTERS = VoterSet.of(KEYS[:3], {1: "one:9093", 2: "two:9093", 3: "[::1]:9093"})


def small_segments(monkeypatch: pytest.MonkeyPatch, size: int = 700) -> None:
    """Use segments of a few entries, and a recovery point every few records, so that a short history has many segments
    and recovery points."""
    config = replace(storage_module._LOG_CONFIG, segment_bytes=size)
    monkeypatch.setattr(storage_module, "_LOG_CONFIG", config)
    monkeypatch.setattr(storage_module, "_RECOVERY_POINT_EVERY", 7)


def formatted(voters: VoterSet | None = VOTERS) -> CrashingFileSystem:
    fs = CrashingFileSystem(keep_trace=False)
    format_directories([ROOT], cluster_id=CLUSTER, node_id=1, fs=fs)
    if voters is not None:
        write_first_voters(fs, ROOT, voters)
    return fs


def open_storage(fs: CrashingFileSystem) -> MetadataStorage:
    return MetadataStorage.open(fs, ROOT, clock=ManualClock(), cluster_id=CLUSTER, node_id=1)


# ---------------------------------------------------------------------------------------------- entries


def leader_change(term: int, at: int, voters: VoterSet = VOTERS) -> Entry:
    data = encode_control(EntryKind.LEADER_CHANGE, term, at, 1, voters, 1_000 + at)
    return Entry(EntryKind.LEADER_CHANGE, term, at, 1, data)


def voters_change(term: int, at: int, voters: VoterSet) -> Entry:
    data = encode_control(EntryKind.VOTERS, term, at, 1, voters, 1_000 + at)
    return Entry(EntryKind.VOTERS, term, at, 1, data, voters)


def decision(term: int, at: int, *records: MetadataRecord) -> Entry:
    data = encode_decision(records, timestamp_ms=1_000 + at, base_offset=at, epoch=term)
    return Entry(EntryKind.DATA, term, at, len(records), data)


def topic(term: int, at: int) -> Entry:
    """An entry with a new topic; no other position of the log makes the same entry."""
    topic_id = at.to_bytes(8, "big") + term.to_bytes(8, "big")
    partition = PartitionRecord(topic_id, 0, (1,), (1,), 1, 0, 0)
    return decision(term, at, TopicRecord(f"t{at}-{term}", topic_id), partition)


def setting(term: int, at: int, size: int = 5) -> Entry:
    return decision(term, at, ConfigRecord(2, "", f"k{at}", "v" * size))


def some_entries(rng: random.Random, at: int, term: int, count: int) -> list[Entry]:
    """Continue a leader's log with random entries of all kinds, in ``term`` and later terms."""
    entries: list[Entry] = []
    voters = VOTERS
    for _ in range(count):
        kind = rng.randrange(8)
        if kind == 0 or not entries:
            term += bool(entries)
            entries.append(leader_change(term, at, voters))
        elif kind == 1:
            extra = KEYS[3 + rng.randrange(2)]
            voters = voters.minus(extra) if extra in voters else voters.plus(extra, "more:1")
            entries.append(voters_change(term, at, voters))
        elif kind < 5:
            entries.append(topic(term, at))
        else:
            entries.append(setting(term, at, rng.randrange(1, 400)))
        at = entries[-1].next_offset
    return entries


#: A voter has saved a term before it writes its first entry.
FIRST_TERM = HardState(1)
FIRST = decision(1, 1, ClusterRecord(CLUSTER, 1))


def history(rng: random.Random, count: int) -> list[Entry]:
    """A whole log."""
    return [leader_change(1, 0), FIRST, *some_entries(rng, 2, 1, count)]


# ---------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Model:
    """The acknowledged state. ``entries``: the whole history that this disk represents, from offset 0 on; the stored
    log may begin after any snapshot. ``snapshot``: the offset of the newest completed snapshot."""

    entries: tuple[Entry, ...] = ()
    hard_state: HardState = FIRST_TERM
    snapshot: int = 0
    first_voters: VoterSet = VOTERS

    @property
    def end(self) -> int:
        return self.entries[-1].next_offset if self.entries else 0

    def until(self, offset: int) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.next_offset <= offset)

    def place(self, offset: int) -> Place:
        below = self.until(offset)
        assert offset == (below[-1].next_offset if below else 0), f"{offset} lies inside an entry"
        return Place(offset, below[-1].term if below else 0)

    def has(self, place: Place) -> bool:
        return any((entry.next_offset, entry.term) == place for entry in self.entries)

    def voters_at(self, offset: int) -> VoterSet:
        return next((entry.voters for entry in reversed(self.until(offset)) if entry.voters), self.first_voters)

    def snapshot_id(self, offset: int) -> SnapshotId:
        return SnapshotId(self.place(offset), self.voters_at(offset))

    def image(self, offset: int) -> MetadataImage:
        builder = ImageBuilder(EMPTY_IMAGE)
        epoch = -1
        for entry in self.until(offset):
            (batch,) = decode_batches(entry.data)
            for record in batch.records:
                builder.replay(record)
            epoch = entry.term
        return builder.finish(offset, epoch)[0]

    def wrong(self, storage: MetadataStorage, end_min: int) -> str | None:
        """The reason why ``storage`` does not hold this history, with a log end between ``end_min`` and the end of the
        history; None if it does."""
        stored = storage.stored(VoterSet.of([]))
        end, start = stored.end_offset, stored.start
        if not end_min <= end <= self.end or end not in {0, *(entry.next_offset for entry in self.entries)}:
            return f"it ends at {end}, not from {end_min} to {self.end}"
        if start != self.snapshot_id(start.place.offset):
            return f"it begins after {start}, which is not {self.snapshot_id(start.place.offset)}"
        if start.voters.addresses != self.voters_at(start.place.offset).addresses:
            return f"the addresses are {start.voters.addresses}"
        mine = [entry for entry in self.until(end) if entry.base_offset >= start.place.offset]
        if list(entries_of(storage, stored)) != mine:
            return f"its entries from {start} to {end} differ"
        newest = storage.newest_snapshot()
        if (0 if newest is None else newest.place.offset) < self.snapshot:
            return f"the newest snapshot is {newest}, but a snapshot of {self.snapshot} was finished"
        if stored.terms != self._terms(start.place, end):
            return f"its terms are {stored.terms}, not {self._terms(start.place, end)}"
        voters = tuple((entry.next_offset, entry.voters) for entry in mine if entry.voters is not None)
        if stored.voters != voters:
            return f"its voters are {stored.voters}, not {voters}"
        if stored.hard_state != self.hard_state:
            return f"its hard state is {stored.hard_state}, not {self.hard_state}"
        if replayed(storage) != self.image(end):
            return "replaying it gives another image"
        return None

    def _terms(self, start: Place, end: int) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for entry in self.until(end):
            if entry.base_offset >= start.offset and entry.term > (found[-1][0] if found else start.term):
                found.append((entry.term, entry.base_offset))
        return tuple(found)


def entries_of(storage: MetadataStorage, stored: Stored) -> Iterator[Entry]:
    offset = stored.start.place.offset
    while offset < stored.end_offset:
        some = storage.entries(offset, stored.end_offset, 300)
        assert some, f"nothing at {offset}"
        yield from some
        offset = some[-1].next_offset


def replayed(storage: MetadataStorage) -> MetadataImage:
    """The image that a start builds: the newest snapshot and the log after the snapshot."""
    image = storage.load_image()
    for batch in storage.batches(image.next_offset):
        image = image.apply(batch.records, batch.next_offset, batch.epoch)
    return image


# ---------------------------------------------------------------------------------------------- what is done to it


@dataclass
class Voter:
    """A storage, its model, and the states that a power loss now may leave: (model, smallest log end)."""

    fs: CrashingFileSystem
    storage: MetadataStorage
    model: Model
    allowed: list[tuple[Model, int]]
    doing: str = "nothing"

    @classmethod
    def new(cls, fs: CrashingFileSystem | None = None) -> Voter:
        fs = fs or formatted()
        model, storage = Model(), open_storage(fs)
        storage.save_hard_state(model.hard_state)
        return cls(fs, storage, model, [(model, 0)])

    def _do(self, what: str, after: Model, end_min: int, action: Callable[[], object]) -> None:
        """Carry out one action; ``end_min`` is the smallest log end that a power loss during the action may leave."""
        self.doing = what
        self.allowed = [(self.model, min(end_min, self.model.end)), (after, min(end_min, after.end))]
        action()
        self.model = after
        self.allowed = [(after, after.end)]
        self.doing = f"nothing, after {what}"

    def vote(self, state: HardState) -> None:
        after = replace(self.model, hard_state=state)
        self._do(f"save {state}", after, self.model.end, lambda: self.storage.save_hard_state(state))

    def append(self, entries: Sequence[Entry]) -> None:
        after = replace(self.model, entries=(*self.model.entries, *entries))
        self._do(f"append {len(entries)} entries", after, self.model.end, lambda: self.storage.append(entries))

    def truncate(self, offset: int) -> None:
        after = replace(self.model, entries=self.model.until(offset))
        self._do(f"truncate to {offset}", after, after.end, lambda: self.storage.truncate(offset))

    def snapshot(self, offset: int) -> SnapshotId | None:
        model, place = self.model, self.model.place(offset)
        job = self.storage.snapshot_job(model.image(offset), place, model.voters_at(offset))
        self._do(f"write a snapshot of {place}", model, model.end, job.run)
        found: list[SnapshotId | None] = []
        after = replace(model, snapshot=max(offset, model.snapshot))
        self._do(
            f"finish the snapshot of {place}", after, model.end, lambda: found.append(self.storage.finish_snapshot(job))
        )
        return found[0]

    def install(self, leaders: Model, offset: int, chunk_bytes: int) -> None:
        """Install the leader's snapshot below ``offset``, which is sent in chunks, because this disk lacks the entries
        below ``offset``."""
        snapshot, data = leaders.snapshot_id(offset), snapshot_bytes(leaders, offset)
        for position in range(0, len(data), chunk_bytes):
            piece = data[position : position + chunk_bytes]
            chunk = SnapshotChunk(snapshot, position, piece, position + len(piece) == len(data))
            self._do(f"chunk at {position}", self.model, self.model.end, lambda chunk=chunk: self._write(chunk))  # type: ignore[misc]
        after = replace(self.model, entries=leaders.until(offset), snapshot=offset)
        kept = self.model.until(offset - 1)  # the entries from this offset on were never committed
        end_min = kept[-1].next_offset if kept else 0
        self._do(f"install {snapshot}", after, end_min, lambda: self.storage.install(snapshot))
        self.allowed = [(after, offset)]

    def _write(self, chunk: SnapshotChunk) -> None:
        assert self.storage.write_chunk(chunk)

    def reopen(self, *, clean: bool) -> None:
        def action() -> None:
            self.storage.close(clean=clean)
            self.storage = open_storage(self.fs)

        self._do("close and open", self.model, self.model.end, action)


def go_on(voter: Voter, when: str) -> Voter:
    """Start the next process after a crash: its storage must hold one of the allowed states, which becomes the voter's
    model."""
    storage = open_storage(voter.fs)
    complaints = [model.wrong(storage, end_min) for model, end_min in voter.allowed]
    assert None in complaints, f"{when}: {complaints}"
    found = voter.allowed[complaints.index(None)][0]
    newest, end = storage.newest_snapshot(), storage.log_end_offset
    snapshot = found.snapshot if newest is None else newest.place.offset
    model = replace(found, entries=found.until(end), snapshot=snapshot)
    return Voter(voter.fs, storage, model, [(model, model.end)])


def snapshot_bytes(model: Model, offset: int) -> bytes:
    """The bytes of a leader's snapshot of the entries below ``offset``."""
    fs = formatted()
    storage = open_storage(fs)
    storage.save_hard_state(FIRST_TERM)
    storage.append(model.until(offset))
    job = storage.snapshot_job(model.image(offset), model.place(offset), model.voters_at(offset))
    job.run()
    storage.finish_snapshot(job)
    data, is_last = storage.snapshot_chunk(job.snapshot, 0, 1 << 30) or (b"", False)
    assert is_last
    storage.close()
    return data
