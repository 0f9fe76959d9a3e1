"""What a voter saves, sends and is told: values, and nothing that changes.

Offsets are those of the metadata log, in records; all ends are exclusive. An *entry* is one batch: it takes up
``count`` offsets and is appended, sent and cut as a whole. Two logs that have the same term below the same offset are
equal up to there (log matching; Raft, 5.3), so a place in a log is named by an offset and the term of what ends there.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: A random number from 0 to below its argument.
Draw = Callable[[int], int]
#: The id of a leader that is not known.
NOBODY = -1
#: A directory whose id nobody knows: that of a sole voter which was configured and not formatted as one (KIP-853).
NO_DIRECTORY = bytes(16)


class ReplicaKey(NamedTuple):
    """A node *on its disk*: who lost the disk is somebody else, and has no vote to repeat (KIP-853)."""

    node_id: int
    directory_id: bytes = NO_DIRECTORY

    def __str__(self) -> str:
        """As `headrace quorum status` writes it, but for the directory's last letters."""
        if self.directory_id == NO_DIRECTORY:
            return str(self.node_id)
        return f"{self.node_id}@{base64.urlsafe_b64encode(self.directory_id)[:6].decode()}"


class Role(enum.Enum):
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(enum.Enum):
    DATA = "data"
    LEADER_CHANGE = "leader change"
    VOTERS = "voters"


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Who votes: at most one directory for each node id. Where they are reached is written beside it, and no part of
    who is who: two sets of the same voters are equal."""

    keys: tuple[ReplicaKey, ...]
    #: (node id, "host:port" of its internal listener) of those whose address is known, by node id.
    addresses: tuple[tuple[int, str], ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, keys: Iterable[ReplicaKey], addresses: Mapping[int, str] | None = None) -> VoterSet:
        """Sorted. ``addresses``: node id -> "host:port"; those of other nodes are left out. ValueError when a node is
        named with two directories."""
        found = tuple(sorted(set(keys)))
        node_ids = {key.node_id for key in found}
        if len(node_ids) != len(found):
            raise ValueError(f"a node is named twice: {', '.join(map(str, found))}")
        known = sorted((node_id, each) for node_id, each in (addresses or {}).items() if each and node_id in node_ids)
        return cls(found, tuple(known))

    def __contains__(self, key: ReplicaKey) -> bool:
        return key in self.keys

    def __iter__(self) -> Iterator[ReplicaKey]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.keys)) + "}"

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self.keys) // 2 + 1

    def find(self, node_id: int) -> ReplicaKey | None:
        return next((key for key in self.keys if key.node_id == node_id), None)

    def address(self, node_id: int) -> str:
        """Where that voter is reached, "host:port"; "" when nobody said so."""
        return dict(self.addresses).get(node_id, "")

    def plus(self, key: ReplicaKey, address: str = "") -> VoterSet:
        return VoterSet.of((*self.keys, key), {**dict(self.addresses), key.node_id: address})

    def minus(self, key: ReplicaKey) -> VoterSet:
        return VoterSet.of((each for each in self.keys if each != key), dict(self.addresses))


#: The bytes of an entry that raft itself proposes: (kind, term, base offset, the voters: those of the new term or, of a
#: VOTERS entry, the new ones). Called once for each, by the leader; all logs keep those bytes.
EncodeControl = Callable[[EntryKind, int, int, VoterSet], bytes]


@dataclass(frozen=True, slots=True)
class HardState:
    """What a voter must never forget."""

    term: int = 0
    vote: ReplicaKey | None = None


class Place(NamedTuple):
    """Where something ends in a log: below ``offset``, with an entry of ``term``. (0, 0) is before everything."""

    offset: int
    term: int

    def __str__(self) -> str:
        return f"{self.offset}/{self.term}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Offsets [base_offset, next_offset) of the log, proposed in ``term``. ``data``: its bytes in the log, made once,
    by the leader that proposed it, and the same in every log. ``voters``: of a VOTERS entry, and only there; it and a
    LEADER_CHANGE are no matter of the state machine's."""

    kind: EntryKind
    term: int
    base_offset: int
    count: int
    data: bytes = b""
    voters: VoterSet | None = None

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def size(self) -> int:
        """Bytes, for the limits on what is sent at once."""
        return len(self.data) + 100


class SnapshotId(NamedTuple):
    """A snapshot holds the state that all entries below ``place.offset`` make, and the voters of then."""

    place: Place
    voters: VoterSet

    def __str__(self) -> str:
        return f"snapshot {self.place} {self.voters}"


