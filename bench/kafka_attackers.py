"""Attackers of a broker's port for Kafka's clients, for hostile.py and tests: raw sockets with Kafka's frames.

Each attacker repeats one kind of hostile request until its time is over. Unless an attacker's name says otherwise, its
requests are legal frames, so they reach the code after the decoder.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

MIB = 1024 * 1024
#: Topics of hostile.py: the well-behaved client's, one for bombs, and one with FILLED_BYTES of records.
TOPIC, BOMBED, FILLED = "victim", "bombed", "filled"
SLOW_READERS, HALF_OPEN, PIPELINED, IDLE, WAITING_MEMBERS, WAITING_GROUPS = 100, 500, 100, 1_000, 300, 10
REQUEST_BYTES_MAX = 104_857_600  #: Default of socket.request.max.bytes.


class Pace(Protocol):
    """attackers.Pace: limits the processor time; ``on()`` is False when the time is over."""

    def on(self) -> bool: ...


Address = tuple[str, int]
Attack = Callable[[Pace, Address], None]


def frame(api_name: str, version: int, **fields: Any) -> bytes:
    """A request with its length."""
    from headrace_kafka.wire.apis import Api, is_flexible
    from headrace_kafka.wire.frames import finish
    from headrace_kafka.wire.schema import request_body

    api = Api[api_name]
    out = bytearray(4) + struct.pack(">hhih", api, version, 7, -1)
    if is_flexible(api, version):
        out.append(0)
    request_body(api, version).write(fields, out)
    return bytes(finish(out))


def fetch_frame(topic: str, partitions: Iterable[int], *, wait_ms: int = 100) -> bytes:
    wanted = [{"partition": each, "fetch_offset": 0, "partition_max_bytes": 50 * MIB} for each in partitions]
    return frame(
        "FETCH",
        11,
        replica_id=-1,
        max_wait=wait_ms,
        min_bytes=1,
        max_bytes=50 * MIB,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": wanted}],
    )


def produce_frame(topic: str, records: bytes, partitions: int = 1) -> bytes:
    data = [{"index": each, "records": records} for each in range(partitions)]
    return frame("PRODUCE", 9, acks=-1, timeout=5_000, topic_data=[{"name": topic, "partition_data": data}])


def reset(connection: socket.socket) -> None:
    """Close a connection with RST."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Crowd:
    """Connections that are open at the same time; a lost one is replaced. ``send`` writes as many bytes as possible,
    and never blocks."""

    def __init__(self, address: Address, size: int, *, receive_bytes: int | None = None) -> None:
        self._address = address
        self._size = size
        self._receive_bytes = receive_bytes
        self.members: list[socket.socket] = []

    def fill(self, pace: Pace) -> list[socket.socket]:
        """Connect until the crowd is complete; returns the new connections."""
        new = []
        while len(self.members) < self._size and pace.on():
            with contextlib.suppress(OSError):
                connection = socket.socket()
                if self._receive_bytes is not None:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
                connection.settimeout(2)
                connection.connect(self._address)
                connection.setblocking(False)
                self.members.append(connection)
                new.append(connection)
        return new

    def send(self, connection: socket.socket, data: bytes) -> int:
        """The number of written bytes; -1 if the connection is lost, which is then removed from the crowd."""
        try:
            return connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.members.remove(connection)
            connection.close()
            return -1

    def close(self) -> None:
        for each in self.members:
            each.close()


def slow_readers(pace: Pace, address: Address) -> None:
    """Fetch up to 50 MiB from the start, repeatedly, and do not read the answers."""
    crowd = Crowd(address, SLOW_READERS, receive_bytes=4_096)
    request = fetch_frame(FILLED, [0]) * 5
    while pace.on():
        for each in crowd.fill(pace):
            crowd.send(each, request)
        for each in list(crowd.members):
            crowd.send(each, request)
        time.sleep(0.2)
    crowd.close()


