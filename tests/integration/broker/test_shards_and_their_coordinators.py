"""Coordinators and their shards on a real controller and broker. A registered coordinator gets shards, and a failed
coordinator loses its shards. The partition's leader accepts appends only from the current owner, also after kill -9."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import grpc
import pytest

from headrace_core.metadata.shards import OFFSETS_TOPIC, shard_of
from headrace_core.records import encode_batch
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    common_pb2,
    metadata_pb2,
    offsets_pb2,
    produce_pb2,
    produce_pb2_grpc,
)
from tests.worlds.broker_world import WAIT_S, Cluster, Stream, Topic, batch, produce_request, produce_stream
from tests.worlds.waiting import until

GROUP = "orders"
#: The number of partitions of the offsets topic in these tests.
SHARDS = 6


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that has no internal topics yet."""
    cluster = Cluster(tmp_path_factory.mktemp("shards"))
    cluster.controller.keys["offsets.topic.num.partitions"] = str(SHARDS)
    cluster.controller.keys["transaction.state.log.num.partitions"] = "20000"  # more than one request may make
    with cluster:
        yield cluster


class Coordinator:
    """Send a coordinator's requests to the controller and to a shard's leader, without a coordinator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.channel = grpc.insecure_channel(cluster.controller.address("internal"), options=COMMON_OPTIONS)
        stub = cluster_pb2_grpc.ClusterStub(self.channel)
        self.incarnation = os.urandom(16)
        registered = stub.RegisterCoordinator(self.registration(), timeout=WAIT_S, wait_for_ready=True)
        self.id, self.epoch = registered.coordinator_id, registered.coordinator_epoch
        self.metadata_offset = registered.metadata_offset
        self.heartbeats = Stream(stub.CoordinatorHeartbeat)
        assert not self.beat()

    def registration(self, cluster_id: str = "tests") -> cluster_pb2.RegisterCoordinatorRequest:
        return cluster_pb2.RegisterCoordinatorRequest(
            cluster_id=cluster_id,
            incarnation_id=self.incarnation,
            endpoints=[common_pb2.Endpoint(listener="client", host="127.0.0.1", port=1000 + self.incarnation[0])],
            rack="r",
            wanted_coordinator_id=-1,
        )

    def beat(self, *, want_shutdown: bool = False) -> bool:
        """May it stop?"""
        self.heartbeats.send(
            cluster_pb2.CoordinatorHeartbeatRequest(
                correlation_id=7, coordinator_id=self.id, coordinator_epoch=self.epoch, want_shutdown=want_shutdown
            )
        )
        answer = self.heartbeats.receive()
        assert answer.correlation_id == 7
        return bool(answer.should_shutdown)

    def close(self) -> None:
        """End the streams of the coordinator as if its process had ended."""
        self.heartbeats.__exit__()
        self.channel.close()


@pytest.fixture
def coordinator(own: Cluster) -> Iterator[Callable[[], Coordinator]]:
    made: list[Coordinator] = []

    def start() -> Coordinator:
        made.append(Coordinator(own))
        return made[-1]

    yield start
    for each in made:
        each.close()


def find(cluster: Cluster, *keys: str) -> list[metadata_pb2.CoordinatorOfKey]:
    request = metadata_pb2.FindCoordinatorRequest(keys=keys)
    return list(cluster.metadata.FindCoordinator(request, timeout=WAIT_S, wait_for_ready=True).coordinators)


def owner(cluster: Cluster, key: str, coordinator: Coordinator) -> metadata_pb2.CoordinatorOfKey:
    """Send heartbeats until this coordinator owns the shard of ``key``, and return that shard."""

    def owned() -> metadata_pb2.CoordinatorOfKey | None:
        coordinator.beat()
        (found,) = find(cluster, key)
        return found if found.coordinator_id == coordinator.id else None

    found = until(owned, f"coordinator {coordinator.id} to own the shard of {key}", 60)
    assert isinstance(found, metadata_pb2.CoordinatorOfKey)
    return found


def append(
    cluster: Cluster,
    shard: int,
    epoch: int,
    *values: bytes,
    end: int | None = None,
    acks: int = produce_pb2.ACKS_ALL,
    records: bytes | None = None,
) -> produce_pb2.ProducePartitionResult:
    """Return the leader's answer to a coordinator's append."""
    data = keyed(epoch, *values) if records is None else records
    item = produce_pb2.ProducePartition(topic=OFFSETS_TOPIC, partition=shard, records=data, shard_epoch=epoch)
    if end is not None:
        item.expected_end = end
    channel = cluster.connect("internal")
    try:
        with Stream(produce_pb2_grpc.ProduceStub(channel).Produce) as stream:
            stream.send(produce_request(1, item, acks=acks))
            (result,) = stream.receive().results
            return result  # type: ignore[no-any-return]
    finally:
        channel.close()


def keyed(epoch: int, *values: bytes) -> bytes:
    return encode_batch([(1_700_000_000_000, value, value, []) for value in values], base_sequence=epoch)


def test_why_a_topic_cannot_be_made_is_the_answer_to_every_request(own: Cluster) -> None:
    request = metadata_pb2.FindCoordinatorRequest(type=metadata_pb2.COORDINATOR_TYPE_TRANSACTION, keys=["payments", ""])
    found, empty = own.metadata.FindCoordinator(request, timeout=WAIT_S, wait_for_ready=True).coordinators
    assert found.error.code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
    assert "cannot create topic __transaction_state: the request needs 20000 metadata records" in found.error.message
    assert empty.error.code == common_pb2.ERROR_CODE_INVALID_REQUEST


def test_the_offsets_topic_is_made_at_first_use_and_its_shards_go_to_whoever_registers(
    own: Cluster, coordinator: Callable[[], Coordinator]
) -> None:
    (nobody,) = find(own, GROUP)
    assert nobody.error.code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
    first = coordinator()
    found = owner(own, GROUP, first)
    assert found.shard == shard_of(GROUP, SHARDS)
    assert (found.host, found.port) == ("127.0.0.1", 1000 + first.incarnation[0])
    answer = own.metadata.GetMetadata(metadata_pb2.MetadataRequest(topics=[OFFSETS_TOPIC]), timeout=WAIT_S)
    (topic,) = answer.topics
    assert topic.internal
    assert [each.coordinator_id for each in topic.partitions] == [first.id] * SHARDS
    second = coordinator()

    def owners() -> list[int]:
        second.beat()
        answer = own.metadata.GetMetadata(metadata_pb2.MetadataRequest(topics=[OFFSETS_TOPIC]), timeout=WAIT_S)
        return sorted(each.coordinator_id for each in answer.topics[0].partitions)

    until(lambda: owners() == sorted([first.id] * 3 + [second.id] * 3), "half of the shards to go to the second", 60)
    until(lambda: first.beat(want_shutdown=True), "the first to be let go", 60)
    until(lambda: owners() == [second.id] * SHARDS, "its shards to go to the second", 60)


def test_a_coordinator_whose_connection_breaks_loses_its_shards(
    own: Cluster, coordinator: Callable[[], Coordinator]
) -> None:
    first = coordinator()
    before = owner(own, GROUP, first)
    first.close()
    second = coordinator()
    after = owner(own, GROUP, second)
    assert after.shard_epoch > before.shard_epoch


def test_only_the_present_owner_writes_and_only_where_it_knows_the_end(
    own: Cluster, coordinator: Callable[[], Coordinator]
) -> None:
    first = coordinator()
    found = owner(own, GROUP, first)
    shard, epoch = found.shard, found.shard_epoch
    claimed = append(own, shard, epoch, b"claim")
    assert not claimed.error.code
    assert claimed.durability == produce_pb2.DURABILITY_COMMIT
    end = claimed.base_offset + 1
    assert append(own, shard, epoch, b"a", b"b", end=end).base_offset == end
    again = append(own, shard, epoch, b"a", b"b", end=end)
    assert again.error.code == common_pb2.ERROR_CODE_UNEXPECTED_LOG_END
    assert append(own, shard, epoch + 1, b"claim").base_offset == end + 2
    late = append(own, shard, epoch, b"c", end=end + 3)
    assert late.error.code == common_pb2.ERROR_CODE_FENCED_SHARD_EPOCH
    own.broker.kill()
    own.restart()
    late = append(own, shard, epoch, b"c", end=end + 3)
    assert late.error.code == common_pb2.ERROR_CODE_FENCED_SHARD_EPOCH, "the log told it after kill -9"
    assert append(own, shard, epoch + 1, b"d", end=end + 3).base_offset == end + 3
    assert Topic(own, OFFSETS_TOPIC, b"").read(end, shard) == [b"a", b"b", b"claim", b"d"], "clients may read it"


def test_what_is_no_coordinators_append_is_refused(own: Cluster, coordinator: Callable[[], Coordinator]) -> None:
    first = coordinator()
    found = owner(own, GROUP, first)
    shard, epoch = found.shard, found.shard_epoch
    unstamped = append(own, shard, epoch, records=keyed(epoch - 1, b"x"))
    assert unstamped.error.code == common_pb2.ERROR_CODE_INVALID_REQUEST
    lax = append(own, shard, epoch, b"x", acks=produce_pb2.ACKS_LEADER)
    assert lax.error.code == common_pb2.ERROR_CODE_INVALID_REQUIRED_ACKS
    with produce_stream(own) as stream:  # a client's
        plain = produce_pb2.ProducePartition(topic=OFFSETS_TOPIC, partition=shard, records=batch(b"x"))
        stream.send(produce_request(1, plain))
        (result,) = stream.receive().results
        assert result.error.code == common_pb2.ERROR_CODE_INVALID_TOPIC_EXCEPTION
        other = own.topic("not-a-shard")
        forged = produce_pb2.ProducePartition(topic=other.name, partition=0, records=batch(b"x"), shard_epoch=3)
        stream.send(produce_request(2, forged))
        (result,) = stream.receive().results
        assert result.error.code == common_pb2.ERROR_CODE_INVALID_REQUEST


def test_a_former_life_learns_that_it_is_over(own: Cluster, coordinator: Callable[[], Coordinator]) -> None:
    first = coordinator()
    first.epoch -= 1  # (the controller ends its stream as that of a wrong coordinator, so its session times out)
    with pytest.raises(grpc.RpcError, match="STALE_BROKER_EPOCH"):
        first.beat()
    stranger = cluster_pb2_grpc.ClusterStub(first.channel)
    with pytest.raises(grpc.RpcError, match="INCONSISTENT_CLUSTER_ID"):
        stranger.RegisterCoordinator(first.registration(cluster_id="another"), timeout=WAIT_S)


def test_clients_destroy_no_internal_topic(own: Cluster, coordinator: Callable[[], Coordinator]) -> None:
    """The internal topics are protected at every listener of every role."""
    first = coordinator()
    found = owner(own, GROUP, first)
    end = append(own, found.shard, found.shard_epoch, b"x").base_offset
    controllers = grpc.insecure_channel(own.controller.address("client"), options=COMMON_OPTIONS)
    everywhere = own.admin, admin_pb2_grpc.AdminStub(controllers)
    resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=OFFSETS_TOPIC)
    op = admin_pb2.AlterConfigOp(kind=admin_pb2.AlterConfigOp.KIND_SET, name="cleanup.policy", value="delete")
    alter = admin_pb2.AlterConfigsResource(resource=resource, ops=[op])
    new = admin_pb2.NewTopic(name="__transaction_state", partitions=1, replication_factor=1)
    try:
        for admin in everywhere:
            (deleted,) = admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=[OFFSETS_TOPIC])).results
            (created,) = admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new])).results
            (altered,) = admin.AlterConfigs(admin_pb2.AlterConfigsRequest(resources=[alter])).results
            assert [each.error.code for each in (deleted, created, altered)] == [
                common_pb2.ERROR_CODE_INVALID_TOPIC_EXCEPTION,
                common_pb2.ERROR_CODE_INVALID_TOPIC_EXCEPTION,
                common_pb2.ERROR_CODE_INVALID_CONFIG,
            ]
    finally:
        controllers.close()
    item = offsets_pb2.DeleteRecordsPartition(topic=OFFSETS_TOPIC, partition=found.shard, before_offset=end + 1)
    (truncated,) = own.offsets.DeleteRecords(offsets_pb2.DeleteRecordsRequest(partitions=[item])).results
    assert truncated.error.code == common_pb2.ERROR_CODE_INVALID_TOPIC_EXCEPTION
    assert Topic(own, OFFSETS_TOPIC, b"").offset_of(-2).offset == 0
    assert append(own, found.shard, found.shard_epoch, b"y").base_offset == end + 1


def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(own: Cluster) -> None:
    for policy, refusal in (("compact", common_pb2.ERROR_CODE_POLICY_VIOLATION), ("compact,delete", 0)):
        topic = own.topic(policy.replace(",", "-"), cleanup_policy=policy)
        with produce_stream(own) as stream:
            records = produce_pb2.ProducePartition(topic=topic.name, partition=0, records=keyed(0, b"x"))
            stream.send(produce_request(1, records))
            (written,) = stream.receive().results
            assert not written.error.code
        item = offsets_pb2.DeleteRecordsPartition(topic=topic.name, partition=0, before_offset=1)
        (result,) = own.offsets.DeleteRecords(offsets_pb2.DeleteRecordsRequest(partitions=[item])).results
        assert result.error.code == refusal
        assert topic.offset_of(-2).offset == (0 if refusal else 1)
