"""The appends of a log that one write adds to its active segment (group commit).

Each append enters the group whole or is refused. A refused append does not stop the others. Epochs and producers know
an append as soon as it is in the group, so that the next append can follow it; after a failed write, the producers are
taken back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from ..config import LONG_MAX
from ..errors import (
    CorruptLogError,
    DiskFullError,
    HeadraceError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    ServerBusyError,
)
from ..records import BatchHeader
from ..records.types import CONTROL_BIT, LENGTH_PREFIX_BYTES
from ..types import NO_EPOCH, TimestampType
from .appending import Append, AppendInfo, AppendOutcome, Outcomes, Write, prepare, prepare_joined, validate
from .fencing import KnownEpoch, check_fence, largest_epoch
from .files import NO_SPACE
from .producer_files import complete_window, tell_kept_marker, tell_marker
from .producer_state import Check, Checked
from .reading import PLACES_MAX
from .replicated import UnexpectedOffsetError, check_order, check_replicated, epoch_starts, prepare_replicated
from .segments import SegmentedLog
from .transactions import Marker, TransactionalAppend, check_in_transaction, must_append

#: Error class for each reason to refuse a producer's batch.
_REFUSALS: dict[Check, type[HeadraceError]] = {
    Check.FENCED: InvalidProducerEpochError,
    Check.OUT_OF_ORDER: OutOfOrderSequenceNumberError,
    Check.NOT_IN_TRANSACTION: InvalidTxnStateError,
}


def may_roll(log: SegmentedLog, appends: Sequence[Append], now_ms: int) -> bool:
    """Whether the appends may seal the log's active segment. False is always right, True may be wrong."""
    if not log.segments:
        return False
    active, size = log.segments[-1], 0
    for append in appends:
        size += len(append.data)
    if active.size + size > log.config.segment_bytes:
        return True
    if not active.size:
        return False
    if active.index.columns is None or active.time_index.columns is None:  # after a truncation; reading them may fail
        return True
    if not active.has_room():
        return True
    first_ms = active.first_timestamp_ms
    if first_ms is None:  # the segment is older than this process; its first append looks up the timestamp
        return True
    if first_ms < 0:
        return now_ms - active.created_ms > log.roll_ms
    latest_ms = now_ms if log.config.timestamp_type is TimestampType.LOG_APPEND_TIME else -1
    for append in appends:
        for header in append.headers or ():
            if header.max_timestamp_ms > latest_ms:
                latest_ms = header.max_timestamp_ms
        if append.headers is None and latest_ms < now_ms:
            latest_ms = now_ms
    return latest_ms - first_ms > log.roll_ms


