"""A request beyond a limit is refused from its bytes, before the server parses it or looks anything up."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from headrace_core.errors import InvalidRequestError
from headrace_core.rpc.limits import (
    ITEMS_MAX,
    LIMITS,
    NAME_BYTES_MAX,
    REQUEST_BYTES_MAX,
    UNKNOWN_FIELDS_MAX,
    RequestCheck,
    pages,
)
from headrace_core.rpc.receiving import arrivals_of
from headrace_protos.v1 import admin_pb2, fetch_pb2, groups_pb2, metadata_pb2, offsets_pb2, produce_pb2
from tests.worlds.waiting import check_spent

_FILES = [
    "admin",
    "cluster",
    "fetch",
    "groups",
    "metadata",
    "node",
    "offsets",
    "produce",
    "raft",
    "replication",
    "security",
    "transactions",
]


def calls() -> Iterator[tuple[str, Any]]:
    """(Service/Method, descriptor of its request) of every call of the protocol."""
    for name in _FILES:
        file = importlib.import_module(f"headrace_protos.v1.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                yield f"{service.name}/{method.name}", method.input_type


def repeated(descriptor: Any, prefix: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        if field.is_repeated:
            yield prefix + field.name
        if field.message_type is not None:
            yield from repeated(field.message_type, f"{prefix}{field.name}.")


def check_of(method: str) -> RequestCheck:
    return RequestCheck(method, dict(calls())[method])


def test_every_repeated_field_of_every_call_has_a_limit() -> None:
    declared = {method: set(limits.items) for method, limits in LIMITS.items()}
    wanted = {method: set(repeated(descriptor)) for method, descriptor in calls()}
    differing = {method for method in declared.keys() | wanted.keys() if declared.get(method) != wanted.get(method)}
    assert not differing, "mend their rows in headrace_core.rpc.limits, then run tools/limits_docs.py generate"


def test_a_call_without_limits_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = produce_pb2.ProduceRequest.FromString
    handler = grpc.stream_stream_rpc_method_handler(lambda requests, context: requests, parse)
    arrivals_of(handler, "/headrace.v1.Produce/Produce")
    arrivals_of(handler, "/grpc.health.v1.Health/Check")
    with pytest.raises(LookupError, match="Produce/Invented has no limits"):
        arrivals_of(handler, "/headrace.v1.Produce/Invented")


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, limits in LIMITS.items() for path in limits.items]
)
def test_limit_is_exact_for_each_field(method: str, path: str) -> None:
    """Items of the smallest size that the wire format allows, so that only their number can be refused."""
    descriptor, most = dict(calls())[method], LIMITS[method].items[path]
    check = RequestCheck(method, descriptor)
    assert check(_with_items(descriptor, path.split("."), most)) is None
    refused = check(_with_items(descriptor, path.split("."), most + 1))
    assert isinstance(refused, InvalidRequestError)
    assert refused.message == f"{method}: the request has more than {most} {path}; split the request"


def _with_items(descriptor: Any, path: list[str], count: int) -> bytes:
    """A message with ``count`` empty items at ``path``, and one of each message on the way."""
    field = descriptor.fields_by_name[path[0]]
    tag = _varint(field.number << 3 | 2)
    if len(path) > 1:
        inner = _with_items(field.message_type, path[1:], count)
        return tag + _varint(len(inner)) + inner
    if field.message_type is None and field.type not in (9, 12):  # packed numbers
        return tag + _varint(count) + bytes(count)
    return (tag + b"\0") * count


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def test_numbers_count_packed_and_one_by_one() -> None:
    check = check_of("Admin/ElectLeaders")
    large = admin_pb2.ElectLeadersRequest(partitions=[{"topic": "t", "partitions": [2**31 - 1] * ITEMS_MAX}])
    assert check(large.SerializeToString()) is None
    inner = b"\x10\x01" * (ITEMS_MAX + 1)  # field 2 as varints that are not packed
    assert check(b"\x12" + _varint(len(inner)) + inner) is not None


def test_items_of_several_parents_count_together() -> None:
    groups = [{"group_id": "g", "partitions": {"partitions": [{"topic": "t"}] * 100}}] * 101
    request = groups_pb2.FetchOffsetsRequest(groups=groups)
    refused = check_of("Groups/FetchOffsets")(request.SerializeToString())
    assert "groups.partitions.partitions" in str(refused)


def test_long_name_is_refused() -> None:
    check = check_of("Metadata/GetMetadata")
    longest = metadata_pb2.MetadataRequest(topics=["n" * NAME_BYTES_MAX])
    assert check(longest.SerializeToString()) is None
    refused = check(metadata_pb2.MetadataRequest(topics=["n" * (NAME_BYTES_MAX + 1)]).SerializeToString())
    assert f"at most {NAME_BYTES_MAX} are accepted" in str(refused)


def test_large_request_is_refused_by_its_size() -> None:
    refused = check_of("Offsets/ListOffsets")(bytes(REQUEST_BYTES_MAX + 1))
    assert "split the request" in str(refused)


def test_items_behind_a_group_cannot_be_smuggled_in() -> None:
    """Wire types 3 and 4 (groups) are legal for a parser, which skips them as unknown fields."""
    hidden = b"\x7b\x7c" + b"\x0a\x00" * (ITEMS_MAX * 2)
    assert len(metadata_pb2.MetadataRequest.FromString(hidden).topics) == ITEMS_MAX * 2
    assert check_of("Metadata/GetMetadata")(hidden) is not None


@pytest.mark.parametrize("torn", [b"\x0a", b"\xff" * 40_000, b"\x0a\xff\xff\xff\xff\x7f" + bytes(40_000)])
def test_torn_bytes_are_left_to_the_parser(torn: bytes) -> None:
    check_of("Metadata/GetMetadata")(torn)  # it raises no error, and ends


def test_cost_does_not_grow_with_the_request() -> None:
    """44 million items of two bytes: the check stops at the first excess (a full walk takes ten seconds)."""
    data = b"\x22\x00" * (44 << 20)
    begun = time.thread_time()
    assert check_of("Produce/Produce")(data) is not None
    check_spent(begun, 1)


def test_items_cost_no_python_each() -> None:
    """The check of 100,000 items took 0.2 s of the event loop."""
    topics = [
        {"name": f"t{n}", "assignments": [{"partition": p, "broker_ids": [1]} for p in range(10)]} for n in range(999)
    ]
    data = admin_pb2.CreateTopicsRequest(topics=topics).SerializeToString()
    check, calls = check_of("Admin/CreateTopics"), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        assert check(data) is None
    finally:
        sys.setprofile(None)
    assert calls < 20


def test_a_varint_of_any_length_hides_no_items() -> None:
    """A size or a number of a field may be written with more bytes than it needs."""
    one = b"\x8a\x80\x80\x00" + b"\x81\x80\x00" + b"t"  # field 1, one byte
    assert len(metadata_pb2.MetadataRequest.FromString(one * 3).topics) == 3
    assert check_of("Metadata/GetMetadata")(one * ITEMS_MAX) is None
    assert "more than" in str(check_of("Metadata/GetMetadata")(one * (ITEMS_MAX + 1)))


@pytest.mark.parametrize("fields", [b"\x00\x00", b"\x78\x01", b"\x7a\x00", b"\x7d1234", b"\x7912345678"])
@pytest.mark.parametrize("method", ["Metadata/GetMetadata", "Produce/Produce", "Admin/CreateTopics"])
def test_millions_of_fields_without_a_limit_are_refused(method: str, fields: bytes) -> None:
    """8 MiB of them held up the event loop for 0.8 s, and were accepted."""
    refused = check_of(method)(fields * (REQUEST_BYTES_MAX // len(fields)))
    assert "more fields than its messages define" in str(refused)


def test_repeated_fields_that_may_occur_once_are_refused_in_inner_messages_too() -> None:
    inner = b"\x0a\x01t" * 50_000  # 50,000 names of one topic
    refused = check_of("Admin/CreateTopics")(b"\x0a" + _varint(len(inner)) + inner)
    assert "more fields than its messages define" in str(refused)


def test_some_fields_of_a_newer_release_are_accepted_in_each_message() -> None:
    topic = b"\x0a\x01t" + b"".join(_varint(number << 3) + b"\x01" for number in range(900, 900 + UNKNOWN_FIELDS_MAX))
    data = (b"\x0a" + _varint(len(topic)) + topic) * 5_000
    assert len(admin_pb2.CreateTopicsRequest.FromString(data).topics) == 5_000
    assert check_of("Admin/CreateTopics")(data) is None


def test_ordinary_requests_pass() -> None:
    produce = produce_pb2.ProduceRequest(
        correlation_id=2**63,
        acks=1,
        partitions=[{"topic": "t", "partition": n, "records": bytes(900)} for n in range(99)],
    )
    assert check_of("Produce/Produce")(produce.SerializeToString()) is None
    fetch = fetch_pb2.FetchRequest(
        partitions=[{"topic": "t" * 249, "partition": n, "max_bytes": 1} for n in range(1999)]
    )
    assert check_of("Fetch/Fetch")(fetch.SerializeToString()) is None
    listed = offsets_pb2.ListOffsetsRequest(partitions=[{"topic": "t", "timestamp_ms": -1}] * ITEMS_MAX)
    assert check_of("Offsets/ListOffsets")(listed.SerializeToString()) is None


def test_pages_cover_everything_once() -> None:
    assert [list(page) for page in pages([1, 2, 3, 4, 5], 2)] == [[1, 2], [3, 4], [5]]
    assert [list(page) for page in pages([], 2)] == [[]]