def half_open(pace: Pace, address: Address) -> None:
    """Send only the beginning of a frame: a part of the length, of the header, or of a large frame."""
    crowd = Crowd(address, HALF_OPEN)
    beginnings = itertools.cycle(
        (b"\0\0", struct.pack(">ihh", 1_000, 3, 12), produce_frame(TOPIC, bytes(MIB))[: 300 * 1024])
    )
    while pace.on():
        for each in crowd.fill(pace):
            crowd.send(each, next(beginnings))
        time.sleep(0.05)
    crowd.close()


def oversized(pace: Pace, address: Address) -> None:
    """Frames whose size is 2 GiB, negative, or above socket.request.max.bytes, and large requests other than
    Produce."""
    sizes = itertools.cycle((2**31 - 1, -1, -(2**31), REQUEST_BYTES_MAX + 1, 50 * MIB))
    while pace.on():
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=2) as connection:
            connection.sendall(struct.pack(">ihhi", next(sizes), 3, 12, 1) + bytes(64 * 1024))
            connection.recv(1)


def connects_and_resets(pace: Pace, address: Address) -> None:
    """Connect, send a request or a part of it, and reset the connection."""
    requests = itertools.cycle((b"", frame("API_VERSIONS", 3), fetch_frame(FILLED, [0]), b"\0\0\1"))
    while pace.on():
        with contextlib.suppress(OSError):
            connection = socket.create_connection(address, timeout=2)
            connection.send(next(requests))
            reset(connection)


def pipelined(pace: Pace, address: Address) -> None:
    """Send Metadata requests without end, and read no answer."""
    crowd = Crowd(address, PIPELINED, receive_bytes=4_096)
    requests = frame("METADATA", 12, topics=None) * 100
    left = dict.fromkeys(crowd.fill(pace), b"")
    while pace.on():
        left |= dict.fromkeys(crowd.fill(pace), b"")
        for each, rest in list(left.items()):
            sent = crowd.send(each, rest or requests)
            if sent < 0:
                del left[each]
            else:
                left[each] = (rest or requests)[sent:]
        time.sleep(0.02)
    crowd.close()


def idle_connections(pace: Pace, address: Address) -> None:
    crowd = Crowd(address, IDLE)
    while pace.on():
        crowd.fill(pace)
        time.sleep(0.05)
    crowd.close()


def waiting_members(pace: Pace, address: Address) -> None:
    """JoinGroup calls that wait for each other, then SyncGroup calls that wait for leaders that never send one."""
    while pace.on():
        crowd = Crowd(address, WAITING_MEMBERS)
        poll = selectors.DefaultSelector()
        round_ = random.randrange(1_000_000)
        for number, each in enumerate(crowd.fill(pace)):
            crowd.send(each, _join(f"waiting-{round_}-{number % WAITING_GROUPS}"))
            poll.register(each, selectors.EVENT_READ, f"waiting-{round_}-{number % WAITING_GROUPS}")
        until = time.monotonic() + 5
        while pace.on() and time.monotonic() < until and poll.get_map():
            for key, _ in poll.select(0.1):
                connection: Any = key.fileobj
                with contextlib.suppress(OSError, LookupError, ValueError):
                    poll.unregister(connection)
                    _sync(connection, key.data)
        poll.close()
        crowd.close()


def _join(group: str) -> bytes:
    return frame(
        "JOIN_GROUP",
        3,
        group_id=group,
        session_timeout=60_000,
        rebalance_timeout=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": bytes(100)}],
    )


def _sync(connection: socket.socket, group: str) -> None:
    """Send SyncGroup after the answer to JoinGroup, unless the member is the leader."""
    from headrace_kafka.wire.apis import Api
    from headrace_kafka.wire.schema import response_body

    connection.settimeout(1)
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    answer = response_body(Api.JOIN_GROUP, 3).read(connection.recv(size, socket.MSG_WAITALL), 4)
    if not answer.error_code and answer.leader != answer.member_id:
        connection.sendall(
            frame(
                "SYNC_GROUP",
                3,
                group_id=group,
                generation_id=answer.generation_id,
                member_id=answer.member_id,
                assignments=[],
            )
        )


