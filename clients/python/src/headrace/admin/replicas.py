"""Admin calls about replicas: leader elections (KIP-460), reassignments (KIP-455), drains. The code runs on the I/O
thread, except the ``wanted_*`` functions, which check arguments in the caller's thread and raise
InvalidArgumentError."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidArgumentError,
    OperationNotAttemptedError,
    from_number,
)
from headrace_core.rpc.limits import ITEMS_MAX, pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import admin_pb2

from .. import arguments
from ..cluster_models import ElectionType, PartitionReassignment
from .calls import AdminCalls, raise_failures

_TYPES: dict[str, admin_pb2.ElectionType] = {
    "preferred": admin_pb2.ELECTION_TYPE_PREFERRED,
    "unclean": admin_pb2.ELECTION_TYPE_UNCLEAN,
}
_THROTTLE_MAX = 2**63 - 1

Elections = dict[TopicPartition, HeadraceError | None]


# -- arguments


def wanted_election(election_type: ElectionType) -> admin_pb2.ElectionType:
    if not isinstance(election_type, str) or election_type not in _TYPES:
        raise InvalidArgumentError(f"election_type={election_type!r}: must be one of {', '.join(map(repr, _TYPES))}")
    return _TYPES[election_type]


def wanted_partitions(partitions: Iterable[TopicPartition] | None) -> list[TopicPartition] | None:
    """The partitions in order, without duplicates; None stands for all partitions."""
    if partitions is None:
        return None
    if isinstance(partitions, str | TopicPartition):
        raise InvalidArgumentError(f"{partitions!r}: must be a list of TopicPartition(topic, partition)")
    return list(dict.fromkeys(_partition(each) for each in arguments.items("partitions", partitions, "TopicPartition")))


def wanted_reassignments(
    reassignments: Mapping[TopicPartition, Sequence[int] | None],
) -> dict[TopicPartition, list[int] | None]:
    """Maps each partition to its target replicas; None cancels the partition's reassignment."""
    return {
        _partition(partition): None
        if replicas is None
        else [_broker(each) for each in arguments.items(f"replicas of {partition}", replicas, "broker ids")]
        for partition, replicas in arguments.mapping(
            "reassignments", reassignments, "TopicPartition: broker ids, or None"
        ).items()
    }


def wanted_throttle(throttle_bytes_per_s: int | None) -> int | None:
    value = throttle_bytes_per_s
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _THROTTLE_MAX):
        raise InvalidArgumentError(f"throttle_bytes_per_s={value!r}: must be 0 (no throttle) or more")
    return value


def wanted_broker(broker_id: int) -> int:
    return _broker(broker_id)


def _partition(item: TopicPartition) -> TopicPartition:
    try:
        topic, number = item
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{item!r}: must be TopicPartition(topic, partition)") from None
    if not isinstance(topic, str) or isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
        raise InvalidArgumentError(f"{item!r}: must be TopicPartition(topic, partition)")
    return arguments.partition((topic, number))


def _broker(broker_id: int) -> int:
    if isinstance(broker_id, bool) or not isinstance(broker_id, int) or not 0 <= broker_id < 2**31:
        raise InvalidArgumentError(f"{broker_id!r}: must be the id of a broker, 0 or more")
    return broker_id


# -- calls


async def elect_leaders(
    calls: AdminCalls,
    election_type: admin_pb2.ElectionType,
    partitions: list[TopicPartition] | None,
    timeout: float | None,
) -> Elections:
    """Send the request again while the controller's answer covers only a part of the partitions."""
    deadline = calls.engine.deadline(timeout)
    outcome: Elections = {}
    asked = partitions
    if asked == []:
        return outcome
    while True:
        request = admin_pb2.ElectLeadersRequest(election_type=election_type, all_partitions=asked is None)
        page, rest = (asked or [])[:ITEMS_MAX], (asked or [])[ITEMS_MAX:]
        for topic, numbers in _by_topic(page).items():
            request.partitions.add(topic=topic, partitions=numbers)
        answer = await calls.change("ElectLeaders", request, max(deadline - time.monotonic(), 0.01))
        later = []
        for item in answer.results:
            partition = TopicPartition(item.topic, item.partition)
            error = from_number(item.error.code, item.error.message) if item.error.code else None
            outcome[partition] = error
            if isinstance(error, OperationNotAttemptedError):
                later.append(partition)
        is_stuck = len(later) == len(answer.results) and not rest
        if not (later or rest) or is_stuck or time.monotonic() >= deadline:
            return outcome
        asked = [*rest, *later]


async def alter_partition_reassignments(
    calls: AdminCalls,
    wanted: Mapping[TopicPartition, list[int] | None],
    throttle_bytes_per_s: int | None,
    allow_replication_factor_change: bool,
    timeout: float | None,
) -> None:
    results: list[Any] = []
    for page in pages(list(wanted.items())):
        request = admin_pb2.AlterPartitionReassignmentsRequest(
            keep_replication_factor=not allow_replication_factor_change, throttle_bytes_per_s=throttle_bytes_per_s
        )
        for (topic, number), replicas in page:
            request.reassignments.add(topic=topic, partition=number, replicas=replicas or (), cancel=replicas is None)
        results += (await calls.change("AlterPartitionReassignments", request, timeout)).results
    raise_failures((f"{item.topic}-{item.partition}", item.error) for item in results)


async def list_partition_reassignments(
    calls: AdminCalls, partitions: list[TopicPartition] | None, timeout: float | None
) -> dict[TopicPartition, PartitionReassignment]:
    if partitions == []:
        return {}
    ongoing: list[Any] = []
    for page in pages(partitions or []):
        request = admin_pb2.ListPartitionReassignmentsRequest()
        for topic, numbers in _by_topic(page).items():
            request.partitions.add(topic=topic, partitions=numbers)
        ongoing += (await calls.call("ListPartitionReassignments", request, timeout)).reassignments
    return {
        TopicPartition(item.topic, item.partition): PartitionReassignment(
            replicas=tuple(item.replicas),
            adding_replicas=tuple(item.adding_replicas),
            removing_replicas=tuple(item.removing_replicas),
            waits=item.waits,
        )
        for item in ongoing
    }


async def drain_broker(calls: AdminCalls, broker_id: int, cancel: bool, timeout: float | None) -> int:
    request = admin_pb2.DrainBrokerRequest(broker_id=broker_id, cancel=cancel)
    left: int = (await calls.change("DrainBroker", request, timeout)).replicas_left
    return left


async def unregister_broker(calls: AdminCalls, broker_id: int, timeout: float | None) -> None:
    await calls.change("UnregisterBroker", admin_pb2.UnregisterBrokerRequest(broker_id=broker_id), timeout)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found
