"""Advice about transactions of exactly-once sinks, for ``transactions describe`` and ``doctor``. Pure.

The transactions of a batch are committed together, or aborted together. Coordinators refuse to commit a single
transaction of a batch. After the abort of a single transaction, the whole batch must be written again."""

from __future__ import annotations

from headrace_core.sinks import SinkTransaction


def how_decided(transaction: SinkTransaction) -> str:
    """A text that says how a sink's transaction ends, and how to abort its batch."""
    return (
        f"the decision of batch {transaction.batch} ends it, with the batch's other transactions: start the query "
        f"again (`Admin.describe_sink({transaction.sink!r})` shows the last decided batch). To give the batch up, call "
        f"`Admin.abort_sink_batch({transaction.sink!r}, {transaction.batch}, {transaction.generation})`; it changes "
        "nothing if the batch is decided"
    )
