"""A gateway follows the cluster: a broker that dies."""

from __future__ import annotations

from headrace import LocalCluster
from headrace.engine.io_thread import io_thread
from headrace_core.errors import NetworkError
from headrace_gateway.client import Client
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc
from tests.worlds.gateways import running_gateway
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
