"""Hostile clients beside a well-behaved one: the effect on its p99 and on the brokers' memory (`make bench-hostile`).

    hostile.py [--seconds 4] [--only NAMES] [--rate 100] [--smoke] [--small]

Three brokers, three controllers, a coordinator and a gateway are real processes with default settings (``--small``: one
of each). The topic has a replica on each broker. A producer (acks=all) sends ``--rate`` records per second and a
consumer reads them. A latency is the time from send to receipt, and belongs to the slice of the send. Beside attackers
of the coordinator, the consumer is a member of a group and commits after each poll. A latency is then the time from
send to the end of the commit. Beside attackers of the gateway's port (kafka_attackers.py), the producer and the
consumer are librdkafka's. An attacker is one process that may use half a core, on loopback, bounded in time and count.

Quiet slices and slices with an attacker alternate, ``--seconds`` each, in two rounds over all attackers. An attacker is
compared with the quiet slices directly before its own slices, so a slow minute affects the attack and the quiet slices.
Each result is one JSON object per line; a table follows:

    quiet_p99_ms, p99_ms, ratio, rss_mib (peak of the largest process of the attacked kind), broker_rss_mib, quiet_cpu,
    cpu (of the attacked kind), attacker_cpu (cores), alive, within_ratio (the bare bar: p99 at most 3 times the quiet
    one), fine (all bars of this attacker)

The exit code is 1 when a bar is missed. The bars are: p99 at most 3 times the quiet p99 (or 25 ms), every process
alive, no process above 400 MiB, no record lost. ``within_ratio`` compares only with 3 times the quiet p99, not with
25 ms. ``within_ratio`` is a separate result, and does not change the exit code. The time of a run with the
defaults has not been measured; nine to twelve minutes are an estimate.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka_attackers import BOMBED, FILLED, OF_GATEWAYS, TOPIC
from measure import cpu_seconds, emit, rss_mib

OF_GROUP, OF_GATEWAY = "of-group", "of-gateway"
MIB = 1024 * 1024
FILLED_BYTES = 64 * MIB  #: Bytes of records that attackers of a gateway fetch.
RATIO_MAX, RSS_MIB_MAX = 3.0, 400.0
#: A p99 below this value always passes, because the attacker shares the two cores.
FLOOR_MS = 25.0
CORES = 0.5
CONNECTIONS, SLOW_READERS, HALF_OPEN = 1_000, 100, 200
#: The number of members of one group, each with its own stream, and the number of members on one connection.
CROWD, CROWD_PER_CONNECTION = 1_000, 100
#: Slices per attacker. Time that an attacker has to end before a quiet slice, and to connect before its own slice.
ROUNDS = 2
SETTLE_S, CONNECT_S = 0.7, 0.5
#: How long to wait for the records of a slice (seconds).
ARRIVAL_S = 5.0
READY = "attacking"
COUNTS = ("sent", "received", "failed")


# -- the attackers (in separate processes) ----------------------------------------------------------------------------


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


def packed_garbage(pace: Pace, address: Address) -> None:
    """ProduceMany messages with 100 requests each, whose records are not valid batches."""
    chance = random.Random(17)
    part = b"\x0a\x06bombed\x22" + _varint(1_000) + chance.randbytes(1_000)
    requests = [b"\x08" + _varint(each) + b"\x22" + _varint(len(part)) + part for each in range(1, 101)]
    message = b"".join(b"\x0a" + _varint(len(each)) + each for each in requests)

    def once(channel: Any) -> None:
        _drain(channel.stream_stream(PRODUCE_MANY)(iter([message] * 10), timeout=5))

    _with_grpc(pace, address, once, compressed=False)


def packed_items(pace: Pace, address: Address) -> None:
    """ProduceMany messages of 88 and 15 MiB: requests of two bytes, and one request with partitions of two bytes."""
    sizes = itertools.cycle([88 * MIB, 15 * MIB])
    inner = itertools.cycle([True, False])

    def once(channel: Any) -> None:
        data = (b"\x22\x00" if next(inner) else b"\x0a\x00") * (next(sizes) // 2)
        message = b"\x0a" + _varint(len(data)) + data if data.startswith(b"\x22") else data
        _drain(channel.stream_stream(PRODUCE_MANY)(iter([message]), timeout=5))

    _with_grpc(pace, address, once, compressed=False)


def packed_slow_readers(pace: Pace, address: Address) -> None:
    """ProduceMany messages with 100 requests for a topic that does not exist; the client leaves the answers unread."""
    held: list[Any] = []
    part = b"\x0a\x07missing\x22\x01x"
    request = b"\x08\x01\x22" + _varint(len(part)) + part
    message = framed((b"\x0a" + _varint(len(request)) + request) * 100)
    while pace.on():
        if len(held) < SLOW_READERS:
            with contextlib.suppress(OSError):
                attacker = _connect(address, settings=[(4, 0)])
                stream_id = attacker.open_call(PRODUCE_MANY)
                for _ in range(20):
                    attacker.message_part(stream_id, message)
                held.append(attacker)
        else:
            time.sleep(0.05)
    _close(held)


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
PRODUCE_MANY = "/headrace.v1.Produce/ProduceMany"

OF_BROKERS: dict[str, Attack] = {
    "unknown_names": unknown_names,
    "legal_names": legal_names,
    "legal_offsets": legal_offsets,
    "empty_items": empty_items,
    "large_produce": large_produce,
    "packed_garbage": packed_garbage,
    "packed_items": packed_items,
    "packed_slow_readers": packed_slow_readers,
    "grpc_bombs": grpc_bombs,
    "batch_bombs": batch_bombs,
    "idle_connections": idle_connections,
    "slow_readers": slow_readers,
    "half_open": half_open(METADATA, PRODUCE),
    "rapid_resets": rapid_resets(METADATA),
    "garbage": garbage(
        METADATA, PRODUCE, PRODUCE_MANY, "/headrace.v1.Fetch/Fetch", "/headrace.v1.Offsets/ListOffsets", CREATE_TOPICS
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
ATTACKS: dict[str, Attack] = OF_BROKERS | OF_COORDINATORS | OF_CONTROLLERS | OF_GATEWAYS


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


# -- the well-behaved client ------------------------------------------------------------------------------------------


class Client:
    """Sends a record every ``1 / rate`` s, and measures when a consumer receives it."""

    topic = TOPIC

    def __init__(self, rate: float) -> None:
        self._last = 0.0  # records that a member reads again after a rebalance count once
        self._rate, self._over, self._over_reading = rate, threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._latencies_ms: dict[float, float | None] = {}  # send time -> latency; None: the record is not received yet
        self.sent = self.received = self.failed = 0
        self._threads = [threading.Thread(target=self._send_all), threading.Thread(target=self._receive_all)]

    # -- what a client's library does

    def _ready(self) -> None:
        """Wait until the consumer knows its position."""
        raise NotImplementedError

    def _send(self, value: bytes) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        raise NotImplementedError

    def _poll(self) -> list[bytes]:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    # -- the measurement

    def start(self) -> None:
        self._ready()
        for thread in self._threads:
            thread.start()

    def measure(self, seconds: float) -> list[float]:
        """Latencies of records sent within ``seconds`` from now, in ms. The latency of a missing record is the time for
        which the program has waited for the record."""
        began = time.monotonic()
        time.sleep(seconds)
        with self._lock:
            known, self._latencies_ms = self._latencies_ms, {}
        slice_ms = {sent: took for sent, took in known.items() if sent >= began}
        deadline = time.monotonic() + ARRIVAL_S
        while None in slice_ms.values() and time.monotonic() < deadline:
            time.sleep(0.01)
            with self._lock:
                for sent in [sent for sent, took in slice_ms.items() if took is None]:
                    slice_ms[sent] = self._latencies_ms.pop(sent, None)
        now = time.monotonic()
        return [(now - sent) * 1000 if took is None else took for sent, took in slice_ms.items()]

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._close()

    def _send_all(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            now = time.monotonic()
            with self._lock:
                self._latencies_ms[now] = None
            self._send(struct.pack(">d", now))
            self.sent += 1
            due += 1 / self._rate
            time.sleep(max(due - time.monotonic(), 0))
        self._flush()
        time.sleep(2)
        self._over_reading.set()

    def _receive_all(self) -> None:
        while not self._over_reading.is_set():
            values = self._poll()
            now = time.monotonic()
            for value in values:
                if len(value) != 8:  # an attacker's record
                    continue
                (sent,) = struct.unpack(">d", value)
                if sent <= self._last:
                    continue
                self._last = sent
                self.received += 1
                with self._lock:
                    self._latencies_ms[sent] = (now - sent) * 1000


class SdkClient(Client):
    """A client of the SDK. With ``group``, a latency ends when the consumer has committed the record."""

    def __init__(self, bootstrap: str, rate: float, *, group: str | None = None) -> None:
        from headrace import Consumer, Producer, TopicPartition

        super().__init__(rate)
        self._producer = Producer(bootstrap_servers=bootstrap, linger_ms=0)
        self._group = group
        if group is None:
            self._consumer = Consumer(bootstrap_servers=bootstrap, auto_offset_reset="latest")
            self._consumer.assign([TopicPartition(self.topic, 0)])
        else:
            self.topic = OF_GROUP
            self._consumer = Consumer(
                bootstrap_servers=bootstrap, auto_offset_reset="latest", group_id=group, enable_auto_commit=False
            )
            self._consumer.subscribe([self.topic])

    def _ready(self) -> None:
        self._consumer.poll(timeout=1)
        deadline = time.monotonic() + 30
        while not self._consumer.assignment() and time.monotonic() < deadline:
            self._consumer.poll(timeout=0.1)
        for tp in self._consumer.assignment():
            self._consumer.position(tp, timeout=30)

    def _send(self, value: bytes) -> None:
        self._producer.send(self.topic, value).add_done_callback(self._acknowledged)

    def _acknowledged(self, future: Any) -> None:
        if future.exception() is not None:
            self.failed += 1

    def _flush(self) -> None:
        self._producer.flush()

    def _poll(self) -> list[bytes]:
        records = self._consumer.poll(timeout=0.2)
        if records and self._group is not None:
            self._consumer.commit()
        return [record.value for record in records]

    def _close(self) -> None:
        self._producer.close()
        self._consumer.close()


class KafkaClient(Client):
    """A client of librdkafka at a gateway."""

    topic = OF_GATEWAY

    def __init__(self, bootstrap: str, rate: float) -> None:
        from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

        super().__init__(rate)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(self.topic, 0, OFFSET_END)])

    def _ready(self) -> None:
        """Send records until one is received: from then on, the consumer receives all records. This also creates the
        topic of committed offsets before an attacker of groups can create it."""
        self._consumer.committed(self._consumer.assignment(), 30)
        for _ in range(300):
            self._send(b"ready")
            if self._consumer.consume(100, 0.1):
                return
        raise SystemExit("a consumer at the gateway has received nothing for 30 s")

    def _send(self, value: bytes) -> None:
        self._producer.produce(self.topic, value, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed += 1

    def _flush(self) -> None:
        self._producer.flush(30)

    def _poll(self) -> list[bytes]:
        return [each.value() or b"" for each in self._consumer.consume(1, 0.2) if each.error() is None]

    def _close(self) -> None:
        self._consumer.close()


def p99(latencies_ms: list[float]) -> float:
    return sorted(latencies_ms)[int(len(latencies_ms) * 0.99)] if latencies_ms else float("inf")


# -- the run ----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Results for one attacker, over all its slices. Times in ms, CPU in seconds."""

    quiet: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    seconds = quiet_cpu = node_cpu = attacker_cpu = rss_mib = broker_rss_mib = 0.0
    alive: bool = True

    def figures(self, name: str, floor_ms: float) -> dict[str, Any]:
        quiet, beside = p99(self.quiet), p99(self.beside)
        within_ratio = beside <= RATIO_MAX * quiet
        fine = (
            (within_ratio or beside <= floor_ms)
            and self.alive
            and max(self.rss_mib, self.broker_rss_mib) <= RSS_MIB_MAX
        )
        return {
            "what": name,
            "quiet_p99_ms": round(quiet, 2),
            "p50_ms": round(statistics.median(self.beside), 2) if self.beside else None,
            "p99_ms": round(beside, 2),
            "max_ms": round(max(self.beside, default=0.0), 2),
            "ratio": round(beside / quiet, 2),
            "records": len(self.beside),
            "rss_mib": round(self.rss_mib, 1),
            "broker_rss_mib": round(self.broker_rss_mib, 1),
            "quiet_cpu": round(self.quiet_cpu / self.seconds, 2),
            "cpu": round(self.node_cpu / self.seconds, 2),
            "attacker_cpu": round(self.attacker_cpu / self.seconds, 2),
            "alive": self.alive,
            "within_ratio": within_ratio,
            "fine": fine,
        }


