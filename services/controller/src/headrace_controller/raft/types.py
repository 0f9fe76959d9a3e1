"""Raft's messages, state and output, as plain values.

Offsets count the records of the metadata log; all end offsets are exclusive. An *entry* is one batch: it takes
``count`` offsets and is appended, sent and truncated as a whole. If two logs each have an entry of the same term that
ends at the same offset, the logs are equal up to that offset. Raft calls this property log matching (5.3). A place in a
log is given by an offset and by the term of the entry that ends at the offset.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Draw = Callable[[int], int]  #: Returns a random integer from 0 (inclusive) to the function's argument (exclusive).
NO_LEADER = -1  #: The leader id if no leader is known.
#: The directory id of a sole voter whose directory is unknown, because the voter was configured and not formatted
#: (KIP-853).
NO_DIRECTORY = bytes(16)


class ReplicaKey(NamedTuple):
    """A node id together with the id of its directory. A node that has lost its disk counts as a different voter, so it
    cannot vote twice (KIP-853)."""

    node_id: int
    directory_id: bytes = NO_DIRECTORY

    def __str__(self) -> str:
        """A replica's key as `headrace quorum status` shows it, with fewer characters of the directory id."""
        if self.directory_id == NO_DIRECTORY:
            return str(self.node_id)
        return f"{self.node_id}@{base64.urlsafe_b64encode(self.directory_id)[:6].decode()}"

    @property
    def full_name(self) -> str:
        """The replica's key as ``headrace quorum remove`` takes it."""
        return f"{self.node_id}@{base64.urlsafe_b64encode(self.directory_id)[:22].decode()}"


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
    """A set of voters, with at most one directory for each node id. Addresses are not part of a voter's identity: two
    sets with the same voters are equal."""

    keys: tuple[ReplicaKey, ...]
    #: Known addresses in the order of node ids: (node id, "host:port" of the node's internal listener).
    addresses: tuple[tuple[int, str], ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, keys: Iterable[ReplicaKey], addresses: Mapping[int, str] | None = None) -> VoterSet:
        """The voter set of ``keys``, sorted. ``addresses``: node id -> "host:port"; addresses of other nodes are
        ignored. Raises ValueError if a node has two directories."""
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
        """Number of votes needed to win an election."""
        return len(self.keys) // 2 + 1

    def find(self, node_id: int) -> ReplicaKey | None:
        return next((key for key in self.keys if key.node_id == node_id), None)

    def address(self, node_id: int) -> str:
        """The "host:port" of the voter ``node_id``; "" if unknown."""
        return dict(self.addresses).get(node_id, "")

    def plus(self, key: ReplicaKey, address: str = "") -> VoterSet:
        return VoterSet.of((*self.keys, key), {**dict(self.addresses), key.node_id: address})

    def minus(self, key: ReplicaKey) -> VoterSet:
        return VoterSet.of((each for each in self.keys if each != key), dict(self.addresses))


#: Returns the bytes of an entry that Raft itself proposes. The arguments of EncodeControl are kind, term, base offset,
#: and voters (of a VOTERS entry, the new voters). The leader calls EncodeControl once for each of its own entries, and
#: the logs of all voters keep the returned bytes.
EncodeControl = Callable[[EntryKind, int, int, VoterSet], bytes]


@dataclass(frozen=True, slots=True)
class HardState:
    """Term and vote, which a voter must never lose."""

    term: int = 0
    vote: ReplicaKey | None = None


class Place(NamedTuple):
    """A place in a log, between two entries: ``offset`` is the place's offset, ``term`` the term of the entry before
    it. The place (0, 0) is before all entries."""

    offset: int
    term: int

    def __str__(self) -> str:
        return f"{self.offset}/{self.term}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A log entry with the offsets [base_offset, next_offset), proposed in ``term``. ``data``: the entry's bytes, which
    the proposing leader encodes once, and which are equal in every log. ``voters`` is set only in a VOTERS entry. The
    state machine ignores VOTERS and LEADER_CHANGE entries."""

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
        """Size of the entry in bytes, for the limits of messages."""
        return len(self.data) + 100


class SnapshotId(NamedTuple):
    """A snapshot, which contains the state after all entries below ``place.offset``, and the voters at that place."""

    place: Place
    voters: VoterSet

    def __str__(self) -> str:
        return f"snapshot {self.place} {self.voters}"


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """RequestVote (5.2), or the pre-vote (thesis, 9.6; KIP-996), which asks: would you vote for me in ``term``?"""

    term: int
    end: Place
    is_pre_vote: bool = False
    #: Whether the leader requested the election by a transfer (thesis, 3.10), so that voters may vote although the
    #: leader is alive.
    is_transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """``asked_term``: the term for which the candidate requested the vote. ``term``: the current term of the voter."""

    term: int
    asked_term: int
    is_granted: bool
    is_pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """The AppendEntries request of Raft (5.3): ``entries`` follow ``previous`` directly."""

    term: int
    previous: Place
    entries: tuple[Entry, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """``is_rejected``: the follower's log lacks ``previous``; ``match`` then has the last offset at which the two logs
    may agree. If the append is not rejected, the follower's log is durable, and equal to the leader's log, below
    ``match.offset``."""

    term: int
    previous_offset: int
    match: Place
    is_rejected: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A heartbeat: the leader is alive. ``round``: number of the leader's heartbeat round (6.4 of the thesis).
    ``acknowledged``: the receiver has acknowledged all entries below this offset in this term. ``durable``: the leader
    has all entries below this offset on its disk."""

    term: int
    committed: int
    round: int
    acknowledged: int = 0
    durable: int = 0


