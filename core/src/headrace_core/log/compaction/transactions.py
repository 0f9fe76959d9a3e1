"""Find aborted transactions, and markers that may be removed. Pure.

A marker must outlive its transaction's data (KAFKA-8351, 13727, 14055). Without its ABORT marker an aborted record
would look committed; without its COMMIT marker a committed record would look open. Headrace removes data and markers in
Kafka's order:

* The first cleaning that knows of an abort removes the aborted data and keeps the transaction's marker.
* When the log has no more data of a transaction before the transaction's marker, a cleaning gives the marker a delete
  horizon. A cleaning after the delete horizon removes the marker. Until its removal, the marker tells readers that saw
  some of the data how the transaction ended.

Kafka takes the aborted transactions from the segments' .txnindex files. Headrace takes the aborted transactions from
the log's batch headers and markers, so a damaged index cannot bring back an aborted record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...records import ABORT, COMMIT, BatchHeader
from ..txn_index import AbortedTransaction
from .horizon import Verdict, delete_horizon_ms


class TransactionHistory:
    """Finds the aborted and the open transactions from every control and every transactional batch, in the log's
    order."""

    def __init__(self) -> None:
        #: Aborted transactions. The first offset of a transaction is the offset of its first batch that compaction has
        #: kept.
        self.aborted: list[AbortedTransaction] = []
        self.open: dict[int, int] = {}  #: For each producer id: the first offset of the producer's open transaction.

    def observe(self, header: BatchHeader, control_type: int) -> None:
        if not header.is_control:
            self.open.setdefault(header.producer_id, header.base_offset)
        elif control_type in (ABORT, COMMIT):
            first_offset = self.open.pop(header.producer_id, None)
            if control_type == ABORT and first_offset is not None:
                self.aborted.append(AbortedTransaction(header.producer_id, first_offset, header.base_offset))

    @property
    def first_open_offset(self) -> int | None:
        """Offset where the first open transaction starts; None when no transaction is open."""
        return min(self.open.values(), default=None)


class TransactionJudge:
    """Decides what compaction does with each transactional batch and marker, in one pass over the log, in the log's
    order."""

    def __init__(self, aborted: Iterable[AbortedTransaction], now_ms: int) -> None:
        self._coming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._now_ms = now_ms
        #: Key: the id of a producer whose aborted transaction is in progress. Value: whether the pass has met a batch
        #: of the aborted transaction.
        self._aborting: dict[int, bool] = {}
        self._committing: set[int] = set()

    def judge(self, header: BatchHeader, control_type: int) -> int:
        """Return the ``Verdict`` on a batch, as a plain int for the compiled caller."""
        while self._coming and self._coming[0].first_offset <= header.last_offset:
            transaction = self._coming.popleft()
            # Skip a transaction that ended before this batch: the transaction's marker lies before the position at
            # which the pass began.
            if transaction.last_offset >= header.base_offset:
                self._aborting.setdefault(transaction.producer_id, False)
        if not header.is_control:
            if header.producer_id in self._aborting:
                self._aborting[header.producer_id] = True
                return int(Verdict.DISCARD)
            self._committing.add(header.producer_id)
            return int(Verdict.KEEP)
        if not self._is_of_nothing(header, control_type):
            return int(Verdict.KEEP)
        horizon_ms = delete_horizon_ms(header)
        if horizon_ms is not None and horizon_ms <= self._now_ms:
            return int(Verdict.OF_NOTHING | Verdict.DISCARD)
        return int(Verdict.OF_NOTHING)

    def _is_of_nothing(self, header: BatchHeader, control_type: int) -> bool:
        if control_type == ABORT:
            return not self._aborting.pop(header.producer_id, False)
        if control_type == COMMIT:
            was_met = header.producer_id in self._committing
            self._committing.discard(header.producer_id)
            return not was_met
        return header.record_count == 0  # an earlier cleaning emptied the batch; other kinds of markers stay
