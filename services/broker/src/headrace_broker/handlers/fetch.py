"""The Fetch service. A Fetch stream is a fetch session, and each request on it gets one response, in order.

A fetch stream is in one of three states::

    idle      no request, or too many answers unwritten          -> a request, or room in the queue
    waiting   a long poll without min_bytes                      -> enough new bytes, time over, or a newer request
    reading   only partitions outside the page cache have records -> the end of the read-ahead

An answer has the records that are in memory. What the answer met outside the page cache is read ahead on a thread, and
comes first in the next answer (``_ReadAhead``), so a few cold partitions do not delay the others, and thousands of them
need few answers.

After a large response the session is a bulk session, until a small response. ``BulkTurns`` schedules the next request
of a bulk session, so that the broker serves other clients between two large responses.

Callbacks handle all states of a fetch stream: an idle session needs no task, and a waiting request needs one timer. A
session's position advances only when a response is queued, so an abandoned request changes no position.

A consumer that names its rack may read from a follower. If a follower is in the consumer's rack and the leader is not,
the leader's response names this follower (KIP-392). When a response names another broker, the partition leaves the
session, and the consumer adds the partition to a session with that broker. A consumer without a rack reads only from
leaders, so it notices a change of leader at once.

A new request on the stream ends the wait of the previous request, even if the new request is empty. Because a new
request ends the previous wait, a client with two requests always in flight would poll without pause at the log's end.
Clients should send a second fetch request ahead only while responses contain records.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.log import ReadResult
from headrace_core.metadata.shards import SHARD_TOPICS
from headrace_core.metrics.calls import CallTimes
from headrace_core.quotas import CONSUMER_BYTE_RATE, ClientLimits, throttle_ms
from headrace_core.quotas.callers import limits_of
from headrace_core.rpc.memory import give_memory_back
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.security.access import current_access
from headrace_core.security.acl_types import Operation, ResourceType
from headrace_core.security.refusals import refusal
from headrace_core.types import TopicPartition
from headrace_core.unexpected import answer_to, log_fields
from headrace_protos.v1 import common_pb2, fetch_pb2, fetch_pb2_grpc

from ..context import BrokerContext
from ..flow import BULK_BYTES, QUOTA, StreamFlow
from ..leader_replica import LeaderReplica
from ..partition.session import FetchSession, SessionPartition
from ..partition.versions import check_epoch, check_topic_id
from ..reading import Readable, nearer_replica

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 50 * 1024 * 1024
DEFAULT_PARTITION_MAX_BYTES = 1024 * 1024
#: Maximum bytes of a fetch response, even if the client allows more: larger responses gain nothing and cost memory
#: (decision 5).
ANSWER_BYTES_MAX = 1024 * 1024
#: Bytes that one callback reads for a response. A larger response, which only Kafka's clients get, is read in turns.
PORTION_BYTES = 1024 * 1024
#: When a fetch stream has more than QUEUED_BYTES_MAX bytes of unwritten responses, its next fetch request waits.
QUEUED_BYTES_MAX = 2 * ANSWER_BYTES_MAX
#: Maximum bytes of a fetch response while clients leave too many response bytes unread over all streams
#: (``Flow.unread``).
CROWDED_ANSWER_BYTES_MAX = 64 * 1024
#: After requests of one stream that together name more partitions than this number, the event loop runs other tasks
#: before the stream's next request.
TURN_PARTITIONS_MAX = 500
#: Maximum number and maximum bytes of queued fetch requests; above either maximum the broker does not read the stream.
#: Each fetch stream has its own limit: under a shared limit, clients that read no responses would stop all other
#: clients.
QUEUED_REQUESTS_MAX = 64
QUEUED_REQUEST_BYTES_MAX = 64 * 1024
#: Bytes counted for a fetch response, and for each of its partitions, in addition to the records: an empty response is
#: not free.
_OVERHEAD_BYTES = 64
_ABORTED_BYTES = 24  #: Bytes counted for an aborted transaction in a fetch response.
#: Limits of one read-ahead of a stream: partitions, and the milliseconds after which it begins no further read. It
#: occupies a thread, which other streams need too.
AHEAD_PARTITIONS_MAX = 512
AHEAD_MS = 100.0
#: Milliseconds between two searches for a replica that is nearer to a consumer than the leader (KIP-392).
NEARER_LOOK_MS = 5_000
_EMPTY = b""


class FetchService(fetch_pb2_grpc.FetchServicer):
    """headrace.v1.Fetch. ``is_internal``: the service is for coordinators, which have no quotas, and read only their
    shards. A stolen certificate of a coordinator gives no access to users' topics, because coordinators may read only
    shards."""

    def __init__(self, broker: BrokerContext, *, is_internal: bool = False) -> None:
        self._broker = broker
        self._is_internal = is_internal

    async def Fetch(self, request_iterator: Any, context: Any) -> None:
        limits = None if self._is_internal else limits_of(self._broker.quotas, context)
        if limits is not None:
            await self._broker.connections.admitted(context)
        stream: ServerStream[Any, Any] = ServerStream(context)
        fetches = FetchStream(self._broker, stream, limits, only_shards=self._is_internal)
        self._broker.streams.add(stream)
        self._broker.fetches.add(fetches)
        self._broker.client_streams += not self._is_internal
        try:
            await stream.run(fetches)
        finally:
            self._broker.streams.discard(stream)
            self._broker.fetches.discard(fetches)
            self._broker.client_streams -= not self._is_internal


class _Piece(NamedTuple):
    """The part of a fetch response for one partition. ``nearer`` is the broker in the consumer's rack from which the
    consumer should read instead. ``has_more``: the log has further readable records, such as the records of the next
    segment."""

    entry: SessionPartition
    replica: Readable
    slice: ReadResult | None
    error: HeadraceError | None
    nearer: int | None = None
    has_more: bool = False


class _ColdRead(NamedTuple):
    """A partition to read from the disk. What is found is valid for the offset ``position``, as long as ``cuts`` is
    still the number of the log's truncations."""

    partition: TopicPartition
    replica: Readable
    position: int
    cuts: int
    room: int
    up_to: int

    def is_of(self, entry: SessionPartition, replica: Readable) -> bool:
        return (self.replica, self.position, self.cuts) == (replica, entry.position, replica.log.cuts)


