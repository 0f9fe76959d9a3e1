"""The lag of groups: in records, in time, and as a status. Pure.

Lags are not in the log. High watermarks come from the leaders (``seen``), commits from requests and from the replay. A
new owner of a shard knows each lag in records after it has received the first high watermarks. A new owner of a shard
knows only a lower bound of the lag in time, until it has watched the partition for that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace_core.types import TopicPartition

from .codec import CommittedOffset
from .judgement import Commit, CommitWindow, judge, worst
from .messages import GroupLag, LagStatus, PartitionEnd, PartitionLag
from .watermarks import WatermarkHistory


class LagBook:
    """The lags of all groups of a shard. The watermarks of a partition are kept once, for all groups that read the
    partition."""

    __slots__ = ("_histories", "_readers", "_windows")

    def __init__(self) -> None:
        self._windows: dict[str, dict[TopicPartition, CommitWindow]] = {}
        self._histories: dict[TopicPartition, WatermarkHistory] = {}
        self._readers: dict[TopicPartition, int] = {}  # number of groups that have a window of commits of the partition

    def watched(self) -> tuple[TopicPartition, ...]:
        """Partitions with a committed offset, whose high watermarks are needed to compute the lag."""
        return tuple(self._readers)

    def seen(self, ends: Iterable[PartitionEnd], now_ms: int) -> None:
        """Add samples of the leaders' high watermarks; partitions that no group reads are ignored."""
        for end in ends:
            partition = TopicPartition(end.topic, end.partition)
            if partition in self._readers:
                history = self._histories.setdefault(partition, WatermarkHistory())
                history.sample(now_ms, end.high_watermark, end.log_start)

    def committed(self, group_id: str, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Record that a group has committed an offset, now or (in a replay) some time ago."""
        windows = self._windows.setdefault(group_id, {})
        window = windows.get(partition)
        if window is None:
            window = windows[partition] = CommitWindow()
            self._readers[partition] = self._readers.get(partition, 0) + 1
        history = self._histories.get(partition)
        end = history.high_watermark if history is not None else None
        lag = max(0, end - committed.offset) if end is not None else None
        window.note(Commit(committed.offset, committed.commit_timestamp_ms, lag))

    def forgotten(self, group_id: str, partition: TopicPartition) -> None:
        """Record that the group no longer has a committed offset of the partition."""
        windows = self._windows.get(group_id, {})
        if windows.pop(partition, None) is None:
            return
        if not windows:
            del self._windows[group_id]
        self._readers[partition] -= 1
        if not self._readers[partition]:
            del self._readers[partition]
            self._histories.pop(partition, None)

    def describe(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], now_ms: int) -> GroupLag:
        """The group's lag. ``offsets``: the group's committed offsets; a partition with a negative offset has no
        lag."""
        lags = tuple(
            self._partition(group_id, partition, committed, now_ms)
            for partition, committed in sorted(offsets.items())
            if committed.offset >= 0
        )
        return GroupLag(group_id, worst([one.status for one in lags]), sum(one.lag or 0 for one in lags), lags)

    def _partition(
        self, group_id: str, partition: TopicPartition, committed: CommittedOffset, now_ms: int
    ) -> PartitionLag:
        window = self._windows[group_id][partition]
        history = self._histories.get(partition)
        if history is None or history.high_watermark is None:
            return PartitionLag(*partition, committed, None, None, None, False, 0, LagStatus.OK, window.complete)
        lag = max(0, history.high_watermark - committed.offset)
        # A consumer cannot read deleted records, so the waiting time begins with the first record that the consumer can
        # read.
        waiting = history.waiting(max(committed.offset, history.log_start), now_ms)
        return PartitionLag(
            *partition,
            committed,
            history.high_watermark,
            lag,
            waiting.waited_ms,
            waiting.at_least,
            max(0, history.log_start - committed.offset),
            judge(window, lag=lag, waiting=waiting, now_ms=now_ms),
            window.complete,
        )
