"""Messages of Kafka's protocol: what we write, kio reads; what kio writes, we read; hostile bytes cost little."""

from __future__ import annotations

import dataclasses
import datetime
import random
import subprocess
import sys
import time
import uuid
from io import BytesIO
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from headrace_kafka.wire import schema
from headrace_kafka.wire.apis import VERSIONS, Api, is_flexible, title
from headrace_kafka.wire.frames import finish, read_header, response_start
from headrace_kafka.wire.primitives import ITEMS_MAX, WHOLE_BYTES_MIN, Frame, WireError, put_varint
from headrace_kafka.wire.schema import response_body
from tests.worlds.waiting import check_spent

EVERY = [(api, version) for api, (low, high, _) in VERSIONS.items() for version in range(low, high + 1)]
BODIES = {"request": schema.request_body, "response": schema.response_body}


def _random_value(rng: random.Random, kind: Any) -> Any:
    if kind.is_nullable and rng.random() < 0.2 and kind.kafka not in ("uuid", "datetime_i64"):
        return None
    if kind.is_array:
        return [_random_scalar(rng, kind) for _ in range(rng.randrange(3))]
    return _random_scalar(rng, kind)


def _random_scalar(rng: random.Random, kind: Any) -> Any:
    if kind.entity is not None:
        return _random_fields(rng, kind.entity)
    return {
        "bool": lambda: rng.random() < 0.5,
        "int8": lambda: rng.randrange(-128, 128),
        "int16": lambda: rng.randrange(-(1 << 15), 1 << 15),
        "uint16": lambda: rng.randrange(1 << 16),
        "error_code": lambda: rng.randrange(0, 90),
        "int32": lambda: rng.randrange(-(1 << 31), 1 << 31),
        "timedelta_i32": lambda: rng.randrange(0, 1 << 31),
        "timedelta_i64": lambda: rng.randrange(0, 1 << 40),
        "datetime_i64": lambda: rng.randrange(0, 1 << 41),
        "int64": lambda: rng.randrange(-(1 << 63), 1 << 63),
        "float64": lambda: rng.random(),
        "uuid": lambda: rng.randbytes(16),
        "string": lambda: rng.choice(["", "a", "Größe", "x" * 300]),
        "bytes": lambda: rng.randbytes(rng.randrange(300)),
        "records": lambda: rng.randbytes(rng.randrange(300)),
    }[kind.kafka]()


def _random_fields(rng: random.Random, entity: type[Any]) -> dict[str, Any]:
    return {name: _random_value(rng, kind) for name, kind in schema._kinds(entity).items()}


def _fields_of(message: Any, entity: type[Any]) -> dict[str, Any]:
    """All fields of a message that we read, also those that were left out because they have their default."""
    return {name: _plain(getattr(message, name), kind.entity) for name, kind in schema._kinds(entity).items()}


def _plain(value: Any, entity: type[Any] | None) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each, entity) for each in value]
    return _fields_of(value, entity) if isinstance(value, schema.Message) and entity is not None else value


def _of_kio(value: Any) -> Any:
    """kio's value as one of ours."""
    if dataclasses.is_dataclass(value):
        return {name: _of_kio(getattr(value, name)) for name in (field.name for field in dataclasses.fields(value))}
    if isinstance(value, tuple):
        return [_of_kio(each) for each in value]
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round((value - datetime.datetime.fromtimestamp(0, datetime.UTC)) / datetime.timedelta(milliseconds=1))
    if isinstance(value, uuid.UUID):
        return value.bytes
    return getattr(value, "value", value)


@pytest.mark.parametrize("kind", ["request", "response"])
@pytest.mark.parametrize("api", list(Api), ids=lambda api: api.name.lower())
def test_kio_and_we_read_each_others_messages(api: Api, kind: str, rng: random.Random) -> None:
    for version in range(VERSIONS[api].low, VERSIONS[api].high + 1):
        entity = schema._entity(api, version, kind)
        body = BODIES[kind](api, version)
        for _ in range(8):
            fields = _random_fields(rng, entity)
            data = bytes(body.write(fields))
            assert _fields_of(body.read(data), entity) == fields
            theirs, size = entity_reader(entity)(data, 0)
            assert size == len(data)
            assert _of_kio(theirs) == fields
            out = BytesIO()
            entity_writer(entity)(out, theirs)
            assert body.read(out.getvalue()) == body.read(data)


@pytest.mark.parametrize(("api", "version"), EVERY, ids=lambda each: str(each))
def test_a_version_is_flexible_where_kio_says_so(api: Api, version: int) -> None:
    assert schema._entity(api, version, "request").__flexible__ == is_flexible(api, version)


