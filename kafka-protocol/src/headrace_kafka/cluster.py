"""The cluster as Kafka's clients see it: each broker id has the address of a gateway.

All gateways give a client the same gateway address for a broker. A client that switches to another gateway therefore
sees the same broker addresses (librdkafka closes its connections when an address changes). The choice is rendezvous
hashing (Thaler and Ravishankar, 1998) over broker id, client host and client id, with at most ``ceil(brokers /
gateways)`` brokers for each gateway. The broker addresses of one client are therefore spread over the gateways. When a
gateway dies, the brokers at that gateway get other addresses, and few other brokers do.

If any gateways are in a broker's rack, a client gets one of these gateways for the broker. A consumer that reads from
the replica in its rack (KIP-392) then reads through a gateway in its rack.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace_core.errors import CoordinatorNotAvailableError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import BrokerImage, MetadataImage, TopicImage
from headrace_core.metadata.shards import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, address_of, owner_of, shard_of
from headrace_core.node.listeners import CLIENT
from headrace_core.security.access import Authorization
from headrace_core.types import join_address

from .client import Client

GROUP, TRANSACTION = "group", "transaction"  #: Kinds of coordinators.
_SHARDS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
_CLIENTS_MAX = 2_000  #: Maximum number of clients whose addresses are cached.


class ClientsRequest(Protocol):
    """The part of a request (call.Call) that determines the broker addresses in the answer: the request's client and
    client id."""

    @property
    def client(self) -> Client: ...

    @property
    def client_id(self) -> str: ...


class Node(NamedTuple):
    """A broker as a client sees it: ``host`` and ``port`` are the address of a gateway."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class ListenerPorts(NamedTuple):
    """Addresses of one Kafka listener of a gateway. ``broker_ports`` maps broker ids to ports."""

    host: str
    bootstrap_port: int
    broker_ports: Mapping[int, int]


class GatewayEntry(NamedTuple):
    """A living gateway, its Kafka listeners by name, and its rack."""

    gateway_id: bytes
    listeners: Mapping[str, ListenerPorts]
    rack: str | None = None


