"""This version serves clusters of an earlier Headrace, which had replication but no coordinator yet. Clients read all
data and write more, and the data still exists after a restart. make_old_clusters.py made these clusters."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, Producer, TopicPartition
from headrace.cluster_models import ConfigResource
from headrace_core.errors import OutOfOrderSequenceNumberError
from headrace_core.metadata import METADATA_VERSION
from headrace_core.records import encode_batch, read_header
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc

import grpc  # isort: skip  (grpc reads settings at its import, which the core's modules set)

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
HEADRACE = str(Path(sys.executable).with_name("headrace"))
WAIT_S = 60


class OldCluster:
    """An unpacked cluster, and the present `headrace` command."""

    def __init__(self, name: str, directory: Path) -> None:
        self.directory = directory
        self.about: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
        with tarfile.open(HERE / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
        state = directory / "cluster.json"
        state.write_text(state.read_text().replace("@DIRECTORY@", str(directory)))
        brokers = [node for node in json.loads(state.read_text())["nodes"] if node["role"] == "broker"]
        self.bootstrap = ",".join(f"{node['host']}:{node['port']}" for node in brokers)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command, assert its exit code, and return its output."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        environment |= {"HEADRACE_BOOTSTRAP_SERVERS": self.bootstrap, "HEADRACE_DATA": str(self.directory)}
        done = subprocess.run([HEADRACE, *arguments], capture_output=True, env=environment, timeout=200, check=False)
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False), (arguments, done)
        return (done.stdout if code == 0 else done.stderr).decode()

    def up(self, *more: str) -> list[str]:
        """Start the nodes, wait until all serve, and return them by role."""
        return [node["role"] for node in json.loads(self.run("up", "-d", "-o", "json", *more))["nodes"]]

    def level(self) -> int:
        (feature,) = json.loads(self.run("features", "describe", "-o", "json"))
        return int(feature["finalized_level"])


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldCluster]:
    """The cluster that the test names. Only one run at a time can use an old cluster on a machine, because the
    cluster's ports are fixed: the address of a single controller is in its log. The ports are below the range that the
    system assigns at random."""
    name = request.param
    with open(Path(tempfile.gettempdir()) / f"headrace-old-cluster-{name}-{os.getuid()}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = OldCluster(name, tmp_path / "cluster")
        yield cluster
        with contextlib.suppress(AssertionError):  # a failed stop of the cluster must not hide the actual failure
            cluster.run("down")


def hexed(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()


def records_of(cluster: OldCluster, topic: str, partitions: int) -> list[list[Any]]:
    """All records of a topic, in the form of the .json files."""
    found = []
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        ends = consumer.end_offsets(parts)
        consumer.assign(parts)
        consumer.seek_to_beginning(parts)
        while any(consumer.position(part) < ends[part] for part in parts):
            for each in consumer.poll(1.0):
                headers = [[name, hexed(value)] for name, value in each.headers]
                row = [each.partition, each.offset, each.timestamp_ms, hexed(each.key), hexed(each.value), headers]
                found.append(row)
    return sorted(found, key=lambda row: (row[0], row[1]))


def last_of_each_key(records: list[list[Any]]) -> dict[str, list[Any]]:
    return {record[3]: record for record in records}


def check_topics(cluster: OldCluster) -> None:
    """Every topic is unchanged: id, replicas, settings, offsets, records."""
    topics: dict[str, dict[str, Any]] = cluster.about["topics"]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        described = {topic.name: topic for topic in admin.describe_topics() if not topic.internal}
        assert set(topics) <= set(described)
        assert "gone" not in described
        for name, then in topics.items():
            now, resource = described[name], ConfigResource("topic", name)
            assert now.topic_id.hex() == then["topic_id"]
            assert [list(each.replicas) for each in now.partitions] == then["replicas"], name
            config = {
                key: entry.value
                for key, entry in admin.describe_configs([resource])[resource].items()
                if entry.source == "dynamic_topic"
            }
            assert config == then["config"], name
            parts = [TopicPartition(name, each.partition) for each in now.partitions]
            with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
                begin, end = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
            assert [[begin[part], end[part]] for part in parts] == then["offsets"], name
    for name, then in topics.items():
        records = records_of(cluster, name, len(then["replicas"]))
        if then["config"].get("cleanup.policy") == "compact":  # the cleaner of each replica continues independently
            assert last_of_each_key(records) == last_of_each_key(then["records"])
        else:
            assert records == then["records"], name


def read_in_group(cluster: OldCluster, topic: str) -> int:
    """The number of records that a member of the group `readers` gets until it reaches the end. The member commits all
    records."""
    parts = [TopicPartition(topic, number) for number in range(len(cluster.about["topics"][topic]["replicas"]))]
    count = 0
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
        ends = consumer.end_offsets(parts)
        consumer.subscribe([topic])
        while consumer.assignment() != set(parts) or any(consumer.position(part) < ends[part] for part in parts):
            count += len(consumer.poll(1.0))
        consumer.commit()
        assert {part: at and at.offset for part, at in consumer.committed(parts).items()} == ends
    return count


def write(cluster: OldCluster, topic: str, value: bytes, **settings: Any) -> int:
    """Write a record with a producer that is created for it; return the offset of the record."""
    with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        return int(producer.send(topic, value).result(WAIT_S).offset)


@contextlib.contextmanager
def leader_of(cluster: OldCluster, topic: str) -> Iterator[produce_pb2_grpc.ProduceStub]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        leader = admin.describe_topics([topic])[0].partitions[0].leader
        address = next(
            f"{each.host}:{each.port}" for each in admin.describe_cluster().brokers if each.broker_id == leader
        )
    with grpc.insecure_channel(address, options=COMMON_OPTIONS) as channel:
        yield produce_pb2_grpc.ProduceStub(channel)


def append(stub: produce_pb2_grpc.ProduceStub, topic: str, records: bytes) -> Any:
    partition = produce_pb2.ProducePartition(topic=topic, partition=0, records=records)
    request = produce_pb2.ProduceRequest(correlation_id=1, acks=produce_pb2.ACKS_ALL, partitions=[partition])
    (answer,) = stub.Produce(iter([request]), timeout=WAIT_S)
    return answer.results[0]


def check_producers_go_on(cluster: OldCluster, topic: str) -> list[bytes]:
    """If an old producer repeats a batch, the broker recognizes it. The broker accepts the producer's next batch, and
    refuses a batch that skips records."""
    added = []
    with leader_of(cluster, topic) as stub:
        for number, old_batch in enumerate(cluster.about["last_batches"].values()):
            records = bytes.fromhex(old_batch)
            header = read_header(records)
            assert append(stub, topic, records).base_offset == header.base_offset
            value = b"%d goes on" % header.producer_id
            next_one = header.base_sequence + header.record_count

            def batch_at(sequence: int, value: bytes = value, header: Any = header) -> bytes:
                identity = {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch}
                return encode_batch([(1_700_000_000_000, None, value, [])], base_sequence=sequence, **identity)

            refused = append(stub, topic, batch_at(next_one + 1))
            assert refused.error.code == OutOfOrderSequenceNumberError.number
            end = cluster.about["topics"][topic]["offsets"][0][1]
            assert append(stub, topic, batch_at(next_one)).base_offset == end + number
            added.append(value)
    return added


@pytest.mark.parametrize("old", ["replication"], indirect=True)
def test_a_cluster_of_when_replication_was_done_is_served_and_gets_groups(old: OldCluster) -> None:
    assert old.up("--coordinators", "1") == ["controller", "broker", "broker", "coordinator"]
    assert old.level() == 2
    check_topics(old)
    assert read_in_group(old, "codec-lz4") == 40

    old.run("topics", "create", "of-today", "-p", "1")
    assert write(old, "of-today", b"first") == 0
    added = check_producers_go_on(old, "idempotent")
    assert len(added) == 2
    old.run("features", "upgrade")  # an upgrade without a level to raise is no error

    old.run("down")
    assert old.up() == ["controller", "broker", "broker", "coordinator"]
    written = records_of(old, "idempotent", 1)
    before = old.about["topics"]["idempotent"]
    assert written[: len(before["records"])] == before["records"]
    assert [bytes.fromhex(record[4]) for record in written[len(before["records"]) :]] == added
    old.about["topics"]["idempotent"] = before | {"records": written, "offsets": [[0, before["offsets"][0][1] + 2]]}
    check_topics(old)
    assert write(old, "of-today", b"second") == 1
    assert read_in_group(old, "codec-lz4") == 0  # the commits of the group are there


@pytest.mark.parametrize("old", ["level_1"], indirect=True)
def test_a_cluster_at_the_first_level_is_served_and_raised_by_command(old: OldCluster) -> None:
    assert old.up() == ["controller", "broker"]
    assert old.level() == 1
    check_topics(old)
    old.run("topics", "create", "of-today", "-p", "1")
    assert write(old, "of-today", b"first", enable_idempotence=False) == 0  # there are no producer ids at this level

    old.run("features", "upgrade")
    assert old.level() == METADATA_VERSION
    assert old.up("--coordinators", "1") == ["controller", "broker", "coordinator"]
    assert read_in_group(old, "codec-zstd") == 40
    assert write(old, "of-today", b"second") == 1

    old.run("down")
    assert old.up() == ["controller", "broker", "coordinator"]
    assert old.level() == METADATA_VERSION
    check_topics(old)
    assert write(old, "of-today", b"third") == 2
    assert read_in_group(old, "codec-zstd") == 0
