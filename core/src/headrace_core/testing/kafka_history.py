"""Check what producers and consumers saw of a log for the anomalies of Jepsen's Kafka workload.

Every record has a unique mark, ``Mark(producer, sequence)``. While a test runs, the test reports sent records, their
outcomes and polled records to a ``History``. At the end the test reports the contents of the log. ``anomalies`` then
finds

    lost                  a record that was acknowledged, or read by a consumer, is missing in the log (without a report
                          of the log: an acknowledged record was never read, but later offsets were)
    unseen                an acknowledged record was not read, because no consumer has read that far
    duplicate             a record is at two offsets
    phantom               a record was read, but was never sent, or was certainly refused
    misplaced             a record was read in a partition to which it was not sent
    inconsistent-offset   two records have one offset, or a record has another offset than its acknowledgement
    skip                  a consumer went past a record without reading it
    nonmonotonic-poll     a consumer went back without a seek
    nonmonotonic-send     a producer's later record was acknowledged at a lower offset than an earlier record
    reorder               a producer's records are in the log in another order than the producer sent them (see below)
    gap                   the log has no record at an offset

A timeout is no refusal: a record with an *unknown* outcome is in the log once or never. A record with an unknown
outcome is checked only for the anomalies duplicate, phantom, misplaced, skip and reorder. Once a consumer has read a
record with an unknown outcome, the record must stay in the log.

The check of the order: an idempotent producer's records are in the log in the order of their sequences. A retry of a
producer without idempotence may reorder and repeat records, so ``History(idempotent=False)`` checks neither order nor
repetition.

With acks below "all", and after an unclean election, acknowledged records may be lost by design: ``may_lose`` names the
records. Records that a consumer has read must stay even if ``may_lose`` names the records; with ``unclean``, they may
be lost, too. The other checks (for anomalies other than lost records) apply to all records.

The module ``kafka_history`` uses no threads and no clock. Callers in several threads need a lock around the module's
calls.
"""

from __future__ import annotations

import enum
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Mark(NamedTuple):
    """Identity of a record. A producer that restarts must get a new name."""

    producer: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.producer}:{self.sequence}"


class Kind(enum.Enum):
    LOST = "lost"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    PHANTOM = "phantom"
    MISPLACED = "misplaced"
    INCONSISTENT_OFFSET = "inconsistent-offset"
    SKIP = "skip"
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    NONMONOTONIC_SEND = "nonmonotonic-send"
    REORDER = "reorder"
    GAP = "gap"


class Anomaly(NamedTuple):
    """One anomaly that was found; ``text`` has all known facts about the anomaly."""

    kind: Kind
    partition: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value} in partition {self.partition}: {self.text}"


class Seen(NamedTuple):
    """A record at an offset, as a consumer read it or as the log had it at the end of the test."""

    offset: int
    mark: Mark


class _Fate(enum.Enum):
    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


@dataclass(slots=True)
class _Sent:
    partition: int
    fate: _Fate = _Fate.UNKNOWN
    offset: int = -1  #: Offset in the record's acknowledgement; -1 if the acknowledgement has none (acks=0).


@dataclass(slots=True)
class _Reader:
    """One consumer's reads of one partition, in stretches of consecutive reads; a seek ends a stretch."""

    stretches: list[list[Seen]] = field(default_factory=list)


