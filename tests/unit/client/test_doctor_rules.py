"""The doctor's findings: each test changes one fact of a healthy cluster to a fault."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster_models import (
    ClusterDescription,
    ControllerInfo,
    CoordinatorInfo,
    FeatureInfo,
    LogDirDescription,
    NodeDescription,
    NodeDisk,
    PartitionDescription,
    QuorumBroker,
    QuorumInfo,
    QuorumReplica,
    ReplicaInfo,
    TopicDescription,
)
from headrace.errors import (
    CorruptLogError,
    GroupIdNotFoundError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    StorageError,
)
from headrace.group_models import GroupDescription, GroupLag, PartitionLag, PendingOffset, Rebalance
from headrace.models import BrokerInfo, TransactionToken
from headrace.transaction_models import TransactionDescription
from headrace_core.sinks import sink_id
from headrace_core.types import TopicPartition
from headrace_tools.cli.transactions import _prepared as prepared_line
from headrace_tools.doctor.diagnosis import RULES, Finding, diagnose
from headrace_tools.doctor.facts import (
    THE_QUORUM,
    Facts,
    GroupFacts,
    LocalNode,
    Move,
    NotAsked,
    TransactionFacts,
    Tried,
    Trouble,
)
from headrace_tools.hanging import HangingTransaction
from headrace_tools.orphaned_offsets import OrphanedOffset

NOW_MS = 1_800_000_000_000
GIB = 2**30
HOSTS = {1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.0.3"}


def node(role: str, node_id: int, **changed: Any) -> NodeDescription:
    healthy = NodeDescription(
        role=role,
        node_id=node_id,
        cluster_id="ours",
        software_version="0.1.0",
        metadata_version_min=1,
        metadata_version_max=2,
        started_at_ms=NOW_MS - 3_600_000,
        clock_ahead_ms=3.0,
        round_trip_ms=1.0,
        open_descriptors=100,
        descriptors_max=1_024,
    )
    return dataclasses.replace(healthy, **changed)


def tried(role: str, node_id: int, *, port: int = 9095, **of_node: Any) -> Tried:
    return Tried(address=f"{HOSTS[node_id]}:{port}", ips=(HOSTS[node_id],), node=node(role, node_id, **of_node))


def partition(number: int = 0, **changed: Any) -> PartitionDescription:
    return dataclasses.replace(PartitionDescription(number, 1, 4, (1, 2, 3), (1, 2, 3)), **changed)


def topic(name: str, *partitions: PartitionDescription) -> TopicDescription:
    return TopicDescription(name, b"t" * 16, False, partitions)


def log_dir(broker_id: int, **changed: Any) -> LogDirDescription:
    replicas = (ReplicaInfo("orders", 0, 1_000, 0, False),)
    healthy = LogDirDescription(broker_id, "/data", b"d" * 16, None, replicas, 500 * GIB, 300 * GIB, 2.0)
    return dataclasses.replace(healthy, **changed)


def voter(node_id: int, fetched_ms_ago: int | None = 0) -> QuorumReplica:
    fetched_ms = None if fetched_ms_ago is None else NOW_MS - fetched_ms_ago
    return QuorumReplica(node_id, b"v" * 16, f"{HOSTS[node_id]}:19095", 500, 0, fetched_ms, fetched_ms)


def group(*, rebalances: tuple[Rebalance, ...] = (), **of_partition: Any) -> GroupFacts:
    lag = PartitionLag("orders", 0, 90, NOW_MS - 1_000, 100, 10, 5, False, 0, "OK", 1.0)
    lag = dataclasses.replace(lag, **of_partition)
    return GroupFacts(
        described=GroupDescription("billing", "stable", coordinator_id=1),
        lag=GroupLag("billing", "OK", lag.lag or 0, (lag,)),
        rebalances=rebalances,
    )


def rebalances(*seconds_ago: int, reason: str = "member a is gone: crashed") -> tuple[Rebalance, ...]:
    return tuple(
        Rebalance(number, NOW_MS - ago * 1_000, number, reason, (), 4, NOW_MS - ago * 1_000 + 50)
        for number, ago in enumerate(seconds_ago)
    )


def healthy() -> Facts:
    """Three brokers and three controllers on three machines. The doctor on a fourth machine finds them by their
    names."""
    return Facts(
        now_ms=NOW_MS,
        bootstrap=(Tried(address="kafka:9095", ips=("10.0.0.1", "10.0.0.2")),),
        cluster=ClusterDescription(
            cluster_id="ours",
            controller_id=1,
            brokers=tuple(BrokerInfo(number, host, 9095) for number, host in HOSTS.items()),
            controllers=tuple(ControllerInfo(number, host, 19095) for number, host in HOSTS.items()),
            coordinators=(CoordinatorInfo(1, HOSTS[1], 9099),),
        ),
        brokers={number: tried("broker", number) for number in HOSTS},
        controllers={number: tried("controller", number, port=19095) for number in HOSTS},
        coordinators={1: tried("coordinator", 1, port=9099)},
        features={"metadata.version": FeatureInfo("metadata.version", 2, 1, 2)},
        quorum=QuorumInfo(
            1, 7, 500, tuple(map(voter, HOSTS)), (), tuple(QuorumBroker(each, 500, 0, 300, NOW_MS) for each in HOSTS)
        ),
        topics=(topic("orders", partition(0), partition(1)), topic("__consumer_offsets", partition(0))),
        min_insync={"orders": 2, "__consumer_offsets": 2},
        log_dirs={number: (log_dir(number),) for number in HOSTS},
        groups=(group(),),
    )


def found(**changed: Any) -> list[Finding]:
    """The findings for a healthy cluster's facts after one change of them."""
    return diagnose(dataclasses.replace(healthy(), **changed))


