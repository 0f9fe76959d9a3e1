"""The part of a consumer that never waits: reading, group membership, queries, close."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headrace_core.errors import IllegalStateError
from headrace_core.records import Record
from headrace_core.types import TopicPartition

from .. import arguments
from ..engine.client import Engine
from ..engine.io_thread import END_S, forget
from ..engine.offsets import ISOLATION, list_offsets
from ..faces import several, where
from ..group.commits import GroupOffsets
from ..group.membership import LEAVE_S
from ..models import OffsetAndMetadata, OffsetAndTimestamp
from .fetcher import reset_timestamp
from .group import Callbacks, GroupConsumer
from .reading import Reading, each_of
from .subscribing import check_group, not_both, subscription_of

#: Who waits for records: a thread's ident, or a task.
Reader = int | asyncio.Task[Any] | None


class ConsumerCore:
    """The state and the calls that the blocking and the asyncio consumer have in common."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.engine = Engine(config, self, on_failure=_interrupter(weakref.ref(self)))
        self.reading = Reading(config, self.engine)
        #: The consumer's group; None until the first use of ``group.id``.
        self.group: GroupConsumer | None = None
        self.isolation = ISOLATION[config["isolation.level"]]
        self.reader: Reader = None

    def shown(self) -> list[str]:
        parts = [where(self.config)]
        if self.config["group.id"]:
            parts.append(f"group {self.config['group.id']!r}")
        if self.group is not None and self.group.subscription is not None:
            pattern = self.group.subscription.pattern
            topics = f"pattern {pattern!r}" if pattern else several("topics", sorted(self.group.subscription.topics))
            parts.append(f"subscribed to {topics}")
        if self.reading.partitions:
            parts.append(several("assigned", sorted(self.reading.partitions)))
        return [*parts, self.reading.state]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment; partitions in the old and the new assignment keep their positions."""
        self.reading.check_open()
        if self.group is not None and self.group.subscription is not None:
            raise not_both(subscribed=True)
        wanted = each_of(partitions)
        group = self.in_group("assign") if self.config["group.id"] else None
        if group is not None:
            group.assigned_by_hand()
            self.reading.fetcher.committed = group.committed_of
        self.reading.replace_assignment(wanted, from_group=group is not None)

    def in_group(self, what: str) -> GroupConsumer:
        """The consumer's group. Raises InvalidGroupIdError, which says that ``what`` needs ``group.id``, if the
        consumer has no group."""
        self.reading.check_open()
        if self.group is None:
            check_group(self.config, what)
            self.group = GroupConsumer(self.config, self.engine, self.reading)
        return self.group

    def subscribe(self, topics: Iterable[str] | None, pattern: str | None, callbacks: Callbacks) -> None:
        group = self.in_group("subscribe")
        if self.reading.partitions and group.subscription is None:
            raise not_both(subscribed=False)
        group.subscribe(subscription_of(topics, pattern), callbacks)

    def refuse_during_process(self, what: str) -> None:
        """Raise IllegalStateError while ``process`` runs: records that the method ``what`` took would never reach the
        handler of ``process``, and would be committed."""
        if self.group is not None and self.group.is_processing:
            raise IllegalStateError(
                f"{what}: process() runs, and its handler gets the records of this consumer; use another consumer, or "
                "wait until process() returns"
            )

    def offsets_to_commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit, for the argument ``offsets`` of a commit. While ``process`` runs, the offsets cover
        the records that its handlers have finished. After ``process``, the offsets still list the finished records that
        follow the position. Raises InvalidArgumentError; IllegalStateError for given offsets while ``process`` runs,
        because records before them may be unfinished."""
        group = self.in_group("commit")
        if offsets is None:
            return group.positions()
        if group.is_processing:
            raise IllegalStateError(
                "commit: process() runs, and commits finished records itself; call commit() without offsets to commit "
                "them now, or do not call commit()"
            )
        return self.reading.offsets_to_commit(offsets)

    def refuse_reader(self, reader: Reader) -> None:
        """Raise IllegalStateError if another thread (an ident) or task than ``reader`` polls now: a poll counts the
        records of earlier polls as processed, and only one of two waiting calls would be woken."""
        other = self.reader
        if other is not None and other != reader and not _has_ended(other):
            raise IllegalStateError(
                "another thread or task is polling this consumer at this moment: give each a consumer of its own (of "
                "the same group), let one poll and pass the records on, or use process(handler, concurrency=...)"
            )

    @contextlib.contextmanager
    def alone(self, reader: Reader) -> Iterator[None]:
        """A block that waits for records; Consumer.poll does without, since it is called for every few records."""
        self.refuse_reader(reader)
        other, self.reader = self.reader, reader
        try:
            yield
        finally:
            self.reader = other

    def begin_poll(self) -> bool:
        """Check that the consumer may poll. Returns whether the caller must first run the group's steps."""
        reading, group = self.reading, self.group
        if reading.state != "open" or self.engine.has_failed:
            reading.check_open()
        if group is not None and group.subscription is not None:
            group.check()
        elif not reading.partitions:
            raise IllegalStateError(
                "nothing is assigned to this consumer: subscribe([topic]), or assign([TopicPartition(topic, number)])"
            )
        if reading.is_dirty:
            reading.sync()
        return group is not None and group.has_work

    def offsets_for_transaction(self) -> GroupOffsets:
        """The offsets for ``Producer.send_offsets``: the positions after the records that ``poll`` has returned."""
        group = self.in_group("send_offsets")
        if group.is_processing:
            raise IllegalStateError(
                "send_offsets: process() runs, and records before the consumer's positions may be unfinished; use "
                "poll() to consume, transform and produce in transactions"
            )
        return group.in_transaction(self.reading.positions())

    def named_or_all(self, partitions: tuple[TopicPartition | Iterable[TopicPartition], ...]) -> list[TopicPartition]:
        """Return the given partitions; if none is given, all assigned partitions."""
        self.reading.check_open()
        return each_of(partitions) if partitions else list(self.reading.partitions)

    def seek_to_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Set positions. For a partition without an offset, auto.offset.reset determines the position."""
        policy: str = self.config["auto.offset.reset"]
        for tp, found in offsets.items():
            if found is not None:
                self.reading.seek(tp, found.offset)
            else:
                reset_timestamp(None, policy, tp)
                self.reading.seek_to((tp,), policy)

    # --- queries (on the I/O thread) ---------------------------------------------------------------------------------

    async def offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        wanted = {arguments.partition(tp): timestamp for tp, timestamp in timestamps.items()}
        self.engine.start()
        return await list_offsets(self.engine, wanted, self.isolation, self.engine.deadline(timeout_s))

    async def find_position(self, tp: TopicPartition, reset: str | None, timeout_s: float | None) -> int:
        self.engine.start()
        if reset is None and self.group is not None and self.reading.assigned(tp).from_group:
            committed = (await self.group.fetch_work([tp], timeout_s))[tp]
            if committed is not None:
                return committed.offset
        timestamp = reset_timestamp(reset, self.config["auto.offset.reset"], tp)
        found = await list_offsets(self.engine, {tp: timestamp}, self.isolation, self.engine.deadline(timeout_s))
        return found[tp].offset

    async def partition_numbers(self, topic: str, timeout_s: float | None) -> list[int]:
        info = await self.engine.topic(arguments.topic(topic), timeout_s, create=False)
        return [part.partition for part in info.partitions]

    # --- close -------------------------------------------------------------------------------------------------------

    def begin_close(self) -> bool:
        if self.reading.state != "open":
            return False
        self.reading.close()
        forget(self)
        if not self.engine.is_used:
            self.engine.metadata.listeners.clear()  # (shut_down cuts the reference cycles of a used consumer)
            self.reading.inbox.close()
        return self.engine.is_used

    async def shut_down(self) -> None:
        if self.group is not None:
            await self.group.end()
        await self.reading.fetcher.close()
        await self.engine.close()

    def at_exit(self) -> None:
        """Leave the group without a commit, because the program has not closed the consumer."""
        if self.begin_close():
            self.engine.io.finish(self.shut_down(), LEAVE_S + END_S)

    def after_fork(self) -> None:
        self.reading.state = "forked"

    def metric_values(self) -> dict[str, float]:
        return self.reading.metric_values() | ({} if self.group is None else self.group.metric_values())


def _has_ended(reader: int | asyncio.Task[Any]) -> bool:
    if isinstance(reader, int):
        return all(thread.ident != reader for thread in threading.enumerate())
    return reader.done() or reader.get_loop().is_closed()


def _interrupter(core_of: weakref.ref[ConsumerCore]) -> Callable[[], None]:
    """Return a function that wakes a call that waits for records, so that the call raises the failure of the client."""

    def interrupt() -> None:
        core = core_of()
        if core is not None:
            core.reading.interrupt()

    return interrupt


def deadline_after(timeout_s: float | None) -> float:
    """time.monotonic() in ``timeout_s`` seconds; None: infinity."""
    return float("inf") if timeout_s is None else time.monotonic() + timeout_s
