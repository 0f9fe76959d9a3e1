"""Rules of a partition's leader for transactions: which batches enter the log, and which markers are appended. Pure.

A marker is a control batch that ends a producer's transaction in one partition; its bytes are Kafka's
(EndTransactionMarker). The transaction's coordinator requests the markers of a transaction, and requests each marker
again until the partition's leader confirms it. A marker may therefore arrive late or more than once, also from a former
coordinator. The thread that appends a batch or a marker also decides whether the log accepts it. No other append can
come between the decision and the append.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..errors import (
    HeadraceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
)
from ..records import ABORT, COMMIT, BatchHeader, encode_batch
from ..types import TopicPartition
from .producer_state import ProducerEntry

#: The first client transaction version in which each end of a transaction raises the producer epoch (KIP-890, part 2).
EPOCH_RAISING_VERSION = 2

_KEY = struct.Struct(">hh")  #: Key of a marker's record: version, type.
_VALUE = struct.Struct(">hi")  #: Value of a marker's record: version, coordinator epoch.


class TransactionalAppend(NamedTuple):
    """An append of a producer's transactional batches. ``version``: the client's transaction version.

    ``is_verified``: since the producer's last marker in this partition, the coordinator has confirmed that the
    partition belongs to the producer's open transaction with the batches' epoch (KIP-890). ``first_sequence``: the
    smallest sequence among the batches of this epoch that the leader has refused or appended since that marker, and
    this append; None if it is unknown."""

    version: int
    is_verified: bool
    first_sequence: int | None = None


class Marker(NamedTuple):
    """A COMMIT marker (``commit``) or an ABORT marker. ``coordinator_epoch``: the epoch of the coordinator that
    requests the marker; ``version``: the transaction version of the transaction."""

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int
    version: int

    @property
    def last_ended_epoch(self) -> int:
        """The largest epoch of a transaction that the marker can end. Under transaction version 2, the marker's own
        epoch is the epoch of the producer's next transaction."""
        return self.epoch - 1 if self.version >= EPOCH_RAISING_VERSION else self.epoch


def marker_batch(marker: Marker, now_ms: int) -> bytes:
    """The marker as a batch, in Kafka's bytes."""
    key = _KEY.pack(0, COMMIT if marker.commit else ABORT)
    return encode_batch(
        [(now_ms, key, _VALUE.pack(0, marker.coordinator_epoch), None)],
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        transactional=True,
        control=True,
    )


def must_append(marker: Marker, entry: ProducerEntry | None, partition: TopicPartition) -> bool:
    """Whether to append the marker; False if the log has the marker already: the request for the marker then succeeds
    without an append. ``entry``: the partition's state of the producer, None if the producer is unknown.

        marker's epoch, to the entry's   open transaction   version 2                      version 1
        -------------------------------  -----------------  -----------------------------  -----------------------------
        the entry is None                no                 append                         append
        larger                           any                append (KIP-1228)              append
        equal                            no                 done already (KAFKA-19999)     see below
        equal                            yes                INVALID_PRODUCER_EPOCH         append
        smaller                          any                INVALID_PRODUCER_EPOCH         INVALID_PRODUCER_EPOCH

    Under transaction version 2, a marker's epoch is above the epoch of the transaction that the marker ends. A marker
    with the epoch of an open transaction is therefore a late marker of the transaction before (KAFKA-17754). Under
    transaction version 1, the producer epoch does not change at the end of a transaction. Only the coordinator epoch in
    the log fences late markers of former coordinators. A marker of transaction version 1 without an open transaction is
    therefore appended if its coordinator epoch is larger than that of the producer's last marker. If both markers have
    the same coordinator epoch, the log already has the marker.

    Under both transaction versions, a marker with a smaller coordinator epoch than the producer's last marker is
    refused. Raises InvalidProducerEpochError, TransactionCoordinatorFencedError.
    """
    if entry is None or marker.epoch > entry.epoch:
        appends = True
    elif marker.epoch < entry.epoch:
        raise InvalidProducerEpochError(
            f"{partition}: marker of producer {marker.producer_id} with epoch {marker.epoch} is out of date: the "
            f"partition has epoch {entry.epoch}"
        )
    elif marker.version < EPOCH_RAISING_VERSION:
        appends = entry.transaction_first_offset is not None or marker.coordinator_epoch != entry.coordinator_epoch
    elif entry.transaction_first_offset is not None:
        raise InvalidProducerEpochError(
            f"{partition}: marker of producer {marker.producer_id} with epoch {marker.epoch} is late: the next "
            f"transaction, of the same epoch, is open since offset {entry.transaction_first_offset}"
        )
    else:
        appends = False
    if entry is not None and marker.coordinator_epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"{partition}: marker of producer {marker.producer_id} is refused: its coordinator epoch "
            f"{marker.coordinator_epoch} is out of date, the partition has a marker of coordinator epoch "
            f"{entry.coordinator_epoch}"
        )
    return appends


def check_in_transaction(
    header: BatchHeader, entry: ProducerEntry | None, append: TransactionalAppend, partition: TopicPartition
) -> None:
    """Check that a transactional batch belongs to an open transaction that its coordinator knows (KIP-890). The caller
    has already refused batches with a smaller epoch than the producer's entry, and checks the sequence itself.

        entry of the producer                verified   the batch is
        -----------------------------------  ---------  ----------------------------------------------------
        open transaction, the batch's epoch  any        in the transaction
        open transaction, a smaller epoch    any        refused: the former transaction has no marker yet
        no open transaction                  yes        the first of its transaction in the partition
        no open transaction                  no         refused: it would begin a transaction that no marker ends

    Under transaction version 2, sequences begin with 0 in each epoch. An unknown producer's first batch must therefore
    have sequence 0, else an earlier batch of the transaction is missing. Under version 1, the sequence of an unknown
    producer's first batch may be larger, because the log may have forgotten the producer. The leader then must not have
    refused an earlier batch: the producer sends that batch again, and it would be appended after this one.

    Raises OutOfOrderSequenceNumberError, and TransactionAbortableError (version 1: InvalidTxnStateError, because old
    clients do not know TransactionAbortableError).
    """
    is_open = entry is not None and entry.transaction_first_offset is not None
    if is_open:
        assert entry is not None
        if header.producer_epoch == entry.epoch:
            return
        raise _refusal(append)(
            f"{partition}: producer {header.producer_id} with epoch {header.producer_epoch} cannot write: its former "
            f"transaction, with epoch {entry.epoch}, has no marker in the partition yet; abort the transaction"
        )
    if not append.is_verified:
        raise _refusal(append)(
            f"{partition}: the batch of producer {header.producer_id} with epoch {header.producer_epoch} is not part "
            "of an open transaction: the transaction has ended in the partition; abort the transaction in the producer"
        )
    if entry is None and append.version >= EPOCH_RAISING_VERSION and header.base_sequence != 0:
        raise OutOfOrderSequenceNumberError(
            f"{partition}: producer {header.producer_id} begins its transaction with sequence {header.base_sequence}, "
            "but must begin with 0"
        )
    if entry is None and append.first_sequence is not None and header.base_sequence > append.first_sequence:
        raise OutOfOrderSequenceNumberError(
            f"{partition}: producer {header.producer_id} begins its transaction with sequence {header.base_sequence}, "
            f"but its batch with sequence {append.first_sequence} was refused; send that batch first"
        )


def _refusal(append: TransactionalAppend) -> type[HeadraceError]:
    return TransactionAbortableError if append.version >= EPOCH_RAISING_VERSION else InvalidTxnStateError
