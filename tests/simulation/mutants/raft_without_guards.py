"""Raft with one guard removed, class by class. Each docstring names the broken rule: a section of the Raft paper (or of
the thesis, T), a KIP, or a known bug.

The tests in test_raft_mutants.py and the simulator (tests/simulation/mutants) must detect each broken class.
"""

from __future__ import annotations

import dataclasses

from headrace_controller.raft import (
    AppendRequest,
    Entry,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    Place,
    RaftLog,
    RaftNode,
    Ready,
    ReplicaKey,
    Role,
    SnapshotChunk,
    SnapshotRequest,
    VoteRequest,
)
from headrace_controller.raft.log import LogView
from headrace_controller.raft.quorum import agreed
from headrace_controller.raft.types import Body, Stored


class ForgetsItsVote(RaftNode):
    """5.2: a voter that forgets its vote votes twice in a term."""

    def ready(self) -> Ready:
        ready = super().ready()
        if ready.hard_state is not None and self.role is not Role.CANDIDATE:
            ready = self._in_hand = ready._replace(hard_state=HardState(ready.hard_state.term))
        return ready

    def persisted(self, ready: Ready, *, snapshot_is_sound: bool = True) -> None:
        state = self._state
        super().persisted(ready, snapshot_is_sound=snapshot_is_sound)
        if ready.hard_state is not None and ready.hard_state.vote is None:
            self._saved = state


class ForgetsItsTerm(RaftNode):
    """5.1: a term that is not durable may be used twice."""

    def ready(self) -> Ready:
        ready = super().ready()
        if ready.hard_state is not None:
            ready = self._in_hand = ready._replace(hard_state=None)
            self._saved = self._state
            if self.role is Role.CANDIDATE:
                self._votes[self.key] = True
                self._count_votes()
        return ready


class VotesForAnybody(RaftNode):
    """5.4.1: a leader is elected that lacks committed entries."""

    def _on_vote_request(self, sender: ReplicaKey, request: VoteRequest) -> None:
        super()._on_vote_request(sender, dataclasses.replace(request, end=Place(1 << 40, 1 << 40)))


class VotesTwice(RaftNode):
    """5.2: a voter gives more than one vote in a term."""

    def _on_vote_request(self, sender: ReplicaKey, request: VoteRequest) -> None:
        if request.term == self.term and not request.is_pre_vote:
            self._state = HardState(self.term)
            self._leader = None
        super()._on_vote_request(sender, request)


class CommitsWhatOthersProposed(RaftNode):
    """5.4.2, figure 8: an entry of an earlier term is committed by counting its copies."""

    def _advance_commit(self) -> None:
        offset = agreed(self.voters, self._durable_at)
        if offset > self.committed and self.log.term_below(offset) is not None:
            self._commit(offset)


class CountsWhatItHasNotWritten(RaftNode):
    """etcd 14370: the leader counts its own log for the commit before the log is durable."""

    def _durable_at(self, key: ReplicaKey) -> int:
        return self.log.end_offset if key == self.key else super()._durable_at(key)

    def propose(self, data: bytes, count: int) -> Entry:
        entry = super().propose(data, count)
        self._advance_commit()
        return entry


class AnswersBeforeItsDisk(RaftNode):
    """A follower acknowledges entries that it may lose (10 bytes truncated on one node lose data in the whole
    cluster)."""

    def ready(self) -> Ready:
        ready = super().ready()
        self._in_hand = ready._replace(messages=ready.messages + ready.replies, replies=())
        return self._in_hand


class DoesNotCompareLogs(RaftNode):
    """5.3: a follower appends entries that do not follow its own log."""

    def _on_append(self, leader: ReplicaKey, request: AppendRequest) -> None:
        if request.previous.offset <= self.log.end_offset and request.previous.offset >= self.committed:
            term = self.log.term_below(request.previous.offset)
            assert term is not None
            request = dataclasses.replace(request, previous=Place(request.previous.offset, term))
        super()._on_append(leader, request)


class CommitsWhatItHasNotCompared(RaftNode):
    """5.3: a heartbeat commits more than the follower is known to have."""

    def _send_heartbeats(self) -> None:
        super()._send_heartbeats()
        for number, message in enumerate(self._messages):
            if isinstance(message.body, HeartbeatRequest):
                changed = dataclasses.replace(message.body, committed=self.committed)
                self._messages[number] = message._replace(body=changed)