def only(**changed: Any) -> Finding:
    """The only finding after one change of a healthy cluster's facts."""
    findings = found(**changed)
    assert len(findings) == 1, [finding.rule for finding in findings]
    assert findings[0].rule in RULES
    assert findings[0].where
    assert findings[0].cure
    return findings[0]


def brokers(**changed: Any) -> dict[int, Tried]:
    """Return the list with its second item changed."""
    return healthy().brokers | {2: dataclasses.replace(healthy().brokers[2], **changed)}


def cluster(**changed: Any) -> ClusterDescription:
    known = healthy().cluster
    assert known is not None
    return dataclasses.replace(known, **changed)


def quorum(*voters: QuorumReplica, **changed: Any) -> QuorumInfo:
    known = healthy().quorum
    assert known is not None
    return dataclasses.replace(known, voters=voters or known.voters, **changed)


def test_a_healthy_cluster_gets_no_finding_at_all() -> None:
    assert found() == []


def test_a_cluster_of_one_node_without_topics_groups_or_coordinators_is_healthy() -> None:
    small = cluster(brokers=(BrokerInfo(1, HOSTS[1], 9095),), coordinators=())
    assert (
        found(
            cluster=small,
            brokers={1: tried("broker", 1)},
            coordinators={},
            controllers={},
            topics=(),
            min_insync={},
            groups=(),
            quorum=quorum(voter(1)),
        )
        == []
    )


# -- addresses --------------------------------------------------------------------------------------------------------


def test_nobody_answers_and_the_name_is_unknown() -> None:
    bad = Tried(address="kafak:9095", trouble=Trouble.NAME, detail="Name or service not known")
    findings = diagnose(Facts(now_ms=NOW_MS, bootstrap=(bad,)))
    assert [each.rule for each in findings] == ["no-cluster", "name-not-resolved"]
    assert {each.severity for each in findings} == {"error"}
    assert "'kafak'" in findings[1].what


def test_a_dead_local_cluster_is_to_be_started_with_its_directory() -> None:
    bad = Tried(address="127.0.0.1:9095", ips=("127.0.0.1",), trouble=Trouble.REFUSED)
    dead = LocalNode(role="broker", node_id=1, address="127.0.0.1:9095", pid=None, log="/c/logs/broker-1.log")
    findings = diagnose(Facts(now_ms=NOW_MS, bootstrap=(bad,), data="/c", local=(dead,)))
    assert [each.rule for each in findings] == ["no-cluster", "process-dead"]
    assert "headrace up --data /c" in findings[0].cure
    assert "headrace restart --data /c broker 1" in findings[1].cure


def test_one_of_the_bootstrap_names_is_wrong_though_another_one_works() -> None:
    bad = Tried(address="old:9095", trouble=Trouble.NAME, detail="Name or service not known")
    assert only(bootstrap=(*healthy().bootstrap, bad)).severity == "warning"


def test_a_bootstrap_address_where_nobody_is() -> None:
    bad = Tried(address="10.0.0.9:9095", ips=("10.0.0.9",), trouble=Trouble.REFUSED, detail="connection refused")
    assert only(bootstrap=(*healthy().bootstrap, bad)).rule == "address-unreachable"


def test_a_broker_advertises_a_name_that_is_not_known_here() -> None:
    finding = only(brokers=brokers(address="b2.inside:9095", ips=(), trouble=Trouble.NAME, node=None))
    assert (finding.rule, finding.severity) == ("name-not-resolved", "error")
    assert "broker 2" in finding.where
    assert "advertised.listeners" in finding.cure


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.UNREACHABLE])
def test_a_live_broker_cannot_be_reached_where_it_says(trouble: Trouble) -> None:
    finding = only(brokers=brokers(trouble=trouble, detail="no route to host", node=None))
    assert (finding.rule, finding.severity) == ("address-unreachable", "error")
    assert "no route to host" in finding.what


def test_a_coordinator_that_cannot_be_reached_counts_as_much() -> None:
    away = Tried(address="10.0.0.1:9099", ips=("10.0.0.1",), trouble=Trouble.REFUSED, detail="refused")
    assert only(coordinators={1: away}).where == "coordinator 1 at 10.0.0.1:9099"


def test_a_broker_tells_other_machines_to_look_at_home() -> None:
    finding = only(brokers=brokers(address="localhost:9095", ips=("127.0.0.1", "::1"), trouble=None))
    assert finding.rule == "advertised-loopback"


