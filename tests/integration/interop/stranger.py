"""A third party's client that is built only from the .proto files: grpcio, generated code, and Python's standard
library.

usage: python -S stranger.py BOOTSTRAP TOPIC     (PYTHONPATH: the generated code, and where grpc is)

The program creates the topic, produces three records, requests offsets, consumes, and prints the results as one JSON
object. The program builds the record batch from the documentation of Kafka's message format (version 2).
"""

import importlib.util
import json
import struct
import sys
import time

import grpc

from headrace_protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    fetch_pb2,
    fetch_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    offsets_pb2,
    offsets_pb2_grpc,
    produce_pb2,
    produce_pb2_grpc,
)

CALL_S = 60


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def varint(value):
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data, position):
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def sized(data):
    return varint(-1) if data is None else varint(len(data)) + data


def encode_batch(records, timestamp_ms):
    body = b""
    for delta, (key, value, headers) in enumerate(records):
        record = b"\0" + varint(delta) + varint(delta) + sized(key) + sized(value) + varint(len(headers))
        for name, content in headers:
            record += sized(name.encode()) + sized(content)
        body += varint(len(record)) + record
    last = len(records) - 1
    after_crc = struct.pack(">hiqqqhii", 0, last, timestamp_ms, timestamp_ms + last, -1, -1, -1, len(records)) + body
    after_length = struct.pack(">ibI", -1, 2, crc32c(after_crc)) + after_crc
    return struct.pack(">qi", 0, len(after_length)) + after_length


def read_sized(data, position):
    size, position = read_varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def decode_batches(data):
    """[(offset, timestamp, key, value)] of uncompressed batches, CRC checked."""
    found = []
    position = 0
    while position < len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        _, magic, crc = struct.unpack_from(">ibI", data, position + 12)
        end = position + 12 + length
        assert magic == 2, magic
        assert crc == crc32c(data[position + 21 : end]), "CRC"
        attributes, _, base_timestamp = struct.unpack_from(">hiq", data, position + 21)
        assert attributes & 7 == 0, "compressed"
        (count,) = struct.unpack_from(">i", data, position + 57)
        at = position + 61
        for _ in range(count):
            _, at = read_varint(data, at)
            timestamp_delta, at = read_varint(data, at + 1)
            offset_delta, at = read_varint(data, at)
            key, at = read_sized(data, at)
            value, at = read_sized(data, at)
            headers, at = read_varint(data, at)
            for _ in range(2 * headers):
                _, at = read_sized(data, at)
            found.append((base_offset + offset_delta, base_timestamp + timestamp_delta, key, value))
        assert at == end, (at, end)
        position = end
    return found


def text(data):
    return None if data is None else data.decode()


def main(bootstrap, topic):
    for ours in ("headrace", "headrace_core", "headrace_broker", "headrace_controller"):
        assert importlib.util.find_spec(ours) is None, f"{ours} can be imported: this is no stranger"

    seen = {}
    with grpc.insecure_channel(bootstrap) as channel:
        created = admin_pb2_grpc.AdminStub(channel).CreateTopics(
            admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(name=topic, partitions=2, replication_factor=1)]),
            timeout=CALL_S,
        )
        seen["created"] = [result.error.code for result in created.results]

        metadata = metadata_pb2_grpc.MetadataStub(channel).GetMetadata(
            metadata_pb2.MetadataRequest(topics=[topic], min_metadata_offset=created.metadata_offset), timeout=CALL_S
        )
        seen["partitions"] = len(metadata.topics[0].partitions)
        endpoint = {broker.broker_id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
        leader = endpoint[next(p.leader_id for p in metadata.topics[0].partitions if p.partition == 1)]

    with grpc.insecure_channel(leader) as channel:
        now_ms = int(time.time() * 1000)
        batch = encode_batch(
            [(b"k1", b"one", []), (None, b"two", [("h", b"x")]), (b"k3", None, [("null", None)])], now_ms
        )
        partition = produce_pb2.ProducePartition(topic=topic, partition=1, records=batch)
        request = produce_pb2.ProduceRequest(correlation_id=7, acks=produce_pb2.ACKS_LEADER, partitions=[partition])
        answers = produce_pb2_grpc.ProduceStub(channel).Produce(iter([request]), timeout=CALL_S)
        answer = next(answers)
        seen["produced"] = [answer.correlation_id, answer.results[0].error.code, answer.results[0].base_offset]
        seen["durability"] = produce_pb2.Durability.Name(answer.results[0].durability)

        listed = offsets_pb2_grpc.OffsetsStub(channel).ListOffsets(
            offsets_pb2.ListOffsetsRequest(
                partitions=[
                    offsets_pb2.ListOffsetsPartition(topic=topic, partition=1, timestamp_ms=t, current_leader_epoch=-1)
                    for t in (-2, -1)
                ]
            ),
            timeout=CALL_S,
        )
        seen["offsets"] = [result.offset for result in listed.results]

        wanted = fetch_pb2.FetchPartition(
            topic=topic, partition=1, fetch_offset=0, current_leader_epoch=-1, last_fetched_epoch=-1
        )
        question = fetch_pb2.FetchRequest(correlation_id=8, max_wait_ms=10_000, min_bytes=1, partitions=[wanted])
        fetched = next(fetch_pb2_grpc.FetchStub(channel).Fetch(iter([question]), timeout=CALL_S))
        result = fetched.results[0]
        seen["fetched"] = [fetched.correlation_id, result.error.code, result.high_watermark]
        seen["records"] = [
            [offset, timestamp - now_ms, text(key), text(value)]
            for offset, timestamp, key, value in decode_batches(result.records)
        ]
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
