"""Take the samples of `headrace top` with requests through Admin. A failed request is noted in the sample, and the
other requests continue."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from headrace.cluster_models import TopicDescription
from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from ..asking import ask_each
from .frames import Sample

if TYPE_CHECKING:
    from headrace.admin import Admin

T = TypeVar("T")

#: Timeout of one request, in seconds.
_TIMEOUT_S = 4.0


class Sampling:
    """Takes samples of a cluster; a hanging node costs the timeout of a request once per sample."""

    def __init__(self, client: Admin) -> None:
        self._client = client
        self._errors: list[str] = []

    def sample(self) -> Sample:
        """Take a sample. ``sample`` takes some round trips. Raises HeadraceError when no node describes the cluster."""
        client, timeout_s = self._client, _TIMEOUT_S
        self._errors = []
        cluster = client.describe_cluster(include_fenced_brokers=True, timeout=timeout_s)
        topics = tuple(self._ask("topics", lambda: client.describe_topics(timeout=timeout_s)) or ())
        begun_s = time.monotonic()
        ends, ends_at_s = self._ends(topics)
        moving = self._ask("reassignments", lambda: client.list_partition_reassignments(timeout=timeout_s)) or {}
        groups = tuple(self._ask("groups", lambda: client.list_groups(timeout=timeout_s)) or ())
        names = [group.group_id for group in groups]
        lags = self._ask("lag", lambda: client.describe_lag(names, raise_errors=False, timeout=timeout_s))
        lags_at_s = time.monotonic()
        sizes, sizes_at_s = self._sizes([broker.broker_id for broker in cluster.brokers if not broker.fenced])
        return Sample(
            at_ms=time.time_ns() // 1_000_000,
            steady_s=begun_s,
            cluster_id=cluster.cluster_id,
            controller_id=cluster.controller_id,
            brokers=cluster.brokers,
            topics=topics,
            adding={partition: frozenset(move.adding_replicas) for partition, move in moving.items()},
            ends=ends,
            ends_at_s=ends_at_s,
            sizes=sizes,
            sizes_at_s=sizes_at_s,
            groups=groups,
            lags=tuple(lag for lag in lags or () if lag.error is None),
            lags_at_s=lags_at_s,
            errors=tuple(self._errors),
        )

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except HeadraceError as error:
            self._errors.append(f"{what}: {error.message} [{error.code}]")
            return None

    def _each(self, items: Iterable[int], what: str, question: Callable[[int], T]) -> Iterator[tuple[int, float, T]]:
        """Send all requests at once: a silent node hides only its own answer, and delays no other answer."""
        for item, answer in ask_each(items, question).items():
            if answer.error is not None:
                self._errors.append(f"{what} {item}: {answer.error.message} [{answer.error.code}]")
            elif answer.value is not None:
                yield item, answer.steady_s, answer.value

    def _ends(self, topics: tuple[TopicDescription, ...]) -> tuple[dict[TopicPartition, int], dict[int, float]]:
        """The log ends, with one request per leader, and the time when each leader answered."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic in topics:
            for part in topic.partitions:
                if part.leader >= 0:
                    by_leader[part.leader].append(TopicPartition(topic.name, part.partition))
        found, at_s = {}, {}
        for leader, answered_s, by_item in self._each(
            by_leader,
            "offsets at broker",
            lambda leader: self._client.list_offsets(dict.fromkeys(by_leader[leader], "latest"), timeout=_TIMEOUT_S),
        ):
            at_s[leader] = answered_s
            found.update({partition: each.offset for partition, each in by_item.items()})
        return found, at_s

    def _sizes(self, brokers: list[int]) -> tuple[dict[tuple[TopicPartition, int], int], dict[int, float]]:
        found, at_s = {}, {}
        for broker_id, answered_s, by_item in self._each(
            brokers,
            "log directories of broker",
            lambda broker_id: self._client.describe_log_dirs([broker_id], timeout=_TIMEOUT_S),
        ):
            at_s[broker_id] = answered_s
            for directory in by_item.get(broker_id, []):
                for each in directory.replicas:
                    if not each.is_future:
                        found[TopicPartition(each.topic, each.partition), broker_id] = each.size_bytes
        return found, at_s
