"""When open transactions time out, on a clock that does not move when the wall clock is set. Pure.

A new owner of the shard cannot compare its clock with the former owner's. So the owner writes into the transaction's
record how long the transaction has been open (``Transaction.open_ms``), eight times within the timeout and at least
every 30 s, and the new owner counts on from there. Each take-over thus prolongs a transaction by less than that
interval, and never shortens it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from .state import ProducerIdentity, Transaction, TransactionState

#: The owner writes the age of an open transaction after this share of its timeout, and after at most this many ms.
_AGES, _AGE_MS_MAX = 8, 30_000
#: Entries of ended transactions are removed when there are more than two entries for each transactional id, plus this
#: number.
_SPARE = 1_000


class Timeout(NamedTuple):
    """An entry for an open transaction. ``at_ms``: when its age is written next, or its timeout; ``due_ms``: its
    timeout. The other fields tell the transaction from later ones."""

    at_ms: int
    transactional_id: str
    identity: ProducerIdentity
    is_prepared: bool
    started_ms: int
    due_ms: int
    timeout_ms: int

    def is_of(self, transaction: Transaction) -> bool:
        """Whether the transaction is open, and is the one of this entry."""
        return (
            transaction.state is TransactionState.ONGOING
            and transaction.identity == self.identity
            and transaction.is_prepared == self.is_prepared
            # Guard: under version 1 the producer's next transaction has the same identity.
            and transaction.started_ms == self.started_ms
        )


class Timeouts:
    """The entries of a shard, also of transactions that have ended. All arguments are times of the wall clock."""

    def __init__(self) -> None:
        self._heap: list[Timeout] = []
        self._ahead_ms = 0  #: Milliseconds between the wall clock and the clock of the entries.

    def clock_set(self, by_ms: int) -> None:
        self._ahead_ms += by_ms

    def add(self, transactional_id: str, transaction: Transaction, timeout_ms: int, now_ms: int) -> None:
        began_ms = now_ms - self._ahead_ms - transaction.open_ms
        due_ms = began_ms + timeout_ms
        self._push(
            Timeout(
                0, transactional_id, transaction.identity, transaction.is_prepared, transaction.started_ms, due_ms,
                timeout_ms,
            ),
            now_ms,
        )  # fmt: skip

    def _push(self, entry: Timeout, now_ms: int) -> None:
        age_ms = now_ms - self._ahead_ms + min(entry.timeout_ms // _AGES + 1, _AGE_MS_MAX)
        heapq.heappush(self._heap, entry._replace(at_ms=min(entry.due_ms, age_ms)))

    def again(self, entry: Timeout, now_ms: int, after_ms: int) -> None:
        """Return a due entry to be due again after ``after_ms``."""
        heapq.heappush(self._heap, entry._replace(at_ms=now_ms - self._ahead_ms + after_ms))

    def pop_due(self, now_ms: int) -> Timeout | None:
        """Remove and return the first entry whose time has come."""
        next_ms = self.next_ms()
        return None if next_ms is None or next_ms > now_ms else heapq.heappop(self._heap)

    def aged(self, entry: Timeout, now_ms: int) -> int | None:
        """The age that is to be written for a due entry, whose next time this call sets; None after the timeout."""
        left_ms = entry.due_ms + self._ahead_ms - now_ms
        if left_ms <= 0:
            return None
        self._push(entry, now_ms)
        return entry.timeout_ms - left_ms

    def next_ms(self) -> int | None:
        return self._heap[0].at_ms + self._ahead_ms if self._heap else None

    def forget_ended(self, transactions: int, is_open: Callable[[Timeout], object]) -> None:
        """Remove the entries of ended transactions, if they are too many for this number of transactional ids."""
        if len(self._heap) > 2 * transactions + _SPARE:
            self._heap = [entry for entry in self._heap if is_open(entry) is not None]
            heapq.heapify(self._heap)
