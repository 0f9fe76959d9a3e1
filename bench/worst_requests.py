"""The largest legal request of each call: milliseconds for which it holds the event loop (`make bench-worst_requests`).

    worst_requests.py [--only PATTERN] [--rounds 3] [--docs]

One broker, controller, coordinator, registry and console run on one event loop of this process. Each request
has as many items as headrace_core.rpc.limits allows (of Kafka's protocol: ITEMS_MAX, of HTTP: the longest body), names
existing partitions, groups and topics where it can, and is sent alone. A result is the longest single callback of the
event loop until the answer, in milliseconds of processor time (so other processes on the machine count little), the
smallest of ``--rounds``. The callbacks of the nodes' background work count, too; garbage collections do not, because
one of all roles in one process takes much longer than one of a node. A call that must not be made on a
living cluster (removing a voter, a snapshot for a follower) is left out, and named.

``--docs`` writes the table into docs/reference/limits.md. The exit code is 1 if a call takes more than BAR_MS.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

import headrace_core.rpc.event_loop
from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace_core.records import Compression, encode_batch
from headrace_core.rpc.limits import LIMITS, RequestLimits
from headrace_protos.v1 import admin_pb2, cluster_pb2, fetch_pb2, groups_pb2, produce_pb2

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "limits.md"
BEGIN, END = "<!-- begin: bench/worst_requests.py -->", "<!-- end: worst requests -->"
BAR_MS = 50.0
SHOWN_MS = 10.0  #: The table has no row for shorter times.
PARTITIONS, TOPIC, GROUP = 2_000, "many", "readers"
#: Bytes of a request that stay free for what the limits' bytes count beside the items.
BYTES_MAX = 8 * 1024 * 1024
ANSWER_S = 20.0
#: Calls that would end the cluster, or that only a node with a session makes.
LEFT_OUT = {
    "Admin/RemoveRaftVoter": "ends the cluster",
    "Admin/AddRaftVoter": "waits for the voter",
    "Admin/TransferLeadership": "ends the leadership",
    "Admin/UnregisterBroker": "ends the broker",
    "Admin/DrainBroker": "ends the broker's leaderships",
    "Raft/Exchange": "between voters",
    "Replication/Follow": "between brokers",
    "Cluster/FollowMetadata": "lasts; no lists",
    "Metadata/WatchMetadata": "as GetMetadata",
    "Cluster/CreateInternalTopic": "no lists",
}


class LoopWatch:
    """The longest callback of the event loops of this process, in seconds of processor time."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.callback = ""  #: The longest callback.
        self._run = asyncio.events.Handle._run

    def install(self) -> None:
        watch, run, clock = self, self._run, time.thread_time

        def timed(handle: asyncio.Handle) -> None:
            began_s = clock()
            run(handle)
            took_s = clock() - began_s
            if took_s > watch.longest_s:
                watch.longest_s, watch.callback = took_s, str(handle)

        asyncio.events.Handle._run = timed  # type: ignore[method-assign, assignment]

    def longest_ms(self, work: Callable[[], str]) -> tuple[float, str]:
        """The longest callback while ``work`` runs, and what ``work`` returned."""
        gc.collect()
        time.sleep(0.1)
        self.longest_s = 0.0
        gc.disable()
        try:
            found = work()
        finally:
            gc.enable()
        return self.longest_s * 1_000, found


# -- requests ----------------------------------------------------------------------------------------------------------


