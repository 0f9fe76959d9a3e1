"""The Spark source's access to a cluster through the SDK: metadata and offsets on the driver, ranges of records in the
workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from headrace import Admin, Consumer
from headrace.fetch import OffsetRange as ClientRange
from headrace.fetch import RangeReader
from headrace.settings import ADMIN
from headrace_core.errors import InconsistentTopicIdError, UnknownTopicOrPartitionError
from headrace_core.types import TopicPartition

from .cluster import Cluster, KnownTopic
from .group_progress import Group
from .offsets import EARLIEST, LATEST
from .planning import OffsetRange
from .sink_topics import KEPT
from .tracing import ReadTraces, flush_spans, task_tracer

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of log for one Arrow batch: 35,000 rows of 100 bytes. Smaller Arrow batches need more messages to the JVM;
#: larger Arrow batches do not fit into the CPU caches (bench/spark.py).
ARROW_BATCH_BYTES = 4 << 20
#: Maximum number of rows in one Arrow batch, for small records.
ARROW_BATCH_ROWS = 100_000


class SdkCluster:
    """Implements Cluster (see cluster.py) with one Admin and one Consumer, which are opened at first use."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = {**config, "allow.auto.create.topics": "false"}
        self._admin: Admin | None = None
        self._consumer: Consumer | None = None

    def topics(self, names: Collection[str] | None) -> dict[str, KnownTopic]:
        admin = self._admins()
        names = admin.list_topics() if names is None else sorted(names)
        if not names:
            return {}
        try:
            described = admin.describe_topics(names)
        except UnknownTopicOrPartitionError:  # one of the topics does not exist, so ask for each topic separately
            described = []
            for name in names:
                with contextlib.suppress(UnknownTopicOrPartitionError):
                    described += admin.describe_topics([name])
        return {
            topic.name: KnownTopic(topic.topic_id.hex(), tuple(partition.partition for partition in topic.partitions))
            for topic in described
        }

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        consumer = self._consumers()
        special = {LATEST: consumer.end_offsets, EARLIEST: consumer.beginning_offsets}
        found: dict[TopicPartition, int] = {}
        for timestamp, ask in special.items():
            partitions = [partition for partition, asked in wanted.items() if asked == timestamp]
            if partitions:
                found |= ask(partitions)
        times = {partition: asked for partition, asked in wanted.items() if asked not in special}
        if times:
            answers = consumer.offsets_for_times(times)
            found |= {p: -1 if (answer := answers.get(p)) is None else answer.offset for p in times}
        return found

    def read(
        self, wanted: OffsetRange, *, topic_id: str, columns: Sequence[str], timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        settings: dict[str, Any] = {**self._config, "default.api.timeout.ms": timeout_ms}
        tracer = task_tracer(self._config)
        traces = None if tracer is None else ReadTraces(tracer, wanted.topic, wanted.partition)
        with RangeReader([ClientRange(*wanted)], settings) as reader:
            batches = reader.arrow_batches(columns=list(columns), max_bytes=ARROW_BATCH_BYTES)
            for batch in batches:
                found = reader.topic_id(wanted.topic)
                if topic_id and found is not None and found.hex() != topic_id:
                    raise InconsistentTopicIdError(f"topic {wanted.topic!r} was deleted and created again")
                if traces is not None:
                    traces.read(batch)
                for row in range(0, batch.num_rows, ARROW_BATCH_ROWS):
                    yield batch.slice(row, ARROW_BATCH_ROWS)
        flush_spans()

    def close(self) -> None:
        for client in (self._admin, self._consumer):
            if client is not None:
                client.close()
        self._admin = self._consumer = None

    def _admins(self) -> Admin:
        if self._admin is None:
            self._admin = Admin({key: value for key, value in self._config.items() if key in ADMIN.keys})
        return self._admin

    def _consumers(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._config)
        return self._consumer


class SdkGroup:
    """Implements Group (see group_progress.py) with a Consumer that only commits."""

    def __init__(self, config: Mapping[str, str], group_id: str) -> None:
        self._consumer = Consumer({**config, "group.id": group_id, "enable.auto.commit": "false"})

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Future[None]:
        return self._consumer.commit_async(offsets)

    def close(self) -> None:
        self._consumer.close()


def open_group(config: Mapping[str, str], group_id: str) -> Group:
    """Create a group client, which the caller must close. The client connects at its first commit."""
    return SdkGroup(config, group_id)


def open_cluster(config: Mapping[str, str]) -> Cluster:
    """Create a cluster client, which the caller must close."""
    return SdkCluster(config)


_of_worker: dict[tuple[int, frozenset[tuple[str, str]]], SdkCluster] = {}


def worker_cluster(config: Mapping[str, str]) -> Cluster:
    """The cluster client of this worker process, which runs one task after the other.

    The last KEPT cluster clients stay open, because Spark ends its workers with a signal. Earlier cluster clients, such
    as clients with an old delegation token, are closed. The cache key includes the process id, because workers are
    forks.
    """
    key = (os.getpid(), frozenset(config.items()))
    found = _of_worker.pop(key, None) or SdkCluster(config)
    while len(_of_worker) >= KEPT:
        _of_worker.pop(next(iter(_of_worker))).close()
    _of_worker[key] = found
    return found
