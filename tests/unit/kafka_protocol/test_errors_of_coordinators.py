"""Error numbers in a coordinator's answers about offsets and transactions: a transactional producer ends after any
number that it does not expect, and commitSync raises such a number."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    DiskFullError,
    HeadraceError,
    NotCoordinatorError,
    ProducerFencedError,
    RequestTimedOutError,
    ServerBusyError,
    ServerShuttingDownError,
    StorageError,
)
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import MetadataDelta, MetadataImage, PartitionImage, TopicImage
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers.offsets import offset_commit, offset_fetch
from headrace_kafka.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import request_body, response_body

REQUEST_TIMED_OUT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, FENCED = 7, 14, 15, 16, 90

COMMITTED = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
FETCHED = [{"name": "orders", "partition_indexes": [0]}]
ADDED = [{"name": "orders", "partitions": [0]}]
REQUESTS: dict[Api, tuple[Any, int, dict[str, Any]]] = {
    Api.OFFSET_COMMIT: (offset_commit, 9, {"group_id": "g", "topics": COMMITTED}),
    Api.OFFSET_FETCH: (offset_fetch, 9, {"groups": [{"group_id": "g", "topics": FETCHED}]}),
    Api.INIT_PRODUCER_ID: (init_producer_id, 5, {"transactional_id": "t", "transaction_timeout": 60_000}),
    Api.ADD_PARTITIONS_TO_TXN: (
        add_partitions_to_txn,
        3,
        {"v3_and_below_transactional_id": "t", "v3_and_below_topics": ADDED},
    ),
    Api.ADD_OFFSETS_TO_TXN: (add_offsets_to_txn, 4, {"transactional_id": "t", "group_id": "g"}),
    Api.END_TXN: (end_txn, 5, {"transactional_id": "t"}),
    Api.TXN_OFFSET_COMMIT: (txn_offset_commit, 5, {"transactional_id": "t", "group_id": "g", "topics": COMMITTED}),
}


class Upstream:
    """Refuses each call with the error."""

    def __init__(self, error: HeadraceError) -> None:
        self.error = error

    async def coordinator(self, *_: Any) -> Any:
        raise self.error

    async def own(self, *_: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServerBusyError, NOT_AVAILABLE),
        (RequestTimedOutError, NOT_AVAILABLE),
        (ServerShuttingDownError, NOT_COORDINATOR),
        (StorageError, NOT_COORDINATOR),
        (DiskFullError, NOT_COORDINATOR),
        (NotCoordinatorError, NOT_COORDINATOR),
        (CoordinatorLoadInProgressError, LOADING),
    ],
)
def test_a_client_gets_only_numbers_after_which_it_asks_again(error: type[HeadraceError], code: int, api: Api) -> None:
    handler, version, fields = REQUESTS[api]
    assert ask(handler, api, version, error("refused"), fields) == code


def test_a_fenced_producer_is_fenced() -> None:
    handler, version, fields = REQUESTS[Api.END_TXN]
    assert ask(handler, Api.END_TXN, version, ProducerFencedError("fenced"), fields) == FENCED


def test_a_producer_without_transactions_has_no_coordinator_to_look_up() -> None:
    error = RequestTimedOutError("no answer")
    assert ask(init_producer_id, Api.INIT_PRODUCER_ID, 5, error, {"transactional_id": None}) == REQUEST_TIMED_OUT


def ask(handler: Any, api: Api, version: int, error: HeadraceError, fields: dict[str, Any]) -> int:
    """The only error number of the answer."""
    state = MetadataState()
    topics = {name: TopicImage(name, name.encode().ljust(16)[:16], (partition(),))
              for name in ("orders", "__consumer_offsets")}  # fmt: skip
    image = MetadataImage(
        topics={each.topic_id: each for each in topics.values()},
        topic_ids={name: each.topic_id for name, each in topics.items()},
    )
    state.advance(image, MetadataDelta(0, 0))
    call = Call(
        Client(host="10.0.0.1", listener="PLAINTEXT"),
        api,
        version,
        "",
        Cluster(state),
        cast("Any", Upstream(error)),
        KafkaSettings(),
    )
    body, answer = request_body(api, version), response_body(api, version)
    found = answer.read(bytes(answer.write(asyncio.run(handler(call, body.read(bytes(body.write(fields))))))))
    codes = set(codes_in(found)) - {0}
    assert len(codes) == 1
    return codes.pop()


def partition() -> PartitionImage:
    return PartitionImage(
        replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0, directories=(bytes(16),)
    )


def codes_in(found: Any) -> list[int]:
    """The error numbers of a message and of its structures."""
    codes: list[int] = []
    for name, value in vars(found).items():
        if name.endswith("error_code"):
            codes.append(value)
        for each in value if isinstance(value, list) else ():
            codes += codes_in(each) if hasattr(each, "__dict__") else []
    return codes
