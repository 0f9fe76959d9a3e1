"""Metadata and Admin through a broker, and what each listener serves."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace import Producer
from headrace_core import errors
from headrace_protos.v1 import admin_pb2, cluster_pb2, cluster_pb2_grpc, metadata_pb2, metadata_pb2_grpc
from tests.worlds.broker_world import WAIT_S, Cluster, Node, batch
from tests.worlds.waiting import until


def metadata(cluster, **request):
    return cluster.metadata.GetMetadata(metadata_pb2.MetadataRequest(**request), timeout=WAIT_S)


def create(cluster, name: str, **more):
    request = admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(name=name, **more)])
    return cluster.admin.CreateTopics(request, timeout=WAIT_S)


def test_a_topic_is_ready_when_its_creation_is_answered(cluster, topic):
    orders = topic(5)
    (described,) = metadata(cluster, topics=[orders.name]).topics
    assert described.topic_id == orders.topic_id
    assert [(each.partition, each.leader_id, each.error.code) for each in described.partitions] == [
        (number, 1, 0) for number in range(5)
    ]
    assert all(not orders.produce(b"a", partition=number).error.code for number in range(5))


def test_the_cluster_names_its_brokers_and_controller(cluster):
    answer = metadata(cluster)
    assert (answer.cluster_id, answer.controller_id, list(answer.topics)) == ("tests", 1, [])
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == cluster.broker.address()


def test_naming_a_missing_topic_creates_it_only_when_asked_to(cluster):
    (missing,) = metadata(cluster, topics=["made-by-asking"]).topics
    assert missing.error.code == errors.UnknownTopicOrPartitionError.number
    (made,) = metadata(cluster, topics=["made-by-asking"], allow_auto_topic_creation=True).topics
    assert (made.error.code, len(made.partitions), made.partitions[0].leader_id) == (0, 1, 1)
    (again,) = metadata(cluster, topics=["made-by-asking"], allow_auto_topic_creation=True).topics
    assert again.topic_id == made.topic_id


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, "__internal"])
def test_a_name_that_may_not_be_is_not_created_by_asking(cluster, name):
    (refused,) = metadata(cluster, topics=[name], allow_auto_topic_creation=True).topics
    assert refused.error.code in (errors.InvalidTopicError.number, errors.UnknownTopicOrPartitionError.number)
    if name == "__internal":
        says = "topic '__internal' does not exist; brokers create no topic whose name begins with __ for a client"
        assert refused.error.message == says
    assert name not in {each.name for each in metadata(cluster, all_topics=True).topics}


def test_topics_are_not_created_by_asking_where_that_is_switched_off(make_cluster):
    cluster = make_cluster(**{"auto.create.topics.enable": "false"})
    (missing,) = metadata(cluster, topics=["orders"], allow_auto_topic_creation=True).topics
    assert missing.error.code == errors.UnknownTopicOrPartitionError.number
    assert missing.error.message.endswith("brokers do not create it, because auto.create.topics.enable is false")
    (missing,) = metadata(cluster, topics=["orders"]).topics
    assert missing.error.message == "topic 'orders' does not exist", "nobody asked to create it"


def test_a_topic_that_too_few_brokers_can_hold_is_said_to_be_that_and_not_unknown(tmp_path):
    cluster = Cluster(tmp_path)
    keys = {"node.id": "1", "default.replication.factor": "3"}
    cluster.controller = Node("controller", tmp_path / "another", "tests", **keys)
    with cluster:
        (refused,) = metadata(cluster, topics=["orders"], allow_auto_topic_creation=True).topics
        assert refused.error.code == errors.InvalidReplicationFactorError.number
        assert "replication factor 3 needs 3 brokers, 1 is alive" in refused.error.message
        (missing,) = metadata(cluster, topics=["orders"]).topics
        assert missing.error.code == errors.UnknownTopicOrPartitionError.number
        with Producer({"bootstrap.servers": cluster.broker.address()}) as out:
            says = "topic 'orders': the controller could not create it: replication factor 3"
            with pytest.raises(errors.InvalidReplicationFactorError, match=says):
                out.send("orders", b"value").result(WAIT_S)


def test_who_watches_hears_of_each_change_that_concerns_it(cluster, topic):
    watched = topic()
    watch = cluster.metadata.WatchMetadata(metadata_pb2.MetadataRequest(topics=[watched.name]), timeout=WAIT_S)
    assert len(next(watch).topics[0].partitions) == 1
    topic()  # does not concern it
    more = admin_pb2.CreatePartitionsRequest(topics=[admin_pb2.NewPartitions(topic=watched.name, total_count=3)])
    cluster.admin.CreatePartitions(more, timeout=WAIT_S)
    assert len(next(watch).topics[0].partitions) == 3
    cluster.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=[watched.name]), timeout=WAIT_S)
    assert next(watch).topics[0].error.code == errors.UnknownTopicOrPartitionError.number
    watch.cancel()


def test_an_offset_from_the_future_is_waited_for_and_then_given_up(make_cluster):
    cluster = make_cluster(**{"request.timeout.ms": "200"})
    with pytest.raises(grpc.RpcError) as failed:
        metadata(cluster, min_metadata_offset=10_000)
    assert failed.value.details().startswith("REQUEST_TIMED_OUT: ")


def test_deleting_a_topic_removes_its_files(cluster, topic):
    orders = topic(2, file_delete_delay_ms="0")
    orders.produce(b"a")
    directory = cluster.broker.data / f"{orders.name}-0"
    assert directory.is_dir()
    cluster.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=[orders.name]), timeout=WAIT_S)
    assert not directory.exists()
    until(lambda: not list(cluster.broker.data.glob(f"{orders.name}-*")), "the renamed files to be gone")


def test_a_changed_setting_is_in_force_when_it_is_answered(cluster, topic):
    orders = topic()
    assert not orders.produce(b"x" * 2000).error.code
    resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=orders.name)
    op = admin_pb2.AlterConfigOp(kind=admin_pb2.AlterConfigOp.KIND_SET, name="max.message.bytes", value="1000")
    cluster.admin.AlterConfigs(
        admin_pb2.AlterConfigsRequest(resources=[admin_pb2.AlterConfigsResource(resource=resource, ops=[op])]),
        timeout=WAIT_S,
    )
    assert orders.produce(b"x" * 2000).error.code == errors.RecordTooLargeError.number
    (described,) = cluster.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resources=[resource])).results
    entry = next(entry for entry in described.entries if entry.name == "max.message.bytes")
    assert (entry.value, entry.source) == ("1000", admin_pb2.CONFIG_SOURCE_DYNAMIC_TOPIC)


def test_a_broker_describes_what_only_its_own_file_says(make_cluster):
    cluster = make_cluster(**{"message.max.bytes": "5000"})
    orders = cluster.topic("orders")
    assert orders.append(batch(b"x" * 6000)).error.code == errors.RecordTooLargeError.number
    kinds = admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, admin_pb2.CONFIG_RESOURCE_TYPE_BROKER
    resources = [
        admin_pb2.ConfigResource(type=kind, name=name) for kind, name in zip(kinds, ("orders", "1"), strict=True)
    ]
    answer = cluster.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resources=resources), timeout=WAIT_S)
    found = [
        (entry.name, entry.value, entry.source)
        for result in answer.results
        for entry in result.entries
        if entry.name in ("max.message.bytes", "message.max.bytes")
    ]
    static = admin_pb2.CONFIG_SOURCE_STATIC_BROKER
    assert found == [("max.message.bytes", "5000", static), ("message.max.bytes", "5000", static)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, "no-such-topic"),
        (admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, "77"),
        (admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, "one"),
        (admin_pb2.CONFIG_RESOURCE_TYPE_UNSPECIFIED, "x"),
    ],
)
def test_what_does_not_exist_has_no_description(cluster, kind, name):
    resource = admin_pb2.ConfigResource(type=kind, name=name)
    (result,) = cluster.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resources=[resource])).results
    assert result.error.code
    assert not result.entries


def test_refusals_of_the_controller_come_through_unchanged(cluster, topic):
    orders = topic(3)
    (result,) = create(cluster, orders.name, partitions=1, replication_factor=1).results
    assert result.error.code == errors.TopicAlreadyExistsError.number
    fewer = admin_pb2.CreatePartitionsRequest(topics=[admin_pb2.NewPartitions(topic=orders.name, total_count=2)])
    (result,) = cluster.admin.CreatePartitions(fewer, timeout=WAIT_S).results
    assert result.error.code == errors.InvalidPartitionsError.number


def test_an_internal_call_does_not_exist_on_the_client_listener(cluster):
    request = cluster_pb2.RegisterBrokerRequest(cluster_id="tests")
    with pytest.raises(grpc.RpcError) as failed:
        cluster_pb2_grpc.ClusterStub(cluster.channel).RegisterBroker(request, timeout=WAIT_S)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_clients_call_does_not_exist_on_the_internal_listener(cluster):
    with cluster.connect("internal") as channel, pytest.raises(grpc.RpcError) as failed:
        metadata_pb2_grpc.MetadataStub(channel).GetMetadata(metadata_pb2.MetadataRequest(), timeout=WAIT_S)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("listener", ["client", "internal"])
def test_both_listeners_are_healthy(cluster, listener):
    with cluster.connect(listener) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_what_the_client_listener_serves(cluster):
    stub = reflection_pb2_grpc.ServerReflectionStub(cluster.channel)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(stub.ServerReflectionInfo(iter([ask]), timeout=WAIT_S))
    served = {service.name for service in answer.list_services_response.service}
    assert {f"headrace.v1.{name}" for name in ("Produce", "Fetch", "Offsets", "Metadata", "Admin")} < served
    assert "headrace.v1.Cluster" not in served
