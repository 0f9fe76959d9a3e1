"""Attackers of brokers, coordinators and controllers, for hostile.py: gRPC calls, HTTP/2 frames and raw sockets.

Each attacker repeats one kind of hostile request until its time is over. hostile.py runs it as a process of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Callable
from typing import Any

from kafka_attackers import BOMBED, OF_KAFKA, TOPIC

MIB = 1024 * 1024
CORES = 0.5  #: Processor time that an attacker may use.
CONNECTIONS, SLOW_READERS, HALF_OPEN = 1_000, 100, 200
#: The number of members of one group, each with its own stream, and the number of members on one connection.
CROWD, CROWD_PER_CONNECTION = 1_000, 100
READY = "attacking"


class Pace:
    """Limits this process to ``CORES``; ``on()`` is False when the time is over. The time of an attack starts at the
    first ``on()``, which prints ``READY``: an attacker's preparation does not count."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._until: float | None = None

    def on(self) -> bool:
        with self._lock:
            if self._until is None:
                self._began, self._cpu = time.monotonic(), time.process_time()
                self._until = self._began + self._seconds
                print(READY, flush=True)
        while True:
            now = time.monotonic()
            if now >= self._until:
                return False
            ahead = (time.process_time() - self._cpu) / CORES - (now - self._began)
            if ahead <= 0:
                return True
            time.sleep(min(ahead, 0.1))


Address = tuple[str, int]
Attack = Callable[[Pace, Address], None]


def call(method: str, message: bytes) -> Attack:
    """Repeat one unary call with the same bytes, on four connections."""

    def attack(pace: Pace, address: Address) -> None:
        _with_grpc(pace, address, lambda channel: _ask(channel.unary_unary(method), message), compressed=False)

    return attack


def _ask(ask: Any, message: bytes) -> None:
    import grpc

    with contextlib.suppress(grpc.RpcError):
        ask(message, timeout=5)


def _with_grpc(pace: Pace, address: Address, once: Callable[[Any], None], *, compressed: bool) -> None:
    import grpc

    options = [("grpc.max_send_message_length", 128 * MIB), ("grpc.use_local_subchannel_pool", 1)]
    compression = grpc.Compression.Gzip if compressed else None

    def run() -> None:
        with grpc.insecure_channel("{}:{}".format(*address), options=options, compression=compression) as channel:
            while pace.on():
                once(channel)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def unknown_names(pace: Pace, address: Address) -> None:
    """Send GetMetadata requests with 1.5 million names of topics that do not exist: 14 MiB each."""
    call("/headrace.v1.Metadata/GetMetadata", b"".join(b"\x0a\x07%07d" % n for n in range(1_500_000)))(pace, address)


def legal_names(pace: Pace, address: Address) -> None:
    """Send GetMetadata requests with as many unknown names as a broker accepts."""
    call("/headrace.v1.Metadata/GetMetadata", b"".join(b"\x0a\x07%07d" % n for n in range(10_000)))(pace, address)


def legal_offsets(pace: Pace, address: Address) -> None:
    """Send ListOffsets requests for 10,000 partitions that do not exist."""
    call("/headrace.v1.Offsets/ListOffsets", b"".join(b"\x12\x09\x0a\x07%07d" % n for n in range(10_000)))(
        pace, address
    )


