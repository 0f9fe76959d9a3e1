"""The Admin service on a broker: it forwards each change to the active controller, and answers when this broker has
applied the change.

Because the broker waits for the applied change, a client that uses one broker reads its own changes from that broker
without tracking metadata offsets. The broker answers DescribeConfigs from its own image, because only the broker itself
knows its properties file. The broker also describes its own log directories (log_dirs.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError, UnknownTopicOrPartitionError
from headrace_core.item_errors import error_to_proto
from headrace_core.membership.config_messages import config_entries
from headrace_core.membership.mutation_quota import LIMITED, limited
from headrace_core.metadata.configs import ConfigDescription, describe_broker, describe_topic, parse_broker_id
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.quotas.callers import limits_of
from headrace_core.rpc.turns import DESCRIPTION_ITEMS, Turns
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..context import BrokerContext
from ..controller_link import ControllerLink
from .log_dirs import LogDirs, alter_replica_log_dirs, describe_log_dirs


async def forward(
    broker: BrokerContext,
    controller: ControllerLink,
    method: str,
    request: Any,
    stub_of: Callable[[Any], Any] = admin_pb2_grpc.AdminStub,
) -> Any:
    """Forward a call to the active controller; ``stub_of`` makes the stub of the call's service. If the answer has a
    metadata offset, the call was a change: return the answer when this broker has applied the change."""
    timeout_ms = getattr(request, "timeout_ms", 0) or broker.limits.request_timeout_ms
    if timeout_ms < 0:
        raise InvalidRequestError(f"timeout_ms={timeout_ms}: must not be negative")
    answer = await controller.call(method, request, timeout_ms, stub_of)
    if "metadata_offset" in answer.DESCRIPTOR.fields_by_name:
        await broker.metadata.wait_for(answer.metadata_offset, timeout_ms)
    return answer


def _forwarded(name: str) -> Any:
    """The method of a call that goes to the active controller."""

    async def forwarded(self: AdminService, request: Any, context: Any) -> Any:
        limits = limits_of(self._broker.quotas, context) if name in LIMITED else None
        if limits is None:
            return await self._forward(name, request)
        return await limited(
            name,
            request,
            limits,
            self._broker.metadata.image,
            time.monotonic(),
            partial(self._forward, name),
            partitions_default=self._given.get("num.partitions", 1),
        )

    return forwarded


class AdminService(admin_pb2_grpc.AdminServicer):
    """headrace.v1.Admin. ``given`` has the values of the properties file (NodeConfig.given); ``log_dirs`` gives access
    to the storage."""

    def __init__(
        self,
        broker: BrokerContext,
        controller: ControllerLink,
        *,
        given: Mapping[str, Any],
        log_dirs: LogDirs,
    ) -> None:
        self._broker = broker
        self._controller = controller
        self._given = given
        self._log_dirs = log_dirs

    CreateTopics = _forwarded("CreateTopics")
    DeleteTopics = _forwarded("DeleteTopics")
    CreatePartitions = _forwarded("CreatePartitions")
    AlterConfigs = _forwarded("AlterConfigs")
    ElectLeaders = _forwarded("ElectLeaders")
    DescribeQuorum = _forwarded("DescribeQuorum")
    AddRaftVoter = _forwarded("AddRaftVoter")
    RemoveRaftVoter = _forwarded("RemoveRaftVoter")
    TransferLeadership = _forwarded("TransferLeadership")
    AlterPartitionReassignments = _forwarded("AlterPartitionReassignments")
    ListPartitionReassignments = _forwarded("ListPartitionReassignments")
    DrainBroker = _forwarded("DrainBroker")
    UnregisterBroker = _forwarded("UnregisterBroker")
    DescribeFeatures = _forwarded("DescribeFeatures")
    UpdateFeatures = _forwarded("UpdateFeatures")

    async def DescribeConfigs(self, request: Any, context: Any) -> Any:
        answer = admin_pb2.DescribeConfigsResponse()
        description = _Description(self._broker, self._given, include_synonyms=request.include_synonyms)
        # One resource's description lists dozens of configuration entries, so it costs as much as dozens of ordinary
        # items.
        async with Turns(DESCRIPTION_ITEMS * len(request.resources)) as turns:
            for item in request.resources:
                if turns.is_over():
                    await turns.next()
                answer.results.append(description.of(item))
        return answer

    async def DescribeLogDirs(self, request: Any, context: Any) -> Any:
        return describe_log_dirs(self._broker, self._log_dirs, request)

    async def AlterReplicaLogDirs(self, request: Any, context: Any) -> Any:
        return await alter_replica_log_dirs(self._broker, self._log_dirs, request)

    async def _forward(self, method: str, request: Any) -> Any:
        return await forward(self._broker, self._controller, method, request)


class _Description:
    """Describes the configurations that one request names, by the metadata of its arrival. Topics with the same own
    settings have the same entries, which are made once."""

    def __init__(self, broker: BrokerContext, given: Mapping[str, Any], *, include_synonyms: bool) -> None:
        self._broker_id = broker.broker_id
        self._image = broker.metadata.image
        self._given = given
        self._include_synonyms = include_synonyms
        self._of_topics: dict[tuple[tuple[str, str], ...], list[Any]] = {}

    def of(self, resource: Any) -> Any:
        """The result for one resource."""
        try:
            if resource.type == admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC:
                entries = self._topic(resource.name)
            else:
                entries = self._entries(self._others(resource))
        except HeadraceError as error:
            return admin_pb2.DescribeConfigsResult(resource=resource, error=error_to_proto(error))
        return admin_pb2.DescribeConfigsResult(resource=resource, entries=entries)

    def _entries(self, described: list[ConfigDescription]) -> list[Any]:
        return config_entries(described, include_synonyms=self._include_synonyms)

    def _topic(self, topic: str) -> list[Any]:
        if self._image.topic(topic) is None:
            raise UnknownTopicOrPartitionError(f"cannot describe the configuration: topic {topic} does not exist")
        own = tuple(sorted(self._image.config(ConfigResourceType.TOPIC, topic).items()))
        if own not in self._of_topics:
            described = describe_topic(self._image, topic, broker_id=self._broker_id, given=self._given)
            self._of_topics[own] = self._entries(described)
        return self._of_topics[own]

    def _others(self, resource: Any) -> list[ConfigDescription]:
        if resource.type == admin_pb2.CONFIG_RESOURCE_TYPE_BROKER:
            if not resource.name:
                return describe_broker(self._image, None)
            wanted = parse_broker_id(resource.name)
            if wanted not in self._image.brokers:
                raise InvalidRequestError(f"cannot describe the configuration: broker {wanted} does not exist")
            return describe_broker(self._image, wanted, static=self._given if wanted == self._broker_id else None)
        raise InvalidRequestError(
            f"cannot describe the configuration: resource type {resource.type} must be TOPIC or BROKER"
        )