def repeated(requests: Callable[[], Iterable[bytes]], *, connections: int = 4) -> Attack:
    """Send requests in turn on some connections, and read the answers."""

    def attack(pace: Pace, address: Address) -> None:
        each = itertools.cycle(list(requests()))
        held: list[socket.socket | None] = [None] * connections
        while pace.on():
            for number in range(connections):
                held[number] = _begin(held[number], address, next(each))
            for number in range(connections):
                held[number] = _end(held[number])
        for connection in held:
            if connection is not None:
                connection.close()

    return attack


def _begin(connection: socket.socket | None, address: Address, request: bytes) -> socket.socket | None:
    try:
        if connection is None:
            connection = socket.create_connection(address, timeout=5)
        connection.sendall(request)
        return connection
    except OSError:
        if connection is not None:
            connection.close()
        return None


def _end(connection: socket.socket | None) -> socket.socket | None:
    """Read one answer; None if the connection is lost."""
    if connection is None:
        return None
    try:
        size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        while size > 0:
            data = connection.recv(min(size, 1 << 16))
            if not data:
                break
            size -= len(data)
        if size == 0:
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _garbage_records() -> Iterable[bytes]:
    """Bytes that are not a batch, a batch with a wrong checksum, and a truncated batch."""
    from headrace_core.records import encode_batch

    chance = random.Random(17)
    batch = bytearray(encode_batch([(0, None, chance.randbytes(1_000), ())]))
    broken = bytes(batch[:-1]) + bytes([batch[-1] ^ 1])
    for records in (chance.randbytes(1_000), broken, bytes(batch[:100]), b"", bytes(12_000)):
        yield produce_frame(BOMBED, records)


def _large_garbage() -> Iterable[bytes]:
    for size in (60, 15):
        yield produce_frame(BOMBED, bytes(size * MIB))


def _bombs() -> Iterable[bytes]:
    from headrace_core.records import Compression, encode_batch

    yield produce_frame(BOMBED, bytes(encode_batch([(0, None, bytes(127 * MIB), ())], compression=Compression.GZIP)))


def _many_partitions() -> Iterable[bytes]:
    yield fetch_frame(FILLED, range(10_000), wait_ms=0)
    yield frame(
        "LIST_OFFSETS",
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": FILLED, "partitions": [{"partition_index": each, "timestamp": -1} for each in range(10_000)]}],
    )


def _many_topics() -> Iterable[bytes]:
    """Requests with 100,000 topics, which are refused, and requests with the largest accepted number of topics."""
    names = [f"t{number:07}" for number in range(100_000)]
    for count in (len(names), 19_000):
        yield frame("METADATA", 9, topics=[{"name": each} for each in names[:count]], allow_auto_topic_creation=False)
        yield frame(
            "CREATE_TOPICS",
            5,
            topics=[{"name": each, "num_partitions": 1, "replication_factor": 99} for each in names[:count]],
            timeout=1_000,
            validate_only=True,
        )


def garbage(pace: Pace, address: Address) -> None:
    """Random bytes, and random bytes as bodies of requests."""
    chance = random.Random(17)
    while pace.on():
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=2) as connection:
            if chance.random() < 0.5:
                connection.sendall(chance.randbytes(chance.randrange(1, 4_096)))
            body = chance.randbytes(chance.randrange(2_000))
            header = struct.pack(">hhih", chance.randrange(76), chance.randrange(14), 1, -1) + b"\0"
            connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            connection.settimeout(0.05)
            connection.recv(1)


OF_KAFKA: dict[str, Attack] = {
    "kafka_slow_readers": slow_readers,
    "kafka_half_open": half_open,
    "kafka_oversized": oversized,
    "kafka_connects_and_resets": connects_and_resets,
    "kafka_pipelined": pipelined,
    "kafka_idle_connections": idle_connections,
    "kafka_waiting_members": waiting_members,
    "kafka_garbage_records": repeated(_garbage_records, connections=20),
    "kafka_large_garbage": repeated(_large_garbage, connections=2),
    "kafka_batch_bombs": repeated(_bombs),
    "kafka_many_partitions": repeated(_many_partitions),
    "kafka_many_topics": repeated(_many_topics),
    "kafka_garbage": garbage,
}
