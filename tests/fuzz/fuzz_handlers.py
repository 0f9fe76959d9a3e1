"""Targets: every call of every service, at the real listeners of a broker, a controller and a coordinator.

An input is a number (which call) and the bytes of its request. Half of the inputs are mutated bytes, half are messages
of hostile values: numbers at the ends of their types, illegal names, unused ids, long lists. The nodes run in this
process, one per role. For any input, a call ends with a response or a typed error, or it still waits when its time
limit ends. No response contains UNKNOWN_SERVER_ERROR, and the node answers the next call.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from headrace import Admin, LocalCluster
from headrace_core.rpc.status import ERROR_CODE_KEY
from headrace_tools.local.state import StateFile
from tests.fuzz.fuzz_engine import Target
from tests.fuzz.fuzz_seeds import batches

TOPIC = "orders"
#: A call that waits on purpose is cancelled after this time, for example a long poll for an offset that never exists.
WAIT_S = 0.15
_FILES = {
    "broker": "produce fetch offsets metadata admin replication node",
    "controller": "admin cluster metadata raft node",
    "coordinator": "groups metadata node",
}
#: Calls that would remove the cluster's only voter or its only broker, which the other inputs need.
_LEFT_OUT = {"RemoveRaftVoter", "UnregisterBroker", "DrainBroker"}
_LISTENERS = ("client", "internal")
_UNKNOWN = -1


class Call(NamedTuple):
    path: str
    request: Any
    response: Any
    is_request_stream: bool


@cache
def calls(role: str) -> tuple[Call, ...]:
    found = []
    for name in _FILES[role].split():
        file = importlib.import_module(f"headrace_protos.v1.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                if method.name not in _LEFT_OUT:
                    path = f"/{service.full_name}/{method.name}"
                    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
                    found.append(Call(path, request, response, method.client_streaming))
    return tuple(found)


# ---------------------------------------------------------------------------------------------- the nodes


@cache
def cluster() -> LocalCluster:
    """A cluster, which runs until ``stop_nodes`` or until this process ends."""
    return LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess").start()


def stop_nodes() -> None:
    """Stop the cluster if it runs, because its nodes would share this process with the next test."""
    if not cluster.cache_info().currsize:
        return
    if channels.cache_info().currsize:
        for channel in channels().values():
            channel.close()
    cluster().stop()
    channels.cache_clear()
    cluster.cache_clear()


@cache
def channels() -> dict[tuple[str, str], grpc.Channel]:
    """Channels to each listener of a cluster, which runs until ``stop_nodes`` or until this process ends."""
    running = cluster()
    with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
        if TOPIC not in admin.list_topics():
            admin.create_topics([TOPIC])
    nodes = StateFile(running.directory).read().nodes
    return {
        (node.role, listener): grpc.insecure_channel(address)
        for node in nodes
        for listener, address in (("client", node.address), ("internal", node.internal_address))
    }


def _run(role: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        if len(data) < 2:
            return
        every = calls(role)
        call = every[data[0] % len(every)]
        channel = channels()[role, _LISTENERS[data[1] % 2]]
        _check(call, channel, data[2:])

    return run


def _check(call: Call, channel: grpc.Channel, data: bytes) -> None:
    # Send the request twice on a stream, because the first request changes the state of the stream.
    sent: Any = iter([data, data]) if call.is_request_stream else data
    make = channel.stream_stream if call.is_request_stream else channel.unary_stream
    answers = make(call.path)(sent, timeout=WAIT_S)
    try:
        for answer in answers:
            for code, message in _errors(call.response.FromString(answer)):
                assert code != _UNKNOWN, f"{call.path} answered UNKNOWN_SERVER_ERROR: {message}"
    except grpc.RpcError as failure:
        _check_status(call, failure)


def _check_status(call: Call, failure: Any) -> None:
    """A status from Headrace has an error code. gRPC's own statuses are only for calls that are not served or were
    cancelled."""
    status, trailers = failure.code(), dict(failure.trailing_metadata() or ())
    if ERROR_CODE_KEY in trailers:
        assert int(trailers[ERROR_CODE_KEY]) != _UNKNOWN, f"{call.path}: {failure.details()}"
        return
    fine = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.CANCELLED)
    assert status in fine, f"{call.path} ended with {status}: {failure.details()}"


def _errors(message: Any) -> Iterator[tuple[int, str]]:
    if message.DESCRIPTOR.full_name == "headrace.v1.Error":
        yield message.code, message.message
        return
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if field.is_repeated else (value,):
                yield from _errors(each)


# ---------------------------------------------------------------------------------------------- hostile values

_NUMBERS = (0, 1, -1, 2, 5, 100, 2**15, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_NAMES = (
    TOPIC,
    TOPIC,
    "",
    ".",
    "..",
    "no/such",
    "n" * 249,
    "n" * 300,
    "é\0",
    "__consumer_offsets",
    "g",
    "1",
    "2147483648",
)
_NAMES += ("retention.ms", "cleanup.policy", "compact", "(a*)*b", "[", "127.0.0.1:1", "uniform")
_COUNTS = (0, 1, 1, 1, 2, 3, 20)
_DEPTH_MAX = 6


def hostile(message_class: Any, rng: random.Random) -> bytes:
    """A message of the class with hostile values, and some valid values."""
    message = message_class()
    _fill(message, rng, 0)
    found: bytes = message.SerializeToString()
    return found


def _fill(message: Any, rng: random.Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.2 or depth > _DEPTH_MAX:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[rng.choice(_NAMES)] = rng.choice(_NAMES)
        elif field.is_repeated:
            many = getattr(message, field.name)
            for _ in range(rng.choice(_COUNTS)):
                if field.message_type is None:
                    many.append(_value(field, rng))
                else:
                    _fill(many.add(), rng, depth + 1)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill(inner, rng, depth + 1)
        else:
            setattr(message, field.name, _value(field, rng))


def _value(field: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        number = rng.choice(_NUMBERS)
        return number if low <= number <= high else rng.choice((low, high))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice([b"", bytes(16), b"\xff" * 16, b"x", rng.randbytes(16), *batches()])
    return rng.choice(_NAMES)


def _seeds(role: str) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        rng = random.Random(17)
        found = []
        for number, call in enumerate(calls(role)):
            for listener in (0, 1):
                found += [bytes([number, listener]), bytes([number, listener]) + hostile(call.request, rng)]
        return found

    return seeds


def _fix(role: str) -> Callable[[bytes, random.Random], bytes]:
    """Half of the inputs are built as messages, because random bytes are hardly ever a valid message."""

    def fix(data: bytes, rng: random.Random) -> bytes:
        if len(data) < 2 or rng.random() < 0.5:
            return data
        every = calls(role)
        number = rng.randrange(len(every))
        return bytes([number, data[1]]) + hostile(every[number].request, rng)

    return fix


def _target(role: str) -> Target:
    return Target(f"{role}_calls", _run(role), _seeds(role), _fix(role))


TARGETS = [_target(role) for role in _FILES]
