"""The addresses that clients get for broker ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from headrace_core.errors import CoordinatorNotAvailableError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import BrokerImage, MetadataDelta, MetadataImage
from headrace_core.metadata.records import BrokerEndpoint
from headrace_kafka.client import BOOTSTRAP, Client
from headrace_kafka.cluster import GROUP, Cluster, GatewayEntry, ListenerPorts, Node, nodes_of

CLIENTS = [(f"10.0.0.{host}", f"client-{number}") for host in range(10) for number in range(20)]


def broker(broker_id: int, *, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        broker_id=broker_id,
        broker_epoch=1,
        incarnation_id=bytes(16),
        directory_ids=(),
        endpoints=(BrokerEndpoint("client", f"broker-{broker_id}", 9095),),
        rack=f"rack-{broker_id}",
        fenced=fenced,
        in_controlled_shutdown=False,
    )


def gateways(*numbers: int, brokers: Sequence[int] = range(1, 4)) -> tuple[GatewayEntry, ...]:
    return tuple(
        GatewayEntry(
            bytes([number]) * 16,
            {"PLAINTEXT": ListenerPorts(f"gateway-{number}", 9092, {each: 9092 + each for each in brokers})},
        )
        for number in numbers
    )


def brokers(*broker_ids: int) -> dict[int, BrokerImage]:
    return {each: broker(each) for each in broker_ids}


def test_one_gateway_has_every_broker() -> None:
    assert nodes_of(brokers(2, 1), gateways(1), "PLAINTEXT", "10.0.0.1", "") == {
        1: Node(1, "gateway-1", 9093, "rack-1"),
        2: Node(2, "gateway-1", 9094, "rack-2"),
    }


def test_each_client_has_its_brokers_spread_over_all_gateways() -> None:
    for host, client_id in CLIENTS:
        nodes = nodes_of(brokers(1, 2, 3), gateways(1, 2, 3), "PLAINTEXT", host, client_id)
        assert {node.host for node in nodes.values()} == {"gateway-1", "gateway-2", "gateway-3"}


def test_clients_of_one_broker_are_spread_over_all_gateways() -> None:
    load = Counter(nodes_of(brokers(1), gateways(1, 2, 3), "PLAINTEXT", *each)[1].host for each in CLIENTS)
    assert len(load) == 3
    assert min(load.values()) > len(CLIENTS) // 6


def test_the_order_in_which_a_gateway_knows_the_others_is_irrelevant() -> None:
    for host, client_id in CLIENTS:
        first = nodes_of(brokers(1, 2, 3), gateways(1, 2, 3), "PLAINTEXT", host, client_id)
        assert nodes_of(brokers(3, 2, 1), gateways(3, 1, 2), "PLAINTEXT", host, client_id) == first


def test_the_brokers_of_a_dead_gateway_go_to_the_others() -> None:
    for host, client_id in CLIENTS:
        nodes = nodes_of(brokers(1, 2, 3), gateways(1, 3), "PLAINTEXT", host, client_id)
        assert sorted(nodes) == [1, 2, 3]
        assert {node.host for node in nodes.values()} == {"gateway-1", "gateway-3"}


def test_a_gateway_without_the_listener_or_the_port_is_not_named() -> None:
    late = gateways(2, brokers=[1])
    for host, client_id in CLIENTS:
        nodes = nodes_of(brokers(1, 2), gateways(1) + late, "PLAINTEXT", host, client_id)
        assert nodes[2].host == "gateway-1"
    assert nodes_of(brokers(1), gateways(1), "EXTERNAL", "10.0.0.1", "") == {}


def in_racks(*racks: str | None) -> tuple[GatewayEntry, ...]:
    """Gateways 1, 2, ... in these racks."""
    entries = gateways(*range(1, len(racks) + 1))
    return tuple(entry._replace(rack=rack) for entry, rack in zip(entries, racks, strict=True))


def test_a_broker_is_reached_through_the_gateway_in_its_rack() -> None:
    for host, client_id in CLIENTS:
        nodes = nodes_of(brokers(1, 2, 3), in_racks("rack-2", "rack-3", "rack-1"), "PLAINTEXT", host, client_id)
        assert [nodes[each].host for each in (1, 2, 3)] == ["gateway-3", "gateway-1", "gateway-2"]


def test_clients_are_spread_over_the_gateways_of_a_rack() -> None:
    living = in_racks("rack-1", "rack-1", "rack-2")
    load = Counter(nodes_of(brokers(1, 2), living, "PLAINTEXT", *each)[1].host for each in CLIENTS)
    assert set(load) == {"gateway-1", "gateway-2"}
    assert min(load.values()) > len(CLIENTS) // 4


def test_a_broker_without_a_gateway_in_its_rack_is_reached_through_any_gateway() -> None:
    load = Counter(
        nodes_of(brokers(1), in_racks("rack-2", None, "rack-3"), "PLAINTEXT", *each)[1].host for each in CLIENTS
    )
    assert set(load) == {"gateway-1", "gateway-2", "gateway-3"}
    late = gateways(2, brokers=[2])[0]._replace(rack="rack-1")  # it has no port for broker 1 yet
    assert nodes_of(brokers(1), (*gateways(1), late), "PLAINTEXT", "10.0.0.1", "")[1].host == "gateway-1"


class _Request:
    client = Client(host="10.0.0.1", listener="PLAINTEXT", broker_id=BOOTSTRAP)
    client_id = "client"


def cluster_of(**known: BrokerImage) -> tuple[Cluster, MetadataState, list[tuple[GatewayEntry, ...]]]:
    state = MetadataState()
    living = [gateways(1)]
    state.advance(MetadataImage(brokers={each.broker_id: each for each in known.values()}), MetadataDelta(0, 0))
    return Cluster(state, lambda: living[0]), state, living


def test_fenced_brokers_are_no_nodes_unless_asked_for() -> None:
    cluster, _, _ = cluster_of(a=broker(1, fenced=True), b=broker(2), c=broker(3))
    assert [node.broker_id for node in cluster.nodes(_Request)] == [2, 3]
    assert [node.broker_id for node in cluster.nodes(_Request, include_fenced=True)] == [1, 2, 3]
    assert cluster.node(_Request, 1) is None
    assert cluster.controller_id() == 2


def test_nodes_follow_the_metadata_and_the_living_gateways() -> None:
    cluster, state, living = cluster_of(a=broker(1))
    assert [node.host for node in cluster.nodes(_Request)] == ["gateway-1"]
    living[0] = gateways(2)
    assert [node.host for node in cluster.nodes(_Request)] == ["gateway-2"]
    state.advance(MetadataImage(brokers=brokers(1, 2)), MetadataDelta(0, 1))
    assert [node.broker_id for node in cluster.nodes(_Request)] == [1, 2]


def test_a_coordinator_needs_a_broker() -> None:
    cluster, state, _ = cluster_of(a=broker(1))
    assert cluster.coordinator_node(_Request, GROUP, "group").broker_id == 1
    state.advance(MetadataImage(), MetadataDelta(0, 1))
    with pytest.raises(CoordinatorNotAvailableError):
        cluster.coordinator_node(_Request, GROUP, "group")
