"""AsyncConsumer: the asyncio face."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from headrace_core.records import Record
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

from ..awaitable import DONE, AwaitableDict, AwaitableSet, Done
from ..models import OffsetAndTimestamp
from ..settings import CONSUMER, resolve
from .blocking import ARROW_BYTES
from .core import ConsumerCore, deadline_after

if TYPE_CHECKING:
    import pyarrow as pa

#: After so many records without a wait, iteration lets the loop turn.
TURN_RECORDS = 2_000


class AsyncConsumer:
    """Reads records of partitions, from asyncio.

        async with AsyncConsumer(bootstrap_servers="127.0.0.1:9095", auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition("orders", 0)])
            async for record in consumer:
                print(record.offset, record.value)

    Configuration, errors and methods are Consumer's, awaited. Those that never wait (assign, seek, pause, resume,
    metrics, ...) act when they are called; awaiting them is free, and may be left out. The network runs on Headrace's
    I/O thread, so a busy loop starves nothing.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        self._core = ConsumerCore(resolve(CONSUMER, config, settings))
        self._finalizer = weakref.finalize(self, self._core.abandon)
        self._finalizer.atexit = False

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group and be assigned partitions. Comes with the coordinator: UnsupportedVersionError till then."""
        raise self._core.refuse_groups()

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit positions to the group. Comes with the coordinator: UnsupportedVersionError until then."""
        raise self._core.refuse_groups()

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset. Comes with the coordinator: UnsupportedVersionError until then."""
        raise self._core.refuse_groups()

    def assign(self, partitions: Iterable[TopicPartition]) -> Done:
        """Read these partitions from now on, instead of those before. Positions of those that stay are kept."""
        self._core.assign(partitions)
        return DONE

    def assignment(self) -> AwaitableSet[TopicPartition]:
        """The partitions assigned."""
        return AwaitableSet(self._core.partitions)

    def seek(self, partition: TopicPartition, offset: int) -> Done:
        """Go on at ``offset``."""
        self._core.seek(TopicPartition(*partition), offset)
        return DONE

    def seek_to_beginning(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Go on at the first record there is (of all partitions, if none is named); found at the next poll."""
        self._core.seek_to(partitions, "earliest")
        return DONE

    def seek_to_end(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Go on after the last record there is (of all partitions, if none is named); found at the next poll."""
        self._core.seek_to(partitions, "latest")
        return DONE

    def pause(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Hand out nothing of these partitions, and fetch nothing, until resume."""
        self._core.pause(partitions)
        return DONE

    def resume(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Undo pause."""
        self._core.resume(partitions)
        return DONE

    def paused(self) -> AwaitableSet[TopicPartition]:
        """The partitions that are paused."""
        return AwaitableSet(tp for tp, assigned in self._core.partitions.items() if assigned.paused)

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Records, as soon as there are any; an empty list after ``timeout`` seconds."""
        core = self._core
        core.begin_poll()
        limit = core.max_poll_records if max_records is None else max_records
        records = core.drain(limit)
        if records or timeout <= 0:
            return records
        deadline = deadline_after(timeout)
        while await core.inbox.wait_async(deadline):
            core.check_open()
            records = core.drain(limit)
            if records:
                return records
        return []

    async def __aiter__(self) -> AsyncIterator[Record]:
        core = self._core
        core.begin_poll()
        turn = TURN_RECORDS
        while core.state == "open":
            iterator = core.next_iterator()
            if iterator is None:
                await core.inbox.wait_async(deadline_after(None))
            else:
                for record in core.iterate_ready(iterator):
                    yield record
                    turn -= 1
                    if turn <= 0:
                        turn = TURN_RECORDS
                        await asyncio.sleep(0)
            if core.state == "open":
                core.begin_poll()

    async def fetch_arrow(
        self,
        timeout: float = 1.0,
        *,
        columns: list[str] | None = None,
        include_headers: bool = True,
        max_bytes: int = ARROW_BYTES,
    ) -> pa.Table:
        """What has been fetched, as an Arrow table (see Consumer.fetch_arrow); empty after ``timeout`` seconds."""
        import pyarrow as pa

        from headrace_core.records.arrow import arrow_schema

        core = self._core
        core.begin_poll()
        deadline = deadline_after(timeout)
        while True:
            work = asyncio.ensure_future(asyncio.to_thread(core.take_arrow, max_bytes, columns, include_headers))
            try:
                batches = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])  # a thread cannot be cancelled, but what it took can go back
                core.give_back()
                raise
            if batches or not await core.inbox.wait_async(deadline):
                break
            core.check_open()
        return pa.Table.from_batches(
            batches, schema=arrow_schema(None if columns is None else tuple(columns), include_headers)
        )

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record to be handed out."""
        core, tp = self._core, TopicPartition(*partition)
        core.check_open()
        found = core.known_position(tp)
        if found is None:
            found = await core.engine.io.run_async(core.find_position(tp, core.assigned(tp).reset, timeout))
            core.seek(tp, found)
        return found

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        found = await self._offsets(partitions, EARLIEST_TIMESTAMP, timeout)
        return {tp: item.offset for tp, item in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last readable record of each partition."""
        found = await self._offsets(partitions, LATEST_TIMESTAMP, timeout)
        return {tp: item.offset for tp, item in found.items()}

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None where no record is that late."""
        core = self._core
        core.check_open()
        found = await core.engine.io.run_async(core.offsets(timestamps_ms, timeout))
        return {tp: None if item.offset < 0 else item for tp, item in found.items()}

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The topic's partition numbers; UnknownTopicOrPartitionError when there is no such topic."""
        core = self._core
        core.check_open()
        return await core.engine.io.run_async(core.partition_numbers(topic, timeout))

    async def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        core = self._core
        core.check_open()
        return await core.engine.io.run_async(core.offsets(dict.fromkeys(partitions, timestamp), timeout))

    def metrics(self) -> AwaitableDict[str, float]:
        """Kafka's consumer metrics by name; times are in ms."""
        return AwaitableDict(self._core.metric_values())

    async def close(self) -> None:
        """Stop fetching and close the connections."""
        self._finalizer.detach()
        if self._core.begin_close():
            await self._core.engine.io.run_async(self._core.shut_down())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