def test_a_message_cut_anywhere_is_refused(rng: random.Random) -> None:
    for api, version in EVERY:
        entity = schema._entity(api, version, "request")
        body = schema.request_body(api, version)
        data = bytes(body.write(_random_fields(rng, entity)))
        for end in {0, 1, len(data) // 2, len(data) - 1} - {len(data)}:
            if 0 <= end < len(data):
                with pytest.raises(WireError):
                    body.read(data[:end])
        assert body.read(data + b"\0") == body.read(data)  # Kafka ignores bytes after the message


def test_random_bytes_are_a_message_or_an_error(rng: random.Random) -> None:
    for api, version in EVERY:
        body = schema.request_body(api, version)
        data = bytearray(body.write(_random_fields(rng, schema._entity(api, version, "request"))))
        for _ in range(20):
            spoilt = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                if spoilt:
                    spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
            try:
                body.read(bytes(spoilt))
            except WireError:
                continue


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_it_is_believed() -> None:
    body = schema.request_body(Api.METADATA, 8)
    with pytest.raises(WireError, match="topics has 2147483647 elements"):
        body.read(b"\x7f\xff\xff\xff" + bytes(100))


def test_a_message_has_a_bounded_number_of_items() -> None:
    body = schema.request_body(Api.METADATA, 0)
    with pytest.raises(WireError, match=f"more than {ITEMS_MAX} items"):
        body.read((ITEMS_MAX + 1).to_bytes(4, "big") + bytes(2 * ITEMS_MAX + 2))
    flexible = schema.request_body(Api.LIST_GROUPS, 5)
    tags = bytearray(b"\x01\x01")
    put_varint(tags, ITEMS_MAX + 1)
    began = time.thread_time()
    with pytest.raises(WireError, match=f"more than {ITEMS_MAX} items"):
        flexible.read(bytes(tags) + bytes(1 << 20))
    check_spent(began, 1)


def test_a_handler_needs_no_version_checks() -> None:
    """A field that the version lacks is read as its default, and left out when it is written."""
    old = schema.request_body(Api.METADATA, 1).read(b"\xff\xff\xff\xff")
    assert old.topics is None
    assert old.allow_auto_topic_creation is True
    body = schema.response_body(Api.METADATA, 0)
    answer = body.read(bytes(body.write({"cluster_id": "abc", "controller_id": 3})))
    assert schema.as_dict(answer) == {"brokers": [], "topics": []}


def test_none_is_written_as_an_empty_value_where_a_version_has_no_null() -> None:
    body = schema.response_body(Api.JOIN_GROUP, 0)
    assert body.read(bytes(body.write({"protocol_name": None}))).protocol_name == ""


def test_an_unknown_field_is_an_error_of_the_program() -> None:
    with pytest.raises(LookupError, match="MetadataResponse has no field clutser_id"):
        schema.response_body(Api.METADATA, 12).write({"clutser_id": "x"})


def test_headers_of_both_kinds_are_read() -> None:
    plain = b"\x00\x03\x00\x08\x00\x00\x00\x07\x00\x02ab"
    assert read_header(plain) == (Api.METADATA, 8, 7, "ab", len(plain), True)
    flexible = b"\x00\x03\x00\x0c\x00\x00\x00\x07\xff\xff\x01\x05\x02xy"
    assert read_header(flexible) == (Api.METADATA, 12, 7, "", len(flexible), True)


def test_a_header_of_an_unserved_version_differs_from_an_unknown_type() -> None:
    assert not read_header(b"\x00\x12\x00\x63\x00\x00\x00\x07\xff\xff").is_supported
    with pytest.raises(WireError, match="request type 99 is unknown"):
        read_header(b"\x00\x63\x00\x00\x00\x00\x00\x07\xff\xff")
    with pytest.raises(WireError):
        read_header(b"\x00\x12")


def test_a_response_says_its_length() -> None:
    assert finish(response_start(Api.METADATA, 12, 7)) == b"\0\0\0\x05\0\0\0\x07\0"
    assert finish(response_start(Api.API_VERSIONS, 4, 7)) == b"\0\0\0\x04\0\0\0\x07"


@pytest.mark.parametrize("version", [VERSIONS[Api.FETCH].low, VERSIONS[Api.FETCH].high])
@pytest.mark.parametrize("sizes", [(), (5,), (WHOLE_BYTES_MIN,), (WHOLE_BYTES_MIN - 1, 20_000, 0, 30_000)])
def test_a_frame_in_parts_has_the_bytes_of_a_whole_one(version: int, sizes: tuple[int, ...]) -> None:
    results = [
        {"partition_index": number, "high_watermark": 9, "records": bytes([number]) * size}
        for number, size in enumerate(sizes)
    ]
    fields: dict[str, Any] = {"responses": [{"topic": "t", "topic_id": b"t" * 16, "partitions": results}]}
    whole = response_start(Api.FETCH, version, 7)
    response_body(Api.FETCH, version).write(fields, whole)
    frame = Frame(response_start(Api.FETCH, version, 7))
    response_body(Api.FETCH, version).write(fields, frame)
    parts = frame.parts()
    assert b"".join(parts) == bytes(finish(whole))
    large = [result["records"] for result in results if len(result["records"]) >= WHOLE_BYTES_MIN]
    assert list(parts[1::2]) == large
    assert all(any(part is records for part in parts) for records in large), "not copied"


def test_titles_are_kafkas_names() -> None:
    assert title(Api.LIST_OFFSETS) == "ListOffsets"


def test_a_gateway_does_not_import_hypothesis() -> None:
    """kio does where Hypothesis is installed, and builds strategies; a broker took 200 MiB more for that."""
    program = (
        "import sys; from headrace_kafka.wire.schema import prepare; from headrace_kafka.wire.apis import Api;"
        "prepare([Api.METADATA]); assert 'hypothesis' not in sys.modules; import hypothesis"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
