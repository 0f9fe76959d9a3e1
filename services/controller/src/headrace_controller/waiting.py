"""Those who wait for an answer, while what they asked for is on its way into the log.

A decision is *appended* at a place: the offset behind it, and the term it was made in. From then on it may come to be
committed, whatever becomes of the leader that made it. So when the lead is lost nothing is said at once; the log tells:

    the place is committed, with the same term               it was done: the answer that was prepared
    something of a later term is committed there, or before  it never will be: NotControllerError, safe to retry
    a snapshot came in place of the log, and hides it        nobody can tell: RequestTimedOutError

(Raft, 5.3: terms never go down along a log, and what one leader appended in its term lies there without a gap.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace_core.errors import HeadraceError, NotControllerError, RequestTimedOutError

from .raft import RaftLog

#: Called exactly once, with what was asked for or with a HeadraceError.
Done = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the metadata offset up to which one must have applied the log to see what was done."""

    reply: Any
    metadata_offset: int


class Outcome(NamedTuple):
    """To be told: ``done(result)``."""

    done: Done
    result: Any


class _Waiting(NamedTuple):
    offset: int
    term: int
    result: Answer | HeadraceError
    done: Done


class Decisions:
    """What was decided here and waits for its place to be committed, in the order of the log."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset: int, term: int, result: Answer | HeadraceError, done: Done) -> None:
        """``result`` is told once everything below ``offset`` is committed and ends there with an entry of ``term``."""
        self._waiting.append(_Waiting(offset, term, result, done))

    def settle(self, applied: int, log: RaftLog) -> list[Outcome]:
        """``log`` is committed, and applied, below ``applied``: those whose fate that decides."""
        settled: list[Outcome] = []
        waiting = self._waiting
        if not waiting:
            return settled
        last_term = log.term_below(applied)
        while waiting:
            first = waiting[0]
            if first.offset <= applied:
                settled.append(Outcome(first.done, self._fate(first, log)))
            elif last_term is not None and last_term > first.term:
                settled.append(Outcome(first.done, self._overwritten()))
            else:
                break
            waiting.popleft()
        return settled

    def lead(self, end: int) -> list[Outcome]:
        """This node leads anew, and all of its log, which ends at ``end``, is committed: what was appended in an
        earlier term beyond it is gone."""
        gone = [Outcome(each.done, self._overwritten()) for each in self._waiting if each.offset > end]
        self._waiting = deque(each for each in self._waiting if each.offset <= end)
        return gone

    def drop(self, error: HeadraceError) -> list[Outcome]:
        """All of them are told ``error``."""
        dropped = [Outcome(each.done, error) for each in self._waiting]
        self._waiting.clear()
        return dropped

    def _fate(self, waiting: _Waiting, log: RaftLog) -> Answer | HeadraceError:
        term = log.term_below(waiting.offset)
        if term is None:  # below the snapshot that the log begins behind
            term = log.start.term
            if waiting.term < term:
                return RequestTimedOutError(
                    f"controller {self._node_id} lost the lead and got a snapshot since: whether the request was "
                    "carried out is not known here; look before you ask again"
                )
        return waiting.result if waiting.term == term else self._overwritten()

    def _overwritten(self) -> HeadraceError:
        return NotControllerError(
            f"controller {self._node_id} lost the lead before the request was committed; nothing of it was done"
        )
