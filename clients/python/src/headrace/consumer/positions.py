"""Find the positions at which reading starts, and check that a position is still valid. The module runs on Headrace's
I/O thread.

Partitions that need a position at the same time share one request per leader: a request for each of a thousand
partitions would take seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from headrace_core.errors import HeadraceError, LogTruncationError, NoOffsetForPartitionError
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

from ..engine.offsets import end_of_epoch, list_offsets
from .inbox import Slice
from .tracked import SessionOwner, Tracked

logger = logging.getLogger("headrace")

#: Seconds after which the consumer gives up a joint lookup of several partitions, and looks up each partition by a
#: separate request.
TOGETHER_S = 2.0


def reset_timestamp(reset: str | None, policy: str, tp: TopicPartition) -> int:
    """The special timestamp of a ListOffsets request for a reset to "earliest" or "latest". Raises
    NoOffsetForPartitionError when auto.offset.reset is "none"."""
    wanted = reset or policy
    if wanted == "earliest":
        return EARLIEST_TIMESTAMP
    if wanted == "latest":
        return LATEST_TIMESTAMP
    raise NoOffsetForPartitionError(
        f"{tp} has no position and auto.offset.reset is none: seek to an offset first, or set auto.offset.reset"
    )


async def find_together(fetcher: SessionOwner, lost: list[Tracked]) -> None:
    """Find the positions of many partitions with one request per leader. Partitions whose lookup fails stay without a
    position; ``find_position`` looks them up again, and raises the error."""
    engine = fetcher.engine
    with contextlib.suppress(HeadraceError):
        await _begin_where_committed(fetcher, lost, TOGETHER_S)
    lost = [tracked for tracked in lost if tracked.fetch_at is None and not tracked.asks_group]
    for topic in {tracked.assigned.tp.topic for tracked in lost}:
        with contextlib.suppress(HeadraceError):
            await engine.topic(topic, TOGETHER_S)
    groups: dict[int, list[Tracked]] = {}
    topics = engine.metadata.snapshot.topics
    for tracked in lost:
        tp = tracked.assigned.tp
        info = topics.get(tp.topic)
        if info is not None and tp.partition < len(info.partitions):
            groups.setdefault(info.partitions[tp.partition].leader, []).append(tracked)
    groups.pop(-1, None)  # partitions without a leader: there is no broker to ask
    await asyncio.gather(*(_find_group(fetcher, group) for group in groups.values() if len(group) > 1))


async def _find_group(fetcher: SessionOwner, group: list[Tracked]) -> None:
    engine, policy = fetcher.engine, fetcher.config["auto.offset.reset"]
    with contextlib.suppress(HeadraceError):
        wanted = {tracked.assigned.tp: reset_timestamp(tracked.reset, policy, tracked.assigned.tp) for tracked in group}
        found = await list_offsets(engine, wanted, fetcher.isolation, engine.deadline(TOGETHER_S))
        for tracked in group:
            _note(fetcher, tracked, found[tracked.assigned.tp].offset)


async def _begin_where_committed(fetcher: SessionOwner, some: list[Tracked], timeout_s: float) -> None:
    """Set each position of a partition from ``assign`` to the group's committed offset, if the consumer has a group.
    Raises the errors of the OffsetFetch request."""
    asking = [tracked for tracked in some if tracked.asks_group]
    if not asking or fetcher.committed is None:
        return
    found = await fetcher.committed([tracked.assigned.tp for tracked in asking], timeout_s)
    for tracked in asking:
        tracked.asks_group = False
        committed = found[tracked.assigned.tp]
        if committed is not None:
            tracked.epochs.begin(*committed)
            _note(fetcher, tracked, committed[0])


async def find_position(fetcher: SessionOwner, tracked: Tracked) -> None:
    """Find the position of one partition: the group's committed offset, or else an offset by ``reset``. Raises the
    error that the lookup of the partition's offset returned."""
    engine, tp = fetcher.engine, tracked.assigned.tp
    await _begin_where_committed(fetcher, [tracked], engine.request_timeout_s)
    if tracked.fetch_at is not None:
        return
    timestamp = reset_timestamp(tracked.reset, fetcher.config["auto.offset.reset"], tp)
    found = await list_offsets(engine, {tp: timestamp}, fetcher.isolation, engine.deadline(engine.request_timeout_s))
    _note(fetcher, tracked, found[tp].offset)


async def check_truncation(fetcher: SessionOwner, tracked: Tracked) -> None:
    """Check whether the log still has the records before ``fetch_at`` (KIP-320). If the log lacks the records before
    ``fetch_at``, move the position to the first diverging offset. If auto.offset.reset is "none" or the consumer reads
    a bounded range, raise LogTruncationError instead of moving the position."""
    tp, at, epoch = tracked.assigned.tp, tracked.fetch_at, tracked.epochs.last
    assert at is not None
    engine = fetcher.engine
    end = await end_of_epoch(engine, tp, epoch, engine.deadline(engine.request_timeout_s))
    if end.end_offset >= at and end.leader_epoch == epoch:
        return  # an ordinary log start or log end, which the next fetch response shows
    is_known = end.end_offset >= 0 and end.leader_epoch >= 0
    divergent = tracked.epochs.divergent(at, end.leader_epoch, end.end_offset) if is_known else None
    if fetcher.config["auto.offset.reset"] == "none" or tracked.assigned.end_offset is not None:
        where = f"the log differs from offset {divergent} on" if is_known else "the leader does not know that epoch"
        raise LogTruncationError(
            f"{tp}: the log was truncated before offset {at}, the position of this consumer (last record: leader "
            f"epoch {epoch}); {where}. Records that this consumer has read are no longer in the log; seek to "
            "continue",
            partition=tp,
            position=at,
            divergent_offset=divergent,
        )
    where = "the offset of auto.offset.reset" if divergent is None else f"offset {divergent}"
    logger.warning("%s: the log was truncated before this consumer's position %d; continuing at %s", tp, at, where)
    tracked.may_be_truncated = False
    if divergent is None:
        tracked.fetch_at, tracked.reset, tracked.asks_group = None, None, False
        tracked.epochs.forget()
        await find_position(fetcher, tracked)
    else:
        tracked.epochs.go_back(divergent)
        _note(fetcher, tracked, divergent)


def _note(fetcher: SessionOwner, tracked: Tracked, offset: int) -> None:
    tracked.fetch_at = offset
    if tracked.generation != tracked.assigned.generation:
        return
    if tracked.assigned.position is None:
        tracked.assigned.found = (tracked.generation, offset)
    else:  # the position is out of range: an empty slice passes the new position on in order
        fetcher.inbox.put(Slice(tracked.assigned, tracked.generation, offset, offset))