class Cluster:
    """The cluster's metadata for handlers. ``state`` has the applied metadata image. ``gateways`` returns the living
    gateways, including this gateway; it returns the same object until the gateways change. ``authorization``: the
    gateway's authorizer; without one, every client may do everything. ``node_listener``: the listener of brokers and
    coordinators that the gateway calls."""

    def __init__(
        self,
        state: MetadataState,
        gateways: Callable[[], Sequence[GatewayEntry]],
        authorization: Authorization | None = None,
        *,
        node_listener: str = CLIENT,
    ) -> None:
        self.state = state
        self.node_listener = node_listener
        self._gateways = gateways
        self.authorization = authorization or Authorization()
        self._of: tuple[object, object] = (None, None)
        self._nodes: dict[tuple[str, str, str], dict[int, Node]] = {}
        self._addresses: dict[int, tuple[BrokerImage | None, str | None]] = {}

    @property
    def image(self) -> MetadataImage:
        """The applied metadata image."""
        return self.state.image

    @property
    def age_ms(self) -> float | None:
        """Age of the metadata image in milliseconds; None if unknown."""
        return self.state.lag.ms

    def topic(self, name: str) -> TopicImage | None:
        return self.state.image.topic(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.state.image.topics.get(topic_id)

    def has_partition(self, topic: str, partition: int) -> bool:
        found = self.topic(topic)
        return found is not None and 0 <= partition < len(found.partitions)

    def controller_id(self) -> int:
        """The broker id that clients get as the controller's id: the lowest unfenced broker, or -1 without one. The
        gateway may return any broker, because every broker forwards requests to the controller."""
        brokers = self.state.image.brokers
        return min((each.broker_id for each in brokers.values() if not each.fenced), default=-1)

    def nodes(self, call: ClientsRequest, *, include_fenced: bool = False) -> list[Node]:
        """The unfenced brokers (with ``include_fenced`` all registered brokers), sorted by id, with addresses on the
        client's listener."""
        nodes, brokers = self._nodes_of(call), self.state.image.brokers
        return [node for broker_id, node in nodes.items() if include_fenced or not brokers[broker_id].fenced]

    def node(self, call: ClientsRequest, broker_id: int) -> Node | None:
        """The unfenced broker with this id; None if there is no such broker."""
        broker = self.state.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else self._nodes_of(call).get(broker_id)

    def broker_address(self, broker_id: int) -> str | None:
        """host:port of a registered broker's gRPC listener for this gateway; None if there is no such broker."""
        broker = self.state.image.brokers.get(broker_id)
        if broker is None:
            return None
        known, address = self._addresses.get(broker_id, (None, None))
        if broker is not known:
            address = self.grpc_address(broker)
            self._addresses[broker_id] = broker, address
        return address

    def grpc_address(self, broker: BrokerImage) -> str | None:
        """host:port of the broker's listener for this gateway; None if the broker has no such listener."""
        endpoint = broker.endpoint(self.node_listener)
        return None if endpoint is None else join_address(endpoint.host, endpoint.port)

    def coordinator_node(self, call: ClientsRequest, kind: str, key: str) -> Node:
        """The broker that clients get as coordinator of ``key``: the leader of the key's shard, or another broker if
        the shard has no leader. The gateway may return any broker, because it serves coordinator requests on every
        port. Raises CoordinatorNotAvailableError if there are no brokers."""
        topic = self.topic(_SHARDS[kind])
        partitions = () if topic is None else topic.partitions
        shard = shard_of(key, len(partitions) or 1)
        node = self.node(call, partitions[shard].leader) if partitions else None
        if node is not None:
            return node
        nodes = self.nodes(call)
        if not nodes:
            raise CoordinatorNotAvailableError("no broker is available; retry")
        return nodes[shard % len(nodes)]

    def owner_address(self, kind: str, key: str) -> str:
        """host:port of the coordinator that owns the shard of ``key``. Raises CoordinatorNotAvailableError."""
        return address_of(owner_of(self.state.image, _SHARDS[kind], key).coordinator, self.node_listener)

    def _nodes_of(self, call: ClientsRequest) -> dict[int, Node]:
        brokers, gateways = self.state.image.brokers, self._gateways()
        if self._of[0] is not brokers or self._of[1] is not gateways:
            self._of = (brokers, gateways)
            self._nodes.clear()
        client = call.client
        key = (client.listener, client.host, call.client_id)
        nodes = self._nodes.get(key)
        if nodes is None:
            if len(self._nodes) >= _CLIENTS_MAX:
                self._nodes.clear()
            nodes = self._nodes[key] = nodes_of(brokers, gateways, *key)
        return nodes


def nodes_of(
    brokers: Mapping[int, BrokerImage], gateways: Sequence[GatewayEntry], listener: str, host: str, client_id: str
) -> dict[int, Node]:
    """Map each broker id to the address that one client gets. The result omits brokers for which no gateway has a port
    on ``listener``."""
    candidates = {broker_id: _candidates(broker, gateways, listener) for broker_id, broker in brokers.items()}
    shared_by = Counter(candidates.values())
    load: Counter[bytes] = Counter()
    salt = f"{host}\0{client_id}\0".encode("utf-8", "surrogatepass")
    by_id = {each.gateway_id: each.listeners[listener] for each in gateways if listener in each.listeners}
    nodes: dict[int, Node] = {}
    for broker_id in sorted(brokers):
        among = candidates[broker_id]
        most = math.ceil(shared_by[among] / max(len(among), 1))
        ranked = sorted(
            (gateway_id for gateway_id in among if broker_id in by_id[gateway_id].broker_ports),
            reverse=True,
            key=lambda gateway_id: (_weight(salt, broker_id, gateway_id), gateway_id),
        )
        chosen = next((each for each in ranked if load[each] < most), ranked[0] if ranked else None)
        if chosen is None:
            continue
        load[chosen] += 1
        ports = by_id[chosen]
        nodes[broker_id] = Node(broker_id, ports.host, ports.broker_ports[broker_id], brokers[broker_id].rack)
    return nodes


def _candidates(broker: BrokerImage, gateways: Sequence[GatewayEntry], listener: str) -> frozenset[bytes]:
    """The ids of the gateways through which clients may reach the broker: the gateways in the broker's rack that have a
    port for the broker, or, without such a gateway, all gateways with the listener."""
    with_listener = [each for each in gateways if listener in each.listeners]
    near = frozenset(
        each.gateway_id
        for each in with_listener
        if broker.rack is not None
        and each.rack == broker.rack
        and broker.broker_id in each.listeners[listener].broker_ports
    )
    return near or frozenset(each.gateway_id for each in with_listener)


def _weight(salt: bytes, broker_id: int, gateway_id: bytes) -> bytes:
    return hashlib.blake2b(salt + broker_id.to_bytes(4, "big") + gateway_id, digest_size=8).digest()
