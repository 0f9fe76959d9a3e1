"""Fetch: translates a Kafka client's Fetch requests to the broker's fetch session.

A connection has one session with the broker, which advances the session's positions with the data that it sends. A
request to the session names a partition only if its fetch offset, or another field of the client's request, differs
from the session's. Record batches are passed to the client unchanged.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Set
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import TopicImage
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_protos.v1 import common_pb2, fetch_pb2

from .access import READ, TOPIC
from .budget import FETCH_BYTES_MIN
from .call import AnswerParts, Call
from .client import Client
from .errors import kafkas, number
from .produce_path import endpoints
from .wire.apis import Api
from .wire.frames import RequestHeader, response_start
from .wire.primitives import Frame
from .wire.schema import Message, request_body, response_body
from .wire.sessions import NO_SESSION, FetchSession, Key, SessionError, Wanted

RACK_CHARS_MAX = 1_000  #: Longer racks are cut.
WAIT_MS_MAX = 5 * 60_000  #: Upper limit of a client's max_wait_ms, in milliseconds.
#: A connection's first fetch asks for FETCH_BYTES_MIN bytes of records, and each further fetch for up to FETCH_GROWTH
#: times as many. A small first fetch limits the memory for a client that reads no answers.
FETCH_GROWTH = 4
_BY_ID = 13  #: The version of Fetch from which requests name topics by their ids (KIP-516).
_INT_MAX = 2**31 - 1
_REDIRECTS = ("error_code", "preferred_read_replica")  #: Fields of a partition that left the broker's session.

_sessions = 0  # sessions of all connections of this process

Reply = Callable[[AnswerParts | None], None]


def fetch(call: Call, header: RequestHeader, frame: bytes, reply: Reply) -> None:
    """A FastHandler. Raises WireError."""
    request = call.message or request_body(Api.FETCH, call.version).read(frame, header.body)
    client = call.client
    if client.fetch is None:
        client.fetch = FetchPath(client, call.upstream.open_fetch)
        client.on_close(client.fetch.close)
    client.fetch.handle(call, header, request, reply)


class _Position:
    """The state of a partition in the broker's fetch session."""

    __slots__ = ("high_watermark", "last_stable_offset", "log_start_offset", "topic_id", "wanted")

    def __init__(self, wanted: Wanted, topic_id: bytes) -> None:
        self.wanted = wanted
        self.topic_id = topic_id
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1


class _Stream:
    """The broker's fetch session (``way``), with its positions."""

    __slots__ = ("committed", "positions", "way")

    def __init__(self, way: Any, committed: bool) -> None:
        self.way = way
        self.committed = committed
        self.positions: dict[tuple[str, int], _Position] = {}


class _Asking:
    """A Fetch request to the session. It has several parts if it changes more than PARTITIONS_MAX partitions of the
    broker's session: the next part follows the answer to the previous one, and the client gets one answer, because a
    full answer names all partitions (KIP-227)."""

    __slots__ = ("changed", "forgotten", "keys", "stream", "taken_bytes", "wait_ms")

    def __init__(self, stream: _Stream, wait_ms: int) -> None:
        self.stream = stream
        self.wait_ms = wait_ms
        #: Partitions in the broker's session whose position the client wants.
        self.keys: dict[tuple[str, int], Key] = {}
        self.changed: deque[tuple[tuple[str, int], Key, bytes, Wanted]] = deque()  # not sent yet
        self.forgotten: deque[tuple[str, int]] = deque()  # not sent yet
        self.taken_bytes = 0  # bytes of records in the answers so far


