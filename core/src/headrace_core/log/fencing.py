"""Who may write to a shard: a coordinator, for as long as nobody has come with a larger epoch (decision 13).

A shard is a partition of ``__consumer_offsets`` or ``__transaction_state``. Its owner changes, and each owner has an
epoch that is larger than every one before. A coordinator that was paused, or that has not heard the news, goes on
writing; a broker that leads the partition may not have heard it either. So the epoch is judged where the write is, and
by what is written:

    every batch of a shard carries its writer's epoch        producer id -1, base sequence = epoch
    an append of a smaller one is refused                    FencedShardEpochError, final
    so epochs never fall along the log                       the last batch that carries one has the largest
    so whoever leads next finds it where the log ends        no file beside the log, nothing that could be lost alone

Readers of Kafka's format take no notice of a base sequence without a producer id. Compaction keeps that number, and
the header of the last batch of what it replaces. What was cut off the log (a claim that was never committed) fences
nobody any more, and need not: its coordinator was not told that it has the shard, and claims it again.

``expected_end`` is the other half: an append that was decided on all that lies below is refused when something else
came in between (UnexpectedLogEndError), be it the claim of another or one's own append whose answer was lost. It keeps
a coordinator honest even where the log was emptied, and its epochs with it. (KAFKA-4362: the old one still wrote.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import FencedShardEpochError, InvalidRequestError, UnexpectedLogEndError
from ..records import BatchHeader
from ..types import TopicPartition
from .segment import LogSegment

#: Of a log without a batch that carries an epoch; smaller than all that there are.
NO_SHARD_EPOCH = -1
#: How much of a segment is looked through at once, from its end towards its beginning.
_WINDOW_BYTES = 64 * 1024


class Fence(NamedTuple):
    """Append only if no larger shard epoch is in the log, and, unless it is None, only if the log ends at
    ``expected_end``."""

    epoch: int
    expected_end: int | None = None


class KnownEpoch(NamedTuple):
    """The largest shard epoch of a log as it was when it ended at ``end`` and had been cut so many times."""

    epoch: int
    end: int
    cuts: int


def epoch_of(header: BatchHeader) -> int:
    """The shard epoch that a batch carries; NO_SHARD_EPOCH for one of a producer, or of a client."""
    return max(header.base_sequence, NO_SHARD_EPOCH) if header.producer_id < 0 else NO_SHARD_EPOCH


def check_stamps(headers: Iterable[BatchHeader], fence: Fence, partition: TopicPartition) -> None:
    """Does every batch carry the epoch that it is appended under? InvalidRequestError: else nobody could find it in the
    log."""
    if fence.epoch < 0:
        raise InvalidRequestError(f"{partition}: shard_epoch={fence.epoch}: must not be negative")
    for header in headers:
        if epoch_of(header) != fence.epoch:
            raise InvalidRequestError(
                f"{partition}: a batch of {header.record_count} records appended under shard epoch {fence.epoch} must "
                f"have producer id -1 and that epoch as its base sequence, not {header.producer_id} and "
                f"{header.base_sequence}"
            )


def check_fence(fence: Fence, largest_epoch: int, end: int, partition: TopicPartition) -> None:
    """May it be appended where the log ends at ``end`` and knows ``largest_epoch``? FencedShardEpochError,
    UnexpectedLogEndError."""
    if fence.epoch < largest_epoch:
        raise FencedShardEpochError(
            f"{partition}: shard epoch {fence.epoch} is over, epoch {largest_epoch} has claimed the shard: nothing was "
            "written; resign the shard"
        )
    if fence.expected_end is not None and fence.expected_end != end:
        raise UnexpectedLogEndError(
            f"{partition}: the append was decided on a log that ends at {fence.expected_end}, but it ends at {end}: "
            "nothing was written; replay what is there, and decide anew"
        )


def largest_epoch(segments: Sequence[LogSegment]) -> int:
    """The largest shard epoch in a log, which is the last one. Reads headers from the log's end towards its beginning,
    some KiB of a shard's log. CorruptLogError, OSError."""
    for segment in reversed(segments):
        was_loaded = segment.index.is_loaded
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
