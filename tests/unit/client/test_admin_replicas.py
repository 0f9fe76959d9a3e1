"""Elections, reassignments, drains: requests of the admin client and the command line to a controller, and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace import Admin, PartitionReassignment, TopicPartition
from headrace.errors import (
    ElectionNotNeededError,
    HeadraceError,
    InvalidArgumentError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    OperationNotAttemptedError,
    PreferredLeaderNotAvailableError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.rpc.status import status_of
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, metadata_pb2, metadata_pb2_grpc
from headrace_tools.cli import partitions
from headrace_tools.cli.app import run
from headrace_tools.cli.partitions import targets

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Node(admin_pb2_grpc.AdminServicer, metadata_pb2_grpc.MetadataServicer):
    """Three brokers. Topic a has two partitions, and a replica of a-1 is out of sync. Topic b has one partition, which
    has no leader."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.elections: list[dict[TopicPartition, HeadraceError | None]] = []
        self.refused: dict[TopicPartition, HeadraceError] = {}
        self.under_way: list[list[admin_pb2.OngoingReassignment]] = []
        self.left: list[int] = []
        self.replicas_of_a0 = [1, 2]
        self.moved: list[list[int]] = []  # replicas_of_a0 after each answer that no move is under way
        self.alive = 0
        self.address = ""

    def GetMetadata(self, request: Any, context: Any) -> Any:
        host, port = self.address.split(":")
        answer = metadata_pb2.MetadataResponse(cluster_id="c", controller_id=1, metadata_offset=7)
        answer.brokers.add(broker_id=1, host=host, port=int(port))
        answer.brokers.add(broker_id=2, host="127.0.0.1", port=9, rack="r", draining=True)
        if request.include_fenced_brokers:
            answer.brokers.add(broker_id=3, host="127.0.0.1", port=8, fenced=True)
        names = ["a", "b"] if request.all_topics else request.topics
        for name in names:
            topic = answer.topics.add(name=name, topic_id=name.encode() * 16)
            if name == "a":
                replicas = self.replicas_of_a0
                topic.partitions.add(partition=0, leader_id=1, replicas=replicas, isr=replicas)
                topic.partitions.add(partition=1, leader_id=2, replicas=[2, 3], isr=[2])
            else:
                topic.partitions.add(partition=0, leader_id=-1, replicas=[3], isr=[], eligible_leader_replicas=[3])
        return answer

    def DescribeConfigs(self, request: Any, context: Any) -> Any:
        answer = admin_pb2.DescribeConfigsResponse()
        for each in request.resources:
            result = answer.results.add(resource=each)
            result.entries.add(name="min.insync.replicas", value="2")
        return answer

    def ElectLeaders(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        answer = admin_pb2.ElectLeadersResponse(metadata_offset=7)
        for partition, error in self.elections.pop(0).items():
            answer.results.add(topic=partition.topic, partition=partition.partition, error=error_to_proto(error))
        return answer

    def AlterPartitionReassignments(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        answer = admin_pb2.AlterPartitionReassignmentsResponse(metadata_offset=7)
        for each in request.reassignments:
            error = self.refused.get(TopicPartition(each.topic, each.partition))
            answer.results.add(topic=each.topic, partition=each.partition, error=error_to_proto(error))
        return answer

    def ListPartitionReassignments(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        found = self.under_way.pop(0) if len(self.under_way) > 1 else (self.under_way or [[]])[0]
        if not found and self.moved:
            self.replicas_of_a0 = self.moved.pop(0)
        return admin_pb2.ListPartitionReassignmentsResponse(reassignments=found)

    def DrainBroker(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        return admin_pb2.DrainBrokerResponse(replicas_left=self.left.pop(0), metadata_offset=7)

    def UnregisterBroker(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        if self.alive:
            self.alive -= 1
            status, details, metadata = status_of(InvalidRequestError("broker 3 is alive; stop it first"))
            context.set_trailing_metadata(metadata)
            context.abort(status, details)
        return admin_pb2.UnregisterBrokerResponse(metadata_offset=7)


@pytest.fixture
def node() -> Iterator[Node]:
    server, servicer = grpc.server(ThreadPoolExecutor(2)), Node()
    admin_pb2_grpc.add_AdminServicer_to_server(servicer, server)
    metadata_pb2_grpc.add_MetadataServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(None)


def reassigned(node: Node) -> dict[TopicPartition, list[int] | None]:
    """The content of the last request."""
    items = node.asked[-1].reassignments
    return {TopicPartition(each.topic, each.partition): None if each.cancel else list(each.replicas) for each in items}


def moving(partition: TopicPartition, *, waits: bool = False) -> admin_pb2.OngoingReassignment:
    return admin_pb2.OngoingReassignment(
        topic=partition.topic,
        partition=partition.partition,
        replicas=[1, 2, 3],
        adding_replicas=[3],
        removing_replicas=[1],
        waits=waits,
    )


def test_leaders_are_elected_and_what_was_too_much_at_once_is_asked_for_again(node: Node) -> None:
    node.elections = [
        {A0: None, A1: ElectionNotNeededError("it leads"), B0: OperationNotAttemptedError("ask again")},
        {B0: PreferredLeaderNotAvailableError("not in sync")},
    ]
    with Admin(bootstrap_servers=node.address) as admin:
        outcome = admin.elect_leaders()
    assert (outcome[A0], type(outcome[A1]), type(outcome[B0])) == (
        None,
        ElectionNotNeededError,
        PreferredLeaderNotAvailableError,
    )
    first, second = node.asked
    assert first.all_partitions
    assert not second.all_partitions
    assert [(each.topic, list(each.partitions)) for each in second.partitions] == [("b", [0])]


def test_an_election_in_which_nothing_more_happens_ends(node: Node) -> None:
    node.elections = [{A0: OperationNotAttemptedError("ask again")}]
    with Admin(bootstrap_servers=node.address) as admin:
        assert type(admin.elect_leaders("unclean", [A0])[A0]) is OperationNotAttemptedError
        assert admin.elect_leaders("preferred", []) == {}
    (asked,) = node.asked
    assert asked.election_type == admin_pb2.ELECTION_TYPE_UNCLEAN


def test_reassignments_begin_are_cancelled_and_listed(node: Node) -> None:
    node.under_way = [[moving(A0), moving(A1, waits=True)]]
    with Admin(bootstrap_servers=node.address) as admin:
        admin.alter_partition_reassignments({A0: [2, 3], A1: None}, throttle_bytes_per_s=5)
        assert reassigned(node) == {A0: [2, 3], A1: None}
        assert (node.asked[-1].throttle_bytes_per_s, node.asked[-1].keep_replication_factor) == (5, False)
        admin.alter_partition_reassignments({A0: [2]}, allow_replication_factor_change=False)
        assert not node.asked[-1].HasField("throttle_bytes_per_s"), "left as it is"
        assert node.asked[-1].keep_replication_factor
        assert admin.list_partition_reassignments() == {
            A0: PartitionReassignment((1, 2, 3), (3,), (1,)),
            A1: PartitionReassignment((1, 2, 3), (3,), (1,), waits=True),
        }
        assert admin.list_partition_reassignments([]) == {}
        node.refused = {A1: InvalidReplicaAssignmentError("broker 9 is not registered")}
        with pytest.raises(InvalidReplicaAssignmentError, match="a-1: broker 9 is not registered"):
            admin.alter_partition_reassignments({A0: [2], A1: [9]})


def test_what_makes_no_sense_is_refused_before_anybody_is_asked(node: Node) -> None:
    with Admin(bootstrap_servers=node.address) as admin:
        for wrong in (
            lambda: admin.elect_leaders("best"),  # type: ignore[arg-type]
            lambda: admin.elect_leaders("preferred", A0),  # type: ignore[arg-type]
            lambda: admin.elect_leaders("preferred", ["a-0"]),  # type: ignore[list-item]
            lambda: admin.alter_partition_reassignments({A0: ["1"]}),  # type: ignore[list-item]
            lambda: admin.alter_partition_reassignments({}, throttle_bytes_per_s=-1),
            lambda: admin.drain_broker(-1),
            lambda: admin.unregister_broker(True),
        ):
            with pytest.raises(InvalidArgumentError):
                wrong()
    assert not node.asked


def test_the_command_line_moves_and_waits(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["-b", node.address]
    node.under_way, node.moved = [[moving(A0)], []], [[2, 3]]
    assert run(["partitions", "reassign", "a-0=2,3", "--wait", "--throttle", "7", "-o", "json", *at]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "reassignments": [{"topic": "a", "partition": 0, "replicas": [2, 3]}],
        "throttle_bytes_per_s": 7,
        "done": True,
    }
    plan = {"version": 1, "partitions": [{"topic": "a", "partition": 1, "replicas": [3, 1], "log_dirs": ["any"]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert run(["partitions", "reassign", "--file", str(tmp_path / "plan.json"), *at]) == 0
    assert reassigned(node) == {A1: [3, 1]}
    asked = len(node.asked)
    capsys.readouterr()
    assert run(["partitions", "reassign", "--topic", "a", "-r", "1", "--dry-run", *at]) == 0
    assert json.loads(capsys.readouterr().out)["partitions"] == [
        {"topic": "a", "partition": 0, "replicas": [2]},
        {"topic": "a", "partition": 1, "replicas": [2]},
    ]
    assert len(node.asked) == asked
    assert run(["partitions", "reassign", "--topic", "a", "-r", "3", *at]) == 1
    assert "1 broker can take replicas" in capsys.readouterr().err


def test_of_a_topic_only_the_moves_under_way_are_cancelled(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    cancel = ["partitions", "reassign", "--cancel", "--topic", "a", "-b", node.address]
    node.under_way = [[moving(A0), moving(A1)]]
    assert run([*cancel, "b-0"]) == 0
    assert reassigned(node) == {A0: None, A1: None, B0: None}
    node.under_way = [[moving(A1)]]
    assert run(cancel) == 0
    assert reassigned(node) == {A1: None}
    node.under_way = []
    assert run(cancel) == 1
    assert "no partition of a is being reassigned [NO_REASSIGNMENT_IN_PROGRESS]" in capsys.readouterr().err


def test_a_move_that_another_command_cancels_is_no_success(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_METADATA_S", 0.0)
    node.under_way = [[moving(A0)], []]  # a-0 keeps its replicas 1 and 2
    assert run(["partitions", "reassign", "a-0=2,3", "--wait", "-o", "json", "-b", node.address]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "1 of 1 move ended without effect" in printed.err
    assert "a-0 has the replicas 1,2 [NO_REASSIGNMENT_IN_PROGRESS]" in printed.err


def test_a_broker_that_learns_of_a_move_later_does_not_make_it_fail(node: Node) -> None:
    node.under_way, node.moved = [[moving(A0)], []], [[1, 2], [2, 3]]
    assert run(["partitions", "reassign", "a-0=2,3", "--wait", "-b", node.address]) == 0
    assert node.replicas_of_a0 == [2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["a-0"],
        ["a=1,2"],
        ["a-0=one"],
        ["a-0=1", "--topic", "a", "-r", "2"],
        ["--topic", "a"],
        ["-r", "3", "a-0=1"],
        ["--cancel", "-r", "3", "--topic", "a"],
    ],
)
def test_a_wrong_command_line_moves_nothing(node: Node, wrong: list[str]) -> None:
    assert run(["partitions", "reassign", *wrong, "-b", node.address]) == 2
    assert not node.asked


def test_the_moves_that_begin_beside_a_refused_one_are_named(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.refused = {A1: InvalidReplicaAssignmentError("broker 9 is not registered")}
    node.under_way = [[moving(A0)]]
    assert run(["partitions", "reassign", "a-0=2,3", "a-1=9", "-b", node.address]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "running or queued: a-0"
    assert "a-1: broker 9 is not registered" in second


def test_a_plan_that_is_no_json_moves_nothing(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    for wrong in (b"\xff\xfe", b"[" * 100_000, b'{"partitions": [{"topic": "a", "partition": 0, "replicas": "12"}]}'):
        plan.write_bytes(wrong)
        assert run(["partitions", "reassign", "--file", str(plan), "-b", node.address]) == 1
        assert "INVALID_ARGUMENT" in capsys.readouterr().err
    assert not node.asked


def test_more_replicas_go_to_other_racks_and_to_those_that_have_least() -> None:
    racks = {1: "x", 2: "x", 3: "y", 4: ""}
    load = {1: 9, 2: 0, 3: 5, 4: 6}
    assert targets([1], 2, load, racks) == [1, 3]
    assert targets([1], 3, load, racks) == [1, 3, 4]
    assert targets([1], 4, load, racks) == [1, 3, 4, 2]
    assert targets([3, 2, 1], 2, load, racks) == [3, 2]
    assert targets([7], 2, {**load, 7: 1}, {1: "", 2: ""}) == [7, 2], "a broker that is not alive keeps its replica"


def test_the_command_line_elects_and_fails_when_somebody_cannot_lead(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["-b", node.address]
    node.elections = [{A0: None, A1: ElectionNotNeededError("it leads")}]
    assert run(["partitions", "elect", "--topic", "a", *at]) == 0
    assert "elected 1 leader" in capsys.readouterr().out
    node.elections = [{B0: PreferredLeaderNotAvailableError("not in sync")}]
    assert run(["partitions", "elect", "b-0", "-o", "json", *at]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["elected"], row["error"]["code"]) == (False, "PREFERRED_LEADER_NOT_AVAILABLE")
    assert run(["partitions", "elect", *at]) == 2
    assert run(["partitions", "elect", "--all", "a-0", *at]) == 2


def test_what_is_on_its_way_is_shown_until_nothing_is(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["-b", node.address]
    node.under_way = [[moving(A0, waits=True)], []]
    assert run(["partitions", "list-reassignments", "--watch", "-o", "json", *at]) == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first[0]["topic"], first[0]["adding_replicas"], first[0]["waits"]) == ("a", [3], True)
    assert last == []


def test_brokers_are_listed_emptied_and_forgotten(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["-b", node.address]
    assert run(["brokers", "list", "-o", "json", *at]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert [(row["fenced"], row["draining"]) for row in rows.values()] == [(False, False), (False, True), (True, False)]
    assert [(row["leaders"], row["replicas"], row["not_in_sync"]) for row in rows.values()] == [
        (1, 1, 0),
        (1, 2, 0),
        (0, 2, 2),
    ]
    node.left = [3, 1, 0]
    assert run(["brokers", "drain", "2", "--wait", "-o", "json", *at]) == 0
    assert json.loads(capsys.readouterr().out) == {"broker": 2, "draining": True, "replicas_left": 0}
    node.left = [1]
    assert run(["brokers", "drain", "2", "--cancel", *at]) == 0
    assert node.asked[-1].cancel
    node.alive = 2
    assert run(["brokers", "unregister", "3", *at]) == 1
    assert "is alive" in capsys.readouterr().err
    assert run(["brokers", "unregister", "3", "--wait", "60", *at]) == 0


def test_several_brokers_are_emptied_at_once_under_either_name(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["-b", node.address]
    # brokers 4 and 5 are drained: broker 4 is empty first, broker 5 then has one replica, and later none
    node.left = [2, 1, 0, 1, 0]
    assert run(["cluster", "drain", "4", "5", "4", "--wait", "-o", "json", *at]) == 0
    assert [row["broker"] for row in json.loads(capsys.readouterr().out)] == [4, 5]
    assert [each.broker_id for each in node.asked] == [4, 5, 4, 5, 5]
    node.left = [1, 0]
    assert run(["brokers", "drain", "4", "5", *at]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "broker 4 is draining, 1 replica left; run the same command again to see how many",
        "broker 5 has no replicas: stop it, then run `headrace brokers unregister 5`",
    ]


def test_partitions_in_trouble_are_found_among_all_topics(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["-b", node.address]

    def found(*flags: str) -> list[tuple[str, int]]:
        assert run(["topics", "describe", *flags, "-o", "json", *at]) == 0
        return [(row["topic"], row["partition"]) for row in json.loads(capsys.readouterr().out)]

    assert found("--under-replicated-partitions") == [("a", 1), ("b", 0)]
    assert found("--under-min-isr-partitions") == [("a", 1), ("b", 0)]
    assert found("--unavailable-partitions") == [("b", 0)]
    assert run(["topics", "describe", "a", *at]) == 0
    shown = capsys.readouterr().out
    assert "under min isr, under replicated" in shown
    assert "min.insync.replicas 2" in shown
    assert run(["topics", "describe", "b", "-o", "json", *at]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["partitions"][0]["elr"] == [3]
    node.under_way = [[moving(A1)]]  # its third replica is still being copied
    assert found("--under-replicated-partitions") == [("b", 0)]
    assert run(["topics", "describe", *at]) == 2
