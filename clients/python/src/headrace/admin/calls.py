"""Admin calls: conversion of Python values to protobuf and back, and of error codes to exceptions. The module runs on
Headrace's I/O thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    HeadraceError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    from_number,
)
from headrace_core.rpc.limits import pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import admin_pb2, metadata_pb2, offsets_pb2

from .. import arguments
from ..cluster_models import (
    ClusterDescription,
    ControllerInfo,
    CoordinatorInfo,
    CreatedTopic,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)
from ..engine.client import Engine
from ..engine.connections import call
from ..engine.coordinators import TRANSACTIONS, Coordinators
from ..engine.io_thread import END_S, closed_error, forget, forked_error
from ..models import BrokerInfo

T = TypeVar("T")


class AdminCalls:
    """The calls. Admin calls see this client's own changes (read your writes). The metadata cache keeps the largest
    metadata offset of this client's changes. A node applies the metadata log up to the client's largest metadata offset
    before it answers the client."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.engine = Engine(config, self, watches=False)
        self.engine.create_topics = False  # an admin call on a topic must not auto-create it
        self.coordinators = Coordinators(self.engine)
        self.transaction_coordinators = Coordinators(self.engine, TRANSACTIONS)
        self.state = "open"

    def check_open(self) -> None:
        if self.state == "forked":
            raise forked_error("admin client")
        if self.state != "open":
            raise closed_error("admin client")
        self.engine.check_alive()

    def begin_close(self) -> bool:
        """Refuse further calls. Return whether there are connections to close: False if the client was never used."""
        if self.state != "open":
            return False
        self.state = "closed"
        forget(self)
        return self.engine.is_used

    def after_fork(self) -> None:
        self.state = "forked"

    def at_exit(self) -> None:
        if self.begin_close():
            self.engine.io.finish(self.engine.close(), END_S)

    async def create_topics(
        self, topics: list[NewTopic | str], timeout: float | None, validate_only: bool
    ) -> list[CreatedTopic]:
        new = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        for topic in new:
            _check_count(topic, "partitions", topic.partitions, InvalidPartitionsError)
            _check_count(topic, "replication_factor", topic.replication_factor, InvalidReplicationFactorError)
        created: list[CreatedTopic] = []
        for page in pages(new):
            created += await self._create_topics(page, timeout, validate_only)
        return created

    async def _create_topics(
        self, new: Sequence[NewTopic], timeout: float | None, validate_only: bool
    ) -> list[CreatedTopic]:
        request = admin_pb2.CreateTopicsRequest(validate_only=validate_only)
        for topic in new:
            item = request.topics.add(
                name=topic.name,
                partitions=-1 if topic.partitions is None else topic.partitions,
                replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
                configs={key: str(value) for key, value in topic.config.items()},
            )
            for partition, brokers in sorted((topic.assignments or {}).items()):
                item.assignments.add(partition=partition, broker_ids=list(brokers))
        answer = await self.change("CreateTopics", request, timeout)
        raise_failures((item.name, item.error) for item in answer.results)
        return [
            CreatedTopic(item.name, item.topic_id, item.partitions, item.replication_factor) for item in answer.results
        ]

    async def delete_topics(self, names: list[str], timeout: float | None) -> None:
        results: list[Any] = []
        for page in pages(names):
            answer = await self.change("DeleteTopics", admin_pb2.DeleteTopicsRequest(topics=page), timeout)
            results += answer.results
        raise_failures((item.name, item.error) for item in results)

    async def create_partitions(self, counts: dict[str, int], timeout: float | None, validate_only: bool) -> None:
        results: list[Any] = []
        for page in pages(list(counts.items())):
            request = admin_pb2.CreatePartitionsRequest(validate_only=validate_only)
            for topic, count in page:
                request.topics.add(topic=topic, total_count=count)
            results += (await self.change("CreatePartitions", request, timeout)).results
        raise_failures((item.topic, item.error) for item in results)

    async def delete_records(
        self, before: dict[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, int]:
        deadline = self.engine.deadline(timeout)

        async def one(partition: TopicPartition, offset: int) -> int:
            async def attempt(timeout_s: float) -> int:
                address, _ = await self.engine.at_leader(*partition, max(deadline - time.monotonic(), 0.01))
                request = offsets_pb2.DeleteRecordsRequest(timeout_ms=int(timeout_s * 1000))
                request.partitions.add(topic=partition.topic, partition=partition.partition, before_offset=offset)
                method = self.engine.connections.offsets(address).DeleteRecords
                result = (await call(method, request, address, timeout_s)).results[0]
                if result.error.code:
                    self.engine.metadata.invalidate()
                    raise from_number(result.error.code, result.error.message or str(partition))
                low: int = result.low_watermark
                return low

            found: int = await self.engine.retrying(attempt, deadline, f"delete records of {partition}")
            return found

        # Wait for every partition: after an error, no partition may still be changing.
        lows = await asyncio.gather(
            *(one(TopicPartition(*item), offset) for item, offset in before.items()), return_exceptions=True
        )
        found: dict[TopicPartition, int] = {}
        failed: list[HeadraceError] = []
        for item, low in zip(before, lows, strict=True):
            if isinstance(low, HeadraceError):
                failed.append(low)
            elif isinstance(low, BaseException):
                raise low
            else:
                found[TopicPartition(*item)] = low
        if failed:
            raise type(failed[0])("; ".join(error.message for error in failed)) if failed[1:] else failed[0]
        return found

    async def list_topics(self, include_internal: bool, timeout: float | None) -> list[str]:
        answer = await self._metadata(self.engine.deadline(timeout), all_topics=True)
        return sorted(item.name for item in answer.topics if include_internal or not item.internal)

    async def describe_topics(self, names: list[str] | None, timeout: float | None) -> list[TopicDescription]:
        deadline = self.engine.deadline(timeout)
        topics: list[Any] = []
        for page in pages(names or []):
            topics += (await self._metadata(deadline, topics=page, all_topics=names is None)).topics
        raise_failures((item.name, item.error) for item in topics)
        return [
            TopicDescription(
                item.name,
                item.topic_id,
                item.internal,
                tuple(
                    PartitionDescription(
                        part.partition,
                        part.leader_id,
                        part.leader_epoch,
                        tuple(part.replicas),
                        tuple(part.isr),
                        tuple(part.offline_replicas),
                        tuple(part.eligible_leader_replicas),
                        tuple(part.last_known_elr),
                    )
                    for part in sorted(item.partitions, key=lambda part: part.partition)
                ),
                item.max_message_bytes,
            )
            for item in topics
        ]

    async def describe_cluster(self, include_fenced_brokers: bool, timeout: float | None) -> ClusterDescription:
        deadline = self.engine.deadline(timeout)
        answer = await self._metadata(deadline, include_fenced_brokers=include_fenced_brokers)
        return ClusterDescription(
            cluster_id=answer.cluster_id,
            controller_id=answer.controller_id,
            brokers=tuple(
                BrokerInfo(
                    item.broker_id,
                    item.host,
                    item.port,
                    item.rack,
                    item.fenced,
                    item.draining,
                    tuple(item.outdated_directory_ids),
                )
                for item in sorted(answer.brokers, key=lambda broker: broker.broker_id)
            ),
            controllers=tuple(ControllerInfo(item.controller_id, item.host, item.port) for item in answer.controllers),
            metadata_lag_ms=answer.metadata_lag_ms if answer.HasField("metadata_lag_ms") else None,
            coordinators=tuple(
                CoordinatorInfo(item.coordinator_id, item.host, item.port, item.rack, item.draining)
                for item in sorted(answer.coordinators, key=lambda coordinator: coordinator.coordinator_id)
            ),
        )

    async def _metadata(self, deadline: float, **fields: Any) -> Any:
        metadata = self.engine.metadata
        await metadata.refresh([], deadline=deadline)
        return await metadata.ask(metadata_pb2.MetadataRequest(**fields), deadline)

    async def change(self, method: str, request: Any, timeout: float | None, *, service: str = "admin") -> Any:
        """Send a change to the cluster; return when the metadata of the node that answered include the change."""
        answer = await self.call(method, request, timeout, is_change=True, service=service)
        self.engine.metadata.wrote(answer.metadata_offset)
        return answer

    async def call(
        self,
        method: str,
        request: Any,
        timeout: float | None,
        *,
        is_change: bool = False,
        sees_own_writes: bool = False,
        service: str = "admin",
    ) -> Any:
        """Send a request with retries. ``is_change``: one attempt may use all the remaining time. An attempt that may
        have taken effect is not repeated, because a second "create" would fail with TOPIC_ALREADY_EXISTS.
        ``sees_own_writes``: the node that answers has applied this client's changes. ``service``: the method of
        Connections that returns the stub."""

        def stub_of(address: str) -> Callable[..., Any]:
            connections = self.engine.connections
            return partial(getattr(getattr(connections, service)(address), method), metadata=connections.named)

        deadline = self.engine.deadline(timeout)

        async def attempt(timeout_s: float) -> Any:
            if is_change:
                timeout_s = max(deadline - time.monotonic(), timeout_s)
            if "timeout_ms" in request.DESCRIPTOR.fields_by_name:
                request.timeout_ms = int(timeout_s * 1000)
            return await self.engine.anywhere(
                stub_of, request, timeout_s, once=is_change, sees_own_writes=sees_own_writes
            )

        return await self.engine.retrying(attempt, deadline, method)

    async def at_broker(self, broker_id: int, ask: Callable[[int, str, float], Awaitable[T]], deadline: float) -> T:
        """Call ``ask`` for one broker, because only that broker knows its disks and its properties file. Before the
        call, wait until the broker's metadata include this client's writes. Raises BrokerIdNotRegisteredError if the
        broker is not live."""
        engine = self.engine

        async def attempt(timeout_s: float) -> T:
            broker = engine.metadata.snapshot.brokers.get(broker_id)
            if broker is None:
                live = ", ".join(map(str, sorted(engine.metadata.snapshot.brokers))) or "none"
                raise BrokerIdNotRegisteredError(f"broker {broker_id} is not alive, or does not exist (alive: {live})")
            await engine.metadata.own_writes_at(broker.address, timeout_s)
            return await ask(broker_id, broker.address, timeout_s)

        answer: T = await engine.retrying(attempt, deadline, f"asking broker {broker_id}")
        return answer


def raise_failures(results: Iterable[tuple[str, Any]]) -> None:
    """Raise the first failure; its message lists all failures."""
    failed: list[tuple[str, HeadraceError]] = [
        (name, from_number(error.code, error.message)) for name, error in results if error.code
    ]
    if len(failed) == 1:
        name, error = failed[0]
        raise type(error)(error.message if name in error.message else f"{name}: {error.message}")
    if failed:
        raise type(failed[0][1])("; ".join(f"{name}: {error.code}: {error.message}" for name, error in failed))


def new_topics(topics: Iterable[NewTopic | str] | NewTopic | str) -> list[NewTopic | str]:
    """Check the topics of create_topics in the caller's thread; a single topic becomes a list of one."""
    what = "NewTopic objects or topic names"
    found = [topics] if isinstance(topics, str | NewTopic) else arguments.items("topics", topics, what)
    for topic in found:
        if isinstance(topic, str):
            arguments.text("topic", topic)
            continue
        if not isinstance(topic, NewTopic):
            raise arguments.wrong("topics", topic, f"must be {what}")
        name = arguments.text("NewTopic.name", topic.name)
        for field, count in (("partitions", topic.partitions), ("replication_factor", topic.replication_factor)):
            if count is not None:
                arguments.whole(f"{field} of {name!r}", count, -arguments.INT32_MAX, arguments.INT32_MAX)
        for key, value in arguments.mapping(f"config of {name!r}", topic.config, "key: value").items():
            arguments.text(f"config of {name!r}", key)
            arguments.text(f"{key} of {name!r}", str(value))
        if topic.assignments is not None:
            given = arguments.mapping(f"assignments of {name!r}", topic.assignments, "partition: broker ids")
            for partition, brokers in given.items():
                arguments.whole(f"partition of {name!r}", partition, 0, arguments.INT32_MAX)
                for broker in arguments.items(f"assignments of {name!r}", brokers, "broker ids"):
                    arguments.whole(f"broker of {name!r}", broker, 0, arguments.INT32_MAX)
    return found


def new_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Check the counts of create_partitions. Raises InvalidArgumentError."""
    return {
        arguments.text("topic", topic): arguments.whole(f"count of {topic!r}", count, -1, arguments.INT32_MAX)
        for topic, count in arguments.mapping("counts", counts, "topic: number of partitions").items()
    }


def records_before(before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Check the offsets of delete_records; -1 stands for all committed records. Raises InvalidArgumentError."""
    return {
        arguments.partition(tp): arguments.whole(f"offset of {tp}", offset, -1)
        for tp, offset in arguments.mapping("before", before, "TopicPartition: offset").items()
    }


def _check_count(topic: NewTopic, what: str, count: int | None, error: type[HeadraceError]) -> None:
    """Check a count: None and -1 (as in Kafka) mean the cluster's default. 0 is refused, because the protocol also
    reads 0 as the default."""
    if count is not None and count < 1 and count != -1:
        raise error(f"topic {topic.name!r}: {what}={count}: must be at least 1, or None for the cluster's default")
