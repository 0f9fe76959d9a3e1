"""The state of a transactional id, as its record describes it, and the legal transitions. Pure.

    from                          to                when
    (no record)                   EMPTY             InitProducerId
    EMPTY, COMPLETE_*             EMPTY             InitProducerId: the epoch grows, or a new producer id is taken
    EMPTY, COMPLETE_*             ONGOING           the first partition is added; an empty transaction is prepared
    EMPTY, COMPLETE_*             COMPLETE_ABORT    EndTransaction aborts a transaction without partition (version 2)
    ONGOING                       ONGOING           partitions are added; it is prepared; its owner returns
    ONGOING                       PREPARE_COMMIT    EndTransaction commits: from here on it is committed
    ONGOING                       PREPARE_ABORT     EndTransaction, InitProducerId, a timeout or an operator aborts
    ONGOING                       COMPLETE_*        the same without a partition: no marker is to be written
    PREPARE_COMMIT                COMPLETE_COMMIT   every partition has its marker
    PREPARE_ABORT                 COMPLETE_ABORT    every partition has its marker
    EMPTY, COMPLETE_*             (tombstone)       no request for transactional.id.expiration.ms

*Prepared* (two-phase commit, KIP-939) is the state ONGOING with ``is_prepared``, because Kafka's decoder knows only
eight states.

**Identities.** A producer's identity is (producer id, epoch). Under transaction version 2 (KIP-890) each end of a
transaction increments the producer's epoch, and the markers contain the new epoch. Because of the new epoch, a late
message of an ended transaction is fenced. The largest epoch is reserved for transaction markers. A producer whose next
epoch would be the largest gets a new producer id with epoch 0. Sources: KIP-98, KIP-360, KIP-890, KIP-939, Kafka's
TransactionMetadata.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace_core.types import TopicPartition

#: The largest producer epoch, because Kafka's epochs are int16. No producer ever gets the largest producer epoch, but
#: markers may contain it.
EPOCH_MAX = 32_767
NO_PRODUCER_ID = -1
NO_EPOCH = -1
#: Timeout in milliseconds with which Java's ``enable2Pc`` asks for a transaction without a timeout (KIP-939).
NO_TIMEOUT_MS = 2_147_483_647
#: The first client transaction version in which each end of a transaction increments the producer epoch (KIP-890, part
#: 2).
BUMPING_VERSION = 2


class TransactionState(enum.IntEnum):
    """Kafka's states of a transaction, by the status byte of the record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


#: The log has the transaction's outcome (commit or abort), but some of the transaction's markers are not written yet.
PREPARING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
ABORTED = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)

_AT_REST = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
LEGAL: dict[TransactionState | None, tuple[TransactionState | None, ...]] = {
    None: (TransactionState.EMPTY,),
    **dict.fromkeys(
        _AT_REST, (TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_ABORT, None)
    ),
    TransactionState.ONGOING: (TransactionState.ONGOING, *PREPARING, *_AT_REST[1:]),
    TransactionState.PREPARE_COMMIT: (TransactionState.COMPLETE_COMMIT,),
    TransactionState.PREPARE_ABORT: (TransactionState.COMPLETE_ABORT,),
}


class ProducerIdentity(NamedTuple):
    """The producer id and epoch in a producer's batches and requests."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """The state of a transactional id. Times are in milliseconds of the coordinator's wall clock; -1 means no time.

    ``producer_id``, ``producer_epoch``: the identity in the open transaction's batches. While markers are being
    written, ``producer_id`` and ``producer_epoch`` are the identity in the markers. If the transaction is not open and
    no markers are being written, ``producer_id`` and ``producer_epoch`` are the identity of the next transaction.
    ``next_*``: the producer's identity after the end of the transaction, if it differs from ``producer_id`` and
    ``producer_epoch``. The identity changes when the producer's epochs are used up, because the producer then gets a
    new producer id. The identity also changes when a new producer takes over the prepared transaction
    (``keep_prepared``). ``previous_producer_id``: the producer id of the transaction that ended last.
    ``last_producer_epoch``: the epoch of the transaction that ended last, by which a repeated request is recognized.
    ``last_producer_epoch`` is -1 if the producer is fenced, so that the producer cannot repeat its request.
    ``version``: the client's transaction version (KIP-890). ``open_ms``: how long the transaction had been open (or
    prepared) when its owner last wrote this age; see timeouts.py.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int = -1
    version: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    is_prepared: bool = False
    open_ms: int = 0

    @property
    def identity(self) -> ProducerIdentity:
        """(producer id, epoch) of the record; see the class."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def owner(self) -> ProducerIdentity:
        """The identity with which the producer acts from now on."""
        return ProducerIdentity(
            self.producer_id if self.next_producer_id == NO_PRODUCER_ID else self.next_producer_id,
            self.producer_epoch if self.next_producer_epoch == NO_EPOCH else self.next_producer_epoch,
        )

    @property
    def is_undecided_for_ever(self) -> bool:
        """Whether the transaction is open and no timeout ends it."""
        return self.state is TransactionState.ONGOING and (self.is_prepared or self.timeout_ms == NO_TIMEOUT_MS)

    def was_owned_by(self, identity: ProducerIdentity) -> bool:
        """Whether the producer has used this identity before, so that its request may be a repeated request.

        If the transaction that ended last kept the owner's epoch (transaction version 1), the owner had no other
        identity. The epoch before the owner's epoch then belongs to another producer, which InitProducerId has
        fenced."""
        owner = self.owner
        if self.last_producer_epoch == NO_EPOCH or self.ran_under == owner:
            return False
        if owner.epoch == 0:  # assign a new producer id, because the epochs of the former id have run out
            return identity == self.ran_under
        return identity == (owner.producer_id, owner.epoch - 1)

    @property
    def ran_under(self) -> ProducerIdentity:
        """The identity in the batches of the transaction that ended last, or is ending now; for a prepared transaction,
        its token."""
        is_ending = self.state in PREPARING
        return ProducerIdentity(self.producer_id if is_ending else self.previous_producer_id, self.last_producer_epoch)
