"""What those who move a RaftNode may ask it; nothing in here changes anything."""

from __future__ import annotations

from collections.abc import Collection

from .election_timer import ElectionTimer
from .log import RaftLog
from .progress import Progress
from .reads import Reads
from .types import Message, RaftSettings, ReadState, ReplicaKey, Role


class NodeView:
    """The looking half of RaftNode, as far as it is about followers and time."""

    key: ReplicaKey
    settings: RaftSettings
    may_lead: bool
    role: Role
    log: RaftLog
    committed: int
    _progress: dict[ReplicaKey, Progress]
    _election_timer: ElectionTimer
    _reads: Reads
    _ticks: int
    _since_heartbeat: int
    _since_asked: int
    _transfer_to: ReplicaKey | None
    _messages: list[Message]
    _replies: list[Message]
    _served: list[ReadState]

    @property
    def _may_stand(self) -> bool:
        """It votes, or did before a change that may not be committed: then the others may need its log, which could
        be the only one that is long enough, although its own vote does not count (4.2.2)."""
        return self.may_lead and any(self.key in voters for voters in self.log.voters_since(self.committed))

    @property
    def _is_alone(self) -> bool:
        """The only voter, which waits for nobody."""
        return self.log.voters.keys == (self.key,) and self.role is Role.FOLLOWER

    def progress_of(self, key: ReplicaKey) -> Progress | None:
        """A leader's view of a follower."""
        return self._progress.get(key)

    @property
    def followers(self) -> Collection[ReplicaKey]:
        """Whom a leader copies the log to."""
        return self._progress.keys()

    @property
    def is_at_rest(self) -> bool:
        """It leads, everybody has all there is and knows that it is committed, and nobody waits for anything: ``ready``
        would be empty."""
        if self.role is not Role.LEADER or self._messages or self._replies or self._served or self._reads.are_asked:
            return False
        end = self.log.end_offset
        return self.committed == end and all(progress.is_done(end) for progress in self._progress.values())

    @property
    def ticks(self) -> int:
        """Since the start of this process."""
        return self._ticks

    @property
    def ticks_until_due(self) -> int:
        """Nothing comes of the ticks before this one, counted from now, unless a message or a request arrives first. At
        least 1, and at most one more than there are from heartbeat to heartbeat: who is not looked at for longer would
        not notice that its process stood still."""
        most = self.settings.heartbeat_ticks + 1
        if self._transfer_to is not None:
            left = 1
        elif self.role is Role.LEADER:
            left = min(
                self.settings.heartbeat_ticks - self._since_heartbeat,
                self.settings.election_ticks - self._since_asked,
            )
        elif self._is_alone:
            left = 1
        else:
            left = self._election_timer.ticks_left if self._may_stand else most
        return max(1, min(left, most))
