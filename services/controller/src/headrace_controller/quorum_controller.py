"""A controller without its event loop: a Raft node, the cluster's state, and the disk.

The controller is synchronous, without threads and sockets. ``Clock`` gives the controller the time, ``draw`` gives it
random numbers, and ``send`` takes its messages. The driver runs the controller in a real process, the simulator in a
simulated process. A controller works in *turns*:

    begin     processes due ticks; decides submitted requests, each on the speculative image after the previous
              decision; gets Raft's Ready, and sends the messages that do not depend on this disk (Ready, step 1).
              Returns True if there is work for the disk
    persist   step 2: term and vote, a snapshot's chunk, entries; one write and one fdatasync for all of it. A
              completely received snapshot is decoded here too: this takes long, and may run in another thread
    finish    sends the messages that depend on step 2 (3, 4), applies and publishes committed entries (5), and answers
              requests

Messages may arrive between the three steps of a turn, and a crash may happen between any two of the steps. Requests
that arrive during a turn are decided in the next turn: under load, each turn decides more requests. ``next_due_ms``
returns the time of the next turn: the next tick that may have an effect, not each tick.

    submit --> decide --> propose --> append + fdatasync --> a majority has it --> commit --> publish --> answer

A new Raft leader is not active yet. The leader becomes *active* when it has committed an entry of its own term and has
applied all committed entries. Only an active leader knows every change that any controller has ever confirmed to a
client (thesis, 6.4). Requests to a new leader wait until it is active. When the leader resigns, the speculative image
is dropped. Decisions that are already appended wait for their commit or truncation (waiting.py). Requests that are not
appended, and all requests at a follower, get NotControllerError with the leader's name.

**A reply waits until the state that it depends on is committed**, even if the request wrote no record. If the state is
already committed, a heartbeat round must first confirm that no other node leads (ReadIndex), because a refusal is also
a read.

**A full disk.** When the disk gets full, requests that add metadata are refused first, while there is still space for
terms, elections and deletions. When a write fails, the controller discards Raft's present list of work (the Ready), and
Raft restarts with the state on the disk. A sole voter refuses all requests with DISK_FULL (retriable) until the disk
has free space, and then leads again. After a failed write, one of several voters does not stand for election for a
while, so that another voter leads. As a follower, a voter with a full disk acknowledges no entries. No broker is fenced
because of a full controller disk.

Each replica answers heartbeats with the space on its disk. A leader whose disk is full up to its reserve hands its
leadership to the voter with space that has the longest log, at most once in HAND_OVER_EVERY_MS.

**A failed disk** raises OSError or StorageError, a damaged log CorruptLogError: the process must end.

A turn decides arrived messages before work that is due by time, so that heartbeats count before a broker's silence is
judged. A turn ends after some 5,000 records, so that followers receive the heartbeats of a busy leader in time.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace_core.clock import Clock
from headrace_core.errors import (
    CorruptMessageError,
    DiskFullError,
    HeadraceError,
    NotControllerError,
    OutdatedVoterError,
    RequestTimedOutError,
)
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import ScramCredentialRecord
from headrace_core.telemetry import Emitter

from .applying import Applier, Subscriber
from .cluster.core import ClusterCore
from .cluster.decision import Decision
from .cluster.requests import Bootstrap, Request
from .control_records import encode_control
from .deciding import Decider
from .raft import (
    NO_LEADER,
    AppendRequest,
    Entry,
    EntryKind,
    HeartbeatResponse,
    Message,
    OutdatedNotice,
    RaftNode,
    Ready,
    ReplicaKey,
    Role,
    VoterSet,
)
from .raft.memory import Memory
from .raft.progress import Mode, Progress
from .settings import QuorumSettings
from .snapshotting import SnapshotSchedule
from .storage import MetadataStorage, SnapshotJob
from .waiting import Answer, Decisions, Done, HandOver, Outcome, Reads

logger = logging.getLogger("headrace.controller")

__all__ = ["Answer", "QuorumController", "QuorumSettings", "SnapshotJob"]

TURN_REQUESTS_MAX = 1_000  #: Maximum number of requests that the controller decides in one turn.
#: Heartbeat interval in milliseconds above which no read is deferred, because metadata ages would reach many seconds.
DEFERRED_MS_MAX = 600
#: Number of election timeouts for which a controller does not stand for election after its disk was too full to write.
#: (A sole voter stands for election at once after its disk was full.)
_STAND_BACK_TIMEOUTS = 4
_MEASURE_EVERY_MS = 500  #: Milliseconds between two looks at the free space of the disk.
#: A leader with a full disk tries to hand over its leadership at most once in this number of milliseconds.
HAND_OVER_EVERY_MS = 10_000


class _Asked(NamedTuple):
    request: Request
    done: Done | None


class _VoterChange(NamedTuple):
    """A change of the voters, which Raft itself appends to the log."""

    append: Callable[[], Entry]
    done: Done


class QuorumController:
    """See the module. Call ``begin``, then ``persist`` if ``begin`` returned True, then ``finish``. An error that
    ``begin``, ``persist`` or ``finish`` raises is final. ``done`` is called once for each request, from ``finish`` or
    ``fail_all``, with the result or a HeadraceError."""

    def __init__(
        self,
        core: ClusterCore,
        storage: MetadataStorage,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        draw: Callable[[int], int],
        settings: QuorumSettings,
        send: Callable[[Sequence[Message]], None],
        seen_address: Callable[[int], str] = lambda node_id: "",
        emitter: Emitter | None = None,
        first_users: tuple[ScramCredentialRecord, ...] = (),
    ) -> None:
        """``first_users``: written into the log of a new cluster. ``seen_address`` returns the address that a connected
        node reported, or "" if the node reported none."""
        self.key = ReplicaKey(node_id, storage.directory_id)
        self.settings = settings
        self._seen_address = seen_address
        self._tick_ms = settings.tick_ms
        self._core = core
        self._storage = storage
        self._bootstrap = Bootstrap(cluster_id, first_users)
        self._clock = clock
        self._draw = draw
        self._send = send
        self._emitter = emitter or Emitter()
        self._applier = Applier(core, storage, cluster_id, self._emitter)
        # (If a sleep is two ticks longer than a leader's longest planned sleep, the process was paused.)
        self._decider = Decider(core, storage, clock, sleep_ms=settings.heartbeat_ms + 2 * settings.tick_ms)
        self._snapshots = SnapshotSchedule(storage, settings, clock.monotonic_ms())
        self._raft = self._new_raft()
        # Requests that have no answer yet
        self._inbox: deque[_Asked | _VoterChange] = deque()
        self._decisions = Decisions(node_id)
        self._reads = Reads()
        self._hand_over = HandOver()
        self._outcomes: list[Outcome] = []
        # of this turn
        self._ready: Ready | None = None
        self._snapshot_is_sound = True
        self._received: MetadataImage | None = None
        self._unwritten: DiskFullError | CorruptMessageError | None = None
        self._is_due = True
        # since this start
        self._active_term = -1
        self._observers: set[ReplicaKey] = set()
        #: Replicas whose connection broke, and which have sent no message since then.
        self._gone: set[ReplicaKey] = set()
        self._catch_up_to: int | None = None
        self._has_caught_up = False
        self._was_full = False
        self._stands_back_until_ms = 0.0
        # the space on the disk
        self._measured_ms = self._left_ms = -math.inf
        self._short_since_ms = 0.0
        self._was_short = self._has_told_that_it_stays = False
        self._now_ms = clock.monotonic_ms()
        self._last_tick_ms = self._now_ms
        self._ticks_planned = 1
        self._has_ticked = False

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller, which decides requests. See the module."""
        return self._active_term == self._raft.term and self._raft.role is Role.LEADER

    @property
    def is_serving(self) -> bool:
        """Whether this node leads, or follows a leader and has applied all entries that were committed when this node
        started. In a new cluster, the applied entries must include at least the first record, which has the cluster's
        id."""
        return self._has_caught_up and self._raft.leader != NO_LEADER and bool(self.image.cluster_id)

    @property
    def queued(self) -> int:
        """Number of requests that have not been decided yet."""
        return len(self._inbox)

    @property
    def in_flight(self) -> int:
        """Number of appended decisions that are not committed yet."""
        return len(self._decisions)

    @property
    def node_id(self) -> int:
        return self.key.node_id

    @property
    def image(self) -> MetadataImage:
        """The committed metadata, as far as this node has applied it."""
        return self._applier.image

    @property
    def leader_id(self) -> int:
        """Node id of the quorum's leader; -1 if no leader is known."""
        return self._raft.leader

    @property
    def term(self) -> int:
        return self._raft.term

    @property
    def role(self) -> Role:
        return self._raft.role

    @property
    def voters(self) -> VoterSet:
        """The latest voter set in the log, committed or not."""
        return self._raft.voters

    @property
    def addresses(self) -> Mapping[int, str]:
        """The known "host:port" of the internal listeners of the voters and the leader, by node id."""
        voters, configured, seen_address = self._raft.voters, self.settings.voter_addresses, self._seen_address
        node_ids = [key.node_id for key in voters]
        leader = self._raft.leader
        # A node that was formatted without voters does not know the voters at first.
        if leader != NO_LEADER and leader not in node_ids:
            node_ids.append(leader)
        found = {each: voters.address(each) or configured.get(each, "") or seen_address(each) for each in node_ids}
        return {node_id: address for node_id, address in found.items() if address}

    @property
    def raft(self) -> RaftNode:
        """The Raft node, read only (for the progress of followers and the log's ends)."""
        return self._raft

    @property
    def is_left_alone(self) -> bool:
        """Whether the connected voters are less than a majority."""
        voters = self._raft.voters
        return len(voters) - sum(key in self._gone for key in voters) < voters.majority

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each newly committed image; returns a function that ends the subscription."""
        return self._applier.subscribe(subscriber)

    def best_successor(self) -> ReplicaKey | None:
        """The voter with the largest part of this leader's log, one with a full disk last. The result is None unless
        this node leads and a connected voter is near the log's end. Voters that are far from the log's end would not
        take over the leadership in time."""
        following = self._near_voters()
        full = {key for key, each in following.items() if each.room is not None and not each.room.usable_bytes}
        return max(following, key=lambda key: (key not in full, following[key].match), default=None)

    def _near_voters(self) -> dict[ReplicaKey, Progress]:
        raft = self._raft
        if raft.role is not Role.LEADER:
            return {}
        following = {key: progress for key in raft.voters if (progress := raft.progress_of(key)) is not None}
        return {key: each for key, each in following.items() if each.mode is Mode.REPLICATE}

    def not_controller(self) -> NotControllerError:
        """The error for a caller that takes this node for the leader."""
        leader = self._raft.leader
        if leader == self.node_id:
            return NotControllerError(f"controller {self.node_id} was just elected and is not ready yet; retry")
        if leader == NO_LEADER:
            return NotControllerError(
                f"controller {self.node_id} is not the leader and does not know the leader; retry"
            )
        address = self.addresses.get(leader, "")
        where = f"controller {leader}{address and f' at {address}'}"
        return NotControllerError(
            f"controller {self.node_id} is not the leader; the leader is {where}",
            leader=(leader, self._raft.term, address) if address else None,
        )

    def start(self) -> None:
        """Load the state on the disk. A sole voter leads at once, with a complete image; on a full disk a sole voter
        leads when space is free. Raises CorruptLogError, InconsistentClusterIdError, UnsupportedVersionError,
        DiskFullError (a new log on a full disk), and OSError."""
        self._load_newer_snapshot()
        if not (self._is_sole_voter and self._raft.log.voters_offset == self._raft.log.start.offset):
            return
        # A sole voter commits every entry when it is flushed, so its whole log is committed.
        self._applier.replay(self._storage.log_end_offset, at_once=True)
        while not self.is_active and not self._was_full:
            self._turn()
        if self._was_full and not self.image.cluster_id:  # a new metadata log needs its first record
            raise DiskFullError("cannot start the metadata log: the disk is full; free some space")
        while self._is_due and not self._was_full:
            self._turn()

    def _load_newer_snapshot(self) -> None:
        """Load a snapshot on the disk that is newer than the image, because it was just installed or the process is
        starting."""
        received, self._received = self._received, None
        newest = self._storage.newest_snapshot()
        if newest is not None and newest.place.offset > self._applier.applied:
            self._applier.replace(self._storage.load_image() if received is None else received)
        # The applied state is committed, so Raft's commit offset must not be below the applied offset.
        raft = self._raft
        raft.committed = max(raft.committed, min(self._applier.applied, raft.log_end_offset))

    def _turn(self) -> None:
        if self.begin():
            self.persist()
        self.finish()

    @property
    def _is_sole_voter(self) -> bool:
        return self._raft.voters.keys == (self.key,)

    def _new_raft(self, memory: Memory | None = None) -> RaftNode:
        """Create Raft's state from the state on the disk. If the disk has no voters, this node is the sole voter."""
        return RaftNode(
            self.key,
            self._storage.stored(VoterSet.of([self.key])),
            self._storage,
            draw=self._draw,
            settings=self.settings.raft,
            memory=memory,
            control=self._encode_control,
        )

    def _encode_control(self, kind: EntryKind, term: int, base_offset: int, voters: VoterSet) -> bytes:
        return encode_control(kind, term, base_offset, self.node_id, voters, self._clock.now_ms())

    def receive(self, message: Message) -> None:
        """Process a message of another replica."""
        self._count_ticks()
        self._gone.discard(message.sender)
        self._raft.step(message)
        # A HeartbeatResponse to an idle leader needs no turn of the controller: every replica sends one in each
        # heartbeat round.
        if not (isinstance(message.body, HeartbeatResponse) and self._raft.is_at_rest):
            self._is_due, self._ticks_planned = True, 1
        if self._catch_up_to is None and isinstance(message.body, AppendRequest) and message.to == self.key:
            self._catch_up_to = message.body.committed

    def peer_lost(self, key: ReplicaKey) -> None:
        """Called when the connection to another replica broke: notify Raft."""
        self._stir()
        if key in self._raft.voters:
            self._gone.add(key)
        self._raft.peer_lost(key)

    def observe(self, key: ReplicaKey) -> None:
        """Called when a non-voting replica has connected; while this node leads, it sends the log to that replica."""
        self._stir()
        self._observers.add(key)
        self._raft.observe(key)

    def forget(self, key: ReplicaKey) -> None:
        """Called when a non-voting replica has disconnected."""
        self._observers.discard(key)
        self._raft.forget(key)

    def submit(self, request: Request, done: Done | None) -> None:
        """Decide ``request``; calls ``done(Answer)`` when the state that the decision depends on is committed. Calls
        ``done`` with the error of a refusal, NotControllerError (no change was made), RequestTimedOutError (the outcome
        is unknown) or DiskFullError."""
        self._stir()
        self._inbox.append(_Asked(request, done))

    def read(self, done: Done, *, is_deferred: bool = False) -> None:
        """A linearizable read (ReadIndex): calls ``done(metadata_offset)`` when this node's image contains every change
        that was answered before the read. ``is_deferred``: the read waits for the next heartbeat round, which begins
        within three tenths of an election timeout. A deferred read does not wait for the next heartbeat round if the
        heartbeat interval is longer than DEFERRED_MS_MAX. The read fails with NotControllerError unless this node
        leads."""
        is_deferred = is_deferred and self.settings.heartbeat_ms <= DEFERRED_MS_MAX
        if not is_deferred:
            self._stir()
        try:
            self._reads.ask(self._raft, done, is_deferred=is_deferred)
        except NotControllerError:
            self._tell(done, self.not_controller())

    def add_voter(self, key: ReplicaKey, address: str, done: Done) -> None:
        """Make a caught-up observer a voter; calls ``done(Answer)`` when the new voter set is committed. The call fails
        with the errors of ``RaftNode.add_voter``."""
        self._stir()
        self._inbox.append(_VoterChange(lambda: self._raft.add_voter(key, address), done))

    def remove_voter(self, key: ReplicaKey, done: Done) -> None:
        """Remove a voter; calls ``done(Answer)`` when the new voter set is committed. The call fails with the errors of
        ``RaftNode.remove_voter``."""
        self._stir()
        self._inbox.append(_VoterChange(lambda: self._raft.remove_voter(key), done))

    def transfer(self, key: ReplicaKey, done: Done) -> None:
        """Transfer the leadership to another voter; calls ``done(Answer)`` when that voter leads. The call fails with
        NotControllerError or VoterNotFoundError. RequestTimedOutError means that the voter did not take over within an
        election timeout, and this node still leads."""
        self._stir()
        try:
            self._hand_over.begin(self._raft, key, done)
        except NotControllerError:
            self._tell(done, self.not_controller())
        except HeadraceError as error:
            self._tell(done, error)

    def withdraw(self, error: OutdatedVoterError) -> None:
        """This voter's directory is an older copy: never use the directory again, and tell the other replicas."""
        logger.error("%s", error.message)
        self._storage.withdraw(error.message)
        others = {*self._raft.voters, *self._observers} - {self.key}
        self._send([Message(self.key, key, OutdatedNotice(self.term)) for key in sorted(others)])

    def fail_all(self, error: HeadraceError) -> None:
        """Fail all waiting requests with ``error`` at the end of the process. Requests whose entries are being written
        fail with RequestTimedOutError, because their outcome is unknown."""
        self._fail_inbox(error)
        self._outcomes += self._decisions.drop(
            RequestTimedOutError(f"{error.message}; whether the controllers carried out the request is unknown")
        )
        self._outcomes += self._reads.drop(error)
        self._outcomes += self._hand_over.drop(error)
        self._answer()

    def next_due_ms(self) -> float:
        """Monotonic time of the next turn: the next tick that has an effect, or a past time if there is work
        already."""
        return self._now_ms if self._is_due else self._last_tick_ms + self._ticks_planned * self._tick_ms

    def until_due_ms(self) -> float:
        """Milliseconds until the next turn is due; 0 or less if the turn is due now."""
        return 0.0 if self._is_due else self.next_due_ms() - self._clock.monotonic_ms()

    def begin(self) -> bool:
        """See the module. Returns True if ``persist`` must be called next."""
        assert self._ready is None, "a turn was begun and not finished"
        self._is_due = False
        self._now_ms = now_ms = self._clock.monotonic_ms()
        self._resign_if_deposed()
        has_ticked = self._tick(now_ms) or self._has_ticked
        self._has_ticked = False
        self._measure_space(now_ms)
        if self.is_active:
            self._decider.begin_turn()
            if has_ticked:
                self._decider.forgive_pause(now_ms)
            if not self._hand_over:
                self._decide_inbox(now_ms)
            # Upkeep runs after the requests. A heartbeat that has arrived must be processed before a broker's silence
            # is judged. The leader proposes nothing during a transfer of its leadership.
            if has_ticked and self._raft.transferring_to is None:
                self._decider.upkeep(self._raft, now_ms)
            if self._storage.is_short:
                self._leave_the_lead(now_ms)
        elif self._raft.role is not Role.LEADER and not self._is_sole_voter and self._inbox:
            self._fail_inbox(self.not_controller())
        ready = self._ready = self._raft.ready()
        if ready.messages:
            self._send(ready.messages)
        return ready.must_persist

    def persist(self) -> None:
        """See the module. Raises OSError or StorageError if the disk failed; the process must end after either
        error."""
        ready = self._ready
        assert ready is not None, "no turn was begun"
        storage = self._storage
        try:
            if ready.hard_state is not None:
                storage.save_hard_state(ready.hard_state)
            if ready.chunk is not None:
                self._snapshot_is_sound = storage.write_chunk(ready.chunk)
            if ready.install is not None:
                storage.install(ready.install)
                self._received = storage.load_image()
            if ready.truncate_to is not None:
                storage.truncate(ready.truncate_to)
            if ready.entries:
                storage.append(ready.entries)
        except (DiskFullError, CorruptMessageError) as error:
            self._unwritten = error

    @property
    def may_persist_aside(self) -> bool:
        """Whether ``persist`` may run in another thread, while the event loop calls all methods but ``begin`` and
        ``finish``. The result is False if ``persist`` truncates the log. An append to the log does not affect reads
        that run at the same time. No reader uses the log while a snapshot is installed. During the installation of a
        snapshot this node has no followers, and observers wait (handlers/follow.py), because the log begins beyond the
        applied offset."""
        ready = self._ready
        return ready is not None and ready.truncate_to is None

    def finish(self) -> None:
        """See the module. Raises CorruptLogError and similar errors of the log; the process must end after any of
        them."""
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            self._begin_anew(unwritten)
        ready, self._ready = self._ready, None
        if ready is not None:
            self._snapshots.appended(ready.entries)
            if self._was_full and ready.entries:
                self._disk_has_room()
            if ready.replies:
                self._send(ready.replies)
            self._raft.persisted(ready, snapshot_is_sound=self._snapshot_is_sound)
            self._snapshot_is_sound = True
            self._outcomes += self._reads.note(ready, self.not_controller)
        if ready is None or ready.install is not None:
            self._load_newer_snapshot()
        self._resign_if_deposed()
        self._apply(ready)
        self._become_active_if_ready()
        self._settle()
        if ready is not None and self._has_more(ready):
            self._is_due = True
        self._ticks_planned = 1 if self._is_due else self._ticks_until_due()
        self._answer()

    def _has_more(self, ready: Ready) -> bool:
        """Whether carrying out ``ready`` has made work for the next turn."""
        raft = self._raft
        return (
            raft.committed > ready.committed
            or raft.committed > self._applier.applied
            or raft.role is not ready.role
            or raft.term != ready.term
            or ready.chunk is not None
            or bool(self._inbox and self.is_active and not self._hand_over)
        )

    def _tick(self, now_ms: float) -> bool:
        """Process the ticks that are due; returns whether any tick was due. After a pause of this process only the
        planned ticks count: no message could arrive during the pause, so silence proves nothing."""
        raft, since_ms = self._raft, now_ms - self._last_tick_ms
        if self._was_full and now_ms >= self._stands_back_until_ms:
            raft.may_lead = True
        if since_ms >= self._tick_ms:
            is_late = since_ms >= (self._ticks_planned + 1) * self._tick_ms
            ticks = self._ticks_planned if is_late else int(since_ms // self._tick_ms)
            self._last_tick_ms = now_ms if is_late else self._last_tick_ms + ticks * self._tick_ms
            self._ticks_planned = 1
            for _ in range(ticks):
                raft.tick()
            self._resign_if_deposed()
            return True
        if self._is_sole_voter and raft.role is Role.FOLLOWER and (self._inbox or not self._was_full):
            raft.tick()  # a sole voter waits for no other voter
        return False

    def _stir(self) -> None:
        """Called after an event that needs a turn: the next turn is due now."""
        self._count_ticks()
        self._is_due, self._ticks_planned = True, 1

    def _count_ticks(self) -> None:
        """Before an event between turns is processed, count the past ticks, which are known to have no effect. If past
        ticks were not processed first, an event between turns (such as the loss of the leader) would be dated too
        early. The last planned tick is left to the turn, even when the tick is due, because the turn processes arrived
        messages before it judges silence. (If ``_count_ticks`` left the earlier ticks to the turn, the turn would treat
        them as a pause.)"""
        since_ms = self._clock.monotonic_ms() - self._last_tick_ms
        ticks = min(int(since_ms // self._tick_ms), self._ticks_planned - 1)
        if ticks > 0:
            self._last_tick_ms += ticks * self._tick_ms
            self._ticks_planned -= ticks
            self._has_ticked = True
            for _ in range(ticks):
                self._raft.tick()

    def _ticks_until_due(self) -> int:
        """Number of ticks until the first tick that may have an effect."""
        if self._is_sole_voter and self._raft.role is not Role.LEADER:
            return 1  # the sole voter leads when its disk has room again
        ticks = self._raft.ticks_until_due
        if ticks > 1 and self.is_active:
            due_ms = self._core.next_upkeep_ms(self._now_ms)
            ticks = max(1, min(ticks, math.ceil((due_ms - self._last_tick_ms) / self._tick_ms)))
        return ticks

    def _decide_inbox(self, now_ms: float) -> None:
        inbox = self._inbox
        for _ in range(min(len(inbox), TURN_REQUESTS_MAX)):
            if self._decider.has_decided_much:
                return
            asked = inbox.popleft()
            if isinstance(asked, _VoterChange):
                self._change_voters(asked)
                continue
            decision = self._decider.decide(asked.request, now_ms)
            self._decider.propose(self._raft, decision)
            if asked.done is not None:
                self._wait(decision, asked.done)

    def _wait(self, decision: Decision, done: Done) -> None:
        """Answer ``decision`` when the state that it depends on is committed. If the state is committed already, answer
        when a heartbeat round has confirmed that no other node leads."""
        offset = self._decider.end
        result = Answer(decision.reply, offset) if decision.failure is None else decision.failure
        if offset > self._applier.applied:
            self._decisions.add(offset, self._raft.term, result, done)
        else:
            self._reads.ask(self._raft, done, result)

    def _change_voters(self, change: _VoterChange) -> None:
        try:
            entry = change.append()
        except HeadraceError as error:
            self._tell(change.done, error)
            return
        self._decider.skip(entry)
        self._decisions.add(entry.next_offset, entry.term, Answer(None, entry.next_offset), change.done)

    def snapshot_due(self) -> SnapshotJob | None:
        """A snapshot to make now: ``run`` it in any thread, then call ``snapshot_done`` or ``snapshot_failed`` between
        turns. Only one snapshot is made at a time, so the result is None while a snapshot is being made."""
        return self._snapshots.due(self._clock.monotonic_ms(), self.image, self._raft.log)

    def snapshot_done(self, job: SnapshotJob) -> None:
        """Called when ``job`` has run: from now on the new snapshot is used, and the log begins after the second newest
        snapshot."""
        assert self._ready is None, "this must be called between two turns"
        start = self._snapshots.done(job)
        if start is not None:
            self._raft.compacted(start)

    def snapshot_failed(self, job: SnapshotJob, error: HeadraceError) -> None:
        """Called when the disk had no space for the snapshot: the controller tries again later."""
        self._snapshots.failed(job, error)

    def _become_active_if_ready(self) -> None:
        raft = self._raft
        if self.is_active or not raft.has_committed_in_term or self._applier.applied < raft.log_end_offset:
            return
        if raft.transferring_to is not None:
            # A transfer was requested before the leader was ready; a leader proposes nothing until the transfer ends.
            return
        assert raft.committed == raft.log_end_offset, "something was appended before this node was active"
        now_ms = self._clock.monotonic_ms()
        self._active_term = raft.term
        self._has_caught_up = True
        self._decider.lead(now_ms)
        self._outcomes += self._decisions.lead(raft.log_end_offset)
        decision = self._core.decide(self._bootstrap, now_ms)
        if decision.failure is not None:
            raise decision.failure
        if decision.records:
            self._decider.propose(raft, decision)
        self._is_due = True
        logger.info(
            "controller %d is the leader of term %d, from offset %d on", self.node_id, raft.term, raft.log_end_offset
        )

    def _resign_if_deposed(self) -> None:
        if self._active_term >= 0 and not self.is_active:
            self._active_term = -1
            self._core.resign()
            logger.info("controller %d is no longer the leader; the current term is %d", self.node_id, self._raft.term)

    def _apply(self, ready: Ready | None) -> None:
        """Apply the committed entries that are on this disk. A follower may know of more committed entries than at the
        beginning of the turn."""
        raft = self._raft
        if self.is_active:
            self._applier.commit(min(raft.committed, raft.log.durable_offset))
        elif raft.role is Role.LEADER:
            self._applier.replay(min(raft.committed, raft.log.durable_offset))
        elif ready is not None:
            self._applier.replay(ready.committed)
        if self._catch_up_to is not None and self._applier.applied >= self._catch_up_to:
            self._has_caught_up = True

    def _settle(self) -> None:
        """Answer the requests whose outcome is now known."""
        applied = self._applier.applied
        if self._decisions:
            self._outcomes += self._decisions.settle(applied, self._raft.log)
        self._outcomes += self._reads.settle(applied)
        if self._hand_over:
            self._outcomes += self._hand_over.settle(self._raft, applied)

    def _tell(self, done: Done, result: object) -> None:
        self._outcomes.append(Outcome(done, result))
        self._is_due = True

    def _fail_inbox(self, error: HeadraceError) -> None:
        for asked in self._inbox:
            if asked.done is not None:
                self._tell(asked.done, error)
        self._inbox.clear()

    def _answer(self) -> None:
        if self._outcomes:
            outcomes, self._outcomes = self._outcomes, []
            for outcome in outcomes:
                outcome.done(outcome.result)

    def _measure_space(self, now_ms: float) -> None:
        """Look at the space on the disk, for the answers to heartbeats. A shortage is logged once."""
        if now_ms - self._measured_ms >= _MEASURE_EVERY_MS:
            self._measured_ms = now_ms
            self._raft.room = self._storage.measure_space()
        if self._storage.is_short is not self._was_short:
            self._was_short, self._has_told_that_it_stays = self._storage.is_short, False
            self._short_since_ms = now_ms
            what = "is full up to its reserve (log.dir.reserve.bytes)" if self._was_short else "has space again"
            logger.warning("the disk of controller %d %s", self.node_id, what)

    def _leave_the_lead(self, now_ms: float) -> None:
        """Hand the leadership to a voter with space, because this disk is full. If no voter has space, this controller
        stays the leader: it still carries out deletions."""
        if self._hand_over or now_ms - self._left_ms < HAND_OVER_EVERY_MS:
            return
        if now_ms - self._short_since_ms < _MEASURE_EVERY_MS + 2 * self.settings.heartbeat_ms:
            return  # the others may have the same disk, and have not reported it yet
        following = self._near_voters()
        with_space = {key: each.match for key, each in following.items() if each.room and each.room.usable_bytes}
        if with_space:
            self._left_ms = now_ms
            successor = max(with_space, key=with_space.__getitem__)
            logger.warning(
                "controller %d hands its leadership to controller %s, which has space", self.node_id, successor
            )
            self._hand_over.begin(self._raft, successor, self._handed_over)
        elif not self._has_told_that_it_stays and (
            self._is_sole_voter or (following and all(each.room for each in following.values()))
        ):
            self._has_told_that_it_stays = True
            logger.warning(
                "no other controller has space: controller %d stays the leader, and refuses changes that add metadata "
                "until there is space",
                self.node_id,
            )

    def _handed_over(self, result: object) -> None:
        if isinstance(result, HeadraceError):
            logger.warning("controller %d still has a full disk: %s", self.node_id, result)

    def _begin_anew(self, why: DiskFullError | CorruptMessageError) -> None:
        """Discard the present Ready: Raft restarts with the state on the disk."""
        was_alone = self._is_sole_voter
        self._ready = None
        self._snapshot_is_sound = True
        self._active_term = -1
        self._core.resign()
        self._raft = self._new_raft(self._raft.recollections())
        # This node counts as a sole voter only if it is a sole voter before and after the restart. The restart may drop
        # the entry of a voter change.
        alone = was_alone and self._is_sole_voter
        for key in sorted(self._observers):  # sorted, so that every process has the same order
            self._raft.observe(key)
        self._last_tick_ms, self._ticks_planned = self._now_ms, 1
        # The message was damaged on its way to this controller; the sender sends it again.
        if isinstance(why, CorruptMessageError):
            logger.error("controller %d dropped a damaged message; the sender sends it again: %s", self.node_id, why)
        else:
            self._disk_is_full(why, alone=alone)
        self._raft.room = self._storage.measure_space()
        self._outcomes += self._reads.drop(why if alone else self.not_controller())
        self._is_due = False

    def _disk_is_full(self, error: DiskFullError, *, alone: bool) -> None:
        self._storage.ran_out()
        if not self._was_full:
            self._was_full = True
            logger.error(
                "%s; %s",
                error,
                "refusing changes until there is free space" if alone else "another controller must become leader",
            )
        if alone:
            # A sole voter may drop decisions beyond the end of its log, because no other disk has their entries.
            self._outcomes += self._decisions.drop(error, behind=self._raft.log_end_offset)
            self._fail_inbox(error)
        else:
            self._stands_back_until_ms = self._now_ms + _STAND_BACK_TIMEOUTS * self.settings.election_timeout_ms
            self._raft.may_lead = False

    def _disk_has_room(self) -> None:
        self._was_full = False
        self._raft.may_lead = True
        logger.warning("the disk of controller %d has free space again", self.node_id)
