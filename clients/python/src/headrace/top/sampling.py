"""The questions of `headrace top`, through Admin. What cannot be asked is said in the sample; the rest is asked on."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from ..models import TopicDescription
from .frames import Sample

if TYPE_CHECKING:
    from ..admin import Admin

T = TypeVar("T")


class Sampling:
    """``timeout_s``: how long one question may take; a node that stands still costs that once for each sample."""

    def __init__(self, client: Admin, *, timeout_s: float = 4.0) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._errors: list[str] = []

    def sample(self) -> Sample:
        """Blocks for some round trips. HeadraceError when nobody says what the cluster is."""
        client, timeout_s = self._client, self._timeout_s
        self._errors = []
        cluster = client.describe_cluster(include_fenced_brokers=True, timeout=timeout_s)
        topics = tuple(self._ask("topics", lambda: client.describe_topics(timeout=timeout_s)) or ())
        steady_s, ends = time.monotonic(), self._ends(topics)
        moving = self._ask("reassignments", lambda: client.list_partition_reassignments(timeout=timeout_s)) or {}
        groups = tuple(self._ask("groups", lambda: client.list_groups(timeout=timeout_s)) or ())
        names = [group.group_id for group in groups]
        lags = self._ask("lag", lambda: client.describe_lag(names, raise_errors=False, timeout=timeout_s))
        return Sample(
            at_ms=time.time_ns() // 1_000_000,
            steady_s=steady_s,
            cluster_id=cluster.cluster_id,
            controller_id=cluster.controller_id,
            brokers=cluster.brokers,
            topics=topics,
            adding={partition: frozenset(move.adding_replicas) for partition, move in moving.items()},
            ends=ends,
            sizes=self._sizes([broker.broker_id for broker in cluster.brokers if not broker.fenced]),
            groups=groups,
            lags=tuple(lag for lag in lags or () if lag.error is None),
            errors=tuple(self._errors),
        )

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except HeadraceError as error:
            self._errors.append(f"{what}: {error.message} [{error.code}]")
            return None

    def _ends(self, topics: tuple[TopicDescription, ...]) -> dict[TopicPartition, int]:
        """One question for each leader: one that is gone costs only its own partitions."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic in topics:
            for part in topic.partitions:
                if part.leader >= 0:
                    by_leader[part.leader].append(TopicPartition(topic.name, part.partition))
        found = {}
        for leader, partitions in by_leader.items():
            told = self._ask(
                f"offsets at broker {leader}",
                lambda some=partitions: self._client.list_offsets(  # type: ignore[misc]
                    dict.fromkeys(some, "latest"), timeout=self._timeout_s
                ),
            )
            found.update({partition: each.offset for partition, each in (told or {}).items()})
        return found

    def _sizes(self, brokers: list[int]) -> dict[tuple[TopicPartition, int], int]:
        found = {}
        for broker_id in brokers:
            told = self._ask(
                f"log directories of broker {broker_id}",
                lambda broker_id=broker_id: self._client.describe_log_dirs([broker_id], timeout=self._timeout_s),  # type: ignore[misc]
            )
            for directory in (told or {}).get(broker_id, []):
                for each in directory.replicas:
                    if not each.is_future:
                        found[TopicPartition(each.topic, each.partition), broker_id] = each.size_bytes
        return found