def test_a_cluster_on_this_machine_may_advertise_loopback() -> None:
    home = Tried(address="127.0.0.1:9095", ips=("127.0.0.1",))
    assert found(bootstrap=(home,), brokers=brokers(address="127.0.0.1:9096", ips=("127.0.0.1",))) == []


@pytest.mark.parametrize("changed", [{"node_id": 3}, {"cluster_id": "theirs"}, {"role": "controller"}])
def test_somebody_else_answers_where_a_broker_should_be(changed: dict[str, Any]) -> None:
    finding = only(brokers=brokers(node=dataclasses.replace(node("broker", 2), **changed)))
    assert finding.rule == "address-of-another"


@pytest.mark.parametrize("trouble", [Trouble.SILENT, Trouble.NOT_SERVING])
def test_a_broker_takes_connections_and_does_not_answer(trouble: Trouble) -> None:
    assert only(brokers=brokers(trouble=trouble, detail="nothing within 2 s")).rule == "node-silent"


def test_a_broker_is_down_and_its_cure_depends_on_where_it_lives() -> None:
    fenced = tuple(dataclasses.replace(each, fenced=each.broker_id == 2) for each in cluster().brokers)
    changed: dict[str, Any] = {
        "cluster": cluster(brokers=fenced),
        "brokers": {number: each for number, each in healthy().brokers.items() if number != 2},
        # it has sent no heartbeat since then
        "quorum": quorum(brokers=(QuorumBroker(2, 500, 0, 300, NOW_MS - 9_000),)),
    }
    finding = only(**changed)
    assert (finding.rule, finding.severity) == ("broker-down", "error")
    assert "headrace brokers unregister 2" in finding.cure
    dead = LocalNode(role="broker", node_id=2, address="10.0.0.2:9095", pid=None, log="/c/logs/broker-2.log")
    assert "headrace restart --data /c broker 2" in only(**changed, data="/c", local=(dead,)).cure


def fenced(**tried_as: Any) -> dict[str, Any]:
    """Facts of a cluster whose broker 2 sends no heartbeats. ``tried_as`` is the result of the connection attempt to
    the broker's address."""
    brokers_now = tuple(dataclasses.replace(each, fenced=each.broker_id == 2) for each in cluster().brokers)
    return {
        "cluster": cluster(brokers=brokers_now),
        "brokers": {number: each for number, each in healthy().brokers.items() if number != 2},
        "quorum": quorum(brokers=(QuorumBroker(2, 500, 0, 300, NOW_MS - 9_000),)),
        "fenced_brokers": {2: Tried(address="10.0.0.2:9095", ips=("10.0.0.2",), **tried_as)},
    }


def test_a_frozen_broker_of_this_machine_is_to_be_woken_and_not_started() -> None:
    changed = fenced(trouble=Trouble.SILENT)
    frozen = LocalNode(role="broker", node_id=2, address="10.0.0.2:9095", pid=77, log="/c/b.log", stopped=True)
    finding = only(**changed, data="/c", local=(frozen,))
    assert finding.rule == "broker-down"
    assert finding.cure.startswith("it hangs: pid 77 is stopped; continue it with `kill -CONT 77`")
    running = dataclasses.replace(frozen, stopped=False)
    finding = only(**changed, data="/c", local=(running,))
    assert finding.cure.startswith("it hangs: pid 77 runs")
    assert "headrace restart --data /c broker 2" in finding.cure
    short = (topic("orders", partition(0, isr=(1, 3))),)
    cures = {each.rule: each.cure for each in found(**changed, topics=short, data="/c", local=(frozen,))}
    assert cures["under-replicated"].startswith("bring back broker 2, which hangs")


@pytest.mark.parametrize(
    ("trouble", "cure"),
    [(Trouble.SILENT, "it hangs"), (None, "it runs"), (Trouble.NOT_SERVING, "it runs"), (Trouble.REFUSED, "start it")],
)
def test_the_cure_of_a_broker_elsewhere_depends_on_what_its_address_does(trouble: Trouble | None, cure: str) -> None:
    assert only(**fenced(trouble=trouble)).cure.startswith(cure)


@pytest.mark.parametrize("role", ["controller", "coordinator", "broker"])
def test_a_stopped_process_is_found_whatever_its_role(role: str) -> None:
    stopped = LocalNode(role=role, node_id=1, address="127.0.0.1:9", pid=77, log="/c/n.log", stopped=True)
    finding = only(data="/c", local=(stopped,))
    assert (finding.rule, finding.where) == ("process-stopped", f"{role} 1 at 127.0.0.1:9")
    assert "kill -CONT 77" in finding.cure