class Group:
    """Appends to one log, in order. ``outcomes`` has one entry for each append that was written or refused."""

    __slots__ = ("_log", "_now_ms", "_size", "_writes", "end", "outcomes")

    def __init__(self, log: SegmentedLog, now_ms: int) -> None:
        self._log = log
        self._now_ms = now_ms
        self._writes: list[Write] = []
        self._size = 0
        self.end = log.log_end_offset  #: The log end offset once the group is written.
        self.outcomes: list[Outcomes] = []

    def append(self, appends: Iterable[Append]) -> list[Outcomes]:
        """``PartitionLog.append_many``."""
        for append in appends:
            outcome = self._enter(append)
            if outcome is not None:
                self._write()
                self.outcomes.append(outcome)
        self._write()
        return self.outcomes

    def _enter(self, append: Append) -> Outcomes | None:
        """Let an append into the group. Returns its outcome if the append does not join the group."""
        epochs = self._log.epochs
        try:
            if epochs.is_behind:
                epochs.catch_up()
            if append.replicated:
                return self._add_replicated(append)
            return self._add_joined(append) if append.joined else self._add(append)
        except HeadraceError as error:
            return error
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return self._disk_full(error)

    def _add_joined(self, append: Append) -> list[Outcomes] | None:
        """Add the batches of a joined append together. If they do not go into the segment as they are, or one does not
        follow its producer's last batch, add each alone, and return their outcomes."""
        assert append.headers is not None, "a joined append was checked by its maker"
        if self._goes_in_one(append.headers, len(append.data)):
            with contextlib.suppress(HeadraceError):
                if self._add(append) is None:
                    return None
        self._write()
        before, position, view = len(self.outcomes), 0, memoryview(append.data)
        for header in append.headers:
            end = position + header.size
            alone = Append(data=view[position:end], leader_epoch=append.leader_epoch, headers=(header,))
            position = end
            outcome = self._enter(alone)
            if outcome is not None:
                self._write()
                self.outcomes.append(outcome)
        self._write()
        outcomes = self.outcomes[before:]
        del self.outcomes[before:]
        return outcomes

    def _goes_in_one(self, headers: Sequence[BatchHeader], size: int) -> bool:
        """Whether the active segment may take the batches together, without a change: the topic's configuration may
        have changed since they were checked, and segments end where they would end without joining."""
        log = self._log
        config, taken = log.config, log.segments[-1].size + self._size
        if config.compression_type != "producer" or config.timestamp_type is not TimestampType.CREATE_TIME:
            return False
        if max([header.batch_length for header in headers]) + LENGTH_PREFIX_BYTES > config.message_bytes_max:
            return False
        if not taken and max([each.max_timestamp_ms for each in headers]) - headers[0].max_timestamp_ms > log.roll_ms:
            return False
        return taken + size <= config.segment_bytes

    def _add(self, append: Append) -> AppendOutcome | None:
        """Add a producer's batches. For a duplicate append, add nothing and return an outcome."""
        log, fence, epoch = self._log, append.fence, append.leader_epoch
        if fence is not None:
            check_fence(fence, self._largest_shard_epoch(), self.end, log.topic_partition)
        data, headers = append.data, append.headers
        if headers is None:
            data, headers = validate(data, log.config, self._now_ms)
        if append.joined:
            assert isinstance(data, bytearray)
            write = prepare_joined(
                data,
                headers,
                log.config,
                base_offset=self.end,
                leader_epoch=epoch,
                log_start_offset=log.log_start_offset,
            )
        else:
            write = prepare(
                data,
                headers,
                log.config,
                base_offset=self.end,
                leader_epoch=epoch,
                now_ms=self._now_ms,
                log_start_offset=log.log_start_offset,
            )
        base_offset = write.info.base_offset
        if self._must_roll(write):
            if append.joined:
                raise InvalidArgumentError(f"{log.topic_partition}: the segment may end within the joined append")
            self._write()
            log.roll()
            if base_offset != log.log_end_offset:  # the preceding appends were refused, so the offsets are wrong
                return self._add(append)
        latest, start = log.epochs.entries[-1] if log.epochs.entries else (NO_EPOCH, base_offset)
        if epoch < latest:
            raise InvalidArgumentError(
                f"{log.topic_partition}: cannot append with leader epoch {epoch}: the log has records of the later "
                f"epoch {latest}"
            )
        if write.producers:
            duplicate = self._admit(write, append.transaction)
            if duplicate is not None:
                if duplicate.next_offset <= log.log_end_offset:
                    return duplicate
                # The append repeats a batch of the group whose write may still fail, so write the group first.
                self._write()
                return self._add(append)
        if epoch > latest or base_offset < start:
            try:  # add the epoch only now: a refused append adds no record of the epoch, and forces no file
                log.epochs.assign(epoch, base_offset)
            except (OSError, HeadraceError):  # no descriptor is free: ServerBusyError
                self._take_back(write)
                raise
        self._writes.append(write)
        self._size += write.info.size
        self.end = write.info.next_offset
        if fence is not None:
            log.shard_epoch = KnownEpoch(fence.epoch, self.end, log.cuts)
        return None

    def _largest_shard_epoch(self) -> int:
        """Return the largest shard epoch of the log and of the group."""
        log = self._log
        known = log.shard_epoch
        if known is not None and known.cuts == log.cuts:
            if known.end == self.end:
                return known.epoch
            # ``known`` comes from an earlier append of the group, and the segments do not have the group's batches yet.
            if known.end > log.log_end_offset:
                return max(known.epoch, largest_epoch(log.segments))
        found = largest_epoch(log.segments)
        log.shard_epoch = KnownEpoch(found, self.end, log.cuts)
        return found

    def _must_roll(self, write: Write) -> bool:
        """Whether to begin a new segment before ``write`` joins the group, by the rules of Kafka's
        LogSegment.shouldRoll."""
        log = self._log
        segment, info = log.segments[-1], write.info
        size = segment.size + self._size
        if size == 0:
            return False
        if size + info.size > log.config.segment_bytes or not segment.has_room(info.next_offset - 1):
            return True
        if not segment.size:
            first_ms: int | None = self._writes[0].metas[0].max_timestamp_ms
        elif (first_ms := segment.first_timestamp_ms) is None:
            first_ms = segment.first_batch_timestamp()
        if first_ms is not None and first_ms >= 0:
            return info.max_timestamp_ms - first_ms > log.roll_ms
        return self._now_ms - segment.created_ms > log.roll_ms

    # ---------------------------------------------------------------- producers

    def _admit(self, write: Write, transaction: TransactionalAppend | Marker | None) -> AppendInfo | None:
        """Check the batches of idempotent producers, and record the batches in the producer table. For batches that the
        log already has, return the AppendInfo of the first append. Raises OutOfOrderSequenceNumberError,
        InvalidProducerEpochError, InvalidTxnStateError, and the errors of ``must_append`` and
        ``check_in_transaction``."""
        log = self._log
        table = log.producers
        if transaction is not None and isinstance(transaction, Marker):
            if not must_append(transaction, table.get(transaction.producer_id), log.topic_partition):
                # The outcome's end is the log's end: the marker counts as committed when all records are.
                return AppendInfo(-1, self.end, -1, 0, log.log_start_offset, -1, is_duplicate=True)
            transaction = None
        duplicates: list[Checked] = []
        try:
            for header, meta in write.producers:
                if header.attributes & CONTROL_BIT:  # a marker has no sequence number
                    write.remembered.append(table.remember(header.producer_id))
                    at = 2 * write.metas.index(meta)
                    placed = header._replace(base_offset=meta.base_offset)
                    tell_marker(table, placed, b"".join(write.buffers[at : at + 2]))
                    continue
                checked = table.check(header)
                if checked.check is Check.OUT_OF_ORDER:
                    checked = self._check_again(header, checked)
                if checked.check is Check.DUPLICATE:
                    duplicates.append(checked)
                    continue
                if transaction is not None and checked.check is not Check.FENCED:
                    check_in_transaction(header, table.get(header.producer_id), transaction, log.topic_partition)
                if checked.check is not Check.NEXT:
                    raise _REFUSALS[checked.check](f"{log.topic_partition}: {checked.why}")
                write.remembered.append(table.remember(header.producer_id))
                table.appended(header, base_offset=meta.base_offset, max_timestamp_ms=meta.max_timestamp_ms)
            if duplicates and len(duplicates) < len(write.metas):
                raise OutOfOrderSequenceNumberError(
                    f"{log.topic_partition}: {len(duplicates)} of the request's {len(write.metas)} batches are already "
                    "in the log, the others are not: a retry must send the same batches in one request"
                )
        except HeadraceError:
            self._take_back(write)
            raise
        return self._info_of(duplicates) if duplicates else None

    def _check_again(self, header: BatchHeader, checked: Checked) -> Checked:
        """Judge a batch out of order once more, if the table lacks earlier batches that the log has."""
        table = self._log.producers
        entry = table.get(header.producer_id)
        if entry is None or not entry.is_cut_short or header.producer_epoch != entry.epoch:
            return checked
        complete_window(entry, self._log.segments)
        return table.check(header)

    def _info_of(self, duplicates: Sequence[Checked]) -> AppendInfo:
        first, last = duplicates[0].batch, duplicates[-1].batch
        assert first is not None
        assert last is not None
        gives_time = self._log.config.timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendInfo(
            first.base_offset,
            last.last_offset + 1,
            first.timestamp_ms if gives_time else -1,
            0,
            self._log.log_start_offset,
            last.timestamp_ms,
            is_duplicate=True,
        )

    def _take_back(self, write: Write) -> None:
        """Remove the batches of a write that will not join the group from the producer table."""
        self._log.producers.take_back(reversed(write.remembered), self.end)

    # ---------------------------------------------------------------- replicated batches

    def _add_replicated(self, append: Append) -> AppendOutcome | None:
        log, end, follows = self._log, self.end, append.follows
        is_empty = end == log.log_end_offset and len(log.segments) == 1 and log.segments[0].size == 0
        if follows is not None and follows != end:
            raise UnexpectedOffsetError(
                f"{log.topic_partition}: cannot append batches that begin at offset {follows}: the log ends at {end}"
            )
        headers = append.headers
        latest, start = log.epochs.entries[-1] if log.epochs.entries else (NO_EPOCH, LONG_MAX)
        if headers is None:
            headers = check_replicated(
                append.data,
                log_end_offset=end,
                leader_epoch=append.leader_epoch,
                latest_epoch=latest,
                is_empty=is_empty,
            )
        else:
            check_order(headers, end, append.leader_epoch, latest, is_empty=is_empty)
        parts = prepare_replicated(append.data, headers, log.config.segment_bytes, log.log_start_offset)
        first_offset = headers[0].base_offset
        if first_offset < end:
            log.begin_again_at(first_offset)
        if headers[-1].leader_epoch != latest or min(first_offset, end) < start:  # not only the latest epoch goes on
            for epoch, start_offset in epoch_starts(headers, latest, end):
                log.epochs.assign(epoch, start_offset)
        if len(parts) == 1:
            self._add_part(parts[0])
            return None
        return self._add_parts(parts)

    def _add_parts(self, parts: Sequence[Write]) -> AppendOutcome:
        """Write an append that is larger than a segment, part by part."""
        self._write()
        before = len(self.outcomes)
        for part in parts:
            self._add_part(part)
            self._write()
            outcome = self.outcomes.pop()
            assert len(self.outcomes) == before
            if isinstance(outcome, HeadraceError):
                return outcome
        first, last = parts[0].info, parts[-1].info
        return first._replace(
            next_offset=last.next_offset,
            size=sum(part.info.size for part in parts),
            max_timestamp_ms=max(part.info.max_timestamp_ms for part in parts),
        )

    def _add_part(self, part: Write) -> None:
        log, end, info = self._log, self.end, part.info
        if self._must_roll(part):
            self._write()
            if end != log.log_end_offset:
                raise UnexpectedOffsetError(
                    f"{log.topic_partition}: cannot append batches from offset {info.base_offset} on: the batches "
                    f"before them could not be written, and the log ends at {log.log_end_offset}"
                )
            log.roll()
        segment = log.segments[-1]
        if not segment.size and not self._writes and not segment.fits(info.next_offset - 1):
            # The batches begin after a gap that is too large for the segment's indexes.
            log.begin_again_at(info.base_offset)
        table = log.producers
        try:
            for header, meta in part.producers:
                part.remembered.append(table.remember(header.producer_id))
                if header.attributes & CONTROL_BIT:
                    at = sum(other.size for other in part.metas[: part.metas.index(meta)])
                    tell_kept_marker(table, header, memoryview(part.buffers[0])[at : at + meta.size])
                else:
                    table.appended(header)
        except HeadraceError:  # a marker was damaged after the check of its batches, so append none of these batches
            self._take_back(part)
            raise
        self._writes.append(part)
        self._size += info.size
        self.end = info.next_offset

    # ---------------------------------------------------------------- writing

    def _write(self) -> None:
        """Write and publish the group's batches, and empty the group."""
        log, writes = self._log, self._writes
        if not writes:
            return
        buffers, metas = writes[0].buffers, writes[0].metas
        for write in writes[1:]:
            buffers += write.buffers
            metas += write.metas
        segment, size = log.segments[-1], self._size
        self._writes, self._size = [], 0
        try:
            segment.write(buffers, size)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            segment.undo_write()
            self._not_written(writes, [self._disk_full(error) for _ in writes])
            return
        # No descriptor is free, or the log is damaged: the append has written nothing.
        except (ServerBusyError, CorruptLogError) as error:
            self._not_written(writes, [error] * len(writes))
            return
        next_offset = metas[-1].last_offset + 1
        # (In a follower's log, batches may leave a gap, and the first batch may begin below the log's start.)
        assert next_offset > log.log_end_offset, f"{log.directory}: {next_offset} is not after the end of the log"
        places = log.places
        if len(places) >= PLACES_MAX:
            places.clear()
        places[metas[0].base_offset] = segment, segment.size
        segment.publish(metas)
        places[next_offset] = segment, segment.size
        table = log.producers
        if table.aborted:  # write the entries before the log's end advances, so that readers find them
            segment.add_aborted(table.aborted)
            table.aborted.clear()
        if log.unflushed_since_ms is None:
            log.unflushed_since_ms = table.local_ms
        log.log_end_offset = table.next_offset = self.end = next_offset
        self.outcomes += [write.info for write in writes]

    def _not_written(self, writes: Sequence[Write], errors: Sequence[HeadraceError]) -> None:
        log = self._log
        self.end = log.log_end_offset
        self.outcomes += errors
        log.producers.take_back((each for write in reversed(writes) for each in reversed(write.remembered)), self.end)
        log.shard_epoch = None

    def _disk_full(self, error: OSError) -> DiskFullError:
        return DiskFullError(
            f"{self._log.directory}: no space left on the disk ({error.strerror}): nothing was appended; free some "
            "space, or lower the topics' retention"
        )