class ChangesVotersWhileTheyChange(RaftNode):
    """T 4.1: two changes of the voters at the same time make two disjoint majorities possible."""

    def _check_may_change(self) -> None:
        self._check_leading()


class TakesMailOfAnotherDisk(RaftNode):
    """KIP-853: a voter whose disk was wiped answers as if it were the old voter."""

    def step(self, message: Message) -> None:
        super().step(message._replace(to=self.key))

    def _reply(self, to: ReplicaKey, body: Body) -> None:
        old = next((key for key in self.voters if key.node_id == self.key.node_id), self.key)
        self._replies.append(Message(old, to, body))


class ReadsWithoutAsking(RaftNode):
    """T 6.4: a deposed leader that does not know it serves a stale read."""

    def _ask_round(self) -> None:
        if self._reads.are_asked and self.has_committed_in_term:
            self._served += self._reads.confirmed(self._reads.await_next(self.committed))


class ReadsBeforeItsTerm(RaftNode):
    """T 6.4, 5.4.2: a new leader serves a read before it knows what is committed."""

    @property
    def has_committed_in_term(self) -> bool:
        return self.role is Role.LEADER


class CountsOldRounds(RaftNode):
    """T 6.4: an answer to a heartbeat that was sent before the read counts as proof of the present leadership."""

    def _on_answer_to_leader(self, sender: ReplicaKey, body: Body) -> None:
        if isinstance(body, HeartbeatResponse):
            body = dataclasses.replace(body, round=self._rounds.latest)
        super()._on_answer_to_leader(sender, body)


class StandsOnlyWhileItVotes(RaftNode):
    """T 4.2.2: a voter whose removal is not committed does not stand for election, although its log may be the only one
    that is long enough."""

    @property
    def _may_stand(self) -> bool:
        return self.is_voter


class RaisesItsTermWhenItLosesTheLeader(RaftNode):
    """9.6: a connection that breaks and returns deposes a leader that all other voters can reach."""

    def peer_lost(self, key: ReplicaKey) -> None:
        if self.role is Role.FOLLOWER and key == self._leader:
            self._become_candidate()


class KeepsTheShortTimeout(RaftNode):
    """A leader whose connection broke and returned gets no more than one tick of silence."""

    def _follow(self, leader: ReplicaKey) -> None:
        super()._follow(leader)
        if self._was_lost:
            self._election_timer.leader_lost()

    _was_lost = False

    def peer_lost(self, key: ReplicaKey) -> None:
        super().peer_lost(key)
        self._was_lost = True


class MixesTheSnapshotsOfTwoLeaders(RaftNode):
    """7: chunks of two leaders' snapshots are mixed: the snapshots have the same id and state, but not the same
    bytes."""

    def _on_snapshot(self, leader: ReplicaKey, request: SnapshotRequest) -> None:
        super()._on_snapshot(leader, dataclasses.replace(request, term=0))


class DoublesChunksWithEveryHeartbeat(RaftNode):
    """etcd: a follower is paused while it installs a snapshot, and the connection fills up with earlier messages."""

    def _on_answer_to_leader(self, sender: ReplicaKey, body: Body) -> None:
        progress = self.progress_of(sender)
        if isinstance(body, HeartbeatResponse) and progress is not None:
            progress.is_waiting = False
        super()._on_answer_to_leader(sender, body)


class ForgetsWhoFollows(RaftNode):
    """KIP-595: a new leader forgets the observers, which follow any leader."""

    def _become_leader(self) -> None:
        self._observers.clear()
        super()._become_leader()


class ChangesVotersWhileItHandsOver(RaftNode):
    """T 3.10: the voters change during a leadership transfer. The next leader would begin with an uncommitted change,
    or be removed."""

    def _check_taking(self) -> None:
        self._check_leading()


class GoesWithoutAnHeir(RaftNode):
    """T 4.2.2, 3.10: a leader that is removed leaves the cluster without a leader for an election timeout."""

    def _retire(self) -> None:
        self._send_all()
        self._become_follower(self.term)


class VotesOnlyWhenItKnowsThatItMay(RaftNode):
    """T 4.1, etcd's learners: a new voter gives no vote before it has the entry that made it a voter, although its vote
    is needed."""

    def _on_vote_request(self, sender: ReplicaKey, request: VoteRequest) -> None:
        if self.is_voter:
            super()._on_vote_request(sender, request)