def test_it_is_not_said_that_no_node_answers_while_some_do() -> None:
    refused = Tried(address="127.0.0.1:9095", ips=("127.0.0.1",), trouble=Trouble.REFUSED)
    dead = LocalNode(role="broker", node_id=1, address="127.0.0.1:9095", pid=None, log="/c/logs/broker-1.log")
    controller = LocalNode(role="controller", node_id=1, address="127.0.0.1:9", pid=7, log="/c/logs/controller-1.log")
    first, *_ = diagnose(Facts(now_ms=NOW_MS, bootstrap=(refused,), data="/c", local=(dead, controller)))
    assert first.rule == "no-cluster"
    assert "no node" not in first.what
    assert "controller 1" in first.what
    assert "`headrace up --data /c`" in first.cure
    starting = dataclasses.replace(refused, trouble=Trouble.NOT_SERVING)
    (answers,) = diagnose(Facts(now_ms=NOW_MS, bootstrap=(starting,)))
    assert "127.0.0.1:9095 answers" in answers.what
    silent = dataclasses.replace(refused, trouble=Trouble.SILENT)
    (hangs,) = diagnose(Facts(now_ms=NOW_MS, bootstrap=(silent,)))
    assert "hang" in hangs.cure
    assert "start it" not in hangs.cure


def test_brokers_that_were_not_named_are_offered_when_the_named_one_is_dead() -> None:
    refused = Tried(address="127.0.0.1:9095", ips=("127.0.0.1",), trouble=Trouble.REFUSED)
    dead = LocalNode(role="broker", node_id=1, address="127.0.0.1:9095", pid=None, log="/c/logs/broker-1.log")
    runs = LocalNode(role="broker", node_id=2, address="127.0.0.1:9096", pid=7, log="/c/logs/broker-2.log")
    first, second = diagnose(Facts(now_ms=NOW_MS, bootstrap=(refused,), data="/c", local=(dead, runs)))
    assert (first.rule, first.where) == ("no-cluster", "127.0.0.1:9095")
    assert "no broker answers" not in first.what, "broker 2 was not asked"
    assert "broker 2" in first.what
    assert first.cure == "name them, too: `headrace doctor -b 127.0.0.1:9095,127.0.0.1:9096`"
    assert second.rule == "process-dead"


def test_a_broker_that_checks_its_logs_is_not_called_dead() -> None:
    fenced = tuple(dataclasses.replace(each, fenced=each.broker_id == 2) for each in cluster().brokers)
    left = {number: each for number, each in healthy().brokers.items() if number != 2}
    finding = only(cluster=cluster(brokers=fenced), brokers=left)
    assert (finding.rule, finding.severity, finding.where) == ("broker-starting", "warning", "broker 2")
    assert "unregister" not in finding.cure
    short = (topic("orders", partition(0, isr=(1, 3)), partition(1, leader=-1, isr=(), elr=(2,))),)
    cures = {each.rule: each.cure for each in found(cluster=cluster(brokers=fenced), brokers=left, topics=short)}
    for rule in ("under-replicated", "partition-offline"):
        assert cures[rule].startswith("wait for broker 2, which starts just now"), cures[rule]


def test_a_coordinators_process_is_dead() -> None:
    dead = LocalNode(role="coordinator", node_id=1, address="127.0.0.1:9", pid=None, log="/c/logs/coordinator-1.log")
    finding = only(data="/c", local=(dead,))
    assert finding.rule == "process-dead"
    assert "/c/logs/coordinator-1.log" in finding.cure


# -- controllers ------------------------------------------------------------------------------------------------------


def test_a_voter_is_away_and_how_bad_that_is_depends_on_how_many_there_are() -> None:
    finding = only(quorum=quorum(voter(1), voter(2), voter(3, 60_000)))
    assert (finding.rule, finding.severity) == ("voter-away", "error")
    assert "one more that fails stops every change" in finding.what
    others = [dataclasses.replace(voter(1), replica_id=number) for number in (4, 5)]
    finding = only(quorum=quorum(voter(1), voter(2), voter(3, None), *others))
    assert finding.severity == "warning"
    assert "never since it leads" in finding.what


def test_a_voter_has_an_older_copy_of_its_directory() -> None:
    outdated = dataclasses.replace(voter(3, 60_000), is_outdated=True)
    finding = only(quorum=quorum(voter(1), voter(2), outdated))
    assert (finding.rule, finding.severity) == ("voter-outdated", "error")
    assert "controller 3 has an older copy of its directory" in finding.what
    assert f"`headrace quorum remove 3@{outdated.directory_id_text}`" in finding.cure
    both = found(quorum=quorum(voter(1), voter(2, 60_000), outdated))
    assert [(each.rule, each.severity) for each in both] == [("voter-away", "error"), ("voter-outdated", "error")]


def test_nobody_leads_the_controllers() -> None:
    silent = NotAsked(what=THE_QUORUM, why="DescribeQuorum: not done in time [REQUEST_TIMED_OUT]")
    finding = only(quorum=None, not_asked=(silent,))
    assert (finding.rule, finding.where) == ("no-controller", "controllers 1, 2, 3")
    assert "REQUEST_TIMED_OUT" in finding.what


def test_a_broker_does_not_follow_the_metadata() -> None:
    late = (QuorumBroker(1, 500, 0, 300, NOW_MS), QuorumBroker(2, 100, 400, 45_000, NOW_MS))
    finding = only(quorum=quorum(brokers=late))
    assert (finding.rule, finding.where) == ("metadata-old", "broker 2")


# -- partitions -------------------------------------------------------------------------------------------------------


