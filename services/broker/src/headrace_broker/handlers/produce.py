"""The Produce service: read, check, hand to the log's owner, answer when the promise is met.

A request costs no task: the stream's reader calls ``on_request``, the directory's writer calls back, and the last
partition to finish queues the answer. Once handed over, an append happens whatever becomes of the stream, so that
cancellation never tears a write.

Back-pressure: a stream is not read while more than ``stream_bytes_max`` of its requests are unanswered, or while the
broker as a whole holds more than its budget.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    RecordListTooLargeError,
    RequestTimedOutError,
)
from headrace_core.rpc.status import error_to_proto
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.types import FlushPolicy, TopicPartition
from headrace_protos.v1 import common_pb2, produce_pb2, produce_pb2_grpc

from ..deadlines import Expiring

if TYPE_CHECKING:
    from ..context import BrokerContext
    from ..replica import Appended, Replica

logger = logging.getLogger(__name__)

_DURABILITY = {
    FlushPolicy.COMMIT: produce_pb2.DURABILITY_COMMIT,
    FlushPolicy.INTERVAL: produce_pb2.DURABILITY_INTERVAL,
    FlushPolicy.OS: produce_pb2.DURABILITY_OS,
}
_ACKS = (produce_pb2.ACKS_UNSPECIFIED, produce_pb2.ACKS_ALL, produce_pb2.ACKS_LEADER, produce_pb2.ACKS_NONE)


class ProduceService(produce_pb2_grpc.ProduceServicer):
    """headrace.v1.Produce."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    async def Produce(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        await stream.run(ProduceStream(self._broker, stream))


class _Pending(Expiring):
    """A request under way. ``results`` has a place for each of its partitions."""

    __slots__ = ("acks", "answered", "correlation_id", "names", "remaining", "results", "size", "stream")

    def __init__(self, stream: ProduceStream, correlation_id: int, acks: int, partitions: int, size: int) -> None:
        super().__init__()
        self.stream = stream
        self.correlation_id = correlation_id
        self.acks = acks
        self.results: list[Any] = [None] * partitions
        self.names: list[tuple[str, int]] = []
        self.remaining = partitions
        self.size = size
        self.answered = False

    def expire(self) -> None:
        self.stream.expired(self)


