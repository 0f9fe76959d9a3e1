"""A gateway follows the cluster: a broker or the controllers die."""

from __future__ import annotations

import grpc
from confluent_kafka.admin import AdminClient

from headrace import LocalCluster
from headrace.engine.io_thread import io_thread
from headrace_core.errors import NetworkError
from headrace_kafka.client import Client
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, node_pb2, node_pb2_grpc
from tests.worlds.kafka_protocol import running_gateway
from tests.worlds.waiting import until


def test_calls_for_any_broker_leave_a_dead_broker_out() -> None:
    with (
        LocalCluster(brokers=2, controllers=1, coordinators=1, mode="inprocess") as cluster,
        running_gateway(cluster) as gateway,
    ):
        client = Client(host="127.0.0.1", listener="PLAINTEXT", broker_id=1)

        def ask() -> str | None:
            call = gateway.upstream.any_broker(
                client, metadata_pb2_grpc.MetadataStub, "GetMetadata", metadata_pb2.MetadataRequest(), 20_000
            )
            try:
                return str(io_thread().run(call).cluster_id)
            except NetworkError:  # the request was on the connection that broke
                return None

        cluster_id = gateway.cluster.image.cluster_id
        assert ask() == cluster_id
        cluster.kill("broker", 1)
        assert until(ask) == cluster_id
        until(lambda: gateway.cluster.controller_id() == 2, "the gateway knows that broker 1 is fenced")
        assert set(gateway.listeners.ports()["PLAINTEXT"].broker_ports) == {1, 2}  # a fenced broker keeps its port


def test_without_controllers_clients_get_the_last_metadata_and_operators_their_age() -> None:
    with (
        LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess") as cluster,
        running_gateway(cluster) as gateway,
    ):

        def age_ms() -> int:
            with grpc.insecure_channel(gateway.internal_address) as channel:
                answer = node_pb2_grpc.NodeStub(channel).DescribeNode(node_pb2.DescribeNodeRequest(), timeout=20)
            assert (answer.role, answer.node_id) == ("gateway", 1)
            return int(answer.metadata_age_ms)

        assert age_ms() > 0
        cluster.kill("controller", 1)
        until(lambda: age_ms() > 4_000, "the age of the metadata grows")
        admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers})
        assert list(admin.list_topics(timeout=20).brokers) == [1]
