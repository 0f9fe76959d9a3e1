"""The raft links of controllers on loopback: real sockets and servers, without the rest of Raft."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from headrace_controller.raft import Message, ReplicaKey, VoterSet
from headrace_controller.raft.types import Body
from headrace_controller.transport.links import PeerLinks
from headrace_controller.transport.peers import Peers
from headrace_core.rpc.server import Listener
from tests.worlds.this_process import free_port
from tests.worlds.waiting import until_async as until

CLUSTER = "q1Sh-9_ISia_zwGINzRvyQ"


def key(node_id: int, disk: int = 1) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([disk]) * 16)


class End:
    """The links of one controller, and the messages that they received."""

    def __init__(self, own: ReplicaKey, port: int, cluster_id: str = CLUSTER) -> None:
        self.key = own
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.received: list[Message] = []
        self.lost: list[ReplicaKey] = []
        self.seen: list[ReplicaKey] = []
        self.gone: list[ReplicaKey] = []
        self.on_message: Callable[[Message], None] = self.received.append
        self.links = PeerLinks(
            own,
            cluster_id,
            Peers(),
            receive=lambda message: self.on_message(message),
            peer_lost=self.lost.append,
            observe=self.seen.append,
            forget=self.gone.append,
        )
        self.listener = Listener("internal", port=port)
        self.links.register(self.listener)

    async def start(self) -> None:
        await self.listener.start()
        self.links.start(self.address)

    async def stop(self) -> None:
        await self.links.close()
        await self.listener.stop(0)

    def send(self, to: ReplicaKey, *bodies: Body) -> None:
        self.links.peers.send([Message(self.key, to, body) for body in bodies])

    @property
    def bodies(self) -> list[Body]:
        return [message.body for message in self.received]


def voters_of(ends: Sequence[End]) -> VoterSet:
    return VoterSet.of((end.key for end in ends), {end.key.node_id: end.address for end in ends})


def _streams(end: End, others: Sequence[ReplicaKey]) -> set[int]:
    peers = [end.links.peers.by_key.get(other) for other in others]
    return {0 if peer is None else peer.streams for peer in peers} or {2}


@asynccontextmanager
async def quorum(size: int) -> AsyncIterator[list[End]]:
    """Make ``count`` voters, each connected with all others."""
    ends = [End(key(node_id), free_port()) for node_id in range(1, size + 1)]
    members = voters_of(ends)
    for end in ends:
        end.links.set_voters(members)
        await end.start()
    try:
        for end in ends:
            others = [other.key for other in ends if other is not end]
            await until(lambda end=end, others=others: _streams(end, others) == {2}, f"{end.key} is connected")
        yield ends
    finally:
        for end in ends:
            await end.stop()
