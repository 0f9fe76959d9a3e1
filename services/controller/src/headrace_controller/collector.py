"""The controller's metrics about the cluster's metadata and about the quorum.

Every controller reports counts of the cluster, as in Kafka. Only the active controller reports individual topics and
partitions, and the metrics named as in kafka_exporter, so that Prometheus has only one series of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headrace_core.metadata import MetadataImage, PartitionImage, TopicImage
from headrace_core.metrics import catalog
from headrace_core.metrics.model import Column, Metric, Row, Rows, in_columns
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.listeners import CLIENT
from headrace_core.telemetry import UncleanLeaderElected

from .driver import ControllerDriver
from .raft import ReplicaStatus, Role, quorum_status
from .storage import MetadataStorage


class ControllerCollector:
    """``collect`` yields the rows of a scrape."""

    def __init__(
        self, driver: ControllerDriver, storage: MetadataStorage, directory: str, exporter: NodeMetrics
    ) -> None:
        self._driver = driver
        self._storage = storage
        self._directory = directory
        self._exporter = exporter
        self._partitions_max = exporter.settings.partitions_max
        self._counted: Mapping[bytes, TopicImage] | None = None  # the topics from which ``_counts`` was computed
        self._counts: list[tuple[Metric, int]] = []
        self._shown: Mapping[bytes, TopicImage] | None = None  # the topics from which ``_rows`` was computed
        self._rows: list[Row | Column] = []

    def collect(self) -> Rows:
        image = self._driver.image
        is_active = self._driver.controller.is_active
        yield Row(catalog.ACTIVE_CONTROLLER, (), int(is_active))
        yield Row(catalog.UNCLEAN_ELECTIONS, (), self._exporter.events_of(UncleanLeaderElected))
        yield from self._quorum()
        yield from self._cluster(image)
        if is_active:
            yield from self._brokers(image)
            yield from self._topics(image)

    def _quorum(self) -> Rows:
        controller = self._driver.controller
        status = quorum_status(controller.raft)
        tick_s = controller.settings.tick_ms / 1000
        yield Row(catalog.RAFT_LEADER, (), status.leader)
        yield Row(catalog.RAFT_EPOCH, (), status.term)
        yield Row(catalog.RAFT_COMMITTED, (), status.committed)
        yield Row(catalog.RAFT_END, (), status.log_end_offset)
        yield Row(catalog.RAFT_VOTERS, (), len(status.voter_set))
        is_voter = controller.key in status.voter_set
        state = controller.role.name.lower() if is_voter or controller.role is not Role.FOLLOWER else "observer"
        yield Row(catalog.RAFT_STATE, (state,), 1)
        yield Row(catalog.QUORUM_REQUESTS, (), controller.queued)
        yield Row(catalog.LAST_APPLIED, (), self._driver.image.next_offset - 1)
        yield Row(catalog.LAST_COMMITTED, (), status.committed - 1)
        yield Row(catalog.FSYNC, (self._directory,), self._storage.append_seconds)
        for kind, replicas in (("voter", status.voters), ("observer", status.observers)):
            for replica in replicas:
                labels = replica.key.node_id, kind
                yield Row(catalog.VOTER_LAG_RECORDS, labels, _missing(replica, status.log_end_offset))
                ago = replica.caught_up_ticks_ago  # None: the replica has not answered this leader at all
                yield Row(catalog.VOTER_LAG_SECONDS, labels, math.inf if ago is None else ago * tick_s)

    def _cluster(self, image: MetadataImage) -> Rows:
        if self._counted is not image.topics:
            yield from self._count(image.topics)
        active = sum(not broker.fenced for broker in image.brokers.values())
        for metric, value in (
            (catalog.ACTIVE_BROKERS, active),
            (catalog.FENCED_BROKERS, len(image.brokers) - active),
            (catalog.TOPIC_COUNT, len(image.topics)),
            *self._counts,
            (catalog.REASSIGNMENTS, len(image.ledger.reassigning)),
        ):
            yield Row(metric, (), value)

    def _count(self, topics: Mapping[bytes, TopicImage]) -> Rows:
        """Count the partitions by their state; the caller repeats the count only when the map of topics has changed."""
        offline = under = imbalanced = partitions = 0
        for topic in list(topics.values()):
            for part in topic.partitions:
                yield None
                partitions += 1
                offline += part.leader < 0
                under += _lacks(part)
                imbalanced += part.leader != part.replicas[0]
        self._counts = [
            (catalog.GLOBAL_PARTITIONS, partitions),
            (catalog.OFFLINE_PARTITIONS, offline),
            (catalog.IMBALANCE, imbalanced),
            (catalog.CLUSTER_UNDER_REPLICATED, under),
        ]
        self._counted = topics

    def _brokers(self, image: MetadataImage) -> Rows:
        yield Row(catalog.BROKERS, (), sum(not broker.fenced for broker in image.brokers.values()))
        for broker in sorted(image.brokers.values(), key=lambda each: each.broker_id):
            endpoint = broker.endpoint(CLIENT)
            address = "" if endpoint is None else f"{endpoint.host}:{endpoint.port}"
            yield Row(catalog.BROKER_INFO, (broker.broker_id, address), 1)

    def _topics(self, image: MetadataImage) -> Rows:
        if self._shown is not image.topics:
            rows: list[Row | Column] = []
            for row in self._made(list(image.topics.values())):
                if row is None:
                    yield None
                else:
                    rows.append(row)
            self._shown, self._rows = image.topics, rows
        yield from self._rows

    def _made(self, topics: list[TopicImage]) -> Rows:
        if len(topics) > self._partitions_max:
            return
        if sum(len(topic.partitions) for topic in topics) <= self._partitions_max:
            named = [((topic.name, number), part) for topic in topics for number, part in enumerate(topic.partitions)]
            for some in in_columns(named):
                yield None
                yield from _partition_columns(some)
        for topic in topics:
            under = offline = 0
            for part in topic.partitions:
                yield None
                under += _lacks(part)
                offline += part.leader < 0
            yield Row(catalog.TOPIC_PARTITIONS, (topic.name,), len(topic.partitions))
            yield Row(catalog.TOPIC_UNDER_REPLICATED, (topic.name,), under)
            yield Row(catalog.TOPIC_OFFLINE, (topic.name,), offline)


def _partition_columns(named: Sequence[tuple[tuple[str, int], PartitionImage]]) -> list[Column]:
    labels, parts = [label for label, _ in named], [part for _, part in named]
    return [
        Column(catalog.PARTITION_LEADER, labels, [part.leader for part in parts]),
        Column(catalog.PARTITION_REPLICAS, labels, [len(part.replicas) for part in parts]),
        Column(catalog.PARTITION_ISR, labels, [len(part.isr) for part in parts]),
        Column(catalog.PREFERRED, labels, [part.leader == part.replicas[0] for part in parts]),
        Column(catalog.PARTITION_UNDER_REPLICATED, labels, [_lacks(part) for part in parts]),
    ]


def _lacks(part: PartitionImage) -> bool:
    """Whether a replica is out of sync; replicas that a reassignment adds do not count."""
    return bool(set(part.replicas) - set(part.isr) - set(part.adding))


def _missing(replica: ReplicaStatus, end: int) -> int:
    """Number of records that the replica lacks; all records of the log while the leader does not know up to which
    offset the logs agree."""
    return end - max(replica.match, 0)
