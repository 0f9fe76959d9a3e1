"""Expiry of committed offsets that no member reads from (KIP-211, KAFKA-8338). Pure.

An offset expires ``offsets.retention.minutes`` after its commit, or after its group became empty, whichever is later.
If the commit of an old client names an expiry time, the offset expires at that time. An offset never expires while a
member of its group subscribes to its topic, nor while members are joining by the classic protocol, nor while a
transaction may still change it. An empty group is removed together with its last offset.

The wall clock of a coordinator may jump. Ages of commits are wall-clock differences between two processes: the
coordinator that wrote the commit, and this coordinator. Because ages are differences between wall clocks, a jump of the
wall clock forward makes all offsets look old. Therefore a check that comes much too late by this coordinator's own
clock removes no offset, and only counts as the last check. No offset therefore expires while the clock is wrong for
less than ``offsets.retention.check.interval.ms``, or after a pause of the coordinator.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace_core.config import from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.types import TopicPartition

from ..state_machine import GroupStateMachine
from .book import OffsetBook
from .codec import CommittedOffset

#: Maximum number of offsets that one tick checks and removes, so that expiring the offsets of a large shard delays no
#: request.
LOOKS_PER_TICK = 20_000
REMOVALS_PER_TICK = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """The settings of offset retention: after what time offsets expire, and how often the coordinator checks for
    expired offsets."""

    retention_ms: int = from_key(SERVER, "offsets.retention.minutes", lambda minutes: minutes * 60_000)
    check_interval_ms: int = from_key(SERVER, "offsets.retention.check.interval.ms")


@dataclass(frozen=True, slots=True)
class Expired:
    """Result of a tick: offsets to remove, and empty groups that have no further offsets."""

    offsets: tuple[tuple[str, TopicPartition], ...] = ()
    groups: tuple[str, ...] = ()


class RetentionSweep:
    """Checks all groups at intervals, some groups in each tick. The sweep only decides which offsets to remove; the
    caller applies the decision."""

    __slots__ = ("_checked_ms", "_settings", "_todo")

    def __init__(self, settings: RetentionSettings) -> None:
        self._settings = settings
        self._checked_ms: int | None = None
        self._todo: deque[str] = deque()

    def start(self, now_ms: int) -> None:
        """Called when the shard is loaded; the first check for expired offsets runs one interval from now."""
        self._checked_ms = now_ms
        self._todo.clear()

    def check_clock(self, now_ms: int) -> None:
        """Compare the current time ``now_ms`` with the time of the last check. If ``now_ms`` is earlier, the clock was
        set back, and the next check would be late. The next check is then scheduled one interval from now."""
        if self._checked_ms is not None and now_ms < self._checked_ms:
            self.start(now_ms)

    def next_due_ms(self) -> int | None:
        if self._checked_ms is None:
            return None
        return self._checked_ms if self._todo else self._checked_ms + self._settings.check_interval_ms

    def tick(self, now_ms: int, book: OffsetBook, groups: GroupStateMachine) -> Expired:
        """Take a step of the current check, or start the next check; returns the offsets and groups to remove now."""
        interval_ms = self._settings.check_interval_ms
        self.check_clock(now_ms)
        if self._checked_ms is None:
            return Expired()
        elapsed_ms = now_ms - self._checked_ms
        if elapsed_ms > 2 * interval_ms:
            self.start(now_ms)
            return Expired()
        if elapsed_ms >= interval_ms:
            self._checked_ms = now_ms
            self._todo = deque(dict.fromkeys((*book.group_ids(), *groups.group_ids())))
        return self._look(now_ms, book, groups) if self._todo else Expired()

    def _look(self, now_ms: int, book: OffsetBook, groups: GroupStateMachine) -> Expired:
        expired: list[tuple[str, TopicPartition]] = []
        gone: list[str] = []
        looks = 0
        while self._todo and looks < LOOKS_PER_TICK and len(expired) + len(gone) < REMOVALS_PER_TICK:
            group_id = self._todo.popleft()
            looks += 1
            if groups.is_joining(group_id):
                continue
            is_empty = groups.is_empty(group_id)
            empty_since_ms = groups.empty_since_ms(group_id)
            offsets = book.of(group_id)
            pending = book.pending.partitions(group_id)
            looks += len(offsets) + len(pending)
            old = [
                partition
                for partition, committed in offsets.items()
                if self._is_expired(committed, empty_since_ms, now_ms) and partition not in pending
            ]
            if not is_empty:
                subscribed = groups.subscribed(group_id, {partition.topic for partition in old})
                old = [partition for partition in old if partition.topic not in subscribed]
            room = REMOVALS_PER_TICK - len(expired) - len(gone)
            expired.extend((group_id, partition) for partition in old[:room])
            if len(old) > room:
                self._todo.appendleft(group_id)
            elif is_empty and len(old) == len(offsets) and groups.exists(group_id) and not pending:
                gone.append(group_id)
        return Expired(tuple(expired), tuple(gone))

    def _is_expired(self, committed: CommittedOffset, empty_since_ms: int | None, now_ms: int) -> bool:
        if committed.expire_timestamp_ms is not None:
            return now_ms >= committed.expire_timestamp_ms
        since_ms = max(committed.commit_timestamp_ms, empty_since_ms or 0)
        return now_ms - since_ms >= self._settings.retention_ms
