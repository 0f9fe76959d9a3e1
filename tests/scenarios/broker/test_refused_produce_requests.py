"""Produce requests that the broker refuses before it looks at their records."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_broker.handlers.produce import Writers, fence_of
from headrace_core.errors import InconsistentTopicIdError, InvalidRequestError, InvalidTopicError
from headrace_core.log.fencing import Fence
from headrace_core.metadata.shards import INTERNAL_TOPICS, SHARD_TOPICS
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1 import produce_pb2
from tests.worlds.solo_broker import SoloBroker, batch, produce
from tests.worlds.waiting import in_loop


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (produce_pb2.ProduceRequest(correlation_id=7, acks=produce_pb2.ACKS_ALL), "request 7 names no partition"),
        (produce(8, "orders", batch(b"x"), timeout_ms=-1), "timeout_ms=-1: must not be negative"),
    ],
)
@in_loop
async def test_a_request_without_sense_is_refused_and_appends_nothing(request_: Any, why: str) -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        producer, answers = broker.producer()
        with pytest.raises(InvalidRequestError, match=why):
            producer.on_request(request_)
        producer.on_closed()
        assert answers.sent == []
        assert broker.values("orders") == []


@in_loop
async def test_records_for_a_deleted_topic_do_not_enter_the_new_one_of_its_name() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        producer, answers = broker.producer()
        request = produce(1, "orders", batch(b"x"))
        request.partitions[0].topic_id = bytes(range(16))
        producer.on_request(request)
        (answer,) = await answers.wait_sent(1)
        assert answer.results[0].error.code == InconsistentTopicIdError.number
        assert broker.values("orders") == []
        producer.on_closed()


def item(topic: str, **conditions: int) -> Any:
    return produce_pb2.ProducePartition(topic=topic, partition=3, records=b"", **conditions)


@pytest.mark.parametrize("topic", INTERNAL_TOPICS)
@pytest.mark.parametrize("conditions", [{}, {"shard_epoch": 5}])
def test_no_client_writes_to_a_topic_of_the_coordinators(topic: str, conditions: dict[str, int]) -> None:
    with pytest.raises(InvalidTopicError, match=f"cannot write to {topic}: only coordinators"):
        fence_of(item(topic, **conditions), Writers.CLIENTS)


@pytest.mark.parametrize("conditions", [{"shard_epoch": 0}, {"expected_end": 9}])
def test_no_client_sets_the_conditions_of_a_coordinator(conditions: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="orders-3: only coordinators may send shard_epoch"):
        fence_of(item("orders", **conditions), Writers.CLIENTS)
    assert fence_of(item("orders"), Writers.CLIENTS) is None


@pytest.mark.parametrize(
    "wrong", [item("orders", shard_epoch=1), item(SHARD_TOPICS[0]), item(SHARD_TOPICS[0], shard_epoch=-1)]
)
def test_a_coordinator_writes_only_to_its_shards_with_their_epoch(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="coordinators may append only to"):
        fence_of(wrong, Writers.COORDINATORS)
    assert fence_of(item(SHARD_TOPICS[1], shard_epoch=4), Writers.COORDINATORS) == Fence(4, None)
    assert fence_of(item(SHARD_TOPICS[1], shard_epoch=4, expected_end=0), Writers.COORDINATORS) == Fence(4, 0)
