"""Plan a turn of the directory writer. Pure: no files, no clock, no event loop.

Work queues up during a turn; the next turn takes all of it, up to a bound on bytes that limits the wait in a flood.
Appends to the same log within a turn become one write. An action on a log (truncate, roll, delete, ...) keeps its place
among the appends to that log, and an action on the directory among all of them.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..types import FlushPolicy
from .appending import Append
from .config import LogConfig
from .partition_log import PartitionLog

#: Flushes by which a disk is judged, and the least number for a judgement.
_GAUGE_DECAY = 0.9
RECENT_SYNCS, _SYNCS_TO_JUDGE = 64, 16
Done = Callable[[Any], None]  #: Called in the event loop with the outcome: a value, or the exception.


@dataclass(slots=True)
class ActionEntry:
    """A queued action; ``log`` None: on the directory and all its logs."""

    log: PartitionLog | None
    action: Callable[[], Any]
    done: Done


Entry = tuple[PartitionLog, Append] | ActionEntry  #: An append to a log, or an action.
#: Appends to one log, in order, as one write; or an action.
Step = tuple[PartitionLog, list[Append]] | ActionEntry


class Turn(NamedTuple):
    """Steps in order, and the bytes in them."""

    steps: list[Step]
    size: int
    is_heavy: bool  #: Too long for the event loop: many bytes, an action, or a segment that will be sealed.


def plan_turn(queue: deque[Entry], *, bytes_max: int, inline_bytes_max: int) -> Turn:
    """Take the next turn's work off the queue."""
    steps: list[Step] = []
    open_writes: dict[PartitionLog, list[Append]] = {}
    size = 0
    is_heavy = False
    while queue and (size == 0 or size < bytes_max):
        entry = queue.popleft()
        if isinstance(entry, tuple):
            log, append = entry
            appends = open_writes.get(log)
            if appends is None:
                appends = open_writes[log] = []
                steps.append((log, appends))
            appends.append(append)
            size += len(append.data)
        else:
            is_heavy = True
            if entry.log is None:
                open_writes.clear()
            else:
                open_writes.pop(entry.log, None)
            steps.append(entry)
    if size > inline_bytes_max:
        is_heavy = True
    return Turn(steps, size, is_heavy)


def must_flush_now(config: LogConfig, unflushed_records: int) -> bool:
    """Whether the turn must force the records that it wrote."""
    return config.flush is FlushPolicy.COMMIT or unflushed_records >= config.flush_messages


def flush_deadline_ms(config: LogConfig, unflushed_since_ms: float | None) -> float | None:
    """When (monotonic) a log with unforced records must be flushed, by ``log.flush=interval`` or ``flush.ms``."""
    if unflushed_since_ms is None or config.flush_ms is None:
        return None
    return unflushed_since_ms + config.flush_ms


class SyncGauge:
    """Flush time of a small turn on this disk: decides whether the event loop may wait for it.

    A smoothed maximum: rises at once, falls slowly, so that one slow flush sends the next few turns to the thread.
    """

    __slots__ = ("_recent", "value_ms")

    def __init__(self) -> None:
        self.value_ms = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_SYNCS)

    def add(self, elapsed_ms: float) -> None:
        self.value_ms = max(elapsed_ms, self.value_ms * _GAUGE_DECAY + elapsed_ms * (1 - _GAUGE_DECAY))
        self._recent.append(elapsed_ms)

    @property
    def median_ms(self) -> float | None:
        """Median of the last flushes, which ignores single slow ones; None for fewer than 16."""
        return None if len(self._recent) < _SYNCS_TO_JUDGE else statistics.median(self._recent)
