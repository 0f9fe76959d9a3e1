"""Targets: the controller's records, settings and properties, and protobuf requests into the broker's own handlers."""

# ruff: noqa: ASYNC110 - the handlers are callbacks: nothing tells that one is idle
from __future__ import annotations

import asyncio
import json
import random
import struct
from typing import Any

from google.protobuf.message import DecodeError

from headrace.settings import ADMIN, CONSUMER, PRODUCER, resolve
from headrace_broker.handlers.fetch import FetchStream
from headrace_broker.handlers.produce import ProduceStream
from headrace_core.errors import HeadraceError, UnknownServerError
from headrace_core.metadata import ImageBuilder, MetadataImage
from headrace_core.metadata.codec import decode_batches, encode_decision
from headrace_core.metadata.records import ClusterRecord, ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from headrace_core.node.config import NodeConfig
from headrace_core.node.properties import parse_overrides, parse_properties
from headrace_core.records import check_batch, encode_batch, iterate_headers
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2, produce_pb2
from tests.fuzz.fuzz_engine import Target
from tests.fuzz.fuzz_records import outcome
from tests.fuzz.fuzz_seeds import batches, logs, sealed_after
from tests.worlds.solo_broker import FakeStream, SoloBroker, fetch, produce

# ---------------------------------------------------------------------------------------------- metadata


def metadata_batches(data: bytes) -> None:
    """Read bytes of the metadata log. The result is a typed error, or records that are written back unchanged."""
    found = []
    try:
        for batch in decode_batches(data):
            found.append(batch)  # noqa: PERF402 - those before an error count
    except HeadraceError:
        pass
    for batch in found:
        if batch.records:
            again = encode_decision(
                batch.records, timestamp_ms=5, base_offset=batch.base_offset, epoch=max(batch.epoch, 0)
            )
            (read,) = decode_batches(again)
            assert read.records == batch.records
    outcome(lambda: _replayed(found))


def _replayed(found: list[Any]) -> Any:
    builder = ImageBuilder(MetadataImage())
    for batch in found:
        for record in batch.records:
            builder.replay(record)
    return builder.finish(max((batch.next_offset for batch in found), default=0))


def _decisions() -> list[bytes]:
    topic = b"t" * 16
    return [
        encode_decision([ClusterRecord("c", 1)], timestamp_ms=5, base_offset=0, epoch=1)
        + encode_decision(
            [TopicRecord("orders", topic), PartitionRecord(topic, 0, (1, 2), (1,), 1, 0, 0)],
            timestamp_ms=6,
            base_offset=1,
            epoch=1,
        )
        + encode_decision(
            [ConfigRecord(2, "orders", "retention.ms", "5"), RemoveTopicRecord(topic)],
            timestamp_ms=7,
            base_offset=3,
            epoch=2,
        )
    ]


# ---------------------------------------------------------------------------------------------- settings