def test_partitions_without_a_leader_wait_for_whom_the_cure_names() -> None:
    gone = partition(1, leader=-1, isr=(3,), elr=(2,))
    finding = only(topics=(topic("orders", partition(0), gone),))
    assert (finding.rule, finding.where) == ("partition-offline", "orders-1")
    assert "start broker 2" in finding.cure
    nobody = partition(1, leader=-1, isr=())
    assert "--unclean" in only(topics=(topic("orders", nobody),)).cure


def test_too_few_in_sync_refuse_acks_all() -> None:
    findings = found(topics=(topic("orders", partition(0, isr=(1,)), partition(1)),))
    assert [(each.rule, each.severity) for each in findings] == [("min-isr", "error"), ("under-replicated", "warning")]
    assert "brokers 2, 3" in findings[0].cure


def test_copies_are_missing_and_partitions_that_miss_the_same_are_reported_together() -> None:
    parts = [partition(number, isr=(1, 3)) for number in range(9)]
    finding = only(topics=(topic("orders", *parts),))
    assert finding.rule == "under-replicated"
    assert finding.what == "9 partitions with a copy missing on broker 2"
    assert finding.where == "orders-0, orders-1, orders-2, orders-3, orders-4, orders-5 and 3 more"


def test_a_copy_that_a_reassignment_is_adding_is_not_missed() -> None:
    move = Move(topic="orders", partition=0, adding=(3,), removing=(), waits=False, copied_bytes=10_000, apart_s=3.0)
    assert found(topics=(topic("orders", partition(0, isr=(1, 2))),), moves=(move,)) == []


def test_more_copies_are_demanded_than_there_are() -> None:
    finding = only(topics=(topic("orders", partition(0, replicas=(1,), isr=(1,))),))
    assert (finding.rule, finding.severity) == ("min-isr-impossible", "warning")


def test_a_reassignment_copies_nothing_or_waits_for_the_dead() -> None:
    move = Move(topic="orders", partition=0, adding=(3,), removing=(2,), waits=False, copied_bytes=0, apart_s=3.0)
    assert only(moves=(move,)).rule == "reassignment-stuck"
    assert found(moves=(dataclasses.replace(move, copied_bytes=1),)) == []
    assert found(moves=(dataclasses.replace(move, copied_bytes=None),)) == []  # unknown
    assert found(moves=(dataclasses.replace(move, waits=True),)) == []  # its move has not started yet
    fenced = tuple(dataclasses.replace(each, fenced=each.broker_id == 3) for each in cluster().brokers)
    left = {number: each for number, each in healthy().brokers.items() if number != 3}
    findings = found(
        cluster=cluster(brokers=fenced),
        brokers=left,
        moves=(dataclasses.replace(move, copied_bytes=None),),
        quorum=quorum(brokers=()),
    )
    assert [each.rule for each in findings] == ["broker-down", "reassignment-stuck"]
    assert "waits for broker 3" in findings[1].what


# -- disks and descriptors --------------------------------------------------------------------------------------------


def disks(**changed: Any) -> dict[int, tuple[LogDirDescription, ...]]:
    return dict(healthy().log_dirs) | {2: (log_dir(2, **changed),)}


@pytest.mark.parametrize(
    ("changed", "rule", "severity"),
    [
        ({"error": StorageError("read-only file system"), "usable_bytes": None}, "log-dir-offline", "error"),
        ({"usable_bytes": 0}, "disk-full", "error"),
        ({"usable_bytes": 10 * GIB}, "disk-full", "warning"),
        ({"sync_ms": 250.0}, "disk-slow", "warning"),
        (
            {"replicas": (ReplicaInfo("orders", 0, 0, 0, False, CorruptLogError("bad CRC at 7")),)},
            "replica-damaged",
            "error",
        ),
    ],
)
def test_a_disk_in_trouble(changed: dict[str, Any], rule: str, severity: str) -> None:
    finding = only(log_dirs=disks(**changed))
    assert (finding.rule, finding.severity) == (rule, severity)
    assert finding.where.startswith("broker 2: ")


@pytest.mark.parametrize(("usable_bytes", "severity"), [(0, "error"), (10 * GIB, "warning")])
@pytest.mark.parametrize("role", ["voters", "observers"])
def test_the_disk_of_a_controller_in_trouble(role: str, usable_bytes: int, severity: str) -> None:
    full = dataclasses.replace(voter(2), usable_bytes=usable_bytes, total_bytes=500 * GIB)
    with_room = dataclasses.replace(voter(1), usable_bytes=300 * GIB, total_bytes=500 * GIB)
    voters = (with_room, full, voter(3)) if role == "voters" else tuple(map(voter, HOSTS))
    observers = (full,) if role == "observers" else ()
    finding = only(quorum=quorum(*voters, observers=observers))
    assert (finding.rule, finding.severity, finding.where) == ("disk-full", severity, "controller 2")


@pytest.mark.parametrize("free_bytes", [0, GIB])
def test_the_disk_of_a_coordinator_in_trouble(free_bytes: int) -> None:
    disk = NodeDisk("/snapshots", free_bytes, 100 * GIB)
    finding = only(coordinators={1: tried("coordinator", 1, port=9099, disk=disk)})
    assert (finding.rule, finding.severity) == ("disk-full", "warning")
    assert finding.where == "coordinator 1: /snapshots"


