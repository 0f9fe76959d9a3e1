"""Checks of logs whose records are deleted: by retention, DeleteRecords or compaction.

*Log start.* A log start moves only for a reason (a request for this offset, or a log that is larger than
``retention.bytes`` even without the deleted part). The log start never moves above the committed records, and never
back on the same disk. *Compaction.* Each record that compaction removed has a successor: a later committed record of
its key, below the end of the compacted part. All other records keep their offsets, in batches of any form.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_core.errors import CorruptLogError
from headrace_core.log import PartitionLog
from headrace_core.records import decode_batch, iterate_headers
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from headrace_broker.partition import PartitionLeader
    from tests.simulation.broker_checks import Truth
    from tests.simulation.broker_node import BrokerHost
    from tests.simulation.broker_sim_world import BrokerWorld

READ_BYTES = 1 << 20
#: An end offset beyond all records, so that any committed record may supersede an older one.
ANYWHERE = 1 << 62


class StartSeen(NamedTuple):
    """The log start offset of a replica at the last check. ``copy`` distinguishes the log from an earlier log in the
    same place."""

    log: PartitionLog
    life: int
    copy: tuple[int, int, int, int]
    start: int


class UpkeepChecks:
    """The part of ``BrokerChecks`` for deletions."""

    world: BrokerWorld
    truths: list[Truth]

    # -- log starts --------------------------------------------------------------------------------------------------

    def asked_to_delete(self, number: int, before: int) -> None:
        """An operator requests a deletion (-1: up to the high watermark)."""
        self.truths[number].asked.add(before)

    def start_moves(self, log: PartitionLog, before: int) -> None:
        """The start of ``log`` is about to move, by DeleteRecords, or because a follower copies its leader's log
        start."""
        truth = self.truths[log.topic_partition.partition]
        if before <= max(truth.start_max, log.log_start_offset):
            return
        if before > truth.end:
            raise Violation(
                "log start",
                f"{log.directory}: records before {before} are deleted, but only records up to {truth.end} are "
                "committed",
            )
        if before not in truth.asked and -1 not in truth.asked:
            raise Violation(
                "log start", f"{log.directory}: records before {before} are deleted, but no request asked for it"
            )
        truth.start_max = before

    def start_moved(self, log: PartitionLog, durable: int | None = None) -> None:
        """The log's directory reports that the new log start offset is on disk. ``durable``: the log start offset that
        is certainly on disk, if it is lower than the new offset. (On a full disk DeleteRecords moves the log start
        offset only in memory, and is not acknowledged.)"""
        starts = self.truths[log.topic_partition.partition].durable
        starts[log] = log.log_start_offset if durable is None else max(durable, starts.get(log, 0))

    def expired(self, log: PartitionLog) -> None:
        """Retention has moved the start of ``log``."""
        truth, start = self.truths[log.topic_partition.partition], log.log_start_offset
        limit = self.world.plan.retention_bytes
        if start <= truth.start_max:
            return
        if limit is None:
            raise Violation("retention", f"{log.directory} starts at {start}, but its topic keeps all records")
        if start > truth.end:
            raise Violation(
                "retention", f"{log.directory} starts at {start}, but only records up to {truth.end} are committed"
            )
        left = sum(segment.size for segment in log.segments if segment.base_offset >= start)
        if left < limit:
            raise Violation(
                "retention",
                f"{log.directory}: only {left} bytes are left from {start} on, less than retention.bytes={limit}",
            )
        self.world.count("state", "retention")
        truth.start_max = start

    def start_seen(self, host: BrokerHost, log: PartitionLog) -> None:
        """Called after a turn: deleted records must not return, not even after a restart."""
        truth, start = self.truths[log.topic_partition.partition], log.log_start_offset
        seen = truth.starts.get(host.number)
        if truth.is_tainted or (seen is not None and seen.log is log and seen.start == start):
            return
        if start > truth.start_max:
            raise Violation(
                "log start",
                f"{host}: {log.topic_partition} starts at {start}, but no deletion above {truth.start_max} was "
                "requested",
            )
        copy = host.disks, host.begun_anew, host.damaged, truth.removed[host.number]
        if seen is not None and seen.log is not log and (seen.life == host.life or seen.copy != copy):
            seen = None  # re-created, or removed and restored by a crash
        before = 0 if seen is None else seen.start if seen.log is log else truth.durable.get(seen.log, 0)
        if start < before:
            raise Violation(
                "log start", f"{host}: {log.topic_partition} starts at {start}, and earlier it started at {before}"
            )
        if seen is None or seen.log is not log:
            truth.starts[host.number] = StartSeen(log, host.life, copy, start)
            truth.durable.setdefault(log, start)  # (as it was found on the disk)
        elif start != seen.start:
            truth.starts[host.number] = seen._replace(start=start)

    def deleted_by_all(self, leader: PartitionLeader, before: int) -> None:
        """DeleteRecords is about to be answered: all followers and members of the in-sync set must have deleted the
        records."""
        for replica in leader.progress:
            host = self.world.host_of(replica.broker_id)
            if not replica.is_joined and replica.broker_id not in leader.maximal_isr:
                continue
            if host is None or host.broker is None or host.begun_anew or host.disks > 1:
                continue
            log = host.broker.storage.log(leader.partition)
            if log is not None and log.log_start_offset < before:
                raise Violation(
                    "log start",
                    f"the deletion of records before {before} was acknowledged, but the log of the follower {host} "
                    f"begins at {log.log_start_offset}",
                )

    def deleted(self, number: int, before: int, low_watermark: int) -> None:
        """DeleteRecords is answered."""
        truth = self.truths[number]
        if before > truth.end:
            raise Violation(
                "log start",
                f"the deletion of records before {before} was acknowledged, but only records up to {truth.end} are "
                "committed",
            )
        if low_watermark > truth.start_max or low_watermark < before:
            raise Violation(
                "log start",
                f"the low watermark in the answer is {low_watermark}, but the records before {before} are deleted",
            )

    def are_gone(self, number: int, values: list[bytes]) -> bool:
        """Whether all these values were committed, and may be deleted or compacted away."""
        truth = self.truths[number]
        return all(
            (offset := truth.offsets.get(value)) is not None
            and (offset < truth.start_max or (offset in truth.records and self._has_successor(truth, offset)))
            for value in values
        )

    def _has_successor(self, truth: Truth, offset: int) -> bool:
        return truth.of_key[truth.records[offset][0]][-1] > offset

    def earliest_answered(self, who: object, number: int, start: int) -> None:
        truth = self.truths[number]
        if start > truth.start_max and not truth.is_tainted:
            raise Violation(
                "log start", f"{who} is told to begin at {start}, but no deletion above {truth.start_max} was requested"
            )

    # -- compaction --------------------------------------------------------------------------------------------------

    def compacted(self, who: object, log: PartitionLog) -> None:
        """A cleaning has ended: compare the whole log, up to the end of the committed records. A former leader may have
        a tail that was never committed, until it joins the next leader and truncates it. The log is compared up to the
        start of this tail (``parting``).

        The later record of a missing record's key may be after this log's end: a replica that catches up copies a log
        that its leader has compacted further."""
        truth = self.truths[log.topic_partition.partition]
        end = min(log.segments[-1].base_offset, log.log_end_offset, self.parting(truth, log))
        at = log.log_start_offset
        while at < end:
            try:
                found = log.read(at, READ_BYTES, end)
            except CorruptLogError:  # a bit was flipped: the replica serves none of these records, and is repaired
                return
            if found is None or not found.records:
                break
            self.match_compacted(who, truth, found.records, at, ANYWHERE)
            at = found.next_offset
        self.superseded(who, truth, at, min(end, truth.end), ANYWHERE)

    def parting(self, truth: Truth, log: PartitionLog) -> int:
        """The offset of the first committed batch that has another leader epoch in this log; the end of the committed
        records if there is none."""
        for base_offset, batch in truth.batches.items():
            if log.log_start_offset <= base_offset < log.log_end_offset:
                ((_, header),) = iterate_headers(batch)
                if log.epochs.epoch_of(base_offset) != header.leader_epoch:
                    return base_offset
        return log.log_end_offset

    def match_compacted(self, who: object, truth: Truth, records: bytes, at: int, end: int) -> None:
        """``end`` is the end of the records that may replace earlier records of their key."""
        for position, header in iterate_headers(records):
            self.superseded(who, truth, at, header.base_offset, end)
            batch = records[position : position + header.size]
            at = max(at, header.base_offset)
            for record in decode_batch(batch):
                if record.offset >= truth.end:
                    break
                if record.offset < at:
                    continue
                self.superseded(who, truth, at, record.offset, end)
                known = truth.records.get(record.offset)
                if known != (_bytes(record.key), _bytes(record.value)):
                    raise Violation(
                        "compaction",
                        f"{who}: the record at {record.offset} of partition {truth.number} is {record.value!r}, and "
                        f"was {known}",
                    )
                at = record.offset + 1
            self.superseded(who, truth, at, min(header.next_offset, truth.end), end)
            at = max(at, header.next_offset)

    def superseded(self, who: object, truth: Truth, start: int, to: int, end: int) -> None:
        """There are no records from ``start`` to ``to``: check that the gap is allowed."""
        for offset in range(start, to):
            known = truth.records.get(offset)
            if known is None:
                continue
            of_key = truth.of_key[known[0]]
            place = bisect_right(of_key, offset)
            if place == len(of_key) or of_key[place] >= max(end, to):
                raise Violation(
                    "compaction",
                    f"{who}: {known[1]!r}, at {offset} of partition {truth.number}, is gone, but no later record of "
                    f"its key is committed below {max(end, to)}",
                )


def _bytes(value: Any) -> bytes:
    return b"" if value is None else bytes(value)
