"""The cluster as Kafka's clients see it: the brokers, with their addresses on the listener that a client uses."""

from __future__ import annotations

from typing import NamedTuple

from headrace_core.errors import CoordinatorNotAvailableError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import MetadataImage, TopicImage
from headrace_core.metadata.shards import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, address_of, owner_of, shard_of
from headrace_core.node.listeners import INTERNAL
from headrace_core.security.access import Authorization

GROUP, TRANSACTION = "group", "transaction"  #: Kinds of coordinators.
_SHARDS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}


class Node(NamedTuple):
    """A broker as a client sees it."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class Cluster:
    """The cluster's metadata for handlers. ``state`` has the applied metadata image. ``authorization``: the broker's
    authorizer; without one, every client may do everything."""

    def __init__(self, state: MetadataState, authorization: Authorization | None = None) -> None:
        self.state = state
        self.broker_id = -1  #: This broker's id, known after its registration.
        self.authorization = authorization or Authorization()
        self._brokers: object = None
        self._nodes: dict[str, dict[int, Node]] = {}

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
        """The broker id that clients get as the controller's id: the lowest unfenced broker, or -1 without one. It may
        be any broker, because every broker forwards requests to the controller."""
        brokers = self.state.image.brokers
        return min((each.broker_id for each in brokers.values() if not each.fenced), default=-1)

    def nodes(self, listener: str, *, include_fenced: bool = False) -> list[Node]:
        """The unfenced brokers (with ``include_fenced`` all registered brokers), sorted by id, with addresses on the
        client's listener."""
        nodes, brokers = self._nodes_of(listener), self.state.image.brokers
        return [node for broker_id, node in nodes.items() if include_fenced or not brokers[broker_id].fenced]

    def node(self, listener: str, broker_id: int) -> Node | None:
        """The unfenced broker with this id; None if there is no such broker."""
        broker = self.state.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else self._nodes_of(listener).get(broker_id)

    def coordinator_node(self, listener: str, kind: str, key: str) -> Node:
        """The broker that clients get as coordinator of ``key``: the leader of the key's shard, or another broker if
        the shard has no leader. It may be any broker, because every broker forwards requests to the coordinators.
        Raises CoordinatorNotAvailableError if there are no brokers."""
        topic = self.topic(_SHARDS[kind])
        partitions = () if topic is None else topic.partitions
        shard = shard_of(key, len(partitions) or 1)
        node = self.node(listener, partitions[shard].leader) if partitions else None
        if node is not None:
            return node
        nodes = self.nodes(listener)
        if not nodes:
            raise CoordinatorNotAvailableError("no broker is available; retry")
        return nodes[shard % len(nodes)]

    def owner_address(self, kind: str, key: str) -> str:
        """host:port of the coordinator that owns the shard of ``key``. Raises CoordinatorNotAvailableError."""
        return address_of(owner_of(self.state.image, _SHARDS[kind], key).coordinator, INTERNAL)

    def _nodes_of(self, listener: str) -> dict[int, Node]:
        brokers = self.state.image.brokers
        if self._brokers is not brokers:
            self._brokers = brokers
            self._nodes.clear()
        nodes = self._nodes.get(listener)
        if nodes is None:
            nodes = self._nodes[listener] = {
                broker_id: Node(broker_id, endpoint.host.strip("[]"), endpoint.port, brokers[broker_id].rack)
                for broker_id in sorted(brokers)
                if (endpoint := brokers[broker_id].endpoint(listener)) is not None
            }
        return nodes
