"""A replica of the metadata log, as a pure state machine: ``step`` and ``tick`` are its inputs, ``ready`` is its
output.

The module implements Raft as in the paper (Ongaro and Ousterhout, 2014) and the thesis (Ongaro, 2014), with the
additions of KIP-595, KIP-853 and KIP-996. A vote belongs to a node id together with a directory id (a node *on its
disk*). A candidate raises the term only after a pre-vote.

    role          it means                                it becomes
    ------------  --------------------------------------  ------------------------------------------------------------
    FOLLOWER      follows the leader of its term, or      PROSPECTIVE  it heard of no leader for an election timeout,
                  waits for one; non-voters are always                 and votes
                  followers                               CANDIDATE    the leader transfers to it (TimeoutNow)
    PROSPECTIVE   asks who would vote for it in the next  CANDIDATE    a majority would
                  term; its own term stays (9.6)          FOLLOWER     a leader appears, a higher term, a majority
                                                                       would not
    CANDIDATE     has raised its term, voted for itself   LEADER       a majority has voted for it, itself included
                  (once that is durable) and asks for                  once its vote is durable
                  votes (5.2)                             FOLLOWER     a leader or a higher term, a majority refused
                                                          PROSPECTIVE  the election took too long
    LEADER        takes proposals, and replicates them    FOLLOWER     a higher term, no majority heard for an election
                                                                       timeout (6.2), or it was removed (4.2.2)

The invariants of Raft, and where an implementation easily breaks them:

* Term and vote are durable before any message mentions them (5.1, 5.2). Every answer is one of ``Ready.replies``, which
  are sent after the disk has the term and vote that they mention. A candidate counts its own vote only after the vote
  is durable.
* A leader counts its own log in a majority only up to the durable offset. (In etcd issue 14370 a sole voter lost
  entries that it had acknowledged.)
* Counting replicas commits only entries of the leader's own term; earlier entries are committed together with an entry
  of that term (5.4.2, figure 8). To be able to commit, each term begins with an entry of its leader. Reads and changes
  of the voters wait until the first entry of the term is committed (6.4; the fix to 4.1).
* Voters change one at a time, each change after the commit of the previous one (4.1). The log's latest voter set is in
  effect at once; if its entry is truncated, the previous voter set is.
* A replica that receives messages from a leader does not vote for another candidate (4.2.3, 9.6), so a replica that was
  removed, or is connected to only some voters, cannot depose the leader. Only a leadership transfer overrides this.
* A replica ignores a message to its node id with another directory id: it was meant for a lost disk (KIP-853).
* A replica with an older copy of its directory is found by what the others remember of it, and stops (memory.py).

A ``Ready`` lists the work to do (types.py). The driver carries out one at a time, and may call ``step`` meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace_core.errors import NotControllerError

from .election_timer import ElectionTimer
from .log import LogView, RaftLog
from .memory import Memory, Questions, contradiction, outdated_error
from .progress import Mode, Progress
from .quorum import (
    Outcome,
    agreed,
    check_addition,
    check_caught_up,
    check_no_change,
    check_removal,
    check_voter,
    is_majority,
    tally,
)
from .reads import Reads, Rounds
from .receiving import SnapshotReceiver
from .types import (
    NO_LEADER,
    AppendRequest,
    AppendResponse,
    Body,
    Draw,
    EncodeControl,
    Entry,
    EntryKind,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    OutdatedNotice,
    Place,
    RaftSettings,
    ReadState,
    Ready,
    RecallRequest,
    RecallResponse,
    Remembered,
    ReplicaKey,
    Role,
    Room,
    SnapshotId,
    SnapshotRequest,
    SnapshotResponse,
    Stored,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    VoterSet,
)


class RaftNode:
    """See the module. ``draw`` gives the random election timeouts (5.2). ``memory``: what the process remembers."""

    def __init__(
        self,
        key: ReplicaKey,
        stored: Stored,
        view: LogView,
        *,
        draw: Draw,
        settings: RaftSettings | None = None,
        memory: Memory | None = None,
        control: EncodeControl = lambda kind, term, base_offset, voters: b"",
    ) -> None:
        self.key = key
        self.settings = settings or RaftSettings()
        self.role = Role.FOLLOWER
        self.log = RaftLog(view, stored)
        #: All entries below this offset are committed. The offset is not stored: after a restart it begins at the
        #: newest snapshot, until a leader sends it, or commits the later entries again.
        self.committed = max(stored.start.place.offset, stored.committed)
        #: Whether this replica may stand for election. One whose disk is full only follows and votes.
        self.may_lead = True
        #: The space on this replica's disk, which a follower reports to its leader; None: unknown.
        self.room: Room | None = None
        self._control = control
        # The log may have a higher term than a lost or outdated term file, and a replica must never use a term again.
        self._saved = saved = stored.hard_state
        self._state = saved if saved.term >= self.log.last_term else HardState(self.log.last_term)
        self._leader: ReplicaKey | None = None
        self._ticks = 0
        self._votes: dict[ReplicaKey, bool] = {}
        self._election_timer = ElectionTimer(self.settings.election_ticks, draw)
        self._memory = memory or Memory()
        others = (each for each in self.log.voters if each.node_id != key.node_id)
        # (A process that goes on, after a full disk, has forgotten nothing.)
        self._questions = Questions(others, self.settings.recall_ticks if memory is None else 0)
        self.outdated = self._memory.outdated
        self._observers: set[ReplicaKey] = set()  #: Followers that do not vote; a leader replicates to them.
        # State of a leader
        self._progress: dict[ReplicaKey, Progress] = {}
        self._rounds = Rounds(self.settings.election_ticks)
        self._reads = Reads(self._rounds)
        self._term_start = 0
        self._since_heartbeat = self._since_asked = 0
        self._transfer_to: ReplicaKey | None = None
        self._transfer_until = 0
        # State of a follower that receives a snapshot
        self._receiver = SnapshotReceiver()
        self._install: SnapshotId | None = None
        # Output that is kept until the next ``ready``
        self._messages: list[Message] = []
        self._replies: list[Message] = []
        self._served: list[ReadState] = []
        self._reads_failed: list[object] = []
        self._in_hand: Ready | None = None

    @property
    def node_id(self) -> int:
        return self.key.node_id

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def leader(self) -> int:
        """Node id of the leader of this term; NO_LEADER if it is not known."""
        return NO_LEADER if self._leader is None else self._leader.node_id

    @property
    def voters(self) -> VoterSet:
        return self.log.voters

    @property
    def is_voter(self) -> bool:
        return self.key in self.log.voters

    @property
    def log_end_offset(self) -> int:
        """Offset of the next entry in the log."""
        return self.log.end_offset

    @property
    def has_committed_in_term(self) -> bool:
        """Whether the leader has committed an entry of its term, so that its commit offset is up to date (5.4.2)."""
        return self.role is Role.LEADER and self.committed > self._term_start

    @property
    def transferring_to(self) -> ReplicaKey | None:
        """Target of the leadership transfer in progress; None if there is no transfer."""
        return self._transfer_to

    @property
    def _may_stand(self) -> bool:
        """Whether this replica may stand for election: it is a voter, or was one before a change that may not be
        committed. A former voter's log may be the only one that is long enough, although its vote does not count."""
        return self.may_lead and any(self.key in voters for voters in self.log.voters_since(self.committed))

    @property
    def _is_alone(self) -> bool:
        return self.log.voters.keys == (self.key,) and self.role is Role.FOLLOWER

    def progress_of(self, key: ReplicaKey) -> Progress | None:
        """The progress of a follower; None unless this replica leads and replicates to the follower."""
        return self._progress.get(key)

    @property
    def followers(self) -> Collection[ReplicaKey]:
        """The replicas to which this leader sends the log."""
        return self._progress.keys()

    @property
    def is_at_rest(self) -> bool:
        """Whether ``ready`` would be empty: this node leads, every replica has the whole log and knows its commit
        offset, and no request waits."""
        if self.role is not Role.LEADER or self._messages or self._replies or self._served or self._reads.are_asked:
            return False
        end = self.log.end_offset
        return self.committed == end and all(progress.is_done(end) for progress in self._progress.values())

    @property
    def ticks(self) -> int:
        return self._ticks

    @property
    def ticks_until_due(self) -> int:
        """Number of ticks until a tick may have an effect, unless a message or a request arrives earlier: at least 1,
        and at most the heartbeat interval plus one, so that the driver can detect a pause of its process."""
        most = self.settings.heartbeat_ticks + 1
        if self._transfer_to is not None or self._questions.are_open:
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

    # -- inputs ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Advance the replica's time by one tick."""
        self._ticks += 1
        self._election_timer.tick()
        if self._questions.are_open:
            self._tick_as_asking()
        elif self.role is Role.LEADER:
            self._tick_as_leader()
        elif self._may_stand and (self._election_timer.is_expired or self._is_alone):
            self._become_prospective()

    def step(self, message: Message) -> None:
        """Process a message; messages may be repeated, late or out of order. Raises OutdatedVoterError if the message
        shows that this replica's directory is an older copy; from then on the replica ignores every message."""
        sender, body = message.sender, message.body
        if message.to != self.key or sender == self.key or self.key in self.outdated:
            return
        if isinstance(body, RecallRequest | RecallResponse | OutdatedNotice):
            self._on_recall(sender, body)
            return
        if self._questions.are_open:
            self._questions.hold(message)
            return
        if sender in self.outdated:
            return
        if sender in self.voters:
            self._memory.note_message(self.key, sender, body)
        if isinstance(body, VoteRequest):
            self._on_vote_request(sender, body)
            return
        if body.term < self.term and not (isinstance(body, VoteResponse) and body.is_pre_vote):
            # A response to a pre-vote is never stale: its ``term`` is the voter's, which may be lower than this node's;
            # ``asked_term`` is the term of the election.
            self._answer_stale(sender, body)
            return
        if body.term > self.term:
            self._become_follower(body.term)
        match body:
            case VoteResponse():
                self._on_vote_response(sender, body)
            case AppendRequest():
                self._follow(sender)
                self._on_append(sender, body)
            case HeartbeatRequest():
                self._follow(sender)
                self._compare(sender, Remembered(self.term, end=max(body.committed, body.acknowledged)))
                self._commit(body.committed)
                # Of the answer, only the term must be durable: if it is, the answer need not wait for the disk.
                say = self._send if self._state == self._saved else self._reply
                say(sender, HeartbeatResponse(self.term, body.round, self.room))
            case SnapshotRequest():
                self._follow(sender)
                self._on_snapshot(sender, body)
            case TimeoutNow():
                if self.role is Role.FOLLOWER and self._may_stand:
                    self._become_candidate(is_transfer=True)
            case _:
                self._on_answer_to_leader(sender, body)

    def propose(self, data: bytes, count: int) -> Entry:
        """Append an entry of ``count`` offsets. Raises NotControllerError unless this node leads and is not
        transferring the leadership."""
        self._check_taking()
        return self._append(EntryKind.DATA, data, count)

    def read(self, token: object, *, is_deferred: bool = False) -> None:
        """Request a linearizable read. ``token`` is returned in ``Ready.reads``, with the offset that must be applied
        before the read, or in ``reads_failed``. ``is_deferred``: wait for the next heartbeat round, do not start one.
        Raises NotControllerError unless this node leads."""
        self._check_leading()
        self._reads.ask(token, is_deferred=is_deferred)

    def peer_lost(self, key: ReplicaKey) -> None:
        """Called when the connection to or from the replica ``key`` broke.

        If ``key`` leads, its last message no longer counts as recent contact: this replica starts a pre-vote within 1
        to 3 ticks, unless the leader sends a message before. (A majority in contact with the leader refuses it.) If
        this replica leads, its messages in flight to ``key`` are lost (ReportUnreachable in etcd's raft).
        """
        if self.role is Role.LEADER:
            progress = self._progress.get(key)
            if progress is not None:
                progress.lost(self._rounds.latest)
            # The voter ``key`` may still win the election, but the transfer no longer waits for it.
            if key == self._transfer_to:
                self._transfer_to = None
        elif self.role is Role.FOLLOWER and key == self._leader:
            self._election_timer.leader_lost()

    def observe(self, key: ReplicaKey) -> None:
        """Called when a replica has connected, voter or not: the leader, now or after an election, sends it the log.
        Messages in flight to a replica that has reconnected are sent again at once. A replica that knows no leader and
        is connected to a majority starts a pre-vote within 1 to 3 ticks, so controllers that start together do not wait
        for an election timeout."""
        if key == self.key:
            return
        self._observers.add(key)
        # Its own directory may be back. (An older copy asks before it takes part, and is found again.)
        self.outdated.discard(key)
        if self.settings.recall_ticks:
            self._send(key, RecallRequest(self.term))
        if self.role is Role.LEADER:
            progress = self._progress.setdefault(key, Progress(self.settings, self.log.end_offset))
            progress.lost(self._rounds.latest)
            if progress.match:
                self._since_heartbeat = self.settings.heartbeat_ticks
        elif self._leader is None and is_majority(self.voters, {self.key, *self._observers}):
            # (a candidate has asked for votes already, but not every voter was connected)
            self._election_timer.leader_lost()

    def forget(self, key: ReplicaKey) -> None:
        """Called when a replica has disconnected; voters stay in the set of replicas."""
        self._observers.discard(key)
        if key not in self.voters:
            self._progress.pop(key, None)

    def add_voter(self, key: ReplicaKey, address: str = "") -> Entry:
        """Make a caught-up observer with the address ``address`` a voter (thesis, 4.1, 4.2.1; KIP-853). Raises
        NotControllerError, VoterChangeInProgressError, DuplicateVoterError, ReplicaNotCaughtUpError."""
        self._check_may_change()
        check_addition(self.voters, key)
        end, lag_max = self.log.end_offset, self.settings.learner_lag_max
        check_caught_up(key, self._progress.get(key), end=end, term_start=self._term_start, lag_max=lag_max)
        return self._append_voters(self.voters.plus(key, address))

    def remove_voter(self, key: ReplicaKey) -> Entry:
        """Remove a voter. The leader may remove itself; it resigns when the removal is committed (4.2.2). Raises
        NotControllerError, VoterChangeInProgressError, VoterNotFoundError, and InvalidRequestError for the last
        voter."""
        self._check_may_change()
        check_removal(self.voters, key)
        return self._append_voters(self.voters.minus(key))

    def transfer(self, key: ReplicaKey) -> None:
        """Transfer leadership (3.10): bring ``key`` up to date, then ask it to stand for election at once. The transfer
        ends after an election timeout. Raises NotControllerError, VoterNotFoundError."""
        self._check_leading()
        check_voter(self.voters, key)
        if key != self.key:
            if key != self._transfer_to:  # (a repeated call does not extend the transfer)
                self._transfer_to, self._transfer_until = key, self._ticks + self.settings.election_ticks
            self._hand_over()

    def compacted(self, snapshot: SnapshotId) -> None:
        """The state machine's own snapshot is durable: the log begins after it."""
        assert snapshot.place.offset <= self.committed, f"{snapshot} is beyond what is committed, {self.committed}"
        if snapshot.place.offset > self.log.start.offset:
            self.log.compacted(snapshot)

    # -- output ------------------------------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Return the work that the driver must do now. Call ``persisted`` before the next call of ``ready``."""
        assert self._in_hand is None, "the previous Ready is still being carried out"
        if self.role is Role.LEADER:
            self._ask_round()
            self._send_all()
        truncate_to, entries = self.log.take_unwritten()
        install, self._install = self._install, None
        messages, self._messages = tuple(self._messages), []
        replies, self._replies = tuple(self._replies), []
        served, self._served = tuple(self._served), []
        failed, self._reads_failed = tuple(self._reads_failed), []
        self._in_hand = Ready(
            role=self.role,
            term=self.term,
            leader=self.leader,
            committed=self.committed,
            hard_state=None if self._state is self._saved or self._state == self._saved else self._state,
            chunk=self._receiver.take(),
            install=install,
            truncate_to=truncate_to,
            entries=entries,
            messages=messages,
            replies=replies,
            reads=served,
            reads_failed=failed,
        )
        return self._in_hand

    def persisted(self, ready: Ready, *, snapshot_is_sound: bool = True) -> None:
        """Confirm that the disk has the changes of ``ready`` (step 4). ``snapshot_is_sound``: False if the chunk
        completed a snapshot with a wrong checksum; it is then requested again."""
        assert self._in_hand is ready, "not what was handed out last"
        self._in_hand = None
        self.log.written()
        if ready.hard_state is not None:
            self._saved = ready.hard_state
            if self.role is Role.CANDIDATE and self._saved == self._state:
                self._votes[self.key] = True
                self._count_votes()
        if ready.chunk is not None:
            self._chunk_written(is_sound=snapshot_is_sound)
        if ready.entries and self.role is Role.LEADER:
            self._advance_commit()

    # -- elections (5.2, 9.6) ----------------------------------------------------------------------------------------

    def _become_follower(self, term: int, leader: ReplicaKey | None = None) -> None:
        if self.role is Role.LEADER:
            self.recollections()
            self._reads_failed += self._reads.drop()
            self._rounds.end()
            self._progress.clear()
            self._transfer_to = None
        if term > self.term:
            self._state = HardState(term)
        self.role = Role.FOLLOWER
        self._leader = leader
        self._election_timer.reset()

    def _become_prospective(self) -> None:
        self.role = Role.PROSPECTIVE
        self._leader = None
        self._election_timer.reset()
        self._votes = {self.key: True}
        for key in self.voters:
            if key != self.key:
                self._send(key, VoteRequest(self.term + 1, self.log.end, is_pre_vote=True))
        self._count_votes()

    def _become_candidate(self, *, is_transfer: bool = False) -> None:
        self.role = Role.CANDIDATE
        self._leader = None
        self._state = HardState(self.term + 1, self.key)
        self._votes = {}
        self._election_timer.reset()
        for key in self.voters:
            if key != self.key:
                self._reply(key, VoteRequest(self.term, self.log.end, is_transfer=is_transfer))

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self._leader = self.key
        self._since_heartbeat = self._since_asked = 0
        followers = {*self.voters, *self._observers} - {self.key}
        self._progress = {key: Progress(self.settings, self.log.end_offset) for key in sorted(followers)}
        self._term_start = self.log.end_offset
        self._append_control(EntryKind.LEADER_CHANGE, self.voters)

    def _count_votes(self) -> None:
        outcome = tally(self.voters, self._votes)
        if outcome is Outcome.LOST:
            self._become_follower(self.term)
        elif outcome is Outcome.WON:
            if self.role is Role.PROSPECTIVE:
                self._become_candidate()
            else:
                self._become_leader()

    def _on_vote_request(self, sender: ReplicaKey, request: VoteRequest) -> None:
        if request.term < self.term:
            self._reply(sender, self._vote(request, is_granted=False))
            return
        if self._hears_a_leader and not request.is_transfer:
            if request.is_pre_vote:
                self._reply(sender, self._vote(request, is_granted=False))
            return  # ignore a candidate that is removed, or cut off from the leader (4.2.3)
        if not request.is_pre_vote and request.term > self.term:
            self._become_follower(request.term)
        is_free = self._state.vote == sender or (self._state.vote is None and self._leader is None)
        may_vote = is_free or (request.is_pre_vote and request.term > self.term)
        is_granted = may_vote and self.log.is_up_to_date(request.end)
        if is_granted and not request.is_pre_vote:
            self._state = HardState(self.term, sender)
            self._election_timer.reset()
        self._reply(sender, self._vote(request, is_granted=is_granted))

    def _vote(self, request: VoteRequest, *, is_granted: bool) -> VoteResponse:
        return VoteResponse(self.term, request.term, is_granted, request.is_pre_vote)

    @property
    def _hears_a_leader(self) -> bool:
        return self._leader is not None and (self.role is Role.LEADER or self._election_timer.hears_leader)

    def _on_vote_response(self, sender: ReplicaKey, response: VoteResponse) -> None:
        asked = (Role.PROSPECTIVE, self.term + 1) if response.is_pre_vote else (Role.CANDIDATE, self.term)
        if (self.role, response.asked_term) == asked and sender not in self._votes:
            self._votes[sender] = response.is_granted
            if self.role is Role.CANDIDATE and not response.is_granted:
                self._election_timer.vote_split()
            self._count_votes()

    # -- older copies (memory.py) -------------------------------------------------------------------------------------

    def recollections(self) -> Memory:
        """What this process remembers of the other replicas, including what a leader's followers have acknowledged."""
        for key in self.voters:
            if key in self._progress:
                self._memory.note_follower(key, self.term, self._progress[key].match, self.committed)
        return self._memory

    def _on_recall(self, sender: ReplicaKey, body: Body) -> None:
        match body:
            case RecallRequest():
                memory = self.recollections() if sender in self.voters else Memory()
                self._reply(sender, RecallResponse(self.term, memory.of(sender)))
            case RecallResponse():
                self._compare(sender, body.remembered)
                self._questions.answered(sender)
                self._step_held()
            case OutdatedNotice():
                self.outdated.add(sender)

    def _compare(self, sender: ReplicaKey, remembered: Remembered) -> None:
        what = contradiction(self._state, self.log.end_offset, remembered)
        if what:
            self.outdated.add(self.key)
            raise outdated_error(self.key, sender, what)

    def _tick_as_asking(self) -> None:
        for key in self._questions.tick(self.settings.heartbeat_ticks):
            self._send(key, RecallRequest(self.term))
        self._step_held()

    def _step_held(self) -> None:
        if not self._questions.are_open:
            for message in self._questions.take_held():
                self.step(message)

    # -- following (5.3) ---------------------------------------------------------------------------------------------

    def _follow(self, leader: ReplicaKey) -> None:
        """Process a message of this term's leader: follow the leader, and restart the election timer."""
        assert self.role is not Role.LEADER, f"{leader} and {self.key} both lead in term {self.term}"
        if self.role is not Role.FOLLOWER or self._leader != leader:
            self._become_follower(self.term, leader)
        self._election_timer.leader_contact()

    def _on_append(self, leader: ReplicaKey, request: AppendRequest) -> None:
        previous = request.previous
        # The message is old: both logs are equal below this replica's commit offset.
        if previous.offset < self.committed:
            self._reply(leader, AppendResponse(self.term, previous.offset, self.log.place_at(self.committed)))
        elif self.log.has(previous):
            self.log.adopt(request.entries, self.committed)
            end = request.entries[-1].next_offset if request.entries else previous.offset
            self._commit(min(request.committed, end))
            self._reply(leader, AppendResponse(self.term, previous.offset, self.log.place_at(end)))
        else:
            hint = self.log.last_place_up_to(previous)
            self._reply(leader, AppendResponse(self.term, previous.offset, hint, is_rejected=True))

    def _commit(self, offset: int) -> None:
        self.committed = max(self.committed, offset)
        assert self.committed <= self.log.end_offset, f"committed {self.committed} of {self.log.end_offset}"

    def _answer_stale(self, sender: ReplicaKey, body: Body) -> None:
        """Send the current term to a leader of an earlier term; without it, a replica that returns with a higher term
        could neither follow nor win an election. (As etcd's raft.)"""
        if isinstance(body, AppendRequest | HeartbeatRequest | SnapshotRequest):
            self._reply(sender, AppendResponse(self.term, -1, Place(0, 0), is_rejected=True))

    # -- receiving a snapshot (7) ------------------------------------------------------------------------------------

    def _on_snapshot(self, leader: ReplicaKey, request: SnapshotRequest) -> None:
        place = request.snapshot.place
        if place.offset <= self.committed or self.log.has(place):
            self._commit(min(place.offset, self.log.end_offset))
            self._receiver.drop()
            self._reply(leader, SnapshotResponse(self.term, place, 0, is_installed=True))
            return
        position = self._receiver.offer(request)
        if position is not None:
            self._reply(leader, SnapshotResponse(self.term, place, position))

    def _chunk_written(self, *, is_sound: bool) -> None:
        chunk = self._receiver.written(is_sound=is_sound)
        if chunk is None:
            return
        place, position = chunk.snapshot.place, self._receiver.position
        is_installed = chunk.is_last and is_sound
        if is_installed:
            self._receiver.drop()
            if place.offset > self.committed and not self.log.has(place):
                self._install = chunk.snapshot
                self.log.restart_behind(chunk.snapshot)
                self.committed = place.offset
        if self._leader is not None and self._leader != self.key:
            self._reply(self._leader, SnapshotResponse(self.term, place, position, is_installed))

    # -- leading (5.3, 5.4.2) ----------------------------------------------------------------------------------------

    def _tick_as_leader(self) -> None:
        self._since_asked += 1
        if self._since_asked >= self.settings.election_ticks:
            self._since_asked = 0
            if not self._has_contact_with_majority():
                self._become_follower(self.term)
                return
        if self._ticks >= self._transfer_until:
            self._transfer_to = None
        self._since_heartbeat += 1
        if self._since_heartbeat >= self.settings.heartbeat_ticks:
            self._send_heartbeats()

    def _has_contact_with_majority(self) -> bool:
        """Whether a majority answered messages that were sent within the last election timeout (6.2). See reads.py."""
        sent_at = agreed(self.voters, lambda key: self._ticks if key == self.key else self._progress[key].contact_at)
        return sent_at >= self._ticks - self.settings.election_ticks

    def _append(self, kind: EntryKind, data: bytes, count: int, voters: VoterSet | None = None) -> Entry:
        assert count > 0, "an entry takes up at least one offset"
        entry = Entry(kind, self.term, self.log.end_offset, count, data, voters)
        self.log.append(entry)
        return entry

    def _append_control(self, kind: EntryKind, voters: VoterSet) -> Entry:
        data = self._control(kind, self.term, self.log.end_offset, voters)
        return self._append(kind, data, 1, voters if kind is EntryKind.VOTERS else None)

    def _append_voters(self, voters: VoterSet) -> Entry:
        entry = self._append_control(EntryKind.VOTERS, voters)
        for key in voters:
            if key != self.key and key not in self._progress:
                self._progress[key] = Progress(self.settings, self.log.end_offset)
        return entry  # a removed voter stays as an observer, so that it learns of its removal

    def _advance_commit(self) -> None:
        """Commit the entries that a majority has on disk, if the last of them has the current term."""
        offset = agreed(self.voters, self._durable_at)
        if offset <= self.committed or self.log.term_below(offset) != self.term:
            return
        self._commit(offset)
        if not self.is_voter and self.log.voters_offset <= self.committed:
            self._retire()

    def _retire(self) -> None:
        """Resign when the removal of this leader is committed (4.2.2). The other voters learn of the commit at once,
        and the voter with the longest known log takes over without a timeout (3.10). It may lack this leader's last
        entries: a removed leader takes no requests, and cannot wait for the other voters."""
        self._send_all()
        heir = max(self.voters, key=lambda key: self._progress[key].match)
        self._send(heir, TimeoutNow(self.term))
        self._become_follower(self.term)

    def _durable_at(self, key: ReplicaKey) -> int:
        if key == self.key:
            return self.log.durable_offset
        return 0 if key in self.outdated else self._progress[key].proven_match

    def _send_all(self) -> None:
        end, committed = self.log.end_offset, self.committed
        for key, progress in self._progress.items():
            if progress.next_offset < end or progress.sent_committed < committed or progress.mode is not Mode.REPLICATE:
                self._send_entries(key, progress)

    def _send_entries(self, key: ReplicaKey, progress: Progress, *, also_empty: bool = False) -> None:
        """Send the entries that the follower lacks, up to the maximum in flight; to one that is up to date nothing,
        unless ``also_empty`` is set."""
        while progress.may_send:
            if progress.mode is Mode.SNAPSHOT or progress.next_offset < self.log.start.offset:
                self._send_chunk(key, progress)
                return
            entries = self.log.entries(progress.next_offset, self.settings.message_bytes_max)
            offset = entries[0].base_offset if entries else progress.next_offset
            if not (entries or also_empty or progress.sent_committed < self.committed or progress.mode is Mode.PROBE):
                return
            progress.next_offset = offset
            self._send(key, AppendRequest(self.term, self.log.place_at(offset), entries, self.committed))
            progress.sent_committed = self.committed
            progress.sent(entries[-1].next_offset if entries else offset, sum(entry.size for entry in entries))
            also_empty = False
            if not entries:
                return

    def _send_chunk(self, key: ReplicaKey, progress: Progress) -> None:
        snapshot, position, data, is_last = progress.next_chunk(self.log)
        progress.chunk_sent()
        self._send(key, SnapshotRequest(self.term, snapshot, position, data, is_last))

    def _send_heartbeats(self) -> None:
        self._since_heartbeat = 0
        if self.has_committed_in_term:
            self._reads.await_next(self.committed)
        number = self._rounds.begin(self._ticks)
        for key, progress in self._progress.items():
            progress.note_end(self.log.end_offset, self._ticks)
            match, durable = progress.match, self.log.durable_offset
            self._send(key, HeartbeatRequest(self.term, min(self.committed, match), number, match, durable))
        self._serve_reads()  # a sole voter needs no confirmation

    def _ask_round(self) -> None:
        """Start a heartbeat round that confirms the leadership for the waiting reads."""
        if self._reads.are_asked and self.has_committed_in_term:
            self._send_heartbeats()

    def _serve_reads(self) -> None:
        done = agreed(self.voters, lambda key: self._rounds.latest if key == self.key else self._progress[key].round)
        self._served += self._reads.confirmed(done)

    def _on_answer_to_leader(self, sender: ReplicaKey, body: Body) -> None:
        progress = self._progress.get(sender)
        if self.role is not Role.LEADER or progress is None:
            return
        progress.answered_at = self._ticks
        match body:
            case AppendResponse(is_rejected=True):
                self._on_refusal(sender, progress, body)
            case AppendResponse():
                assert body.match.offset <= self.log.end_offset, f"{sender} has {body.match}, {self.log.end} is the end"
                if progress.matched(body.match.offset):
                    self._advance_commit()
            case HeartbeatResponse():
                progress.touch(body.round, self._rounds.sent_at(body.round))
                progress.room = body.room
                progress.give_way()
                if progress.match < self.log.end_offset:
                    self._send_entries(sender, progress, also_empty=True)
                self._serve_reads()
                self._advance_commit()  # after a broken connection, ``match`` counts again; may retire this leader
            case SnapshotResponse():
                if progress.chunk_answered(body):
                    self._send_entries(sender, progress)
        if self.role is Role.LEADER and sender == self._transfer_to:
            self._hand_over()

    def _on_refusal(self, sender: ReplicaKey, progress: Progress, body: AppendResponse) -> None:
        """The follower refused entries: go on where the logs may agree, or with a snapshot."""
        start = self.log.start.offset
        if not progress.refused(body.previous_offset, self.log.last_place_up_to(body.match).offset):
            return
        if body.previous_offset <= start or body.match.offset < start:
            progress.install(self.log.snapshot)
        self._send_entries(sender, progress)

    def _hand_over(self) -> None:
        key = self._transfer_to
        if key is not None and self._progress[key].match == self.log.end_offset:
            self._send(key, TimeoutNow(self.term))

    # -- checks, sending ---------------------------------------------------------------------------------------------

    def _check_leading(self) -> None:
        if self.role is not Role.LEADER:
            known = f"; controller {self.leader} does" if self._leader is not None else ""
            raise NotControllerError(f"controller {self.node_id} is not the leader{known}")

    def _check_taking(self) -> None:
        self._check_leading()
        if self._transfer_to is not None:
            raise NotControllerError(
                f"controller {self.node_id} is transferring its leadership to controller {self._transfer_to}; retry"
            )

    def _check_may_change(self) -> None:
        self._check_taking()
        is_committed = self.log.voters_offset <= self.committed
        check_no_change(self.voters, is_committed=is_committed, has_committed_in_term=self.has_committed_in_term)

    def _send(self, to: ReplicaKey, body: Body) -> None:
        self._messages.append(Message(self.key, to, body))

    def _reply(self, to: ReplicaKey, body: Body) -> None:
        self._replies.append(Message(self.key, to, body))
