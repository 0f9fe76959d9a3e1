"""Raft nodes alone: disks in memory, and a network whose messages a test (or a seed) moves.

``Disk`` keeps what a real disk would keep: it is written as ``Ready`` demands, and a crash between two steps loses data
that were not forced. ``RaftWorld`` does what the nodes request, and checks after every step what must always hold
(Raft, figure 3). A term has one leader; a committed entry is the same on all nodes and never changes; a leader has all
committed entries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace_controller.raft import (
    Entry,
    EntryKind,
    HardState,
    Message,
    Place,
    RaftNode,
    RaftSettings,
    Ready,
    ReplicaKey,
    Role,
    SnapshotId,
    Stored,
    VoterSet,
)

#: The default class of the nodes of a RaftWorld; the mutants replace it.
NODE_CLASS: type[RaftNode] = RaftNode


def key(node_id: int, disk: int = 1) -> ReplicaKey:
    """The replica key of a node with its first, second, ... disk."""
    return ReplicaKey(node_id, bytes([disk]) * 16)


def voters(*node_ids: int) -> VoterSet:
    return VoterSet.of(key(node_id) for node_id in node_ids)


def control(kind: EntryKind, term: int, base_offset: int, members: VoterSet) -> bytes:
    """The bytes of an entry that the leader itself makes; no other entry has the same bytes."""
    return f"[{kind.value} {term} at {base_offset}: {members}]".encode()


@dataclass
class Disk:
    """The data that one replica has stored. Implements LogView."""

    start: SnapshotId
    hard_state: HardState = field(default_factory=HardState)
    entries_: list[Entry] = field(default_factory=list)
    #: The bytes of complete snapshots by id, and of the received part of an incomplete snapshot.
    snapshots: dict[SnapshotId, bytes] = field(default_factory=dict)
    received: bytes = b""

    @property
    def end(self) -> int:
        return self.entries_[-1].next_offset if self.entries_ else self.start.place.offset

    def stored(self) -> Stored:
        terms: list[tuple[int, int]] = []
        last = self.start.place.term
        for entry in self.entries_:
            if entry.term > last:
                terms.append((entry.term, entry.base_offset))
                last = entry.term
        return Stored(
            start=self.start,
            end_offset=self.end,
            hard_state=self.hard_state,
            terms=tuple(terms),
            voters=tuple((entry.next_offset, entry.voters) for entry in self.entries_ if entry.voters is not None),
        )

    def carry_out(self, ready: Ready) -> bool:
        """Carry out step 2 of a Ready; return False when the step completes a damaged snapshot."""
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.chunk is not None:
            self.received = self.received[: ready.chunk.position] + ready.chunk.data
            assert len(self.received) == ready.chunk.position + len(ready.chunk.data)
        if ready.install is not None:
            self.snapshots[ready.install] = self.received
            self.start, self.entries_ = ready.install, []
        if ready.truncate_to is not None:
            self.entries_ = [entry for entry in self.entries_ if entry.next_offset <= ready.truncate_to]
        for entry in ready.entries:
            assert entry.base_offset == self.end, f"an entry at {entry.base_offset}, the disk ends at {self.end}"
            self.entries_.append(entry)
        return True

    # -- LogView

    def entries(self, offset: int, end: int, max_bytes: int) -> Sequence[Entry]:
        found: list[Entry] = []
        size = 0
        for entry in self.entries_:
            if entry.next_offset <= offset or entry.base_offset >= end:
                continue
            size += entry.size
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        content = self.snapshots.get(snapshot)
        if content is None:
            return None
        return content[position : position + max_bytes], position + max_bytes >= len(content)


class Replica:
    """A node, its disk, and the entries that it has applied."""

    def __init__(
        self,
        own: ReplicaKey,
        disk: Disk,
        settings: RaftSettings,
        draw: Callable[[int], int],
        node_class: type[RaftNode] = RaftNode,
    ) -> None:
        self.key = own
        self.disk = disk
        self.settings = settings
        self.draw = draw
        self.node_class = node_class
        self.is_up = False
        self.start()

    def start(self) -> None:
        self.node = self.node_class(
            self.key, self.disk.stored(), self.disk, draw=self.draw, settings=self.settings, control=control
        )
        self.applied = self.disk.start.place.offset
        self.reads: list[tuple[object, int]] = []
        self.failed_reads: list[object] = []
        self.is_up = True


class RaftWorld:
    """The replicas and their network (see the module's docstring). Messages stay in ``network`` until the test
    delivers, duplicates or loses them."""

    def __init__(
        self,
        members: VoterSet,
        *,
        settings: RaftSettings | None = None,
        seed: int = 0,
        draw: Callable[[int], int] | None = None,
        node_class: type[RaftNode] | None = None,
    ) -> None:
        self.node_class = node_class or NODE_CLASS
        self.rng = random.Random(seed)
        self.settings = settings or RaftSettings()
        self.draw = draw or (lambda below: self.rng.randrange(below))
        self.first = SnapshotId(Place(0, 0), members)
        self.replicas: dict[ReplicaKey, Replica] = {}
        self.network: list[Message] = []
        #: Every entry that was ever committed anywhere, by its offset.
        self.history: dict[int, Entry] = {}
        self.leaders: dict[int, ReplicaKey] = {}
        self.is_cut: Callable[[ReplicaKey, ReplicaKey], bool] = lambda sender, to: False
        for member in members:
            self.add(member)

    def add(self, own: ReplicaKey) -> Replica:
        """Add a replica with an empty disk, which knows the first voters."""
        replica = self.replicas[own] = Replica(own, Disk(self.first), self.settings, self.draw, self.node_class)
        return replica

    def __getitem__(self, node_id: int) -> RaftNode:
        return self.replicas[key(node_id)].node

    # -- what happens

    def tick(self, *node_ids: int, times: int = 1) -> None:
        for _ in range(times):
            for replica in self._up(node_ids):
                replica.node.tick()
                self.work(replica)

    def work(self, replica: Replica, *, crash_after: int | None = None) -> None:
        """Let a replica do its pending work until none is left. ``crash_after``: the replica crashes before its n-th
        distinguishable step."""
        step = 0

        def dies() -> bool:
            nonlocal step
            step += 1
            if crash_after is not None and step > crash_after:
                self.crash(replica)
                return True
            return False

        while True:
            ready = replica.node.ready()
            self._check(replica, ready)
            self.on_ready(replica, ready)
            self.network += ready.messages
            if ready.must_persist:
                if dies():
                    return
                is_sound = replica.disk.carry_out(ready)
                if dies():
                    return
            else:
                is_sound = True
            self.network += ready.replies
            replica.node.persisted(ready, snapshot_is_sound=is_sound)
            replica.reads += ready.reads
            replica.failed_reads += ready.reads_failed
            self._apply(replica, ready.committed)
            if not (ready.must_persist or ready.messages or ready.replies):
                return

    def at(self, address: ReplicaKey) -> Replica | None:
        """The replica at an address: the network knows node ids, not disks."""
        return next((replica for own, replica in self.replicas.items() if own.node_id == address.node_id), None)

    def deliver(self, message: Message) -> None:
        """Deliver one message, unless the receiver is down."""
        replica = self.at(message.to)
        if replica is None or not replica.is_up or self.is_cut(message.sender, message.to):
            return
        replica.node.step(message)
        self.work(replica)

    def settle(self, rounds: int = 5000) -> None:
        """Deliver messages until the network is empty."""
        for _ in range(rounds):
            if not self.network:
                return
            messages, self.network = self.network, []
            for message in messages:
                self.deliver(message)
        raise AssertionError(f"the network never became quiet: {self.network[:5]}")

    def crash(self, replica: Replica) -> None:
        """End a replica's process; the data in its memory are lost."""
        replica.is_up = False

    def kill(self, replica: Replica) -> None:
        """Crash a replica, and let the other replicas notice: the kernel closes its connections."""
        self.crash(replica)
        for other in self._up(()):
            other.node.peer_lost(replica.key)

    def restart(self, replica: Replica) -> None:
        replica.start()
        self.work(replica)

    def connect(self) -> None:
        """Let all replicas that run connect to each other, and deliver what they say."""
        for replica in self._up(()):
            for other in self._up(()):
                replica.node.observe(other.key)
        for replica in self._up(()):
            self.work(replica)
        self.settle()

    def elect(self, node_id: int) -> RaftNode:
        """Advance the time of one node only, until it is the leader."""
        for _ in range(100):
            self.tick(node_id)
            self.settle()
            if self[node_id].role is Role.LEADER:
                return self[node_id]
        raise AssertionError(f"{node_id} does not become the leader")

    def propose(self, node_id: int, data: bytes, count: int = 1) -> Entry:
        entry = self[node_id].propose(data, count)
        self.work(self.replicas[key(node_id)])
        return entry

    def compact(self, replica: Replica, offset: int) -> None:
        """Let the state machine take a snapshot below ``offset``, up to which the replica must have applied the log."""
        assert offset <= replica.applied
        log = replica.node.log
        term = log.term_below(offset)
        assert term is not None
        snapshot = SnapshotId(Place(offset, term), log.voters_at(offset))
        content = b"".join(self.history[at].data for at in sorted(self.history) if at < offset) + b"."
        replica.disk.snapshots[snapshot] = content
        replica.disk.entries_ = [entry for entry in replica.disk.entries_ if entry.base_offset >= offset]
        replica.disk.start = snapshot
        replica.node.compacted(snapshot)

    def _up(self, node_ids: Sequence[int]) -> list[Replica]:
        return [
            replica
            for own, replica in self.replicas.items()
            if replica.is_up and (not node_ids or own.node_id in node_ids)
        ]

    def on_ready(self, replica: Replica, ready: Ready) -> None:
        """A hook that observers may override."""

    # -- what must always hold

    def _check(self, replica: Replica, ready: Ready) -> None:
        if ready.role is Role.LEADER:
            leader = self.leaders.setdefault(ready.term, replica.key)
            assert leader == replica.key, f"{leader} and {replica.key} both lead in term {ready.term} (5.2)"
            self._check_complete(replica, ready.term)
        assert ready.committed >= replica.applied, f"{replica.key}: the commit offset went back to {ready.committed}"

    def _check_complete(self, replica: Replica, term: int) -> None:
        """Check leader completeness (5.4): the leader's log has all entries that were committed in earlier terms."""
        log = replica.node.log
        for entry in self.history.values():
            if entry.term < term and entry.next_offset > log.start.offset:
                found = log.term_below(entry.next_offset)
                assert found == entry.term, f"{replica.key} leads in {term} without {entry} (has term {found} there)"

    def _apply(self, replica: Replica, committed: int) -> None:
        """Apply committed entries, and check state machine safety (5.4.3)."""
        start = replica.disk.start.place.offset
        if replica.applied < start:
            assert start <= committed, f"{replica.key} begins at {start}, above its commit offset {committed}"
            content = replica.disk.snapshots[replica.disk.start]
            expected = b"".join(self.history[at].data for at in sorted(self.history) if at < start) + b"."
            assert content == expected, f"{replica.key} installed {content!r} for {replica.disk.start}"
            replica.applied = start
        while replica.applied < committed:
            entry = replica.node.log.entries(replica.applied, 1)[0]
            assert entry.base_offset == replica.applied, f"{replica.key}: {entry} instead of offset {replica.applied}"
            known = self.history.setdefault(entry.base_offset, entry)
            assert known == entry, f"{replica.key} has committed {entry}, but {known} is committed at this offset"
            replica.applied = entry.next_offset
        assert replica.applied == committed, f"{replica.key}: {committed} lies inside an entry"