def sdk_settings(data: bytes) -> None:
    """Check a client's settings, as JSON so that values have types. The result is typed values, or a HeadraceError that
    names the key."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = {"bootstrap.servers": data.decode("latin-1")}
    if not isinstance(given, dict):
        given = {"bootstrap.servers": given}
    for definition in (PRODUCER, CONSUMER, ADMIN):
        kind, values = outcome(lambda definition=definition: resolve(definition, given, {}))
        if kind == "ok":
            assert all(":" in address for address in values["bootstrap.servers"])
            assert resolve(definition, dict(given.items()), {}) == values


def node_properties(data: bytes) -> None:
    """Read a node's properties file and its command line. The result is a configuration, or a HeadraceError that names
    the line."""
    text = data.decode("utf-8", "replace")
    for role in ("broker", "controller"):
        outcome(lambda role=role: NodeConfig.from_properties(parse_properties(text, where="f.properties"), role=role))
    outcome(lambda: parse_overrides(text.split("\n")))


def _settings() -> list[bytes]:
    return [
        json.dumps(given).encode()
        for given in (
            {"bootstrap.servers": "a:1,b:2", "linger.ms": 5, "acks": "all", "compression.type": "lz4"},
            {"bootstrap_servers": ["h:9095"], "batch.size": "16384", "delivery.timeout.ms": 30_000},
            {
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "fetch.min.bytes": 1,
                "isolation.level": "read_committed",
            },
            {"linger.ms": 1e308, "buffer.memory": -1, "client.id": None, "acks": True},
        )
    ]


# ---------------------------------------------------------------------------------------------- requests


class _Serving:
    """Use one broker for many inputs, and sometimes start a new broker."""

    runner = asyncio.Runner()
    broker: SoloBroker | None = None
    used = 0
    sound = 0

    @classmethod
    async def get(cls) -> SoloBroker:
        if cls.broker is None or cls.used >= 300:
            if cls.broker is not None:
                await cls.broker.__aexit__()
            cls.broker = await SoloBroker(CrashingFileSystem(keep_trace=False)).__aenter__()
            await cls.broker.topic("orders")
            await cls.broker.topic("sound")
            await cls.broker.topic("read")
            cls.used = cls.sound = 0
        cls.used += 1
        return cls.broker


def produce_request(data: bytes) -> None:
    """Handle bytes as a ProduceRequest. Each partition gets a typed error other than UnknownServerError, or offsets at
    which the log has exactly the records of the request. A second topic of the same broker continues to work."""
    _Serving.runner.run(_produce(data))


async def _produce(data: bytes) -> None:
    broker = await _Serving.get()
    try:
        request = produce_pb2.ProduceRequest.FromString(data)
    except DecodeError:
        return
    for item in request.partitions:
        item.topic = item.topic if len(item.topic) > 20 else "orders"
    request.timeout_ms = min(request.timeout_ms, 0)
    stream = FakeStream()
    handler = ProduceStream(broker.context, stream)  # type: ignore[arg-type]
    before = broker.partitions.leader(TopicPartition("orders", 0)).log.log_end_offset
    try:
        handler.on_request(request)
    except HeadraceError:
        handler.on_closed()
        return
    async with asyncio.timeout(8):
        while not handler.is_idle():
            await asyncio.sleep(0)
    if request.acks != produce_pb2.ACKS_NONE:
        (answer,) = stream.sent
        assert answer.correlation_id == request.correlation_id
        assert len(answer.results) == len(request.partitions)
        for item, result in zip(request.partitions, answer.results, strict=True):
            assert result.error.code != UnknownServerError.number, result.error.message
            if not result.error.code:
                assert result.base_offset >= before
                _check_stored(broker, item.records, result.base_offset)
    handler.on_closed()
    if _Serving.used % 20 == 0:
        result = await broker.append("sound", batches()[0])
        assert not result.error.code
        assert result.base_offset == 4 * _Serving.sound
        _Serving.sound += 1


def _check_stored(broker: SoloBroker, records: bytes, base_offset: int) -> None:
    log = broker.partitions.leader(TopicPartition("orders", 0)).log
    result = log.read(base_offset, len(records))
    assert result is not None
    position = 0
    for at, header in iterate_headers(records):
        stored = result.records[position : position + header.size]
        check_batch(stored)
        assert stored[43:] == records[at + 43 : at + header.size], "the log has other bytes than were sent"
        position += header.size


def fetch_request(data: bytes) -> None:
    """Handle bytes as a FetchRequest. The result is a response or a typed error. A response exceeds the requested bytes
    by at most one batch."""
    _Serving.runner.run(_fetch(data))


async def _fetch(data: bytes) -> None:
    broker = await _Serving.get()
    log = broker.partitions.leader(TopicPartition("read", 0)).log
    if log.log_end_offset == 0:
        for batch in logs()[1:2] * 3:
            await broker.append("read", batch)
    try:
        request = fetch_pb2.FetchRequest.FromString(data)
    except DecodeError:
        return
    for item in request.partitions:
        item.topic = "read" if len(item.topic) < 20 else item.topic
    request.max_wait_ms = min(request.max_wait_ms, 1)
    stream = FakeStream()
    handler = FetchStream(broker.context, stream)  # type: ignore[arg-type]
    try:
        handler.on_request(request)
        async with asyncio.timeout(8):
            while not stream.sent and not stream.ended:
                await asyncio.sleep(0.0005)
    except HeadraceError:
        return
    finally:
        handler.on_closed()
    for answer in stream.sent:
        for result in answer.results:
            assert result.error.code != UnknownServerError.number, result.error.message
            position = 0
            for position, header in iterate_headers(result.records):
                check_batch(result.records, position)
                assert header.last_offset < log.log_end_offset


def _sealed_request(data: bytes, rng: random.Random) -> bytes:
    """Find bytes in a request that look like a batch, give them a valid CRC, and keep the lengths around them."""
    at = data.find(b"\x02", 16)
    while at != -1:
        start = at - 16
        if start >= 0 and len(data) - start > 61 and data[start : start + 4] == bytes(4):
            size = struct.unpack_from(">i", data, start + 8)[0] + 12
            if 61 <= size <= len(data) - start:
                return data[:start] + sealed_after(0)(data[start : start + size], rng) + data[start + size :]
        at = data.find(b"\x02", at + 1)
    return data


def _produce_seeds() -> list[bytes]:
    found = [produce(7, "orders", batch).SerializeToString() for batch in batches()[:6]]
    many = produce_pb2.ProduceRequest(
        correlation_id=3,
        acks=produce_pb2.ACKS_LEADER,
        partitions=[
            produce_pb2.ProducePartition(
                topic=topic, partition=number, records=logs()[1], topic_id=b"orders".ljust(16, b".")
            )
            for topic, number in (("orders", 0), ("orders", 7), ("nowhere", -1))
        ],
    )
    return [
        *found,
        many.SerializeToString(),
        produce(1, "orders", encode_batch([(5, None, b"v", None)]) * 3).SerializeToString(),
    ]


def _fetch_seeds() -> list[bytes]:
    more = fetch(2, "read", "read", "nowhere", offset=5, max_wait_ms=1)
    more.max_bytes = 100
    more.forgotten.add(topic="read", partition=0)
    return [fetch(1, "read", max_wait_ms=1).SerializeToString(), more.SerializeToString()]


TARGETS = (
    Target("metadata_batches", metadata_batches, _decisions, sealed_after(0)),
    Target("sdk_settings", sdk_settings, _settings),
    Target(
        "node_properties",
        node_properties,
        lambda: [
            b"node.id=1\nlog.dirs=/a,/b\nlisteners=client://127.0.0.1:9095,internal://127.0.0.1:19095\n",
            b"log.retention.hours : 5\\\n 6\n! no\nlog.segment.bytes 1048576\ncontroller.quorum.voters=1@h:1\n",
        ],
    ),
    Target("produce_request", produce_request, _produce_seeds, _sealed_request),
    Target("fetch_request", fetch_request, _fetch_seeds),
)
