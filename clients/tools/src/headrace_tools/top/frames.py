"""Frames of `headrace top`: the difference between two samples of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.cluster_models import TopicDescription
from headrace.group_models import GroupLag, GroupListing
from headrace.models import BrokerInfo
from headrace_core.lag import verdict, worst
from headrace_core.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a cluster at one moment, except for the time that the requests take. ``ends``: log ends of the
    partitions whose leader answered; ``sizes``: bytes of each partition's log on each broker. The fields ``..._at_s``
    have the times when a leader, a broker, or all coordinators answered, because slow nodes answer later. All other
    data are from the time ``steady_s``. ``errors``: which requests failed, and why."""

    at_ms: int
    steady_s: float
    cluster_id: str = ""
    controller_id: int = -1
    brokers: tuple[BrokerInfo, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    adding: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends_at_s: Mapping[int, float] = field(default_factory=dict)
    sizes: Mapping[tuple[TopicPartition, int], int] = field(default_factory=dict)
    sizes_at_s: Mapping[int, float] = field(default_factory=dict)
    groups: tuple[GroupListing, ...] = ()
    lags: tuple[GroupLag, ...] = ()
    lags_at_s: float | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker. ``leaders`` and ``replicas``: number of partitions that the broker leads or replicates;
    ``not_in_sync``: number of its replicas that lag. ``records_per_s`` and ``bytes_per_s``: rate of writes to the
    partitions that the broker leads."""

    id: int
    address: str
    fenced: bool
    draining: bool
    leaders: int
    replicas: int
    not_in_sync: int
    records_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic. ``records_per_s``: rate at which the topic's log ends grow; None: only one sample exists.
    ``bytes_per_s``: rate at which the leaders' logs grow on disk (a deletion by retention is not added)."""

    topic: str
    partitions: int
    records_per_s: float | None
    bytes_per_s: float | None
    under_replicated: int
    offline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group. ``lag``: records; ``lag_ms``: lag in time of the group's partition that is furthest behind (None:
    unknown); ``records_per_s``: rate of committed records (None: only one sample exists). ``status``: OK, WARN, REWIND,
    STALL or STOP, as `headrace lag` and `headrace doctor` judge. ``lag_history``: the group's lag in the last pictures
    up to the present picture, oldest first."""

    group: str
    state: str
    members: int
    lag: int | None
    lag_ms: int | None
    records_per_s: float | None
    status: str | None
    lag_history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One picture of `headrace top`, with the busiest topics and groups first."""

    timestamp_ms: int
    interval_s: float
    cluster_id: str
    controller_id: int
    partitions: int
    under_replicated: int
    offline: int
    records_per_s: float
    bytes_per_s: float
    total_lag: int
    brokers: tuple[BrokerRow, ...]
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]
    errors: tuple[str, ...]


HISTORY_MAX = 60  #: Number of pictures in the lag history of a group.


class LagHistory:
    """The lags of groups in the last pictures."""

    def __init__(self) -> None:
        self._lags: dict[str, tuple[int, ...]] = {}

    def add(self, frame: Frame) -> Frame:
        """The frame, with the lag history of each of its groups. The history of a group that no longer exists is
        dropped."""
        self._lags = {
            row.group: (*self._lags.get(row.group, ()), *(() if row.lag is None else (row.lag,)))[-HISTORY_MAX:]
            for row in frame.groups
        }
        rows = tuple(replace(row, lag_history=self._lags[row.group]) for row in frame.groups)
        return replace(frame, groups=rows)


def frame_of(before: Sample, now: Sample) -> Frame:
    records, grown = _rates(before, now)
    topics = tuple(sorted((_topic(topic, now, records, grown) for topic in now.topics), key=_busiest))
    groups = tuple(sorted(_groups(before, now), key=lambda row: (-(row.lag or 0), row.group)))
    return Frame(
        timestamp_ms=now.at_ms,
        interval_s=_apart(before.steady_s, now.steady_s),
        cluster_id=now.cluster_id,
        controller_id=now.controller_id,
        partitions=sum(len(topic.partitions) for topic in now.topics),
        under_replicated=sum(row.under_replicated for row in topics),
        offline=sum(row.offline for row in topics),
        records_per_s=sum(records.values()),
        bytes_per_s=sum(grown.values()),
        total_lag=sum(row.lag or 0 for row in groups),
        brokers=tuple(_broker(broker, now, records, grown) for broker in now.brokers),
        topics=topics,
        groups=groups,
        errors=now.errors,
    )


def _apart(before_s: float, now_s: float) -> float:
    return max(now_s - before_s, 1e-9)


