"""Consumer: the blocking face."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from headrace_core.records import Record
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

from ..models import OffsetAndTimestamp
from ..settings import CONSUMER, resolve
from .core import ConsumerCore, deadline_after

if TYPE_CHECKING:
    import pyarrow as pa

#: fetch_arrow stops adding slices to one table here.
ARROW_BYTES = 16 * 1024 * 1024


class Consumer:
    """Reads records of partitions.

        with Consumer(bootstrap_servers="127.0.0.1:9095", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            for record in consumer:
                print(record.offset, record.value)

    Configuration: Kafka's dotted names in a dict, or snake_case keywords. One thread at a time may use a consumer.
    Fetching goes on in the background, ahead of the caller, bounded by ``fetch.queue.max.bytes``; nothing connects
    before the first call. Errors: BootstrapError, UnknownTopicOrPartitionError, OffsetOutOfRangeError and
    NoOffsetForPartitionError (``auto.offset.reset=none``), CorruptMessageError, SerializationError, ClosedError.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._core = ConsumerCore(resolve(CONSUMER, config, settings))
        self._iterator: Iterator[Record] | None = None
        self._finalizer = weakref.finalize(self, self._core.abandon)
        self._finalizer.atexit = False

    # --- what to read ----------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group and be assigned partitions. Comes with the coordinator: UnsupportedVersionError till then."""
        raise self._core.refuse_groups()

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit positions to the group. Comes with the coordinator: UnsupportedVersionError until then."""
        raise self._core.refuse_groups()

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset. Comes with the coordinator: UnsupportedVersionError until then."""
        raise self._core.refuse_groups()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on, instead of those before. Positions of those that stay are kept."""
        self._core.assign(partitions)

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned."""
        return set(self._core.partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at ``offset``."""
        self._core.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Go on at the first record there is (of all partitions, if none is named); found at the next poll."""
        self._core.seek_to(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Go on after the last record there is (of all partitions, if none is named); found at the next poll."""
        self._core.seek_to(partitions, "latest")

    def pause(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions, and fetch nothing, until resume."""
        self._core.pause(partitions)

    def resume(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Undo pause."""
        self._core.resume(partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, assigned in self._core.partitions.items() if assigned.paused}

    # --- reading ---------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Records, as soon as there are any; an empty list after ``timeout`` seconds.

        At most ``max_records`` (``max.poll.records``), of several partitions perhaps, each partition's in order.
        """
        core = self._core
        core.begin_poll()
        limit = core.max_poll_records if max_records is None else max_records
        records = core.drain(limit)
        if records or timeout <= 0:
            return records
        deadline = deadline_after(timeout)
        while core.inbox.wait(deadline):
            core.check_open()
            records = core.drain(limit)
            if records:
                return records
        return []

    def __iter__(self) -> Iterator[Record]:
        """Records for ever, waiting for new ones. A seek or pause in the loop takes effect at the next record."""
        core = self._core
        core.begin_poll()
        while core.state == "open":
            iterator = core.next_iterator()
            if iterator is not None:
                yield from core.iterate_ready(iterator)
            else:
                core.inbox.wait(deadline_after(None))
            if core.state == "open":
                core.begin_poll()

    def __next__(self) -> Record:
        if self._iterator is None:
            self._iterator = iter(self)
        try:
            return next(self._iterator)
        except BaseException:
            self._iterator = None
            raise

    def fetch_arrow(
        self,
        timeout: float = 1.0,
        *,
        columns: list[str] | None = None,
        include_headers: bool = True,
        max_bytes: int = ARROW_BYTES,
    ) -> pa.Table:
        """What has been fetched, as an Arrow table; empty after ``timeout`` seconds.

        Its schema is the Spark source's: key, value, topic, partition, offset, timestamp, timestampType, headers.

        No Python object is made for a record, and deserializers are not asked. ``columns`` names those wanted;
        ``max_bytes`` bounds the encoded bytes that go into one table.
        """
        import pyarrow as pa

        from headrace_core.records.arrow import arrow_schema

        core = self._core
        core.begin_poll()
        deadline = deadline_after(timeout)
        while True:
            batches = core.take_arrow(max_bytes, columns, include_headers)
            if batches or not core.inbox.wait(deadline):
                break
            core.check_open()
        return pa.Table.from_batches(
            batches, schema=arrow_schema(None if columns is None else tuple(columns), include_headers)
        )

    # --- questions -------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record to be handed out."""
        core, tp = self._core, TopicPartition(*partition)
        core.check_open()
        found = core.known_position(tp)
        if found is None:
            assigned = core.assigned(tp)
            found = core.engine.io.run(core.find_position(tp, assigned.reset, timeout))
            core.seek(tp, found)
        return found

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return {tp: found.offset for tp, found in self._offsets(partitions, EARLIEST_TIMESTAMP, timeout).items()}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last readable record of each partition."""
        return {tp: found.offset for tp, found in self._offsets(partitions, LATEST_TIMESTAMP, timeout).items()}

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None where no record is that late."""
        core = self._core
        core.check_open()
        found = core.engine.io.run(core.offsets(timestamps_ms, timeout))
        return {tp: None if item.offset < 0 else item for tp, item in found.items()}

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The topic's partition numbers; UnknownTopicOrPartitionError when there is no such topic."""
        core = self._core
        core.check_open()
        return core.engine.io.run(core.partition_numbers(topic, timeout))

    def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        core = self._core
        core.check_open()
        return core.engine.io.run(core.offsets(dict.fromkeys(partitions, timestamp), timeout))

    def metrics(self) -> dict[str, float]:
        """Kafka's consumer metrics by name (``records-consumed-rate``, ``fetch-latency-avg``, ...); times are in ms."""
        return self._core.metric_values()

    def close(self) -> None:
        """Stop fetching and close the connections."""
        self._finalizer.detach()
        if self._core.begin_close():
            self._core.engine.io.run(self._core.shut_down(), 10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