def test_a_disk_of_unknown_size_is_no_finding() -> None:
    unknown = dataclasses.replace(voter(2), usable_bytes=0, total_bytes=0)
    assert found(quorum=quorum(voter(1), unknown, voter(3))) == []


def test_a_small_part_of_a_large_disk_is_room_and_an_idle_disk_is_not_slow() -> None:
    assert found(log_dirs=disks(total_bytes=2_000 * GIB, usable_bytes=50 * GIB)) == []
    assert found(log_dirs=disks(sync_ms=None, usable_bytes=None)) == []


@pytest.mark.parametrize(("used", "severity"), [(900, "warning"), (1_000, "error")])
def test_descriptors_run_out(used: int, severity: str) -> None:
    finding = only(brokers=brokers(node=node("broker", 2, open_descriptors=used)))
    assert (finding.rule, finding.severity, finding.where) == ("descriptors", severity, "broker 2")


# -- agreement --------------------------------------------------------------------------------------------------------


def test_two_versions_run_side_by_side() -> None:
    finding = only(brokers=brokers(node=node("broker", 2, software_version="0.2.0")))
    assert finding.rule == "version-mix"
    assert "0.2.0: broker 2" in finding.what


def test_a_node_does_not_understand_the_clusters_level() -> None:
    finding = only(brokers=brokers(node=node("broker", 2, metadata_version_max=1)))
    assert (finding.rule, finding.severity, finding.where) == ("feature-level", "error", "broker 2")


def test_a_level_that_all_understand_is_not_used() -> None:
    finding = only(features={"metadata.version": FeatureInfo("metadata.version", 1, 1, 2)})
    assert (finding.rule, finding.severity) == ("feature-level", "warning")
    assert "--feature metadata.version=2" in finding.cure


@pytest.mark.parametrize(("ahead_ms", "severity"), [(2_500.0, "warning"), (-2_500.0, "warning"), (90_000.0, "error")])
def test_a_clock_is_off(ahead_ms: float, severity: str) -> None:
    finding = only(brokers=brokers(node=node("broker", 2, clock_ahead_ms=ahead_ms)))
    assert (finding.rule, finding.severity, finding.where) == ("clock-skew", severity, "broker 2")
    assert ("behind" in finding.what) == (ahead_ms < 0)


def test_a_slow_answer_is_no_wrong_clock() -> None:
    assert found(brokers=brokers(node=node("broker", 2, clock_ahead_ms=2_500.0, round_trip_ms=4_000.0))) == []


def test_this_machines_clock_is_off_and_all_the_others_agree() -> None:
    late: dict[str, Any] = {"clock_ahead_ms": 30_000.0}
    finding = only(
        brokers={number: tried("broker", number, **late) for number in HOSTS},
        controllers={number: tried("controller", number, **late) for number in HOSTS},
        coordinators={1: tried("coordinator", 1, **late)},
    )
    assert (finding.rule, finding.where) == ("clock-skew", "this machine")
    assert "behind the cluster's" in finding.what


# -- groups -----------------------------------------------------------------------------------------------------------


def test_groups_were_used_and_nobody_coordinates() -> None:
    assert only(cluster=cluster(coordinators=()), coordinators={}, groups=()).rule == "no-coordinator"


def test_transactions_were_used_and_no_coordinator_is_alive() -> None:
    used = (*healthy().topics, topic("__transaction_state", partition(0)))
    finding = only(cluster=cluster(coordinators=()), coordinators={}, groups=(), topics=used)
    assert finding.where == "all groups and all transactional producers"


def test_a_groups_coordinator_says_nothing() -> None:
    silent = GroupFacts(described=GroupDescription("billing", "dead", error=RequestTimedOutError("no answer")))
    assert only(groups=(silent,)).rule == "group-unknown"
    deleted = GroupFacts(described=GroupDescription("billing", "dead", error=GroupIdNotFoundError("gone")))
    assert found(groups=(deleted,)) == []


def test_a_group_storms() -> None:
    finding = only(groups=(group(rebalances=rebalances(50, 40, 30, 20, 10, 2)),))
    assert finding.rule == "group-storm"
    assert "6 times because: member a is gone: crashed" in finding.what


def test_a_group_that_started_or_stormed_an_hour_ago_is_well() -> None:
    assert found(groups=(group(rebalances=rebalances(50, 30, 20, 10, 2)),)) == []
    assert found(groups=(group(rebalances=rebalances(*range(3_600, 3_620))),)) == []


def test_a_storm_is_seen_by_the_coordinators_clock() -> None:
    stormy = group(rebalances=rebalances(50, 40, 30, 20, 10, 2))
    assert found(groups=(dataclasses.replace(stormy, clock_ahead_ms=3_600_000.0),)) == []


@pytest.mark.parametrize("status", ["STOP", "STALL", "REWIND", "WARN"])
def test_a_group_does_not_keep_up(status: str) -> None:
    finding = only(groups=(group(status=status, lag=40),))
    assert finding.rule == "group-lag"
    assert f"({status})" in finding.what
    assert "40 records behind" in finding.what


