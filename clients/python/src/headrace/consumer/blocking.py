"""Consumer: the blocking consumer."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from headrace_core.errors import ClosedError
from headrace_core.records import Record
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

from .. import arguments
from ..callbacks import check_callback, check_handler, refuse_to_wait, run_callback
from ..faces import ConsumerFace
from ..group.commits import GroupOffsets
from ..models import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from ..serializers import WouldWait
from ..settings import CONSUMER, from_file, resolve
from ..typed_settings import ConsumerSettings
from .core import ConsumerCore, deadline_after
from .driving import committed_of, drive
from .group import Callback, Callbacks

if TYPE_CHECKING:
    import pyarrow as pa

    from .processing.book import Order

#: fetch_arrow adds slices to one table up to this many bytes.
ARROW_BYTES = 16 * 1024 * 1024


#: Rebalance callback, called with (consumer, partitions).
Rebalanced = Callable[["Consumer", list[TopicPartition]], object]


class Consumer(ConsumerFace):
    """Reads records. The consumer's partitions are assigned by the group (``subscribe``) or by the program
    (``assign``).

        with Consumer(bootstrap_servers="127.0.0.1:9095", group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])          # or consumer.assign([TopicPartition("orders", 0)])
            for record in consumer:
                print(record.offset, record.value)

    Pass the configuration as a dict with Kafka's dotted names, or as snake_case keywords. Only one thread at a time may
    use a consumer. A consumer connects at its first call, then fetches records ahead in the background, up to
    ``fetch.queue.max.bytes``. The methods of a consumer raise BootstrapError, UnknownTopicOrPartitionError,
    OffsetOutOfRangeError and NoOffsetForPartitionError (``auto.offset.reset=none``), CorruptMessageError,
    SerializationError, ClosedError.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[ConsumerSettings]) -> None:
        self._core = ConsumerCore(resolve(CONSUMER, config, settings))
        self._iterator: Iterator[Record] | None = None
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

    # --- subscription and assignment ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to the cluster now, instead of at the first call. Raises BootstrapError, which names each address and
        its failure, within ``bootstrap.timeout.ms``; SaslAuthenticationFailedError. A repeated ``start`` does
        nothing."""
        self._core.reading.check_open()
        self._core.engine.io.run(self._core.engine.connect())

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        on_assigned: Rebalanced | None = None,
        on_revoked: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
    ) -> None:
        """Join the group ``group.id``, which assigns partitions of the given topics to the consumer. A second
        ``subscribe`` replaces the previous subscription.

        ``pattern``: a regular expression; the subscription has all topics whose whole name matches it (RE2, KIP-848).
        ``on_assigned``, ``on_revoked`` and ``on_lost`` are called with (consumer, partitions), in the caller's thread,
        during poll, iteration, unsubscribe and close. In ``on_revoked`` the consumer still owns the partitions and may
        commit their offsets; in ``on_lost`` (default: the ``on_revoked`` callback) other members may own the
        partitions. Reading of a partition begins at the group's committed offset; without a committed offset,
        ``auto.offset.reset`` decides. An empty list of topics means ``unsubscribe``. Raises InvalidGroupIdError,
        InvalidTopicError, InvalidArgumentError, IllegalStateError (partitions are assigned with ``assign``).
        """
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked), ("on_lost", on_lost)):
            check_callback(name, callback)
        if topics is not None and not isinstance(topics, str):
            topics = arguments.items("topics", topics, "topic names")
        if topics == [] and pattern is None:
            self.unsubscribe()
            return
        callbacks = Callbacks(*(self._bound(each) for each in (on_assigned, on_revoked, on_lost)))
        self._core.subscribe(topics, pattern, callbacks)
        self._callbacks = callbacks

    def _bound(self, callback: Rebalanced | None) -> Callback | None:
        if callback is None:
            return None
        this = weakref.ref(self)
        return lambda partitions: callback(this(), partitions)  # type: ignore[arg-type]

    def subscription(self) -> frozenset[str]:
        """The topics of the subscription; empty after a subscription by pattern."""
        group = self._core.group
        return frozenset() if group is None or group.subscription is None else frozenset(group.subscription.topics)

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        core = self._core
        core.reading.check_open()
        refuse_to_wait()
        if core.group is not None:
            drive(core.group.leave_steps(), core.engine.io)
        core.reading.clear_assignment()

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None) -> None:
        """Commit offsets to the group: the positions after the returned records, or the given offsets (the offset of
        the next record to read). While ``process`` runs, a commit without offsets covers the finished records, and a
        commit with offsets raises IllegalStateError.

        ``commit`` returns when all in-sync replicas have stored the commit. Raises InvalidGroupIdError;
        UnknownMemberIdError, FencedMemberEpochError, StaleMemberEpochError, FencedInstanceIdError (the consumer has
        lost its partitions); RequestTimedOutError (no response within ``default.api.timeout.ms``: the commit may have
        succeeded).
        """
        core = self._core
        group = core.in_group("commit")
        core.engine.io.run(group.commit_work(core.offsets_to_commit(offsets), core.reading.traceparent()))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None,
        callback: Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], object] | None = None,
    ) -> Future[None]:
        """Commit like ``commit``, without waiting for the result; commits take effect in the order of their calls.
        ``callback(offsets, error)`` runs on Headrace's I/O thread and must not block (a blocking call in it raises
        IllegalStateError); its exceptions are logged."""
        core = self._core
        check_callback("callback", callback)
        group = core.in_group("commit")
        wanted = core.offsets_to_commit(offsets)
        future = core.engine.io.submit(group.commit_work(wanted, core.reading.traceparent()))
        if callback is not None:
            future.add_done_callback(
                lambda done: run_callback(callback, wanted, CancelledError() if done.cancelled() else done.exception())
            )
        return future

    @overload
    def committed(self, partitions: TopicPartition, timeout: float | None = None) -> int | None: ...

    @overload
    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition], timeout: float | None = None
    ) -> int | dict[TopicPartition, OffsetAndMetadata | None] | None:
        """The group's committed offsets: an int for one partition, a dict for several partitions. None: no offset."""
        core = self._core
        wanted, is_one = committed_of(partitions)
        found = core.engine.io.run(core.in_group("committed").fetch_work(wanted, timeout))
        if not is_one:
            return found
        committed = found[wanted[0]]
        return None if committed is None else committed.offset

    def group_metadata(self) -> GroupMetadata:
        """This consumer's group id, member id and epoch, which a transaction needs to commit offsets (KIP-447)."""
        return self._core.in_group("group_metadata").metadata

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment with the given partitions. Partitions that are in the old and the new assignment keep
        their positions."""
        self._core.assign(partitions)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned to this consumer, by ``assign`` or by its group."""
        return set(self._core.reading.partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the partition's position to ``offset``: the next poll reads from this offset."""
        self._core.reading.seek(arguments.partition(partition), offset)

    def seek_to_committed(
        self, *partitions: TopicPartition | Iterable[TopicPartition], timeout: float | None = None
    ) -> None:
        """Set the positions of the given partitions to the group's committed offsets, to read the records of an aborted
        transaction again. Without an argument, ``seek_to_committed`` applies to all assigned partitions.
        ``auto.offset.reset`` decides for a partition without a committed offset. ``seek_to_committed`` waits while an
        open transaction contains offsets of these partitions. Raises InvalidGroupIdError, NoOffsetForPartitionError,
        RequestTimedOutError."""
        core = self._core
        work = core.in_group("seek_to_committed").fetch_work(core.named_or_all(partitions), timeout)
        core.seek_to_offsets(core.engine.io.run(work))

    def seek_to_beginning(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Set the positions of the given partitions (no argument: all assigned partitions) to the log start; the next
        poll looks up the offset."""
        self._core.reading.seek_to(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Set the positions of the given partitions (no argument: all assigned partitions) to the log end; the next
        poll looks up the offset."""
        self._core.reading.seek_to(partitions, "latest")

    def pause(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Stop fetching and returning records of the given partitions until ``resume``."""
        self._core.reading.pause(partitions)

    def resume(self, *partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Undo pause."""
        self._core.reading.resume(partitions)

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {tp for tp, assigned in self._core.reading.partitions.items() if assigned.paused}

    # --- reading ---------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Return records as soon as there are any; return an empty list after ``timeout`` seconds without records. The
        list is empty earlier if a position has moved over data without records for the caller: aborted transactions,
        transaction markers (KAFKA-12980).

        Returns at most ``max_records`` (default ``max.poll.records``) of one or more partitions; the records of each
        partition are in offset order.
        """
        core, own = self._core, threading.get_ident()
        other = core.reader
        if core.group is not None:
            core.refuse_during_process("poll")
        if other is not None:
            core.refuse_reader(own)
        core.reader = own
        try:
            return self._poll(timeout, max_records)
        finally:
            core.reader = other

    def _poll(self, timeout: float, max_records: int | None) -> list[Record]:
        core = self._core
        timeout, most = arguments.polling(timeout, max_records)
        refuse_to_wait()
        if core.begin_poll():
            self._rebalance()
        deadline = time.monotonic() + timeout
        core.reading.skipped = False
        while True:
            try:
                records = core.reading.drain(most or core.reading.max_poll_records)
            except WouldWait as waiting:  # a deserializer needs an answer of the schema registry
                if not waiting.block(deadline):
                    return []
                self._begin_poll()  # a rebalance may have begun
                continue
            if records or core.reading.skipped or timeout <= 0 or not self._wait(deadline):
                return records

    def batches(self, timeout: float = 1.0, max_records: int | None = None) -> Iterator[list[Record]]:
        """Iterate over the non-empty lists that ``poll`` returns, until the consumer is closed.

            for records in consumer.batches():
                handle(records)

        ``timeout`` (seconds, above 0) and ``max_records`` limit each poll; the iteration waits for new records.
        """
        self._core.reading.check_open()
        return self._batches(*arguments.batching(timeout, max_records))

    def _batches(self, timeout: float, max_records: int | None) -> Iterator[list[Record]]:
        reading = self._core.reading
        while reading.state == "open":
            try:
                records = self.poll(timeout, max_records)
            except ClosedError:
                if reading.state == "closed":
                    return
                raise
            if records:
                yield records

    def _begin_poll(self) -> None:
        refuse_to_wait()
        if self._core.begin_poll():
            self._rebalance()

    def _rebalance(self) -> None:
        core = self._core
        if core.group is not None:
            drive(core.group.steps(), core.engine.io)
        core.reading.sync()

    def _wait(self, deadline: float) -> bool:
        """Wait until there may be records or rebalance events; return False when ``deadline`` passes first."""
        core, group = self._core, self._core.group
        if group is None:
            if not core.reading.inbox.wait(deadline):
                return False
            if core.reading.state != "open" or core.engine.has_failed:
                core.reading.check_open()
            return True
        while core.reading.state == "open":  # (a callback may have closed the consumer)
            group.is_here = True
            try:
                has_some = core.reading.inbox.wait(group.wake_at(deadline))
            finally:
                group.is_here = False
            if core.reading.state != "open":
                return False
            self._begin_poll()
            if has_some:
                return True
            if time.monotonic() >= deadline:
                return False
        return False

    def process(
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
        stop: threading.Event | None = None,
    ) -> None:
        """Handle records concurrently: call ``handler(record)`` for each record, up to ``concurrency`` at a time, until
        ``stop`` is set or an error is raised.

            consumer.subscribe(["orders"])
            consumer.process(store_in_database, concurrency=64, dead_letters="orders.dead-letters")

        The handler runs in threads, so it must be thread-safe; the caller's thread polls. With ``order="key"``, records
        with the same key in a partition are handled one after another, in the order of their offsets. With
        ``order="partition"``, all records of a partition are handled one after another. With ``order="none"``, records
        are handled in any order. Finished records are committed every ``commit_interval`` seconds, also if
        ``enable.auto.commit`` is off. A commit also covers finished records that follow an unfinished one. After a
        crash, only records that no commit covers are handled again (at-least-once).

        A handler that raises is called again after ``retry_backoff`` seconds, doubled each time up to
        ``retry_backoff_max``. The handler is called again at most ``retries`` times; later records with the same key
        wait. After the last retry, the record is sent to the topic ``dead_letters`` with the reason in its headers. A
        record that cannot be deserialized is sent to ``dead_letters`` without a retry. If ``dead_letters`` is None, the
        failed record ends the run with ProcessingError. While the limit of records in progress is reached, ``process``
        does not poll. At its end, ``process`` waits up to 30 s for running handlers; then the consumer's position is
        the first unfinished record.

        Raises InvalidArgumentError, InvalidGroupIdError (no ``group.id``), IllegalStateError (``process`` runs
        already), ProcessingError, and what ``poll`` raises.
        """
        from .processing.blocking import Run
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
        check_handler("handler", handler)
        arguments.stop_event(stop)
        Run(self._core, self._poll, self._begin_poll, handler, settings).run(stop)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over records without end; the iteration waits for new records. A seek or pause takes effect at the
        next record."""
        core = self._core
        core.refuse_during_process("iteration")
        self._begin_poll()
        while core.reading.state == "open":
            iterator = core.reading.next_iterator()
            if iterator is not None:
                try:
                    yield from core.reading.iterate_ready(iterator)
                except WouldWait as waiting:
                    waiting.block(deadline_after(None))
                if core.reading.state == "open":
                    self._begin_poll()
            else:
                with core.alone(threading.get_ident()):
                    has_some = self._wait(deadline_after(None))
                if not has_some and core.reading.state == "open":
                    self._begin_poll()

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
        columns: Iterable[str] | None = None,
        include_headers: bool | None = None,
        max_bytes: int = ARROW_BYTES,
    ) -> pa.Table:
        """Return fetched records as an Arrow table; the table is empty after ``timeout`` seconds without records, or
        earlier (see ``poll``).

        The columns of the table are the same as in the Spark source: key, value, topic, partition, offset, timestamp,
        timestampType, headers. ``fetch_arrow`` makes no Python object for a record, and does not call deserializers.
        ``columns``: names of the columns to return; ``max_bytes``: limit of the keys, values and headers of a table,
        however well they were compressed; a record that is larger comes alone. ``include_headers``: whether the table
        has the column headers in addition to ``columns`` (None: only without ``columns``).
        """
        import pyarrow as pa

        from headrace_core.records.arrow import arrow_schema

        core = self._core
        timeout = arguments.seconds(timeout)
        names, headers = arguments.arrow(columns, include_headers, max_bytes)
        schema = arrow_schema(None if names is None else tuple(names), headers)
        core.refuse_during_process("fetch_arrow")
        with core.alone(threading.get_ident()):
            self._begin_poll()
            deadline = deadline_after(timeout)
            core.reading.skipped = False
            while True:
                batches = core.reading.take_arrow(max_bytes, names, headers)
                if batches or core.reading.skipped or not self._wait(deadline):
                    break
        return pa.Table.from_batches(batches, schema=schema)

    # --- offsets and metadata --------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The position of the partition: the offset of the next record that a poll returns."""
        core, tp = self._core, arguments.partition(partition)
        core.reading.check_open()
        found = core.reading.known_position(tp)
        if found is None:
            assigned = core.reading.assigned(tp)
            found = core.engine.io.run(core.find_position(tp, assigned.reset, timeout))
            core.reading.seek(tp, found)
        return found

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        return {tp: found.offset for tp, found in self._offsets(partitions, EARLIEST_TIMESTAMP, timeout).items()}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The end offset of each partition: one past the last record that this consumer could read."""
        return {tp: found.offset for tp, found in self._offsets(partitions, LATEST_TIMESTAMP, timeout).items()}

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up the first record at or after each timestamp (ms since 1970); None for a timestamp after all
        records."""
        core = self._core
        core.reading.check_open()
        found = core.engine.io.run(core.offsets(arguments.times(timestamps_ms), timeout))
        return {tp: None if item.offset < 0 else item for tp, item in found.items()}

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partition numbers of a topic. Raises UnknownTopicOrPartitionError."""
        core = self._core
        core.reading.check_open()
        return core.engine.io.run(core.partition_numbers(topic, timeout))

    def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        core = self._core
        core.reading.check_open()
        return core.engine.io.run(core.offsets(dict.fromkeys(arguments.partitions(partitions), timestamp), timeout))

    def metrics(self) -> dict[str, float]:
        """Kafka's consumer metrics by name (``records-consumed-rate``, ``fetch-latency-avg``, ...); times are in ms."""
        return self._core.metric_values()

    def partition_metrics(self) -> dict[TopicPartition, dict[str, float]]:
        """``records-consumed-total`` and ``records-lag`` of each partition (the lag only of assigned partitions)."""
        return self._core.reading.partition_values()

    def close(self, timeout: float | None = None) -> None:
        """Revoke the group's partitions (``on_revoked``, auto-commit), wait for the commits in flight (of
        ``commit_async``), leave the group, and close the connections. ``timeout``: seconds for all of this, except for
        the callbacks (None: close.timeout.ms); a commit that has not ended in this time raises RequestTimedOutError
        (the outcome is unknown)."""
        self._close(timeout, commits=True)

    def _close(self, timeout: float | None, *, commits: bool) -> None:
        core = self._core
        refuse_to_wait()
        timeout = core.engine.close_timeout_s if timeout is None else arguments.seconds(timeout)
        self._finalizer.detach()
        try:
            if core.reading.state == "open" and core.group is not None:
                drive(core.group.leave_steps(timeout, commits=commits), core.engine.io, timeout)
        finally:
            if core.begin_close():
                core.engine.io.end(core.shut_down())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # The program may not have processed the records of an interrupted iteration, so do not commit their offsets.
        self._close(None, commits=kind is None)
