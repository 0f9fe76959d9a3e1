"""The broker's metrics: traffic, replicas, logs and disks, read when a scrape arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from headrace_core.log import PartitionLog
from headrace_core.metrics import catalog
from headrace_core.metrics.model import Metric, Row, Rows
from headrace_core.metrics.node import NodeMetrics
from headrace_core.telemetry import IsrExpanded, IsrShrunk
from headrace_core.types import TopicPartition

from .context import BrokerContext
from .leader_replica import LeaderReplica
from .storage import Storage

#: A transaction is late when it is open this much longer than transaction.max.timeout.ms, in ms (as in Kafka).
LATE_AFTER_MS = 5 * 60_000
#: Kafka's states of a broker (kafka.server:type=KafkaServer,name=BrokerState).
_STARTING, _RUNNING = 1, 3


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
        found: Counter[Metric] = Counter()
        behind: dict[int, int] = {}
        now_ms = self._context.clock.now_ms()
        of_partitions = len(led) <= self._partitions_max
        for (topic, partition), replica in led:
            leader = replica.leader
            yield None
            in_sync, least = len(leader.isr), min(leader.min_insync, len(leader.replicas))
            found[catalog.UNDER_REPLICATED] += in_sync < len(leader.replicas)
            found[catalog.UNDER_MIN_ISR] += leader.is_below_min_insync
            found[catalog.AT_MIN_ISR] += in_sync == least
            found[catalog.LATE_TRANSACTIONS] += self._is_late(replica, now_ms)
            for progress in leader.progress[1:]:
                lag = max(0, leader.log_end - progress.log_end)
                behind[progress.broker_id] = max(behind.get(progress.broker_id, 0), lag)
            if of_partitions:
                yield Row(catalog.CURRENT_OFFSET, (topic, partition), leader.high_watermark)
                yield Row(catalog.OLDEST_OFFSET, (topic, partition), leader.log_start)
        for metric in (
            catalog.UNDER_REPLICATED,
            catalog.UNDER_MIN_ISR,
            catalog.AT_MIN_ISR,
            catalog.LATE_TRANSACTIONS,
        ):
            yield Row(metric, (), found[metric])
        for broker_id, lag in sorted(behind.items()):
            yield Row(catalog.FOLLOWER_LAG, (broker_id,), lag)
        yield Row(catalog.LEADER_COUNT, (), len(led))
        yield Row(catalog.PARTITION_COUNT, (), len(led) + len(table.followed))
        yield Row(catalog.OFFLINE_REPLICAS, (), len(table.failed))
        is_refusing = table.refusal is not None
        yield Row(catalog.FENCED, (), int(is_refusing))
        yield Row(catalog.BROKER_STATE, (), _STARTING if is_refusing else _RUNNING)

    def _is_late(self, replica: LeaderReplica, now_ms: int) -> bool:
        """Whether the oldest open transaction of the partition is late, by the time of its producer's last record (as
        in Kafka)."""
        last_ms = replica.log.producers.oldest_open_timestamp_ms()
        return last_ms is not None and now_ms - last_ms > self._late_ms

    def _logs(self) -> Rows:
        logs = self._storage.logs()
        of_partitions = len(logs) <= self._partitions_max
        bytes_of: Counter[str] = Counter()
        for partition, log in logs:
            yield None
            if log.is_closed:
                continue
            bytes_of[partition.topic] += log.size_bytes
            if of_partitions:
                yield from _log_rows(partition, log)
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
        yield Row(catalog.PRODUCE_IN_FLIGHT, (), context.budget.used)
        yield Row(catalog.PRODUCE_IN_FLIGHT_MAX, (), context.budget.limit)
        yield Row(catalog.UNREAD_ANSWERS, (), context.unread.used)
        yield Row(catalog.CLIENT_STREAMS, (), len(context.streams))


def _log_rows(partition: TopicPartition, log: PartitionLog) -> Rows:
    yield Row(catalog.LOG_SIZE, partition, log.size_bytes)
    yield Row(catalog.LOG_START, partition, log.log_start_offset)
    yield Row(catalog.LOG_END, partition, log.log_end_offset)
    yield Row(catalog.LOG_SEGMENTS, partition, log.segment_count)
