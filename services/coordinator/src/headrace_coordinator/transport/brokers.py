"""The leaders of the shards' partitions, and streams to them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from headrace_core.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.node_links import NodeLinks
from headrace_core.node.listeners import CLIENT, INTERNAL
from headrace_core.quotas import COUNTED_KEY
from headrace_core.rpc import ChannelPurpose, LiveChannel
from headrace_core.rpc.duplex import Duplex
from headrace_core.types import NO_LEADER, TopicPartition, join_address
from headrace_protos.v1 import fetch_pb2, fetch_pb2_grpc, offsets_pb2_grpc

from .produce_link import ProduceLink

_UNLIMITED = ((COUNTED_KEY, "node"),)


class Leader(NamedTuple):
    """A partition's leader and its addresses: ``internal`` accepts appends of shards, ``client`` answers fetches (on a
    secured broker, the two addresses are the same)."""

    broker_id: int
    leader_epoch: int
    internal: str
    client: str


class Brokers:
    """Connections to brokers, which open on first use. ``close`` ends all connections, except fetch streams."""

    def __init__(self, metadata: MetadataState) -> None:
        self.metadata = metadata
        self._links: NodeLinks[ProduceLink] = NodeLinks(metadata)
        self._channels: NodeLinks[LiveChannel] = NodeLinks(metadata)

    def leader_of(self, partition: TopicPartition) -> Leader:
        """The leader of a partition, according to the current metadata. Raises UnknownTopicOrPartitionError,
        LeaderNotAvailableError."""
        image = self.metadata.image
        topic = image.topic(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            raise UnknownTopicOrPartitionError(f"{partition} does not exist")
        state = topic.partitions[partition.partition]
        broker = image.brokers.get(state.leader) if state.leader != NO_LEADER else None
        internal = None if broker is None else broker.endpoint(INTERNAL)
        # If the listeners are encrypted, a coordinator reads at the internal listener, because it has no user for the
        # client listener.
        reads_at = CLIENT if self.metadata.channels.credentials is None else INTERNAL
        client = None if broker is None else broker.endpoint(reads_at)
        if internal is None or client is None:
            raise LeaderNotAvailableError(f"{partition} has no reachable leader; retry")
        return Leader(
            state.leader,
            state.leader_epoch,
            join_address(internal.host, internal.port),
            join_address(client.host, client.port),
        )

    def produce_link(self, address: str) -> ProduceLink:
        """The stream that appends over a broker's internal listener."""
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = ProduceLink(address, self.metadata.channels)
        return link

    def fetch_stream(self, address: str) -> Duplex[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]:
        """A new fetch stream to the listener of a broker that answers fetches (``Leader.client``). The stream does not
        count against any client's quota."""
        return Duplex(
            address,
            ChannelPurpose.FETCH,
            lambda channel: fetch_pb2_grpc.FetchStub(channel).Fetch(metadata=_UNLIMITED),  # type: ignore[no-untyped-call]
            self.metadata.channels,
        )

    def offsets(self, address: str) -> Any:
        """A client of the Offsets service at the listener of a broker that answers fetches (``Leader.client``)."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = LiveChannel(self.metadata.channels, address, ChannelPurpose.CONTROL)
        return offsets_pb2_grpc.OffsetsStub(channel.get())  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        await asyncio.gather(self._links.close(), self._channels.close())
