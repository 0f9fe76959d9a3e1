"""A cluster in memory for the source's tests, with the content that a test sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from headrace_core.errors import (
    InconsistentTopicIdError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from headrace_core.types import TopicPartition
from headrace_spark.cluster import KnownTopic
from headrace_spark.planning import OffsetRange


class MemoryCluster:
    """``logs``: partition -> (start, end). ``times``: partition -> {milliseconds: first offset at or after that
    time}."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        self.times: dict[TopicPartition, dict[int, int]] = {}
        self.failures: list[Exception] = []
        self.batch_rows = 4
        self.topic_ids: dict[str, str] = {}
        self.unauthorized: set[str] = set()
        self.closed = False

    def topics(self, names: Collection[str] | None) -> dict[str, KnownTopic]:
        self._fail()
        if denied := self.unauthorized & set(names or ()):
            raise TopicAuthorizationFailedError(f"not authorized: {sorted(denied)}")
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.logs):
            if topic not in self.unauthorized if names is None else topic in names:
                found.setdefault(topic, []).append(partition)
        return {name: KnownTopic(self._id(name), tuple(numbers)) for name, numbers in found.items()}

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self._fail()
        found = {}
        for partition, timestamp in wanted.items():
            if partition not in self.logs:
                raise UnknownTopicOrPartitionError(f"{partition} does not exist")
            start, end = self.logs[partition]
            special = {-1: end, -2: start}
            found[partition] = special.get(timestamp, self.times.get(partition, {}).get(timestamp, -1))
        return found

    def read(self, wanted: OffsetRange, *, topic_id: str, columns: Sequence[str], timeout_ms: int) -> Iterator[Any]:
        import pyarrow as pa

        if topic_id not in ("", self._id(wanted.topic)):
            raise InconsistentTopicIdError(f"topic {wanted.topic!r} was deleted and created anew")
        start, end = self.logs[TopicPartition(wanted.topic, wanted.partition)]
        position = wanted.start
        if not start <= position <= end:
            raise OffsetOutOfRangeError(f"{position} is not within {start} to {end}")
        while position < min(wanted.end, end):
            until = min(position + self.batch_rows, wanted.end, end)
            made = {"offset": pa.array(range(position, until), pa.int64())}
            made |= {name: pa.array([name.encode()] * (until - position)) for name in columns if name != "offset"}
            yield pa.RecordBatch.from_arrays([made[name] for name in columns], names=list(columns))
            position = until
        if position < wanted.end:
            raise OffsetOutOfRangeError(f"the log ends at {end}")

    def close(self) -> None:
        self.closed = True

    def _id(self, topic: str) -> str:
        return self.topic_ids.get(topic, f"id of {topic}")

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def partition(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def options(**given: Any) -> dict[str, str]:
    """Options as Spark passes them, with names in lower case. By default the options name a bootstrap server and a
    topic."""
    base = {"headrace.bootstrap.servers": "127.0.0.1:9095"}
    if not {"subscribe", "subscribePattern", "assign"} & given.keys():
        base["subscribe"] = "t"
    return {name.replace("__", ".").lower(): str(value) for name, value in {**base, **given}.items()}