class Filler:
    """Fills a request with as many items as its limits allow."""

    def __init__(self, limits: RequestLimits, scale: float) -> None:
        self._most = {path: max(int(most * scale), 1) for path, most in limits.items.items()}
        self._made: dict[str, int] = {}

    def fill(self, message: Any, path: str = "", parents: int = 1, number: int = 0) -> Any:
        oneofs: set[str] = set()
        for field in message.DESCRIPTOR.fields:
            if (oneof := field.containing_oneof) is not None and len(oneof.fields) > 1:
                if oneof.name in oneofs:
                    continue
                oneofs.add(oneof.name)
            name = f"{path}{field.name}"
            if field.is_repeated:
                self._fill_list(message, field, name, parents)
            elif field.message_type is not None:
                self.fill(getattr(message, field.name), f"{name}.", parents, number)
            else:
                setattr(message, field.name, scalar(field, number))
        return message

    def _fill_list(self, message: Any, field: Any, name: str, parents: int) -> None:
        most = self._most.get(name, 0)
        count = min(max(most // parents, 1), most - self._made.get(name, 0))
        if count <= 0:
            return
        first = self._made[name] = self._made.get(name, 0)
        self._made[name] += count
        items = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            for each in range(count):
                items[f"k{first + each}"] = scalar(value, first + each)
            return
        if field.message_type is None:
            items.extend([scalar(field, first + each) for each in range(count)])
            return
        for each in range(count):
            self.fill(items.add(), f"{name}.", parents * count, first + each)


def scalar(field: Any, number: int) -> Any:
    name, kind = field.name, field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return b""
        if "topic" in name or name in ("topics", "name", "names"):
            return TOPIC
        if "group" in name:
            return GROUP if number == 0 else f"{GROUP}-{number}"
        return f"x{number}"
    if kind == field.CPPTYPE_BOOL:
        return False
    if kind == field.CPPTYPE_ENUM:
        return field.enum_type.values[min(1, len(field.enum_type.values) - 1)].number
    if name == "broker_id":
        return 1
    if "partition" in name and "count" not in name:
        return number % PARTITIONS
    if "timeout" in name or "wait" in name:
        return 1_000
    return 0 if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) else max(0, number % 100)


def _one_batch(value: bytes = b"", compression: Compression = Compression.NONE) -> bytes:
    return encode_batch([(int(time.time() * 1_000), None, value, [])], compression=compression)


def produce_of(records: bytes) -> Any:
    """2,000 partitions with a small batch each."""
    request = produce_pb2.ProduceRequest(correlation_id=1, acks=produce_pb2.ACKS_LEADER, timeout_ms=30_000)
    for number in range(PARTITIONS):
        request.partitions.add(topic=TOPIC, partition=number, records=records)
    return request


def _fetch() -> Any:
    request = fetch_pb2.FetchRequest(correlation_id=1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24)
    for number in range(PARTITIONS):
        request.partitions.add(
            topic=TOPIC, partition=number, max_bytes=1 << 20, current_leader_epoch=-1, last_fetched_epoch=-1
        )
    return request


def _heartbeat() -> Any:
    """A member that owns 100,000 partitions."""
    request = groups_pb2.MembershipRequest(correlation_id=1)
    beat = request.heartbeat
    beat.group_id, beat.member_id, beat.member_epoch = GROUP, "m" * 22, 1
    beat.topics.names.extend([f"t{number}" for number in range(5_000)])
    for _ in range(50):
        beat.owned.topics.add(topic_id=bytes(16), partitions=range(PARTITIONS))
    return request


def _commit() -> Any:
    request = groups_pb2.CommitOffsetsRequest(group_id=GROUP, member_epoch=-1)
    for number in range(PARTITIONS):
        request.offsets.add(topic=TOPIC, partition=number, offset=0)
    return request


def _new_topics(**fields: Any) -> Any:
    """Topics that can be created, as many as metadata.max.records.per.request allows; none is."""
    topics = [{"name": f"new-{number}", **fields} for number in range(10_000 // (2 + len(fields.get("configs", ()))))]
    return admin_pb2.CreateTopicsRequest(validate_only=True, topics=topics)


def _in_sync_sets() -> Any:
    """The in-sync sets of all partitions, as they are."""
    request = cluster_pb2.AlterPartitionRequest(broker_id=1, broker_epoch=FOUND["broker epoch"])
    topic = request.topics.add(topic_id=FOUND["topic id"])
    for number in range(PARTITIONS):
        altered = topic.partitions.add(partition=number)
        altered.isr.add(broker_id=1, broker_epoch=FOUND["broker epoch"])
    return request


def _directories() -> Any:
    """As many replicas as metadata.max.records.per.request allows, of topics that were deleted."""
    request = cluster_pb2.AssignReplicasToDirsRequest(broker_id=1, broker_epoch=FOUND["broker epoch"])
    directory = request.directories.add(directory_id=b"d" * 16)
    for number in range(5):
        directory.topics.add(topic_id=bytes([number + 1]) * 16, partitions=range(PARTITIONS))
    return request


#: What requests name of the running cluster.
FOUND: dict[str, Any] = {}
#: Requests that the filler would make without sense, or not at all, by a label: (call, the request).
SPECIAL: dict[str, tuple[str, Callable[[], Any]]] = {
    "Produce/Produce": ("Produce/Produce", lambda: produce_of(_one_batch())),
    "Produce/Produce, 1 KiB of gzip for a megabyte each": (
        "Produce/Produce",
        lambda: produce_of(_one_batch(bytes(900_000), Compression.GZIP)),
    ),
    "Produce/Produce, small zstd batches": (
        "Produce/Produce",
        lambda: produce_of(_one_batch(bytes(3_000), Compression.ZSTD)),
    ),
    "Produce/Produce, 16 MiB of batches of 70 bytes": (
        "Produce/Produce",
        lambda: produce_pb2.ProduceRequest(
            correlation_id=1,
            acks=produce_pb2.ACKS_LEADER,
            timeout_ms=30_000,
            partitions=[produce_pb2.ProducePartition(topic=TOPIC, records=_one_batch() * 230_000)],
        ),
    ),
    "Admin/CreateTopics, 5,000 new topics": ("Admin/CreateTopics", _new_topics),
    "Admin/CreateTopics, 3,333 new topics with replicas and a configuration": (
        "Admin/CreateTopics",
        lambda: _new_topics(configs={"retention.ms": "1"}, assignments=[{"partition": 0, "broker_ids": [1]}]),
    ),
    "Admin/CreateTopics, 9,999 partitions": (
        "Admin/CreateTopics",
        lambda: admin_pb2.CreateTopicsRequest(validate_only=True, topics=[{"name": "wide", "partitions": 9_999}]),
    ),
    "Admin/CreatePartitions, 10,000 partitions": (
        "Admin/CreatePartitions",
        lambda: admin_pb2.CreatePartitionsRequest(
            validate_only=True, topics=[{"topic": TOPIC, "total_count": PARTITIONS + 10_000}]
        ),
    ),
    "Cluster/AlterPartition, 2,000 partitions": ("Cluster/AlterPartition", _in_sync_sets),
    "Cluster/AssignReplicasToDirs, 10,000 replicas": ("Cluster/AssignReplicasToDirs", _directories),
    "Fetch/Fetch": ("Fetch/Fetch", _fetch),
    "Groups/CommitOffsets": ("Groups/CommitOffsets", _commit),
    "Groups/Membership": ("Groups/Membership", _heartbeat),
}


def requests_of(method: str) -> Iterator[tuple[str, bytes]]:
    """(label, bytes) of the requests of a call."""
    special = [(label, make) for label, (of, make) in SPECIAL.items() if of == method]
    for label, make in special:
        yield label, make().SerializeToString()
    if any(label == method for label, _ in special):
        return
    service, _, name = method.partition("/")
    kind = GetMessageClass(_service(service).methods_by_name[name].input_type)
    scale = 1.0
    while True:
        data: bytes = Filler(LIMITS[method], scale).fill(kind()).SerializeToString()
        limit = min(LIMITS[method].bytes_max, BYTES_MAX)
        if len(data) <= limit:
            yield method, data
            return
        scale *= 0.9 * limit / len(data)


def _service(name: str) -> Any:
    """The descriptor of a service; the nodes have imported all of them."""
    return descriptor_pool.Default().FindServiceByName(f"headrace.v1.{name}")


# -- sending -----------------------------------------------------------------------------------------------------------


def send(address: str, method: str, data: bytes) -> str:
    """Send a request, and return how it was answered: the size of the answer, or the status."""
    service, _, name = method.partition("/")
    described = _service(service).methods_by_name[name]
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        path = f"/headrace.v1.{method}"
        done = threading.Event()
        try:
            if described.client_streaming:

                def requests() -> Iterator[bytes]:
                    yield data
                    done.wait(ANSWER_S)

                answers = channel.stream_stream(path)(requests(), timeout=ANSWER_S)
                return f"{len(next(answers)):,} bytes"
            if described.server_streaming:
                return f"{len(next(channel.unary_stream(path)(data, timeout=ANSWER_S))):,} bytes"
            return f"{len(channel.unary_unary(path)(data, timeout=ANSWER_S)):,} bytes"
        except grpc.RpcError as error:
            return f"{error.code().name}: {(error.details() or '')[:90]}"
        finally:
            done.set()


def listeners_of(cluster: LocalCluster) -> list[tuple[str, str]]:
    """(role and listener, address) of the gRPC listeners."""
    found = []
    for role in ("broker", "controller", "coordinator"):
        state = json.loads((cluster.directory / f"{role}-1" / "node.json").read_text())
        found += [(f"{role}" if name == "client" else f"{role}, {name}", at) for name, at in state["listeners"].items()]
    return found


def kafka_frames() -> Iterator[tuple[str, bytes]]:
    """(label, frame) of the largest requests of Kafka's protocol: ITEMS_MAX items, as the broker
    counts them."""
    from headrace_kafka.wire.apis import VERSIONS, Api
    from headrace_kafka.wire.frames import REQUEST_BYTES_MAX
    from headrace_kafka.wire.primitives import ITEMS_MAX
    from headrace_kafka.wire.schema import request_body

    half = ITEMS_MAX // 2 - 100
    spread = [{"name": TOPIC, "partitions": [{"partition_index": each % PARTITIONS} for each in range(half)]}]
    batch = _one_batch()
    parts = [{"index": each % PARTITIONS, "records": batch} for each in range(half)]
    fetched = [{"partition": each % PARTITIONS, "partition_max_bytes": 1_000} for each in range(half)]
    committed = [{"partition_index": each % PARTITIONS, "committed_offset": 0} for each in range(half)]
    cases: list[tuple[Api, int, dict[str, Any]]] = [
        (Api.PRODUCE, 9, {"acks": 1, "timeout": 30_000, "topic_data": [{"name": TOPIC, "partition_data": parts}]}),
        (Api.FETCH, 12, {"max_wait": 0, "min_bytes": 0, "topics": [{"topic": TOPIC, "partitions": fetched}]}),
        (Api.METADATA, 9, {"topics": [{"name": f"{TOPIC}{each}"} for each in range(half)]}),
        (Api.LIST_OFFSETS, 6, {"topics": spread}),
        (Api.OFFSET_COMMIT, 8, {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": committed}]}),
        (Api.CREATE_TOPICS, 7, {"topics": [{"name": f"t{each}", "num_partitions": 1} for each in range(half)]}),
        (Api.DELETE_TOPICS, 5, {"topic_names": [f"absent{each}" for each in range(half)]}),
        (Api.DESCRIBE_GROUPS, 5, {"groups": [f"g{each}" for each in range(half)]}),
        (Api.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 2, "resource_name": TOPIC} for _ in range(half)]}),
        (Api.DELETE_RECORDS, 2, {"topics": spread, "timeout": 1_000}),
    ]
    for api, version, fields in cases:
        if not VERSIONS[api].low <= version <= VERSIONS[api].high:
            version = VERSIONS[api].high
        head = api.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1" + b"\0\1c"
        flexible = b"\0" if version >= VERSIONS[api].flexible else b""
        body = bytes(request_body(api, version).write(fields))
        if api is Api.PRODUCE or len(body) < REQUEST_BYTES_MAX:
            frame = head + flexible + body
            yield f"Kafka's {api.name}", len(frame).to_bytes(4, "big") + frame


def send_frame(address: str, frame: bytes) -> str:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as connection:
        connection.sendall(frame)
        try:
            size = connection.recv(4, socket.MSG_WAITALL)
        except TimeoutError:
            return f"no answer within {ANSWER_S:g} s"
        if len(size) < 4:
            return "closed"
        left = int.from_bytes(size, "big")
        answer = f"{left:,} bytes"
        while left and (part := connection.recv(min(left, 1 << 20))):
            left -= len(part)
        return answer


def http_requests(cluster: LocalCluster) -> Iterator[tuple[str, urllib.request.Request]]:
    """The longest schemas that the registry takes, and a page of the console."""
    fields = [{"name": f"f{number}", "type": "int"} for number in range(20_000)]
    avro = json.dumps({"type": "record", "name": "R", "fields": fields})
    properties = {f"p{number}": {"type": "integer"} for number in range(20_000)}
    schema = json.dumps({"type": "object", "properties": properties})
    proto = 'syntax = "proto3";\nmessage M {\n' + "".join(f"int32 f{n} = {n};\n" for n in range(1, 15_000)) + "}\n"
    (registry,) = cluster.registry_urls.split(",")
    for kind, text in (("AVRO", avro), ("JSON", schema), ("PROTOBUF", proto)):
        body = json.dumps({"schema": text, "schemaType": kind}).encode()
        yield (
            f"registry: POST of {len(text) >> 10} KiB of {kind}",
            urllib.request.Request(
                f"{registry}/subjects/{kind}-{time.monotonic_ns()}/versions",
                data=body,
                headers={"Content-Type": "application/json"},
                method="POST",
            ),
        )
    for path in ("/subjects", "/schemas"):
        yield f"registry: GET {path}", urllib.request.Request(f"{registry}{path}")
    for path in ("/topics", f"/topics/{TOPIC}"):
        yield f"console: GET {path} (2,000 partitions)", urllib.request.Request(f"{cluster.console_url}{path}")


def send_http(request: urllib.request.Request) -> str:
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return f"{len(answer.read()):,} bytes"
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read()[:60]!r}"


# -- a run -------------------------------------------------------------------------------------------------------------


def measured(cluster: LocalCluster, watch: LoopWatch, pattern: str, rounds: int) -> Iterator[tuple[str, str, float]]:
    """(label, listener, milliseconds)."""

    def result(label: str, where: str, work: Callable[[], str]) -> tuple[str, str, float] | None:
        found = [watch.longest_ms(work)]
        if "UNIMPLEMENTED" in found[0][1]:  # the listener does not serve the call
            return None
        found += [watch.longest_ms(work) for _ in range(rounds - 1)]
        best = min(milliseconds for milliseconds, _ in found)
        print(f"{best:8.1f} ms  {label}  ({where}; {found[-1][1]})", flush=True)
        if best > BAR_MS:
            print(f"             the last one in {watch.callback[:300]}", flush=True)
        return label, where, best

    for method in LIMITS:
        if method in LEFT_OUT or not re.search(pattern, method):
            continue
        for label, data in requests_of(method):
            for where, address in listeners_of(cluster):
                if found := result(label, where, partial(send, address, method, data)):
                    yield found
    at = cluster.kafka_bootstrap_servers
    others: list[tuple[str, str, Callable[[], str]]] = [
        (label, "kafka", partial(send_frame, at, frame)) for label, frame in kafka_frames()
    ]
    others += [
        (label, label.partition(":")[0], partial(send_http, request)) for label, request in http_requests(cluster)
    ]
    for label, where, work in others:
        if re.search(pattern, label) and (found := result(label, where, work)):
            yield found


def table(found: list[tuple[str, str, float]]) -> str:
    shown = sorted((each for each in found if each[2] >= SHOWN_MS), key=lambda each: -each[2])
    rows = [f"| `{label}` | {where} | {milliseconds:.0f} |" for label, where, milliseconds in shown]
    fewer = len(found) - len(shown)
    rest = f"\nThe other {fewer} requests hold it for less than {SHOWN_MS:g} ms.\n"
    return "\n".join(["| request | at | ms of the loop |", "|---|---|---|", *rows]) + "\n" + rest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression for the labels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/reference/limits.md")
    arguments = parser.parse_args()
    headrace_core.rpc.event_loop.uvloop = None  # type: ignore[attr-defined, assignment]  # asyncio's loop runs each callback by Handle._run
    watch = LoopWatch()
    watch.install()
    with LocalCluster(
        brokers=1, controllers=1, coordinators=1, kafka=True, registries=1, console=True, mode="inprocess"
    ) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS)])
            FOUND["topic id"] = admin.describe_topics([TOPIC])[0].topic_id
        (internal,) = [at for where, at in listeners_of(cluster) if where == "controller, internal"]
        stale = cluster_pb2.AlterPartitionRequest(broker_id=1, broker_epoch=-1).SerializeToString()
        refused = re.search(r"with epoch (\d+)", send(internal, "Cluster/AlterPartition", stale))
        assert refused is not None
        FOUND["broker epoch"] = int(refused[1])
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send(TOPIC, b"warm").result(ANSWER_S)
        gc.collect()  # as a node's own process does (headrace_core.node.run)
        gc.freeze()
        found = list(measured(cluster, watch, arguments.only, arguments.rounds))
    if arguments.docs:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table(found)}{END}{after}")
    slow = [f"{label} ({where}): {took:.0f} ms" for label, where, took in found if took > BAR_MS]
    for line in slow:
        print("above the bar:", line)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