class HandsOverForEver(RaftNode):
    """hashicorp/raft 696: a deposed leader had begun a leadership transfer, and continues it when it leads again."""

    def _become_follower(self, term: int, leader: ReplicaKey | None = None) -> None:
        handing_over_to = self._transfer_to
        super()._become_follower(term, leader)
        self._transfer_to, self._transfer_until = handing_over_to, 1 << 60


class KeepsTermsToItself(RaftNode):
    """openraft 1796: voters with a longer log never learn the term of the voters with a shorter log."""

    def _on_vote_request(self, sender: ReplicaKey, request: VoteRequest) -> None:
        if not (request.is_pre_vote and request.term <= self.term):
            super()._on_vote_request(sender, request)


class NeverTellsAStaleLeader(RaftNode):
    """etcd: a replica that returns with a higher term can neither follow nor win an election."""

    def _answer_stale(self, sender: ReplicaKey, body: Body) -> None:
        return


class NeverDoubtsItself(RaftNode):
    """6.2, KIP-996: a leader that receives nothing from its followers continues to lead, and keeps them from electing
    another leader."""

    def _tick_as_leader(self) -> None:
        self._since_heartbeat += 1
        self._send_heartbeats()


class HearsOldAnswers(RaftNode):
    """6.2: a response counts by its arrival time, even if its request is old. With this mutant, a leader that reaches
    no follower continues to lead."""

    def _on_answer_to_leader(self, sender: ReplicaKey, body: Body) -> None:
        progress = self.progress_of(sender)
        if progress is not None:
            progress.contact_at = self._ticks
        super()._on_answer_to_leader(sender, body)


class NeverGoesBackToASnapshot(RaftNode):
    """7: a follower needs entries that the leader's log no longer has."""

    def _send_chunk(self, key: ReplicaKey, progress: object) -> None:
        return


class InstallsWhatItHas(RaftNode):
    """7: a late snapshot discards entries that were committed after it."""

    _in_hand_chunk: SnapshotChunk | None = None

    def _on_snapshot(self, leader: ReplicaKey, request: SnapshotRequest) -> None:
        if request.position == 0 and request.is_last:
            self._receiver.offer(request)
        else:
            super()._on_snapshot(leader, request)

    def _chunk_written(self, *, is_sound: bool) -> None:
        assert self._in_hand_chunk is not None
        chunk = self._in_hand_chunk
        if chunk.is_last and chunk.position == 0:
            self._receiver.written(is_sound=is_sound)
            self._receiver.drop()
            self._install = chunk.snapshot
            self.log.restart_behind(chunk.snapshot)
            self.committed = chunk.snapshot.place.offset
        else:
            super()._chunk_written(is_sound=is_sound)

    def persisted(self, ready: Ready, *, snapshot_is_sound: bool = True) -> None:
        self._in_hand_chunk = ready.chunk
        super().persisted(ready, snapshot_is_sound=snapshot_is_sound)


class RemembersNobody(RaftNode):
    """Older copies: nobody says what a voter forgot, and the copy takes part."""

    def _on_recall(self, sender: ReplicaKey, body: Body) -> None:
        return


class VotesBeforeItIsTold(RaftNode):
    """Older copies: a started voter votes before the others have said what they remember of it."""

    def __init__(self, key: ReplicaKey, stored: Stored, view: LogView, **options: object) -> None:
        super().__init__(key, stored, view, **options)  # type: ignore[arg-type]
        self._questions.ticks_left = 0


class CountsACopy(RaftNode):
    """Older copies: what a voter acknowledged counts for commits after its connection broke, although it may have
    come back without it."""

    def _durable_at(self, key: ReplicaKey) -> int:
        return self.log.durable_offset if key == self.key else self._progress[key].match


class _NeverCutsVoters(RaftLog):
    def __init__(self, view: LogView, stored: Stored) -> None:
        super().__init__(view, stored)

    def _truncate(self, offset: int) -> None:
        voters = list(self._voters)
        super()._truncate(offset)
        self._voters = voters


class KeepsVotersThatWereCut(RaftNode):
    """T 4.1: a truncated set of voters still counts, instead of the previous set."""

    def __init__(self, key: ReplicaKey, stored: Stored, view: LogView, **options: object) -> None:
        super().__init__(key, stored, view, **options)  # type: ignore[arg-type]
        self.log = _NeverCutsVoters(view, stored)
