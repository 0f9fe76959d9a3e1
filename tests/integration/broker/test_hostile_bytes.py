"""Arbitrary bytes at any call: an error for the sender, and no effect on other clients."""

from __future__ import annotations

import random

import grpc
import pytest

from headrace_core import errors
from headrace_protos.v1 import (
    admin_pb2,
    fetch_pb2,
    metadata_pb2,
    offsets_pb2,
    produce_pb2,
)
from tests.worlds.broker_world import Cluster, batch, produce_partition, produce_request, produce_stream

SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (produce_pb2, "Produce"),
        (fetch_pb2, "Fetch"),
        (offsets_pb2, "Offsets"),
        (metadata_pb2, "Metadata"),
        (admin_pb2, "Admin"),
    )
]
METHODS = [(service.full_name, method) for service in SERVICES for method in service.methods]


def send(cluster: Cluster, service: str, method, payloads: list[bytes]) -> str:
    """How the call ended, or "ok"."""
    path = f"/{service}/{method.name}"
    kinds = {
        (False, False): cluster.channel.unary_unary,
        (False, True): cluster.channel.unary_stream,
        (True, True): cluster.channel.stream_stream,
    }
    call = kinds[method.client_streaming, method.server_streaming](path)
    try:
        answer = call(iter(payloads) if method.client_streaming else payloads[0], timeout=0.5)
        if method.server_streaming:
            next(iter(answer), None)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code().name
    return "ok"


@pytest.mark.parametrize(("service", "method"), METHODS, ids=lambda item: getattr(item, "name", item))
def test_random_bytes_harm_nobody(cluster, topic, seed, service, method):
    rng = random.Random(seed)
    orders = topic()
    for _ in range(10):
        payloads = [rng.randbytes(rng.randrange(1, 200)) for _ in range(3)]
        assert send(cluster, service, method, payloads) in (
            "ok",
            "INVALID_ARGUMENT",
            "FAILED_PRECONDITION",
            "DEADLINE_EXCEEDED",
        )
    assert orders.produce(b"fine").base_offset == 0
    assert "Traceback" not in cluster.broker.log()


def test_damaged_batches_are_refused_each_with_a_typed_error(cluster, topic, seed):
    """A batch with one flipped bit after the base offset is refused. The leader epoch is an exception, because the
    broker overwrites it."""
    rng = random.Random(seed)
    orders = topic()
    sound = batch(b"a" * 40, b"b" * 40, b"c")
    damaged = []
    for _ in range(300):
        copy = bytearray(sound)
        copy[rng.randrange(8, len(copy))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(copy))
    with produce_stream(cluster) as stream:
        for number, records in enumerate(damaged):
            stream.send(produce_request(number, produce_partition(orders.name, records)))
        answers = stream.half_close()
    accepted = 0
    for answer, records in zip(answers, damaged, strict=True):
        (result,) = answer.results
        if result.error.code:
            assert result.error.code != errors.UnknownServerError.number, result.error.message
        else:
            accepted += 1
            # only the leader epoch differs, which the broker sets
            assert records[:8] + records[16:] == sound[:8] + sound[16:]
    assert orders.read() == [b"a" * 40, b"b" * 40, b"c"] * accepted