# ---------------------------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """RequestVote (5.2), or the question before it (thesis, 9.6; KIP-996): would you vote for me in ``term``?"""

    term: int
    end: Place
    is_pre_vote: bool = False
    #: The leader itself asked for this election (thesis, 3.10): a voter that hears from it need not doubt it.
    is_transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """``asked_term``: that of the request. ``term``: the voter's own."""

    term: int
    asked_term: int
    is_granted: bool
    is_pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """AppendEntries (5.3): ``entries`` come right behind ``previous``."""

    term: int
    previous: Place
    entries: tuple[Entry, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """``is_rejected``: the follower's log has not ``previous``; its own lies in ``match`` (a hint). Else: equal to the
    leader's, and durable, below ``match.offset``."""

    term: int
    previous_offset: int
    match: Place
    is_rejected: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """The leader lives. ``round``: counts the leader's questions whether it still is the leader (6.4 of the thesis)."""

    term: int
    committed: int
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    term: int
    round: int


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """InstallSnapshot (7): a chunk of a snapshot, from byte ``position`` on."""

    term: int
    snapshot: SnapshotId
    position: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class SnapshotResponse:
    """Durable below byte ``position`` of the snapshot, which is where to go on; 0 after a damaged one.
    ``is_installed``: the follower has it all, and its log begins there."""

    term: int
    place: Place
    position: int
    is_installed: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Stand for election at once (thesis, 3.10)."""

    term: int


Body = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | HeartbeatRequest
    | HeartbeatResponse
    | SnapshotRequest
    | SnapshotResponse
    | TimeoutNow
)


class Message(NamedTuple):
    sender: ReplicaKey
    to: ReplicaKey
    body: Body


# ---------------------------------------------------------------------------------------------- what the core asks for


class SnapshotChunk(NamedTuple):
    """Bytes of a snapshot that is being received: to be written at ``position``, durably. ``is_last``: then it is
    there as a whole, and its checksums tell whether it is sound (see ``RaftNode.persisted``)."""

    snapshot: SnapshotId
    position: int
    data: bytes
    is_last: bool


class ReadState(NamedTuple):
    """A read that was asked for may be served from a state machine that has applied everything below ``offset``."""

    token: object
    offset: int


class Ready(NamedTuple):
    """What is to be done, in this order. Empty fields ask for nothing.

    1.  ``messages`` are sent; they promise nothing about this node's disk.
    2.  ``hard_state`` is saved, ``chunk`` written, ``install`` put in place of the whole log (it was received whole),
        the log cut to ``truncate_to``, ``entries`` appended; all of it forced to the disk.
    3.  ``replies`` are sent: each speaks of what step 2 made durable.
    4.  ``persisted(ready)`` tells the core that it was done.
    5.  What lies below ``committed`` is handed to the state machine, ``reads`` are answered.
    """

    role: Role
    term: int
    leader: int
    committed: int
    hard_state: HardState | None = None
    chunk: SnapshotChunk | None = None
    install: SnapshotId | None = None
    truncate_to: int | None = None
    entries: tuple[Entry, ...] = ()
    messages: tuple[Message, ...] = ()
    replies: tuple[Message, ...] = ()
    reads: tuple[ReadState, ...] = ()
    #: Reads that cannot be answered: the leader is none any more.
    reads_failed: tuple[object, ...] = ()

    @property
    def must_persist(self) -> bool:
        """Is there anything for the disk?"""
        return bool(self.hard_state or self.entries or self.chunk or self.install or self.truncate_to is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Times in ticks, sizes in bytes. An election begins after ``election_ticks`` to twice that without a leader."""

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    #: Entries of one message, and of all that are under way to one follower.
    message_bytes_max: int = 1 << 20
    in_flight_bytes_max: int = 8 << 20
    in_flight_messages_max: int = 64
    snapshot_chunk_bytes: int = 1 << 20
    #: A learner that is behind by more offsets than this cannot become a voter.
    learner_lag_max: int = 1_000

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError(f"heartbeats must come more often than elections: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the storage holds at a start. ``terms``: (term, offset where it begins) of each term in the log from
    ``start`` on, ascending; ``voters``: (offset after the entry, voters) of each VOTERS entry in it. ``start``: what
    the log begins behind, with the voters of then: a snapshot, or (0, 0) with the configured voters. ``committed``:
    what is known to be, since a later snapshot holds it."""

    start: SnapshotId
    end_offset: int
    hard_state: HardState = field(default_factory=HardState)
    terms: tuple[tuple[int, int], ...] = ()
    voters: tuple[tuple[int, VoterSet], ...] = ()
    committed: int = 0
