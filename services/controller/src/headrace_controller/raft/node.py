"""One voter of the metadata quorum, as a pure state machine: inputs are ``step`` and ``tick``, the output is ``ready``.

Built so far: a quorum of one. What a sole voter needs of Raft is all here, and nothing of it is a shortcut:

    role        it means                                 it ends when
    FOLLOWER    just started, or resigned                tick: nobody else can lead, so it stands for election
    CANDIDATE   term raised, voted for itself            its vote is durable: one of one votes is a majority
    LEADER      takes proposals                          resign

* Term and vote are durable before anything is done in the term (Raft, 5.1 and 5.2): ``ready`` gives them first, and
  only HardStateSaved makes a candidate a leader. Without it, a crash could bring a term back to life.
* A leader begins its term with an entry of its own (5.4.2, figure 8): an entry of an earlier term counts as committed
  only once one of the current term is.
* The commit offset is the end of what is *flushed*, not of what is written: with a single voter an acknowledged write
  that is only in the page cache would be a lost one (etcd issue 14370).

The log itself is elsewhere. Entries are opaque; an entry takes up ``count`` offsets, as a record batch does. ``ready``
is a to-do list: save ``hard_state``, then append and flush ``entries``, then hand out what lies below ``committed``;
report back with ``step``. More voters will add messages between them to ``step`` and to Ready, not another shape.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from headrace_core.errors import InvalidConfigError, NotControllerError, UnsupportedVersionError

NOBODY = -1


class Role(enum.Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(enum.Enum):
    DATA = "data"
    LEADER_CHANGE = "leader change"


@dataclass(frozen=True, slots=True)
class HardState:
    """What a voter must never forget."""

    term: int = 0
    vote: int = NOBODY


@dataclass(frozen=True, slots=True)
class Entry:
    """Offsets [base_offset, next_offset) of the log, proposed in ``term``. A LEADER_CHANGE has no data."""

    kind: EntryKind
    term: int
    base_offset: int
    count: int
    data: bytes = b""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True)
class HardStateSaved:
    """The storage says: this term and vote are durable."""

    hard_state: HardState


@dataclass(frozen=True, slots=True)
class EntriesFlushed:
    """The storage says: the log is durable below this offset."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What is to be done, in this order. Empty fields ask for nothing."""

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    committed: int
    role: Role
    term: int
    leader: int


class RaftNode:
    """A voter. Raises UnsupportedVersionError for a quorum of several voters, which is not built yet."""

    def __init__(
        self, node_id: int, voters: Sequence[int], *, hard_state: HardState, log_end_offset: int, last_term: int
    ) -> None:
        """``hard_state`` and the log's end as the storage found them; ``last_term`` is that of the log's last entry."""
        if len(voters) > 1:
            raise UnsupportedVersionError(
                f"controller.quorum.voters names {len(voters)} voters: a quorum of several is not built yet; name one"
            )
        if list(voters) != [node_id]:
            raise InvalidConfigError(f"controller.quorum.voters does not name this controller, node.id={node_id}")
        self.node_id = node_id
        self.role = Role.FOLLOWER
        # A log may be ahead of a lost or older term file: a term is never used twice.
        self._hard_state = hard_state if hard_state.term >= last_term else HardState(last_term)
        self._unsaved: HardState | None = None
        self._log_end_offset = log_end_offset
        self._committed = 0
        self._term_start = log_end_offset
        self._entries: list[Entry] = []

    @property
    def term(self) -> int:
        return self._hard_state.term

    @property
    def leader(self) -> int:
        return self.node_id if self.role is Role.LEADER else NOBODY

    @property
    def log_end_offset(self) -> int:
        """One past the last offset proposed: where the next entry begins."""
        return self._log_end_offset

    @property
    def committed(self) -> int:
        """Everything below is committed."""
        return self._committed

    def tick(self) -> None:
        """Time has passed. A sole voter waits for nobody before it stands for election."""
        if self.role is Role.FOLLOWER:
            self._become_candidate()

    def step(self, event: HardStateSaved | EntriesFlushed) -> None:
        """The storage reports what is durable."""
        if isinstance(event, HardStateSaved):
            if self.role is Role.CANDIDATE and event.hard_state == self._hard_state:
                self._become_leader()
        else:
            self._advance_commit(event.next_offset)

    def propose(self, data: bytes, count: int) -> Entry:
        """Append ``data``, which takes up ``count`` offsets; NotControllerError unless this voter leads."""
        if self.role is not Role.LEADER:
            raise NotControllerError(f"controller {self.node_id} is not the active controller")
        return self._append(EntryKind.DATA, data, count)

    def resign(self) -> None:
        """Stop leading. What was proposed and not committed may or may not survive."""
        self.role = Role.FOLLOWER
        self._entries.clear()

    def ready(self) -> Ready:
        """What has become due since the last call. Entries wait until the term they belong to is durable."""
        unsaved, self._unsaved = self._unsaved, None
        entries, self._entries = tuple(self._entries), []
        assert not (unsaved and entries), "entries of a term that is not durable"
        return Ready(unsaved, entries, self._committed, self.role, self.term, self.leader)

    def _become_candidate(self) -> None:
        self.role = Role.CANDIDATE
        self._hard_state = self._unsaved = HardState(self.term + 1, self.node_id)

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self._term_start = self._log_end_offset
        self._append(EntryKind.LEADER_CHANGE, b"", 1)

    def _append(self, kind: EntryKind, data: bytes, count: int) -> Entry:
        assert count > 0, "an entry takes up at least one offset"
        entry = Entry(kind, self.term, self._log_end_offset, count, data)
        self._log_end_offset = entry.next_offset
        self._entries.append(entry)
        return entry

    def _advance_commit(self, flushed: int) -> None:
        assert flushed <= self._log_end_offset, f"flushed {flushed} of a log that ends at {self._log_end_offset}"
        if self.role is Role.LEADER and flushed > self._term_start:  # an entry of this term is durable
            self._committed = max(self._committed, flushed)
