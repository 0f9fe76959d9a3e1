"""AsyncConsumer: the consumer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from headrace_core.errors import ClosedError
from headrace_core.records import Record
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

from .. import arguments
from ..callbacks import check_callback, check_handler, run_callback
from ..engine.io_thread import refuse_other_loops
from ..faces import DONE, AwaitableDict, AwaitableSet, ConsumerFace, Done
from ..group.commits import GroupOffsets
from ..models import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from ..serializers import WouldWait
from ..settings import CONSUMER, from_file, resolve
from ..typed_settings import ConsumerSettings
from .blocking import ARROW_BYTES
from .core import ConsumerCore, deadline_after
from .driving import AsyncSteps, committed_of, drive_async
from .group import Callback, Callbacks

if TYPE_CHECKING:
    import pyarrow as pa

    from .processing.book import Order

logger = logging.getLogger("headrace")

#: After this number of seconds, an ``async for`` over fetched records lets the event loop run other tasks.
TURN_S = 0.005
#: Maximum number of records that an ``async for`` returns between two readings of the clock. One reading of the clock
#: takes a tenth of the time that the iteration needs for a record. If the body of the ``async for`` suddenly becomes
#: slow, the event loop waits for up to UNTIMED_RECORDS records.
UNTIMED_RECORDS = 32

#: Rebalance callback, called with (consumer, partitions); the consumer awaits the result if it is awaitable.
AsyncRebalanced = Callable[["AsyncConsumer", list[TopicPartition]], object]


class AsyncConsumer(ConsumerFace):
    """Asyncio consumer of records. The consumer's partitions are assigned by the group (``subscribe``) or by the
    program (``assign``).

        async with AsyncConsumer(bootstrap_servers="127.0.0.1:9095", group_id="g") as consumer:
            await consumer.subscribe(["orders"])    # or await consumer.assign([TopicPartition("orders", 0)])
            async for record in consumer:
                print(record.offset, record.value)

    AsyncConsumer has the configuration, errors and methods of Consumer; its methods must be awaited. Methods that never
    wait (assign, seek, pause, resume, metrics, ...) take effect when they are called; awaiting their result is
    optional. Network I/O runs on Headrace's I/O thread, so a busy event loop does not delay heartbeats or fetches.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[ConsumerSettings]) -> None:
        refuse_other_loops()
        self._core = ConsumerCore(resolve(CONSUMER, config, settings))
        self._steps = AsyncSteps()
        self._closing: asyncio.Task[None] | None = None
        self._finalizer = weakref.finalize(self, self._core.at_exit)
        self._finalizer.atexit = False

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **overrides: Unpack[ConsumerSettings]) -> Self:
        """Make the client from a properties file with Kafka's keys, such as the client.properties of `headrace up
        --secure`. ``overrides`` have priority. The call ignores keys that apply only to other kinds of clients. Raises
        InvalidConfigError for an invalid file; the message names the line."""
        return cls(from_file(CONSUMER, path, overrides))

    def _shown(self) -> list[str]:
        return self._core.shown()

    def _offsets_for_transaction(self) -> GroupOffsets:
        return self._core.offsets_for_transaction()

    async def start(self) -> None:
        """Connect to the cluster now, instead of at the first call. Raises BootstrapError, which names each address and
        its failure, within ``bootstrap.timeout.ms``; SaslAuthenticationFailedError. A repeated ``start`` does
        nothing."""
        self._core.reading.check_open()
        await self._core.engine.io.run_async(self._core.engine.connect())

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        on_assigned: AsyncRebalanced | None = None,
        on_revoked: AsyncRebalanced | None = None,
        on_lost: AsyncRebalanced | None = None,
    ) -> Awaitable[None]:
        """Join the group ``group.id`` (see Consumer.subscribe). Callbacks may be coroutine functions, unlike the
        callbacks of Consumer. An empty list of topics means ``unsubscribe``; the program must await such a call."""
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked), ("on_lost", on_lost)):
            check_callback(name, callback, may_be_async=True)
        if topics is not None and not isinstance(topics, str):
            topics = arguments.items("topics", topics, "topic names")
        if topics == [] and pattern is None:
            return self.unsubscribe()
        callbacks = Callbacks(*(self._bound(each) for each in (on_assigned, on_revoked, on_lost)))
        self._core.subscribe(topics, pattern, callbacks)
        self._callbacks = callbacks
        return DONE

    def _bound(self, callback: AsyncRebalanced | None) -> Callback | None:
        if callback is None:
            return None
        this = weakref.ref(self)
        return lambda partitions: callback(this(), partitions)  # type: ignore[arg-type]

    def subscription(self) -> frozenset[str]:
        """The topics of the subscription; empty after a subscription by pattern."""
        group = self._core.group
        return frozenset() if group is None or group.subscription is None else frozenset(group.subscription.topics)

    async def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        core = self._core
        core.reading.check_open()
        if core.group is not None:
            if self._steps.is_under_way:
                await self._steps.finish()
            await self._steps.take(core.group.leave_steps(), core.engine.io)
        core.reading.clear_assignment()

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None) -> None:
        """Commit offsets to the group: the positions after the returned records, or the given offsets (see
        Consumer.commit)."""
        core = self._core
        group = core.in_group("commit")
        await core.engine.io.run_async(group.commit_work(core.offsets_to_commit(offsets), core.reading.traceparent()))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None,
        callback: Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], object] | None = None,
    ) -> asyncio.Future[None]:
        """Commit like ``commit``, without waiting for the result: the returned future may be awaited or ignored.
        ``callback(offsets, error)`` must be a plain function; it runs on the caller's event loop."""
        core = self._core
        check_callback("callback", callback)
        group = core.in_group("commit")
        wanted = core.offsets_to_commit(offsets)
        future = asyncio.wrap_future(core.engine.io.submit(group.commit_work(wanted, core.reading.traceparent())))
        # Read the error, because asyncio logs a warning if a caller ignores a failed future.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if callback is not None:
            future.add_done_callback(
                lambda done: run_callback(
                    callback, wanted, asyncio.CancelledError() if done.cancelled() else done.exception()
                )
            )
        return future

    @overload
    async def committed(self, partitions: TopicPartition, timeout: float | None = None) -> int | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition], timeout: float | None = None
    ) -> int | dict[TopicPartition, OffsetAndMetadata | None] | None:
        """The group's committed offsets: an int for one partition, a dict for several partitions. None: no offset."""
        core = self._core
        wanted, is_one = committed_of(partitions)
        found = await core.engine.io.run_async(core.in_group("committed").fetch_work(wanted, timeout))
        if not is_one:
            return found
        committed = found[wanted[0]]
        return None if committed is None else committed.offset

    def group_metadata(self) -> GroupMetadata:
        """This consumer's group id, member id and epoch, which a transaction needs to commit offsets (KIP-447)."""
        return self._core.in_group("group_metadata").metadata

    def assign(self, partitions: Iterable[TopicPartition]) -> Done:
        """Replace the assignment with the given partitions. Partitions that are in the old and the new assignment keep
        their positions."""
        self._core.assign(partitions)
        return DONE

    def assignment(self) -> AwaitableSet[TopicPartition]:
        """The assigned partitions."""
        return AwaitableSet(self._core.reading.partitions)

    def seek(self, partition: TopicPartition, offset: int) -> Done:
        """Set the partition's position to ``offset``: the next poll reads from this offset."""
        self._core.reading.seek(arguments.partition(partition), offset)
        return DONE

    async def seek_to_committed(
        self, *partitions: TopicPartition | Iterable[TopicPartition], timeout: float | None = None
    ) -> None:
        """Set the positions of the given partitions to the group's committed offsets, to read the records of an aborted
        transaction again. Without an argument, ``seek_to_committed`` applies to all assigned partitions.
        ``auto.offset.reset`` decides for a partition without a committed offset. ``seek_to_committed`` waits while an
        open transaction contains offsets of these partitions. Raises InvalidGroupIdError, NoOffsetForPartitionError,
        RequestTimedOutError."""
        core = self._core
        work = core.in_group("seek_to_committed").fetch_work(core.named_or_all(partitions), timeout)
        core.seek_to_offsets(await core.engine.io.run_async(work))

    def seek_to_beginning(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Set the positions of the given partitions (no argument: all assigned partitions) to the log start; the next
        poll looks up the offset."""
        self._core.reading.seek_to(partitions, "earliest")
        return DONE

    def seek_to_end(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Set the positions of the given partitions (no argument: all assigned partitions) to the log end; the next
        poll looks up the offset."""
        self._core.reading.seek_to(partitions, "latest")
        return DONE

    def pause(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Stop fetching and returning records of the given partitions until ``resume``."""
        self._core.reading.pause(partitions)
        return DONE

    def resume(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> Done:
        """Undo pause."""
        self._core.reading.resume(partitions)
        return DONE

    def paused(self) -> AwaitableSet[TopicPartition]:
        """The paused partitions."""
        return AwaitableSet(tp for tp, assigned in self._core.reading.partitions.items() if assigned.paused)

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Return records as soon as there are any; return an empty list after ``timeout`` seconds without records, or
        earlier (see Consumer.poll).

        Each poll lets the event loop run once, even when fetched records are already queued. When a poll is cancelled,
        its rebalance callback continues; the next poll waits for that callback before it returns records.
        """
        self._core.refuse_during_process("poll")
        with self._alone():
            return await self._poll(timeout, max_records)

    def _alone(self) -> AbstractContextManager[None]:
        """See ConsumerCore.alone; a rebalance callback belongs to the poll that waits for the callback."""
        return contextlib.nullcontext() if self._steps.is_inside else self._core.alone(asyncio.current_task())

    async def _poll(self, timeout: float, max_records: int | None) -> list[Record]:
        core = self._core
        timeout, most = arguments.polling(timeout, max_records)
        await asyncio.sleep(0)  # yield before records are taken, because a cancelled poll would lose taken records
        await self._begin_poll()
        deadline = time.monotonic() + timeout
        core.reading.skipped = False
        while True:
            try:
                records = core.reading.drain(most or core.reading.max_poll_records)
            except WouldWait as waiting:  # a deserializer needs an answer of the schema registry
                if not await waiting.end(deadline):
                    return []
                await self._begin_poll()  # a rebalance may have begun
                continue
            if records or core.reading.skipped or timeout <= 0 or not await self._wait(deadline):
                return records

    def batches(self, timeout: float = 1.0, max_records: int | None = None) -> AsyncIterator[list[Record]]:
        """Iterate over the non-empty lists that ``poll`` returns, until the consumer is closed (see
        Consumer.batches)."""
        self._core.reading.check_open()
        return self._batches(*arguments.batching(timeout, max_records))

    async def _batches(self, timeout: float, max_records: int | None) -> AsyncIterator[list[Record]]:
        reading = self._core.reading
        while reading.state == "open":
            try:
                records = await self.poll(timeout, max_records)
            except ClosedError:
                if reading.state == "closed":
                    return
                raise
            if records:
                yield records

    async def _begin_poll(self) -> None:
        core = self._core
        has_work = core.begin_poll()
        if self._steps.is_under_way:
            await self._steps.finish()
            has_work = core.begin_poll()
        if has_work and core.group is not None:
            await self._steps.take(core.group.steps(), core.engine.io)
            core.reading.sync()

    async def _wait(self, deadline: float) -> bool:
        """Wait until there may be records or rebalance events; return False when ``deadline`` passes first."""
        core, group = self._core, self._core.group
        if group is None:
            if await core.reading.inbox.wait_async(deadline):
                core.reading.check_open()
                return True
            return False
        while core.reading.state == "open":  # (a callback may have closed the consumer)
            group.is_here = True
            try:
                has_some = await core.reading.inbox.wait_async(group.wake_at(deadline))
            finally:
                group.is_here = False
            if core.reading.state != "open":
                return False
            await self._begin_poll()
            if has_some:
                return True
            if time.monotonic() >= deadline:
                return False
        return False

    async def process(
        self,
        handler: Callable[[Record], object],
        *,
        concurrency: int = 64,
        order: Order = "key",
        retries: int = 3,
        retry_backoff: float = 1.0,
        retry_backoff_max: float = 60.0,
        dead_letters: str | None = None,
        commit_interval: float = 0.1,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Handle records concurrently: await ``handler(record)`` for each record, up to ``concurrency`` at a time,
        until ``stop`` is set or an error is raised (see Consumer.process).

        Each call of the handler is a task of the event loop. When the caller is cancelled, running handlers are
        cancelled, and their records stay unfinished.
        """
        from .processing.aio import AsyncRun
        from .processing.settings import Settings

        settings = Settings(
            concurrency=concurrency,
            order=order,
            retries=retries,
            retry_backoff=retry_backoff,
            retry_backoff_max=retry_backoff_max,
            dead_letters=dead_letters,
            commit_interval=commit_interval,
        )
        check_handler("handler", handler, may_be_async=True)
        arguments.stop_event(stop)
        await AsyncRun(self._core, self._poll, self._begin_poll, handler, settings).run(stop)

    async def __aiter__(self) -> AsyncIterator[Record]:
        core = self._core
        core.refuse_during_process("iteration")
        await self._begin_poll()
        monotonic = time.monotonic
        began = monotonic()
        turn_ends = began + TURN_S
        untimed = before = 1  # number of records until the clock is read again
        while core.reading.state == "open":
            iterator = core.reading.next_iterator()
            if iterator is None:
                with self._alone():
                    await self._wait(deadline_after(None))
            else:
                records = core.reading.iterate_ready(iterator)
                while True:
                    record: Record | None = None
                    try:
                        for record in islice(records, untimed):
                            yield record
                    except WouldWait as waiting:
                        await waiting.end(deadline_after(None))
                        began = monotonic()
                        break
                    if record is None:
                        untimed = before  # the last chunk may have been too short to measure
                        break
                    now = monotonic()
                    took, began = now - began, now
                    if now + max(took, TURN_S / 8) >= turn_ends:  # the next chunk of records may end too late
                        await asyncio.sleep(0)
                        began = monotonic()
                        turn_ends = began + TURN_S
                    before = untimed
                    if took > TURN_S / 16:
                        untimed = max(1, untimed // 2)
                    elif untimed < UNTIMED_RECORDS:
                        untimed *= 2
            if core.reading.state == "open":
                await self._begin_poll()

    async def fetch_arrow(
        self,
        timeout: float = 1.0,
        *,
        columns: Iterable[str] | None = None,
        include_headers: bool | None = None,
        max_bytes: int = ARROW_BYTES,
    ) -> pa.Table:
        """Return fetched records as an Arrow table (see Consumer.fetch_arrow); the table is empty after ``timeout``
        seconds without records."""
        import pyarrow as pa

        from headrace_core.records.arrow import arrow_schema

        core = self._core
        timeout = arguments.seconds(timeout)
        names, headers = arguments.arrow(columns, include_headers, max_bytes)
        schema = arrow_schema(None if names is None else tuple(names), headers)
        core.refuse_during_process("fetch_arrow")
        with self._alone():
            batches = await self._fetch_arrow(timeout, max_bytes, names, headers)
        return pa.Table.from_batches(batches, schema=schema)

    async def _fetch_arrow(self, timeout: float, max_bytes: int, names: list[str] | None, headers: bool) -> list[Any]:
        core = self._core
        await self._begin_poll()
        deadline = deadline_after(timeout)
        core.reading.skipped = False
        while True:
            work = asyncio.ensure_future(asyncio.to_thread(core.reading.take_arrow, max_bytes, names, headers))
            try:
                batches = await asyncio.shield(work)
            except asyncio.CancelledError:
                # A thread cannot be cancelled, so wait for its end, then return the records that it took to the inbox.
                while not work.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([work])
                core.reading.give_back()
                raise
            if batches or core.reading.skipped or not await self._wait(deadline):
                return batches

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The position of the partition: the offset of the next record that a poll returns."""
        core, tp = self._core, arguments.partition(partition)
        core.reading.check_open()
        found = core.reading.known_position(tp)
        if found is None:
            found = await core.engine.io.run_async(core.find_position(tp, core.reading.assigned(tp).reset, timeout))
            core.reading.seek(tp, found)
        return found

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        found = await self._offsets(partitions, EARLIEST_TIMESTAMP, timeout)
        return {tp: item.offset for tp, item in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The end offset of each partition: one past the last record that this consumer could read."""
        found = await self._offsets(partitions, LATEST_TIMESTAMP, timeout)
        return {tp: item.offset for tp, item in found.items()}

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up the first record at or after each timestamp (ms since 1970); None for a timestamp after all
        records."""
        core = self._core
        core.reading.check_open()
        found = await core.engine.io.run_async(core.offsets(arguments.times(timestamps_ms), timeout))
        return {tp: None if item.offset < 0 else item for tp, item in found.items()}

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partition numbers of a topic. Raises UnknownTopicOrPartitionError."""
        core = self._core
        core.reading.check_open()
        return await core.engine.io.run_async(core.partition_numbers(topic, timeout))

    async def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        core = self._core
        core.reading.check_open()
        return await core.engine.io.run_async(
            core.offsets(dict.fromkeys(arguments.partitions(partitions), timestamp), timeout)
        )

    def metrics(self) -> AwaitableDict[str, float]:
        """Kafka's consumer metrics by name; times are in ms."""
        return AwaitableDict(self._core.metric_values())

    def partition_metrics(self) -> AwaitableDict[TopicPartition, dict[str, float]]:
        """``records-consumed-total`` and ``records-lag`` of each partition (the lag only of assigned partitions)."""
        return AwaitableDict(self._core.reading.partition_values())

    async def close(self, timeout: float | None = None) -> None:
        """Revoke the group's partitions (``on_revoked``, auto-commit), wait for the commits in flight (of
        ``commit_async``), leave the group, and close the connections. ``timeout``: seconds for all of this (None:
        close.timeout.ms); a commit that has not ended in this time raises RequestTimedOutError (the outcome is
        unknown)."""
        await self._close(timeout, commits=True)

    async def _close(self, timeout: float | None, *, commits: bool) -> None:
        """``close`` runs to its end, even when its caller is cancelled."""
        timeout = self._core.engine.close_timeout_s if timeout is None else arguments.seconds(timeout)
        self._finalizer.detach()
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close_whole(timeout, commits=commits), name="headrace-close")
        closing = self._closing
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            closing.add_done_callback(_log_failure)
            raise

    async def _close_whole(self, timeout: float, *, commits: bool) -> None:
        core, limit = self._core, None
        try:
            if core.reading.state == "open" and core.group is not None:
                async with asyncio.timeout(timeout) as limit:
                    if self._steps.is_under_way:
                        await self._finish_last_steps()
                    await drive_async(core.group.leave_steps(timeout, commits=commits), core.engine.io)
        except TimeoutError:
            self._steps.cancel()
            if limit is None or not limit.expired():  # a callback raised the TimeoutError
                raise
            logger.warning(
                "the consumer was not closed within %g s; the coordinator removes it when the connection breaks",
                timeout,
            )
        finally:
            if core.begin_close():
                await core.engine.io.end_async(core.shut_down())

    async def _finish_last_steps(self) -> None:
        try:
            await self._steps.finish()
        except Exception:
            logger.exception("consumer close: the rebalance callback of a cancelled poll() call failed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        # The program may not have processed the records of an interrupted iteration, so do not commit their offsets.
        await self._close(None, commits=kind is None)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("consumer close: close() failed in the background, after its caller was cancelled", exc_info=error)