@pytest.mark.parametrize(("status", "is_found"), [("STOP", True), ("STALL", False), ("REWIND", True), ("WARN", False)])
def test_a_few_commits_do_not_show_whether_a_group_keeps_up(status: str, is_found: bool) -> None:
    assert bool(found(groups=(group(status=status, lag=40, complete=0.3),))) == is_found


@pytest.mark.parametrize("status", ["STOP", "REWIND"])
def test_a_group_that_has_ended_is_no_trouble(status: str) -> None:
    """A group without members, such as a batch job or a past `consume -G`, causes no warning. A warning about a group
    without members would stay for a week, until the group's offsets expire."""
    ended = group(status=status, lag=40)
    assert found(groups=(dataclasses.replace(ended, described=GroupDescription("billing", "empty")),)) == []


def test_records_were_deleted_unread() -> None:
    assert only(groups=(group(records_lost=17),)).what == "17 records deleted before group 'billing' read them"


# -- all of them ------------------------------------------------------------------------------------------------------


def test_errors_come_first_and_every_rule_is_silent_without_facts() -> None:
    findings = found(
        topics=(topic("orders", partition(0, isr=(1, 2)), partition(1, leader=-1, isr=(), elr=(2,))),),
        groups=(group(status="STOP"),),
    )
    assert [each.rule for each in findings] == ["partition-offline", "under-replicated", "group-lag"]
    nothing = Facts(now_ms=NOW_MS, bootstrap=(), cluster=cluster(brokers=(), controllers=(), coordinators=()))
    silent: Callable[[Facts], list[Finding]] = diagnose
    assert silent(nothing) == []


def test_every_rule_is_explained_to_those_who_operate_and_none_that_is_not_there() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "operations" / "doctor.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == set(RULES)


# -- transactions -----------------------------------------------------------------------------------------------------


def transaction(state: Any, *, open_s: int, ahead_ms: float = 0.0, **changed: Any) -> tuple[TransactionFacts, ...]:
    """A transaction of "payments-7" in orders-0, which began ``open_s`` seconds ago by the coordinator's clock."""
    since_ms = NOW_MS - open_s * 1_000
    described = TransactionDescription(
        "payments-7", state, 1, 5, 3, 60_000, since_ms, since_ms, 2, (TopicPartition("orders", 0),)
    )
    return (TransactionFacts(described=dataclasses.replace(described, **changed), clock_ahead_ms=ahead_ms),)


def test_transactions_within_their_time_are_no_fault() -> None:
    for state in ("ongoing", "prepared", "prepare-commit", "prepare-abort"):
        assert found(transactions=transaction(state, open_s=20)) == []
    assert found(transactions=transaction("ongoing", open_s=89)) == []
    assert found(transactions=transaction("ongoing", open_s=800, timeout_ms=900_000)) == []


def test_hanging_transaction_blocks_readers() -> None:
    finding = only(hanging=(HangingTransaction("orders", 1, 5, 3, 4711, NOW_MS, 2, None),))
    assert (finding.rule, finding.severity, finding.where) == ("transaction-hanging", "error", "orders-1")
    assert "open since offset 4711" in finding.what
    assert finding.cure == "`headrace transactions abort -t orders -p 1 --start-offset 4711`"


def test_a_transaction_that_kafka_left_open_blocks_the_compaction_of_offsets() -> None:
    finding = only(hanging=(HangingTransaction("__consumer_offsets", 3, 5, 3, 47, NOW_MS, 2, None),))
    assert "the partition is not compacted behind it" in finding.what
    assert "readers" not in finding.what
    assert finding.cure == "`headrace transactions abort -t __consumer_offsets -p 3 --start-offset 47`"


def test_pending_offsets_without_a_transaction_are_one_finding_for_a_group() -> None:
    orphaned = tuple(
        OrphanedOffset("billing", PendingOffset("orders", number, 42, "payments-7", 7, 3, int(NOW_MS) - 90_000))
        for number in range(2)
    )
    finding = only(orphaned=orphaned)
    assert (finding.rule, finding.severity) == ("offsets-orphaned", "warning")
    assert "group 'billing' has 2 pending offsets of transactions that no coordinator has" in finding.what
    assert "the oldest sent 90 s ago by producer 7" in finding.what
    assert finding.where == "orders-0, orders-1"
    assert "`headrace groups delete-offsets billing --topic orders:0`" in finding.cure


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"open_s": 91}, "open for 91 s, with a timeout of 60 s"),
        ({"open_s": 901, "timeout_ms": 1_800_000}, "open for 15 min, with a timeout of 30 min"),
        ({"open_s": 7_300, "timeout_ms": None}, "open for 2 h, with no timeout"),
    ],
)
def test_transaction_that_outlives_its_timeout_or_is_old(changed: dict[str, Any], words: str) -> None:
    finding = only(transactions=transaction("ongoing", **changed))
    assert (finding.rule, finding.severity) == ("transaction-old", "warning")
    assert words in finding.what
    assert finding.where == "coordinator 1: orders-0"
    assert "`headrace transactions abort payments-7`" in finding.cure


