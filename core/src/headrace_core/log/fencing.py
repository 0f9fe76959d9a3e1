"""Fence coordinators that write to a shard: a coordinator may append until another coordinator has a larger shard epoch
(decision 13).

A shard is a partition of ``__consumer_offsets`` or ``__transaction_state``. Each new owner of a shard gets a larger
shard epoch than all earlier owners. A paused coordinator may continue to write, and the partition's leader may not know
the new owner. Because neither the old coordinator nor the leader may know the new owner, the log itself decides which
coordinator may append:

    every batch of a shard has its coordinator's shard epoch    as base sequence, with producer id -1
    the log refuses an append with a smaller shard epoch        with FencedShardEpochError, which is final
    so the shard epochs never decrease along the log            the last batch with a shard epoch has the largest
    so a new leader finds the largest one at the log's end      there is no separate file that could be lost

Readers of Kafka's format ignore a base sequence without a producer id. Compaction keeps the base sequence of a batch,
and the header of the last batch in each group of segments that it replaces. A claim is the first record of a shard's
new owner. A claim record that was truncated before it was committed fences no coordinator. The coordinator of a
truncated claim was not confirmed as owner, and claims the shard again.

``expected_end`` is the second condition of an append: the append fails with UnexpectedLogEndError when another append
has already changed the log's end. An append that changed the log's end unexpectedly may be another coordinator's claim,
or an append of the same coordinator whose response was lost. ``expected_end`` also protects a log that was emptied and
so lost its shard epochs. (In KAFKA-4362, a former group coordinator could still write offsets.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import FencedShardEpochError, InvalidRequestError, UnexpectedLogEndError
from ..records import BatchHeader
from ..types import TopicPartition
from .segment import LogSegment

#: Shard epoch of a log whose batches contain no shard epoch; the number is smaller than all shard epochs.
NO_SHARD_EPOCH = -1
#: Bytes that one step of the backward search reads, from a segment's end towards its beginning.
_WINDOW_BYTES = 64 * 1024


class Fence(NamedTuple):
    """Conditions of an append: the log's shard epoch is at most ``epoch``, and the log ends at ``expected_end`` (None:
    at any offset)."""

    epoch: int
    expected_end: int | None = None


class KnownEpoch(NamedTuple):
    """The largest shard epoch of a log, valid while the log ends at ``end`` and its count of truncations is
    ``cuts``."""

    epoch: int
    end: int
    cuts: int


def epoch_of(header: BatchHeader) -> int:
    """Return the shard epoch of a batch; NO_SHARD_EPOCH for a batch of a producer."""
    return max(header.base_sequence, NO_SHARD_EPOCH) if header.producer_id < 0 else NO_SHARD_EPOCH


def check_stamps(headers: Iterable[BatchHeader], fence: Fence, partition: TopicPartition) -> None:
    """Raise InvalidRequestError unless every batch contains the fence's epoch, on which later searches of the log
    rely."""
    if fence.epoch < 0:
        raise InvalidRequestError(f"{partition}: shard_epoch={fence.epoch}: must not be negative")
    for header in headers:
        if epoch_of(header) != fence.epoch:
            raise InvalidRequestError(
                f"{partition}: a batch of {header.record_count} records appended under shard epoch {fence.epoch} "
                f"must have producer id -1 and the shard epoch as its base sequence, not {header.producer_id} and "
                f"{header.base_sequence}"
            )


def check_fence(fence: Fence, largest_epoch: int, end: int, partition: TopicPartition) -> None:
    """Raise FencedShardEpochError or UnexpectedLogEndError unless the fence allows an append at ``end`` with
    ``largest_epoch``."""
    if fence.epoch < largest_epoch:
        raise FencedShardEpochError(
            f"{partition}: shard epoch {fence.epoch} is out of date, because a coordinator with epoch "
            f"{largest_epoch} has claimed the shard: nothing was written; release the shard"
        )
    if fence.expected_end is not None and fence.expected_end != end:
        raise UnexpectedLogEndError(
            f"{partition}: the append expects a log that ends at {fence.expected_end}, but the log ends at {end}: "
            "nothing was written; replay the log, then append again"
        )


def largest_epoch(segments: Sequence[LogSegment]) -> int:
    """Find the largest shard epoch in a log, which is the last shard epoch in the log. The search reads batch headers
    from the end backwards; a search in a shard's log reads some KiB. CorruptLogError, OSError."""
    for segment in reversed(segments):
        was_loaded = segment.index.columns is not None
        end = segment.size
        while end > 0:
            segment.load_indexes()
            start = segment.index.entry_before(end - _WINDOW_BYTES).position if end > _WINDOW_BYTES else 0
            epochs = [epoch_of(header) for _, header in segment.places(start, end)]
            found = max(epochs, default=NO_SHARD_EPOCH)
            if found != NO_SHARD_EPOCH:
                return found
            end = start
        if not was_loaded and segment is not segments[-1]:
            segment.unload_indexes()
    return NO_SHARD_EPOCH
