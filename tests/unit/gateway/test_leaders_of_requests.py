"""Which broker gets a Produce or Fetch request, and what the client learns when it is the wrong one or does not answer.
Streams to brokers are replaced; the rest is real."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.errors import (
    NetworkError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from headrace_core.security.access import EVERYTHING
from headrace_kafka.client import BOOTSTRAP, Client
from headrace_kafka.fetch_path import FetchPath, _Stream
from headrace_kafka.produce_path import produce
from headrace_kafka.settings import GatewaySettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.frames import RequestHeader
from headrace_kafka.wire.schema import request_body, response_body
from headrace_protos.v1 import common_pb2, fetch_pb2, produce_pb2

PRODUCE, FETCH = 9, 12  # versions
LEADER, FOLLOWER, STRANGER = 1, 2, 3
NOT_LEADER = NotLeaderOrFollowerError.number


class Gateway:
    """A client on the port of ``broker_id``. The topics "orders" and "secret" have one partition each, which LEADER
    leads. ``asked``: the requests to brokers, each with the broker's id and the function that takes its answer."""

    def __init__(self, broker_id: int = BOOTSTRAP, granted: frozenset[str] | None = None) -> None:
        self.client = Client(host="10.0.0.1", listener="PLAINTEXT", broker_id=broker_id)
        self.hung_up = 0
        self.client.hang_up = self._hang_up
        self.client.produce = SimpleNamespace(send=self._produce, is_shared=lambda *_, **__: False)
        self.asked: list[tuple[int, Any, Any]] = []
        self.answers: list[Any] = []
        part = SimpleNamespace(leader=LEADER, leader_epoch=4, replicas=(LEADER, FOLLOWER))
        topics = {
            name: SimpleNamespace(name=name, topic_id=bytes(16), partitions=[part]) for name in ("orders", "secret")
        }
        self.cluster = SimpleNamespace(
            topic=topics.get, broker_address=lambda broker_id: f"broker-{broker_id}:9095", node=lambda *_: None
        )
        self.access = EVERYTHING if granted is None else SimpleNamespace(granted=lambda *_: granted)
        self.granted = granted

    def _hang_up(self) -> None:
        self.hung_up += 1

    def _produce(self, leader: int, address: str, request: Any, timeout_s: float, done: Any, **more: Any) -> None:
        self.asked.append((leader, request, done))

    def call(self, api: Api, version: int, **fields: Any) -> tuple[Any, RequestHeader, bytes]:
        body = bytearray()
        request_body(api, version).write(fields, body)
        call: Any = SimpleNamespace(
            version=version,
            cluster=self.cluster,
            client=self.client,
            client_id="",
            upstream=SimpleNamespace(traces=None),
            access=self.access,
            allows=lambda operation, kind, name: self.granted is None or name in self.granted,
            refusal=lambda operation, kind, name: TopicAuthorizationFailedError(name),
            settings=GatewaySettings(broker_ports={}),
            throttle_ms=0,
        )
        return call, RequestHeader(api, version, 7, "", 0, True), bytes(body)

    def produce(self, *, acks: int = -1) -> None:
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": b""}]}]
        fields = {"acks": acks, "timeout": 30_000, "topic_data": data}
        produce(*self.call(Api.PRODUCE, PRODUCE, **fields), self._reply_to(Api.PRODUCE, PRODUCE))

    def fetch(self, *, isolation_level: int = 0, topic: str = "orders") -> None:
        gateway = self

        class Path(FetchPath):
            def stream(self, broker_id: int, address: str, committed: bool) -> _Stream:
                def send(request: Any, timeout_s: float, done: Any) -> None:
                    gateway.asked.append((broker_id, request, done))

                return _Stream(SimpleNamespace(send=send), committed)  # type: ignore[arg-type]

        item = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 5, "last_fetched_epoch": -1,
                "log_start_offset": -1, "partition_max_bytes": 1000}  # fmt: skip
        topics = [{"topic": topic, "partitions": [item]}]
        fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "session_epoch": -1,
                  "rack_id": "", "isolation_level": isolation_level, "topics": topics}  # fmt: skip
        call, header, body = self.call(Api.FETCH, FETCH, **fields)
        Path(self.client).handle(
            call, header, request_body(Api.FETCH, FETCH).read(body), self._reply_to(Api.FETCH, FETCH)
        )

    def _reply_to(self, api: Api, version: int) -> Any:
        def reply(frames: Any) -> None:
            header_bytes = 9  # size, correlation id and tagged fields
            self.answers.append(
                frames and response_body(api, version).read(bytes(frames[0]), header_bytes).responses[0]
            )

        return reply