def test_times_of_transactions_are_by_the_coordinators_clock() -> None:
    assert found(transactions=transaction("ongoing", open_s=91, ahead_ms=-5_000)) == []
    assert found(transactions=transaction("ongoing", open_s=88, ahead_ms=5_000))


def test_prepared_transaction_is_advice_and_later_a_warning() -> None:
    token = TransactionToken("payments-7", 5, 3)
    finding = only(transactions=transaction("prepared", open_s=61, token=token))
    assert (finding.rule, finding.severity) == ("transaction-prepared", "advice")
    assert "begun 61 s ago" in finding.what
    assert "`headrace transactions complete 5:3:payments-7 --commit`" in finding.cure
    assert only(transactions=transaction("prepared", open_s=901, token=token)).severity == "warning"


def test_prepared_transactions_of_a_spark_batch_are_one_finding() -> None:
    ids = [f"{sink_id('my query', 'out')}/7/0/{task}/abc" for task in range(3)]
    parts = [transaction("prepared", open_s=61 + number, transactional_id=name)[0] for number, name in enumerate(ids)]
    finding = only(transactions=tuple(parts))
    assert (finding.rule, finding.severity) == ("transaction-prepared", "advice")
    assert "batch 7 of Spark query 'my query' has 3 prepared transactions, the oldest begun 63 s ago" in finding.what
    assert "transaction.sink.timeout.ms" in finding.cure
    assert "`Admin.abort_sink_batch('__headrace_sink/my%20query/out', 7, 0)`" in finding.cure
    assert "complete" not in finding.cure, "a batch is decided as a whole"
    other = transaction("prepared", open_s=61, transactional_id=f"{sink_id('my query', 'other')}/7/0/0/abc")
    assert len(found(transactions=(*parts, *other))) == 2, "each sink has its own decision"


def test_an_old_transaction_of_a_sink_points_to_the_decision_of_its_batch() -> None:
    name = f"{sink_id('my query', 'out')}/7/2/0/abc"
    finding = only(transactions=transaction("ongoing", open_s=901, transactional_id=name, timeout_ms=900_000))
    assert "`Admin.abort_sink_batch('__headrace_sink/my%20query/out', 7, 2)`" in finding.cure
    assert "transactions abort" not in finding.cure


def test_describe_points_to_the_command_or_to_the_decision_of_a_sink() -> None:
    token = TransactionToken("payments-7", 5, 3)
    (plain,) = transaction("prepared", open_s=61, token=token)
    assert "`headrace transactions complete 5:3:payments-7 --commit`" in prepared_line(plain.described)
    name = f"{sink_id('q', 'out')}/7/0/1/abc"
    (of_sink,) = transaction("prepared", open_s=61, transactional_id=name, token=TransactionToken(name, 5, 3))
    line = prepared_line(of_sink.described)
    assert "the decision of batch 7 ends it" in line
    assert "transactions complete" not in line


def test_decided_transaction_without_its_markers() -> None:
    finding = only(transactions=transaction("prepare-commit", open_s=31))
    assert (finding.rule, finding.severity) == ("transaction-markers", "warning")
    assert "was committed 31 s ago, and 1 partition still lack" in finding.what
    assert finding.where == "orders-0 (coordinator 1)"
    assert "was aborted" in only(transactions=transaction("prepare-abort", open_s=31)).what


def outdated(*, directory_id: bytes = b"d" * 16) -> ClusterDescription:
    copies = {3: (directory_id,)}
    return cluster(
        brokers=tuple(
            BrokerInfo(number, host, 9095, outdated_directory_ids=copies.get(number, ()))
            for number, host in HOSTS.items()
        )
    )


def test_a_broker_with_an_older_copy_is_named_until_it_has_caught_up() -> None:
    waits = topic("orders", partition(isr=(), leader=-1, elr=(2,)))
    findings = found(cluster=outdated(), topics=(waits,))
    finding = next(each for each in findings if each.rule == "log-dir-outdated")
    assert finding.severity == "warning"
    assert finding.where == "broker 3: /data"
    assert "start the brokers of the other replicas" in finding.cure
    assert "lost the records" not in finding.cure
    caught_up = only(cluster=outdated())
    assert caught_up.severity == "advice"
    assert "nothing to do" in caught_up.cure


def test_a_partition_with_no_other_replica_than_the_older_copy_lost_records() -> None:
    alone = topic("orders", partition(leader=3, replicas=(3,), isr=(3,)))
    finding = only(cluster=outdated(directory_id=b"?" * 16), topics=(alone,), min_insync={})
    assert finding.rule == "log-dir-outdated"
    assert finding.where == "broker 3: a log directory"
    assert "1 partition without another replica lost the records since the copy: orders-0" in finding.cure


def test_records_that_a_leader_lacks_are_an_operators_choice() -> None:
    kept = (ReplicaInfo("orders", 0, 1_000, 0, False, OffsetOutOfRangeError("leader 1 has no records up to 80")),)
    finding = only(log_dirs={2: (log_dir(2, replicas=kept),)})
    assert (finding.rule, finding.severity) == ("leader-lacks-records", "error")
    assert "leader 1 has no records up to 80" in finding.what
    assert finding.where == "broker 2: orders-0"