#: The outcomes of a read-ahead.
_Found = list[tuple[_ColdRead, ReadResult | Exception]]


def _read_ahead(wanted: list[_ColdRead], most: int, committed: bool, monotonic_ms: Callable[[], float]) -> _Found:
    """Read the partitions on a thread, for AHEAD_MS and up to ``most`` bytes, at least the first."""
    found: _Found = []
    until_ms = monotonic_ms() + AHEAD_MS
    for each in wanted:
        if found and monotonic_ms() > until_ms:
            break
        try:
            read = each.replica.read_cold(each.position, min(each.room, most), each.up_to, committed=committed)
        except Exception as error:  # noqa: BLE001  (the partition's outcome)
            found.append((each, error))
            continue
        if found and len(read.records) > most:
            break  # too large for this answer; the next one finds it in memory
        found.append((each, read))
        most -= len(read.records)
        if most <= 0:
            break
    return found


class FetchStream(StreamHandler[Any]):
    __slots__ = (
        "_access",
        "_acls",
        "_ahead",
        "_answer_bytes_max",
        "_broker",
        "_closed",
        "_cold",
        "_committed",
        "_current",
        "_flow",
        "_held_back",
        "_is_bulk",
        "_is_reading_ahead",
        "_looked_ms",
        "_looked_s",
        "_loop",
        "_only_shards",
        "_rack",
        "_reading",
        "_refused",
        "_replicas",
        "_requests",
        "_requests_bytes",
        "_response",
        "_session",
        "_started_s",
        "_stream",
        "_timer",
        "_times",
        "_turn_asked",
        "_unread",
        "_wake_scheduled",
    )

    def __init__(
        self,
        broker: BrokerContext,
        stream: ServerStream[Any, Any],
        limits: ClientLimits | None = None,
        *,
        only_shards: bool = False,
        response: Callable[..., Any] = fetch_pb2.FetchResponse,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        times: CallTimes | None = None,
    ) -> None:
        """``limits``: the quotas of the stream's client; None: no quotas. ``only_shards``: only the topics of the
        coordinators may be read. ``response``: the class of the answers. ``times``: those of the client's listener, if
        it is not the gRPC listener of clients."""
        self._broker = broker
        self._response = response
        self._answer_bytes_max = answer_bytes_max
        self._only_shards = only_shards
        self._flow = StreamFlow(broker.flow, limits, lambda: None, self._pump)
        self._times = times or broker.metrics.client_times
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._session = FetchSession(self._schedule_wake)
        self._access = current_access()
        #: The version of the ACLs with which the session's partitions were last checked.
        self._acls = self._access.authorization.authorizer
        self._replicas: dict[TopicPartition, Readable] = {}
        self._rack = ""  #: The consumer's rack, and the time of the last search for a replica near the consumer.
        self._looked_ms: dict[TopicPartition, float] = {}
        self._requests: deque[tuple[Any, int]] = deque()  # queued requests, each with its size as received
        self._requests_bytes = 0
        self._unread = 0  # bytes of this stream's answers, as counted in the broker's total
        self._current: Any = None  # the fetch request in progress
        self._looked_s = 0.0  # when the broker began to collect the response
        self._started_s = 0.0  # when the handling of the request in progress began
        self._committed = False  # whether the request in progress is read_committed.
        #: Partitions with committed bytes above the last stable offset, which a read_committed session may not read
        #: yet, each with its last stable offset.
        self._held_back: dict[TopicPartition, tuple[Readable, int]] = {}
        self._refused: list[Any] = []  # results for partitions that the current request named wrongly
        #: The partitions that are read ahead now, and what was read and not sent yet: by the read-ahead, and for a
        #: response that takes several turns.
        self._ahead: dict[TopicPartition, _ColdRead] = {}
        self._cold: dict[TopicPartition, tuple[_ColdRead, ReadResult | HeadraceError]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading_ahead = False
        self._reading = False  # whether the request in progress waits for the read-ahead
        self._is_bulk = False  # whether the last response was large
        self._turn_asked = False  # whether a turn will call ``_take_turn``
        self._wake_scheduled = False
        self._closed = False
        self._flow.begin(CONSUMER_BYTE_RATE)

    def on_request(self, request: Any) -> None:
        if request.max_wait_ms < 0 or request.min_bytes < 0 or request.max_bytes < 0:
            raise InvalidRequestError(
                f"fetch request {request.correlation_id}: max_wait_ms={request.max_wait_ms}, "
                f"min_bytes={request.min_bytes}, max_bytes={request.max_bytes}: must not be negative"
            )
        size = self._stream.request_bytes
        self._requests.append((request, size))
        self._requests_bytes += size
        if self._requests_bytes > QUEUED_REQUEST_BYTES_MAX:
            self._stream.pause()
        if self._current is not None and not self._reading:
            self._look(give_up=True)  # a newer request ends the wait of the older request
        elif len(self._requests) > QUEUED_REQUESTS_MAX:
            self._stream.pause()
        if self._is_bulk:
            self._ask_turn()
        else:
            self._broker.flow.turns.noted_s = time.perf_counter()
            self._process()

    def is_idle(self) -> bool:
        return self._current is None and not self._requests

    def on_written(self) -> None:
        unread = self._stream.queued_bytes
        self._broker.flow.unread += unread - self._unread
        self._unread = unread
        if self._requests:
            self._pump()

    def on_closed(self) -> None:
        self._closed = True
        self._flow.close()
        self._broker.flow.unread -= self._unread
        if self._unread >= ANSWER_BYTES_MAX:
            give_memory_back()
        self._unread = 0
        self._stop_waiting()
        self._current = None
        self._requests.clear()
        for replica in self._replicas.values():
            replica.reads.unsubscribe(self._session)
        self._replicas.clear()
        self._cold.clear()
        self._ahead.clear()
        self._session.close()

    def _pump(self) -> None:
        """Process queued requests; ``BulkTurns`` schedules the requests of a bulk session."""
        if self._is_bulk:
            self._ask_turn()
        else:
            self._process()

    def _ask_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._broker.flow.turns.ask(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_asked = False
        if not self._closed:
            self._go_on()

    def _go_on(self) -> None:
        """Answer the request in progress, if it can be answered now, and process queued requests."""
        if self._current is not None and not self._reading:
            self._look(give_up=self._current.max_wait_ms == 0)
        self._process()

    def _process(self) -> None:
        """Process queued requests until a request has to wait, a response is large, too many responses are unwritten,
        or this callback has run for long."""
        looked_up, has_answered = 0, False
        flow, stream = self._broker.flow, self._stream
        while (
            self._requests
            and self._current is None
            and not self._flow.holds & QUOTA  # the next request of a client that is over a quota waits
            and stream.queued_bytes < (1 if flow.unread > flow.unread_max else QUEUED_BYTES_MAX)
        ):
            if has_answered and self._is_bulk:
                self._ask_turn()
                break
            has_answered = True
            if looked_up > TURN_PARTITIONS_MAX:
                self._loop.call_soon(self._pump)
                return
            request, size = self._requests.popleft()
            self._requests_bytes -= size
            self._current = request
            self._started_s = time.perf_counter()
            looked_up += len(request.partitions)
            committed = request.isolation_level == common_pb2.ISOLATION_LEVEL_READ_COMMITTED
            if committed is not self._committed:
                self._committed = committed
                self._cold.clear()
                self._ahead.clear()
            self._rack = request.rack or self._rack
            if request.partitions or request.forgotten:
                self._apply(request)
            self._broker.metrics.fetch_requests.value += 1
            self._look(give_up=request.max_wait_ms == 0)
        if (
            len(self._requests) <= QUEUED_REQUESTS_MAX // 2
            and self._requests_bytes <= QUEUED_REQUEST_BYTES_MAX // 2
            and stream.paused
        ):
            stream.resume()

    def _look(self, *, give_up: bool) -> None:
        """Answer the stream's current fetch request, if it can be answered now. With ``give_up`` the response does not
        wait for new records, but waits for a read from the disk if no records are in memory. The ACLs may have changed
        since the request arrived, perhaps days ago."""
        if self._acls is not self._access.authorization.authorizer:
            self._check_again()
        request, flow, limits = self._current, self._broker.flow, self._flow.limits
        self._looked_s = time.perf_counter()
        largest = CROWDED_ANSWER_BYTES_MAX if flow.unread > flow.unread_max else self._answer_bytes_max
        most = min(request.max_bytes or DEFAULT_MAX_BYTES, largest, self._broker.limits.fetch_bytes_max)
        if limits is not None and limits.manager.table.keys:
            of_quota = limits.fetch_bytes_max(self._looked_s)
            most = most if of_quota is None else min(most, of_quota)
        pieces, size, is_cold, is_whole = self._collect(most)
        if not is_whole:
            self._ask_turn()
            return
        if is_cold and not size:
            self._stop_waiting()
            self._reading = True
            return
        wanted = min(request.min_bytes, most)
        failed = bool(self._refused) or any(piece.error is not None or piece.nearer is not None for piece in pieces)
        # If records must be read from the disk, answer now with the records in memory; the consumer's next request gets
        # the records on the disk. A read also ends at a segment's end, so records of the next segment are left to the
        # consumer's next request, too.
        has_more = is_cold or any(piece.has_more for piece in pieces)
        if size >= wanted or has_more or failed or give_up or self._requests:
            self._stop_waiting()
            self._answer(request, pieces, size)
            return
        self._session.expect(wanted - size, self._held_back)
        if self._timer is None:
            self._timer = self._loop.call_later(request.max_wait_ms / 1000, self._time_over)

    def _collect(self, most: int) -> tuple[list[_Piece], int, bool, bool]:
        """Collect up to ``most`` bytes of records from the ready partitions, without advancing positions, and begin to
        read what is not in memory. Returns the pieces, their bytes, whether a partition is not in memory, and whether
        they are all. If not, PORTION_BYTES were read; the next call reads on, and finds them in ``_cold``."""
        pieces: list[_Piece] = []
        cold: list[_ColdRead] = []
        fresh: dict[TopicPartition, tuple[_ColdRead, ReadResult | HeadraceError]] = {}
        size, is_cold, unread = 0, False, PORTION_BYTES
        self._held_back = {}
        for entry in self._session.ready():
            replica = self._replicas[entry.partition]
            reads = replica.reads
            try:
                if self._broker.partitions.refusal is not None:
                    raise self._broker.partitions.refusal.copy()
                reads.check_serving()
                if self._rack:
                    nearer = self._nearer(entry, replica)
                    if nearer is not None:
                        pieces.append(_Piece(entry, replica, None, None, nearer))
                        continue
                end = up_to = reads.high_watermark
                if self._committed:
                    end = replica.last_stable_offset
                    if end < up_to:
                        self._held_back[entry.partition] = replica, end
                if entry.position >= end or entry.position < reads.log_start:
                    if not reads.log_start <= entry.position <= reads.log_end:
                        raise _out_of_range(entry, replica)
                    pieces.append(_Piece(entry, replica, None, None))
                    continue
                room = min(entry.max_bytes, most - size)
                if room <= 0:
                    break
                ahead = self._ahead.get(entry.partition)
                if ahead is not None and ahead.is_of(entry, replica):
                    is_cold = True
                    continue
                read, found = self._cold.get(entry.partition, (None, None))
                if read is None or found is None or not read.is_of(entry, replica):
                    if unread <= 0:
                        self._cold.update(fresh)
                        return pieces, size, is_cold, False
                    self._cold.pop(entry.partition, None)
                    cuts = replica.log.cuts
                    found = replica.read(entry.position, room, up_to, committed=self._committed)
                    if found is not None:
                        unread -= len(found.records)
                        fresh[entry.partition] = (
                            _ColdRead(entry.partition, replica, entry.position, cuts, room, up_to),
                            found,
                        )
                if found is None:
                    cold.append(
                        _ColdRead(entry.partition, replica, entry.position, replica.log.cuts, entry.max_bytes, up_to)
                    )
                    if len(cold) == AHEAD_PARTITIONS_MAX:
                        break
                    continue
                if isinstance(found, HeadraceError):
                    raise found
                piece = found
                if read is not None and not size and len(piece.records) > room:  # read ahead for a larger max_bytes
                    piece = replica.read(entry.position, room, up_to, committed=self._committed) or piece
            except HeadraceError as error:
                pieces.append(_Piece(entry, replica, None, error))
                continue
            if size and len(piece.records) > room:
                break  # only an answer's first batch may exceed the requested size
            size += len(piece.records) + len(piece.aborted) * _ABORTED_BYTES
            pieces.append(_Piece(entry, replica, piece, None, has_more=entry.position < piece.next_offset < end))
        if cold and not self._is_reading_ahead:
            self._start_read_ahead(cold, most)
        return pieces, size, is_cold or bool(cold), True

    def _answer(self, request: Any, pieces: list[_Piece], size: int) -> None:
        response = self._response(correlation_id=request.correlation_id, results=self._refused)
        total_size = size + response.ByteSize() + _OVERHEAD_BYTES
        self._refused = []
        tell = response.results.add  # build results in place: adding a finished message would copy its records
        for entry, replica, piece, error, nearer, _ in pieces:
            reads, position = replica.reads, entry.position
            if error is not None:
                self._drop(entry.partition)
                response.results.append(self._failure(entry.partition, position, error))
                continue
            if nearer is not None:
                self._drop(entry.partition)
                tell(
                    topic=entry.partition.topic,
                    partition=entry.partition.partition,
                    fetch_offset=position,
                    next_offset=position,
                    high_watermark=reads.high_watermark,
                    last_stable_offset=replica.last_stable_offset,
                    log_start_offset=reads.log_start,
                    preferred_read_replica=nearer,
                )
                continue
            next_offset = position if piece is None else piece.next_offset
            high_watermark, log_start = reads.high_watermark, reads.log_start
            if piece is not None or entry.has_changed(high_watermark, log_start):
                entry.sent_high_watermark, entry.sent_log_start = high_watermark, log_start
                if self._session.undescribed:
                    self._session.undescribed.pop(entry.partition, None)
                result = tell(
                    topic=entry.partition.topic,
                    partition=entry.partition.partition,
                    fetch_offset=position,
                    next_offset=next_offset,
                    high_watermark=high_watermark,
                    last_stable_offset=replica.last_stable_offset,
                    log_start_offset=log_start,
                    records=_EMPTY if piece is None else piece.records,
                )
                if piece is not None:
                    traffic = replica.traffic
                    traffic.bytes_out += len(piece.records)
                    traffic.records_out += next_offset - position
                for transaction in () if piece is None else piece.aborted:
                    result.aborted_transactions.add(
                        producer_id=transaction.producer_id, first_offset=transaction.first_offset
                    )
            self._session.advance(entry, next_offset, exhausted=next_offset >= high_watermark)
            self._cold.pop(entry.partition, None)
        if self._session.undescribed:
            self._describe_others(response)
        self._current = None
        now_s, flow, limits = time.perf_counter(), self._broker.flow, self._flow.limits
        self._times.of("Fetch").observe(now_s - self._started_s)
        self._broker.metrics.fetch_bytes.value += size
        self._is_bulk = size >= BULK_BYTES
        if not self._is_bulk:
            flow.turns.noted_s = now_s
        if limits is not None and limits.manager.table.keys:
            wait_s = self._flow.throttle(limits.fetched(total_size, now_s))
            response.throttle_time_ms = throttle_ms(max(wait_s, self._flow.worked(self._looked_s)))
        self._stream.send(response, total_size + _OVERHEAD_BYTES * len(response.results))
        unread = self._stream.queued_bytes
        flow.unread += unread - self._unread
        self._unread = unread

    def _describe_others(self, response: Any) -> None:
        """Add the offsets of new partitions for whose records the response has no room: a consumer learns the high
        watermarks of all partitions with its first fetch, as in Kafka. The partitions stay ready, in the same order."""
        for partition in list(self._session.undescribed):
            entry = self._session[partition]
            replica = self._replicas[entry.partition]
            reads = replica.reads
            try:
                reads.check_serving()
            except HeadraceError:
                continue  # the next response has the error
            high_watermark, log_start = reads.high_watermark, reads.log_start
            entry.sent_high_watermark, entry.sent_log_start = high_watermark, log_start
            del self._session.undescribed[partition]
            response.results.add(
                topic=entry.partition.topic,
                partition=entry.partition.partition,
                fetch_offset=entry.position,
                next_offset=entry.position,
                high_watermark=high_watermark,
                last_stable_offset=replica.last_stable_offset,
                log_start_offset=log_start,
            )

    def _schedule_wake(self) -> None:
        """Called when enough bytes have arrived for the waiting fetch request. Answer the waiting fetch request at the
        end of the present event loop pass, with all records that arrive in the pass."""
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._wake_scheduled = False
        if self._current is None or self._reading or (self._held_back and self._waits_for_markers()):
            return
        if self._is_bulk:
            self._ask_turn()
            return
        self._look(give_up=self._current.max_wait_ms == 0)
        if self._requests:
            self._process()

    @property
    def is_waiting(self) -> bool:
        return self._timer is not None

    def _waits_for_markers(self) -> bool:
        """Whether the waiting request was woken only by records of open transactions, which its consumer cannot read
        yet. (A transaction's end marker is small but makes all records of the transaction readable.)"""
        return self._session.expected is not None and all(
            replica.last_stable_offset == end for replica, end in self._held_back.values()
        )

    def _time_over(self) -> None:
        self._timer = None
        if self._current is not None and not self._reading:
            self._look(give_up=True)
            self._pump()

    def _stop_waiting(self) -> None:
        self._session.expected = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_read_ahead(self, cold: list[_ColdRead], most: int) -> None:
        self._is_reading_ahead = True
        self._ahead = {each.partition: each for each in cold}
        read = functools.partial(_read_ahead, cold, most, self._committed, self._broker.clock.monotonic_ms)
        cold[0].replica.threads.run(read).add_done_callback(self._was_read_ahead)

    def _was_read_ahead(self, done: asyncio.Future[_Found]) -> None:
        self._is_reading_ahead = False
        waits, self._reading = self._reading, False
        if self._closed or done.cancelled():
            return
        for read, found in done.result():
            if self._ahead.get(read.partition) is not read:
                continue  # a seek, or the partition has left the session
            if isinstance(found, Exception) and not isinstance(found, HeadraceError):
                what = f"a read of {read.partition} at offset {read.position} from the disk"
                logger.error("%s failed", what, exc_info=found, extra=log_fields(found))
                found = answer_to(found, what)
            self._cold[read.partition] = read, found
        self._ahead.clear()
        if waits and self._is_bulk:
            self._ask_turn()
        elif waits:
            self._go_on()

    def _apply(self, request: Any) -> None:
        for item in request.forgotten:
            self._drop(TopicPartition(item.topic, item.partition))
        granted = self._access.granted(Operation.READ, ResourceType.TOPIC)
        for item in request.partitions:
            partition = TopicPartition(item.topic, item.partition)
            try:
                if self._only_shards and partition.topic not in SHARD_TOPICS:
                    raise TopicAuthorizationFailedError(
                        f"{partition.topic}: the internal listener serves only {' and '.join(SHARD_TOPICS)}, to "
                        "coordinators; read other topics at a listener for clients"
                    )
                if granted is not None and partition.topic not in granted:
                    self._access.require(Operation.READ, ResourceType.TOPIC, partition.topic)
                self._put(partition, item)
            except HeadraceError as error:
                self._drop(partition)
                self._refused.append(self._failure(partition, item.fetch_offset, error))

    def _check_again(self) -> None:
        """Called when the ACLs have changed: drop the partitions that the caller is no longer authorized to read."""
        self._acls = self._access.authorization.authorizer
        refused = self._access.refused(
            (each.topic for each in self._session.partitions()), Operation.READ, ResourceType.TOPIC
        )
        for partition in self._session.partitions() if refused else ():
            if partition.topic in refused:
                error = refusal(Operation.READ, ResourceType.TOPIC, partition.topic, self._access.caller.principal)
                self._drop(partition)
                self._refused.append(self._failure(partition, -1, error))

    def _put(self, partition: TopicPartition, item: Any) -> None:
        replica = self._readable(partition)
        reads = replica.reads
        check_topic_id(reads, item.topic_id)
        check_epoch(reads, item.current_leader_epoch)
        if item.fetch_offset < 0:
            raise OffsetOutOfRangeError(
                f"{partition}: fetch_offset={item.fetch_offset} is negative; ask ListOffsets for an offset to start "
                "from"
            )
        if item.max_bytes < 0:
            raise InvalidRequestError(f"{partition}: max_bytes={item.max_bytes} is negative")
        replica.check_not_truncated(item.fetch_offset, item.last_fetched_epoch)
        entry = SessionPartition(
            partition,
            position=item.fetch_offset,
            max_bytes=item.max_bytes or DEFAULT_PARTITION_MAX_BYTES,
            current_leader_epoch=item.current_leader_epoch,
            last_fetched_epoch=item.last_fetched_epoch,
            topic_id=item.topic_id,
        )
        self._cold.pop(partition, None)
        self._ahead.pop(partition, None)
        self._session.put(entry)
        before = self._replicas.get(partition)
        if before is not replica:
            if before is not None:
                before.reads.unsubscribe(self._session)
            self._replicas[partition] = replica
        reads.subscribe(self._session)

    def _drop(self, partition: TopicPartition) -> None:
        self._session.forget(partition)
        self._cold.pop(partition, None)
        self._ahead.pop(partition, None)
        self._looked_ms.pop(partition, None)
        replica = self._replicas.pop(partition, None)
        if replica is not None:
            replica.reads.unsubscribe(self._session)

    def _readable(self, partition: TopicPartition) -> Readable:
        replicas = self._broker.partitions
        return replicas.readable(partition) if self._rack else replicas.leader(partition)

    def _nearer(self, entry: SessionPartition, replica: Readable) -> int | None:
        """The broker id of a follower in the consumer's rack, or None. Only a leader looks for a follower in the
        consumer's rack, at intervals, and only if the leader is in another rack."""
        broker = self._broker
        if not (broker.reads_by_rack and isinstance(replica, LeaderReplica)):
            return None
        now_ms = broker.clock.monotonic_ms()
        looked_ms = self._looked_ms.get(entry.partition)
        if looked_ms is not None and now_ms - looked_ms < NEARER_LOOK_MS:
            return None
        self._looked_ms[entry.partition] = now_ms
        return nearer_replica(replica.leader, entry.position, self._rack, broker.rack_of)

    def _failure(self, partition: TopicPartition, position: int, error: HeadraceError) -> Any:
        self._broker.metrics.fetch_errors.value += 1
        self._times.failed("Fetch", error.code)
        error = self._broker.partitions.for_clients(partition, error)
        hint = self._broker.partitions.leader_hint(partition, error)
        high_watermark = last_stable_offset = log_start = -1
        # Return the log's bounds with OffsetOutOfRangeError, to save the client a request.
        if isinstance(error, OffsetOutOfRangeError):
            with contextlib.suppress(HeadraceError):
                replica = self._readable(partition)
                reads = replica.reads
                # While the directory writer's thread advances the log start, the log can already have a higher log
                # start than its PartitionLeader.
                high_watermark, log_start = reads.high_watermark, max(reads.log_start, replica.log.log_start_offset)
                last_stable_offset = replica.last_stable_offset
        return fetch_pb2.FetchPartitionResult(
            topic=partition.topic,
            partition=partition.partition,
            error=error_to_proto(error),
            fetch_offset=position,
            next_offset=position,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log_start,
            current_leader=None if hint is None else common_pb2.LeaderHint(leader_id=hint[0], leader_epoch=hint[1]),
        )


def _out_of_range(entry: SessionPartition, replica: Readable) -> OffsetOutOfRangeError | OffsetNotAvailableError:
    reads = replica.reads
    if entry.position > reads.log_end and not isinstance(replica, LeaderReplica):
        return OffsetNotAvailableError(
            f"{entry.partition}: offset {entry.position} has not reached this follower yet, whose log ends at "
            f"{reads.log_end}; retry, or read from the leader"
        )
    return OffsetOutOfRangeError(
        f"{entry.partition}: offset {entry.position} is outside of the log, which has offsets {reads.log_start} up "
        f"to {reads.log_end}"
    )
