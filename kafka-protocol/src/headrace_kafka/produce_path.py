"""Produce: translates a Kafka frame to a request to this broker's logs, and the response back. A request needs no
asyncio task, and record batches are not decoded here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from headrace_core.metadata import TopicImage
from headrace_core.records import check_batch_count
from headrace_core.records.types import COMPRESSION_MASK, MAGIC, Compression
from headrace_core.tracing.batches import sampled_traceparent_in
from headrace_core.types import TopicPartition
from headrace_protos.v1 import produce_pb2

from .access import TOPIC, TRANSACTIONAL_ID, WRITE
from .call import AnswerParts, Call, LongRequestError
from .client import Client
from .cluster import Cluster
from .errors import abortable, kafkas, number
from .wire._plain import TOPIC_IDS, plain_answer
from .wire.apis import Api
from .wire.frames import RequestHeader, finish, response_start
from .wire.primitives import TooManyItemsError
from .wire.schema import Message, request_body, response_body

_ACKS = {-1: produce_pb2.ACKS_ALL, 1: produce_pb2.ACKS_LEADER, 0: produce_pb2.ACKS_NONE}
_ABORTABLE_V1 = 11  #: The version of Produce in which clients of transaction version 1 know TRANSACTION_ABORTABLE.
_TRANSACTIONS_V2 = 12  #: The version of Produce from which a client uses transactions of version 2 (KIP-890).
_ZSTD_FROM = 7  #: The first version of Produce in which records may have the codec zstd (KIP-110).
#: Position of the version of the format in a batch.
_MAGIC = 16
#: Position of the low byte of the attributes in a batch, and the transactional bit in this byte.
_ATTRIBUTES, _TRANSACTIONAL_BIT = 22, 0x10
#: Longer error texts are cut, because a text may quote a topic name of 32,767 bytes, Kafka's longest
#: string.
ERROR_CHARS_MAX = 1_000
#: Partitions that the event loop handles before it runs other tasks, about 4 ms. A request with more than
#: SHORT_ITEMS_MAX items (two for a partition) is decoded on a thread.
PORTION = 500
SHORT_ITEMS_MAX = 2 * PORTION
TIMEOUT_MS_MAX = 15 * 60_000  #: Upper limit of the timeout that a client requests, in milliseconds.

Reply = Callable[[AnswerParts | None], None]
#: What ``read_plain`` returns.
Plain = tuple[int, int, str, bool, int, list[tuple["str | bytes", int, bytes]]]


def produce(call: Call, header: RequestHeader, frame: bytes, reply: Reply) -> None:
    """A FastHandler. Raises WireError."""
    try:
        request = request_body(Api.PRODUCE, call.version).read(frame, header.body, SHORT_ITEMS_MAX)
    except TooManyItemsError:
        raise LongRequestError(produce_long) from None

    def finished(made: _Produce, fields: dict[str, Any] | None) -> None:
        reply(made.answer(header, fields))

    for _ in _Produce(call, request, finished).start():
        pass


async def produce_long(call: Call, request: Message) -> dict[str, Any] | None:
    """A Handler for a request of thousands of partitions: the event loop handles PORTION of them at a time."""
    done: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()

    def finished(_: _Produce, fields: dict[str, Any] | None) -> None:
        if not done.done():  # otherwise the connection has ended
            done.set_result(fields)

    for _ in _Produce(call, request, finished).start():
        await asyncio.sleep(0)
    return await done


def _wrong_format(records: Any, version: int, topic: str, partition: int) -> HeadraceError | None:
    """The error for records in a format that Kafka refuses in this version of Produce, and for more than one batch. The
    leader checks all else."""
    if records is None or len(records) <= _ATTRIBUTES:
        return None
    if records[_MAGIC] != MAGIC:
        return InvalidRecordError(
            f"the records have version {records[_MAGIC]} of the message format, but only version {MAGIC} is supported; "
            "upgrade the client"
        )
    if version < _ZSTD_FROM and records[_ATTRIBUTES] & COMPRESSION_MASK == Compression.ZSTD:
        return UnsupportedCompressionTypeError(
            f"records with the codec zstd need version {_ZSTD_FROM} of Produce, not {version}; upgrade the client"
        )
    try:
        check_batch_count(records, 1, TopicPartition(topic, partition))
    except HeadraceError as error:
        return error
    return None


def _is_transactional(records: Any) -> bool:
    """Whether the first batch is transactional, by bit 4 of its attributes (bytes 21 and 22 of a batch)."""
    return records is not None and len(records) > _ATTRIBUTES and bool(records[_ATTRIBUTES] & _TRANSACTIONAL_BIT)


#: One partition of a request: its result, topic name, topic id, partition number, and a view of its records in the
#: frame.
_Item = tuple[dict[str, Any], str, bytes, int, memoryview | bytes]


class _Produce:
    """One Produce request, from its arrival to its answer."""

    __slots__ = (
        "_call",
        "_finished",
        "_hints",
        "_is_silent",
        "_left",
        "_names",
        "_request",
        "_results",
    )

    def __init__(
        self,
        call: Call,
        request: Message,
        finished: Callable[[_Produce, dict[str, Any] | None], None],
    ) -> None:
        """``finished`` gets the fields of the answer; None if the client expects no answer."""
        self._call = call
        self._request = request
        self._finished = finished
        self._is_silent = request.acks == 0  # the client expects no answer
        if self._is_silent:
            call.client.sends_silently = True
        self._left = 1  # number of parts without an answer, plus one until all parts were sent
        #: Fields of the answer for each partition, by topic and partition in the request's order.
        self._results: list[list[dict[str, Any]]] = []
        key = "topic_id" if call.version >= TOPIC_IDS else "name"
        self._names = [{key: getattr(topic, key)} for topic in request.topic_data]
        self._hints: set[int] = set()  # leaders that the answer names

    def start(self) -> Iterator[None]:
        """Append the records of the partitions. Yields after each PORTION of them."""
        request = self._request
        acks, by_id = _ACKS.get(request.acks), self._call.version >= TOPIC_IDS
        granted = self._call.access.granted(WRITE, TOPIC)
        refused = None if granted is None else self._refused_transaction()
        items: list[_Item] = []
        handled = 0
        for topic_data in request.topic_data:
            results: list[dict[str, Any]] = []
            self._results.append(results)
            topic = self._topic(topic_data)
            name = topic_data.name if topic is None else topic.name
            hidden = None if granted is None or name in granted else self._hidden(name)
            for data in topic_data.partition_data:
                handled += 1
                if not handled % PORTION:
                    yield
                result: dict[str, Any] = {"index": data.index, "base_offset": -1, "log_append_time": -1}
                results.append(result)
                if acks is None:
                    self._refuse(result, InvalidRequiredAcksError(f"acks={request.acks}: must be 0, 1 or -1 (all)"))
                elif refused is not None:
                    self._refuse(result, refused)
                elif hidden is not None:
                    self._refuse(result, hidden)
                elif topic is None:
                    self._refuse(result, self._unknown(topic_data))
                elif (wrong := _wrong_format(data.records, self._call.version, name, data.index)) is not None:
                    self._refuse(result, wrong)
                elif self._leads(topic, data.index, result):
                    topic_id = topic.topic_id if by_id else b""
                    items.append((result, topic.name, topic_id, data.index, data.records or b""))
                data.records = None  # the view of the frame is in the item now, and ends with it
        self._request = None  # type: ignore[assignment]
        for start in range(0, len(items), PORTION):
            self._send(request, acks or produce_pb2.ACKS_ALL, items[start : start + PORTION])
            if len(items) > PORTION:
                yield
        self._finish_one()

    def _refused_transaction(self) -> HeadraceError | None:
        """The error for a request whose records belong to a transaction to which the client is not authorized to
        write."""
        call, transactional_id = self._call, self._request.transactional_id
        if not any(
            _is_transactional(data.records) for topic in self._request.topic_data for data in topic.partition_data
        ):
            return None
        if transactional_id is not None and call.allows(WRITE, TRANSACTIONAL_ID, transactional_id):
            return None
        return call.refusal(WRITE, TRANSACTIONAL_ID, transactional_id or "")

    def _hidden(self, name: str) -> HeadraceError | None:
        """The error for a topic to which the client is not authorized to write. The name is empty for an unknown topic
        id."""
        call = self._call
        if not name or call.allows(WRITE, TOPIC, name):
            return None
        return call.refusal(WRITE, TOPIC, name)

    def _topic(self, topic_data: Message) -> TopicImage | None:
        cluster = self._call.cluster
        by_id = self._call.version >= TOPIC_IDS
        return cluster.topic_by_id(topic_data.topic_id) if by_id else cluster.topic(topic_data.name)

    def _unknown(self, topic_data: Message) -> HeadraceError:
        if self._call.version >= TOPIC_IDS:
            return UnknownTopicIdError("no topic has the requested topic id")
        return UnknownTopicOrPartitionError(f"topic {topic_data.name!r} does not exist")

    def _leads(self, topic: TopicImage, index: int, result: dict[str, Any]) -> bool:
        """Whether this broker leads the partition; if not, stores an error in ``result``."""
        if not 0 <= index < len(topic.partitions):
            self._refuse(result, UnknownTopicOrPartitionError(f"topic {topic.name} has no partition {index}"))
            return False
        partition, own = topic.partitions[index], self._call.cluster.broker_id
        if partition.leader == own:
            return True
        self._refuse(result, NotLeaderOrFollowerError(f"broker {own} does not lead {topic.name}-{index}"))
        self._hint(result, partition.leader, partition.leader_epoch)
        return False

    def _refuse(self, result: dict[str, Any], error: HeadraceError) -> None:
        result["error_code"] = number(error)
        result["error_message"] = str(error)[:ERROR_CHARS_MAX]

    def _hint(self, result: dict[str, Any], leader: int, epoch: int) -> None:
        """Name the leader in the answer (KIP-951)."""
        result["current_leader"] = {"leader_id": leader, "leader_epoch": epoch}
        if leader >= 0:
            self._hints.add(leader)

    def _send(self, request: Message, acks: int, part: list[_Item]) -> None:
        """Append the records of some partitions."""
        call = self._call
        if call.client.produce is None:
            call.client.produce = call.upstream.open_produce(call.client)
        produce = call.client.produce
        asked = produce.request(acks, min(max(request.timeout, 0), TIMEOUT_MS_MAX))
        if request.transactional_id is not None:
            asked.transactional_id = request.transactional_id
            asked.transaction_version = 2 if call.version >= _TRANSACTIONS_V2 else 1
        for _, name, topic_id, index, records in part:
            asked.partitions.add(topic=name, partition=index, topic_id=topic_id, records=bytes(records))
        if call.upstream.has_traces:
            for item in asked.partitions:
                item.traceparent = sampled_traceparent_in(item.records) or ""
        self._left += 1
        produce.send(asked, partial(self._answered, [item[0] for item in part]), has_answer=not self._is_silent)

    def _answered(self, results: list[dict[str, Any]], response: Any, error: HeadraceError | None) -> None:
        """Store the answer for a part of the partitions. With acks=0, ``response`` is None."""
        try:
            if error is not None:
                code = number(error)
                for result in results:
                    result["error_code"] = code
                    result["error_message"] = str(error)[:ERROR_CHARS_MAX]
            elif response is not None:
                self._call.throttle_ms = max(self._call.throttle_ms, response.throttle_time_ms)
                for result, found in zip(results, response.results, strict=True):
                    self._note(result, found)
            self._finish_one()
        except Exception:
            self._call.client.hang_up()
            raise

    def _note(self, result: dict[str, Any], found: Any) -> None:
        if found.HasField("error") and found.error.code:
            code = kafkas(found.error.code)
            result["error_code"] = abortable(code) if self._call.version == _ABORTABLE_V1 else code
            result["error_message"] = found.error.message[:ERROR_CHARS_MAX]
            if found.record_faults:
                result["record_errors"] = [
                    {"batch_index": each.index, "batch_index_error_message": each.message}
                    for each in found.record_faults
                ]
            if found.HasField("current_leader"):
                self._hint(result, found.current_leader.leader_id, found.current_leader.leader_epoch)
        else:
            result["base_offset"] = found.base_offset
            result["log_append_time"] = found.log_append_time_ms
            result["log_start_offset"] = found.log_start_offset

    def _finish_one(self) -> None:
        self._left -= 1
        if self._left:
            return
        call = self._call
        call.client.mute(call.throttle_ms)
        if self._is_silent:
            self._finished(self, None)
            if any("error_code" in result for results in self._results for result in results):
                # A client with acks=0 gets no answers, and learns only from a closed connection that its metadata is
                # stale. After an error with acks=0, Kafka's brokers close the client's connection, too.
                call.client.hang_up()
            return
        fields: dict[str, Any] = {"responses": self._topics(), "throttle_time": call.throttle_ms}
        if self._hints:
            fields["node_endpoints"] = endpoints(call.client, call.cluster, self._hints)
        self._finished(self, fields)

    def answer(self, header: RequestHeader, fields: dict[str, Any] | None) -> AnswerParts | None:
        """The frame of the answer with these fields."""
        if fields is None:
            return None
        call = self._call
        out = response_start(Api.PRODUCE, call.version, header.correlation_id)
        response_body(Api.PRODUCE, call.version).write(fields, out)
        return (finish(out),)

    def _topics(self) -> list[dict[str, Any]]:
        return [
            {**name, "partition_responses": results} for name, results in zip(self._names, self._results, strict=True)
        ]


class PlainProduce:
    """One plain Produce request (wire/_plain.pyx), whose batches are joined with those of other connections."""

    __slots__ = ("_cluster", "_left", "_outcomes", "_reply", "client", "fields", "size")

    def __init__(self, client: Client, cluster: Cluster, fields: Plain, size: int, reply: Reply) -> None:
        """``size``: bytes of the request."""
        self.client = client
        self.fields = fields
        self.size = size
        self._cluster = cluster
        self._reply = reply
        self._left = len(fields[-1])
        self._outcomes: list[Any] = [None] * self._left

    def start(self, join: Callable[..., bool], has_traces: bool) -> bool:
        """Join the batches. Returns False, without an effect, if the request must go the way of all requests."""
        client, cluster = self.client, self._cluster
        _, _, client.client_id, committed, timeout_ms, batches = self.fields
        authorizer = cluster.authorization.authorizer
        if authorizer is not None and cluster.authorization.sample:
            return False
        parts, topic, name, topic_id = [], None, "", b""
        for each, index, records in batches:
            if each is not topic:
                topic = each
                if isinstance(each, str):
                    name = each
                else:
                    found = cluster.topic_by_id(each)
                    if found is None:
                        return False
                    name, topic_id = found.name, each
                if authorizer is not None and name not in authorizer.granted(client.caller, WRITE, TOPIC):
                    return False
            if has_traces and sampled_traceparent_in(records):
                return False
            parts.append(((name, index), topic_id, records))
        if not join(self, parts, committed=committed, timeout_ms=min(timeout_ms, TIMEOUT_MS_MAX)):
            return False
        # The answer needs no records, and may have to wait for other replicas.
        self.fields = (*self.fields[:5], [(each, index, b"") for each, index, _ in batches])
        return True

    def told(self, place: int, outcome: tuple[int, int] | HeadraceError) -> bool:
        """The batch at ``place`` in the request was appended (its base offset, and the log's start), or refused.
        Answers the client with the last batch, and returns whether it is the last one."""
        self._outcomes[place] = outcome
        self._left -= 1
        if self._left:
            return False
        version, correlation_id, _, _, _, batches = self.fields
        outcomes = self._outcomes
        if isinstance(outcome, tuple) and (len(outcomes) == 1 or all(isinstance(each, tuple) for each in outcomes)):
            self._reply((plain_answer(version, correlation_id, batches, outcomes),))
        else:
            self._reply((self._refusal(version, correlation_id),))
        return True

    def _refusal(self, version: int, correlation_id: int) -> bytearray:
        """The frame of the answer if a batch was refused."""
        responses: list[dict[str, Any]] = []
        leaders: set[int] = set()
        topic: str | bytes | None = None
        for (each, index, _), outcome in zip(self.fields[-1], self._outcomes, strict=True):
            if each is not topic:
                topic = each
                key = "topic_id" if version >= TOPIC_IDS else "name"
                responses.append({key: topic, "partition_responses": []})
            result: dict[str, Any] = {"index": index, "base_offset": -1, "log_append_time": -1}
            responses[-1]["partition_responses"].append(result)
            if isinstance(outcome, tuple):
                result["base_offset"], result["log_start_offset"] = outcome
                continue
            result |= {"error_code": number(outcome), "error_message": str(outcome)[:ERROR_CHARS_MAX]}
            image = self._cluster.topic_by_id(topic) if isinstance(topic, bytes) else self._cluster.topic(topic)
            if isinstance(outcome, NotLeaderOrFollowerError) and image is not None and index < len(image.partitions):
                partition = image.partitions[index]
                result["current_leader"] = {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
                leaders.add(partition.leader)
        fields: dict[str, Any] = {"responses": responses, "throttle_time": 0}
        if leaders:
            fields["node_endpoints"] = endpoints(self.client, self._cluster, leaders)
        out = response_start(Api.PRODUCE, version, correlation_id)
        response_body(Api.PRODUCE, version).write(fields, out)
        return finish(out)


def endpoints(client: Client, cluster: Cluster, leaders: set[int]) -> list[dict[str, Any]]:
    """The addresses at which the client reaches the leaders that an answer names (KIP-951)."""
    nodes = (cluster.node(client.listener, leader) for leader in sorted(leaders))
    return [
        {"node_id": node.broker_id, "host": node.host, "port": node.port, "rack": node.rack}
        for node in nodes
        if node is not None
    ]
