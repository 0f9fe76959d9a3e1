"""Publish the events, and verify later that all acknowledged records are in the log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition

from .dataset import Event
from .failover import LeaderDeath

TOPIC = "departures"
PARTITIONS = 6
REPLICAS = 3
#: Name of the result topic, which is compacted: the log keeps the latest record of each hour, airport and carrier.
RESULT_TOPIC = "departures_by_hour"
RESULT_PARTITIONS = 2

#: Event time of the closing markers, 2014-06-01: months after the last departure, so that every window closes.
MARKER_TIMESTAMP_MS = 1_401_580_800_000

#: Acknowledged records: maps each partition to a dictionary from offset to value.
Acknowledged = dict[int, dict[int, bytes]]


@dataclass(frozen=True, slots=True)
class Published:
    """Result of publishing. ``seconds`` is the time from the first send to the last acknowledgement of the events."""

    acknowledged: Acknowledged
    failed: int
    seconds: float

    @property
    def records(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


def create_topics(bootstrap_servers: str) -> None:
    """Create the topics of events and of results, without records; the topics of an earlier run are deleted first. The
    events are of 2013, so retention would delete them without ``retention.ms=-1``."""
    new = [
        NewTopic(TOPIC, partitions=PARTITIONS, replication_factor=REPLICAS, config={"retention.ms": "-1"}),
        NewTopic(
            RESULT_TOPIC,
            partitions=RESULT_PARTITIONS,
            replication_factor=REPLICAS,
            config={"cleanup.policy": "compact"},
        ),
    ]
    with Admin({"bootstrap.servers": bootstrap_servers}) as admin:
        there = set(admin.list_topics())
        if old := [topic.name for topic in new if topic.name in there]:
            admin.delete_topics(old)
        admin.create_topics(new)


#: After the leader was killed, only every _WATCHED_EVERY-th record has a callback: the callback notes the first
#: acknowledgement by a new leader.
_WATCHED_EVERY = 20


def publish(
    bootstrap_servers: str, events: Sequence[Event], on_progress: Callable[[int], None], death: LeaderDeath
) -> Published:
    """Send every event with its own future; ``on_progress(n)`` receives the number sent. ``death`` strikes halfway."""
    settings = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 20, "batch.size": 262_144}
    with Producer(settings) as producer:
        started = time.perf_counter()
        futures = []
        for index, event in enumerate(events):
            if index == len(events) // 2:
                death.strike()
            futures.append(producer.send(TOPIC, value=event.value, key=event.key, timestamp_ms=event.timestamp_ms))
            if death.has_struck and index % _WATCHED_EVERY == 0:
                futures[-1].add_done_callback(death.acknowledged)
            if index % 20_000 == 0:
                on_progress(index)
        producer.flush(timeout=120)
        seconds = time.perf_counter() - started
        on_progress(len(events))
        acknowledged: Acknowledged = {partition: {} for partition in range(PARTITIONS)}
        failed = 0
        for event, future in zip(events, futures, strict=True):
            if future.exception(timeout=0) is not None:
                failed += 1
                continue
            metadata = future.result(timeout=0)
            acknowledged[metadata.partition][metadata.offset] = event.value
    return Published(acknowledged, failed, seconds)


def publish_markers(bootstrap_servers: str) -> None:
    """Send one closing marker to each partition, later than every window."""
    value = json.dumps({"marker": "the year is over"}).encode()
    with Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"}) as producer:
        futures = [
            producer.send(TOPIC, value=value, partition=partition, timestamp_ms=MARKER_TIMESTAMP_MS)
            for partition in range(PARTITIONS)
        ]
        for future in futures:
            future.result(timeout=30)


def count_lost(bootstrap_servers: str, acknowledged: Mapping[int, Mapping[int, bytes]]) -> int:
    """Read the log back; returns how many acknowledged records are not in the log or differ at their offset."""
    with Consumer({"bootstrap.servers": bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        partitions = [TopicPartition(TOPIC, partition) for partition in acknowledged]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        missing = {partition: dict(records) for partition, records in acknowledged.items()}
        wanted = {tp: end for tp, end in ends.items() if end > 0}
        while any(consumer.position(tp) < end for tp, end in wanted.items()):
            table = consumer.fetch_arrow(timeout=10.0)
            if table.num_rows == 0:
                break  # no data for ten seconds: the rest counts as lost
            rows = zip(
                table["partition"].to_pylist(), table["offset"].to_pylist(), table["value"].to_pylist(), strict=True
            )
            for partition, offset, value in rows:
                if missing[partition].get(offset) == value:
                    del missing[partition][offset]
    return sum(map(len, missing.values()))