@dataclass(frozen=True)
class Target:
    """The attacked node, the processes of its kind, the brokers, and the well-behaved client."""

    address: str
    pids: list[int]
    brokers: list[int]
    client: Client


def one_slice(name: str, target: Target, seconds: float, outcome: Outcome) -> None:
    """Run a quiet slice, then one beside the attacker, into ``outcome``."""
    time.sleep(SETTLE_S)
    pids, client, address = target.pids, target.client, target.address
    before = cpu_seconds(pids)
    outcome.quiet += client.measure(seconds)
    outcome.quiet_cpu += cpu_seconds(pids) - before
    outcome.seconds += seconds
    lasts_s = seconds + CONNECT_S + 0.2
    command = [sys.executable, __file__, "--attack", name, "--at", address, "--seconds", str(lasts_s)]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(OSError, RuntimeError):
                outcome.rss_mib = max(outcome.rss_mib, *map(rss_mib, pids))
                outcome.broker_rss_mib = max(outcome.broker_rss_mib, *map(rss_mib, target.brokers))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert attacker.stdout is not None
        if READY not in attacker.stdout.readline():
            raise SystemExit(f"the attacker {name!r} ended before it began (exit {attacker.wait()})")
        time.sleep(CONNECT_S)
        before, attackers = cpu_seconds(pids), cpu_seconds([attacker.pid])
        outcome.beside += client.measure(seconds)
        outcome.node_cpu += cpu_seconds(pids) - before
        with contextlib.suppress(OSError):
            outcome.attacker_cpu += cpu_seconds([attacker.pid]) - attackers
    finally:
        try:
            attacker.wait(10)
        except subprocess.TimeoutExpired:
            attacker.kill()
            attacker.wait()
        over.set()
        watcher.join()


