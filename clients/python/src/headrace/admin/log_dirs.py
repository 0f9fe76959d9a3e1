"""Describe log directories and move replicas between them (KIP-113, KIP-827). Each request is sent to the broker whose
disks it concerns, because no other node knows a broker's disks. The code runs on the I/O thread, except the
``wanted_*`` functions, which run in the caller's thread."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.errors import HeadraceError, InvalidArgumentError, from_number
from headrace_core.item_errors import error_of
from headrace_core.rpc.limits import ITEMS_MAX, limit_of, pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import admin_pb2

from .. import arguments
from ..cluster_models import LogDirDescription, ReplicaInfo, TopicPartitionReplica
from ..engine.connections import call
from .calls import AdminCalls


def wanted_replicas(topics: Iterable[str | TopicPartition] | str | None) -> dict[str, set[int]] | None:
    """Maps each topic to the wanted partitions (an empty set: all of the topic's partitions); None for all topics."""
    if topics is None:
        return None
    wanted: dict[str, set[int]] = {}
    whole: set[str] = set()
    what = "names, or TopicPartition(topic, number)"
    for item in [topics] if isinstance(topics, str) else arguments.items("topics", topics, what):
        if isinstance(item, str):
            whole.add(arguments.text("topics", item))
        else:
            topic, partition = arguments.partition(item)
            wanted.setdefault(topic, set()).add(partition)
    return wanted | {topic: set() for topic in whole}


def wanted_brokers(brokers: Iterable[int] | None) -> list[int] | None:
    """None: all. Raises InvalidArgumentError."""
    if brokers is None:
        return None
    given = arguments.items("brokers", brokers, "broker ids")
    return [arguments.whole("broker", each, 0, arguments.INT32_MAX) for each in given]


def wanted_moves(moves: Mapping[TopicPartitionReplica, str]) -> dict[TopicPartitionReplica, str]:
    """The moves, with each plain tuple converted to a TopicPartitionReplica. Raises InvalidArgumentError."""
    checked = {}
    for replica, path in arguments.mapping("moves", moves, "TopicPartitionReplica: path").items():
        if not isinstance(replica, tuple) or len(replica) != 3:
            raise InvalidArgumentError(
                f"{replica!r}: a replica must be given as TopicPartitionReplica(topic, partition, broker_id)"
            )
        tp = arguments.partition(replica[:2])
        broker_id = arguments.whole(f"broker_id of {tp}", replica[2], 0, arguments.INT32_MAX)
        checked[TopicPartitionReplica(*tp, broker_id)] = arguments.text(f"path of {tp}", str(path), empty=False)
    return checked


async def describe_log_dirs(
    calls: AdminCalls, brokers: list[int] | None, wanted: dict[str, set[int]] | None, timeout: float | None
) -> dict[int, list[LogDirDescription]]:
    """The log directories of each broker. ``brokers`` is None for all live brokers."""
    engine = calls.engine
    deadline = engine.deadline(timeout)
    await engine.metadata.refresh([], deadline=deadline)
    ids = sorted(engine.metadata.snapshot.brokers) if brokers is None else list(dict.fromkeys(brokers))
    if wanted == {}:
        return {broker_id: [] for broker_id in ids}
    request = admin_pb2.DescribeLogDirsRequest()
    partitions_max = limit_of("Admin/DescribeLogDirs", "topics.partitions")
    is_short = wanted is not None and len(wanted) <= ITEMS_MAX and sum(map(len, wanted.values())) <= partitions_max
    # A long list of wanted partitions does not fit into a request: request all partitions, and filter the response.
    for topic, partitions in (wanted or {}).items() if is_short else ():
        request.topics.add(topic=topic, partitions=sorted(partitions))

    async def describe(broker_id: int, address: str, timeout_s: float) -> list[LogDirDescription]:
        own = admin_pb2.DescribeLogDirsRequest(broker_id=broker_id)
        own.MergeFrom(request)
        answer = await call(engine.connections.admin(address).DescribeLogDirs, own, address, timeout_s)
        return [_description(broker_id, item, wanted) for item in answer.directories]

    found = await asyncio.gather(*(calls.at_broker(broker_id, describe, deadline) for broker_id in ids))
    return dict(zip(ids, found, strict=True))


async def alter_replica_log_dirs(
    calls: AdminCalls, moves: Mapping[TopicPartitionReplica, str], timeout: float | None
) -> None:
    """Send one request to each broker that has replicas to move. Raises the first failure of a replica; its message
    lists all failures."""
    engine = calls.engine
    deadline = engine.deadline(timeout)
    await engine.metadata.refresh([], deadline=deadline)
    by_broker: dict[int, list[tuple[TopicPartitionReplica, str]]] = defaultdict(list)
    for replica, path in moves.items():
        by_broker[replica.broker_id].append((replica, path))

    async def alter(broker_id: int, address: str, timeout_s: float) -> list[tuple[str, HeadraceError]]:
        results: list[Any] = []
        for page in pages(by_broker[broker_id]):
            request = admin_pb2.AlterReplicaLogDirsRequest(broker_id=broker_id)
            directories: dict[str, Any] = {}
            for replica, path in page:
                if path not in directories:
                    directories[path] = request.directories.add(path=path)
                directories[path].topics.add(topic=replica.topic, partitions=[replica.partition])
            admin = engine.connections.admin(address)
            results += (await call(admin.AlterReplicaLogDirs, request, address, timeout_s)).results
        return [
            (
                f"{item.topic}-{item.partition} on broker {broker_id}",
                from_number(item.error.code, item.error.message.removeprefix(f"{item.topic}-{item.partition}: ")),
            )
            for item in results
            if item.error.code
        ]

    outcomes = await asyncio.gather(*(calls.at_broker(broker_id, alter, deadline) for broker_id in by_broker))
    failed = [failure for outcome in outcomes for failure in outcome]
    if failed:
        raise type(failed[0][1])("; ".join(f"{name}: {error.message}" for name, error in failed))


def _is_wanted(wanted: dict[str, set[int]] | None, topic: str, partition: int) -> bool:
    if wanted is None:
        return True
    chosen = wanted.get(topic)
    return chosen is not None and (not chosen or partition in chosen)


def _description(broker_id: int, item: Any, wanted: dict[str, set[int]] | None = None) -> LogDirDescription:
    return LogDirDescription(
        broker_id=broker_id,
        path=item.path,
        directory_id=item.directory_id,
        error=error_of(item.error),
        replicas=tuple(
            ReplicaInfo(
                each.topic, each.partition, each.size_bytes, each.offset_lag, each.is_future, error_of(each.error)
            )
            for each in item.partitions
            if _is_wanted(wanted, each.topic, each.partition)
        ),
        total_bytes=None if item.total_bytes < 0 else item.total_bytes,
        usable_bytes=None if item.usable_bytes < 0 else item.usable_bytes,
        sync_ms=item.sync_us / 1_000 if item.HasField("sync_us") and item.sync_us >= 0 else None,
    )
