"""The streaming reader: the offsets of each micro-batch, with Kafka's admission control.

Spark runs the streaming reader in one Python process for the whole query: ``latestOffset(start, limit)`` once per
trigger, then ``partitions(start, end)`` for the batch. The reader has no state that a restart needs, because positions
are in Spark's checkpoint, as JSON (``offsets.py``).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .group_progress import Group, GroupProgress
from .offset_reader import OffsetReader
from .offsets import START_KEY, PartitionOffsets, from_json, show, start_within, to_json, with_start
from .options import Limit
from .planning import offsets_waiting, plan_ranges, rate_limit, split_ranges
from .tasks import RangePartition, RangeTask

if TYPE_CHECKING:
    from .cluster import Cluster

logger = logging.getLogger(__name__)


class HeadraceStreamReader(RangeTask, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader (see the module's docstring). Tests inject ``cluster`` and ``now_ms``."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=True)
        self._offsets: OffsetReader | None = None
        self._progress: GroupProgress | None = None
        self._initial: PartitionOffsets | None = None
        self._latest: PartitionOffsets | None = None
        self._target: PartitionOffsets | None = None
        self._available_now = False
        self._last_trigger_ms = 0.0

    # --- Spark's calls, in their order

    def initialOffset(self) -> dict[str, Any]:
        """The offsets where a new query starts. Spark calls ``initialOffset`` at each trigger until the first batch is
        done, so the reader keeps its first answer."""
        return to_json(self._initial_offsets())

    def getDefaultReadLimit(self) -> ReadLimit:
        """The read limit that the options set. With both a minimum and a maximum, ``latestOffset`` applies the
        minimum."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the query's end at the current log end."""
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` if there are no new records, or fewer than minOffsetsPerTrigger.

        Spark calls ``latestOffset`` when the query has processed all records before ``start``. Spark's ``commit`` call
        for a batch comes only with the next batch, and never for the last batch of a query. Because ``commit`` comes
        late or never, ``latestOffset`` also commits the progress to the consumer group.
        """
        stood = from_json(start)
        self._tell_group(stood)
        end = self._log_end(stood)
        begin = self._after_renewal(stood, end)
        if not isinstance(limit, ReadAllAvailable):
            if begin == stood and self._too_few(begin, end):
                end = begin
            elif isinstance(limit, ReadMaxRows) and end != begin:
                end = rate_limit(limit.max_rows, begin, end, self._reader().earliest(end))
        if begin != stood:
            return with_start(to_json(end), begin)
        if self._must_carry_start(start, begin, end):
            return with_start(to_json(end), begin)
        return start if end == begin else to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The last known end of the log, which Spark shows in the progress of the query."""
        return None if not self._latest else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch from ``start`` to ``end``. A data loss raises DataLossError or logs a warning,
        depending on ``failOnDataLoss``."""
        reader = self._reader()
        begin, until = self._true_start(start, end), from_json(end)
        ranges, losses = plan_ranges(begin, until, reader.earliest(until) if until else {})
        for loss in losses:
            reader.report_loss(loss)
        login = self.task_login()
        return [
            RangePartition(wanted, reader.topic_ids.get(wanted.topic, ""), login)
            for wanted in split_ranges(
                ranges,
                min_partitions=self.options.min_partitions,
                max_records=self.options.max_records_per_partition,
            )
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the progress to the consumer group, if the query has a group. The query's own position is stored only
        in Spark's checkpoint."""
        self._tell_group(from_json(end))

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if self._offsets is not None:
            self._offsets.cluster.close()
            self._offsets = None

    # --- helpers

    def _reader(self) -> OffsetReader:
        if self._offsets is None:
            self._offsets = OffsetReader(self.options, self._open())
        return self._offsets

    def _open(self) -> Cluster:
        from .sdk_cluster import open_cluster

        return open_cluster(self.options.client)

    def _open_group(self, group_id: str) -> Group:
        from .sdk_cluster import open_group

        return open_group(self.options.client, group_id)

    def _tell_group(self, stood: PartitionOffsets) -> None:
        if self._progress is None:
            group_id, prefix = self.options.group_id, self.options.group_id_prefix
            if group_id is None and prefix is None:
                return
            # Generate a new group id for each process, and so for each run of the query.
            group_id = group_id or f"{prefix}-{uuid.uuid4()}"
            logger.info("the query commits its progress to group %r", group_id)
            self._progress = GroupProgress(group_id, self._open_group(group_id))
        self._progress.reached(stood)

    def _now_ms(self) -> float:
        return time.time() * 1_000

    def _initial_offsets(self) -> PartitionOffsets:
        if self._initial is None:
            self._initial = self._reader().resolve(self.options.starting, "startingOffsets", starting=True)
        return self._initial

    def _log_end(self, begin: PartitionOffsets) -> PartitionOffsets:
        """The end of the log; for AvailableNow, the end at the time when the run began."""
        if not self._available_now:
            self._latest = self._reader().latest(begin)
        else:
            if self._target is None:
                self._target = self._reader().latest(begin)
            self._latest = self._target
        return dict(self._latest)

    def _after_renewal(self, begin: PartitionOffsets, end: PartitionOffsets) -> PartitionOffsets:
        """The offsets ``begin``, but the log start for topics that were deleted and created again since the last
        trigger.

        If a batch does not begin at the end of the previous batch, its end offset also stores its start. With the
        stored start, a restart within the batch reads the same records. The reader does not detect a topic that was
        created again while the query did not run, because offsets have no topic ids.
        """
        reader = self._reader()
        topics = reader.take_renewed()
        renewed = {partition for partition in begin.keys() & end.keys() if partition.topic in topics}
        if not renewed:  # (a topic that the query had dropped starts like a new topic)
            return begin
        reader.report_loss(
            f"{show(renewed)}: the topic was deleted and created again; unread records of the old topic are lost, "
            "and the query continues at the start of the new one"
        )
        first = reader.earliest(renewed)
        return begin | {partition: first[partition] for partition in renewed if partition in first}

    def _too_few(self, begin: PartitionOffsets, end: PartitionOffsets) -> bool:
        """Whether to wait for more records (minOffsetsPerTrigger); never longer than maxTriggerDelay. AvailableNow
        never waits."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._available_now:
            return False
        now = self._now_ms()
        if now - self._last_trigger_ms < self.options.max_trigger_delay_ms and offsets_waiting(begin, end) < least:
            return True
        self._last_trigger_ms = now
        return False

    def _must_carry_start(self, start: dict[str, Any], begin: PartitionOffsets, end: PartitionOffsets) -> bool:
        """Whether a restart within the first batch would find another start offset, so that the end of the batch must
        contain the start (see offsets.py).

        False when the user set the starting offsets, when "earliest" was 0 in every partition, and when the batch is
        empty. If the end of a batch contains no start, ``_true_start`` returns the start.
        """
        if START_KEY in start or begin != self._initial:
            return False
        if self.options.starting.kind is Limit.EARLIEST:
            return any(begin.values())
        return begin != end and not self._start_is_given()

    def _true_start(self, start: dict[str, Any], end: dict[str, Any]) -> PartitionOffsets:
        """Return the start of the batch that ends at ``end``: the start that ``end`` contains, otherwise ``start``.

        In the first batch of a new or restarted query, ``start`` may be a new answer of ``initialOffset``. If ``end``
        then contains no start, the batch starts at offset 0 (``earliest``), or is empty and starts at ``end``.
        """
        carried = start_within(end)
        if carried is not None:
            return carried
        begin, until = from_json(start), from_json(end)
        if START_KEY in start or begin != self._initial or self._start_is_given():
            return begin
        if self.options.starting.kind is Limit.EARLIEST:
            return dict.fromkeys(until, 0)
        return begin if begin == until else until  # the batch was empty

    def _start_is_given(self) -> bool:
        """Whether the user set the offset of every partition, so that a repeated call returns the same offsets."""
        starting = self.options.starting
        return starting.kind is Limit.OFFSETS and all(offset >= 0 for offset in starting.values.values())
