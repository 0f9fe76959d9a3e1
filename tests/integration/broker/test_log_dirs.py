"""A broker with two log directories, a controller, and clients: where partitions are, what happens to them when one
directory fails, and its return."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace import Admin, TopicPartition, TopicPartitionReplica
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    CorruptLogError,
    InvalidRequestError,
    LeaderNotAvailableError,
    LogDirNotFoundError,
    ReplicaNotAvailableError,
    StorageError,
    UnsupportedVersionError,
)
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.metadata import MetadataImage
from headrace_core.node.meta_properties import read_meta
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, metadata_pb2
from tests.worlds.broker_world import WAIT_S, Cluster, Topic
from tests.worlds.waiting import until

HEADRACE = str(Path(sys.executable).with_name("headrace"))


class TwoDirectories:
    """A cluster whose broker has the directories ``one`` and ``two``."""

    def __init__(self, make_cluster: Callable[..., Cluster], home: Path) -> None:
        self.one, self.two = home / "one", home / "two"
        self.cluster = make_cluster(**{"log.dirs": f"{self.one},{self.two}"})
        self.names = {read_meta(str(path)).directory_id: path.name for path in (self.one, self.two)}

    def image(self, condition: Callable[[MetadataImage], Any]) -> MetadataImage:
        """Wait until the controller's committed state fulfils the condition, and return the state."""

        async def follow() -> MetadataImage:
            follower = MetadataFollower([self.cluster.controller.address("internal")], "tests")
            task = asyncio.create_task(follower.run())
            try:
                async with asyncio.timeout(WAIT_S):
                    while not condition(follower.image):
                        await follower.wait_applied(follower.image.next_offset + 1)
                return follower.image
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        return asyncio.run(follow())

    def places(self, topic: Topic) -> list[str]:
        """The directory of each partition, after the controller knows all of them."""

        def known(image: MetadataImage) -> bool:
            found = image.topics.get(topic.topic_id)
            return found is not None and all(each.directories[0] in self.names for each in found.partitions)

        partitions = self.image(known).topics[topic.topic_id].partitions
        return [self.names[each.directories[0]] for each in partitions]

    def until_in(self, topic: Topic, wanted: list[str]) -> None:
        """Wait until the controller knows that the partitions are in this directory."""

        def there(image: MetadataImage) -> bool:
            found = image.topics.get(topic.topic_id)
            return found is not None and [self.names.get(each.directories[0]) for each in found.partitions] == wanted

        self.image(there)

    def metadata(self, topic: Topic) -> list[Any]:
        request = metadata_pb2.MetadataRequest(topics=[topic.name])
        return list(self.cluster.metadata.GetMetadata(request, timeout=WAIT_S).topics[0].partitions)

    def leaders(self, topic: Topic) -> list[int]:
        return [each.leader_id for each in self.metadata(topic)]


@pytest.fixture
def world(make_cluster: Callable[..., Cluster], tmp_path: Path) -> TwoDirectories:
    return TwoDirectories(make_cluster, tmp_path)


@pytest.fixture
def client(world: TwoDirectories) -> Iterator[Admin]:
    with Admin(bootstrap_servers=world.cluster.broker.address()) as admin:
        yield admin


