"""Answers to TxnOffsetCommit: error numbers after which a producer of Kafka can abort its transaction."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_core.errors import (
    GroupIdNotFoundError,
    HeadraceError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    StaleMemberEpochError,
    TransactionAbortableError,
    UnknownMemberIdError,
)
from headrace_core.membership.metadata_state import MetadataState
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers.transactions import txn_offset_commit
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import request_body


class Coordinator:
    """Refuses each call, or each offset (``is_whole`` is False), with the error."""

    def __init__(self, error: HeadraceError, *, is_whole: bool) -> None:
        self._error = error
        self._is_whole = is_whole

    async def coordinator(self, *_: Any) -> Any:
        if self._is_whole:
            raise self._error
        error = SimpleNamespace(code=self._error.number)
        return SimpleNamespace(results=[SimpleNamespace(error=error)])


def _seen(error: HeadraceError, version: int, *, is_whole: bool = True) -> int:
    """The error number in the answer to a TxnOffsetCommit."""
    body = request_body(Api.TXN_OFFSET_COMMIT, version)
    partitions = [{"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}]
    fields = {"transactional_id": "copy", "group_id": "g", "producer_id": 7, "producer_epoch": 3, "generation_id": 4,
              "member_id": "m", "topics": [{"name": "t", "partitions": partitions}]}  # fmt: skip
    call = Call(
        Client(host="10.0.0.1", listener="PLAINTEXT"),
        Api.TXN_OFFSET_COMMIT,
        version,
        "",
        Cluster(MetadataState()),
        cast("Any", Coordinator(error, is_whole=is_whole)),
        KafkaSettings(),
    )
    answer = asyncio.run(txn_offset_commit(call, body.read(bytes(body.write(fields)))))
    (result,) = answer["topics"][0]["partitions"]
    return cast("int", result["error_code"])


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (StaleMemberEpochError, IllegalGenerationError),
        (GroupIdNotFoundError, IllegalGenerationError),
        (IllegalGenerationError, IllegalGenerationError),
        (UnknownMemberIdError, UnknownMemberIdError),
        (ProducerFencedError, InvalidProducerEpochError),
    ],
)
def test_a_member_of_an_old_epoch_ends_the_transaction_and_not_the_producer(
    error: type[HeadraceError], seen: type[HeadraceError], version: int
) -> None:
    """Any error but UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and FENCED_INSTANCE_ID is fatal for Kafka's producer."""
    assert _seen(error("refused"), version) == seen.number


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("version", "seen"),
    [(3, InvalidTxnStateError), (4, TransactionAbortableError), (5, InvalidTxnStateError)],
)
def test_a_producer_of_transaction_version_1_that_knows_it_gets_transaction_abortable(
    version: int, seen: type[HeadraceError], is_whole: bool
) -> None:
    """Nodes answer INVALID_TXN_STATE to all producers of version 1. It ends the producer of Kafka 3.8."""
    assert _seen(InvalidTxnStateError("not in the transaction"), version, is_whole=is_whole) == seen.number
