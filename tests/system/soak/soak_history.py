"""Find lost, duplicated and reordered records in a run of hours, with bounded memory.

Each producer numbers its records per partition: 0, 1, 2, ... The value of each record has its number. One reader
follows all partitions and expects the next number each time. The state of a reader is therefore one number per producer
and partition, and the few numbers that are missing at the moment. The reader keeps no list of all records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Maximum number of missing numbers that are kept. Missing numbers above this maximum count as lost at once.
MISSING_MAX = 100_000
#: Anomalies that a report quotes; all are counted.
QUOTED_MAX = 20


class Mark(NamedTuple):
    """The identity of a record. ``producer`` is the name of one producer instance."""

    producer: str
    partition: int
    sequence: int


def value_of(mark: Mark, size: int) -> bytes:
    return f"{mark.producer}:{mark.partition}:{mark.sequence}|".encode().ljust(size, b".")


def mark_of(value: bytes | None) -> Mark:
    """Read the mark in a value. Raises ValueError if no producer of the soak wrote the value."""
    producer, partition, sequence = (value or b"").partition(b"|")[0].decode().split(":")
    return Mark(producer, int(partition), int(sequence))


@dataclass(slots=True)
class Anomalies:
    """The number of anomalies of each kind, and a description of the first ones."""

    counts: Counter[str] = field(default_factory=Counter)
    quoted: list[str] = field(default_factory=list)

    def add(self, kind: str, what: str, count: int = 1) -> None:
        self.counts[kind] += count
        if len(self.quoted) < QUOTED_MAX:
            self.quoted.append(f"{kind}: {what}")

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the anomalies in the ``report`` of another process."""
        self.counts.update(other["counts"])
        self.quoted = (self.quoted + list(other["quoted"]))[:QUOTED_MAX]

    def report(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "quoted": self.quoted}


class Follower:
    """The records that one reader has read from the partitions of a topic, from the first record on, in the order of
    reading.

    ``whole``: every number is expected, from 0. Without ``whole``, the first number may be any number, because
    retention has deleted earlier records. With ``compacted``, numbers and offsets only grow.
    """

    def __init__(self, topic: str, *, whole: bool = True, compacted: bool = False) -> None:
        self.topic = topic
        self.anomalies = Anomalies()
        self.count = 0
        #: (producer, partition) -> the number that is expected next.
        self.next: dict[tuple[str, int], int] = {}
        self._whole, self._compacted = whole, compacted
        self._offsets: dict[int, int] = {}
        self._missing: dict[Mark, int] = {}

    def read(self, partition: int, offset: int, value: bytes | None) -> Mark | None:
        """Take the next record; returns None if no producer of the soak wrote the record."""
        self.count += 1
        self._see_offset(partition, offset)
        try:
            mark = mark_of(value)
        except ValueError:
            self.anomalies.add("phantom", f"{self._at(partition, offset)}: {value!r:.60} has no mark")
            return None
        if mark.partition != partition:
            self.anomalies.add("misplaced", f"{self._at(partition, offset)}: {mark}")
            return None
        key = (mark.producer, partition)
        expected = self.next.get(key)
        if expected is None:
            expected = 0 if self._whole else mark.sequence
        if mark.sequence < expected:
            self._see_old(mark, offset, expected)
            return mark
        if mark.sequence > expected and not self._compacted:
            self._miss(mark, offset, expected)
        self.next[key] = mark.sequence + 1
        return mark

    def _see_offset(self, partition: int, offset: int) -> None:
        expected = self._offsets.get(partition, 0 if self._whole and not self._compacted else offset)
        if offset < expected:
            self.anomalies.add("nonmonotonic", f"{self._at(partition, offset)} after {expected - 1}")
        elif offset > expected and not self._compacted:
            self.anomalies.add("gap", f"{self._at(partition, expected)} to {offset - 1}", offset - expected)
        self._offsets[partition] = max(expected, offset + 1)

    def _see_old(self, mark: Mark, offset: int, expected: int) -> None:
        where = self._at(mark.partition, offset)
        if self._missing.pop(mark, None) is not None:
            self.anomalies.add("reordered", f"{where}: {mark} after {expected - 1}")
        else:
            self.anomalies.add("doubled", f"{where}: {mark}, read up to {expected - 1} before")

    def _miss(self, mark: Mark, offset: int, expected: int) -> None:
        for number in range(expected, mark.sequence):
            if len(self._missing) >= MISSING_MAX:
                lost = mark.sequence - number
                where = self._at(mark.partition, offset)
                self.anomalies.add("lost", f"{where}: {lost} of {mark.producer} up to {mark.sequence - 1}", lost)
                return
            self._missing[mark._replace(sequence=number)] = offset

    def _at(self, partition: int, offset: int) -> str:
        return f"{self.topic}-{partition} offset {offset}"

    def report(self) -> dict[str, Any]:
        """The JSON data for the verdict: the last number of each producer, and the numbers that are missing before
        it."""
        return {
            "topic": self.topic,
            "count": self.count,
            "next": [[*key, number] for key, number in self.next.items()],
            "missing": [[*mark, offset] for mark, offset in self._missing.items()],
            **self.anomalies.report(),
        }


