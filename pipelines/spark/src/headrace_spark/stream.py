"""The streaming reader: which offsets each micro-batch reads, and Kafka's admission control.

Spark runs it in one Python process for the life of the query: ``latestOffset(start, limit)`` once per trigger,
``partitions(start, end)`` for the batch that comes of it. It keeps no state that a restart would need: what was read is
in Spark's checkpoint, in the JSON of ``offsets.py``.
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
    """See the module. ``cluster`` and ``now_ms`` are injected by tests."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=True)
        self._offsets: OffsetReader | None = None
        self._progress: GroupProgress | None = None
        self._initial: PartitionOffsets | None = None
        self._latest: PartitionOffsets | None = None
        self._target: PartitionOffsets | None = None
        self._available_now = False
        self._last_trigger_ms = 0.0

    # --- what Spark calls, in the order in which it does

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts. Asked again for each trigger until a first batch is done: the answer stays."""
        return to_json(self._initial_offsets())

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; with both a least and a most, ``latestOffset`` looks after the least by itself."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends where the log ends when the first batch is planned."""
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself when there is nothing to do, or not enough yet.

        Spark asks when all before ``start`` is done. Its ``commit`` for that comes with the next batch, thus never for
        the last one of a query; so the group is told here.
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
        """The log's end as last seen, for the query's progress."""
        return None if not self._latest else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch from ``start`` to ``end``; a loss fails or warns, as ``failOnDataLoss`` says."""
        reader = self._reader()
        begin, until = self._true_start(start, end), from_json(end)
        ranges, losses = plan_ranges(begin, until, reader.earliest(until) if until else {})
        for loss in losses:
            reader.report_loss(loss)
        return [
            RangePartition(wanted, reader.topic_ids.get(wanted.topic, ""))
            for wanted in split_ranges(
                ranges,
                min_partitions=self.options.min_partitions,
                max_records=self.options.max_records_per_partition,
            )
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint is the record of what was read; the group, if there is one, is told too."""
        self._tell_group(from_json(end))

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if self._offsets is not None:
            self._offsets.cluster.close()
            self._offsets = None

    # --- how

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
            group_id = group_id or f"{prefix}-{uuid.uuid4()}"  # of this process, thus of this run of the query
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
        """The log's end; for AvailableNow, as it was when the run began."""
        if not self._available_now:
            self._latest = self._reader().latest(begin)
        else:
            if self._target is None:
                self._target = self._reader().latest(begin)
            self._latest = self._target
        return dict(self._latest)

    def _after_renewal(self, begin: PartitionOffsets, end: PartitionOffsets) -> PartitionOffsets:
        """``begin``, but for topics that were deleted and created anew since the last trigger: from their start.

        A batch that begins elsewhere than the one before it ended carries its start, so that a restart within it reads
        the same. A topic that was replaced while no query ran is not noticed here: offsets know nothing of topics.
        """
        reader = self._reader()
        topics = reader.take_renewed()
        renewed = {partition for partition in begin.keys() & end.keys() if partition.topic in topics}
        if not renewed:  # or such as the query had given up before: they are read from their start as any new one
            return begin
        reader.report_loss(
            f"{show(renewed)}: the topic was deleted and created anew; what was not read of the old one is gone, and "
            "reading goes on where the new one begins"
        )
        first = reader.earliest(renewed)
        return begin | {partition: first[partition] for partition in renewed if partition in first}

    def _too_few(self, begin: PartitionOffsets, end: PartitionOffsets) -> bool:
        """minOffsetsPerTrigger: wait for more, but not longer than maxTriggerDelay. AvailableNow never waits."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._available_now:
            return False
        now = self._now_ms()
        if now - self._last_trigger_ms < self.options.max_trigger_delay_ms and offsets_waiting(begin, end) < least:
            return True
        self._last_trigger_ms = now
        return False

    def _must_carry_start(self, start: dict[str, Any], begin: PartitionOffsets, end: PartitionOffsets) -> bool:
        """Would a restart within this first batch find another start? (See offsets.py.)

        Not when the user gave offsets, nor when "earliest" was 0 everywhere, nor when a batch that began anywhere
        else is empty: ``_true_start`` knows those.
        """
        if START_KEY in start or begin != self._initial:
            return False
        if self.options.starting.kind is Limit.EARLIEST:
            return any(begin.values())
        return begin != end and not self._start_is_given()

    def _true_start(self, start: dict[str, Any], end: dict[str, Any]) -> PartitionOffsets:
        """Where the batch that ends at ``end`` began: what ``end`` carries, else ``start``, unless that is made up.

        It is made up when Spark asked this process for the initial offset: the query's first batch, begun now or by a
        driver that died in it.
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
        """The user named every offset, so that asking again gives the same."""
        starting = self.options.starting
        return starting.kind is Limit.OFFSETS and all(offset >= 0 for offset in starting.values.values())
