"""Plan a turn of the directory writer: one write for each log, then one common flush, for all appends that wait (group
commit). The functions of the module are pure: they use no files, clock or event loop.

Requests queue up during a turn; the next turn takes all queued requests, up to numbers of bytes and of requests that
limit the wait under load. Appends to the same log within a turn become one write. An action on a log (truncate, roll,
delete, ...) keeps its order relative to the appends to that log. An action on the directory keeps its order relative to
all appends.

A *turn beside* is a small turn that runs at the same time as a large turn. A turn beside takes small appends to logs
that the large turn does not write.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from ..errors import StorageError
from ..types import FlushPolicy
from .appending import Append
from .config import LogConfig
from .partition_log import PartitionLog

#: Factor by which SyncGauge's estimate falls with each fast flush.
_GAUGE_DECAY = 0.9
#: Number of recent flushes whose median is reported, and the minimum number of flushes for a median.
RECENT_SYNCS, _SYNCS_TO_JUDGE = 64, 16
#: Maximum number of requests in one turn: the end of a turn answers all of them in the event loop.
TURN_ENTRIES_MAX = 2_000
#: Number of queued requests that are searched for small appends, which a second turn can write while a long turn runs.
LOOK_AHEAD = 256
Done = Callable[[Any], None]  #: Called in the event loop with the outcome of a request: a value or an exception.


@dataclass(slots=True)
class ActionEntry:
    """A queued action on a log; if ``log`` is None, on the directory and all its logs."""

    log: PartitionLog | None
    action: Callable[[], Any]
    done: Done


Entry = tuple[PartitionLog, Append] | ActionEntry  #: A queued request: an append to a log, or an action.
#: One step of the directory writer's turn: an action, or appends to one log in order, as one write.
Step = tuple[PartitionLog, list[Append]] | ActionEntry


@dataclass(slots=True, eq=False)
class Turn:
    """The steps of a turn in order, and what came of them."""

    steps: list[Step] = field(default_factory=list)
    size: int = 0  #: Bytes to append.
    appends: int = 0
    has_actions: bool = False
    #: Pairs of (callback, outcome), in the order of the requests.
    outcomes: list[tuple[Done, Any]] = field(default_factory=list)
    #: Logs whose log end or flushed end advanced.
    logs: list[PartitionLog] = field(default_factory=list)
    written: list[PartitionLog] = field(default_factory=list)  #: Logs with unflushed bytes, before the turn's flush.
    failure: StorageError | None = None
    sync_ms: float = 0.0
    was_flushed: bool = False  #: Whether the turn forced any file to the disk.


def plan_turn(queue: deque[Entry], *, bytes_max: int) -> Turn:
    """Take the requests of the next turn off the queue."""
    turn = Turn()
    open_writes: dict[PartitionLog, list[Append]] = {}
    size = 0
    for _ in range(min(len(queue), TURN_ENTRIES_MAX)):
        if size and size >= bytes_max:
            break
        entry = queue.popleft()
        if isinstance(entry, tuple):
            log, append = entry
            appends = open_writes.get(log)
            if appends is None:
                appends = open_writes[log] = []
                turn.steps.append((log, appends))
            appends.append(append)
            turn.appends += 1
            size += len(append.data)
        else:
            turn.has_actions = True
            if entry.log is None:
                open_writes.clear()
            else:
                open_writes.pop(entry.log, None)
            turn.steps.append(entry)
    turn.size = size
    return turn


def plan_turn_beside(queue: deque[Entry], *, busy: Collection[PartitionLog], bytes_max: int) -> Turn | None:
    """Take the requests of a turn beside off the queue: appends of at most ``bytes_max`` bytes to logs other than
    ``busy``, the logs that the large turn writes. An append never passes an earlier append to the same log, or an
    action; returns None if no append may go ahead. Only the first ``LOOK_AHEAD`` requests are considered, so a long
    queue costs no more time."""
    steps: dict[PartitionLog, list[Append]] = {}
    staying: list[Entry] = []
    blocked = set(busy)
    size = 0
    for _ in range(min(len(queue), LOOK_AHEAD)):
        entry = queue[0]
        if not isinstance(entry, tuple):
            break
        queue.popleft()
        log, append = entry
        if log in blocked or size + len(append.data) > bytes_max:
            blocked.add(log)
            staying.append(entry)
            continue
        steps.setdefault(log, []).append(append)
        size += len(append.data)
    queue.extendleft(reversed(staying))
    return Turn(list(steps.items()), size, sum(map(len, steps.values()))) if steps else None


def must_flush_now(config: LogConfig, unflushed_records: int) -> bool:
    """Whether a turn must force its written records to the disk."""
    return config.flush is FlushPolicy.COMMIT or unflushed_records >= config.flush_messages


def flush_deadline_ms(config: LogConfig, unflushed_since_ms: float | None) -> float | None:
    """Return the time (monotonic) by which a log with unflushed records must be flushed, by ``log.flush=interval`` or
    ``flush.ms``."""
    if unflushed_since_ms is None or config.flush_ms is None:
        return None
    return unflushed_since_ms + config.flush_ms


class SyncGauge:
    """Estimates the flush time of a small turn on this disk, to decide whether the event loop may wait for a flush.

    The estimate is a smoothed maximum: it rises at once and falls slowly, so that after one slow flush the next few
    turns run on the thread.
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
        """Median time of the last flushes, which a single slow flush hardly changes; None after fewer than 16
        flushes."""
        return None if len(self._recent) < _SYNCS_TO_JUDGE else statistics.median(self._recent)
