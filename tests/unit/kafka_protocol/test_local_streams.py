"""The streams between a Kafka connection and this broker's logs. The handlers behind them are replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace_broker.kafka import streams as module
from headrace_broker.kafka.streams import LocalFetchResponse, LocalProduceRequest, LocalStream
from headrace_core.errors import InvalidRequestError
from headrace_core.metrics.calls import CallTimes
from headrace_core.quotas import QuotaManager
from headrace_core.rpc.receiving import PENALTY_S_MAX, Penalties
from headrace_core.security.access import EVERYTHING, current_access
from headrace_core.security.caller import current_caller
from headrace_kafka.client import Client


class Handler:
    """In place of a ProduceStream or FetchStream. ``asked``: its requests, with their sizes."""

    def __init__(self, broker: Any, stream: LocalStream, *, limits: Any, times: CallTimes) -> None:
        self.stream, self.limits, self.times = stream, limits, times
        self.caller, self.access = current_caller(), current_access()
        self.asked: list[tuple[Any, int]] = []
        self.ended = 0

    def on_request(self, request: Any) -> None:
        if not request.partitions:
            raise InvalidRequestError("names no partition")
        self.asked.append((request, self.stream.request_bytes))

    def on_closed(self) -> None:
        self.ended += 1


class World:
    def __init__(self) -> None:
        self.broker: Any = SimpleNamespace(
            quotas=QuotaManager(),
            penalties=Penalties(lambda: 0.0, lambda: None),
            metrics=SimpleNamespace(kafka_times=CallTimes("kafka")),
            streams=set(),
            client_streams=0,
        )
        self.client = Client(host="10.0.0.1", listener="kafka")
        self.client.client_id = "app"
        self.held: list[bool] = []
        self.client.hold = self.held.append
        self.muted: list[int] = []
        self.client.mute = self.muted.append
        self.hung_up = 0
        self.client.hang_up = self._hang_up
        self.way = module._Way(self.broker, self.client, EVERYTHING, Handler)
        self.handler: Handler = self.way.handler
        self.answers: list[Any] = []

    def _hang_up(self) -> None:
        self.hung_up += 1

    def ask(self, records: bytes = b"12345", *, has_answer: bool = True) -> LocalProduceRequest:
        request = LocalProduceRequest(acks=1, timeout_ms=1_000)
        if records:
            request.partitions.add(topic="t", partition=0, topic_id=b"", records=records)
        self.way._ask(request, len(records), lambda *answer: self.answers.append(answer), has_answer)
        return request


def test_a_handler_has_the_clients_identity_and_its_quotas() -> None:
    world = World()
    assert world.handler.caller is world.client.caller
    assert world.handler.access is EVERYTHING
    assert world.handler.limits.manager is world.broker.quotas
    assert world.handler.times is world.broker.metrics.kafka_times
    assert not current_caller().client_id, "the identity stays in the stream"


def test_answers_go_to_their_requests_in_any_order() -> None:
    world = World()
    first, second = world.ask(b"1"), world.ask(b"22")
    assert [size for _, size in world.handler.asked] == [1, 2]
    for request in (second, first):
        world.handler.stream.send(SimpleNamespace(correlation_id=request.correlation_id), 9)
    assert [answer.correlation_id for answer, _ in world.answers] == [2, 1]
    world.handler.stream.send(SimpleNamespace(correlation_id=1))
    assert len(world.answers) == 2, "a request has one answer"


def test_a_request_without_an_answer_is_over_at_once_and_a_refused_one_has_the_error() -> None:
    world = World()
    world.ask(has_answer=False)
    assert world.answers == [(None, None)]
    world.ask(b"")
    assert isinstance(world.answers[1][1], InvalidRequestError)
    assert not world.way._asked


def test_flow_control_and_penalties_reach_the_connection() -> None:
    world = World()
    world.handler.stream.pause()
    world.handler.stream.resume()
    assert world.held == [True, False]
    world.handler.stream.punish(1 << 20)
    world.handler.stream.punish(1 << 40)
    assert world.muted == [501, 1 + 1_000 * int(PENALTY_S_MAX)], "one after another, over all connections"
    world.handler.stream.finish(InvalidRequestError("garbage"))
    assert world.hung_up == 1


def test_the_end_of_a_connection_frees_its_stream_once() -> None:
    world = World()
    world.ask()
    assert world.broker.client_streams == len(world.broker.streams) == 1
    world.way.close()
    world.way.close()
    assert (world.broker.client_streams, world.broker.streams, world.handler.ended) == (0, set(), 1)
    world.handler.stream.send(SimpleNamespace(correlation_id=1))
    world.handler.stream.finish()
    assert (world.answers, world.hung_up) == ([], 0)


def test_records_of_a_fetch_are_not_copied() -> None:
    records = bytes(1_000)
    response = LocalFetchResponse(correlation_id=1, results=[])
    result = response.results.add(topic="t", partition=3, records=records)
    result.aborted_transactions.add(producer_id=7, first_offset=5)
    (found,) = response.results
    assert found.records is records
    assert (found.topic, found.partition, found.aborted_transactions[0].producer_id) == ("t", 3, 7)
    assert not found.HasField("preferred_read_replica")
