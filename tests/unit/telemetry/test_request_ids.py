"""A request that fails unexpectedly has one id: in the log line, in the client's error, and in its span."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import grpc.aio
import pytest

from headrace_core.errors import UnknownServerError
from headrace_core.node.logs import JsonFormatter, TextFormatter
from headrace_core.rpc.server import Listener
from headrace_core.rpc.status import error_from_rpc
from headrace_core.tracing.context import parse_traceparent
from headrace_core.unexpected import answer_to, log_fields, request_id_of
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ID = re.compile(r"\(request id ([0-9a-f]{16})\)")


class Broken(cluster_pb2_grpc.ClusterServicer):  # type: ignore[misc]
    async def ReadIndex(self, request: Any, context: Any) -> Any:
        raise ZeroDivisionError("a planted bug")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The lines of JSON of the logger of all gRPC servers."""
    stream, logger = io.StringIO(), logging.getLogger("headrace_core.rpc.server")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


async def failed_call(metadata: tuple[tuple[str, str], ...]) -> Exception:
    listener = Listener("internal")
    listener.add(cluster_pb2_grpc.add_ClusterServicer_to_server, Broken(), "headrace.v1.Cluster")
    port = await listener.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = cluster_pb2_grpc.ClusterStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.ReadIndex(cluster_pb2.ReadIndexRequest(), metadata=metadata)
            return error_from_rpc(failed.value, "node")
    finally:
        await listener.stop(0)


@pytest.mark.parametrize(
    ("metadata", "trace_id"),
    [((), None), ((("traceparent", PARENT),), PARENT[3:35]), ((("traceparent", "damaged"),), None)],
    ids=["untraced", "traced", "damaged context"],
)
def test_the_clients_error_has_the_id_of_the_servers_line(
    lines: io.StringIO, metadata: tuple[tuple[str, str], ...], trace_id: str | None
) -> None:
    error = asyncio.run(failed_call(metadata))
    assert isinstance(error, UnknownServerError)
    (found,) = ID.findall(str(error))
    (line,) = [json.loads(each) for each in lines.getvalue().splitlines()]
    assert (line["request_id"], line.get("trace_id")) == (found, trace_id)
    assert "ZeroDivisionError: a planted bug" in line["exception"]
    assert "ZeroDivisionError: a planted bug" in str(error)


def test_two_requests_have_two_ids(lines: io.StringIO) -> None:
    ids = {ID.findall(str(asyncio.run(failed_call(()))))[0] for _ in range(2)}
    assert len(ids) == 2


def test_an_exception_keeps_its_id() -> None:
    error = KeyError("x")
    assert ID.findall(str(answer_to(error, "a request"))) == [request_id_of(error)]
    assert log_fields(error) == {"request_id": request_id_of(error)}


def test_a_line_of_text_ends_with_the_ids() -> None:
    stream, logger, error = io.StringIO(), logging.Logger("headrace.test"), ValueError("broken")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    logger.addHandler(handler)
    logger.error("%s failed", "it", extra=log_fields(error, parse_traceparent(PARENT)))
    logger.error("no request failed")
    first, second = stream.getvalue().splitlines()
    assert first.endswith(f"it failed (request id {request_id_of(error)}, trace id {PARENT[3:35]})")
    assert second.endswith("no request failed")
