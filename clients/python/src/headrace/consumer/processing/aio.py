"""``AsyncConsumer.process``: handlers run as tasks of the caller's event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from headrace_core.errors import HeadraceError, ProcessingError
from headrace_core.records import Record
from headrace_core.types import TopicPartition

from ...models import OffsetAndMetadata
from ...producer import AsyncProducer
from ...serializers import WouldWait
from ..core import ConsumerCore
from ..group import GroupConsumer
from .book import Book, Work
from .flow import DRAIN_S, POLL_RECORDS, POLL_S, Flow, go_back, name_unfinished
from .settings import BuryError, Settings, described, failure_of, letter_of, producer_config

logger = logging.getLogger("headrace")

_UNTRACED: AbstractContextManager[None] = nullcontext()


class AsyncRun:
    """One run of ``process``. The class implements ``Progress``, from which the consumer's group takes the offsets to
    commit. ``poll(timeout_s, max_records)`` returns records; ``begin_poll()`` only handles the group's events."""

    def __init__(
        self,
        core: ConsumerCore,
        poll: Callable[[float, int], Awaitable[list[Record]]],
        begin_poll: Callable[[], Awaitable[None]],
        handler: Callable[[Record], object],
        settings: Settings,
    ) -> None:
        self._core, self._poll, self._begin_poll = core, poll, begin_poll
        self._handler, self._settings = handler, settings
        self._group: GroupConsumer = core.in_group("process")
        self._book = Book(settings.order)
        self._flow = Flow(self._book, core.reading, settings)
        self._deserializes = not core.reading.plain
        self._changed = asyncio.Event()  # set when a handler has ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: ProcessingError | None = None
        self._dead_letters: AsyncProducer | None = None
        self._has_gone_back = False

    async def run(self, stop: asyncio.Event | None) -> None:
        """Process records until ``stop`` is set, the caller is cancelled, or an error is raised."""
        group, interval_s = self._group, self._core.config["auto.commit.interval.ms"] / 1000
        group.begin_progress(self, self._settings.commit_interval)
        self._core.reading.plain = True  # polls return bytes: handler calls deserialize
        try:
            await self._take_over()
            while self._failure is None and not (stop is not None and stop.is_set()):
                await self._turn()
            if self._failure is not None:
                raise self._failure
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            raise
        finally:
            try:
                await asyncio.shield(self._end())
            finally:
                self._go_back()  # also if the caller is cancelled a second time: close() commits the positions
                self._core.reading.plain = not self._deserializes
                group.end_progress(interval_s)

    async def _take_over(self) -> None:
        """Read which records are already finished in the partitions that are already assigned to the consumer."""
        partitions = sorted(self._core.reading.partitions)
        if partitions:
            committed = await self._core.engine.io.run_async(self._group.fetch_work(partitions, None))
            self.assigned(self._flow.still_valid(committed))

    async def _turn(self) -> None:
        """Poll once. If too many records are in progress, handle only the group's events, and wait until handlers have
        finished some records."""
        self._flow.regulate()
        self._flow.name_long(asyncio.get_running_loop().time())
        self._start_ready()
        self._changed.clear()
        room = self._flow.room()
        try:
            if room > 0:
                records = await self._poll(POLL_S, min(room, POLL_RECORDS))
                if records:
                    self._book.add(records)
                    self._start_ready()
                return
            await self._begin_poll()
        except HeadraceError as error:
            if not error.retriable:
                raise
            logger.warning("process: %s; retrying", error)
        await self._change(POLL_S)

    async def _change(self, within_s: float) -> None:
        """Wait until a handler has ended, at most ``within_s``."""
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _start_ready(self) -> None:
        """Start a handler task for each record that is ready, up to ``concurrency`` tasks at a time."""
        now = asyncio.get_running_loop().time()
        while self._failure is None and self._book.running < self._settings.concurrency:
            work = self._book.take(now)
            if work is None:
                return
            task = asyncio.create_task(self._handle(work), name="headrace-process")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, work: Work) -> None:
        """Handle one record."""
        try:
            error = await self._try(work)
        except asyncio.CancelledError:
            self._book.give_back(work)
            raise
        finally:
            self._changed.set()
        if error is None:
            self._book.finish(work)
        elif self._settings.may_retry(work, error):
            logger.info("process: %s: try %d failed: %s", work, work.attempts, described(error))
            self._book.again(work, asyncio.get_running_loop().time() + self._settings.delay_s(work))
        else:
            self._book.give_back(work)
            self._failure = self._failure or failure_of(work, error)
        self._start_ready()

    async def _try(self, work: Work) -> Exception | None:
        """Call the handler; after its last try, store the record as a dead letter. Returns None if the record is
        finished, otherwise the error."""
        traces = self._core.reading.traces
        try:
            with _UNTRACED if traces is None else traces.processing(work.record):
                returned = self._handler(await self._record_of(work))
                if inspect.isawaitable(returned):
                    await returned
        except asyncio.CancelledError as cancelled:
            if _is_cancelled():
                raise
            # the handler itself caused the cancellation; if the record were only returned to the book, no task would
            # handle it
            error: Exception = RuntimeError("the handler awaited a task or future that was cancelled")
            error.__cause__ = cancelled
        except Exception as raised:  # noqa: BLE001 - it decides what becomes of the record
            error = raised
        else:
            return None
        return error if self._settings.may_retry(work, error) else await self._bury(work, error)

    async def _record_of(self, work: Work) -> Record:
        reading, record = self._core.reading, work.record
        while self._deserializes:
            record.key, record.value = work.key, work.value
            try:
                return reading.deserialize(record)
            except WouldWait as waiting:
                await waiting.end(float("inf"))
        return record

    async def _bury(self, work: Work, error: Exception) -> Exception | None:
        """Store a record as a dead letter; returns the error of a record that cannot be stored."""
        topic = self._settings.dead_letters
        if topic is None:
            return error
        work.has_failed = True
        if self._dead_letters is None:
            self._dead_letters = AsyncProducer(producer_config(self._core.config))
        try:
            await self._dead_letters.send_and_wait(topic, **letter_of(work, error))
        except Exception as failure:  # noqa: BLE001 - any error ends the run; a task that died would hang it
            found = BuryError(topic, error)
            found.__cause__ = failure
            return found
        logger.warning("process: %s is a dead letter in %s: %s", work, topic, described(error))
        return None

    async def _end(self) -> None:
        """Wait for running handlers, set the positions to the first unfinished records, and commit."""
        self._book.close()
        if self._tasks:
            _, running = await asyncio.wait(self._tasks, timeout=DRAIN_S)
            if running:
                name_unfinished(self._book.running_of())
                for task in running:
                    task.cancel()  # its record is handled again
        positions = self._go_back()
        try:
            if positions and self._core.reading.state == "open":
                await self._core.engine.io.run_async(self._group.commit_work(positions))
        except HeadraceError as error:
            logger.warning("process: the last commit failed, so its records may be read again: %s", error)
        finally:
            if self._dead_letters is not None:
                await self._dead_letters.close()

    def _go_back(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Set the positions to the first unfinished records; only the first call has an effect. Returns the positions
        to commit."""
        reading = self._core.reading
        if self._has_gone_back or reading.state != "open":
            return {}
        self._has_gone_back = True
        positions = self._group.positions()
        go_back(reading, positions)
        self._flow.release()
        return positions

    # --- Progress ----------------------------------------------------------------------------------------------------

    def assigned(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        self._book.assigned(offsets)

    async def revoking(self, partitions: list[TopicPartition]) -> None:
        self._book.close(partitions)
        loop = asyncio.get_running_loop()
        until = loop.time() + DRAIN_S
        while self._book.is_running(partitions) and loop.time() < until:
            self._changed.clear()
            await self._change(until - loop.time())
        name_unfinished(self._book.running_of(partitions))

    def forget(self, partitions: list[TopicPartition]) -> None:
        self._book.forget(partitions)
        self._flow.forget(partitions)

    def positions(self, read: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._book.positions(read)


def _is_cancelled() -> bool:
    """Whether this task itself was cancelled, not only the task or future that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
