"""DescribeLogDirs and AlterReplicaLogDirs on a storage stub."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.directories import DirectoryDescription, LogDescription
from headrace_broker.handlers.log_dirs import LogDirs, alter_replica_log_dirs, describe_log_dirs
from headrace_core.errors import FencedBrokerError, InvalidRequestError, LogDirNotFoundError, StorageError
from headrace_core.metadata import EMPTY_IMAGE, PartitionRecord, TopicRecord
from headrace_core.types import TopicPartition
from headrace_protos.v1 import admin_pb2

ONE = uuid.UUID(int=171)
TOPIC = admin_pb2.LogDirTopic


def log(topic: str, partition: int, *, is_future: bool = False) -> LogDescription:
    return LogDescription(
        partition=TopicPartition(topic, partition), size_bytes=7, offset_lag=3 * is_future, is_future=is_future
    )


class LogDirsWorld:
    """Broker 1: ``/one`` has a-0, a-1 and b-0, ``/two`` has an incomplete copy of a-1, and ``/three`` has failed."""

    def __init__(self) -> None:
        self.moves: list[tuple[TopicPartition, str]] = []
        self.refusal: Exception | None = None
        records = [TopicRecord("a", b"a" * 16)]
        records += [PartitionRecord(b"a" * 16, number, (1,), (1,), 1, 0, 0) for number in range(2)]  # type: ignore[misc]
        records += [PartitionRecord(b"a" * 16, 2, (9,), (9,), 9, 0, 0)]  # type: ignore[list-item]
        self.broker: Any = SimpleNamespace(
            broker_id=1,
            metadata=SimpleNamespace(image=EMPTY_IMAGE.apply(records, len(records))),
            partitions=SimpleNamespace(check_serving=self._check_serving),
        )
        self.log_dirs = LogDirs(self._describe, self._move)

    def _check_serving(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _describe(self) -> list[DirectoryDescription]:
        def directory(root: str, *logs: LogDescription, error: StorageError | None = None) -> DirectoryDescription:
            known = None if error else ONE
            size = -1 if error else 100
            return DirectoryDescription(
                root=root, directory_id=known, error=error, total_bytes=size, usable_bytes=size, logs=logs
            )

        return [
            directory("/one", log("a", 0), log("a", 1), log("b", 0)),
            directory("/two", log("a", 1, is_future=True)),
            directory("/three", error=StorageError("gone")),
        ]

    async def _move(self, partition: TopicPartition, root: str) -> None:
        if root == "/nowhere":
            raise LogDirNotFoundError("/nowhere is none of log.dirs")
        self.moves.append((partition, root))

    def described(self, *topics: Any) -> list[tuple[str, str, int, bool]]:
        answer = describe_log_dirs(self.broker, self.log_dirs, admin_pb2.DescribeLogDirsRequest(topics=topics))
        assert (answer.broker_id, [each.path for each in answer.directories]) == (1, ["/one", "/two", "/three"])
        return [
            (directory.path, each.topic, each.partition, each.is_future)
            for directory in answer.directories
            for each in directory.partitions
        ]

    def alter(self, **paths: Any) -> list[tuple[str, int, int]]:
        """Move replicas: ``one=[topics]`` moves topics to ``/one``. Return (topic, partition, error code) of each
        result."""
        directories = [admin_pb2.AlterReplicaLogDir(path=f"/{path}", topics=topics) for path, topics in paths.items()]
        request = admin_pb2.AlterReplicaLogDirsRequest(directories=directories)
        answer = asyncio.run(alter_replica_log_dirs(self.broker, self.log_dirs, request))
        return [(each.topic, each.partition, each.error.code) for each in answer.results]


def test_everything_is_described_unless_some_of_it_is_named() -> None:
    world = LogDirsWorld()
    everything = [("/one", "a", 0, False), ("/one", "a", 1, False), ("/one", "b", 0, False), ("/two", "a", 1, True)]
    assert world.described() == everything
    assert world.described(TOPIC(topic="b")) == everything[2:3]
    assert world.described(TOPIC(topic="a", partitions=[1])) == [everything[1], everything[3]]
    assert world.described(TOPIC(topic="a", partitions=[0]), TOPIC(topic="a", partitions=[7, 1])) == [
        *everything[:2],
        everything[3],
    ]
    for twice in ([TOPIC(topic="a", partitions=[0]), TOPIC(topic="a")], [TOPIC(topic="a"), TOPIC(topic="a")]):
        for order in (twice, twice[::-1]):
            assert world.described(*order) == [*everything[:2], everything[3]], "named whole once is named whole"
    assert world.described(TOPIC(topic="unknown"), TOPIC(topic="a", partitions=[-1])) == []


def test_a_failed_directory_is_described_with_its_error_and_without_sizes() -> None:
    world = LogDirsWorld()
    answer = describe_log_dirs(world.broker, world.log_dirs, admin_pb2.DescribeLogDirsRequest())
    well, _, gone = answer.directories
    assert (well.directory_id, well.total_bytes, well.usable_bytes, well.HasField("error")) == (
        ONE.bytes, 100, 100, False
    )  # fmt: skip
    assert (gone.directory_id, gone.total_bytes, gone.usable_bytes) == (b"", -1, -1)
    assert (gone.error.code, gone.error.message) == (StorageError.number, "gone")
    assert (answer.directories[1].partitions[0].size_bytes, answer.directories[1].partitions[0].offset_lag) == (7, 3)


def test_each_replica_is_moved_or_refused_by_itself() -> None:
    world = LogDirsWorld()
    outcome = world.alter(
        two=[TOPIC(topic="a", partitions=[1, 0])],
        nowhere=[TOPIC(topic="b", partitions=[0])],
        one=[TOPIC(topic="not/legal", partitions=[0, 1]), TOPIC(topic="unknown")],
    )
    assert sorted(outcome) == [
        ("a", 0, 0), ("a", 1, 0), ("b", 0, 57), ("not/legal", 0, 17), ("not/legal", 1, 17), ("unknown", -1, 9)
    ]  # fmt: skip
    assert world.moves == [(TopicPartition("a", 1), "/two"), (TopicPartition("a", 0), "/two")]


def test_a_topic_without_numbers_stands_for_what_this_broker_has_of_it() -> None:
    world = LogDirsWorld()
    assert world.alter(two=[TOPIC(topic="a")]) == [("a", 0, 0), ("a", 1, 0)]


def test_a_contradiction_a_wrong_broker_or_a_fenced_one_moves_nothing() -> None:
    world = LogDirsWorld()
    with pytest.raises(InvalidRequestError, match="names a partition twice"):
        world.alter(one=[TOPIC(topic="a", partitions=[0])], two=[TOPIC(topic="a")])
    request = admin_pb2.AlterReplicaLogDirsRequest(broker_id=2)
    with pytest.raises(InvalidRequestError, match="the request is for broker 2, but this is broker 1"):
        asyncio.run(alter_replica_log_dirs(world.broker, world.log_dirs, request))
    world.refusal = FencedBrokerError("fenced")
    with pytest.raises(FencedBrokerError):
        world.alter(two=[TOPIC(topic="a")])
    assert world.moves == []
