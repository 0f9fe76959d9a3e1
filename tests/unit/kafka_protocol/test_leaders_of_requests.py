"""What a broker does with a Produce or Fetch request for a partition that it leads or not. Its logs are replaced; the
rest is real."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.kafka.streams import LocalProduceRequest
from headrace_core.errors import (
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from headrace_core.security.access import EVERYTHING
from headrace_kafka.client import Client
from headrace_kafka.fetch_path import FetchPath
from headrace_kafka.produce_path import produce
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.frames import RequestHeader
from headrace_kafka.wire.schema import request_body, response_body
from headrace_protos.v1 import common_pb2, fetch_pb2, produce_pb2

PRODUCE, FETCH = 9, 12  # versions
LEADER, FOLLOWER, STRANGER = 1, 2, 3
NOT_LEADER = NotLeaderOrFollowerError.number


class Broker:
    """A client of the broker ``broker_id``. The topics "orders" and "secret" have one partition each, which LEADER
    leads. ``asked``: the requests to its logs, each with the function that takes the answer."""

    def __init__(self, broker_id: int = LEADER, granted: frozenset[str] | None = None) -> None:
        self.client = Client(host="10.0.0.1", listener="kafka")
        self.hung_up = 0
        self.client.hang_up = self._hang_up
        self.client.produce = SimpleNamespace(send=self._asked, request=LocalProduceRequest)
        self.asked: list[tuple[Any, Any]] = []
        self.answers: list[Any] = []
        part = SimpleNamespace(leader=LEADER, leader_epoch=4, replicas=(LEADER, FOLLOWER))
        topics = {
            name: SimpleNamespace(name=name, topic_id=bytes(16), partitions=[part]) for name in ("orders", "secret")
        }
        self.cluster = SimpleNamespace(topic=topics.get, broker_id=broker_id, node=lambda *_: None)
        self.access = EVERYTHING if granted is None else SimpleNamespace(granted=lambda *_: granted)
        self.granted = granted

    def _hang_up(self) -> None:
        self.hung_up += 1

    def _asked(self, request: Any, done: Any, **more: Any) -> None:
        self.asked.append((request, done))

    def call(self, api: Api, version: int, **fields: Any) -> tuple[Any, RequestHeader, bytes]:
        body = bytearray()
        request_body(api, version).write(fields, body)
        call: Any = SimpleNamespace(
            version=version,
            cluster=self.cluster,
            client=self.client,
            client_id="",
            upstream=SimpleNamespace(has_traces=False),
            access=self.access,
            allows=lambda operation, kind, name: self.granted is None or name in self.granted,
            refusal=lambda operation, kind, name: TopicAuthorizationFailedError(name),
            settings=KafkaSettings(),
            throttle_ms=0,
        )
        return call, RequestHeader(api, version, 7, "", 0, True), bytes(body)

    def produce(self, *, acks: int = -1) -> None:
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": b""}]}]
        fields = {"acks": acks, "timeout": 30_000, "topic_data": data}
        produce(*self.call(Api.PRODUCE, PRODUCE, **fields), self._reply_to(Api.PRODUCE, PRODUCE))

    def fetch(self, *, isolation_level: int = 0, topic: str = "orders") -> None:
        item = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 5, "last_fetched_epoch": -1,
                "log_start_offset": -1, "partition_max_bytes": 1000}  # fmt: skip
        topics = [{"topic": topic, "partitions": [item]}]
        fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "session_epoch": -1,
                  "rack_id": "", "isolation_level": isolation_level, "topics": topics}  # fmt: skip
        call, header, body = self.call(Api.FETCH, FETCH, **fields)
        way = SimpleNamespace(send=self._asked)
        FetchPath(self.client, lambda client: way).handle(
            call, header, request_body(Api.FETCH, FETCH).read(body), self._reply_to(Api.FETCH, FETCH)
        )

    def _reply_to(self, api: Api, version: int) -> Any:
        def reply(frames: Any) -> None:
            header_bytes = 9  # size, correlation id and tagged fields
            self.answers.append(
                frames and response_body(api, version).read(bytes(frames[0]), header_bytes).responses[0]
            )

        return reply


def test_records_go_to_the_log_of_the_leader() -> None:
    broker = Broker()
    broker.produce()
    ((request, done),) = broker.asked
    assert request.acks == produce_pb2.ACKS_ALL
    done(produce_pb2.ProduceResponse(results=[produce_pb2.ProducePartitionResult(base_offset=9)]), None)
    assert [each.partition_responses[0].base_offset for each in broker.answers] == [9]


@pytest.mark.parametrize("broker_id", [FOLLOWER, STRANGER])
def test_records_at_another_broker_are_refused_so_that_the_client_learns_the_leader(broker_id: int) -> None:
    broker = Broker(broker_id)
    broker.produce()
    assert broker.asked == []
    assert [each.partition_responses[0].error_code for each in broker.answers] == [NOT_LEADER]


def test_a_request_that_the_log_refuses_as_a_whole_has_the_error_in_each_partition() -> None:
    broker = Broker()
    broker.produce()
    broker.asked[0][1](None, RequestTimedOutError("late"))
    assert [each.partition_responses[0].error_code for each in broker.answers] == [RequestTimedOutError.number]


@pytest.mark.parametrize(("broker_id", "times"), [(LEADER, 0), (FOLLOWER, 1)])
def test_a_producer_without_answers_learns_of_an_error_by_the_end_of_its_connection(broker_id: int, times: int) -> None:
    broker = Broker(broker_id)
    broker.produce(acks=0)
    for _, done in broker.asked:
        done(None, None)
    assert broker.answers == [None]
    assert broker.hung_up == times


@pytest.mark.parametrize(
    ("isolation_level", "asked"),
    [(0, common_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED), (1, common_pb2.ISOLATION_LEVEL_READ_COMMITTED)],
)
def test_a_fetch_has_the_isolation_level_of_the_client(isolation_level: int, asked: int) -> None:
    broker = Broker()
    broker.fetch(isolation_level=isolation_level)
    assert [request.isolation_level for request, _ in broker.asked] == [asked]


@pytest.mark.parametrize(("broker_id", "asked"), [(LEADER, 1), (FOLLOWER, 1), (STRANGER, 0)])
def test_a_fetch_is_for_the_leader_or_another_replica(broker_id: int, asked: int) -> None:
    broker = Broker(broker_id)
    broker.fetch()
    assert len(broker.asked) == asked
    if not asked:
        assert [each.partitions[0].error_code for each in broker.answers] == [NOT_LEADER]


@pytest.mark.parametrize("topic", ["orders", "secret"])
def test_a_fetch_without_the_right_to_read_is_refused(topic: str) -> None:
    broker = Broker(granted=frozenset({"orders"}))
    broker.fetch(topic=topic)
    assert len(broker.asked) == (topic == "orders")
    codes = [each.partitions[0].error_code for each in broker.answers]
    assert codes == ([] if topic == "orders" else [TopicAuthorizationFailedError.number])
    for _, done in broker.asked:
        found = fetch_pb2.FetchPartitionResult(topic=topic, fetch_offset=5, next_offset=5, high_watermark=5)
        done(fetch_pb2.FetchResponse(results=[found]), None)
        assert broker.answers[0].partitions[0].error_code == 0
