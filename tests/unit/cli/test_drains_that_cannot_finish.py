"""`brokers drain --wait` ends with an error when the remaining replicas cannot move, and names them with the reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headrace.cluster_models import ClusterDescription, PartitionDescription, PartitionReassignment, TopicDescription
from headrace.models import BrokerInfo
from headrace_core.errors import BrokerIdNotRegisteredError
from headrace_core.types import TopicPartition
from headrace_tools.cli import brokers as command
from headrace_tools.cli.app import run
from headrace_tools.cli.draining import NAMED_MAX, obstacles, words

BROKERS = tuple(BrokerInfo(number, "127.0.0.1", 9094 + number) for number in (1, 2, 3, 4))
ORDERS = TopicPartition("orders", 0)


def topic(*replicas: int, leader: int | None = None, name: str = "orders") -> TopicDescription:
    part = PartitionDescription(0, replicas[0] if leader is None else leader, 1, replicas, replicas)
    return TopicDescription(name, b"id", False, (part,))


def move(*adding: int) -> dict[TopicPartition, PartitionReassignment]:
    return {ORDERS: PartitionReassignment((1, 2, 3), adding, (3,), waits=False)}


def changed(number: int, **how: Any) -> tuple[BrokerInfo, ...]:
    return tuple(dataclasses.replace(each, **how) if each.broker_id == number else each for each in BROKERS)


def test_a_replica_that_another_broker_can_take_is_no_obstacle() -> None:
    assert obstacles([3], BROKERS, [topic(1, 2, 3)], {}) == {}
    assert obstacles([3], BROKERS[:3], [topic(1, 2)], {}) == {}, "it has none there"


@pytest.mark.parametrize("brokers", [BROKERS[:3], changed(4, fenced=True), changed(4, draining=True)])
def test_as_many_replicas_as_brokers_have_no_place(brokers: tuple[BrokerInfo, ...]) -> None:
    (why,) = obstacles([3], brokers, [topic(1, 2, 3)], {}).values()
    assert why == "replicas 1, 2, 3; every live broker that takes replicas has one"


def test_a_partition_without_a_leader_and_a_move_to_a_dead_broker_stay() -> None:
    assert obstacles([3], BROKERS, [topic(1, 2, 3, leader=-1)], {}) == {ORDERS: "it has no leader to copy from"}
    assert obstacles([3], BROKERS[:3], [topic(1, 2, 3)], move(4)) == {ORDERS: "it moves to broker 4, which is dead"}
    assert obstacles([3], BROKERS, [topic(1, 2, 3)], move(4)) == {}


def test_as_long_as_one_replica_can_move_nothing_is_said() -> None:
    some = [topic(1, 2, 3, 4), topic(1, 3, name="payments")]
    assert obstacles([3], BROKERS, some, {}) == {}
    assert list(obstacles([3], BROKERS, some[:1], {})) == [ORDERS]


def test_the_error_names_a_few_and_counts_the_rest() -> None:
    found = {TopicPartition("orders", number): "why" for number in range(NAMED_MAX + 3)}
    message = words([3, 4], found)
    assert message.startswith(f"cannot drain broker 3, 4: {NAMED_MAX + 3} partitions cannot move: orders-0 (why), ")
    assert "and 3 more" in message
    assert "--cancel" in message


class _Cluster:
    """Three brokers; draining the third cannot finish."""

    def __enter__(self) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def drain_broker(self, broker: int, *, cancel: bool = False) -> int:
        if broker == 4:
            raise BrokerIdNotRegisteredError("broker 4 is not registered")
        return 1

    def describe_cluster(self, **_: Any) -> ClusterDescription:
        return ClusterDescription("ours", 1, BROKERS[:3])

    def describe_topics(self) -> list[TopicDescription]:
        return [topic(1, 2, 3)]

    def list_partition_reassignments(self) -> dict[Any, Any]:
        return {}


def test_drain_wait_ends_with_1_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "admin", lambda *_: _Cluster())
    monkeypatch.setattr(command, "_STUCK_S", 0.05)
    monkeypatch.setattr(command, "_LOOK_S", 0.01)
    assert run(["brokers", "drain", "3", "--wait", "-b", "127.0.0.1:1"]) == 1
    message = capsys.readouterr()
    assert "cannot drain broker 3: 1 partition cannot move: orders-0 (replicas 1, 2, 3; " in message.err
    assert message.err.rstrip().endswith("[INVALID_REQUEST]")


def test_a_wrong_id_does_not_keep_the_drains_of_other_brokers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "admin", lambda *_: _Cluster())
    assert run(["brokers", "drain", "4", "3", "--cancel", "-b", "127.0.0.1:1"]) == 1
    message = capsys.readouterr()
    assert message.out.startswith("broker 3 gets replicas again")
    assert message.err == "headrace: broker 4 is not registered [BROKER_ID_NOT_REGISTERED]\n"
    assert run(["brokers", "drain", "4", "3", "-b", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().out == ""