class History:
    """The events of one test, and their check for anomalies."""

    def __init__(self, *, idempotent: bool = True) -> None:
        self._idempotent = idempotent
        self._sent: dict[Mark, _Sent] = {}
        self._readers: dict[tuple[str, int], _Reader] = defaultdict(_Reader)
        self._logs: dict[int, tuple[list[Seen], int, int]] = {}

    def sent(self, mark: Mark, partition: int) -> None:
        """Report that a producer sends a record. The record's outcome is unknown until it is reported."""
        if mark in self._sent:
            raise ValueError(f"record {mark} is sent twice")
        self._sent[mark] = _Sent(partition)

    def acknowledged(self, mark: Mark, offset: int = -1) -> None:
        """Report that a record was acknowledged at ``offset`` (-1: without an offset)."""
        self._settle(mark, _Fate.ACKNOWLEDGED)
        self._sent[mark].offset = offset

    def refused(self, mark: Mark) -> None:
        """Report that a record was permanently refused."""
        self._settle(mark, _Fate.REFUSED)

    def _settle(self, mark: Mark, fate: _Fate) -> None:
        sent = self._sent[mark]
        if sent.fate is not _Fate.UNKNOWN:
            raise ValueError(f"record {mark} was answered twice: first {sent.fate.value}, now {fate.value}")
        sent.fate = fate

    def positioned(self, consumer: str, partition: int) -> None:
        """Report that a consumer starts or seeks, so its next poll need not continue the last poll."""
        self._readers[consumer, partition].stretches.append([])

    def polled(self, consumer: str, partition: int, records: Iterable[Seen]) -> None:
        """Report the records of one partition that a poll returned, in their order."""
        reader = self._readers[consumer, partition]
        if not reader.stretches:
            reader.stretches.append([])
        reader.stretches[-1].extend(records)

    def log(self, partition: int, records: Sequence[Seen], *, log_start: int = 0, end: int | None = None) -> None:
        """Report the final contents of a log, read from ``log_start`` to ``end`` (by default: to the last record)."""
        self._logs[partition] = list(records), log_start, end if end is not None else _end(records, log_start)

    @property
    def count_acknowledged(self) -> int:
        return sum(sent.fate is _Fate.ACKNOWLEDGED for sent in self._sent.values())

    @property
    def count_unknown(self) -> int:
        return sum(sent.fate is _Fate.UNKNOWN for sent in self._sent.values())

    @property
    def count_refused(self) -> int:
        return sum(sent.fate is _Fate.REFUSED for sent in self._sent.values())

    @property
    def count_polled(self) -> int:
        return sum(len(stretch) for reader in self._readers.values() for stretch in reader.stretches)

    def anomalies(
        self, *, may_lose: Callable[[Mark], bool] = lambda mark: False, unclean: bool = False
    ) -> list[Anomaly]:
        """Find all anomalies. ``may_lose``: whether an acknowledged record may be missing. With ``unclean``, an
        acknowledged record may be missing even after it was read, and another record may have its offset."""
        if unclean:
            self._forget({mark for mark in self._sent if may_lose(mark)} - self._in_logs())
        everybody: dict[int, list[tuple[str, Sequence[Seen]]]] = defaultdict(list)
        for (consumer, partition), reader in self._readers.items():
            everybody[partition] += [(consumer, stretch) for stretch in reader.stretches]
        for partition, (in_log, _, _) in self._logs.items():
            everybody[partition].append(("the log", in_log))
        found: list[Anomaly] = []
        places: dict[Mark, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        at: dict[int, dict[int, set[Mark]]] = defaultdict(lambda: defaultdict(set))
        for partition, views in everybody.items():
            for _, records in views:
                for offset, mark in records:
                    places[mark][partition].add(offset)
                    at[partition][offset].add(mark)
        for mark, sent in self._sent.items():
            if sent.fate is _Fate.ACKNOWLEDGED and sent.offset >= 0 and (mark in places or not may_lose(mark)):
                at[sent.partition][sent.offset].add(mark)
        found += self._of_marks(places)
        found += self._of_offsets(at)
        found += self._lost(places, everybody, may_lose)
        for partition, views in everybody.items():
            for who, records in views:
                found += self._of_order(who, partition, records)
        found += self._skips(at)
        found += self._gaps()
        found += self._sends()
        return found

    def _in_logs(self) -> set[Mark]:
        return {seen.mark for records, _, _ in self._logs.values() for seen in records}

    def _forget(self, marks: set[Mark]) -> None:
        """Ignore records that an unclean election has truncated. A consumer that had read truncated records starts a
        new stretch at the new end."""
        for reader in self._readers.values():
            stretches: list[list[Seen]] = []
            for stretch in reader.stretches:
                for is_gone, run in itertools.groupby(stretch, lambda seen: seen.mark in marks):
                    if not is_gone:
                        stretches.append(list(run))
            reader.stretches = stretches
        for mark in marks:
            del self._sent[mark]

    def _of_marks(self, places: dict[Mark, dict[int, set[int]]]) -> Iterable[Anomaly]:
        for mark, where in places.items():
            sent = self._sent.get(mark)
            for partition, offsets in where.items():
                if sent is None:
                    yield Anomaly(Kind.PHANTOM, partition, f"{mark} is at {_listed(offsets)}, and no producer sent it")
                elif sent.fate is _Fate.REFUSED:
                    yield Anomaly(Kind.PHANTOM, partition, f"{mark} was refused, and is at {_listed(offsets)}")
                elif sent.partition != partition:
                    text = f"{mark} was sent to partition {sent.partition}, and is at {_listed(offsets)}"
                    yield Anomaly(Kind.MISPLACED, partition, text)
                if len(offsets) > 1 and self._idempotent:
                    yield Anomaly(Kind.DUPLICATE, partition, f"{mark} is at {_listed(offsets)}")

    def _of_offsets(self, at: dict[int, dict[int, set[Mark]]]) -> Iterable[Anomaly]:
        for partition, marks_at in at.items():
            for offset, marks in marks_at.items():
                if len(marks) > 1:
                    text = f"offset {offset} is that of {', '.join(map(str, sorted(marks)))}"
                    yield Anomaly(Kind.INCONSISTENT_OFFSET, partition, text)

    def _lost(
        self,
        places: dict[Mark, dict[int, set[int]]],
        everybody: dict[int, list[tuple[str, Sequence[Seen]]]],
        may_lose: Callable[[Mark], bool],
    ) -> Iterable[Anomaly]:
        seen_to = {
            partition: max((records[-1].offset for _, records in views if records), default=-1)
            for partition, views in everybody.items()
        }
        in_log = {partition: {seen.mark for seen in log[0]} for partition, log in self._logs.items()}
        for mark, sent in self._sent.items():
            seen = places.get(mark, {}).get(sent.partition, set())
            is_acknowledged = sent.fate is _Fate.ACKNOWLEDGED and not may_lose(mark)
            if (marks := in_log.get(sent.partition)) is not None:
                log_start = self._logs[sent.partition][1]
                was_deleted = 0 <= max([sent.offset, *seen]) < log_start
                if mark not in marks and not was_deleted and (is_acknowledged or seen):
                    what = f"acknowledged at {sent.offset}" if is_acknowledged else f"read at {_listed(seen)}"
                    yield Anomaly(Kind.LOST, sent.partition, f"{mark}, {what}, is not in the log")
            elif is_acknowledged and not seen:
                if sent.offset < seen_to.get(sent.partition, -1):
                    text = f"{mark}, acknowledged at {sent.offset}, was never seen, although later offsets were"
                    yield Anomaly(Kind.LOST, sent.partition, text)
                else:
                    text = f"no consumer read up to {mark}, acknowledged at {sent.offset}"
                    yield Anomaly(Kind.UNSEEN, sent.partition, text)

    def _of_order(self, who: str, partition: int, records: Sequence[Seen]) -> Iterable[Anomaly]:
        last_of: dict[str, Seen] = {}
        before: Seen | None = None
        for seen in records:
            if before is not None and seen.offset <= before.offset:
                text = f"{who} read {seen.mark} at {seen.offset} after {before.mark} at {before.offset}"
                yield Anomaly(Kind.NONMONOTONIC_POLL, partition, text)
            earlier = last_of.get(seen.mark.producer)
            if self._idempotent and earlier is not None and seen.mark.sequence < earlier.mark.sequence:
                text = f"{who} found {seen.mark} at {seen.offset}, behind {earlier.mark} at {earlier.offset}"
                yield Anomaly(Kind.REORDER, partition, text)
            before = last_of[seen.mark.producer] = seen

    def _skips(self, at: dict[int, dict[int, set[Mark]]]) -> Iterable[Anomaly]:
        for (consumer, partition), reader in self._readers.items():
            known = at[partition]
            for stretch in reader.stretches:
                for before, after in itertools.pairwise(stretch):
                    passed = [offset for offset in range(before.offset + 1, after.offset) if offset in known]
                    if passed:
                        text = (
                            f"{consumer} went from {before.offset} to {after.offset}, past "
                            f"{', '.join(map(str, sorted(known[passed[0]])))} at {passed[0]}"
                        )
                        yield Anomaly(Kind.SKIP, partition, text)

    def _gaps(self) -> Iterable[Anomaly]:
        for partition, (records, log_start, end) in self._logs.items():
            expected = log_start
            for seen in records:
                if seen.offset > expected:
                    text = f"nothing is at {expected} to {seen.offset - 1}, before {seen.mark}"
                    yield Anomaly(Kind.GAP, partition, text)
                expected = max(expected, seen.offset + 1)
            if expected < end:
                yield Anomaly(Kind.GAP, partition, f"nothing is at {expected} to {end - 1}, where the log ends")

    def _sends(self) -> Iterable[Anomaly]:
        if not self._idempotent:
            return
        last: dict[tuple[str, int], tuple[Mark, int]] = {}
        for mark in sorted(self._sent):
            sent = self._sent[mark]
            if sent.fate is not _Fate.ACKNOWLEDGED or sent.offset < 0:
                continue
            earlier = last.get((mark.producer, sent.partition))
            if earlier is not None and sent.offset <= earlier[1]:
                text = f"{mark} was acknowledged at {sent.offset}, after {earlier[0]} at {earlier[1]}"
                yield Anomaly(Kind.NONMONOTONIC_SEND, sent.partition, text)
            last[mark.producer, sent.partition] = mark, sent.offset


def _end(records: Sequence[Seen], log_start: int) -> int:
    return max((seen.offset + 1 for seen in records), default=log_start)


def _listed(offsets: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(offsets)))