def empty_items(pace: Pace, address: Address) -> None:
    """Produce requests with partitions of two bytes: one request of 88 MiB, and one of the largest allowed size."""
    sizes = itertools.cycle([88 * MIB, 15 * MIB])

    def once(channel: Any) -> None:
        stream = channel.stream_stream("/headrace.v1.Produce/Produce")(
            iter([b"\x22\x00" * (next(sizes) // 2)]), timeout=5
        )
        _drain(stream)

    _with_grpc(pace, address, once, compressed=False)


def large_produce(pace: Pace, address: Address) -> None:
    """Send 88 MiB and 15 MiB of invalid records."""
    sizes = itertools.cycle([88 * MIB, 15 * MIB])

    def once(channel: Any) -> None:
        size = next(sizes)
        part = b"\x0a\x06victim\x22" + _varint(size) + bytes(size)
        message = b"\x08\x01\x22" + _varint(len(part)) + part
        _drain(channel.stream_stream("/headrace.v1.Produce/Produce")(iter([message]), timeout=5))

    _with_grpc(pace, address, once, compressed=False)


def grpc_bombs(pace: Pace, address: Address) -> None:
    """Send 94 KiB of gzip that expands to 95 MiB."""
    bomb = b"\x7a" + _varint(94 * MIB) + bytes(94 * MIB)
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = packed.compress(bomb) + packed.flush()
    message = b"\x01" + struct.pack(">I", len(data)) + data

    while pace.on():
        with contextlib.suppress(OSError):
            attacker = _connect(address)
            for method in ("/headrace.v1.Metadata/GetMetadata", "/headrace.v1.Produce/Produce") * 10:
                stream_id = attacker.open_call(method, ("grpc-encoding", "gzip"))
                for start in range(0, len(message), 16_384):
                    attacker.message_part(stream_id, message[start : start + 16_384])
            time.sleep(0.05)
            attacker.close()


def batch_bombs(pace: Pace, address: Address) -> None:
    """Record batches of 128 KiB whose records expand to 128 MiB."""
    from headrace_core.records import Compression, encode_batch

    batch = encode_batch([(0, None, bytes(127 * MIB), ())], compression=Compression.GZIP)
    part = b"\x0a\x06bombed\x22" + _varint(len(batch)) + batch
    message = b"\x08\x01\x22" + _varint(len(part)) + part

    def once(channel: Any) -> None:
        _drain(channel.stream_stream("/headrace.v1.Produce/Produce")(iter([message] * 4), timeout=5))

    _with_grpc(pace, address, once, compressed=False)


def idle_connections(pace: Pace, address: Address) -> None:
    held: list[Any] = []
    while pace.on():
        if len(held) < CONNECTIONS:
            with contextlib.suppress(OSError):
                held.append(_connect(address))
        else:
            time.sleep(0.05)
    _close(held)


def slow_readers(pace: Pace, address: Address) -> None:
    """Fetch from the start, repeatedly, and read one byte per second."""
    held: list[Any] = []
    part = b"\x0a\x06victim"
    request = b"\x08\x01\x10\x64\x20\xff\xff\xff\x17\x32" + _varint(len(part)) + part
    message = framed(request)
    while pace.on():
        if len(held) < SLOW_READERS:
            with contextlib.suppress(OSError):
                attacker = _connect(address, settings=[(4, 2**31 - 1)])
                stream_id = attacker.open_call("/headrace.v1.Fetch/Fetch")
                for _ in range(100):
                    attacker.message_part(stream_id, message)
                held.append(attacker)
        else:
            time.sleep(0.05)
    _close(held)


def half_open(unary: str, stream: str) -> Attack:
    """Connections without a preface, calls without a message, messages without an end."""

    def attack(pace: Pace, address: Address) -> None:
        held: list[Any] = []
        while pace.on():
            if len(held) < HALF_OPEN:
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(address, timeout=2))
                    attacker = _connect(address)
                    for _ in range(20):
                        attacker.open_call(unary)
                        stream_id = attacker.open_call(stream)
                        attacker.message_part(stream_id, b"\0" + struct.pack(">I", 8 * MIB) + bytes(1000))
                    held.append(attacker)
            else:
                time.sleep(0.05)
        _close(held)

    return attack


def rapid_resets(method: str) -> Attack:
    def attack(pace: Pace, address: Address) -> None:
        while pace.on():
            with contextlib.suppress(OSError):
                attacker = _connect(address)
                for _ in range(500):
                    if not pace.on():
                        break
                    for _ in range(10):
                        attacker.reset(attacker.open_call(method))
                attacker.close()

    return attack


def garbage(*methods: str) -> Attack:
    """Random bytes: on the socket, as frames, and as messages of calls."""

    def attack(pace: Pace, address: Address) -> None:
        chance = random.Random(17)
        while pace.on():
            with contextlib.suppress(OSError):
                with socket.create_connection(address, timeout=2) as plain:
                    plain.sendall(chance.randbytes(chance.randrange(1, 4_096)))
                attacker = _connect(address)
                for _ in range(20):
                    attacker.message_part(
                        attacker.open_call(chance.choice(methods)), framed(chance.randbytes(chance.randrange(1, 2_000)))
                    )
                attacker.send(chance.randbytes(100))
                time.sleep(0.005)
                attacker.close()

    return attack


# -- attackers of coordinators ----------------------------------------------------------------------------------------


def heartbeat(group: str, member: str, number: int = 1) -> bytes:
    """A message that joins the group."""
    from headrace_protos.v1 import groups_pb2

    request = groups_pb2.MembershipRequest(correlation_id=number)
    request.heartbeat.group_id, request.heartbeat.member_id = group, member
    request.heartbeat.rebalance_timeout_ms = 60_000
    request.heartbeat.topics.names.extend([TOPIC, BOMBED])
    request.heartbeat.owned.SetInParent()
    return framed(bytes(request.SerializeToString()))


def group_slow_readers(pace: Pace, address: Address) -> None:
    """Membership streams and lists of all groups; the client leaves the answers unread."""
    held: list[Any] = []
    while pace.on():
        if len(held) < SLOW_READERS:
            with contextlib.suppress(OSError):
                attacker = _connect(address, settings=[(4, 0)])
                for number in range(20):
                    stream_id = attacker.open_call(MEMBERSHIP)
                    for correlation_id in range(1, 21):
                        attacker.message_part(stream_id, heartbeat(f"slow-{number}", str(uuid.uuid4()), correlation_id))
                    attacker.message_part(attacker.open_call("/headrace.v1.Groups/ListGroups"), framed(b""))
                held.append(attacker)
        else:
            time.sleep(0.05)
    _close(held)


def crowd(groups: int) -> Attack:
    """CROWD members join ``groups`` groups, and leave when their connections close."""

    def attack(pace: Pace, address: Address) -> None:
        while pace.on():
            held: list[Any] = []
            with contextlib.suppress(OSError):
                for number in range(CROWD):
                    if not pace.on():
                        break
                    if number % CROWD_PER_CONNECTION == 0:
                        held.append(_connect(address))
                    stream_id = held[-1].open_call(MEMBERSHIP)
                    held[-1].message_part(stream_id, heartbeat(f"crowd-{number % groups}", str(uuid.uuid4())))
            until = time.monotonic() + 1
            while pace.on() and time.monotonic() < until:
                time.sleep(0.05)
            _close(held)

    return attack


def fresh(method: str, message: Callable[[str], bytes]) -> Attack:
    """Repeat one unary call, each time with a new id, on four connections."""

    def attack(pace: Pace, address: Address) -> None:
        _with_grpc(
            pace,
            address,
            lambda channel: _ask(channel.unary_unary(method), message(str(uuid.uuid4()))),
            compressed=False,
        )

    return attack


def committed(group: str, offsets: int = 1, metadata_bytes: int = 500) -> bytes:
    """A commit of a program that is not a member."""
    from headrace_protos.v1 import groups_pb2

    request = groups_pb2.CommitOffsetsRequest(group_id=group, member_epoch=-1)
    for partition in range(offsets):
        request.offsets.add(topic=TOPIC, partition=partition, offset=1, leader_epoch=-1, metadata="x" * metadata_bytes)
    return bytes(request.SerializeToString())


def initialized(transactional_id: str) -> bytes:
    from headrace_protos.v1 import transactions_pb2

    request = transactions_pb2.InitProducerRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    return bytes(request.SerializeToString())


def huge_requests(method: str, item: bytes) -> Attack:
    """Send requests of 88 MiB and of 8 MiB in turn, whose items have two bytes each."""
    sizes = itertools.cycle([88 * MIB, 8 * MIB])

    def attack(pace: Pace, address: Address) -> None:
        _with_grpc(
            pace,
            address,
            lambda channel: _ask(channel.unary_unary(method), item * (next(sizes) // 2)),
            compressed=False,
        )

    return attack


METADATA, MEMBERSHIP = "/headrace.v1.Metadata/GetMetadata", "/headrace.v1.Groups/Membership"
COMMIT, FETCH_OFFSETS = "/headrace.v1.Groups/CommitOffsets", "/headrace.v1.Groups/FetchOffsets"
INIT_PRODUCER, DESCRIBE_QUORUM = "/headrace.v1.Transactions/InitProducer", "/headrace.v1.Admin/DescribeQuorum"
PRODUCE, CREATE_TOPICS = "/headrace.v1.Produce/Produce", "/headrace.v1.Admin/CreateTopics"

OF_BROKERS: dict[str, Attack] = {
    "unknown_names": unknown_names,
    "legal_names": legal_names,
    "legal_offsets": legal_offsets,
    "empty_items": empty_items,
    "large_produce": large_produce,
    "grpc_bombs": grpc_bombs,
    "batch_bombs": batch_bombs,
    "idle_connections": idle_connections,
    "slow_readers": slow_readers,
    "half_open": half_open(METADATA, PRODUCE),
    "rapid_resets": rapid_resets(METADATA),
    "garbage": garbage(
        METADATA, PRODUCE, "/headrace.v1.Fetch/Fetch", "/headrace.v1.Offsets/ListOffsets", CREATE_TOPICS
    ),
}
OF_COORDINATORS: dict[str, Attack] = {
    "coordinator_idle_connections": idle_connections,
    "coordinator_slow_readers": group_slow_readers,
    "coordinator_half_open": half_open(METADATA, MEMBERSHIP),
    "coordinator_rapid_resets": rapid_resets(MEMBERSHIP),
    "coordinator_huge_requests": huge_requests(COMMIT, b"\x2a\x00"),
    "coordinator_large_commits": fresh(COMMIT, lambda group: committed(f"large-{group}", 10_000)),
    "coordinator_legal_commits": fresh(COMMIT, lambda group: committed(f"legal-{group}", 2_000, 400)),
    "coordinator_many_groups": fresh(COMMIT, lambda group: committed(f"many-{group}")),
    "coordinator_one_crowd": crowd(1),
    "coordinator_many_crowds": crowd(CROWD),
    "coordinator_transactional_ids": fresh(INIT_PRODUCER, initialized),
    "coordinator_garbage": garbage(METADATA, MEMBERSHIP, COMMIT, FETCH_OFFSETS, INIT_PRODUCER),
}
OF_CONTROLLERS: dict[str, Attack] = {
    "controller_idle_connections": idle_connections,
    "controller_half_open": half_open(DESCRIBE_QUORUM, METADATA),
    "controller_rapid_resets": rapid_resets(DESCRIBE_QUORUM),
    "controller_huge_requests": huge_requests(CREATE_TOPICS, b"\x0a\x00"),
    "controller_garbage": garbage(METADATA, DESCRIBE_QUORUM, CREATE_TOPICS),
}
ATTACKS: dict[str, Attack] = OF_BROKERS | OF_COORDINATORS | OF_CONTROLLERS | OF_KAFKA


def framed(message: bytes) -> bytes:
    """A gRPC message with its header."""
    return b"\0" + struct.pack(">I", len(message)) + message


def _connect(address: Address, **options: Any) -> Any:
    from headrace_core.testing.raw_http2 import RawConnection

    return RawConnection(address, timeout_s=2, **options)


def _close(held: list[Any]) -> None:
    for each in held:
        with contextlib.suppress(OSError):
            each.close()


def _drain(stream: Any) -> None:
    import grpc

    with contextlib.suppress(grpc.RpcError):
        for _ in stream:
            pass


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
