"""Read bounded offset ranges, fast and with bounded memory. RangeReader is made for batch engines; the Spark source
uses it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from headrace_core.errors import InvalidArgumentError, OffsetOutOfRangeError, RequestTimedOutError
from headrace_core.types import TopicPartition

from . import arguments
from .callbacks import refuse_to_wait
from .consumer.core import ConsumerCore
from .consumer.inbox import Partition, Slice
from .faces import Face
from .settings import CONSUMER, resolve
from .typed_settings import ConsumerSettings

if TYPE_CHECKING:
    import pyarrow as pa


#: Keys of a RangeReader whose defaults differ from the consumer's. A range of a topic that does not exist is an error,
#: so the reader creates no topic.
_DEFAULTS = {"max.partition.fetch.bytes": 4 << 20, "auto.offset.reset": "none", "allow.auto.create.topics": False}
_FIELDS = "OffsetRange(topic, partition, start, end)"


class OffsetRange(NamedTuple):
    """Offsets from ``start`` (inclusive) to ``end`` (exclusive) of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class RangeSlice(NamedTuple):
    """Whole record batches of one partition, as stored in the log.

    Only records with ``start`` <= offset < ``end`` belong to the range; the first and the last batch may contain other
    records. ``read_committed`` omits the batches of aborted transactions, so ``records`` may be empty; control batches
    stay. ``next_offset`` is the offset at which reading of the range continues.
    """

    topic: str
    partition: int
    start: int
    end: int
    next_offset: int
    records: bytes


