"""Calls about transactions that need no producer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.sinks import TASKS_MAX
from headrace_protos.v1 import transactions_pb2

from ..arguments import items
from ..models import SinkState, TransactionToken
from .coordinators import ATTEMPT_TIMEOUT_S, Coordinators


def checked_token(given: Any) -> TransactionToken:
    """Check a token argument: a TransactionToken or its text."""
    if isinstance(given, str):
        return TransactionToken.parse(given)
    if not isinstance(given, TransactionToken):
        raise InvalidArgumentError(f"token={given!r:.100}: must be a token that prepare() returned, or its text")
    return TransactionToken.parse(str(given))


def checked_tokens(given: Any, sink: str, batch: int) -> list[TransactionToken]:
    """Check the tokens of batch ``batch`` of sink ``sink``."""
    tokens = [checked_token(token) for token in items("tokens", given, "transaction tokens")]
    if len(tokens) > TASKS_MAX:
        raise InvalidArgumentError(
            f"cannot commit batch {batch} of sink {sink!r}: it has {len(tokens)} tokens, one for each task with rows, "
            f"but a batch can have at most {TASKS_MAX}; write the batch with fewer tasks (in Spark: coalesce, or a "
            "lower spark.sql.shuffle.partitions)"
        )
    return tokens


def token_message(token: TransactionToken) -> transactions_pb2.TransactionToken:
    return transactions_pb2.TransactionToken(
        transactional_id=token.transactional_id, producer_id=token.producer_id, producer_epoch=token.producer_epoch
    )


def token_of(message: transactions_pb2.TransactionToken) -> TransactionToken:
    return TransactionToken(message.transactional_id, message.producer_id, message.producer_epoch)


def state_of(message: transactions_pb2.SinkState) -> SinkState:
    return SinkState(message.batch, message.generation)


async def describe_sink(coordinators: Coordinators, sink: str, *, deadline: float) -> SinkState:
    request = transactions_pb2.DescribeSinkRequest(sink_id=sink)
    what = f"description of sink {sink!r}"
    answer = await coordinators.call(sink, "DescribeSink", request, deadline, what, attempt_timeout_s=ATTEMPT_TIMEOUT_S)
    return state_of(answer.state)


async def commit_sink_batch(
    coordinators: Coordinators,
    sink: str,
    batch: int,
    tokens: Iterable[TransactionToken],
    *,
    generation: int | None,
    is_final: bool,
    deadline: float,
) -> SinkState:
    """Commit a sink's batch, and wait for the markers of its transactions. The request may be repeated any number of
    times."""
    request = transactions_pb2.CommitSinkBatchRequest(
        sink_id=sink,
        batch=batch,
        tokens=map(token_message, tokens),
        generation=generation,
        is_final=is_final,
        wait_for_markers=True,
    )
    what = f"commit of batch {batch} of sink {sink!r} (it may have taken effect; repeat the call)"
    answer = await coordinators.call(
        sink, "CommitSinkBatch", request, deadline, what, attempt_timeout_s=ATTEMPT_TIMEOUT_S
    )
    return state_of(answer.state)


async def abort_sink_batch(
    coordinators: Coordinators, sink: str, batch: int, generation: int, *, is_final: bool, deadline: float
) -> SinkState:
    """Abort a sink's batch, and wait for the markers. The request may be repeated any number of times."""
    request = transactions_pb2.AbortSinkBatchRequest(
        sink_id=sink, batch=batch, generation=generation, is_final=is_final, wait_for_markers=True
    )
    what = f"abort of batch {batch} of sink {sink!r} (it may have taken effect; repeat the call)"
    answer = await coordinators.call(
        sink, "AbortSinkBatch", request, deadline, what, attempt_timeout_s=ATTEMPT_TIMEOUT_S
    )
    return state_of(answer.state)


async def complete_transaction(
    coordinators: Coordinators,
    token: TransactionToken,
    *,
    commit: bool,
    deadline: float,
    traceparent: str | None = None,
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
        traceparent=traceparent,
    )
