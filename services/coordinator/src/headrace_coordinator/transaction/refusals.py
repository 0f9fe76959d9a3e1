"""The errors of transaction requests. Pure."""

from __future__ import annotations

from headrace_core.errors import (
    ConcurrentTransactionsError,
    HeadraceError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    PolicyViolationError,
    ProducerFencedError,
    TransactionAbortableError,
)

from .messages import InitProducerId
from .state import ProducerIdentity, Transaction


def aborted(transactional_id: str) -> HeadraceError:
    return TransactionAbortableError(
        f"transaction of {transactional_id!r} was aborted, by its timeout or by an administrator: abort the "
        "transaction in this producer too, then repeat its work"
    )


def fenced(transactional_id: str, identity: ProducerIdentity, transaction: Transaction) -> HeadraceError:
    """Returns ProducerFencedError, or InvalidProducerIdMappingError if the transactional id never had this producer
    id."""
    known = (transaction.producer_id, transaction.previous_producer_id, transaction.next_producer_id)
    kind = ProducerFencedError if identity.producer_id in known else InvalidProducerIdMappingError
    return kind(fencing(transactional_id, identity, transaction))


def fencing(transactional_id: str, identity: ProducerIdentity, transaction: Transaction) -> str:
    return (
        f"producer {identity.producer_id} with epoch {identity.epoch} of {transactional_id!r} is fenced: the id is at "
        f"producer {transaction.owner.producer_id} with epoch {transaction.owner.epoch}. Another producer has taken "
        "the id over, or the transaction was aborted; make a new producer"
    )


def concurrent(transactional_id: str, transaction: Transaction) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the previous transaction of {transactional_id!r} is still writing its markers ({transaction.state.name}): "
        "retry"
    )


def check_timeout(request: InitProducerId, timeout_ms_max: int, *, may_have_none: bool) -> None:
    """Raises PolicyViolationError and InvalidTransactionTimeoutError."""
    if request.has_no_timeout:
        if not may_have_none:
            raise PolicyViolationError(
                f"transactional id {request.transactional_id!r} must have a transaction timeout, because "
                "transaction.two.phase.commit.enable is false on the coordinators: initialize the producer without "
                "two-phase commit"
            )
    elif not 0 < request.timeout_ms <= timeout_ms_max:
        raise InvalidTransactionTimeoutError(
            f"transaction.timeout.ms={request.timeout_ms} of {request.transactional_id!r} is not between 1 and "
            f"{timeout_ms_max}, the brokers' transaction.max.timeout.ms: lower transaction.timeout.ms"
        )
