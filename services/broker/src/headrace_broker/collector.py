"""The broker's metrics: traffic, replicas, logs and disks, read when a scrape arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_core.errors import ServerShuttingDownError
from headrace_core.log import PartitionLog
from headrace_core.metrics import catalog
from headrace_core.metrics.model import Column, Metric, Row, Rows, in_columns
from headrace_core.metrics.node import NodeMetrics
from headrace_core.telemetry import IsrExpanded, IsrShrunk
from headrace_core.types import TopicPartition

from .context import BrokerContext
from .leader_replica import LeaderReplica
from .storage import Storage

#: A transaction counts as late after transaction.max.timeout.ms plus this number of milliseconds (as in Kafka).
LATE_AFTER_MS = 5 * 60_000
#: Kafka's states of a broker (kafka.server:type=KafkaServer,name=BrokerState).
_STARTING, _RUNNING, _STOPPING = 1, 3, 6


class BrokerCollector:
    """``collect`` yields the rows of a scrape. ``values``: the broker's configuration."""

    def __init__(
        self, context: BrokerContext, storage: Storage, exporter: NodeMetrics, values: Mapping[str, Any]
    ) -> None:
        self._context = context
        self._storage = storage
        self._exporter = exporter
        self._late_ms = values["transaction.max.timeout.ms"] + LATE_AFTER_MS
        self._partitions_max = exporter.settings.partitions_max
        exporter.add_calls(context.metrics.client_times)
        exporter.add_calls(context.metrics.internal_times)

    def collect(self) -> Rows:
        self._storage.traffic.retire(self._storage.topics())
        yield from self._traffic()
        yield from self._replicas()
        yield from self._logs()
        yield from self._disks()
        yield from self._credit()

    def _traffic(self) -> Rows:
        traffic, counted = self._storage.traffic, self._context.metrics
        total = traffic.total()
        of_topics = list(traffic.topics.items()) if len(traffic.topics) <= self._partitions_max else []
        for metric, name in (
            (catalog.MESSAGES_IN, "records_in"),
            (catalog.BYTES_IN, "bytes_in"),
            (catalog.BYTES_OUT, "bytes_out"),
            (catalog.RECORDS_OUT, "records_out"),
        ):
            yield Row(metric, (), getattr(total, name))
            for topic, each in of_topics:
                yield Row(metric, (topic,), getattr(each, name))
        counters: tuple[tuple[Metric, float], ...] = (
            (catalog.PRODUCE_REQUESTS, counted.produce_requests.value),
            (catalog.FETCH_REQUESTS, counted.fetch_requests.value),
            (catalog.FAILED_PRODUCES, counted.produce_errors.value),
            (catalog.FAILED_FETCHES, counted.fetch_errors.value),
            (catalog.REPLICATION_OUT, counted.replication_bytes.value),
            (catalog.REPLICATION_IN, counted.metrics.counter("replication-bytes-in").value),
            (catalog.ISR_SHRINKS, self._exporter.events_of(IsrShrunk)),
            (catalog.ISR_EXPANDS, self._exporter.events_of(IsrExpanded)),
            (catalog.ISR_FAILURES, counted.isr_failures.value),
        )
        for metric, value in counters:
            yield Row(metric, (), value)
        quotas = self._context.quotas
        for quota, count in quotas.throttled.items():
            yield Row(catalog.QUOTA_THROTTLES, (quota,), count)
            yield Row(catalog.QUOTA_THROTTLE_SECONDS, (quota,), quotas.throttled_ms[quota] / 1000)

    def _replicas(self) -> Rows:
        table = self._context.partitions
        led = list(table.led.items())
        under = under_min = at_min = late = 0
        behind: dict[int, int] = {}
        now_ms = self._context.clock.now_ms()
        of_partitions = len(led) <= self._partitions_max
        for some in in_columns(led):
            yield None
            for _, replica in some:
                leader = replica.leader
                in_sync, replicas = len(leader.isr), len(leader.replicas)
                least = min(leader.min_insync, replicas)
                under += in_sync < replicas and self._lacks_replica(replica)
                under_min += leader.is_below_min_insync
                at_min += in_sync == least
                late += self._is_late(replica, now_ms)
                end = leader.log_end
                for broker_id, follower_end in leader.follower_ends:
                    behind[broker_id] = max(behind.get(broker_id, 0), end - follower_end)
            if of_partitions:
                yield from _leader_columns(some)
        yield Row(catalog.UNDER_REPLICATED, (), under)
        yield Row(catalog.UNDER_MIN_ISR, (), under_min)
        yield Row(catalog.AT_MIN_ISR, (), at_min)
        yield Row(catalog.LATE_TRANSACTIONS, (), late)
        for broker_id, lag in sorted(behind.items()):
            yield Row(catalog.FOLLOWER_LAG, (broker_id,), lag)
        yield Row(catalog.LEADER_COUNT, (), len(led))
        yield Row(catalog.PARTITION_COUNT, (), len(led) + len(table.followed))
        yield Row(catalog.OFFLINE_REPLICAS, (), len(table.failed))
        yield Row(catalog.REASSIGNING_PARTITIONS, (), self._reassigning())
        refusal = table.refusal
        yield Row(catalog.FENCED, (), int(refusal is not None))
        state = _RUNNING if refusal is None else _STARTING
        yield Row(catalog.BROKER_STATE, (), _STOPPING if isinstance(refusal, ServerShuttingDownError) else state)

    def _lacks_replica(self, replica: LeaderReplica) -> bool:
        """Whether a replica is out of sync, except replicas that a reassignment only adds (as in Kafka): a reassignment
        is no failure."""
        leader = replica.leader
        state = self._context.partitions.state_of(leader.partition)
        adding = () if state is None else state.adding
        return bool(set(leader.replicas) - set(leader.isr) - set(adding))

    def _reassigning(self) -> int:
        """Number of partitions that this broker leads and that are being reassigned."""
        table, found = self._context.partitions, 0
        for topic_id, number in table.image.ledger.reassigning:
            topic = table.image.topics.get(topic_id)
            found += topic is not None and TopicPartition(topic.name, number) in table.led
        return found

    def _is_late(self, replica: LeaderReplica, now_ms: int) -> bool:
        """Whether the partition has an open transaction that is late, judged by the timestamp of the producer's last
        record (as in Kafka)."""
        last_ms = replica.log.producers.oldest_open_timestamp_ms()
        return last_ms is not None and now_ms - last_ms > self._late_ms

    def _logs(self) -> Rows:
        logs = self._storage.logs()
        of_partitions = len(logs) <= self._partitions_max
        bytes_of: Counter[str] = Counter()
        for some in in_columns(logs):
            yield None
            open_ones = [(partition, log) for partition, log in some if not log.is_closed]
            sizes = [log.size_bytes for _, log in open_ones]
            for (partition, _), size in zip(open_ones, sizes, strict=True):
                bytes_of[partition.topic] += size
            if of_partitions:
                yield from _log_columns(open_ones, sizes)
        if len(bytes_of) <= self._partitions_max:
            for topic, size in bytes_of.items():
                yield Row(catalog.TOPIC_BYTES, (topic,), size)
        else:
            yield Row(catalog.TOPIC_BYTES, (), sum(bytes_of.values()))

    def _disks(self) -> Rows:
        offline = 0
        for held in self._storage.held_directories():
            is_offline = held.failure is not None
            offline += is_offline
            where = (held.root,)
            yield Row(catalog.DIR_OFFLINE, where, int(is_offline))
            if held.writer is None:
                continue
            writer, space = held.writer, held.space
            yield Row(catalog.FSYNC, where, writer.flush_seconds)
            yield Row(catalog.COMMIT_APPENDS, where, writer.turn_appends)
            yield Row(catalog.COMMIT_BYTES, where, writer.bytes_written)
            yield Row(catalog.WRITE_QUEUE, where, writer.pending_bytes)
            yield Row(catalog.FLUSH_MS, where, self._exporter.recent(writer.flush_seconds, 1_000.0))
            if space is not None and not is_offline:
                held.measure()
                yield Row(catalog.DIR_FREE, where, space.free_bytes)
                yield Row(catalog.DIR_TOTAL, where, space.total_bytes)
                yield Row(catalog.DIR_RESERVE, where, space.reserve_bytes)
                yield Row(catalog.DIR_FULL, where, int(space.is_full))
        yield Row(catalog.OFFLINE_DIRECTORIES, (), offline)

    def _credit(self) -> Rows:
        context = self._context
        yield Row(catalog.PRODUCE_IN_FLIGHT, (), context.flow.in_memory)
        yield Row(catalog.PRODUCE_IN_FLIGHT_MAX, (), context.flow.in_memory_max)
        yield Row(catalog.UNREAD_ANSWERS, (), context.flow.unread)
        yield Row(catalog.CLIENT_STREAMS, (), context.client_streams)
        yield Row(catalog.PURGATORY, ("Produce",), len(context.flow.deadlines))
        yield Row(catalog.PURGATORY, ("Fetch",), sum(each.is_waiting for each in list(context.fetches)))


def _leader_columns(led: Sequence[tuple[TopicPartition, LeaderReplica]]) -> list[Column]:
    """The metric columns for the partitions in ``led``, with the present values."""
    partitions, leaders = [partition for partition, _ in led], [replica.leader for _, replica in led]
    return [
        Column(catalog.CURRENT_OFFSET, partitions, [leader.high_watermark for leader in leaders]),
        Column(catalog.OLDEST_OFFSET, partitions, [leader.log_start for leader in leaders]),
    ]


def _log_columns(logs: Sequence[tuple[TopicPartition, PartitionLog]], sizes: Sequence[int]) -> list[Column]:
    """The metric columns for the open logs in ``logs``, with the present values."""
    partitions = [partition for partition, _ in logs]
    return [
        Column(catalog.LOG_SIZE, partitions, sizes),
        Column(catalog.LOG_START, partitions, [log.log_start_offset for _, log in logs]),
        Column(catalog.LOG_END, partitions, [log.log_end_offset for _, log in logs]),
        Column(catalog.LOG_SEGMENTS, partitions, [log.segment_count for _, log in logs]),
    ]
