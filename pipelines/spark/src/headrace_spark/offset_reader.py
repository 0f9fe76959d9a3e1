"""Metadata requests of the Spark driver: the partitions of a query, their log starts and ends, and offsets by time."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from headrace_core.errors import (
    HeadraceError,
    InvalidConfigError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
)
from headrace_core.types import TopicPartition

from .cluster import Cluster
from .errors import FAIL_ON_DATA_LOSS_FALSE, FAIL_ON_DATA_LOSS_TRUE, DataLossError
from .offsets import EARLIEST, LATEST, PartitionOffsets, show
from .options import Limit, OffsetLimit, SourceOptions
from .planning import check_covers

logger = logging.getLogger(__name__)

T = TypeVar("T")


class OffsetReader:
    """Reads offsets from the cluster, with ``fetchOffset.numRetries`` attempts, because topics may change between two
    requests."""

    def __init__(
        self,
        options: SourceOptions,
        cluster: Cluster,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        self.cluster = cluster
        self._sleep = sleep
        #: The id of each topic that this reader has seen. A topic whose id has changed was deleted and created again
        #: under the same name.
        self.topic_ids: dict[str, str] = {}
        self._renewed: set[str] = set()
        self._warned = ""

    def take_renewed(self) -> set[str]:
        """Names of topics whose id has changed since the last call."""
        renewed, self._renewed = self._renewed, set()
        return renewed

    def assigned(self, *, known: Collection[TopicPartition] = ()) -> set[TopicPartition]:
        """The current partitions of the query.

        Raises UnknownTopicOrPartitionError for a missing subscribed topic, unless ``known`` or an earlier call shows
        that the topic was deleted and data loss is accepted. Missing partitions of an assignment, and patterns without
        a match, are ignored.

        The list of all topics lacks those that the user may not see. So a topic of ``known`` that the list lacks is
        asked for by its name: it was deleted, or the answer is TopicAuthorizationFailedError.
        """
        options = self.options
        if options.pattern is not None:
            matches = re.compile(options.pattern).fullmatch
            found = {name: topic for name, topic in self.cluster.topics(None).items() if matches(name)}
            if unseen := {partition.topic for partition in known} - found.keys():
                found |= self.cluster.topics(unseen)
        else:
            topics = options.topics or tuple(dict.fromkeys(topic for topic, _ in options.assigned))
            found = self.cluster.topics(topics)
            missing = [topic for topic in options.topics if topic not in found]
            seen = self.topic_ids.keys() | {partition.topic for partition in known}
            deleted = [topic for topic in missing if topic in seen]
            if deleted:
                self.report_loss(f"the subscribed topic {', '.join(deleted)} was deleted")
            if len(missing) > len(deleted):
                never = sorted(set(missing) - set(deleted))
                raise UnknownTopicOrPartitionError(f"subscribe: no topic named {', '.join(never)} in the cluster")
        for name, topic in found.items():
            if self.topic_ids.setdefault(name, topic.topic_id) != topic.topic_id:
                self.topic_ids[name] = topic.topic_id
                self._renewed.add(name)
        every = {TopicPartition(name, number) for name, topic in found.items() for number in topic.partitions}
        return every & set(options.assigned) if options.assigned else every

    def earliest(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        """The log start of each of ``partitions`` that still exists."""

        def ask() -> PartitionOffsets:
            still = self._existing(partitions)
            return self.cluster.list_offsets(dict.fromkeys(still, EARLIEST)) if still else {}

        return self._retrying(ask)

    def latest(self, known: Mapping[TopicPartition, int] | None = None) -> PartitionOffsets:
        """The log ends of all partitions of the query.

        An end below the ``known`` end comes from a broker that has not caught up, or from a topic that was created
        again. If the end of a partition is below ``known``, the reader requests the end again and uses the last answer.

        Without any partition the answer is ``known``: an empty end would tell Spark that all partitions are gone, and
        those that are seen again later would be read from their start (SPARK-41375). If only some partitions of
        ``known`` are gone, raises DataLossError before Spark has written an end without them, unless data loss is
        accepted.
        """
        start = known or {}
        for attempt in range(1, self.options.offset_attempts + 1):
            ends = self._retrying(lambda: self._ask_all(LATEST, start))
            behind = {
                p: (start[p], end)
                for p, end in ends.items()
                if p in start and end < start[p] and p.topic not in self._renewed
            }
            if not behind or attempt == self.options.offset_attempts:
                break
            logger.warning(
                "the log ends before offsets that the query has already read; reading the log's end again: %s", behind
            )
            self._sleep(self.options.offset_retry_interval_ms / 1_000)
        if not ends:
            return dict(start)
        if self.options.fail_on_data_loss and (gone := start.keys() - ends.keys()):
            self.report_loss(f"{show(gone)} is gone")
        return ends

    def resolve(self, limit: OffsetLimit, option: str, *, starting: bool) -> PartitionOffsets:
        """The offsets, as numbers, of a starting or ending position, for every partition of the query."""
        return self._retrying(lambda: self._resolve(limit, option, starting))

    def report_loss(self, message: str) -> None:
        """Report a data loss: raise DataLossError if ``failOnDataLoss`` is true, otherwise log a warning."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{message}. {FAIL_ON_DATA_LOSS_TRUE}")
        if message != self._warned:  # a topic is missing at each trigger
            logger.warning("%s. %s", message, FAIL_ON_DATA_LOSS_FALSE)
        self._warned = message

    def _resolve(self, limit: OffsetLimit, option: str, starting: bool) -> PartitionOffsets:
        partitions = self.assigned()
        if limit.kind is Limit.EARLIEST:
            return self._ask(dict.fromkeys(partitions, EARLIEST))
        if limit.kind is Limit.LATEST:
            return self._ask(dict.fromkeys(partitions, LATEST))
        if limit.kind is Limit.OFFSETS:
            check_covers(option, limit.values, partitions)
            found = dict(limit.values)
        else:
            if limit.kind is Limit.TIMESTAMPS:
                check_covers(f"{option}ByTimestamp", limit.values, partitions)
                times = dict(limit.values)
            else:
                times = dict.fromkeys(partitions, limit.timestamp_ms)
            found = self._ask(times)
            unmatched = [p for p, offset in found.items() if offset < 0]
            if starting and unmatched and not self.options.latest_when_no_match:
                listed = ", ".join(f"{p} at {times[p]}" for p in sorted(unmatched))
                raise NoOffsetForPartitionError(
                    f"startingTimestamp: partitions have no record at or after their time (ms): {listed}. To start "
                    "such partitions at their end, set startingOffsetsByTimestampStrategy to latest"
                )
            found |= dict.fromkeys(unmatched, LATEST)
        special = {p: offset for p, offset in found.items() if offset in (LATEST, EARLIEST)}
        return found | self._ask(special)

    def _ask_all(self, timestamp: int, known: Mapping[TopicPartition, int]) -> PartitionOffsets:
        return self._ask(dict.fromkeys(self.assigned(known=known), timestamp))

    def _ask(self, wanted: Mapping[TopicPartition, int]) -> PartitionOffsets:
        return self.cluster.list_offsets(wanted) if wanted else {}

    def _existing(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        found = self.cluster.topics({partition.topic for partition in partitions})
        return {p for p in partitions if p.topic in found and p.partition in found[p.topic].partitions}

    def _retrying(self, ask: Callable[[], T]) -> T:
        """Call ``ask`` again after a transient failure: a topic may be deleted between two requests."""
        for left in range(self.options.offset_attempts - 1, -1, -1):
            try:
                return ask()
            except (InvalidConfigError, NoOffsetForPartitionError, DataLossError):
                raise
            except HeadraceError as error:
                if not left or not error.retriable:
                    raise
                logger.warning("cannot read offsets, %d attempts left: %s", left, error)
                self._sleep(self.options.offset_retry_interval_ms / 1_000)
        raise AssertionError("a bug in Headrace: the loop made no attempt to read the offsets")