def _rates(before: Sample, now: Sample) -> tuple[dict[TopicPartition, float], dict[TopicPartition, float]]:
    """The records per second and the bytes per second of each partition, unless its topic was created again between the
    samples. The byte rate compares two sizes of the current leader's log; the rates of records and bytes use the times
    at which the leaders answered. A partition has no rate if its log end has gone back (unclean election), or its log
    has become smaller (retention)."""
    led_by = {
        TopicPartition(topic.name, part.partition): part.leader for topic in before.topics for part in topic.partitions
    }
    ids = {topic.name: topic.topic_id for topic in before.topics}
    records, grown = {}, {}
    for topic in now.topics:
        if ids.get(topic.name) != topic.topic_id:
            continue
        for part in topic.partitions:
            key = TopicPartition(topic.name, part.partition)
            if key in before.ends and key in now.ends and now.ends[key] >= before.ends[key]:
                seen_s = before.ends_at_s.get(led_by.get(key, -1), before.steady_s)
                seconds = _apart(seen_s, now.ends_at_s.get(part.leader, now.steady_s))
                records[key] = (now.ends[key] - before.ends[key]) / seconds
            there = (key, part.leader)
            if there in before.sizes and there in now.sizes and now.sizes[there] >= before.sizes[there]:
                seen_s = before.sizes_at_s.get(part.leader, before.steady_s)
                seconds = _apart(seen_s, now.sizes_at_s.get(part.leader, now.steady_s))
                grown[key] = (now.sizes[there] - before.sizes[there]) / seconds
    return records, grown


def _topic(
    topic: TopicDescription,
    now: Sample,
    records: Mapping[TopicPartition, float],
    grown: Mapping[TopicPartition, float],
) -> TopicRow:
    keys = [TopicPartition(topic.name, part.partition) for part in topic.partitions]
    return TopicRow(
        topic=topic.name,
        partitions=len(topic.partitions),
        records_per_s=_sum(records, keys),
        bytes_per_s=_sum(grown, keys),
        under_replicated=sum(
            bool(set(part.replicas) - set(part.isr) - now.adding.get(key, frozenset()))
            for key, part in zip(keys, topic.partitions, strict=True)
        ),
        offline=sum(part.leader < 0 for part in topic.partitions),
    )


def _busiest(row: TopicRow) -> tuple[float, float, str]:
    return -(row.records_per_s or 0), -(row.bytes_per_s or 0), row.topic


def _broker(
    broker: BrokerInfo, now: Sample, records: Mapping[TopicPartition, float], grown: Mapping[TopicPartition, float]
) -> BrokerRow:
    parts = [(TopicPartition(topic.name, part.partition), part) for topic in now.topics for part in topic.partitions]
    led = [key for key, part in parts if part.leader == broker.broker_id]
    return BrokerRow(
        id=broker.broker_id,
        address=broker.address,
        fenced=broker.fenced,
        draining=broker.draining,
        leaders=len(led),
        replicas=sum(broker.broker_id in part.replicas for _, part in parts),
        not_in_sync=sum(broker.broker_id in part.replicas and broker.broker_id not in part.isr for _, part in parts),
        records_per_s=_sum(records, led) or 0.0,
        bytes_per_s=_sum(grown, led) or 0.0,
    )


def _groups(before: Sample, now: Sample) -> Iterable[GroupRow]:
    seconds = _apart(
        before.steady_s if before.lags_at_s is None else before.lags_at_s,
        now.steady_s if now.lags_at_s is None else now.lags_at_s,
    )
    lag_before = {lag.group_id: lag for lag in before.lags}
    lag_now = {lag.group_id: lag for lag in now.lags}
    for group in now.groups:
        lag, earlier = lag_now.get(group.group_id), lag_before.get(group.group_id)
        yield GroupRow(
            group=group.group_id,
            state=group.state,
            members=group.members,
            lag=None if lag is None else lag.total_lag,
            lag_ms=None
            if lag is None
            else max((p.lag_ms for p in lag.partitions if p.lag_ms is not None), default=None),
            records_per_s=None if lag is None or earlier is None else _committed(earlier, lag) / seconds,
            status=None
            if lag is None
            else worst(
                verdict(part.status, lag=part.lag, complete=part.complete, is_empty=group.state == "empty")
                for part in lag.partitions
            ),
        )


def _committed(before: GroupLag, now: GroupLag) -> int:
    """How many more records the group has committed; an offset that went back adds 0."""
    offsets = {(part.topic, part.partition): part.committed_offset for part in before.partitions}
    return sum(
        max(0, part.committed_offset - offsets.get((part.topic, part.partition), part.committed_offset))
        for part in now.partitions
    )


def _sum(rates: Mapping[TopicPartition, float], keys: Iterable[TopicPartition]) -> float | None:
    known = [rates[key] for key in keys if key in rates]
    return sum(known) if known else None
