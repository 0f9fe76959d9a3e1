"""What a leader's lane knows of each partition that is followed on it, and what it needs of the broker (pure).

``leading.py`` has the lane, and the states that a ``Follow`` goes through.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace_core.types import TopicPartition

from ..partition.leader import PartitionLeader
from ..partition.messages import Join

if TYPE_CHECKING:
    from .leading import LeaderLane

#: A window, of a stream or of a partition, is at most this.
WINDOW_BYTES_MAX = 64 * 1024 * 1024


class State(enum.IntEnum):
    """See ``leading.py``."""

    CALM = 0
    READY = 1
    FULL = 2
    READING = 3
    PACED = 4
    ENDED = 5


class Slice(Protocol):
    """What a read finds: whole batches, and where to go on."""

    @property
    def records(self) -> bytes: ...

    @property
    def next_offset(self) -> int: ...


class LedPartition(Protocol):
    """A partition that this broker leads, as a lane needs it; its log may be read up to ``leader.log_end``."""

    @property
    def leader(self) -> PartitionLeader: ...

    @property
    def latest_epoch(self) -> int:
        """The epoch of the log's last record, -1 when it has none."""

    def known_epoch_end(self, epoch: int) -> tuple[int, int]:
        """``PartitionLog.epoch_end_offset``: (largest known epoch not above ``epoch``, its end), or (-1, -1)."""

    def bytes_from(self, offset: int) -> int:
        """About how many bytes of records lie at ``offset`` and behind it; costs no I/O."""

    def read_appended(self, offset: int, max_bytes: int) -> Slice | None:
        """Batches from ``offset`` up to the log's end, at least one; None: not in the page cache."""


class ColdRead(NamedTuple):
    """Asks the shell to read on a thread what is not in the page cache, and to call ``was_read``."""

    follow: Follow
    source: LedPartition
    offset: int
    max_bytes: int


#: (topic id, partition, follower's broker id).
FollowKey = tuple[bytes, int, int]


class Followers:
    """Who follows what, over all streams: one handle for each replica. A later join takes an earlier one's place, on
    whatever lane that was, so that a late farewell on the old lane says nothing of the new one."""

    __slots__ = ("_follows",)

    def __init__(self) -> None:
        self._follows: dict[FollowKey, Follow] = {}

    def __len__(self) -> int:
        return len(self._follows)

    def find(self, key: FollowKey) -> Follow | None:
        return self._follows.get(key)

    def put(self, follow: Follow) -> None:
        self._follows[follow.key] = follow

    def remove(self, follow: Follow) -> bool:
        """True when it was the one that counts."""
        if self._follows.get(follow.key) is follow:
            del self._follows[follow.key]
            return True
        return False


class LaneHost(Protocol):
    """What a lane asks of the broker that it belongs to. Calls must not block."""

    def find(self, topic_id: bytes, partition: int) -> LedPartition:
        """Raises what ``PartitionTable.leader`` raises, UnknownTopicIdError, InconsistentTopicIdError."""

    def low_watermark_moved(self, leader: PartitionLeader) -> None:
        """A follower's log starts elsewhere now, or it is gone."""

    def is_throttled(self, leader: PartitionLeader, broker_id: int) -> bool:
        """Does the leader's throttle hold for this replica, which is behind (KIP-73)?"""


class Follow:
    """One partition on one stream. A watcher of the partition's log (``LogWatcher``)."""

    __slots__ = (
        "handle",
        "holds_read",
        "in_flight",
        "in_flight_bytes",
        "key",
        "lane",
        "leader",
        "log_start",
        "position",
        "source",
        "stash",
        "state",
        "told_high_watermark",
        "told_log_start",
        "window_bytes",
    )

    def __init__(self, lane: LeaderLane, join: Join, source: LedPartition) -> None:
        self.lane = lane
        self.handle = join.handle
        self.key = (join.topic_id, join.partition, lane.broker_id)
        self.source = source
        self.leader = source.leader
        #: As it acknowledged last.
        self.log_start = join.log_start
        #: The next offset to push.
        self.position = join.log_end
        #: (end offset, bytes) of what was pushed and not acknowledged.
        self.in_flight: deque[tuple[int, int]] = deque()
        self.in_flight_bytes = 0
        self.window_bytes = min(join.window_bytes, WINDOW_BYTES_MAX)
        self.state = State.CALM
        #: Was read, and not sent yet.
        self.stash: Slice | None = None
        #: A read from the disk is under way for it, or is its stash.
        self.holds_read = False
        self.told_high_watermark = -1
        self.told_log_start = -1

    @property
    def partition(self) -> TopicPartition:
        return self.leader.partition

    # -- LogWatcher --------------------------------------------------------------------------------------------------

    def log_grew(self, partition: TopicPartition) -> None:
        if self.state is State.CALM:
            self.lane.make_ready(self)

    def high_watermark_moved(self, partition: TopicPartition) -> None:
        self.lane.has_news(self)

    def leadership_ended(self, partition: TopicPartition) -> None:
        self.lane.resigned(self)
