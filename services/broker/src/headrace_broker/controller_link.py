"""Calls of this broker to the active controller, whoever that is at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError, NetworkError, NotControllerError, RequestTimedOutError
from headrace_core.rpc import ChannelPurpose, error_from_rpc, open_channel
from headrace_core.rpc.status import error_of
from headrace_protos.v1 import admin_pb2_grpc, cluster_pb2, cluster_pb2_grpc

_RETRY_S = 0.05

#: A replica of this broker: its topic's id, and the partition's number.
ReplicaKey = tuple[bytes, int]


class ControllerLink:
    """A channel to each controller's internal listener, opened on first use."""

    def __init__(self, addresses: Sequence[str], clock: Clock) -> None:
        assert addresses, "a broker needs the address of at least one controller"
        self._addresses = tuple(addresses)
        self._clock = clock
        self._active = 0
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(self, method: str, request: Any, timeout_ms: int) -> Any:
        """The active controller's answer to an Admin call. A controller that is not active, or cannot be reached,
        makes way for the next one until ``timeout_ms`` are over; then its error is raised. Others are raised at once.
        """
        return await self._call(admin_pb2_grpc.AdminStub, method, request, timeout_ms)

    async def assign_directories(
        self, broker_id: int, broker_epoch: int, where: Mapping[ReplicaKey, bytes], timeout_ms: int
    ) -> dict[ReplicaKey, HeadraceError]:
        """Tell the controllers in which directory replicas of this broker are (KIP-858); what they refused. Raises as
        ``call`` does, and StaleBrokerEpochError."""
        request = cluster_pb2.AssignReplicasToDirsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        topics: dict[tuple[bytes, bytes], Any] = {}
        directories: dict[bytes, Any] = {}
        for (topic_id, partition), directory in where.items():
            topic = topics.get((directory, topic_id))
            if topic is None:
                item = directories.get(directory)
                if item is None:
                    item = directories[directory] = request.directories.add(directory_id=directory)
                topic = topics[directory, topic_id] = item.topics.add(topic_id=topic_id)
            topic.partitions.append(partition)
        answer = await self._call(cluster_pb2_grpc.ClusterStub, "AssignReplicasToDirs", request, timeout_ms)
        refused = {(item.topic_id, item.partition): error_of(item.error) for item in answer.refused}
        return {key: error for key, error in refused.items() if error is not None}

    async def _call(self, stub: Callable[[grpc.aio.Channel], Any], method: str, request: Any, timeout_ms: int) -> Any:
        deadline = self._clock.monotonic_ms() + timeout_ms
        failure: HeadraceError = RequestTimedOutError(f"{method}: no controller answered within {timeout_ms} ms")
        while (left_ms := deadline - self._clock.monotonic_ms()) > 0:
            address = self._addresses[self._active]
            try:
                return await getattr(stub(self._channel(address)), method)(request, timeout=left_ms / 1000)
            except grpc.aio.AioRpcError as error:
                failure = error_from_rpc(error, address)
            if not isinstance(failure, NotControllerError | NetworkError):
                raise failure
            self._active = (self._active + 1) % len(self._addresses)
            await asyncio.sleep(_RETRY_S)
        raise failure

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, ChannelPurpose.CONTROL)
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
