"""Calls about transactions that need no producer."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_protos.v1 import transactions_pb2

from ..models import TransactionToken
from .coordinators import ATTEMPT_TIMEOUT_S, Coordinators


def checked_token(given: Any) -> TransactionToken:
    """Check a token argument: a TransactionToken or its text."""
    if isinstance(given, str):
        return TransactionToken.parse(given)
    if not isinstance(given, TransactionToken):
        raise InvalidArgumentError(f"token={given!r:.100}: must be the token of prepare(), or its text")
    return TransactionToken.parse(str(given))


def token_message(token: TransactionToken) -> transactions_pb2.TransactionToken:
    return transactions_pb2.TransactionToken(
        transactional_id=token.transactional_id, producer_id=token.producer_id, producer_epoch=token.producer_epoch
    )


def token_of(message: transactions_pb2.TransactionToken) -> TransactionToken:
    return TransactionToken(message.transactional_id, message.producer_id, message.producer_epoch)


async def complete_transaction(
    coordinators: Coordinators, token: TransactionToken, *, commit: bool, deadline: float
) -> None:
    """Commit or abort the prepared transaction of ``token``, and wait for its markers. The request may be repeated any
    number of times."""
    request = transactions_pb2.CompleteTransactionRequest(
        token=token_message(token), commit=commit, wait_for_markers=True
    )
    await coordinators.call(
        token.transactional_id,
        "CompleteTransaction",
        request,
        deadline,
        f"completion of transaction {token} (it may have taken effect; repeat the call)",
        attempt_timeout_s=ATTEMPT_TIMEOUT_S,
    )
