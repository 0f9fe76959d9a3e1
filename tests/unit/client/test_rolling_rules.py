"""The rules of a rolling restart, and the choice of the next node. Each test changes one fact of a healthy cluster to a
fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headrace.cluster_models import CoordinatorInfo, PartitionDescription, QuorumInfo, QuorumReplica
from headrace.models import BrokerInfo
from headrace_tools.rolling.rules import NodeName, PartitionSeen, Returned, Seen, next_node, not_whole, unavoidable

NOW_MS = 1_800_000_000_000
NODES = [
    *(NodeName(role, number) for role in ("controller", "broker") for number in (1, 2, 3)),
    *(NodeName("coordinator", number) for number in (1, 2)),
]


def partition(number: int = 0, *, min_insync: int | None = 2, adding: Any = (), **changed: Any) -> PartitionSeen:
    described = dataclasses.replace(PartitionDescription(number, 1, 4, (1, 2, 3), (1, 2, 3)), **changed)
    return PartitionSeen(topic="orders", described=described, adding=frozenset(adding), min_insync=min_insync)


def voter(node_id: int, fetched_ms_ago: int | None = 0, caught_up_ms_ago: int | None = 0) -> QuorumReplica:
    fetched, caught_up = (None if ago is None else NOW_MS - ago for ago in (fetched_ms_ago, caught_up_ms_ago))
    return QuorumReplica(node_id, b"v" * 16, f"127.0.0.1:1909{node_id}", 500, 0, fetched, caught_up)


def quorum(*voters: QuorumReplica, leader_id: int = 1) -> QuorumInfo:
    return QuorumInfo(leader_id, 7, 500, voters, ())


def broker(node_id: int, **changed: Any) -> BrokerInfo:
    return dataclasses.replace(BrokerInfo(node_id, "127.0.0.1", 9_095 + node_id), **changed)


def coordinator(node_id: int, **changed: Any) -> CoordinatorInfo:
    return dataclasses.replace(CoordinatorInfo(node_id, "127.0.0.1", 9_195 + node_id), **changed)


def seen(**changed: Any) -> Seen:
    whole = Seen(
        nodes=dict.fromkeys(NODES, True),
        age_ms=40.0,
        brokers=tuple(map(broker, (1, 2, 3))),
        coordinators=tuple(map(coordinator, (1, 2))),
        partitions=(partition(0), partition(1, leader=2)),
        quorum=quorum(voter(1), voter(2, 300, 300), voter(3, 400, 400)),
    )
    return dataclasses.replace(whole, **changed)


def test_a_whole_cluster_has_nothing_against_it() -> None:
    assert not_whole(seen()) == []
    assert unavoidable(seen(), NODES) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"nodes": dict.fromkeys(NODES, True) | {NodeName("broker", 2): False}}, "broker 2 is not running"),
        ({"unanswered": ("no node describes topics: why",), "partitions": ()}, "no node describes topics: why"),
        (
            {"brokers": (broker(1), broker(2, fenced=True), broker(3))},
            "broker 2 is not registered as alive",
        ),
        ({"brokers": (broker(1), broker(2))}, "broker 3 is not registered as alive"),
        ({"partitions": (partition(4, leader=-1, isr=()),)}, "nobody leads orders-4"),
        (
            {"partitions": (partition(0), *(partition(number, isr=(1, 3)) for number in range(1, 6)))},
            "not in sync on broker 2: orders-1, orders-2, orders-3 and 2 more",
        ),
        ({"partitions": (partition(0, isr=(1,)),)}, "not in sync on brokers 2, 3: orders-0"),
        ({"quorum": None}, "no controller is active"),
        ({"quorum": quorum(voter(1, None), voter(2), voter(3))}, "controller 1 is not active yet"),
        ({"quorum": quorum(voter(1), voter(2))}, "controller 3 is not a voter (`headrace up` makes it one)"),
        (
            {"quorum": quorum(voter(1), voter(2, None, None), voter(3))},
            "controller 2 has not caught up since controller 1 became leader",
        ),
        ({"quorum": quorum(voter(1), voter(2, 100, None), voter(3))}, "controller 2 has not caught up since"),
        ({"quorum": quorum(voter(1), voter(2, 12_000, 12_000), voter(3))}, "controller 2 sent nothing for 12 s"),
        ({"quorum": quorum(voter(1), voter(2, 100, 15_000), voter(3))}, "controller 2 has been behind for 15 s"),
        ({"coordinators": (coordinator(1),)}, "coordinator 2 is not registered as alive"),
        ({"coordinators": (coordinator(1), coordinator(2, draining=True))}, "coordinator 2 is not registered as alive"),
        ({"unowned": "3 of 50 shards"}, "groups without a coordinator: 3 of 50 shards"),
    ],
)
def test_one_thing_that_is_not_well_is_reported_and_nothing_else(changed: dict[str, Any], reason: str) -> None:
    (reported,) = not_whole(seen(**changed))
    assert reported.startswith(reason)


def test_what_a_reassignment_adds_is_not_missed_and_what_it_leaves_is() -> None:
    moving = partition(0, replicas=(1, 2, 3, 4), isr=(1, 2, 3), adding=(4,))
    assert not_whole(seen(partitions=(moving,))) == []
    moving = partition(0, replicas=(1, 2, 3, 4), isr=(1, 2, 4), adding=(4,))
    assert not_whole(seen(partitions=(moving,))) == ["not in sync on broker 3: orders-0"]


def test_of_a_cluster_without_coordinators_none_are_missed() -> None:
    nodes = {name: True for name in NODES if name.role != "coordinator"}
    assert not_whole(seen(nodes=nodes, coordinators=(), unowned=None)) == []


@pytest.mark.parametrize(("age_ms", "is_old"), [(499.0, False), (500.0, False), (501.0, True), (None, True)])
def test_after_a_return_a_look_that_may_be_older_does_not_count(age_ms: float | None, is_old: bool) -> None:
    back = Returned(node=NodeName("broker", 2), ago_ms=500.0)
    reasons = not_whole(seen(age_ms=age_ms), back)
    assert [("may be older than the start of broker 2" in each) for each in reasons] == [True] * is_old


def test_a_controller_must_catch_up_after_it_is_back_and_what_it_had_before_does_not_count() -> None:
    back = Returned(node=NodeName("controller", 2), ago_ms=300.0)
    old, fresh = voter(2, 310, 310), voter(2, 100, 290)
    assert not_whole(seen(quorum=quorum(voter(1), old, voter(3))), back) == [
        "controller 2 has not caught up since its start"
    ]
    assert not_whole(seen(quorum=quorum(voter(1), fresh, voter(3))), back) == []
    # for the other controllers, it is enough that they answer
    assert not_whole(seen(quorum=quorum(voter(1), fresh, voter(3, 2_000, 2_000))), back) == []


def test_controllers_go_first_and_the_active_one_last_of_them_wherever_the_leadership_goes() -> None:
    waiting, order, leader = list(NODES), [], 1
    while waiting:
        name = next_node(waiting, leader)
        waiting.remove(name)
        order.append(name)
        if name == NodeName("controller", 2):
            leader = 3  # the leadership moved for another reason
    controllers = [NodeName("controller", number) for number in (2, 1, 3)]
    assert order == [*controllers, *NODES[3:]]
    assert next_node([NodeName("controller", 3), NodeName("broker", 1)], 3) == NodeName("controller", 3)


def test_what_has_no_copy_to_spare_is_reported_and_stops_nobody() -> None:
    alone = partition(0, replicas=(2,), isr=(2,), min_insync=1)
    tight = partition(1, min_insync=3)
    facts = seen(partitions=(alone, tight, partition(2)))
    assert not_whole(facts) == []
    sole, refused = unavoidable(facts, NODES)
    assert sole.startswith("orders-0: one replica each, so clients cannot read or write")
    assert "orders-1: acks=all fails" in refused
    assert unavoidable(facts, [NodeName("coordinator", 1), NodeName("controller", 1)]) == []
    (refused,) = unavoidable(facts, [NodeName("broker", 1)])  # the only replica is on another broker
    assert "orders-1" in refused


def test_a_sole_controller_or_coordinator_that_is_to_be_restarted_is_noted() -> None:
    nodes = {name: True for name in NODES if name.role == "broker" or name.node_id == 1}
    facts = seen(nodes=nodes, quorum=quorum(voter(1)), coordinators=(coordinator(1),))
    assert not_whole(facts) == []
    controller, groups = unavoidable(facts, list(nodes))
    assert "with 1 controller there is no majority" in controller
    assert "groups wait" in groups
    assert unavoidable(facts, [NodeName("broker", 1)]) == []


def test_registries_go_last_and_a_sole_one_is_noted() -> None:
    registry = NodeName("registry", 1)
    assert next_node([registry, NodeName("coordinator", 2)], 1) == NodeName("coordinator", 2)
    facts = seen(nodes={**dict.fromkeys(NODES, True), registry: True})
    assert not_whole(facts) == []
    assert unavoidable(facts, [registry]) == ["there is one registry: requests for schemas wait while it restarts"]
    assert unavoidable(facts, NODES) == []
    assert not_whole(seen(nodes={**dict.fromkeys(NODES, True), registry: False})) == ["registry 1 is not running"]
