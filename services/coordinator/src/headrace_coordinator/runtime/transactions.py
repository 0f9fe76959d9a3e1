"""Sends requests to the transaction shards of this coordinator, and delivers the messages that the shards push.

    put(request) ---> the shard of its transactional id ---> the reply
                        |   `--- CONCURRENT_TRANSACTIONS ---> parked until TransactionEnded, then asked again
                        `--- WriteMarkers ---> the marker sender

A request for the next transaction that arrives while markers are missing waits here, so that neither a producer nor a
partition's leader has to poll. A parked request is answered at the latest when its time limit is over, or when the
shard stops serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace_core.errors import ConcurrentTransactionsError, HeadraceError, RequestTimedOutError

from ..transaction.messages import TransactionEnded, WriteMarkers
from ..transaction.state import PREPARING
from ..transaction.transactions import TransactionsStateMachine
from .runner import Done, ShardRunner, resolve
from .shards import Shards

#: Maximum number of parked requests of a coordinator; further requests get CONCURRENT_TRANSACTIONS at once.
PARKED_MAX = 10_000

#: Writes markers and reports MarkersWritten to the runner.
Send = Callable[[ShardRunner, WriteMarkers], None]


class _Asked(NamedTuple):
    """A request that may be asked several times; see ``Transactions.put``. ``until_s``: time until which the request
    may be parked."""

    request: Any
    done: Done
    until_s: float
    wait_for_markers: bool


class _Parked:
    """A request that waits until a transaction has ended. Exactly one of its callbacks is called: ``ended``; ``moved``
    when the shard of ``runner`` stops serving; ``expired`` when the request's time is over."""

    __slots__ = ("ended", "expired", "moved", "runner", "timer")

    def __init__(
        self,
        runner: ShardRunner,
        *,
        ended: Callable[[], None],
        moved: Callable[[], None],
        expired: Callable[[], None],
    ) -> None:
        self.runner = runner
        self.ended = ended
        self.moved = moved
        self.expired = expired
        self.timer: asyncio.TimerHandle | None = None


class Transactions:
    """The transactions of this coordinator's shards. Call all methods in one event loop."""

    def __init__(self, shards: Callable[[], Shards], send: Send, *, parked_max: int = PARKED_MAX) -> None:
        """``shards`` returns this coordinator's shards, or raises a HeadraceError."""
        self._shards = shards
        self._send = send
        self._parked_max = parked_max
        self._parked: dict[str, list[_Parked]] = {}
        self._parked_count = 0

    async def ask(self, request: Any, within_s: float, *, wait_for_markers: bool = False) -> Any:
        """Like ``put``, but returns the reply or raises the error."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.put(request, partial(resolve, reply), within_s, wait_for_markers=wait_for_markers)
        try:
            return await reply
        finally:
            del reply  # the traceback of its error keeps this frame: a cycle with the request

    def put(self, request: Any, done: Done, within_s: float, *, wait_for_markers: bool = False) -> None:
        """Send ``request``, which has a transactional id, to its shard. ``done`` is called with the reply or the
        HeadraceError. ``within_s``: time in seconds that the request may be parked. ``wait_for_markers``: call ``done``
        when the transaction that the request ended has all its markers; after ``within_s`` with
        RequestTimedOutError."""
        self._ask_shard(_Asked(request, done, asyncio.get_running_loop().time() + within_s, wait_for_markers))

    def _ask_shard(self, asked: _Asked) -> None:
        try:
            runner = self._shards().of_transactional_id(asked.request.transactional_id)
        except HeadraceError as error:
            asked.done(error)
            return
        runner.put(asked.request, partial(self._decided, runner, asked))

    def _decided(self, runner: ShardRunner, asked: _Asked, outcome: object) -> None:
        transactional_id, again = asked.request.transactional_id, partial(self._ask_shard, asked)
        if isinstance(outcome, ConcurrentTransactionsError):
            parked = _Parked(runner, ended=again, moved=again, expired=partial(asked.done, outcome))
        elif asked.wait_for_markers and not isinstance(outcome, Exception) and _is_ending(runner, transactional_id):
            late = RequestTimedOutError(
                f"the transaction of {transactional_id!r} is decided, but some of its markers are not written yet; "
                "repeat the request to wait for them"
            )
            parked = _Parked(runner, ended=partial(asked.done, outcome), moved=again, expired=partial(asked.done, late))
        else:
            asked.done(outcome)
            return
        self._park(transactional_id, parked, asked.until_s)

    def tell(self, runner: ShardRunner, pushes: Sequence[object]) -> None:
        """Take the pushes of a shard, whose decisions are committed."""
        for push in pushes:
            if isinstance(push, WriteMarkers):
                self._send(runner, push)
            elif isinstance(push, TransactionEnded):
                for parked in self._released(push.transactional_id):
                    parked.ended()

    def shard_left(self, runner: ShardRunner) -> None:
        """The shard of ``runner`` no longer serves: send its parked requests again, so that their senders get an
        error."""
        for transactional_id, some in list(self._parked.items()):
            if any(each.runner is runner for each in some):
                for parked in self._released(transactional_id):
                    parked.moved()

    def _park(self, transactional_id: str, parked: _Parked, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._parked_count >= self._parked_max or loop.time() >= until_s:
            parked.expired()
            return
        self._parked_count += 1
        self._parked.setdefault(transactional_id, []).append(parked)
        parked.timer = loop.call_at(until_s, self._expire, transactional_id, parked)

    def _expire(self, transactional_id: str, parked: _Parked) -> None:
        some = self._parked[transactional_id]
        some.remove(parked)
        if not some:
            del self._parked[transactional_id]
        self._parked_count -= 1
        parked.expired()

    def _released(self, transactional_id: str) -> list[_Parked]:
        """Remove and return the parked requests of a transactional id, in their order."""
        some = self._parked.pop(transactional_id, [])
        self._parked_count -= len(some)
        for parked in some:
            assert parked.timer is not None
            parked.timer.cancel()
        return some


def _is_ending(runner: ShardRunner, transactional_id: str) -> bool:
    state_machine = runner.state_machine
    if not isinstance(state_machine, TransactionsStateMachine):  # the shard has stopped serving
        return False
    transaction = state_machine.transactions.get(transactional_id)
    return transaction is not None and transaction.state in PREPARING