def cli(world: TwoDirectories, *arguments: str, code: int = 0) -> Any:
    """``headrace ... -o json`` against the broker: return its JSON document, or its output on stderr."""
    done = subprocess.run(
        [HEADRACE, *arguments, "-b", world.cluster.broker.address(), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done
    return json.loads(done.stdout) if code == 0 else done.stderr


def test_partitions_are_spread_and_the_controller_knows_where_after_a_restart_too(world: TwoDirectories) -> None:
    topic = world.cluster.topic("spread", 6)
    places = world.places(topic)
    assert Counter(places) == {"one": 3, "two": 3}
    for number, place in enumerate(places):
        path = world.one if place == "one" else world.two
        assert (path / f"spread-{number}").is_dir()
    assert [topic.produce(b"v", partition=number).base_offset for number in range(6)] == [0] * 6
    world.cluster.broker.kill()
    world.cluster.restart()
    assert world.places(topic) == places
    assert world.leaders(topic) == [1] * 6
    before = world.image(lambda image: image.next_offset).next_offset
    later = world.cluster.topic("later", 4)
    assert Counter(world.places(later)) == {"one": 2, "two": 2}
    changes = world.image(lambda image: image.next_offset).next_offset - before
    assert changes == 1 + 4 + 4, "one topic, four partitions, four directories: the old ones are not told again"


def test_a_directory_that_goes_away_takes_its_partitions_and_comes_back_with_them(world: TwoDirectories) -> None:
    topic = world.cluster.topic("t", 4)
    places = world.places(topic)
    for number in range(4):
        assert not topic.produce(b"before", partition=number).error.code
    away = world.two.rename(world.two.with_name("away"))
    wanted = [1 if place == "one" else -1 for place in places]
    until(lambda: world.leaders(topic) == wanted, "leadership to leave the lost directory")
    for number, (part, place) in enumerate(zip(world.metadata(topic), places, strict=True)):
        outcome = topic.produce(b"after", partition=number)
        if place == "one":
            assert list(part.offline_replicas) == []
            assert (outcome.error.code, outcome.base_offset) == (0, 1)
        else:
            assert part.error.code == LeaderNotAvailableError.number
            assert (list(part.replicas), list(part.isr), list(part.offline_replicas)) == ([1], [], [1])
            assert outcome.error.code == StorageError.number
    after = world.cluster.topic("after", 2)
    assert world.places(after) == ["one", "one"]
    (one, two) = cli(world, "log-dirs", "describe")[0]["directories"]
    assert (one["error"], two["error"]["code"]) == (None, "KAFKA_STORAGE_ERROR")
    described = cli(world, "topics", "describe", "t")["partitions"]
    assert [each["offline_replicas"] for each in described] == [[] if leader == 1 else [1] for leader in wanted]

    # A restart without the directory: the broker serves the other partitions, and does not create a new log in place of
    # an absent one.
    world.cluster.broker.terminate()
    world.cluster.restart()
    assert world.leaders(topic) == wanted
    assert not world.two.exists()

    world.cluster.broker.terminate()
    away.rename(world.two)
    world.cluster.restart()
    assert world.leaders(topic) == [1] * 4
    assert world.places(topic) == places
    for number, place in enumerate(places):
        assert topic.read(partition=number) == ([b"before", b"after"] if place == "one" else [b"before"])
        assert all(not part.offline_replicas for part in world.metadata(topic))


def test_a_quarantined_replica_is_listed_with_its_reason(world: TwoDirectories, client: Admin) -> None:
    topic = world.cluster.topic("rotten", 2)
    for number in range(2):
        assert not topic.produce(b"x" * 1000, partition=number).error.code
    home = world.one if world.places(topic)[1] == "one" else world.two
    world.cluster.broker.terminate()
    path = home / "rotten-1" / "partition.metadata"
    path.write_bytes(path.read_bytes().replace(b"topic_id: ", b"topic_id: A"))
    world.cluster.restart()
    (well, bad) = sorted(
        (each for directory in client.describe_log_dirs()[1] for each in directory.replicas),
        key=lambda each: each.partition,
    )
    assert (well.partition, well.error) == (0, None)
    assert bad.partition == 1
    assert isinstance(bad.error, CorruptLogError)
    assert str(path) in bad.error.message
    assert 1000 < bad.size_bytes < 1200
    directories = cli(world, "log-dirs", "describe", "-t", "rotten")[0]["directories"]
    errors = {each["partition"]: each["error"] for directory in directories for each in directory["replicas"]}
    assert errors == {0: None, 1: {"code": "CORRUPT_LOG", "message": bad.error.message}}
    assert all(directory["error"] is None for directory in directories), "the directory is well"
    done = subprocess.run(
        [HEADRACE, "log-dirs", "describe", "-t", "rotten", "-b", world.cluster.broker.address()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "online, 1 not served" in done.stdout
    assert f"rotten-1 is not served: {bad.error.message} [CORRUPT_LOG]" in done.stdout


def test_log_dirs_are_described_by_the_sdk_and_the_command_line(world: TwoDirectories, client: Admin) -> None:
    topic = world.cluster.topic("described", 3)
    world.cluster.topic("other")
    topic.produce(b"x" * 10_000, partition=1)
    places = world.places(topic)
    found = client.describe_log_dirs(topics=["described"])
    assert list(found) == [1]
    one, two = found[1]
    assert [one.path, two.path] == [str(world.one), str(world.two)]
    assert {one.directory_id: "one", two.directory_id: "two"} == world.names
    for directory in (one, two):
        assert directory.error is None
        assert 0 < directory.usable_bytes <= directory.total_bytes
        numbers = [each.partition for each in directory.replicas]
        assert numbers == [number for number, place in enumerate(places) if place == Path(directory.path).name]
        assert not any(each.is_future or each.offset_lag for each in directory.replicas)
    sizes = {each.partition: each.size_bytes for directory in (one, two) for each in directory.replicas}
    assert (sizes[0], sizes[2]) == (0, 0)
    assert 10_000 < sizes[1] < 10_200
    (only,) = [each for directory in client.describe_log_dirs([1], topics=[TopicPartition("described", 1)])[1]
               for each in directory.replicas]  # fmt: skip
    assert (only.topic, only.partition) == ("described", 1)
    assert sum(len(directory.replicas) for directory in client.describe_log_dirs()[1]) == 4
    assert client.describe_log_dirs(topics=["nobody has it"])[1][0].replicas == ()
    with pytest.raises(BrokerIdNotRegisteredError, match=r"broker 7 is not alive, or does not exist \(alive: 1\)"):
        client.describe_log_dirs([7])

    (row,) = cli(world, "log-dirs", "describe", "--broker", "1", "--topic", "described")
    assert row["broker"] == 1
    assert [each["path"] for each in row["directories"]] == [str(world.one), str(world.two)]
    for directory in (one, two):  # one spelling everywhere: that of Kafka's meta.properties
        assert f"directory.id={directory.directory_id_text}\n" in (Path(directory.path) / "meta.properties").read_text()
    assert [each["directory_id"] for each in row["directories"]] == [one.directory_id_text, two.directory_id_text]
    assert set(row["directories"][0]) == {
        "path", "directory_id", "error", "total_bytes", "usable_bytes", "replicas"
    }  # fmt: skip
    assert set(row["directories"][0]["replicas"][0]) == {
        "topic", "partition", "size_bytes", "offset_lag", "is_future", "error"
    }  # fmt: skip
    assert "BROKER_ID_NOT_REGISTERED" in cli(world, "log-dirs", "describe", "--broker", "7", code=1)


def test_a_partition_is_moved_by_the_command_line_and_the_controller_knows(world: TwoDirectories) -> None:
    topic = world.cluster.topic("movable", 2)
    places = world.places(topic)
    values = [b"%d" % number for number in range(50)]
    for value in values:
        topic.produce(value)
    to = world.two if places[0] == "one" else world.one
    epoch = topic.leader_epoch()
    moved = cli(world, "log-dirs", "move", "movable-0", "--to", f"{to}/", "--broker", "1", "--wait")
    assert moved == {"topic": "movable", "partition": 0, "broker": 1, "to": f"{to}/", "moved": True}
    assert (to / "movable-0").is_dir()
    wanted = [to.name, places[1]]
    world.until_in(topic, wanted)
    assert topic.leader_epoch() == epoch, "a move changes no leader"
    assert topic.produce(b"after").base_offset == len(values)
    assert topic.read() == [*values, b"after"]
    world.cluster.broker.kill()
    world.cluster.restart()
    assert world.places(topic) == wanted
    assert topic.read() == [*values, b"after"]


def test_moves_that_cannot_be_are_refused_by_name(world: TwoDirectories, client: Admin) -> None:
    topic = world.cluster.topic("fixed", 2)
    places = world.places(topic)
    here, there = TopicPartitionReplica("fixed", 0, 1), TopicPartitionReplica("fixed", 7, 1)
    with pytest.raises(LogDirNotFoundError, match=r"/nowhere is not one of log\.dirs"):
        client.alter_replica_log_dirs({here: "/nowhere"})
    with pytest.raises(ReplicaNotAvailableError, match="fixed-7 on broker 1"):
        client.alter_replica_log_dirs({there: str(world.one), here: str(world.one)})
    with pytest.raises(ReplicaNotAvailableError):
        client.alter_replica_log_dirs({TopicPartitionReplica("unknown", 0, 1): str(world.one)})
    with pytest.raises(BrokerIdNotRegisteredError):
        client.alter_replica_log_dirs({TopicPartitionReplica("fixed", 0, 2): str(world.one)})
    item = admin_pb2.LogDirTopic(topic="fixed", partitions=[1])
    twice = [admin_pb2.AlterReplicaLogDir(path=str(path), topics=[item]) for path in (world.one, world.two)]
    with pytest.raises(grpc.RpcError, match="names a partition twice; nothing was moved"):
        world.cluster.admin.AlterReplicaLogDirs(admin_pb2.AlterReplicaLogDirsRequest(directories=twice), timeout=WAIT_S)
    assert world.places(topic)[1] == places[1]
    said = cli(world, "log-dirs", "move", "fixed-0", "--to", "/nowhere", "--broker", "1", code=1)
    assert "LOG_DIR_NOT_FOUND" in said
    assert "must be TOPIC-PARTITION" in cli(
        world, "log-dirs", "move", "fixed", "--to", str(world.one), "--broker", "1", code=2
    )


def test_a_whole_topic_is_moved_with_one_request(world: TwoDirectories, client: Admin) -> None:
    topic = world.cluster.topic("together", 4)
    world.places(topic)
    request = admin_pb2.AlterReplicaLogDirsRequest(
        broker_id=1,
        directories=[
            admin_pb2.AlterReplicaLogDir(path=str(world.two), topics=[admin_pb2.LogDirTopic(topic="together")])
        ],
    )
    results = world.cluster.admin.AlterReplicaLogDirs(request, timeout=WAIT_S).results
    assert [(each.partition, each.error.code) for each in results] == [(number, 0) for number in range(4)]
    world.until_in(topic, ["two"] * 4)
    one, two = client.describe_log_dirs(topics=["together"])[1]
    assert (len(one.replicas), [each.is_future for each in two.replicas]) == (0, [False] * 4)


def test_a_question_for_another_broker_or_to_a_controller_is_refused(world: TwoDirectories) -> None:
    with pytest.raises(grpc.RpcError, match=InvalidRequestError.code):
        world.cluster.admin.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest(broker_id=0), timeout=WAIT_S)
    with pytest.raises(grpc.RpcError, match=InvalidRequestError.code):
        world.cluster.admin.AlterReplicaLogDirs(admin_pb2.AlterReplicaLogDirsRequest(broker_id=2), timeout=WAIT_S)
    with grpc.insecure_channel(world.cluster.controller.address()) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        with pytest.raises(grpc.RpcError, match=UnsupportedVersionError.code):
            stub.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest(), timeout=WAIT_S, wait_for_ready=True)
        with pytest.raises(grpc.RpcError, match=UnsupportedVersionError.code):
            stub.AlterReplicaLogDirs(admin_pb2.AlterReplicaLogDirsRequest(), timeout=WAIT_S)