class RangeReader(Face):
    """Reads each range once, several ranges at a time, and fetches ahead up to ``fetch.queue.max.bytes``.

        with RangeReader([OffsetRange("orders", 0, 0, 1_000_000)], bootstrap_servers=...) as reader:
            for batch in reader.arrow_batches(): ...

    The reader is blocking, and only one thread may use it. A range may be empty. Raises OffsetOutOfRangeError when the
    log lacks a part of a range, RequestTimedOutError when no data arrive for ``default.api.timeout.ms``, and the errors
    of Consumer.
    """

    def __init__(
        self,
        ranges: Iterable[OffsetRange],
        config: Mapping[str, Any] | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._ranges = [_checked(item) for item in arguments.items("ranges", ranges, _FIELDS)]
        values = resolve(CONSUMER, config, settings)
        both = {**(config or {}), **settings}
        given = {CONSUMER.key(name).name for name, value in both.items() if value is not None}
        values.update({name: value for name, value in _DEFAULTS.items() if name not in given})
        core = self._core = ConsumerCore(values)
        wanted = {TopicPartition(item.topic, item.partition): item for item in self._ranges if item.start < item.end}
        if len(wanted) != sum(item.start < item.end for item in self._ranges):
            raise InvalidArgumentError("ranges name a partition twice: use one reader for each range")
        core.assign(wanted)
        for tp, item in wanted.items():
            core.reading.seek(tp, item.start)
            core.reading.partitions[tp].end_offset = item.end
        self._left = set(wanted)  #: the partitions whose ranges have not been returned in whole
        #: What was fetched and not yet returned. An iteration that is left loses none of it: the next one begins at the
        #: partitions' positions, which may lie within a batch of the log.
        self._fetched: dict[Partition, list[Slice]] = {}
        #: The decoder of the first partition in ``_fetched``, with its arguments.
        self._decoding: tuple[tuple[list[str] | None, bool, int], Iterator[pa.RecordBatch]] | None = None

    def _shown(self) -> list[str]:
        return [
            *self._core.shown()[:-1],
            f"{len(self._left)} of {len(self._ranges)} ranges left",
            self._core.reading.state,
        ]

    def slices(self) -> Iterator[RangeSlice]:
        """Iterate over the ranges as raw batches. Partitions are interleaved; the batches of one partition are in
        offset order. A new iteration goes on where the last one was left, also one of ``arrow_batches``."""
        while (found := self._next_fetched(1)) is not None:
            assigned, (item, *_) = found
            start, end = assigned.position, assigned.end_offset
            assert start is not None
            assert end is not None
            self._returned(assigned, item.next_offset)
            yield RangeSlice(*assigned.tp, start, end, item.next_offset, b"".join(item.parts))

    def _next_fetched(self, max_bytes: int) -> tuple[Partition, list[Slice]] | None:
        """A partition and what was fetched of it; None at the end of all ranges. Takes about ``max_bytes`` at a time
        from the inbox."""
        core = self._core
        while self._left:
            core.begin_poll()
            size = 0 if not self._fetched else max_bytes
            while size < max_bytes and (taken := core.reading.next_slice()) is not None:
                item = taken[0]
                self._fetched.setdefault(item.partition, []).append(item)
                size += item.size
            if self._fetched:
                return next(iter(self._fetched.items()))
            self._wait()
        return None

    def _returned(self, assigned: Partition, position: int) -> None:
        """Advance the position of a partition, and free what lies before it."""
        items, end = self._fetched[assigned], assigned.end_offset
        assert end is not None
        assigned.position, self._decoding = position, None
        if position >= end:
            self._left.discard(assigned.tp)
            items.clear()
        while items and items[0].next_offset <= position:
            del items[0]
        if not items:
            del self._fetched[assigned]

    def arrow_batches(
        self, *, columns: Iterable[str] | None = None, include_headers: bool = False, max_bytes: int = 8 << 20
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the ranges as Arrow batches with the Spark source's schema. Each Arrow batch has records of one
        partition: at most ``max_bytes`` of keys, values and headers, however well they are compressed, or one record.
        A new iteration goes on after the last Arrow batch that was returned, whatever its arguments. Raises
        InvalidArgumentError at once, before the first batch."""
        from headrace_core.records.arrow import arrow_schema

        names, headers = arguments.arrow(columns, arguments.flag("include_headers", include_headers), max_bytes)
        arrow_schema(None if names is None else tuple(names), headers)
        return self._arrow_batches(names, headers, max_bytes)

    def _arrow_batches(
        self, columns: list[str] | None, include_headers: bool, max_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        from headrace_core.records.arrow import arrow_schema

        names = arrow_schema(None if columns is None else tuple(columns), include_headers).names
        if "offset" not in names:  # the position after the returned rows
            columns = [*(columns or ()), "offset"]
        while (batch := self._next_batch(columns, include_headers, max_bytes)) is not None:
            yield batch if batch.schema.names == names else batch.select(names)

    def _next_batch(self, columns: list[str] | None, include_headers: bool, max_bytes: int) -> pa.RecordBatch | None:
        from headrace_core.records.arrow import iterate_arrow

        wanted = columns, include_headers, max_bytes
        while (found := self._next_fetched(max_bytes)) is not None:
            assigned, items = found
            decoding, self._decoding = self._decoding, None  # after an error: decode again from the position
            if decoding is None or decoding[0] != wanted:
                batches = iterate_arrow(
                    [part for item in items for part in item.parts],
                    topic=assigned.tp.topic,
                    partition=assigned.tp.partition,
                    start_offset=assigned.position or 0,
                    end_offset=assigned.end_offset,
                    columns=columns,
                    include_headers=include_headers,
                    check_crc=self._core.reading.check_crcs,
                    max_bytes=max_bytes,
                )
                decoding = wanted, batches
            batch = next(decoding[1], None)
            if batch is None:
                self._returned(assigned, items[-1].next_offset)
            elif batch.num_rows:
                self._returned(assigned, batch.column("offset")[-1].as_py() + 1)
            if batch is not None and assigned in self._fetched:
                self._decoding = decoding
            if batch is not None and batch.num_rows:
                return batch
        return None

    def topic_id(self, topic: str) -> bytes | None:
        """The topic's current id in this reader's metadata; None if the metadata lack the topic. A changed id means
        that the topic was deleted and created again."""
        info = self._core.engine.metadata.snapshot.topics.get(topic)
        return None if info is None else info.topic_id

    def _wait(self) -> None:
        core = self._core
        deadline = time.monotonic() + core.engine.api_timeout_s
        while not core.reading.inbox.wait(min(deadline, time.monotonic() + 1)):
            core.reading.check_open()
            for tp in self._left:
                assigned = core.reading.partitions[tp]
                position = assigned.position or 0
                if 0 <= assigned.high_watermark <= position and assigned.end_offset is not None:
                    raise OffsetOutOfRangeError(
                        f"{tp}: the range ends at {assigned.end_offset}, but the log ends at {assigned.high_watermark}"
                    )
            if time.monotonic() > deadline:
                waiting = ", ".join(f"{tp} at {core.reading.partitions[tp].position}" for tp in sorted(self._left)[:5])
                open_ = "; read_committed waits for open transactions" if core.reading.reads_committed else ""
                raise RequestTimedOutError(
                    f"no records within default.api.timeout.ms={core.config['default.api.timeout.ms']}: "
                    f"{waiting}{open_}"
                )

    def close(self) -> None:
        """Close the connections."""
        refuse_to_wait()
        self._fetched.clear()
        self._decoding = None
        if self._core.begin_close():
            self._core.engine.io.end(self._core.shut_down())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _checked(item: Any) -> OffsetRange:
    if not isinstance(item, tuple) or len(item) != 4:
        raise arguments.wrong("range", item, f"must be {_FIELDS}")
    tp = arguments.partition(item[:2])
    start = arguments.offset(item[2], f"start of {tp}")
    return OffsetRange(*tp, start, arguments.whole(f"end of {tp} (at or after its start)", item[3], start))
