"""A follower's checks of batches from its leader, before the follower appends the batches. Pure.

Batches keep their offsets and leader epochs. The follower checks each batch's CRC again. The CRC does not cover base
offset, length and leader epoch, so the follower compares the three fields with the end of its log. The leader has
checked the records inside the batches, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..errors import CorruptMessageError, HeadraceError
from ..records import BatchHeader, check_batch, without_position
from ..records.types import LENGTH_PREFIX_BYTES
from ..types import NO_EPOCH
from .appending import AppendInfo, Write
from .files import Buffer
from .index import RELATIVE_OFFSET_MAX, BatchMeta


class ReplicatedAppendError(HeadraceError):
    """The batches from the leader cannot follow the follower's log.

    No batch was appended: the follower must join the leader again."""


class UnexpectedOffsetError(ReplicatedAppendError):
    """The leader's batches do not start at the end of the follower's log."""


class UnexpectedEpochError(ReplicatedAppendError):
    """A batch has a leader epoch below the epoch of the previous batch, or above the leader's current epoch."""


def check_replicated(
    data: Buffer, *, log_end_offset: int, leader_epoch: int, latest_epoch: int = NO_EPOCH, is_empty: bool = False
) -> list[BatchHeader]:
    """Check batches from a leader of ``leader_epoch`` against a log that ends at ``log_end_offset`` with a batch of
    ``latest_epoch``; returns their headers, for ``Append``. Reads all bytes once; any thread may call the function.

    Offsets must rise; compaction may leave gaps. ``is_empty``: the log has no batch. The first batch of an empty log
    may begin below the log's end and reach beyond it, because the leader's log may start inside a batch.

    Raises CorruptMessageError (framing, CRC), UnexpectedOffsetError, UnexpectedEpochError.
    """
    headers: list[BatchHeader] = []
    position = 0
    while position < len(data):
        try:
            header = check_batch(data, position)
        except CorruptMessageError as error:
            raise CorruptMessageError(
                f"batches from the leader for a log that ends at offset {log_end_offset}: damage at byte {position} of "
                f"the message: {without_position(error.message)}"
            ) from error
        headers.append(header)
        position += header.batch_length + LENGTH_PREFIX_BYTES
    check_order(headers, log_end_offset, leader_epoch, latest_epoch, is_empty=is_empty)
    return headers


def check_order(
    headers: Sequence[BatchHeader], log_end_offset: int, leader_epoch: int, latest_epoch: int, *, is_empty: bool
) -> None:
    """Check replicated batches against the end of the follower's log: the part of ``check_replicated`` that depends on
    the log. Raises UnexpectedOffsetError, UnexpectedEpochError."""
    if not headers:
        raise UnexpectedOffsetError(f"the message has no batches; expected a batch at offset {log_end_offset}")
    expected = log_end_offset
    for header in headers:
        base_offset, epoch = header.base_offset, header.leader_epoch
        last_offset = base_offset + header.last_offset_delta
        reaches_in = is_empty and header is headers[0] and last_offset >= expected
        if base_offset < expected and not reaches_in:
            raise UnexpectedOffsetError(
                f"a batch with offsets {base_offset} to {last_offset} cannot follow offset {expected - 1}"
            )
        if not latest_epoch <= epoch <= leader_epoch:
            raise UnexpectedEpochError(
                f"a batch with offsets {base_offset} to {last_offset} has leader epoch {epoch}, but "
                + (
                    f"follows a batch of epoch {latest_epoch}"
                    if epoch < latest_epoch
                    else f"the sender has epoch {leader_epoch}"
                )
            )
        expected, latest_epoch = last_offset + 1, epoch


def prepare_replicated(
    data: Buffer, headers: Sequence[BatchHeader], segment_bytes: int, log_start_offset: int
) -> list[Write]:
    """Split unchanged batches into parts that each fit into a segment. The batches are split into several parts only
    where this broker's segments are smaller than a message of the leader. Raises CorruptMessageError when the headers
    do not belong to the data."""
    metas: list[BatchMeta] = []
    firsts = [0]  # for each part, the number of its first batch
    size = total = 0
    for number, header in enumerate(headers):
        batch_size, base_offset = header.batch_length + LENGTH_PREFIX_BYTES, header.base_offset
        last_offset = base_offset + header.last_offset_delta
        is_too_far = size and last_offset - metas[firsts[-1]].base_offset > RELATIVE_OFFSET_MAX
        if is_too_far or (size and size + batch_size > segment_bytes):
            firsts.append(number)
            size = 0
        latest_ms = header.max_timestamp_ms if header.record_count else -1  # compaction may have removed all records
        metas.append(BatchMeta(batch_size, base_offset, last_offset, latest_ms))
        size += batch_size
        total += batch_size
    if total != len(data):
        raise CorruptMessageError(
            f"the message has {len(data)} bytes of records, but the headers of its batches add up to another number"
        )
    view, position = memoryview(data), 0
    parts: list[Write] = []
    for first, after in pairwise((*firsts, len(headers))):
        some, its_headers = metas[first:after], headers[first:after]
        size = sum([meta.size for meta in some])
        latest_ms = max([header.max_timestamp_ms for header in its_headers])
        info = AppendInfo(some[0].base_offset, some[-1].last_offset + 1, -1, size, log_start_offset, latest_ms)
        producers = [(header, meta) for header, meta in zip(its_headers, some, strict=True) if header.producer_id >= 0]
        parts.append(Write([view[position : position + size]], some, producers, info))
        position += size
    return parts


def epoch_starts(headers: Sequence[BatchHeader], latest_epoch: int, log_end_offset: int) -> list[tuple[int, int]]:
    """(epoch, offset) of each leader epoch that begins in these batches, which are appended at ``log_end_offset``.

    An epoch begins at the end of the last batch of the previous epoch. The start offset of an epoch may be below the
    epoch's first batch, because compaction on the leader may have removed the epoch's first records. If the recorded
    start were the epoch's first remaining batch, the previous epoch would seem to reach up to that batch. With a start
    that is too high, a replica would not truncate records that were never committed."""
    starts = [
        (after.leader_epoch, before.next_offset)
        for before, after in pairwise(headers)
        if after.leader_epoch > before.leader_epoch
    ]
    first = headers[0]
    # Replace the start of the first batch's epoch even if it is the latest known epoch: its recorded start may be too
    # high.
    if first.leader_epoch >= max(latest_epoch, 0):
        starts.insert(0, (first.leader_epoch, min(first.base_offset, log_end_offset)))
    return starts
