"""Several gateways of one cluster know each other: a client gets the same addresses from each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace import LocalCluster
from headrace_controller.handlers import gateways
from headrace_gateway import directory
from headrace_gateway.app import Gateway
from headrace_kafka.wire.apis import Api
from tests.integration.gateway.test_gateway_basics import ask
from tests.worlds.kafka_protocol import begin_gateway, end_gateway, running_gateway
from tests.worlds.waiting import until

LONG_MS = 600_000.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=3, coordinators=0, mode="inprocess") as running:
        yield running


def addresses(gateway: Gateway) -> dict[int, tuple[str, int]]:
    """The brokers' addresses that a client gets from a gateway."""
    answer = ask(gateway.bootstrap_servers, Api.METADATA, 12, topics=[])
    return {each.node_id: (each.host, each.port) for each in answer.brokers}


def ports_of(gateway: Gateway) -> set[int]:
    return set(gateway.listeners.ports()["PLAINTEXT"].broker_ports.values())


def spread(asked: list[Gateway]) -> dict[int, tuple[str, int]] | None:
    """The addresses that all gateways give, when they agree and each has one broker."""
    first, *others = map(addresses, asked)
    if any(each != first for each in others):
        return None
    ports = {port for _, port in first.values()}
    return first if all(len(ports & ports_of(each)) == 1 for each in asked) else None


def test_each_gateway_gives_the_same_addresses_and_serves_a_part(cluster: LocalCluster) -> None:
    with running_gateway(cluster, 1) as one, running_gateway(cluster, 2) as two, running_gateway(cluster, 3) as three:
        until(lambda: spread([one, two, three]))


def test_a_stopped_gateway_is_named_no_more_when_its_stop_returns(cluster: LocalCluster) -> None:
    with running_gateway(cluster, 1) as one:
        with running_gateway(cluster, 2) as two:
            until(lambda: spread_of_two(one, two))
            gone = ports_of(two)
        left = until(lambda: len(one.living_gateways()) == 1 and addresses(one))
        assert not {port for _, port in left.values()} & gone
        assert len(left) == 3


def test_a_killed_gateway_is_forgotten_because_its_connection_breaks(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "FORGET_MS", LONG_MS)
    monkeypatch.setattr(gateways, "HOLD_S", LONG_MS / 1_000)  # so that the connection breaks during an announcement
    monkeypatch.setattr(directory, "ANSWER_MS", int(LONG_MS))
    with running_gateway(cluster, 1) as one:
        two = begin_gateway(cluster, 2)
        try:
            until(lambda: spread_of_two(one, two))
        finally:
            end_gateway(two, at_once=True)
        until(lambda: len(one.living_gateways()) == 1)
        assert {port for _, port in addresses(one).values()} <= ports_of(one)


def test_gateways_still_know_each_other_after_their_controller_died(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader knows no gateways at first."""
    monkeypatch.setattr(gateways, "COMPLETE_MS", LONG_MS)
    monkeypatch.setattr(directory, "FORGET_MS", LONG_MS)
    with running_gateway(cluster, 1) as one, running_gateway(cluster, 2) as two:
        before = until(lambda: spread_of_two(one, two))
        leader = one.metadata.controllers.leader_id
        with cluster.killed("controller", leader):
            until(lambda: one.metadata.controllers.leader_id not in (leader, -1))

            def stay_known() -> bool:
                """Whether one leader led for two seconds: a busy machine may elect another one meanwhile."""
                new = one.metadata.controllers.leader_epoch
                ends_s = time.monotonic() + 2.0
                while time.monotonic() < ends_s:
                    assert addresses(one) == addresses(two) == before
                return one.metadata.controllers.leader_epoch == new

            until(stay_known, "a leader that leads for two seconds")
            assert len(one.living_gateways()) == 2


def spread_of_two(one: Gateway, two: Gateway) -> dict[int, tuple[str, int]] | None:
    """The addresses that both gateways give, when they agree and both have brokers."""
    first = addresses(one)
    if first != addresses(two):
        return None
    ports = {port for _, port in first.values()}
    return first if ports & ports_of(one) and ports & ports_of(two) else None