@pytest.mark.parametrize("broker_id", [BOOTSTRAP, LEADER])
def test_records_go_to_the_leader_from_its_own_port_and_the_bootstrap_port(broker_id: int) -> None:
    gateway = Gateway(broker_id)
    gateway.produce()
    ((leader, request, done),) = gateway.asked
    assert (leader, request.acks) == (LEADER, produce_pb2.ACKS_ALL)
    done(produce_pb2.ProduceResponse(results=[produce_pb2.ProducePartitionResult(base_offset=9)]), None)
    assert [each.partition_responses[0].base_offset for each in gateway.answers] == [9]


@pytest.mark.parametrize("broker_id", [FOLLOWER, STRANGER])
def test_records_at_the_port_of_another_broker_are_refused_so_that_the_client_learns_its_leader(broker_id: int) -> None:
    gateway = Gateway(broker_id)
    gateway.produce()
    assert gateway.asked == []
    assert [each.partition_responses[0].error_code for each in gateway.answers] == [NOT_LEADER]


@pytest.mark.parametrize(("was_sent", "code"), [(False, NOT_LEADER), (True, RequestTimedOutError.number)])
def test_only_a_request_that_was_not_sent_counts_as_not_written(was_sent: bool, code: int) -> None:
    gateway, error = Gateway(), NetworkError("the stream broke")
    error.was_sent = was_sent
    gateway.produce()
    gateway.asked[0][2](None, error)
    assert [each.partition_responses[0].error_code for each in gateway.answers] == [code]


@pytest.mark.parametrize(("broker_id", "times"), [(LEADER, 0), (FOLLOWER, 1)])
def test_a_producer_without_answers_learns_of_an_error_by_the_end_of_its_connection(broker_id: int, times: int) -> None:
    gateway = Gateway(broker_id)
    gateway.produce(acks=0)
    for _, _, done in gateway.asked:
        done(None, None)
    assert gateway.answers == [None]
    assert gateway.hung_up == times


@pytest.mark.parametrize(
    ("isolation_level", "asked"),
    [(0, common_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED), (1, common_pb2.ISOLATION_LEVEL_READ_COMMITTED)],
)
def test_a_fetch_has_the_isolation_level_of_the_client(isolation_level: int, asked: int) -> None:
    gateway = Gateway()
    gateway.fetch(isolation_level=isolation_level)
    assert [request.isolation_level for _, request, _ in gateway.asked] == [asked]


@pytest.mark.parametrize(("broker_id", "asked"), [(BOOTSTRAP, [LEADER]), (FOLLOWER, [FOLLOWER]), (STRANGER, [])])
def test_a_fetch_goes_to_the_leader_or_to_the_replica_whose_port_it_came_to(broker_id: int, asked: list[int]) -> None:
    gateway = Gateway(broker_id)
    gateway.fetch()
    assert [each for each, *_ in gateway.asked] == asked
    if not asked:
        assert [each.partitions[0].error_code for each in gateway.answers] == [NOT_LEADER]


@pytest.mark.parametrize("topic", ["orders", "secret"])
def test_a_fetch_without_the_right_to_read_is_refused(topic: str) -> None:
    gateway = Gateway(granted=frozenset({"orders"}))
    gateway.fetch(topic=topic)
    assert len(gateway.asked) == (topic == "orders")
    codes = [each.partitions[0].error_code for each in gateway.answers]
    assert codes == ([] if topic == "orders" else [TopicAuthorizationFailedError.number])
    for _, _, done in gateway.asked:
        found = fetch_pb2.FetchPartitionResult(topic=topic, fetch_offset=5, next_offset=5, high_watermark=5)
        done(fetch_pb2.FetchResponse(results=[found]), None)
        assert gateway.answers[0].partitions[0].error_code == 0