class FetchPath:
    """Handles the Fetch requests of one connection, one after another."""

    __slots__ = ("_client", "_in_progress", "_open", "_session", "_stream", "bytes_max")

    def __init__(self, client: Client, open_fetch: Callable[[Client], Any]) -> None:
        """``open_fetch`` opens a fetch session of the client with the broker."""
        self._client = client
        self._open = open_fetch
        self._session = FetchSession()
        self._stream: _Stream | None = None
        self._in_progress = 0  # requests to the session
        #: Maximum bytes of records that the next fetch asks for. The fetch limit (bytes_max) grows with each answer
        #: from a broker.
        self.bytes_max = FETCH_BYTES_MIN

    def began(self) -> None:
        """Count a request that is being sent to the session."""
        self._in_progress += 1
        self._client.answers.fetches += 1

    def ended(self) -> None:
        """Count an answer of the session."""
        self.bytes_max = min(self.bytes_max * FETCH_GROWTH, _INT_MAX)
        self._in_progress -= 1
        self._client.answers.fetches -= 1

    def close(self) -> None:
        self._client.answers.fetches -= self._in_progress  # these requests get no answers any more
        self._in_progress = 0
        self.forget()
        self._count_session(self._session.session_id, NO_SESSION)

    def handle(self, call: Call, header: RequestHeader, request: Message, reply: Reply) -> None:
        session, before = self._session, self._session.session_id
        fetch = _Fetch(self, call, header, request, reply)
        if (request.replica_id if call.version < 15 else request.replica_state.replica_id) >= 0:
            fetch.fail(InvalidRequestError.number)
            return
        has_room = _sessions < call.settings.fetch_sessions_max or before != NO_SESSION
        try:
            fetch.is_full = session.apply(
                request.session_id if call.version >= 7 else NO_SESSION,
                request.session_epoch if call.version >= 7 else -1,
                _named(request),
                _forgotten(request),
                random.randrange(1, _INT_MAX) if has_room else NO_SESSION,
            )
        except SessionError as error:
            self._count_session(before, session.session_id)
            fetch.fail(error.code)
            return
        self._count_session(before, session.session_id)
        fetch.start(session)

    def forget(self) -> None:
        """End the session with the broker, because the client fetches nothing."""
        if self._stream is not None:
            self._stream.way.close()
            self._stream = None

    def stream(self, committed: bool) -> _Stream:
        """The session with the broker, a new one for another isolation level."""
        if self._stream is None or self._stream.committed != committed:
            self.forget()
            self._stream = _Stream(self._open(self._client), committed)
        return self._stream

    @staticmethod
    def _count_session(before: int, after: int) -> None:
        global _sessions
        _sessions += (after != NO_SESSION) - (before != NO_SESSION)


