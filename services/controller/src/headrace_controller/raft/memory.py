"""What replicas remember of each other, so that an older copy of a voter's directory is found.

A voter whose directory is replaced by an older copy (a backup, a snapshot of its machine) has forgotten entries that it
acknowledged and votes that it granted. It could elect a leader without committed entries, or vote twice in a term. Its
disk does not show that. The processes of the other replicas remember what the voter told them:

    a voter starts, or connects again    it asks each replica what the replica remembers of it (RecallRequest)
    the replica answers                  Remembered: term, vote, acknowledged entries (RecallResponse)
    the voter's state contradicts that   OutdatedVoterError; the voter never takes part again (OutdatedNotice)

**A voter that is as it should be is never stopped.** It tells other replicas only what its disk has: replies follow the
flush (step 3 of Ready). The voter itself compares, with the state that it has *now*, so late and repeated messages
do not matter. What may legitimately go back is not compared: entries that were never acknowledged, and entries that a
leader of a later term replaces, unless they were committed. A voter that is added again has a new directory id, which
nobody remembers.

**A voter that has just started takes part only after the answers** (``Questions``), so it promises nothing that
contradicts what a living replica remembers. The leader's answer alone is not enough: it may be deposed, by this voter's
own vote. The voter waits ``RaftSettings.recall_ticks`` at most, because the others may be down. If all who remember are
down, the copy is not found.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_core.errors import OutdatedVoterError

from .types import (
    AppendRequest,
    Body,
    HardState,
    HeartbeatRequest,
    Message,
    Remembered,
    ReplicaKey,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

_NOTHING = Remembered()
#: Maximum number of messages that wait for the answers; Raft sends lost messages again.
_HELD_MAX = 256


class Memory:
    """What one process remembers of other replicas' disks."""

    def __init__(self) -> None:
        self._of: dict[ReplicaKey, Remembered] = {}
        #: Replicas that stopped for good, because their directories are older copies.
        self.outdated: set[ReplicaKey] = set()

    def of(self, key: ReplicaKey) -> Remembered:
        return self._of.get(key, _NOTHING)

    def note(self, key: ReplicaKey, term: int, vote: ReplicaKey | None = None, end: int = 0, kept: int = 0) -> None:
        """Remember that the disk of ``key`` has ``term``, and in this term ``vote`` and all entries below ``end``.
        ``kept``: entries below this offset are committed, so they stay in later terms, too."""
        known = self._of.get(key, _NOTHING)
        kept = max(kept, known.kept)
        if term < known.term:
            term, vote, end = known.term, known.vote, known.end
        elif term == known.term:
            vote, end = known.vote or vote, max(end, known.end)
        if (term, vote, end, kept) != known:
            self._of[key] = Remembered(term, vote, end, kept)

    def note_follower(self, key: ReplicaKey, term: int, match: int, committed: int) -> None:
        """Remember that ``key`` has acknowledged the log up to ``match`` to this replica, the leader of ``term``."""
        if match:
            self.note(key, term, end=match, kept=min(match, committed))

    def note_message(self, own: ReplicaKey, sender: ReplicaKey, body: Body) -> None:
        """Remember what a message to ``own`` shows about the sender's disk. (A leader remembers acknowledged entries in
        ``Progress``.)"""
        match body:
            case VoteRequest():
                if not body.is_pre_vote:  # a pre-vote names a term that its sender does not have yet
                    self.note(sender, body.term, sender)
            case HeartbeatRequest():
                self.note(sender, body.term, sender, body.durable, min(body.durable, body.committed))
            case AppendRequest() | SnapshotRequest() | TimeoutNow():  # a leader has voted for itself
                self.note(sender, body.term, sender)
            case VoteResponse():
                is_vote = body.is_granted and not body.is_pre_vote
                self.note(sender, body.term, own if is_vote else None)
            case _:
                self.note(sender, body.term)


def contradiction(state: HardState, end: int, remembered: Remembered) -> str:
    """What is remembered of a replica that cannot be, because its disk has ``state`` and a log up to ``end``; "" if
    there is no contradiction."""
    term, vote, end_in_term, kept = remembered
    if state.term < term:
        return f"term {term}, but this disk has term {state.term}"
    if state.term == term and vote is not None and state.vote != vote:
        return f"its vote for controller {vote} in term {term}, but this disk has " + (
            "none" if state.vote is None else f"a vote for controller {state.vote}"
        )
    least = max(kept, end_in_term if state.term == term else 0)
    return f"that it acknowledged the log up to offset {least}, but its log ends at {end}" if end < least else ""


def outdated_error(key: ReplicaKey, witness: ReplicaKey, remembered: str) -> OutdatedVoterError:
    """The error that stops the voter ``key``, of which ``witness`` remembers what its disk lacks."""
    return OutdatedVoterError(
        f"controller {key.full_name} has an older copy of its directory: controller {witness} remembers {remembered}. "
        "This voter stays stopped, because it could help to elect a leader that lacks committed metadata. Add it as a "
        "new voter: move the directory away, `headrace format --no-initial-controllers`, start the controller, "
        f"`headrace quorum remove {key.full_name}`, `headrace quorum add` (docs/operations/controllers.md, An older "
        "copy of a directory)"
    )


class Questions:
    """The replicas that a voter has asked after its start, and the messages that wait until they have answered."""

    def __init__(self, others: Iterable[ReplicaKey], ticks_max: int) -> None:
        self.unheard = set(others)
        self._held: list[Message] = []
        self.ticks_left = ticks_max if self.unheard else 0

    @property
    def are_open(self) -> bool:
        return self.ticks_left > 0

    def hold(self, message: Message) -> None:
        if len(self._held) < _HELD_MAX:
            self._held.append(message)

    def answered(self, key: ReplicaKey) -> None:
        self.unheard.discard(key)
        if not self.unheard:
            self.ticks_left = 0

    def tick(self, ask_again_ticks: int) -> list[ReplicaKey]:
        """Time passes; returns the replicas to ask once more."""
        self.ticks_left -= 1
        return sorted(self.unheard) if self.ticks_left % ask_again_ticks == 0 else []

    def take_held(self) -> list[Message]:
        held, self._held = self._held, []
        return held
