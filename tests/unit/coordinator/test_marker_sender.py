"""Markers that are sent to slow, dead, deposed or wrong brokers, over real streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc.aio
import pytest

from headrace_coordinator.runtime.claims import Claim
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.transaction.messages import MarkersWritten, WriteMarkers
from headrace_coordinator.transaction.state import ProducerIdentity
from headrace_coordinator.transport import markers
from headrace_coordinator.transport.brokers import Brokers
from headrace_coordinator.transport.markers import MarkerSender
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerEndpoint,
    ImageBuilder,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_core.metadata.records import RegisterCoordinatorRecord, ShardRecord
from headrace_core.metadata.shards import OFFSETS_TOPIC
from headrace_core.rpc.outage import Outage
from headrace_core.types import TopicPartition, split_address
from headrace_protos.v1 import common_pb2, transactions_pb2, transactions_pb2_grpc
from tests.worlds.this_process import free_port

LIMIT_S = 60.0
TOPIC_ID, OFFSETS_ID = b"\x02" * 16, b"\x03" * 16
P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
MARKER = WriteMarkers("id", ProducerIdentity(7, 3), True, 2, frozenset({P0, P1, P2}))
NOT_LEADER = common_pb2.ERROR_CODE_NOT_LEADER_OR_FOLLOWER


class Broker(transactions_pb2_grpc.TransactionMarkersServicer):
    """``errors``: the error codes of the next attempts, by partition; then success. ``silent``: never answers."""

    def __init__(self, *, silent: bool = False) -> None:
        self.errors: dict[int, list[int]] = {}
        self.requests: list[Any] = []
        self.silent = silent
        self.asked = asyncio.Event()
        self.lost_results = 0

    async def WriteMarkers(self, _: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            self.requests += message.requests
            self.asked.set()
            if not self.silent:
                responses = list(map(self._response, message.requests))
                await context.write(transactions_pb2.WriteMarkersResponses(responses=responses))

    def _response(self, request: Any) -> Any:
        response = transactions_pb2.WriteMarkersResponse(correlation_id=request.correlation_id)
        for each in request.partitions:
            codes = self.errors.get(each.partition)
            error = common_pb2.Error(code=codes.pop(0), message="no") if codes else None  # type: ignore[arg-type]
            response.results.add(topic=each.topic, partition=each.partition, error=error)
        if self.lost_results:
            self.lost_results -= 1
            del response.results[0]
        return response

    def partitions(self) -> list[list[int]]:
        return [[each.partition for each in request.partitions] for request in self.requests]


@contextlib.asynccontextmanager
async def serving(broker: Broker, port: int = 0) -> AsyncIterator[str]:
    server = grpc.aio.server()
    transactions_pb2_grpc.add_TransactionMarkersServicer_to_server(broker, server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


class Shard:
    name = "__transaction_state-3"
    claim = Claim(shard_epoch=9, coordinator_id=1, coordinator_epoch=1)


class Runner:
    """Collects the reports."""

    shard = Shard()

    def __init__(self) -> None:
        self.written: set[TopicPartition] = set()

    def put(self, request: MarkersWritten) -> None:
        assert (request.transactional_id, request.identity) == ("id", MARKER.identity)
        assert not self.written & request.partitions, "a marker is reported once"
        self.written |= request.partitions


class World:
    def __init__(self) -> None:
        self.metadata = MetadataState()
        self._image = EMPTY_IMAGE
        self.current = asyncio.Event()
        self.current.set()
        self.runner = Runner()
        self.sender = MarkerSender(Brokers(self.metadata), self.current.wait, lambda runner, report: runner.put(report))

    def apply(self, *records: Any) -> None:
        builder = ImageBuilder(self._image)
        for record in records:
            builder.replay(record)
        self._image, delta = builder.finish(self._image.next_offset + len(records))
        self.metadata.advance(self._image, delta)

    def brokers(self, **addresses: str) -> None:
        """``b1="host:port"``."""
        for name, address in addresses.items():
            number, (host, port) = int(name[1:]), split_address(address)
            endpoints = BrokerEndpoint("client", host, port), BrokerEndpoint("internal", host, port)
            self.apply(RegisterBrokerRecord(number, number, bytes([number]) * 16, (bytes([number]) * 16,), endpoints))

    def coordinator(self, number: int, address: str, *, shard_epoch: int) -> None:
        """Metadata in which coordinator ``number`` owns the only group shard."""
        host, port = split_address(address)
        endpoints = BrokerEndpoint("client", "127.0.0.1", 1), BrokerEndpoint("internal", host, port)
        self.apply(
            RegisterCoordinatorRecord(number, number, bytes([number]) * 16, endpoints),
            ShardRecord(OFFSETS_ID, 0, number, shard_epoch),
        )

    def topic(self, *leaders: int, epoch: int = 1) -> None:
        if self._image.topic("t") is None:
            self.apply(TopicRecord("t", TOPIC_ID))
        for number, leader in enumerate(leaders):
            self.apply(
                PartitionRecord(TOPIC_ID, number, (1, 2), (1, 2), leader, epoch, epoch, (b"\x01" * 16, b"\x02" * 16))
            )

    def send(self, order: WriteMarkers = MARKER) -> None:
        self.sender.send(cast(ShardRunner, self.runner), order)

    async def until(self, *partitions: TopicPartition) -> None:
        while not self.runner.written >= set(partitions):
            tasks = self.sender._tasks.get(cast(ShardRunner, self.runner))
            assert tasks, "nobody writes the missing markers"
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def scenario(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            world = World()
            try:
                await test(world)
            finally:
                await world.sender.close()

    asyncio.run(run())


def test_each_leader_gets_one_request_with_its_partitions() -> None:
    async def test(world: World) -> None:
        one, two = Broker(), Broker()
        async with serving(one) as first, serving(two) as second:
            world.brokers(b1=first, b2=second)
            world.topic(1, 2, 1)
            world.send()
            await world.until(P0, P1, P2)
            assert (one.partitions(), two.partitions()) == ([[0, 2]], [[1]])
            (request,) = two.requests
            assert (request.producer_id, request.producer_epoch, request.commit) == (7, 3, True)
            assert (request.transaction_version, request.coordinator_epoch) == (2, 9)

    scenario(test)


def test_a_transaction_that_an_old_kafka_left_behind_has_a_version_that_leaders_take() -> None:
    """Leaders refuse version 0, and the refusal would end the stream of all other markers too."""

    async def test(world: World) -> None:
        broker = Broker()
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, 1, 1)
            world.send(MARKER._replace(version=0))
            await world.until(P0, P1, P2)
            assert [request.transaction_version for request in broker.requests] == [1]

    scenario(test)


def test_a_frozen_broker_delays_its_own_partitions_until_another_one_leads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markers, "LOOK_S", 0.02)

    async def test(world: World) -> None:
        frozen, well = Broker(silent=True), Broker()
        async with serving(frozen) as first, serving(well) as second:
            world.brokers(b1=first, b2=second)
            world.topic(1, 2, 1)
            world.send()
            await world.until(P1)
            assert world.runner.written == {P1}
            await frozen.asked.wait()
            world.topic(2, 2, 1, epoch=2)
            await world.until(P0)
            assert P2 not in world.runner.written
            world.topic(2, 2, 2, epoch=3)
            await world.until(P2)

    scenario(test)


def test_what_a_leader_refuses_is_asked_again_and_only_that() -> None:
    async def test(world: World) -> None:
        broker = Broker()
        broker.errors = {0: [NOT_LEADER, common_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS], 2: [NOT_LEADER]}
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, 1, 1)
            world.send()
            await world.until(P0, P1, P2)
            assert broker.partitions() == [[0, 1, 2], [0, 2], [0]]

    scenario(test)


def test_a_partition_whose_log_has_a_larger_epoch_needs_no_marker_any_more() -> None:
    async def test(world: World) -> None:
        broker = Broker()
        broker.errors = {1: [common_pb2.ERROR_CODE_INVALID_PRODUCER_EPOCH]}
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, 1, 1)
            world.send()
            await world.until(P0, P1, P2)
            assert len(broker.requests) == 1

    scenario(test)


def test_a_dead_broker_gets_its_markers_when_it_is_back() -> None:
    async def test(world: World) -> None:
        async with serving(Broker(), free_port()) as address:
            pass
        world.brokers(b1=address)
        world.topic(1, 1, 1)
        world.send()
        broker = Broker()
        async with serving(broker, split_address(address)[1]):
            await world.until(P0, P1, P2)

    scenario(test)


def test_a_broker_with_the_wrong_number_of_results_is_asked_again() -> None:
    async def test(world: World) -> None:
        broker = Broker()
        broker.lost_results = 1
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, 1, 1)
            world.send()
            await world.until(P0, P1, P2)
            assert len(broker.requests) == 2

    scenario(test)


def test_partitions_without_a_leader_wait_for_one() -> None:
    async def test(world: World) -> None:
        broker = Broker()
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, -1, 1)
            world.send()
            await world.until(P0, P2)
            assert P1 not in world.runner.written
            world.topic(1, 1, 1, epoch=2)
            await world.until(P1)

    scenario(test)


def test_an_unknown_partition_is_deleted_only_if_current_metadata_lack_it() -> None:
    async def test(world: World) -> None:
        broker = Broker()
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, 1)
            world.current.clear()  # the metadata are not known to be current
            world.send()
            await world.until(P0, P1)
            assert P2 not in world.runner.written
            world.topic(1, 1, 1)
            world.current.set()
            await world.until(P2)
            assert broker.partitions() == [[0, 1], [2]]
            world.runner.written.clear()
            world.apply(RemoveTopicRecord(TOPIC_ID))
            world.send()
            await world.until(P0, P1, P2)
            assert len(broker.requests) == 2

    scenario(test)


def test_a_partition_of_the_transactions_topic_needs_no_marker() -> None:
    """Earlier releases let clients add it. A leader refuses its marker, so the transactional id was locked for ever."""

    async def test(world: World) -> None:
        broker = Broker()
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, 1, 1)
            own = TopicPartition("__transaction_state", 0)
            world.send(MARKER._replace(partitions=frozenset({own, P1})))
            await world.until(own, P1)
            assert broker.partitions() == [[1]]

    scenario(test)


def test_after_its_shard_has_left_nothing_is_sent_or_reported() -> None:
    async def test(world: World) -> None:
        broker = Broker()
        broker.errors = {0: [NOT_LEADER] * 1_000}
        async with serving(broker) as address:
            world.brokers(b1=address)
            world.topic(1, 1, 1)
            world.send()
            await world.until(P1, P2)
            world.sender.shard_left(cast(ShardRunner, world.runner))
            await asyncio.gather(
                *(each for each in asyncio.all_tasks() if each.get_name().startswith("markers of ")),
                return_exceptions=True,
            )
            count = len(broker.requests)
            broker.errors.clear()
            former, world.runner = world.runner, Runner()
            world.send()
            await world.until(P0, P1, P2)
            assert former.written == {P1, P2}
            late = [each for each in broker.requests[count:] if len(each.partitions) == 1]
            assert len(broker.requests) == count + 1 + len(late)
            assert len(late) <= 1, "only the request that was on its way when the shard left"

    scenario(test)


def test_log_lines_name_the_kind_of_node_that_does_not_take_a_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, set[str]] = {}

    class Noted(Outage):
        def failed(self, address: str, error: object) -> None:
            named.setdefault(address, set()).add(self._whom)
            super().failed(address, error)

    monkeypatch.setattr(markers, "Outage", Noted)

    async def test(world: World) -> None:
        leader, owner = Broker(), Broker()
        leader.errors, owner.errors = {0: [NOT_LEADER]}, {0: [common_pb2.ERROR_CODE_NOT_COORDINATOR]}
        leader.lost_results = owner.lost_results = 1
        async with serving(leader) as at_leader, serving(owner) as at_owner:
            world.brokers(b1=at_leader)
            world.topic(1, 1, 1)
            world.apply(
                TopicRecord(OFFSETS_TOPIC, OFFSETS_ID),
                PartitionRecord(OFFSETS_ID, 0, (1,), (1,), 1, 1, 1, (b"\x01" * 16,)),
            )
            world.coordinator(1, at_owner, shard_epoch=1)
            shard = TopicPartition(OFFSETS_TOPIC, 0)
            world.send(MARKER._replace(partitions=frozenset({P0, shard})))
            await world.until(P0, shard)
            assert named == {at_leader: {"the broker"}, at_owner: {"the coordinator"}}

    scenario(test)


def test_the_marker_of_a_groups_shard_goes_to_its_owner_and_after_a_move_to_the_next() -> None:
    """If the broker that leads the partition wrote the marker, the log end offset would change without the shard's
    owner knowing it."""

    async def test(world: World) -> None:
        leader, first, second = Broker(), Broker(silent=True), Broker()
        async with serving(leader) as at_leader, serving(first) as at_first, serving(second) as at_second:
            world.brokers(b1=at_leader)
            world.topic(1, 1, 1)
            world.apply(
                TopicRecord(OFFSETS_TOPIC, OFFSETS_ID),
                PartitionRecord(OFFSETS_ID, 0, (1,), (1,), 1, 1, 1, (b"\x01" * 16,)),
            )
            shard = TopicPartition(OFFSETS_TOPIC, 0)
            world.send(MARKER._replace(partitions=frozenset({P0, shard})))
            await world.until(P0)
            world.coordinator(1, at_first, shard_epoch=1)
            await first.asked.wait()
            assert shard not in world.runner.written
            world.coordinator(2, at_second, shard_epoch=2)
            await world.until(shard)
            assert (leader.partitions(), second.partitions()) == ([[0]], [[0]])
            assert [each.topic for each in second.requests[0].partitions] == [OFFSETS_TOPIC]

    scenario(test)