class ProduceStream(StreamHandler[Any]):
    """One client's stream."""

    __slots__ = ("_broker", "_in_flight", "_in_flight_bytes", "_paused_self", "_stream")

    def __init__(self, broker: BrokerContext, stream: ServerStream[Any, Any]) -> None:
        self._broker = broker
        self._stream = stream
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._holds: int = 0

    # -- StreamHandler -----------------------------------------------------------------------------------------------

    def on_request(self, request: Any) -> None:
        broker = self._broker
        partitions = request.partitions
        count = len(partitions)
        if count == 0:
            raise InvalidRequestError(f"produce request {request.correlation_id} names no partition")
        if request.timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms={request.timeout_ms}: must not be negative")
        acks = request.acks
        pending = _Pending(self, request.correlation_id, acks, count, 0)
        size = 0
        batches: list[bytes] = []
        for item in partitions:
            records = item.records
            size += len(records)
            batches.append(records)
        pending.size = size
        refused: HeadraceError | None = None
        if acks not in _ACKS:
            refused = InvalidRequiredAcksError(f"acks={acks}: must be NONE, LEADER or ALL")
        elif size > broker.limits.request_bytes_max:
            refused = RecordListTooLargeError(
                f"the request has {size} bytes of records; socket.request.max.bytes={broker.limits.request_bytes_max}"
            )
        self._begin(pending)
        if count > 1 or refused is None:
            pending.names = [(item.topic, item.partition) for item in partitions]
        if refused is not None:
            for index, item in enumerate(partitions):
                self._failed(pending, index, item.topic, item.partition, refused)
            return
        if acks != produce_pb2.ACKS_NONE:
            broker.deadlines.add(pending, request.timeout_ms or broker.limits.request_timeout_ms)
        now_ms = broker.clock.now_ms()
        metrics = broker.metrics
        metrics.produce_requests.value += 1
        metrics.produce_bytes.value += size
        for index, item in enumerate(partitions):
            topic, number = pending.names[index]
            try:
                replica = broker.replicas.leader(topic, number)
                if item.topic_id:
                    replica.leader.check_topic_id(item.topic_id)
                replica.append(
                    batches[index],
                    now_ms,
                    functools.partial(self._appended, pending, index, replica),
                    wait_for_isr=acks in (produce_pb2.ACKS_ALL, produce_pb2.ACKS_UNSPECIFIED),
                )
            except HeadraceError as error:
                self._failed(pending, index, topic, number, error)

    def is_idle(self) -> bool:
        return self._in_flight == 0

    def on_closed(self) -> None:
        self._broker.budget.forget(self)

    # -- back-pressure (ByteBudget's Pausable) -----------------------------------------------------------------------

    def pause(self) -> None:
        self._holds |= 1
        self._stream.pause()

    def resume(self) -> None:
        self._holds &= ~1
        if not self._holds:
            self._stream.resume()

    # -- a request's life --------------------------------------------------------------------------------------------

    def _begin(self, pending: _Pending) -> None:
        self._in_flight += 1
        self._in_flight_bytes += pending.size
        if self._in_flight_bytes > self._broker.limits.stream_bytes_max:
            self._holds |= 2
            self._stream.pause()
        self._broker.budget.take(pending.size, self)

    def _end(self, pending: _Pending) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= pending.size
        if self._holds & 2 and self._in_flight_bytes <= self._broker.limits.stream_bytes_max:
            self._holds &= ~2
            if not self._holds:
                self._stream.resume()
        self._broker.budget.give_back(pending.size)
        if not self._in_flight:
            self._stream.check_idle()

    def _appended(
        self, pending: _Pending, index: int, replica: Replica, outcome: Appended | HeadraceError
    ) -> None:
        """The promise for one partition is met, or cannot be."""
        topic, number = pending.names[index]
        if isinstance(outcome, HeadraceError):
            self._failed(pending, index, topic, number, outcome)
            return
        pending.results[index] = produce_pb2.ProducePartitionResult(
            topic=topic,
            partition=number,
            base_offset=outcome.base_offset,
            log_append_time_ms=outcome.append_time_ms,
            log_start_offset=replica.leader.log_start,
            durability=_DURABILITY[outcome.flush_policy],
        )
        self._one_done(pending)

    def _failed(self, pending: _Pending, index: int, topic: str, number: int, error: HeadraceError) -> None:
        self._broker.metrics.produce_errors.value += 1
        pending.results[index] = self._refusal(topic, number, error)
        if pending.acks == produce_pb2.ACKS_NONE:
            logger.debug("produce to %s-%d with acks NONE failed: %s", topic, number, error)
        self._one_done(pending)

    def _refusal(self, topic: str, number: int, error: HeadraceError) -> Any:
        hint = self._broker.replicas.leader_hint(TopicPartition(topic, number), error)
        return produce_pb2.ProducePartitionResult(
            topic=topic,
            partition=number,
            error=error_to_proto(error),
            base_offset=-1,
            log_append_time_ms=-1,
            log_start_offset=-1,
            current_leader=None if hint is None else common_pb2.LeaderHint(leader_id=hint[0], leader_epoch=hint[1]),
        )

    def _one_done(self, pending: _Pending) -> None:
        pending.remaining -= 1
        if pending.remaining:
            return
        self._broker.deadlines.discard(pending)
        self._end(pending)
        if not pending.answered:
            self._answer(pending)

    def _answer(self, pending: _Pending) -> None:
        pending.answered = True
        if pending.acks != produce_pb2.ACKS_NONE:
            self._stream.send(
                produce_pb2.ProduceResponse(correlation_id=pending.correlation_id, results=pending.results)
            )

    def expired(self, pending: _Pending) -> None:
        """The time-out is over: answer now. What was appended stays appended; its bytes stay counted until it ends."""
        if pending.answered:
            return
        results = pending.results
        pending.results = [
            result
            or self._refusal(
                *pending.names[index],
                RequestTimedOutError("the append was not confirmed in time; whether it took effect is not known"),
            )
            for index, result in enumerate(results)
        ]
        self._answer(pending)
        pending.results = results
