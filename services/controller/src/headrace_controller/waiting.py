"""Requests that wait for an answer while their decision is being written to the log and committed.

An appended decision is identified by the offset after the decision, and by the term in which the decision was made. An
appended decision may be committed, even if the leader that made the decision has resigned. After a loss of the
leadership, the log shows the outcome of each appended decision:

    the place is committed, with the same term               it was done: the prepared answer
    something of a later term is committed there, or before it never will be: NotControllerError, safe to retry
    a snapshot replaces the log, and hides it                unknown: RequestTimedOutError

(Raft, 5.3: terms never decrease along a log, and the entries of a leader's term follow each other without a gap.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace_core.errors import HeadraceError, NotControllerError, RequestTimedOutError

from .raft import NO_LEADER, RaftLog, RaftNode, Ready, ReplicaKey, Role

#: Callback for the end of a request, called exactly once, with the result or with a HeadraceError.
Done = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the metadata offset up to which a node must apply the log to see the effect of the request."""

    reply: Any
    metadata_offset: int


class Outcome(NamedTuple):
    """A completed request: its callback ``done``, which is to be called with ``result``."""

    done: Done
    result: Any


class _Waiting(NamedTuple):
    offset: int
    term: int
    result: Answer | HeadraceError
    done: Done


class Decisions:
    """Decisions of this node that wait for their commit, in the order of the log."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset: int, term: int, result: Answer | HeadraceError, done: Done) -> None:
        """Call ``done(result)`` when the entries below ``offset`` are committed and the last of these entries has
        ``term``."""
        self._waiting.append(_Waiting(offset, term, result, done))

    def settle(self, applied: int, log: RaftLog) -> list[Outcome]:
        """The outcomes of decisions that are known when ``log`` is committed and applied below ``applied``."""
        outcomes: list[Outcome] = []
        waiting = self._waiting
        if not waiting:
            return outcomes
        last_term = log.term_below(applied)
        while waiting:
            first = waiting[0]
            if first.offset <= applied:
                outcomes.append(Outcome(first.done, self._fate(first, log)))
            elif last_term is not None and last_term > first.term:
                outcomes.append(Outcome(first.done, self._overwritten()))
            else:
                break
            waiting.popleft()
        return outcomes

    def lead(self, end: int) -> list[Outcome]:
        """Called when this node leads again, and its whole log, which ends at ``end``, is committed. Because the whole
        log is committed, appends of an earlier term beyond ``end`` are lost."""
        gone = [Outcome(each.done, self._overwritten()) for each in self._waiting if each.offset > end]
        self._waiting = deque(each for each in self._waiting if each.offset <= end)
        return gone

    def drop(self, error: HeadraceError, *, behind: int = 0) -> list[Outcome]:
        """Fail the decisions that end after the offset ``behind`` with ``error``; the other decisions continue to
        wait."""
        dropped = [Outcome(each.done, error) for each in self._waiting if each.offset > behind]
        self._waiting = deque(each for each in self._waiting if each.offset <= behind)
        return dropped

    def _fate(self, waiting: _Waiting, log: RaftLog) -> Answer | HeadraceError:
        term = log.term_below(waiting.offset)
        if term is None:  # the requested offset is below the snapshot that precedes the log's start
            term = log.start.term
            if waiting.term < term:
                return RequestTimedOutError(
                    f"controller {self._node_id} lost its leadership and received a snapshot: whether the request "
                    "took effect is unknown; check before you retry"
                )
        return waiting.result if waiting.term == term else self._overwritten()

    def _overwritten(self) -> HeadraceError:
        return NotControllerError(
            f"controller {self._node_id} lost its leadership before the request was committed, so the request had no "
            "effect; retry"
        )


class _Read(NamedTuple):
    """A read that waits until the leadership is confirmed; its answer is ``result``, or the metadata offset if
    ``result`` is None."""

    result: Answer | HeadraceError | None
    done: Done


class Reads:
    """Requests that wait until it is certain that no other node leads (ReadIndex; raft/reads.py)."""

    def __init__(self) -> None:
        self._asked = 0
        self._reads: dict[int, _Read] = {}
        self._confirmed: deque[tuple[int, _Read]] = deque()

    def ask(
        self,
        raft: RaftNode,
        done: Done,
        result: Answer | HeadraceError | None = None,
        *,
        is_deferred: bool = False,
    ) -> None:
        """Call ``done(result)`` when Raft confirms the leadership; with ``result`` None, pass the metadata offset at
        the confirmation. ``is_deferred``: see RaftNode.read. Raises NotControllerError unless this node leads."""
        raft.read(self._asked, is_deferred=is_deferred)
        self._reads[self._asked] = _Read(result, done)
        self._asked += 1

    def note(self, ready: Ready, refusal: Callable[[], HeadraceError]) -> list[Outcome]:
        """Take Raft's results for the reads; returns the outcomes of the failed reads."""
        for token, offset in ready.reads:
            assert isinstance(token, int)
            self._confirmed.append((offset, self._reads.pop(token)))
        failed = [token for token in ready.reads_failed if isinstance(token, int)]
        return [Outcome(self._reads.pop(token).done, refusal()) for token in failed]

    def settle(self, applied: int) -> list[Outcome]:
        """The outcomes of the reads that can be answered when the image contains all entries below ``applied``."""
        outcomes = []
        while self._confirmed and self._confirmed[0][0] <= applied:
            _, read = self._confirmed.popleft()
            outcomes.append(Outcome(read.done, applied if read.result is None else read.result))
        return outcomes

    def drop(self, error: HeadraceError) -> list[Outcome]:
        """Fail all waiting reads with ``error``."""
        reads = [*(read for _, read in self._confirmed), *self._reads.values()]
        self._confirmed.clear()
        self._reads.clear()
        return [Outcome(read.done, error) for read in reads]


class HandOver:
    """A request that waits until another voter leads; there is at most one such request at a time."""

    def __init__(self) -> None:
        self._to: ReplicaKey | None = None
        self._term = -1
        self._done: Done | None = None

    def __bool__(self) -> bool:
        return self._done is not None

    def begin(self, raft: RaftNode, to: ReplicaKey, done: Done) -> None:
        """Start the transfer. Raises NotControllerError, VoterNotFoundError, and RequestTimedOutError if a transfer is
        already in progress."""
        if self._done is not None:
            raise RequestTimedOutError(f"the leadership is being transferred to controller {self._to}; retry")
        raft.transfer(to)
        self._to, self._term, self._done = to, raft.term, done

    def settle(self, raft: RaftNode, applied: int) -> list[Outcome]:
        """The outcome of the transfer, if it has ended."""
        if self._done is None or self._to is None:
            return []
        still_leads = raft.role is Role.LEADER and raft.term == self._term
        result: Answer | HeadraceError
        if still_leads and raft.transferring_to is not None:
            return []
        if not still_leads and raft.leader == NO_LEADER:
            return []
        if raft.leader == self._to.node_id:
            result = Answer(None, applied)
        elif still_leads:
            result = RequestTimedOutError(
                f"controller {self._to} did not become leader; controller {raft.node_id} is still the leader"
            )
        else:
            result = NotControllerError(f"controller {raft.leader} became leader, not controller {self._to}")
        return self.drop(result)

    def drop(self, result: Answer | HeadraceError) -> list[Outcome]:
        """Answer the request that waits for the transfer with ``result``."""
        done, self._done = self._done, None
        return [] if done is None else [Outcome(done, result)]
