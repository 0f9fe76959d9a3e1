"""Commit a stream's progress to a consumer group, so that common tools show its lag.

The query does not need the commits to its consumer group, because its position is in Spark's checkpoint. A commit that
fails or hangs only logs a warning, and delays the query by at most ``COMMIT_TIMEOUT_S``. The query is not a member of
its consumer group; it commits in the same way as ``kafka-consumer-groups``.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from .offsets import PartitionOffsets

logger = logging.getLogger(__name__)

#: Seconds that a trigger waits for its commit to the consumer group. A commit to the consumer group that takes longer
#: than COMMIT_TIMEOUT_S continues during the next batch.
COMMIT_TIMEOUT_S = 5.0
#: Seconds to pause after a failed commit.
PAUSE_S = 60.0
#: Seconds after which an idle query repeats its commit, so that the committed offsets do not expire
#: (``offsets.retention.minutes``, a week).
REPEAT_S = 3_600.0


class Group(Protocol):
    """Commits the progress of a query; ``sdk_cluster.py`` implements this interface with the SDK."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Future[None]:
        """Begin to commit ``offsets`` without group membership; does not block."""

    def close(self) -> None:
        """Close the connections and drop pending commits."""


class GroupProgress:
    def __init__(self, group_id: str, group: Group, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._group_id = group_id
        self._group = group
        self._now_s = now_s
        self._committed: PartitionOffsets = {}
        self._committed_at_s = self._not_before_s = 0.0
        self._under_way: tuple[PartitionOffsets, Future[None]] | None = None

    def reached(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit ``offsets``: the query has processed all records before these offsets. ``reached`` never raises an
        error, and returns within ``COMMIT_TIMEOUT_S``."""
        self._look(0.0)
        now = self._now_s()
        if not offsets or self._under_way is not None or now < self._not_before_s:
            return  # the next call of ``reached``, or a later call, commits the present progress
        if offsets == self._committed and now - self._committed_at_s < REPEAT_S:
            return
        try:
            self._under_way = dict(offsets), self._group.commit(offsets)
        except HeadraceError as error:
            self._failed(error)
        else:
            self._look(COMMIT_TIMEOUT_S)
            if self._under_way is not None:
                logger.warning(
                    "cannot commit the query's progress to group %r for %.0f s; the query continues",
                    self._group_id,
                    COMMIT_TIMEOUT_S,
                )

    def close(self) -> None:
        """Close the group client; waits for a pending commit at most ``COMMIT_TIMEOUT_S``."""
        self._look(COMMIT_TIMEOUT_S)
        self._group.close()

    def _look(self, timeout_s: float) -> None:
        if self._under_way is None:
            return
        offsets, future = self._under_way
        concurrent.futures.wait([future], timeout_s)
        if not future.done():
            return
        self._under_way = None
        error = concurrent.futures.CancelledError("cancelled") if future.cancelled() else future.exception()
        if error is not None:
            self._failed(error)
        else:
            self._committed, self._committed_at_s = offsets, self._now_s()

    def _failed(self, error: BaseException) -> None:
        self._not_before_s = self._now_s() + PAUSE_S
        logger.warning(
            "cannot commit the query's progress to group %r: %s. The query continues, and its checkpoint has "
            "the progress. Until the next commit, tools show too high a lag of the group. Next "
            "attempt in %.0f s at the earliest",
            self._group_id,
            error,
            PAUSE_S,
        )
