"""One replica of the registry: the state that it has read from the topic, and the writes of the elected writer.

The topic ``_schemas`` has one partition, and the replicas are a consumer group of the topic. Every replica reads the
topic. The member that has the partition is the writer:

    state       meaning                                           left by
    FOLLOWER    reads the topic, refuses writes                   assigned: CANDIDATE
    CANDIDATE   fences the last writer, announces itself;         announcement applied: WRITER
                writes wait                                       revoked, lost: FOLLOWER
    WRITER      decides and appends                               revoked, lost: FOLLOWER; fenced, error: CANDIDATE

**One writer.** All terms use the same ``transactional.id``. A candidate's InitProducer fences the last writer's
producer and ends its open transaction. The candidate then announces itself by a NOOP record, whose headers have the
candidate's URL and the id of its term. The announcement's transaction also commits an offset as a member of the group
(KIP-447). The coordinator refuses the offset of a replica that is no longer a member, so such a replica cannot announce
itself. The candidate also commits an offset before InitProducer, because a former member must not fence the real
writer. When a candidate reads its own announcement as committed, it has applied every record of every earlier writer.

**After a crash.** The coordinator keeps a dead member, and its partition, for up to the session timeout (45 s). A
restarted replica whose URL is the last writer's URL does not wait: it *claims* a term without the partition and without
offsets. The ``transactional.id`` still fences every other producer of the registry. A replica claims a term only once
after its start, so a member to which the group assigns the partition wins.

**Writes.** The writer decides waiting commands one after the other on a draft of the image. The writer appends the
records of the decided commands in one transaction, and answers when it reads the records back as committed. The image
itself never has a record that is not committed.

**Unknown outcomes.** When a commit fails, the outcome of its transaction is unknown, and no command is answered. The
topic shows the outcome of the transaction: the next announcement of any replica comes after the transaction's end. If a
reader passes the offsets of the transaction and gets no record of it, the transaction was aborted. The writer decides
the commands of an aborted transaction again. A replica that is no longer the writer refuses the commands of an aborted
transaction with NotWriterError.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from headrace import AsyncConsumer, AsyncProducer, TopicPartition
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace_core.clock import SystemClock
from headrace_core.node.tasks import NodeTasks
from headrace_core.plurals import counted
from headrace_core.records import Record
from headrace_core.telemetry import Emitter

from .events import SchemasRead, WriterAnnounced, WriterElected, WriterSteppedDown
from .settings import RegistrySettings
from .state import Decision, Image
from .topic import ensure_topic
from .writes import Batch, NotWriterError, Writes

__all__ = ["NotWriterError", "Registry", "State", "WriteTimeoutError"]

logger = logging.getLogger("headrace.registry")

T = TypeVar("T")

#: Key of the records with which a new writer announces itself. Confluent's registry ignores records with this key.
NOOP_KEY = b'{"keytype":"NOOP","magic":0}'
#: Value of a writer's announcement: not null, because compaction deletes a null value after delete.retention.ms.
NOOP_VALUE = b"{}"
URL_HEADER, TERM_HEADER = "writer", "term"

APPLIED_AT_ONCE = 100  #: Number of records that the reader applies before other tasks run.
FETCH_BYTES = 8 * 1024 * 1024  #: Maximum bytes of fetched records that are not applied yet.
PRODUCER_BATCH_BYTES = 256 * 1024
#: Milliseconds after which the coordinator aborts a dead writer's open transaction, unless a new writer has aborted it.
TRANSACTION_TIMEOUT_MS = 15_000
#: First and longest pause in seconds after a failed election; each further failure doubles the pause.
BACKOFF_S, BACKOFF_MAX_S = 0.1, 2.0
#: A replica whose event loop stood still for SUSPENDED_S seconds was suspended: its image may be old. Another replica
#: becomes the writer after the session timeout (45 s), so a writer notices its suspension before that.
SUSPENDED_S = 5.0
TICK_S = 0.5  #: Seconds between two readings of the clock, by which a replica notices that it was suspended.
#: Seconds that a request waits until a replica that was suspended has read the topic to its end.
CATCH_UP_S = 3.0
#: Seconds after an error until the replica reads the topic again, or joins the group again.
RETRY_S = 1.0
#: Seconds within which a writer must finish its transaction after the group has revoked its partition.
HANDOVER_S = 3.0
#: Maximum number of seconds that a write waits during an election, while no writer is known.
ELECTION_S = 3.0
CLOSE_S = 2.0


class WriteTimeoutError(Exception):
    """The outcome of the write was not known in time: the write may still take effect."""


class State(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    WRITER = "writer"


class _ElectionError(Exception):
    """An election failed; the message says why."""


class Registry:
    """One replica of the registry. Call ``start``, then ``run`` until the replica should stop, then ``stop``.

    ``url``: the address at which other replicas reach this replica. ``image``: the state from the committed records
    that this replica has applied.
    """

    def __init__(self, settings: RegistrySettings, url: str, *, events: Emitter | None = None) -> None:
        self.settings = settings
        self.url = url
        self.image = Image()
        self.is_ready = False
        self.state = State.FOLLOWER
        self.next_offset = 0  #: The offset after the last applied record.
        self._events = events or Emitter()
        self._clock = SystemClock()
        self._partition = TopicPartition(settings.topic, 0)
        self._servers = ",".join(settings.bootstrap_servers)
        self._announced: tuple[str, str] | None = None  # URL and term of the last announcement
        self._writes: Writes | None = None  # None until the topic's limit of a record is known
        self._announcement = asyncio.Event()  # event that the first announcement sets when this replica reads it
        self._news = asyncio.Event()  # event that is set, and replaced, when the writer may have changed
        self._writing = 0  # number of calls of ``write`` that have not returned
        self._is_stopping = False
        self._wake = asyncio.Event()
        self._assigned = asyncio.Event()
        self._run_id = secrets.token_hex(8)  # prefix of the ids of all terms of this replica until it stops
        self._term_id = ""
        self._term: asyncio.Task[None] | None = None
        self._end_reason = ""
        self._has_written = False  # whether this term won its election
        # whether this replica is a candidate or writer although it does not have the partition
        self._is_claimed = False
        self._closing: set[asyncio.Task[None]] = set()
        self._awake_ms = 0.0  #: Time at which the event loop last read the clock.
        #: Set while the image is known to be current; cleared from a suspension until the topic is read to its end.
        self._is_current = asyncio.Event()
        self._is_current.set()
        self._reader: AsyncConsumer | None = None
        self._member: AsyncConsumer | None = None
        self._tasks = NodeTasks("registry")

    # --- what the API uses -------------------------------------------------------------------------------------------

    @property
    def writer_url(self) -> str | None:
        """The URL of the writer, as far as this replica knows; its own URL if it writes."""
        if self.state is State.WRITER and self._assigned.is_set():
            return self.url
        if self._announced is None or self._announced[0] == self.url:  # the announced term of this replica is over
            return None
        return self._announced[0]

    @property
    def is_writer(self) -> bool:
        """Whether this replica decides writes, at once or after its election."""
        return self._assigned.is_set()

    async def write(self, decide: Callable[[Image], Decision[T]]) -> T:
        """Decide on the newest image, append the decision's records, and return its answer when they are committed and
        applied. ``decide`` may be called several times, and must read only the image that it gets.

        Raises the RegistryError of ``decide``, and RecordTooLargeError for a record above the topic's limit. Raises
        NotWriterError on another replica than the writer: at once if the writer is known, otherwise after ELECTION_S.
        Raises WriteTimeoutError if the outcome is not known after ``write_timeout_s``.
        """
        self._writing += 1
        try:
            async with asyncio.timeout(self.settings.write_timeout_s):
                return await self._written(decide)
        except TimeoutError:
            raise WriteTimeoutError(
                f"the write was not committed within {self.settings.write_timeout_s:g} s and may still take effect; "
                "read the subject, or send the request again"
            ) from None
        finally:
            self._writing -= 1
            self._tell_news()

    async def _written(self, decide: Callable[[Image], Decision[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ELECTION_S
        while True:
            if self._assigned.is_set():
                assert self._writes is not None
                outcome = self._writes.submit(decide)
                self._wake.set()
                try:
                    return await outcome
                except NotWriterError:  # this replica is no longer the writer, and has not written the command
                    pass
            if self.writer_url is not None or loop.time() >= deadline or not self.is_ready:
                raise NotWriterError(self.writer_url)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()

    async def wait_for_other_writer(self, url: str) -> bool:
        """Wait, at most ELECTION_S, until the replica at ``url`` is no longer the known writer. Return whether another
        writer is known, which may be this replica."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ELECTION_S):
                while self.writer_url in (None, url):
                    await self._news.wait()
                return True
        return False

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create or check the topic, read it to its end, and join the group; returns when reads can be answered.

        Raises HeadraceError; call ``stop`` after an error too.
        """
        begun_ms = self._clock.monotonic_ms()
        self._writes = Writes(await ensure_topic(self.settings))
        reader = self._reader = AsyncConsumer(
            self.settings.client,
            bootstrap_servers=self._servers,
            client_id="schema-registry-reader",
            isolation_level="read_committed",
            auto_offset_reset="none",
            fetch_queue_max_bytes=FETCH_BYTES,
        )
        reader.assign([self._partition])
        reader.seek(self._partition, 0)
        records = 0
        try:
            async with asyncio.timeout(self.settings.init_timeout_s):
                end = (await reader.end_offsets([self._partition]))[self._partition]
                while await reader.position(self._partition) < end:
                    records += await self._read(reader)
        except TimeoutError:
            raise RequestTimedOutError(
                f"topic {self.settings.topic} was not read to its end within {self.settings.init_timeout_s:g} s "
                f"({counted(records, 'record')} read); raise kafkastore.init.timeout.ms, or check the topic's "
                "leader"
            ) from None
        self.is_ready = True
        self._events.emit(
            SchemasRead(
                topic=self.settings.topic,
                records=records,
                next_offset=self.next_offset,
                seconds=(self._clock.monotonic_ms() - begun_ms) / 1000,
            )
        )
        self._awake_ms = self._clock.monotonic_ms()
        self._tasks.start(self._follow(reader), "reader")
        self._tasks.start(self._stay_awake(), "suspensions")
        if self.settings.is_eligible:
            if self._announced is not None and self._announced[0] == self.url:
                self._accept(is_claimed=True)
            self._tasks.start(self._elections(), "elections")
            self._tasks.start(self._membership(), "membership")

    async def wait_for_writer(self, timeout_s: float) -> bool:
        """Wait until the topic names a writer; return whether the topic names a writer now. The named writer may have
        stopped in the meantime."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._tasks.unless_failed(self._announcement.wait())
        except TimeoutError:
            return False
        return True

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; raises an error if another cause ends the replica."""
        await self._tasks.run_until(stop)

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the replica, even if its start is not complete or has failed. Idempotent.

        Unless ``at_once``, the writer first finishes its transaction and leaves the group. During the stop, writes in
        progress wait until the next writer is known.
        """
        self._is_stopping = True
        timeout_s = 0.0 if at_once else CLOSE_S
        await self._hand_over("the replica stops", timeout_s=timeout_s)
        member, reader = self._member, self._reader
        self._member = self._reader = None
        if member is not None:
            await member.close(timeout_s)
        if not at_once:
            await self._last_writes()
        await self._tasks.cancel()
        if self._term is not None:
            await asyncio.gather(self._term, return_exceptions=True)
        if reader is not None:
            await reader.close(timeout_s)
        await asyncio.gather(*self._closing, return_exceptions=True)
        # Until this point clients with open connections get answers: reads from the last image, writes from the next
        # writer.
        self.is_ready = False

    async def _last_writes(self) -> None:
        """Wait, at most ELECTION_S, until no call of ``write`` is in progress. The reader still runs, so the waiting
        calls of ``write`` learn who the next writer is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ELECTION_S):
                while self._writing:
                    await self._news.wait()

    # --- suspensions -------------------------------------------------------------------------------------------------

    async def catch_up(self) -> bool:
        """Whether the image is current. After a suspension of the process (SIGSTOP, a paused machine) ``catch_up``
        waits, at most CATCH_UP_S, until this replica has read the topic to its end. During the suspension other
        replicas may have written, and another replica may have become the writer."""
        self._notice_suspension()
        if self._is_current.is_set():
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await self._is_current.wait()
        return self._is_current.is_set()

    def _notice_suspension(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._awake_ms > SUSPENDED_S * 1_000:
            logger.warning(
                "this process was suspended for %.1f s: requests wait until topic %s is read to its end",
                (now_ms - self._awake_ms) / 1_000,
                self.settings.topic,
            )
            self._is_current.clear()
        self._awake_ms = now_ms

    async def _stay_awake(self) -> None:
        while True:
            self._notice_suspension()
            await asyncio.sleep(TICK_S)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _follow(self, reader: AsyncConsumer) -> None:
        while True:
            try:
                await self._read(reader)
                if not self._is_current.is_set():
                    end = (await reader.end_offsets([self._partition]))[self._partition]
                    if await reader.position(self._partition) >= end:
                        self._is_current.set()
            except HeadraceError as error:
                if not error.retriable:
                    raise
                logger.warning("cannot read topic %s: %s; trying again", self.settings.topic, error.message)
                await asyncio.sleep(RETRY_S)

    async def _read(self, reader: AsyncConsumer) -> int:
        records = await reader.poll(1.0, APPLIED_AT_ONCE)
        for record in records:
            self._apply(record)
        return len(records)

    def _apply(self, record: Record) -> None:
        assert self._writes is not None
        if (announced := _announcement(record)) is not None:
            self._announced = announced
            self._announcement.set()
            self._tell_news()
            if announced[1] != self._term_id:
                self._events.emit(WriterAnnounced(url=announced[0], offset=record.offset))
                if self.is_ready and announced[0] == self.url and not announced[1].startswith(self._run_id):
                    logger.warning(
                        "the writer announced itself at offset %d, and has the same URL as this replica, %s, so this "
                        "replica cannot forward writes; give each replica its own registry.advertised.url",
                        record.offset,
                        self.url,
                    )
                if self.state is State.WRITER:
                    self._end_term(f"{announced[0]} announced itself as the writer at offset {record.offset}")
        self.image.apply(record.key, record.value, record.offset)
        self.next_offset = record.offset + 1
        self._writes.applied(record.offset)
        self._wake.set()  # the commands of an aborted transaction may be waiting again

    # --- the group ---------------------------------------------------------------------------------------------------

    async def _membership(self) -> None:
        """Stay a member of the group. The group only elects the writer: this consumer pauses the assigned partition,
        and a separate reader reads the topic."""
        member = self._member = AsyncConsumer(
            self.settings.client,
            bootstrap_servers=self._servers,
            client_id="schema-registry",
            group_id=self.settings.group_id,
            auto_offset_reset="latest",
            enable_auto_commit=False,
        )
        await member.subscribe(
            [self.settings.topic],
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_lost,
        )
        committed = -1
        while True:
            try:
                await member.poll(1.0)
                # The member itself reads nothing. The member commits offsets, because otherwise `headrace lag` and the
                # metrics would report that the group has stopped.
                if self.is_writer and not self._is_claimed and self._reader is not None:
                    position = await self._reader.position(self._partition)  # after the last transaction's marker
                    if position != committed:
                        committed = position
                        await member.commit({self._partition: position})
            except HeadraceError as error:  # the consumer repeats failed requests
                if self._is_stopping:
                    return
                logger.warning("group %s: %s", self.settings.group_id, error.message)
                await asyncio.sleep(RETRY_S)

    async def _on_assigned(self, member: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        member.pause(partitions)
        if self._partition in partitions:
            self._accept(is_claimed=False)

    def _accept(self, *, is_claimed: bool) -> None:
        """Begin terms as the writer. ``is_claimed``: this replica begins a term because it was the last writer, and not
        because the group has assigned the partition to it."""
        assert self._writes is not None
        self._is_claimed = is_claimed
        self._writes.accept()
        self._assigned.set()
        self._tell_news()

    async def _on_revoked(self, member: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        if self._partition in partitions:
            await self._hand_over("the group revoked the partition", timeout_s=HANDOVER_S)

    async def _on_lost(self, member: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        if self._partition in partitions:
            await self._hand_over("the group removed this replica", timeout_s=0.0)

    async def _hand_over(self, why: str, *, timeout_s: float) -> None:
        """End the term. ``timeout_s``: how long the transaction in progress may take."""
        self._assigned.clear()
        self._wake.set()
        if self._term is not None and not self._term.done():
            await asyncio.wait([self._term], timeout=timeout_s)
            self._end_term(why)
        self._become_follower()

    def _become_follower(self) -> None:
        self._assigned.clear()
        self.state = State.FOLLOWER
        if self._writes is not None:
            self._writes.refuse(NotWriterError(self.writer_url))
        self._tell_news()

    def _end_term(self, why: str) -> None:
        if self._term is not None and not self._term.done():
            self._end_reason = why
            self._term.cancel()

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _elections(self) -> None:
        """Serve one term after the other while the partition is assigned to this replica."""
        backoff_s = BACKOFF_S
        while True:
            await self._assigned.wait()
            if not self._assigned.is_set():  # the partition was revoked before this task ran again
                continue
            self.state = State.CANDIDATE
            term = self._term = asyncio.create_task(self._serve_term(), name="term of the writer")
            try:
                await asyncio.wait([term])
            finally:
                term.cancel()
                self.state = State.FOLLOWER
            if self._has_written:
                backoff_s, self._has_written = BACKOFF_S, False
            self._events.emit(WriterSteppedDown(reason=self._why_ended(term)))
            if self._is_claimed:
                self._is_claimed = False
                self._become_follower()
            if self._assigned.is_set():
                self.state = State.CANDIDATE
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def _why_ended(self, term: asyncio.Task[None]) -> str:
        """Return the reason why a term ended. Raises the term's error if it is a bug, which stops this replica."""
        if term.cancelled():
            return self._end_reason
        error = term.exception()
        if error is None:
            return "the partition is no longer assigned to this replica"
        if not isinstance(error, HeadraceError | _ElectionError):
            raise error
        return str(error)

    async def _serve_term(self) -> None:
        assert self._writes is not None
        begun_ms = self._clock.monotonic_ms()
        # Commit first: the coordinator refuses the commit of a replica that is no longer a member, so such a replica
        # cannot fence the present writer.
        if not self._is_claimed:
            assert self._member is not None
            await self._member.commit({self._partition: self.next_offset})
        producer = AsyncProducer(
            self.settings.client,
            bootstrap_servers=self._servers,
            client_id="schema-registry-writer",
            transactional_id=self.settings.group_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_request_size=self._writes.record_bytes_max + PRODUCER_BATCH_BYTES,
            # The topic's limit of a record is also its limit of a batch.
            batch_size=min(PRODUCER_BATCH_BYTES, self._writes.record_bytes_max),
        )
        try:
            await producer.init_transactions()
            offset = await self._announce(producer)
            self.state, self._has_written = State.WRITER, True
            self._tell_news()
            seconds = (self._clock.monotonic_ms() - begun_ms) / 1000
            self._events.emit(WriterElected(url=self.url, offset=offset, seconds=seconds))
            while self._assigned.is_set():
                self._wake.clear()
                batch = self._writes.take(self.image, self.next_offset)
                if batch is not None:
                    await self._append(producer, batch)
                else:
                    await self._wake.wait()
        finally:
            # Close the producer in the background: while its coordinator is down, the close would delay the next
            # election.
            closing = asyncio.create_task(producer.close(CLOSE_S), name="close of the writer")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _announce(self, producer: AsyncProducer) -> int:
        """Append this replica's announcement, as a member of the group unless the term is claimed, and wait until the
        reader has applied the announcement.

        Returns the offset of the announcement. Raises HeadraceError if another replica has fenced this replica, or if
        the group has removed this replica. Raises _ElectionError if the announcement was aborted.
        """
        assert self._writes is not None
        self._term_id = f"{self._run_id}-{secrets.token_hex(4)}"
        headers = [(URL_HEADER, self.url.encode()), (TERM_HEADER, self._term_id.encode())]
        await producer.begin_transaction()
        sent = await producer.send(self.settings.topic, NOOP_VALUE, NOOP_KEY, headers, 0)
        if not self._is_claimed:
            assert self._member is not None
            await producer.send_offsets({self._partition: self.next_offset}, self._member.group_metadata())
        offset: int = (await sent).offset
        in_flight = self._writes.sent(Batch(), offset)
        await producer.commit_transaction()
        if not await in_flight.is_committed:
            raise _ElectionError(
                f"this replica's announcement at offset {offset} was aborted; another replica may be the writer"
            )
        return offset

    async def _append(self, producer: AsyncProducer, batch: Batch) -> None:
        """Append a batch as one transaction, and wait until the reader knows its outcome."""
        assert self._writes is not None
        in_flight = None
        try:
            await producer.begin_transaction()
            sent = [await producer.send(self.settings.topic, value, key, None, 0) for key, value in batch.records]
            offsets = [(await each).offset for each in sent]
            in_flight = self._writes.sent(batch, offsets[-1])
            await producer.commit_transaction()
        finally:
            if in_flight is None:  # without a commit the transaction cannot take effect
                self._writes.not_sent(batch)
        await in_flight.is_committed


def _announcement(record: Record) -> tuple[str, str] | None:
    """URL and term of an announcement; None for any other record."""
    if record.key != NOOP_KEY:
        return None
    headers = {name: value for name, value in record.headers if value is not None}
    if URL_HEADER not in headers:
        return None
    return headers[URL_HEADER].decode("utf-8", "replace"), headers.get(TERM_HEADER, b"").decode("utf-8", "replace")
