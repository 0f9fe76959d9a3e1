"""The states of one shard at this coordinator, from the claim record (``claims``) until the shard is released or
fenced. The module is pure: the runner carries out the actions of ``ready`` and reports their results.

                 the claim is committed            all up to it is replayed
    CLAIMING ----------------------------> REPLAYING ---------------------> SERVING
       ^   \\                                  |                               |
       |    `--- a growing pause --- a failure, or an unknown outcome ---------'
       |
    any of them: a smaller epoch than the leader's ---> FENCED        the shard is another coordinator's ---> RESIGNED

At most one append is in flight. Requests that arrive during an append are decided and applied to the state machine at
once; their records are collected for the next appends, of at most ``APPEND_BYTES_MAX`` each. Replies, refusals, reads
and pushes wait until every earlier decision is committed, because they may depend on earlier decisions.

    ask(a)   ready -> Append(a)                     ask(b), ask(c): decided       appended(a) -> Answer(a)
                                                                                  ready -> Append(b, c)

A decision is never rolled back. After an append that failed, or whose outcome is unknown, the state machine may be
ahead of the log. After a failed append the shard drops the state machine, and a new state machine replays the log under
the same epoch. A late append of a dropped state machine does no harm. Each append names the log end that it was decided
on (``expected_end``). The leader refuses an append if the log has grown meanwhile, and the next claim makes the log
grow.

After each failure the shard makes a new state machine; ``attempt`` is the number of the present state machine. Reports
about an earlier attempt are ignored.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedShardEpochError,
    HeadraceError,
    NotCoordinatorError,
    ServerBusyError,
    UnknownServerError,
)
from headrace_core.unexpected import answer_to

from ..state_machine import ClockSet, Decision, ShardRecord, StateMachine
from .claims import Claim, encode_claim, is_claim

#: Maximum bytes of records that a shard gathers while an append is in progress. Above GATHERED_BYTES_MAX the shard
#: refuses clients' requests, but never internal updates (Shard.ask).
GATHERED_BYTES_MAX = 16 * 1024 * 1024
BATCH_BYTES_MAX = 512 * 1024  #: Maximum bytes of keys and values in a batch; far below the topic's max.message.bytes.
#: Maximum bytes of records in an append: as many as the largest batch may have (OffsetSettings.commit_bytes_max). A
#: leader that accepts this batch therefore accepts each append. A leader refuses an append above
#: socket.request.max.bytes, and a refused append costs the shard its state.
APPEND_BYTES_MAX = 1_000_000
#: Maximum bytes of a record in a batch in addition to key and value: lengths, deltas and attributes.
_RECORD_OVERHEAD_BYTES = 32
#: First and longest pause in milliseconds before a coordinator claims a shard again. The pause before a claim doubles
#: with each failed claim.
PAUSE_MS, PAUSE_MS_MAX = 50, 2_000
ANY_END = -1  #: The value of ``expected_end`` for a claim, which may be appended at any log end offset.

#: If an append fails with one of these error codes, its requests get NOT_COORDINATOR, as in Kafka's coordinator.
_RETRY_ELSEWHERE = ("NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR", "NOT_COORDINATOR")
_TOO_LARGE = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")


class ShardState(enum.Enum):
    CLAIMING = "claiming"
    REPLAYING = "replaying"
    SERVING = "serving"
    FENCED = "fenced"
    RESIGNED = "resigned"


class Append(NamedTuple):
    """An action: append ``batches`` under the shard's epoch, in one request with acks=all, if the log ends at
    ``expected_end``. Report the result of the append with ``appended`` or ``append_failed``."""

    attempt: int
    batches: tuple[tuple[ShardRecord, ...], ...]
    expected_end: int


class Replay(NamedTuple):
    """An action: read the committed records from the log's start up to ``end``, exclusive. Report the read records with
    ``replayed``, some at a time, and then ``replay_ended`` or ``replay_failed``."""

    attempt: int
    end: int


class Pause(NamedTuple):
    """An action: call ``resume`` after a pause."""

    attempt: int
    delay_ms: int


class Answer(NamedTuple):
    """``outcome``: the reply, or the HeadraceError."""

    ticket: object
    outcome: object


class Tell(NamedTuple):
    """Messages for other receivers than the caller (state_machine.Decision)."""

    pushes: tuple[Any, ...]


class Became(NamedTuple):
    """An action: report the changed state of the shard to logs, metrics and routing. ``error``: the failure that caused
    the change, if any."""

    state: ShardState
    error: Exception | None = None


Action = Append | Replay | Pause | Answer | Tell | Became


class _Flight:
    """Decisions whose records are appended together, and the answers that are sent after the commit, in order.

    A leader that crashes may leave only the first batches of an append, but never a part of a batch.
    Because a crash never splits a batch, the records of an atomic decision are always in one batch.
    """

    __slots__ = ("_last_bytes", "batches", "bytes", "count", "outcomes")

    def __init__(self) -> None:
        self.batches: list[list[ShardRecord]] = []
        self.outcomes: list[Answer | Tell] = []
        self.bytes = 0
        self.count = 0
        self._last_bytes = 0

    def has_room(self, count: int, size: int) -> bool:
        """Whether ``count`` records of ``size`` bytes fit into the append. Records that share a batch always fit into
        an empty append."""
        encoded = self.bytes + size + _RECORD_OVERHEAD_BYTES * (self.count + count)
        return not self.count or encoded <= APPEND_BYTES_MAX

    def put(self, records: Sequence[ShardRecord], size: int) -> None:
        """Add records of ``size`` bytes, which share a batch."""
        if not self.batches or self._last_bytes + size > BATCH_BYTES_MAX:
            self.batches.append([])
            self._last_bytes = 0
        self.batches[-1] += records
        self._last_bytes += size
        self.bytes += size
        self.count += len(records)


class _Queue:
    """The flights that wait for the end of the present append, in the order of their decisions."""

    __slots__ = ("_flights", "bytes")

    def __init__(self) -> None:
        self._flights: deque[_Flight] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._flights)

    def add(self, records: Sequence[ShardRecord], *, is_atomic: bool) -> None:
        if is_atomic:
            self._put(records)
        else:
            for record in records:
                self._put((record,))

    def _put(self, records: Sequence[ShardRecord]) -> None:
        if not records:
            return
        size = sum(len(record.key) + len(record.value or b"") for record in records)
        if not self._flights or not self._flights[-1].has_room(len(records), size):
            self._flights.append(_Flight())
        self._flights[-1].put(records, size)
        self.bytes += size

    @property
    def last(self) -> _Flight:
        return self._flights[-1]

    def take(self) -> _Flight:
        flight = self._flights.popleft()
        self.bytes -= flight.bytes
        return flight

    def outcomes(self) -> list[Answer | Tell]:
        return [outcome for flight in self._flights for outcome in flight.outcomes]


class Shard:
    """See the module. Not thread-safe; ``now_ms`` is wall-clock time, for the state machine."""

    def __init__(
        self,
        name: str,
        claim: Claim,
        new_state_machine: Callable[[], StateMachine],
        *,
        gathered_bytes_max: int = GATHERED_BYTES_MAX,
    ) -> None:
        """``name``: the shard's name in messages, such as "__consumer_offsets-7". ``new_state_machine`` creates an
        empty state machine."""
        self.name = name
        self.claim = claim
        self.state = ShardState.CLAIMING
        self.attempt = 0
        #: The shard's state machine while the shard serves requests, otherwise None; only this class changes it.
        self.state_machine: StateMachine | None = None
        self._new_state_machine = new_state_machine
        self._gathered_bytes_max = gathered_bytes_max
        self._end = ANY_END
        self._gathering = _Queue()
        self._flying: _Flight | None = None
        self._failures = 0
        self._todo: list[Action] = []
        self._claim_again()

    def ask(self, ticket: object, request: object, now_ms: int, *, is_fenced: bool = False) -> None:
        """Decide a request. The answer to a request comes as ``Answer(ticket, ...)``.

        ``ticket`` None marks an internal update of the coordinator: changed topics, an ended connection, watermarks, a
        proof of ownership, or written markers. An internal update gets no answer, and back-pressure never refuses the
        update, because no client would send it again. Internal updates add at most one record for each earlier request
        of a client, so they need no limit.

        ``is_fenced``: answer the request only after an append that is sent from now on. The partition's leader refuses
        a fenced append if another coordinator has claimed the shard, so an answer proves that no other coordinator
        owned the shard. If a request without records is fenced, the shard appends its claim record again.
        """
        if self.state is not ShardState.SERVING:
            self._answer_now(ticket, self._refusal())
            return
        if ticket is not None and self._gathering.bytes >= self._gathered_bytes_max:
            self._answer_now(
                ticket,
                ServerBusyError(
                    f"{self.name}: {self._gathering.bytes} bytes are waiting to be written to its partition; retry "
                    "later"
                ),
            )
            return
        assert self.state_machine is not None
        try:
            decision = self.state_machine.handle(request, now_ms)
        except HeadraceError as refusal:
            # The traceback of the error would keep this frame, in a reference cycle with the request.
            decision = Decision(reply=refusal.with_traceback(None))
        except Exception as bug:  # noqa: BLE001  (a bug may have changed any state: replay the log)
            self._answer_now(ticket, answer_to(bug, self.name))
            self._drop(bug)
            return
        if is_fenced and ticket is not None and not (decision.records or self._gathering):
            decision = decision._replace(records=(encode_claim(self.claim),))
        self._decided(ticket, decision)

    def tick(self, now_ms: int) -> None:
        """Do the shard's work that is due; call this method at ``next_due_ms``."""
        if self.state is ShardState.SERVING and self.state_machine is not None:
            self._of_itself(lambda state_machine: state_machine.tick(now_ms))

    def clock_was_set(self, by_ms: int, now_ms: int) -> None:
        """Called when the wall clock was set to ``now_ms``: it has advanced by ``by_ms`` more than the real time."""
        if self.state is ShardState.SERVING:
            self._of_itself(lambda state_machine: state_machine.handle(ClockSet(by_ms), now_ms))

    def next_due_ms(self) -> int | None:
        """Wall-clock time at which the runner must call ``tick`` next."""
        if self.state_machine is None or self.state is not ShardState.SERVING:
            return None
        return self.state_machine.next_due_ms()

    def resign(self) -> None:
        """Resign, because another coordinator now owns the shard, or this coordinator stops."""
        self._end_with(ShardState.RESIGNED, None)

    def ready(self) -> list[Action]:
        """The actions that the runner must take now, in their order. ``ready`` sends the next collected records if no
        append is in flight."""
        if self.state is ShardState.SERVING and self._flying is None and self._gathering:
            self._flying = self._gathering.take()
            self._todo.append(Append(self.attempt, tuple(map(tuple, self._flying.batches)), self._end))
        todo, self._todo = self._todo, []
        return todo

    def appended(self, attempt: int, base_offset: int) -> None:
        """Called when an append is committed; its first record has the offset ``base_offset``."""
        if attempt != self.attempt:
            return
        if self.state is ShardState.CLAIMING:
            self._end = base_offset + 1
            self._become(ShardState.REPLAYING)
            self.state_machine = self._new_state_machine()
            self._todo.append(Replay(attempt, self._end))
            return
        flight, self._flying = self._flying, None
        if flight is None or self.state is not ShardState.SERVING:
            raise AssertionError(f"{self.name}: an append ended that was not in progress")
        # Between two appends of this shard, the leader accepted an append of another writer.
        if base_offset != self._end:
            self._flying = flight
            self._drop(
                CoordinatorNotAvailableError(
                    f"{self.name}: the records were written at offset {base_offset}, expected {self._end}: another "
                    "writer appends to the partition"
                )
            )
            return
        self._end += flight.count
        self._failures = 0
        self._todo += flight.outcomes

    def append_failed(self, attempt: int, error: HeadraceError) -> None:
        """Called when an append has failed, or may have failed: the shard treats both cases alike."""
        if attempt != self.attempt:
            return
        if isinstance(error, FencedShardEpochError):
            self._end_with(ShardState.FENCED, error)
        else:
            self._drop(error)

    def replayed(self, attempt: int, records: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Process the next records of the log: key, value, timestamp."""
        if attempt != self.attempt:
            return
        assert self.state is ShardState.REPLAYING
        assert self.state_machine is not None
        replay = self.state_machine.replay
        try:
            for key, value, timestamp_ms in records:
                if not is_claim(key):
                    replay(key, value, timestamp_ms)
        except Exception as error:  # noqa: BLE001  (after any error, this state machine is unusable)
            self._drop(error)

    def replay_ended(self, attempt: int, now_ms: int) -> None:
        """Called when all records up to the claim record were passed to ``replayed``."""
        if attempt != self.attempt:
            return
        self._become(ShardState.SERVING)
        self._of_itself(lambda state_machine: state_machine.loaded(now_ms))

    def replay_failed(self, attempt: int, error: Exception) -> None:
        if attempt == self.attempt:
            self._drop(error)

    def resume(self, attempt: int) -> None:
        """Called when the pause before the next attempt to append the claim record is over."""
        if attempt == self.attempt and self.state is ShardState.CLAIMING:
            self._todo.append(Append(self.attempt, ((encode_claim(self.claim),),), ANY_END))

    def _decided(self, ticket: object, decision: Decision) -> None:
        """Guard: send the answer when all earlier decisions are committed, because the answer may depend on these
        decisions."""
        outcomes: list[Answer | Tell] = []
        if ticket is not None:
            outcomes.append(Answer(ticket, decision.reply))
        if decision.pushes:
            outcomes.append(Tell(decision.pushes))
        self._gathering.add(decision.records, is_atomic=decision.is_atomic)
        if self._gathering:
            self._gathering.last.outcomes += outcomes
        elif self._flying is not None:
            self._flying.outcomes += outcomes
        else:
            self._todo += outcomes

    def _of_itself(self, decide: Callable[[StateMachine], Decision]) -> None:
        assert self.state_machine is not None
        try:
            decision = decide(self.state_machine)
        except Exception as bug:  # noqa: BLE001  (a bug may have changed any state: replay the log)
            self._drop(bug)
            return
        self._decided(None, decision)

    def _refusal(self) -> HeadraceError:
        if self.state in (ShardState.FENCED, ShardState.RESIGNED):
            return NotCoordinatorError(f"{self.name} belongs to another coordinator; look up the coordinator again")
        return CoordinatorLoadInProgressError(f"{self.name} is being loaded; retry")

    def _answer_now(self, ticket: object, error: HeadraceError) -> None:
        if ticket is not None:
            self._todo.append(Answer(ticket, error))

    def _drop(self, error: Exception) -> None:
        """Drop the shard's state and start the shard again after a pause."""
        self._forget(for_clients(self.name, error))
        self._become(ShardState.CLAIMING, error)
        self._claim_again(pause_ms=min(PAUSE_MS << min(self._failures, 16), PAUSE_MS_MAX))
        self._failures += 1

    def _claim_again(self, pause_ms: int = 0) -> None:
        self.attempt += 1
        if pause_ms:
            self._todo.append(Pause(self.attempt, pause_ms))
        else:
            self.resume(self.attempt)

    def _end_with(self, state: ShardState, error: HeadraceError | None) -> None:
        if self.state in (ShardState.FENCED, ShardState.RESIGNED):
            return
        self.attempt += 1
        self._become(state, error)
        self._forget(self._refusal())

    def _forget(self, error: HeadraceError) -> None:
        """Drop the state machine and all decisions that are not known to be committed; pushes of these decisions are
        not sent."""
        outcomes = [*(() if self._flying is None else self._flying.outcomes), *self._gathering.outcomes()]
        self._flying, self._gathering, self.state_machine, self._end = None, _Queue(), None, ANY_END
        self._todo = [action for action in self._todo if isinstance(action, Answer | Tell | Became)]
        self._todo += [Answer(each.ticket, error) for each in outcomes if isinstance(each, Answer)]

    def _become(self, state: ShardState, error: Exception | None = None) -> None:
        self.state = state
        self._todo.append(Became(state, error))


def for_clients(name: str, error: Exception) -> HeadraceError:
    """The error for requests after a failure of the shard's log, as in Kafka's coordinator."""
    if not isinstance(error, HeadraceError):
        return answer_to(error, name)
    if error.code in _RETRY_ELSEWHERE:
        return NotCoordinatorError(f"{name}: {error.message}")
    if error.code in _TOO_LARGE:
        return UnknownServerError(f"{name}: the request's records are too large for the partition: {error.message}")
    return CoordinatorNotAvailableError(f"{name}: whether the request took effect is unknown: {error.message}")
