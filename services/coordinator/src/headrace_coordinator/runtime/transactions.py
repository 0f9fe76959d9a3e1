"""Sends requests to the transaction shards of this coordinator, and delivers the messages that the shards push.

    put(request) ---> the shard of its transactional id ---> the reply
                        |   `--- CONCURRENT_TRANSACTIONS ---> parked until the last marker, then asked again
                        `--- WriteMarkers ---> the marker sender ---> MarkersWritten

A request for the next transaction is parked while markers are missing, so that producers and partitions' leaders need
not poll. When the last marker is written, the request is decided again at once. Its record and the record that
completes the former transaction therefore share one append. A parked request is answered at the latest when its time
limit ends, or when the coordinator stops serving the shard. A parked request is dropped when its caller disconnects. An
InitProducerId that stayed parked after its caller disconnected would later fence the InitProducerId that the producer
repeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace_core.errors import ConcurrentTransactionsError, HeadraceError, RequestTimedOutError
from headrace_core.metadata.shards import OFFSETS_TOPIC

from ..transaction.messages import AddPartitions, DescribeSink, MarkersWritten, TransactionEnded, WriteMarkers
from ..transaction.state import BUMPING_VERSION
from ..transaction.transactions import TransactionsStateMachine
from .runner import Done, ShardRunner, resolve
from .shards import Shards

#: Maximum number of parked requests of a coordinator; further requests get CONCURRENT_TRANSACTIONS at once.
PARKED_MAX = 10_000
#: Maximum number of parked requests of one transactional id or sink, so that one id or sink cannot block all others.
PARKED_OF_ID_MAX = 100

#: Writes markers and reports MarkersWritten to the runner.
Send = Callable[[ShardRunner, WriteMarkers], None]


class _Asked(NamedTuple):
    """A request that may be sent to its shard several times; see ``Transactions.put``. ``until_s``: time until which
    the request may be parked."""

    request: Any
    done: Done
    until_s: float
    wait_for_markers: bool


def _must_be_fenced(request: Any) -> bool:
    """Whether only the owner of the shard may answer the request, even if the answer needs no record.

    A former owner would answer from a state that is out of date. Under transaction version 1, the transactions of a
    producer have the same epoch. Suppose that a producer asks a former owner to commit the open transaction. The former
    owner knows only the previous transaction, and mistakes the request for a repeated request to commit the previous
    transaction. The former owner would confirm a commit that never happens.

    Under transaction version 2, a former owner may confirm the partitions of a transaction that has already ended: a
    partition's log refuses the transaction's batches after the marker, because the marker has a larger epoch. Under
    transaction version 1 the marker has the same epoch, so the log would accept a late batch after the marker, and no
    marker would follow. A group shard does not keep the epoch of an ended transaction."""
    if isinstance(request, AddPartitions):
        return request.version < BUMPING_VERSION or any(each.topic == OFFSETS_TOPIC for each in request.partitions)
    return not isinstance(request, DescribeSink)


class _Parked:
    """A request that waits until a transaction has ended. Exactly one callback is called, if the caller stays
    connected. ``ended``: the transaction has ended. ``moved``: this coordinator stops serving the shard of ``runner``.
    ``expired``: the request's time limit ends. ``is_next``: the request is for the next transaction, so it need not
    wait until the completion of the former transaction is committed."""

    __slots__ = ("asked", "ended", "expired", "is_next", "moved", "runner", "timer")

    def __init__(
        self,
        runner: ShardRunner,
        asked: _Asked,
        *,
        ended: Callable[[], None],
        moved: Callable[[], None],
        expired: Callable[[], None],
        is_next: bool,
    ) -> None:
        self.runner = runner
        self.asked = asked
        self.is_next = is_next
        self.ended = ended
        self.moved = moved
        self.expired = expired
        self.timer: asyncio.TimerHandle | None = None


class Transactions:
    """The transactions of this coordinator's shards. Call all methods in one event loop."""

    def __init__(
        self,
        shards: Callable[[], Shards],
        send: Send,
        *,
        parked_max: int = PARKED_MAX,
        parked_of_id_max: int = PARKED_OF_ID_MAX,
    ) -> None:
        """``shards`` returns this coordinator's shards, or raises a HeadraceError."""
        self._shards = shards
        self._send = send
        self._parked_max = parked_max
        self._parked_of_id_max = parked_of_id_max
        self._parked: dict[str, list[_Parked]] = {}
        self._parked_count = 0

    async def ask(self, request: Any, within_s: float, *, wait_for_markers: bool = False) -> Any:
        """Send a request like ``put``, but return the reply or raise the error."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        asked = _Asked(request, partial(resolve, reply), loop.time() + within_s, wait_for_markers)
        self._ask_shard(asked)
        try:
            return await reply
        except asyncio.CancelledError:
            self._withdraw(asked)
            raise
        finally:
            # The traceback of the reply's error would keep this frame, in a reference cycle with the request.
            del asked, reply

    def put(self, request: Any, done: Done, within_s: float, *, wait_for_markers: bool = False) -> None:
        """Send ``request`` to the shard of its transactional id or its sink. ``done`` is called with the reply or the
        HeadraceError. ``within_s``: time in seconds that the request may be parked. ``wait_for_markers``: call ``done``
        when the transactions that the request ended have all their markers; after ``within_s`` with
        RequestTimedOutError."""
        self._ask_shard(_Asked(request, done, asyncio.get_running_loop().time() + within_s, wait_for_markers))

    def _ask_shard(self, asked: _Asked) -> None:
        try:
            runner = self._shards().of_transactional_id(asked.request.transactional_id)
        except HeadraceError as error:
            asked.done(error)
            return
        runner.put(asked.request, partial(self._decided, runner, asked), is_fenced=_must_be_fenced(asked.request))

    def _decided(self, runner: ShardRunner, asked: _Asked, outcome: object) -> None:
        transactional_id, again = asked.request.transactional_id, partial(self._ask_shard, asked)
        if isinstance(outcome, ConcurrentTransactionsError):
            refuse = partial(asked.done, outcome)
            parked = _Parked(runner, asked, ended=again, moved=again, expired=refuse, is_next=True)
        elif asked.wait_for_markers and not isinstance(outcome, Exception) and _is_ending(runner, transactional_id):
            late = RequestTimedOutError(
                f"the outcome of the transaction of {transactional_id!r} is recorded, but some markers are not written "
                "yet; repeat the request to wait for them"
            )
            answer, late_answer = partial(asked.done, outcome), partial(asked.done, late)
            parked = _Parked(runner, asked, ended=answer, moved=again, expired=late_answer, is_next=False)
        else:
            asked.done(outcome)
            return
        self._park(transactional_id, parked, asked.until_s)

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch of the transactional id's shard; 0 if this coordinator does not own the shard."""
        try:
            return self._shards().of_transactional_id(transactional_id).shard.claim.shard_epoch
        except HeadraceError:
            return 0

    def tell(self, runner: ShardRunner, pushes: Sequence[object]) -> None:
        """Take the pushes of a shard, whose decisions are committed."""
        for push in pushes:
            if isinstance(push, WriteMarkers):
                self._send(runner, push)
            elif isinstance(push, TransactionEnded):
                for parked in self._released(push.transactional_id):
                    parked.ended()

    def markers_written(self, runner: ShardRunner, report: MarkersWritten) -> None:
        """Report written markers to the shard."""
        runner.put(report)
        if not _is_ending(runner, report.transactional_id):
            for parked in self._released(report.transactional_id, only_next=True):
                parked.ended()

    def shard_left(self, runner: ShardRunner) -> None:
        """Called when the shard of ``runner`` no longer serves: send its parked requests again, so that their senders
        get an error."""
        for transactional_id, some in list(self._parked.items()):
            if any(each.runner is runner for each in some):
                for parked in self._released(transactional_id):
                    parked.moved()

    def _park(self, transactional_id: str, parked: _Parked, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        is_full = (
            self._parked_count >= self._parked_max
            or len(self._parked.get(transactional_id, ())) >= self._parked_of_id_max
        )
        if is_full or loop.time() >= until_s:
            parked.expired()
            return
        self._parked_count += 1
        self._parked.setdefault(transactional_id, []).append(parked)
        parked.timer = loop.call_at(until_s, self._expire, transactional_id, parked)

    def _expire(self, transactional_id: str, parked: _Parked) -> None:
        self._remove(transactional_id, parked)
        parked.expired()

    def _withdraw(self, asked: _Asked) -> None:
        """Drop the request if it is parked, because the caller has disconnected."""
        transactional_id = asked.request.transactional_id
        for parked in self._parked.get(transactional_id, ()):
            if parked.asked is asked:
                self._remove(transactional_id, parked)
                return

    def _remove(self, transactional_id: str, parked: _Parked) -> None:
        some = self._parked[transactional_id]
        some.remove(parked)
        if not some:
            del self._parked[transactional_id]
        self._parked_count -= 1
        assert parked.timer is not None
        parked.timer.cancel()

    def _released(self, transactional_id: str, *, only_next: bool = False) -> list[_Parked]:
        """Remove and return the parked requests of a transactional id, in their order; ``only_next``: only those for
        the next transaction."""
        some = self._parked.pop(transactional_id, [])
        released = [parked for parked in some if parked.is_next or not only_next]
        if len(released) < len(some):
            self._parked[transactional_id] = [parked for parked in some if not parked.is_next]
        self._parked_count -= len(released)
        for parked in released:
            assert parked.timer is not None
            parked.timer.cancel()
        return released


def _is_ending(runner: ShardRunner, transactional_id: str) -> bool:
    state_machine = runner.state_machine
    if not isinstance(state_machine, TransactionsStateMachine):  # the shard may have stopped serving
        return False
    return state_machine.is_ending(transactional_id)