def fill(bootstrap: str) -> None:
    """Write FILLED_BYTES of records that cannot be compressed."""
    from headrace import Producer

    value = random.Random(17).randbytes(256 * 1024)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(FILLED_BYTES // len(value)):
            producer.send(FILLED, value)


def measured(names: list[str], seconds: float, rate: float, floor_ms: float, size: int) -> bool:
    """Run all attackers beside ``size`` brokers and controllers; returns whether every bar is met."""
    from headrace import Admin, LocalCluster, NewTopic

    gateways = 1 if OF_GATEWAYS.keys() & set(names) else 0
    with LocalCluster(brokers=size, controllers=size, coordinators=1, gateways=gateways) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics(
                [
                    NewTopic(name, partitions=1, replication_factor=size)
                    for name in (TOPIC, BOMBED, OF_GROUP, OF_GATEWAY, FILLED)
                ]
            )
            (topic,) = admin.describe_topics([TOPIC])
            controller = admin.describe_quorum().leader_id
        nodes = cluster.ps()
        leader = topic.partitions[0].leader
        everybody = {node["pid"] for node in nodes}
        brokers, coordinators, controllers, gateway_pids = (
            [node["pid"] for node in nodes if node["role"] == role]
            for role in ("broker", "coordinator", "controller", "gateway")
        )
        addresses = {(node["role"], node["id"]): node["address"] for node in nodes}
        outcomes = {name: Outcome() for name in names}
        plain: Client = SdkClient(cluster.bootstrap_servers, rate)
        clients = [plain]
        plain.start()
        member = plain
        if OF_COORDINATORS.keys() & outcomes.keys():
            member = SdkClient(cluster.bootstrap_servers, rate, group="well-behaved")
            clients.append(member)
            member.start()
        kafkas = plain
        if gateways:
            fill(cluster.bootstrap_servers)
            kafkas = KafkaClient(cluster.kafka_bootstrap_servers, rate)
            clients.append(kafkas)
            kafkas.start()
        of_broker = Target(addresses["broker", leader], brokers, brokers, plain)
        of_coordinator = Target(addresses["coordinator", 1], coordinators, brokers, member)
        of_controller = Target(addresses["controller", controller], controllers, brokers, plain)
        of_gateway = Target(cluster.kafka_bootstrap_servers, gateway_pids, brokers, kafkas)
        targets = (
            dict.fromkeys(OF_BROKERS, of_broker)
            | dict.fromkeys(OF_COORDINATORS, of_coordinator)
            | dict.fromkeys(OF_CONTROLLERS, of_controller)
            | dict.fromkeys(OF_GATEWAYS, of_gateway)
        )
        try:
            for client in clients:
                client.measure(3)  # warm up
            quiet = plain.measure(max(seconds / ROUNDS, 1))
            emit(what="quiet", p99_ms=round(p99(quiet), 2), records=len(quiet), rss_mib=max(map(rss_mib, brokers)))
            for _ in range(ROUNDS):
                for name, outcome in outcomes.items():
                    one_slice(name, targets[name], seconds / ROUNDS, outcome)
                    outcome.alive &= {node["pid"] for node in cluster.ps()} == everybody
            figures = [outcome.figures(name, floor_ms) for name, outcome in outcomes.items()]
            for each in figures:
                emit(**each)
            after = plain.measure(max(seconds / 2, 3))
            rss = round(max(map(rss_mib, everybody)), 1)
            emit(what="afterwards", p99_ms=round(p99(after), 2), records=len(after), rss_mib=rss)
        finally:
            for client in clients:
                client.stop()
        sent, received, failed = (sum(getattr(client, what) for client in clients) for what in COUNTS)
        lost = sent - failed - received
        fine = all(each["fine"] for each in figures) and lost <= 0 and not failed
        emit(what="records", sent=sent, received=received, failed=failed, lost=lost, fine=fine)
    print(table(figures, lost, fine))
    return fine


def table(figures: list[dict[str, Any]], lost: int, fine: bool) -> str:
    columns = ["what", "quiet_p99_ms", "p99_ms", "ratio", "max_ms", "rss_mib", "broker_rss_mib", "cpu", "attacker_cpu"]
    rows = [[*columns, f"ratio <= {RATIO_MAX:g}", "verdict"]]
    rows += [
        [*(str(each[column]) for column in columns), *(_passed(each[bar]) for bar in ("within_ratio", "fine"))]
        for each in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    peak = max((max(each["rss_mib"], each["broker_rss_mib"]) for each in figures), default=0.0)
    within = sum(each["within_ratio"] for each in figures)
    lines.append(f"p99 at most {RATIO_MAX:g} times the quiet one: {within} of {len(figures)} attackers")
    lines.append(f"peak RSS {peak:.0f} MiB of {RSS_MIB_MAX:.0f}, {lost} records lost: {_passed(fine)}")
    return "\n".join(lines)


def _passed(fine: bool) -> str:
    return "ok" if fine else "MISSED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--floor-ms", type=float, default=FLOOR_MS, help="a p99 below this value always passes")
    parser.add_argument("--smoke", action="store_true", help="slices of two seconds")
    parser.add_argument("--small", action="store_true", help="run one broker and one controller")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.attack:
        host, _, port = chosen.at.rpartition(":")
        ATTACKS[chosen.attack](Pace(chosen.seconds), (host, int(port)))
        return 0
    names = [name for name in ATTACKS if not chosen.only or name in chosen.only.split(",")]
    seconds, size = 2 if chosen.smoke else chosen.seconds, 1 if chosen.small else 3
    return 0 if measured(names, seconds, chosen.rate, chosen.floor_ms, size) else 1


if __name__ == "__main__":
    sys.exit(main())
