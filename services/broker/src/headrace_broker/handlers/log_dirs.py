"""DescribeLogDirs and AlterReplicaLogDirs of the Admin service, for this broker's directories (KIP-113, KIP-827)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError, ReplicaNotAvailableError
from headrace_core.item_errors import error_to_proto
from headrace_core.types import TopicPartition, check_topic_name
from headrace_protos.v1 import admin_pb2

from ..context import BrokerContext
from ..directories import DirectoryDescription


@dataclass(frozen=True, slots=True)
class LogDirs:
    """Functions of the storage that the handlers of log directories call. ``describe`` returns a description of every
    log directory. ``move`` starts to move a replica and returns when the move has begun; it raises LogDirNotFoundError,
    StorageError, DiskFullError or ReplicaNotAvailableError."""

    describe: Callable[[], Sequence[DirectoryDescription]]
    move: Callable[[TopicPartition, str], Coroutine[Any, Any, None]]


def describe_log_dirs(broker: BrokerContext, log_dirs: LogDirs, request: Any) -> Any:
    _check_meant(broker, request)
    wanted = _wanted(request.topics)
    answer = admin_pb2.DescribeLogDirsResponse(broker_id=broker.broker_id)
    for each in log_dirs.describe():
        directory = answer.directories.add(
            path=each.root,
            directory_id=b"" if each.directory_id is None else each.directory_id.bytes,
            error=error_to_proto(each.error),
            total_bytes=each.total_bytes,
            usable_bytes=each.usable_bytes,
            sync_us=each.sync_us,
        )
        for log in each.logs:
            topic, partition = log.partition
            if wanted is None or partition in wanted.get(topic, ()):
                directory.partitions.add(
                    topic=topic,
                    partition=partition,
                    size_bytes=log.size_bytes,
                    offset_lag=log.offset_lag,
                    is_future=log.is_future,
                    error=error_to_proto(log.error),
                )
    return answer


async def alter_replica_log_dirs(broker: BrokerContext, log_dirs: LogDirs, request: Any) -> Any:
    """Move each replica independently. A request that names a replica twice is refused as a whole."""
    _check_meant(broker, request)
    broker.partitions.check_serving()
    moves: list[tuple[TopicPartition, str]] = []
    results = []
    for directory in request.directories:
        for item in directory.topics:
            try:
                moves += [(replica, directory.path) for replica in _named(broker, item)]
            except HeadraceError as error:
                numbers = item.partitions or [-1]
                results += [_result(item.topic, number, error) for number in numbers]
    if len({replica for replica, _ in moves}) != len(moves):
        raise InvalidRequestError("the request names a partition twice; nothing was moved: name each partition once")
    for replica, path in moves:
        try:
            await log_dirs.move(replica, path)
            results.append(_result(*replica, None))
        except HeadraceError as error:
            results.append(_result(*replica, error))
    return admin_pb2.AlterReplicaLogDirsResponse(results=results)


def _check_meant(broker: BrokerContext, request: Any) -> None:
    if request.HasField("broker_id") and request.broker_id != broker.broker_id:
        raise InvalidRequestError(
            f"wrong broker: the request is for broker {request.broker_id}, but this is broker {broker.broker_id}; "
            "refresh the metadata"
        )


def _wanted(topics: Any) -> dict[str, Collection[int]] | None:
    """Maps each topic to the partitions that the request names; None stands for all partitions."""
    if not topics:
        return None
    wanted: dict[str, Collection[int]] = {}
    for item in topics:
        every = range(2**31)
        if not item.partitions or wanted.get(item.topic) == every:
            wanted[item.topic] = every
        else:
            wanted[item.topic] = {*wanted.get(item.topic, ()), *item.partitions}
    return wanted


def _named(broker: BrokerContext, item: Any) -> list[TopicPartition]:
    """The replicas that a request item names; an item without partition numbers names all partitions of the topic on
    this broker."""
    check_topic_name(item.topic)
    if item.partitions:
        return [TopicPartition(item.topic, number) for number in item.partitions]
    topic = broker.metadata.image.topic(item.topic)
    mine = [] if topic is None else enumerate(topic.partitions)
    found = [TopicPartition(item.topic, number) for number, state in mine if broker.broker_id in state.replicas]
    if not found:
        raise ReplicaNotAvailableError(f"broker {broker.broker_id} has no replica of topic {item.topic}")
    return found


def _result(topic: str, partition: int, error: HeadraceError | None) -> Any:
    return admin_pb2.AlterReplicaLogDirResult(topic=topic, partition=partition, error=error_to_proto(error))