def _joined(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The result of a partition in two parts of an answer. Records of the earlier part stay; the client learns of an
    error behind them from its next request."""
    if not before["records"]:
        return after
    if not after.keys().isdisjoint(_REDIRECTS):
        return before
    joined = {**after, "records": before["records"] + after["records"]}
    if "aborted_transactions" in before:  # a transaction may be in both parts
        aborted = before["aborted_transactions"] + after["aborted_transactions"]
        joined["aborted_transactions"] = list({tuple(each.items()): each for each in aborted}.values())
    return joined


def _named(request: Message) -> list[tuple[Key, Wanted]]:
    named = []
    for topic in request.topics:
        name, topic_id = topic.topic, topic.topic_id
        for item in topic.partitions:
            wanted = Wanted(
                item.fetch_offset, item.partition_max_bytes, item.current_leader_epoch, item.last_fetched_epoch
            )
            named.append(((name, topic_id, item.partition), wanted))
    return named


def _forgotten(request: Message) -> list[Key]:
    return [
        (topic.topic, topic.topic_id, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


class _Fetch:
    """One Fetch request, from its arrival to its answer."""

    __slots__ = (
        "_call",
        "_header",
        "_hints",
        "_left",
        "_path",
        "_reply",
        "_request",
        "_results",
        "is_full",
    )

    def __init__(self, path: FetchPath, call: Call, header: RequestHeader, request: Message, reply: Reply) -> None:
        self.is_full = True  #: Whether the answer names all partitions of the fetch session.
        self._path = path
        self._call = call
        self._header = header
        self._request = request
        self._reply = reply
        self._left = 1
        self._results: dict[Key, dict[str, Any]] = {}
        self._hints: set[int] = set()

    def fail(self, code: int) -> None:
        """Answer with an error code for the whole request."""
        self._write({"error_code": code})

    def start(self, session: FetchSession) -> None:
        committed = self._request.isolation_level == 1
        items: list[tuple[Key, TopicImage, Wanted]] = []
        granted = self._call.access.granted(READ, TOPIC)
        for key, wanted in session.wanted.items():
            found = self._topic(key, granted)
            if isinstance(found, HeadraceError):
                self._refuse(key, found)
                continue
            if self._has_replica(key, found):
                items.append((key, found, wanted))
        if items:
            self._send(items, committed, at_once=bool(self._results))
        else:
            self._path.forget()
        self._finish_one()

    def _topic(self, key: Key, granted: Set[str] | None) -> TopicImage | HeadraceError:
        """``granted``: names of topics that the client may read; see Access.granted."""
        name, topic_id, index = key
        cluster = self._call.cluster
        topic: TopicImage | None
        if self._call.version >= _BY_ID:
            topic = cluster.topic_by_id(topic_id)
            if topic is None:
                return UnknownTopicIdError("no topic has the requested topic id")
            name = topic.name
        else:
            topic = cluster.topic(name)
        if granted is not None and name not in granted and not self._call.allows(READ, TOPIC, name):
            return self._call.refusal(READ, TOPIC, name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return UnknownTopicOrPartitionError(f"partition {name}-{index} does not exist")
        return topic

    def _has_replica(self, key: Key, topic: TopicImage) -> bool:
        """Whether this broker has a replica of the partition; if not, stores an error for it."""
        partition, own = topic.partitions[key[2]], self._call.cluster.broker_id
        if own in partition.replicas:
            return True
        self._refuse(key, NotLeaderOrFollowerError(f"broker {own} has no replica of {topic.name}-{key[2]}"))
        self._hint(self._results[key], partition.leader, partition.leader_epoch)
        return False

    @property
    def _client(self) -> Client:
        return self._call.client

    def _refuse(self, key: Key, error: HeadraceError) -> None:
        self._results[key] = {"partition_index": key[2], "error_code": number(error), "high_watermark": -1,
                              "records": b""}  # fmt: skip

    def _hint(self, result: dict[str, Any], leader: int, epoch: int) -> None:
        result["current_leader"] = {"leader_id": leader, "leader_epoch": epoch}
        if leader >= 0:
            self._hints.add(leader)

    def _send(self, items: list[tuple[Key, TopicImage, Wanted]], committed: bool, *, at_once: bool) -> None:
        stream = self._path.stream(committed)
        positions = stream.positions
        wait_ms = 0 if at_once else min(max(self._request.max_wait, 0), WAIT_MS_MAX)
        asking = _Asking(stream, wait_ms)
        kept = 0
        for key, topic, wanted in items:
            place = (topic.name, key[2])
            position = positions.get(place)
            kept += position is not None
            if position is not None and position.wanted == wanted and position.topic_id == topic.topic_id:
                asking.keys[place] = key
            else:
                asking.changed.append((place, key, topic.topic_id, wanted))
        if len(positions) > kept:
            changed = {place for place, *_ in asking.changed}
            asking.forgotten.extend(each for each in positions if each not in asking.keys and each not in changed)
        self._left += 1
        self._ask(asking)

    def _ask(self, asking: _Asking) -> None:
        """Send the next part of the request to the session. Only the last part waits for records."""
        call, request, stream = self._call, self._request, asking.stream
        is_last = len(asking.changed) <= PARTITIONS_MAX and len(asking.forgotten) <= PARTITIONS_MAX
        wait_ms = asking.wait_ms if is_last else 0
        most = min(
            max(request.max_bytes, 1),
            call.settings.fetch_bytes_max,
            call.client.answers.fetch_bytes(),
            self._path.bytes_max,
        )
        asked = fetch_pb2.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=max(request.min_bytes - asking.taken_bytes, 0),
            max_bytes=max(most - asking.taken_bytes, 1),
            isolation_level=common_pb2.ISOLATION_LEVEL_READ_COMMITTED
            if stream.committed
            else common_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
            rack=(request.rack_id or "")[:RACK_CHARS_MAX],
        )
        self._name_changes(asking, asked)
        self._path.began()
        stream.way.send(asked, lambda response, error: self._answered(asking, response, error))

    def _name_changes(self, asking: _Asking, asked: Any) -> None:
        positions = asking.stream.positions
        for _ in range(min(len(asking.changed), PARTITIONS_MAX)):
            place, key, topic_id, wanted = asking.changed.popleft()
            asking.keys[place] = key
            position = positions.get(place)
            if position is not None and position.topic_id == topic_id:  # keeps its offsets, such as after a seek
                position.wanted = wanted
            else:
                positions[place] = _Position(wanted, topic_id)
            asked.partitions.add(
                topic=place[0],
                partition=place[1],
                fetch_offset=wanted.offset,
                max_bytes=max(wanted.max_bytes, 1),
                current_leader_epoch=wanted.leader_epoch,
                last_fetched_epoch=wanted.last_epoch,
                topic_id=topic_id if self._call.version >= _BY_ID else b"",
            )
        for _ in range(min(len(asking.forgotten), PARTITIONS_MAX)):
            place = asking.forgotten.popleft()
            del positions[place]
            asked.forgotten.add(topic=place[0], partition=place[1])

    def _answered(self, asking: _Asking, response: Any, error: HeadraceError | None) -> None:
        self._path.ended()
        try:
            self._take(asking, response, error)
        except Exception:
            self._client.hang_up()
            raise

    def _take(self, asking: _Asking, response: Any, error: HeadraceError | None) -> None:
        if error is not None:
            # After NOT_LEADER_OR_FOLLOWER the client looks up the leader again, and fetches again from the same offset.
            lost = NotLeaderOrFollowerError(str(error))
            for key in (*asking.keys.values(), *(key for _, key, *_ in asking.changed)):
                if key not in self._results:
                    self._refuse(key, lost)
            self._finish_one()
            return
        keys, positions = asking.keys, asking.stream.positions
        self._call.throttle_ms = max(self._call.throttle_ms, response.throttle_time_ms)
        for found in response.results:
            place = (found.topic, found.partition)
            asked, position = keys.get(place), positions.get(place)
            if asked is not None and position is not None:
                result = self._result(asked, position, place, positions, found)
                asking.taken_bytes += len(result["records"])
                if not result.keys().isdisjoint(_REDIRECTS):
                    asking.wait_ms = 0
                before = self._results.get(asked)
                self._results[asked] = result if before is None else _joined(before, result)
        if asking.changed or asking.forgotten:
            self._ask(asking)
            return
        if self.is_full:
            for place, key in keys.items():
                position = positions.get(place)
                if key not in self._results and position is not None:
                    self._results[key] = {
                        "partition_index": key[2],
                        "high_watermark": position.high_watermark,
                        "last_stable_offset": position.last_stable_offset,
                        "log_start_offset": position.log_start_offset,
                        "records": b"",
                    }
        self._finish_one()

    def _result(
        self,
        key: Key,
        position: _Position,
        place: tuple[str, int],
        positions: dict[tuple[str, int], _Position],
        found: Any,
    ) -> dict[str, Any]:
        result: dict[str, Any] = {
            "partition_index": key[2],
            "high_watermark": found.high_watermark,
            "last_stable_offset": found.last_stable_offset,
            "log_start_offset": found.log_start_offset,
            "records": found.records,
        }
        if found.error.code:
            result |= {"error_code": kafkas(found.error.code), "high_watermark": -1, "last_stable_offset": -1,
                       "records": b""}  # fmt: skip
            if found.HasField("current_leader"):
                self._hint(result, found.current_leader.leader_id, found.current_leader.leader_epoch)
            positions.pop(place, None)  # a partition with an error leaves the broker's session
            return result
        if found.HasField("preferred_read_replica"):
            result["preferred_read_replica"] = found.preferred_read_replica
            positions.pop(place, None)
            return result
        if found.aborted_transactions:
            result["aborted_transactions"] = [
                {"producer_id": each.producer_id, "first_offset": each.first_offset}
                for each in found.aborted_transactions
            ]
        elif self._request.isolation_level == 1:
            result["aborted_transactions"] = []
        position.high_watermark = found.high_watermark
        position.last_stable_offset = found.last_stable_offset
        position.log_start_offset = found.log_start_offset
        if found.next_offset != position.wanted.offset:
            # A client that reads all returned records fetches from next_offset next, so the broker's session already
            # has the client's next position.
            position.wanted = position.wanted._replace(offset=found.next_offset)
        return result

    def _finish_one(self) -> None:
        self._left -= 1
        if self._left:
            return
        topics: dict[tuple[str, bytes], list[dict[str, Any]]] = {}
        for key, result in self._results.items():
            topics.setdefault(key[:2], []).append(result)
        fields: dict[str, Any] = {
            "session_id": self._path._session.session_id,
            "responses": [
                {"topic_id": topic_id, "partitions": results}
                if self._call.version >= _BY_ID
                else {"topic": name, "partitions": results}
                for (name, topic_id), results in topics.items()
            ],
        }
        if self._hints:
            fields["node_endpoints"] = endpoints(self._call.client, self._call.cluster, self._hints)
        self._write(fields)

    def _write(self, fields: dict[str, Any]) -> None:
        fields["throttle_time"] = self._call.throttle_ms
        self._client.mute(self._call.throttle_ms)
        out = Frame(response_start(Api.FETCH, self._call.version, self._header.correlation_id))
        response_body(Api.FETCH, self._call.version).write(fields, out)
        self._reply(out.parts())