@dataclass(slots=True)
class Claims:
    """The report of one producer process about a topic. For each (producer, partition) the report has the numbers of
    sent and of acknowledged records. After a failed send, it also has the number from which on the process claims
    nothing."""

    topic: str
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    failed_from: dict[tuple[str, int], int] = field(default_factory=dict)

    def next(self, producer: str, partition: int, count: int = 1) -> int:
        """Reserve ``count`` new numbers; return the first."""
        key = (producer, partition)
        first = self.sent.get(key, 0)
        self.sent[key] = first + count
        return first

    def acknowledge(self, mark: Mark) -> None:
        key = (mark.producer, mark.partition)
        self.acknowledged[key] = max(self.acknowledged.get(key, 0), mark.sequence + 1)

    def fail(self, mark: Mark) -> None:
        key = (mark.producer, mark.partition)
        self.failed_from[key] = min(self.failed_from.get(key, mark.sequence), mark.sequence)

    @property
    def count(self) -> int:
        return sum(self.acknowledged.values())

    def report(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            **{
                name: [[*key, number] for key, number in found.items()]
                for name, found in (
                    ("sent", self.sent), ("acknowledged", self.acknowledged), ("failed_from", self.failed_from)
                )
            },
        }  # fmt: skip


def judge(claims: Mapping[str, Any], followed: Mapping[str, Any]) -> Anomalies:
    """Compare a topic's ``Claims.report()`` with the ``Follower.report()`` of a reader of the whole topic."""
    found = Anomalies()
    found.merge(followed)
    topic = claims["topic"]
    failed_from = _table(claims["failed_from"])
    reached = _table(followed["next"])
    sent = _table(claims["sent"])
    for producer, partition, sequence, offset in followed["missing"]:
        if sequence < failed_from.get((producer, partition), sequence + 1):
            found.add("lost", f"{topic}-{partition}: {producer} {sequence}, missing before offset {offset}")
    for key, count in _table(claims["acknowledged"]).items():
        wanted = min(count, failed_from.get(key, count))
        if (read := reached.get(key, 0)) < wanted:
            found.add(
                "lost", f"{topic}-{key[1]}: {key[0]} {read} to {wanted - 1}, acknowledged, not read", wanted - read
            )
    for key, read in reached.items():
        if read > sent.get(key, 0):
            found.add("phantom", f"{topic}-{key[1]}: {key[0]} {sent.get(key, 0)} to {read - 1} were never sent")
    return found


def judge_compacted(acknowledged: Mapping[str, int], latest: Mapping[str, int]) -> Anomalies:
    """Check that the compacted log has the last acknowledged number of every key, or a later number."""
    found = Anomalies()
    for key, sequence in acknowledged.items():
        if latest.get(key, -1) < sequence:
            found.add("lost", f"compacted key {key}: {sequence} was acknowledged, the log has {latest.get(key)}")
    return found


def _table(rows: list[list[Any]]) -> dict[tuple[str, int], int]:
    return {(producer, partition): number for producer, partition, number in rows}


class GroupCover:
    """Checks that a consumer group reads every record. The state is, per partition, the offset up to which all records
    were read.

    Members call ``read`` before they commit, so a member that takes over a partition begins at or before that offset.
    """

    def __init__(self) -> None:
        self.anomalies = Anomalies()
        self.count = self.again = 0
        self.next: dict[tuple[str, int], int] = {}

    def read(self, topic: str, partition: int, offset: int) -> None:
        self.count += 1
        key = (topic, partition)
        expected = self.next.get(key, 0)
        if offset < expected:
            self.again += 1
            return
        if offset > expected:
            what = f"{topic}-{partition} offsets {expected} to {offset - 1}: no member read them"
            self.anomalies.add("skipped", what, offset - expected)
        self.next[key] = offset + 1
