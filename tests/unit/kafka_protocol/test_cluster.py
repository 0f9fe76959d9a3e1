"""The brokers' addresses that clients get."""

from __future__ import annotations

import pytest

from headrace_core.errors import CoordinatorNotAvailableError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import BrokerImage, MetadataDelta, MetadataImage
from headrace_core.metadata.records import BrokerEndpoint
from headrace_kafka.cluster import GROUP, Cluster, Node


def broker(broker_id: int, *, fenced: bool = False, listeners: tuple[str, ...] = ("kafka",)) -> BrokerImage:
    endpoints = [BrokerEndpoint("client", f"broker-{broker_id}", 9095)]
    return BrokerImage(
        broker_id=broker_id,
        broker_epoch=1,
        incarnation_id=bytes(16),
        directory_ids=(),
        endpoints=(*endpoints, *(BrokerEndpoint(name, f"{name}-{broker_id}", 9092) for name in listeners)),
        rack=f"rack-{broker_id}",
        fenced=fenced,
        in_controlled_shutdown=False,
    )


def cluster_of(*known: BrokerImage) -> tuple[Cluster, MetadataState]:
    state = MetadataState()
    state.advance(MetadataImage(brokers={each.broker_id: each for each in known}), MetadataDelta(0, 0))
    return Cluster(state), state


def test_clients_get_the_addresses_of_their_own_listener() -> None:
    cluster, _ = cluster_of(broker(2), broker(1, listeners=("kafka", "kafkaexternal")))
    assert cluster.nodes("kafka") == [Node(1, "kafka-1", 9092, "rack-1"), Node(2, "kafka-2", 9092, "rack-2")]
    assert cluster.nodes("kafkaexternal") == [Node(1, "kafkaexternal-1", 9092, "rack-1")]
    assert cluster.node("kafkaexternal", 2) is None


def test_fenced_brokers_are_no_nodes_unless_asked_for() -> None:
    cluster, _ = cluster_of(broker(1, fenced=True), broker(2), broker(3))
    assert [node.broker_id for node in cluster.nodes("kafka")] == [2, 3]
    assert [node.broker_id for node in cluster.nodes("kafka", include_fenced=True)] == [1, 2, 3]
    assert cluster.node("kafka", 1) is None
    assert cluster.controller_id() == 2


def test_nodes_follow_the_metadata() -> None:
    cluster, state = cluster_of(broker(1))
    assert [node.broker_id for node in cluster.nodes("kafka")] == [1]
    state.advance(MetadataImage(brokers={each: broker(each) for each in (1, 2)}), MetadataDelta(0, 1))
    assert [node.broker_id for node in cluster.nodes("kafka")] == [1, 2]


def test_a_coordinator_needs_a_broker() -> None:
    cluster, state = cluster_of(broker(1))
    assert cluster.coordinator_node("kafka", GROUP, "group").broker_id == 1
    state.advance(MetadataImage(), MetadataDelta(0, 1))
    with pytest.raises(CoordinatorNotAvailableError):
        cluster.coordinator_node("kafka", GROUP, "group")
