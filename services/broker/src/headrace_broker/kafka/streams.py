"""Produce and Fetch of Kafka's clients: the handlers that serve gRPC streams, on streams within the process.

Both doors have one code for acks, time-outs, flow control, turns, quotas, transactions, order, cold reads and long
polls: ``ProduceStream`` and ``FetchStream``. Requests and answers are plain objects where protobuf would copy records.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.quotas import ClientLimits
from headrace_core.rpc.receiving import Penalties
from headrace_core.security.access import Access, set_access
from headrace_core.security.caller import set_caller
from headrace_kafka.client import Client
from headrace_protos.v1 import fetch_pb2

from ..context import BrokerContext
from ..handlers.fetch import FetchStream
from ..handlers.produce import ProduceStream

#: Maximum bytes of a fetch response. Kafka's consumers fetch 1 MiB of each partition, and ask again only when they have
#: the whole response, so responses of 1 MiB would leave them without records for a part of the time.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
#: The callback of a request: it receives the response, or the error that ended the request.
Done = Callable[[Any, HeadraceError | None], None]


class LocalStream:
    """What a handler needs of ``rpc.streams.ServerStream``. ``answered`` gets each response."""

    __slots__ = ("_answered", "_client", "_penalties", "closed", "paused", "queued_bytes", "request_bytes")

    def __init__(self, client: Client, penalties: Penalties, answered: Callable[[Any], None]) -> None:
        self._client = client
        self._penalties = penalties
        self._answered = answered
        self.closed = self.paused = False
        self.queued_bytes = 0  #: Always 0: the connection itself bounds the answers that its client has not read.
        self.request_bytes = 0

    def end(self) -> None:
        """The connection has ended; nothing refers to the client or the stream's owner any more."""
        self.closed = True
        self._answered = _nobody

    def send(self, response: Any, size: int = 0) -> None:
        if not self.closed:
            self._answered(response)

    def punish(self, size: int) -> None:
        """Start no further request for a time, because the records of a request were refused as invalid."""
        self._client.mute(1 + int(1_000 * self._penalties.add(f"{id(self)}", size)))

    def pause(self) -> None:
        self.paused = True
        self._client.hold(True)

    def resume(self) -> None:
        self.paused = False
        self._client.hold(False)

    def finish(self, error: BaseException | None = None) -> None:
        """End the client's connection."""
        if not self.closed:
            self._client.hang_up()

    def check_idle(self) -> None:
        """A connection ends by itself."""


def _nobody(_: Any) -> None:
    """Nobody waits for an answer."""


class _Way:
    """A local stream and its handler, for one client and one type of request, until the connection ends."""

    def __init__(self, broker: BrokerContext, client: Client, access: Access, make: Callable[..., Any]) -> None:
        self._broker = broker
        self._next = 0
        self._asked: dict[int, Done] = {}
        self._is_open = True
        self.stream = LocalStream(client, broker.penalties, self._answered)
        limits = ClientLimits(broker.quotas, client.principal.name, client.client_id)
        context = contextvars.copy_context()
        context.run(set_caller, client.caller)
        context.run(set_access, access)
        self.handler: Any = context.run(make, broker, self.stream, limits=limits, times=broker.metrics.kafka_times)
        broker.streams.add(self.stream)
        broker.client_streams += 1

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self._is_open:
            self._is_open = False
            self.stream.end()
            self._asked.clear()
            self._broker.streams.discard(self.stream)
            self._broker.client_streams -= 1
            self.handler.on_closed()

    def _ask(self, request: Any, size: int, done: Done, has_answer: bool) -> None:
        self._next += 1
        request.correlation_id = self._next
        if has_answer:
            self._asked[self._next] = done
        self.stream.request_bytes = size
        try:
            self.handler.on_request(request)
        except HeadraceError as error:
            self._asked.pop(request.correlation_id, None)
            done(None, error)
            return
        if not has_answer:
            done(None, None)

    def _answered(self, response: Any) -> None:
        done = self._asked.pop(response.correlation_id, None)
        if done is not None:
            done(response, None)


# -- Produce ---------------------------------------------------------------------------------------------------------


class _Item:
    """produce_pb2.ProducePartition, without the fields of coordinators."""

    __slots__ = ("partition", "records", "topic", "topic_id", "traceparent")

    def __init__(self, topic: str, partition: int, topic_id: bytes, records: bytes) -> None:
        self.topic, self.partition, self.topic_id, self.records = topic, partition, topic_id, records
        self.traceparent = ""

    def HasField(self, name: str) -> bool:
        """Only coordinators send optional fields."""
        return False


class _Items(list[_Item]):
    def add(self, *, topic: str, partition: int, topic_id: bytes, records: bytes) -> None:
        self.append(_Item(topic, partition, topic_id, records))


class LocalProduceRequest:
    """produce_pb2.ProduceRequest."""

    __slots__ = ("acks", "correlation_id", "partitions", "timeout_ms", "transaction_version", "transactional_id")

    def __init__(self, acks: int, timeout_ms: int) -> None:
        self.acks, self.timeout_ms = acks, timeout_ms
        self.correlation_id = self.transaction_version = 0
        self.transactional_id = ""
        self.partitions = _Items()


class ProduceWay(_Way):
    """The Produce requests of one connection."""

    def __init__(self, broker: BrokerContext, client: Client, access: Access) -> None:
        super().__init__(broker, client, access, ProduceStream)
        client.on_close(self.close)

    @staticmethod
    def request(acks: int, timeout_ms: int) -> LocalProduceRequest:
        """A new request without partitions."""
        return LocalProduceRequest(acks, timeout_ms)

    def send(self, request: LocalProduceRequest, done: Done, *, has_answer: bool) -> None:
        """Append the records of a request to this broker's logs; the broker answers after the request's time-out at
        the latest."""
        self._ask(request, sum(len(item.records) for item in request.partitions), done, has_answer)


# -- Fetch -----------------------------------------------------------------------------------------------------------


class _Result:
    """fetch_pb2.FetchPartitionResult, whose records are not copied."""

    __slots__ = ("_message", "records")

    def __init__(self, message: Any, records: bytes) -> None:
        self._message, self.records = message, records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class _Results(list[Any]):
    """FetchResponse.results."""

    def add(self, *, records: bytes = b"", **fields: Any) -> _Result:
        result = _Result(fetch_pb2.FetchPartitionResult(**fields), records)
        self.append(result)
        return result


class LocalFetchResponse:
    """fetch_pb2.FetchResponse."""

    __slots__ = ("correlation_id", "results", "throttle_time_ms")

    def __init__(self, *, correlation_id: int, results: list[Any]) -> None:
        self.correlation_id, self.results = correlation_id, _Results(results)
        self.throttle_time_ms = 0

    def ByteSize(self) -> int:
        """0: the handler counts records and an overhead for each result itself."""
        return 0


class FetchWay(_Way):
    """A fetch session of one connection with this broker."""

    def __init__(self, broker: BrokerContext, client: Client, access: Access) -> None:
        make = partial(FetchStream, response=LocalFetchResponse, answer_bytes_max=ANSWER_BYTES_MAX)
        super().__init__(broker, client, access, make)
        broker.fetches.add(self.handler)

    def close(self) -> None:
        self._broker.fetches.discard(self.handler)
        super().close()

    def send(self, request: Any, done: Done) -> None:
        """Fetch; the broker answers after the request's max_wait_ms at the latest."""
        self._ask(request, 0, done, has_answer=True)