class Room(NamedTuple):
    """The space on a replica's disk: free bytes beyond the reserve, 0 during a shortage; and the size of the disk."""

    usable_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """``room``: the space on the follower's disk; None if it is unknown (an earlier release does not report it)."""

    term: int
    round: int
    room: Room | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The InstallSnapshot request of Raft (7): a chunk of a snapshot, from byte ``position`` on."""

    term: int
    snapshot: SnapshotId
    position: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class SnapshotResponse:
    """``position``: the follower has every snapshot byte below ``position`` on disk and needs the chunk that begins
    there. ``position`` is 0 after a damaged snapshot. ``is_installed``: the follower has the whole snapshot, and its
    log begins at the snapshot's end."""

    term: int
    place: Place
    position: int
    is_installed: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """A request to stand for election at once (thesis, 3.10)."""

    term: int


class Remembered(NamedTuple):
    """What a replica's process remembers of another replica's disk (memory.py). The disk has ``term``, and in this term
    ``vote`` (None: unknown) and all entries below ``end``. In every term it has the entries below ``kept``."""

    term: int = 0
    vote: ReplicaKey | None = None
    end: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """What do you remember of my disk? ``term``: the sender's term."""

    term: int


@dataclass(frozen=True, slots=True)
class RecallResponse:
    term: int
    remembered: Remembered


@dataclass(frozen=True, slots=True)
class OutdatedNotice:
    """The sender's directory is an older copy: the sender never takes part again."""

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
    | RecallRequest
    | RecallResponse
    | OutdatedNotice
)


class Message(NamedTuple):
    sender: ReplicaKey
    to: ReplicaKey
    body: Body


class SnapshotChunk(NamedTuple):
    """Bytes of a snapshot that is being received; the driver writes them durably at ``position``. ``is_last``: the
    snapshot is complete after this chunk, and the snapshot's checksums show whether it is sound (see
    ``RaftNode.persisted``)."""

    snapshot: SnapshotId
    position: int
    data: bytes
    is_last: bool


class ReadState(NamedTuple):
    """A read that may be served from a state machine that has applied all entries below ``offset``."""

    token: object
    offset: int


class Ready(NamedTuple):
    """Work for the driver, to be done in the order of the numbers. An empty field of Ready means that there is no work
    of this kind to do.

    1.  Send ``messages``, which do not depend on this node's disk.
    2.  Save ``hard_state``, write ``chunk``, and replace the whole log by the received snapshot ``install``. Truncate
        the log to ``truncate_to``, and append ``entries``. Then flush these writes to the disk.
    3.  Send ``replies``, which depend on the changes that step 2 made durable.
    4.  Call ``persisted(ready)``, which confirms the writes to the RaftNode.
    5.  Apply the entries below ``committed`` to the state machine, and answer ``reads``.
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
    #: The contexts of the read requests that failed, because this node no longer leads.
    reads_failed: tuple[object, ...] = ()

    @property
    def must_persist(self) -> bool:
        """Whether the Ready has work for the disk."""
        return bool(self.hard_state or self.entries or self.chunk or self.install or self.truncate_to is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Settings of a RaftNode, with times in ticks and sizes in bytes. A replica without a leader starts an election
    after a random time between ``election_ticks`` and twice ``election_ticks``."""

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    message_bytes_max: int = 1 << 20  #: Maximum bytes of entries in one Raft message.
    in_flight_bytes_max: int = 8 << 20  #: Maximum bytes of entries in flight to one follower.
    in_flight_messages_max: int = 64
    snapshot_chunk_bytes: int = 1 << 20
    #: Number of offsets behind the leader's log end above which a learner cannot become a voter.
    learner_lag_max: int = 1_000
    #: Longest time that a started voter waits until the others have said what they remember of it (memory.py); 0: it
    #: does not ask.
    recall_ticks: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError(f"heartbeat_ticks must be above 0 and below election_ticks: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The state on the disk when a controller starts. ``terms``: (term, start offset) of each term in the log from
    ``start`` on, ascending. ``voters``: (offset after the entry, voters) of each VOTERS entry in the log. ``start``:
    the snapshot before the log, with its voters, or the place (0, 0) with the configured voters. ``committed``: all
    entries below this offset are committed, because the newest snapshot contains them."""

    start: SnapshotId
    end_offset: int
    hard_state: HardState = field(default_factory=HardState)
    terms: tuple[tuple[int, int], ...] = ()
    voters: tuple[tuple[int, VoterSet], ...] = ()
    committed: int = 0
