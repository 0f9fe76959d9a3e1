"""kcat's output formats, compared with kcat(1)."""

from __future__ import annotations

import json

import pytest

from headrace.schemas import wire
from headrace_core.errors import InvalidArgumentError
from headrace_core.records import Record
from headrace_core.types import TimestampType
from headrace_tools.cli.decoding import decoders
from headrace_tools.cli.kcat import (
    Decoded,
    compile_format,
    default_format,
    document,
    envelope,
    json_line,
    unescape,
)
from tests.worlds.registries import fake_registry


def _record(**changes: object) -> Record:
    fields: dict[str, object] = {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_356_998_400_000,
        "key": b"k",
        "value": b"hello",
        "headers": [("a", b"1"), ("b", None)],
        "leader_epoch": 0,
    }
    return Record(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%s", b"hello"),
        ("%S", b"5"),
        ("%R", b"\x00\x00\x00\x05"),
        ("%k|%K", b"k|1"),
        ("%t [%p] @%o %T", b"orders [3] @42 1356998400000"),
        ("%h", b"a=1,b=NULL"),
        (r"%o\t%s\n", b"42\thello\n"),
        ("100%% %s", b"100% hello"),
        (r"\x41\xff%s\0", b"A\xffhello\0"),
        ("plain", b"plain"),
    ],
)
def test_a_template_prints_what_kcat_prints(template: str, expected: bytes) -> None:
    assert compile_format(template)(_record()) == expected


def test_null_key_and_value_are_empty_with_length_minus_one() -> None:
    nothing = _record(key=None, value=None, headers=[])
    assert compile_format("[%k|%K|%s|%S|%h]")(nothing) == b"[|-1||-1|]"
    assert compile_format("%R")(nothing) == b"\xff\xff\xff\xff"


def test_null_is_spelled_out_when_asked_for() -> None:
    nothing = _record(key=None, value=None)
    assert compile_format("%k:%s", null=b"NULL")(nothing) == b"NULL:NULL"
    assert default_format(b"\n", b":", null=b"NULL")(nothing) == b"NULL:NULL\n"


@pytest.mark.parametrize(("template", "wrong"), [("%x", "%x"), ("50%", "%"), (r"\q", r"\q")])
def test_an_unknown_token_or_escape_is_named(template: str, wrong: str) -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        compile_format(template)
    assert wrong in str(failure.value)
    assert template in str(failure.value) or repr(template) in str(failure.value)


def test_without_a_template_key_and_value_are_joined_by_the_delimiters() -> None:
    assert default_format(b"\n", None)(_record()) == b"hello\n"
    assert default_format(b";", b":")(_record()) == b"k:hello;"


def test_escapes_become_bytes_and_other_text_stays_utf8() -> None:
    assert unescape(r"a\n\t\\ä") == b"a\n\t\\" + "ä".encode()


def test_the_envelope_has_kcats_names() -> None:
    assert envelope(_record()) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "tstype": "create",
        "ts": 1_356_998_400_000,
        "broker": -1,
        "headers": ["a", "1", "b", None],
        "key": "k",
        "payload": "hello",
    }


def test_the_line_is_kcats() -> None:
    """The fields in the order of kcat 1.7's json.c, which leaves out the headers of a record without headers."""
    record = _record(headers=[], key=None, timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_ms=-86_400_000)
    assert json_line(record) == (
        b'{"topic":"orders","partition":3,"offset":42,"tstype":"logappend","ts":-86400000,"broker":-1,'
        b'"key":null,"payload":"hello"}'
    )
    assert json_line(_record(value=None)) == (
        b'{"topic":"orders","partition":3,"offset":42,"tstype":"create","ts":1356998400000,"broker":-1,'
        b'"headers":["a","1","b",null],"key":"k","payload":null}'
    )


def test_bytes_that_are_no_text_stand_in_the_envelope_exactly() -> None:
    found = json.loads(json_line(_record(value=b"\xff\x00", key=None)))
    assert found["payload_base64"] == "/wA="
    assert found["key"] is None
    assert "key_base64" not in found


def test_the_document_has_the_clients_names() -> None:
    found = document(_record())
    assert found["value"] == "hello"
    assert found["timestamp_ms"] == 1_356_998_400_000
    assert found["headers"] == [["a", "1"], ["b", None]]


def test_the_numbers_of_a_decoded_value_have_the_digits_of_the_record() -> None:
    text = b'{"price":0.1234567890123456789,"small":1.0E-30,"zero":-0,"many":[1e400,12345678901234567890]}'
    with fake_registry() as registry:
        schema_id = registry.add("orders-value", {"schema": "{}", "schemaType": "JSON"})
        decode = decoders(["value=json"], registry.url)["value.deserializer"]
        record = _record(value=decode.deserialize("orders", wire.header(schema_id) + text))
    assert compile_format("%s")(record) == text
    assert b'"payload":' + text in json_line(record)


def test_decoded_values_that_json_cannot_express_leave_a_valid_document() -> None:
    floats = [float("nan"), float("inf"), float("-inf"), 1.5]
    record = _record(value=Decoded.of({"floats": floats, "text": "a\ud800b", "\udfff": None}, 7))
    wanted = {"floats": ["NaN", "Infinity", "-Infinity", 1.5], "text": "a?b", "?": None}

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(json_line(record), parse_constant=refuse)["payload"] == wanted
    assert json.loads(compile_format("%s")(record), parse_constant=refuse) == wanted
    assert document(record)["value"] == wanted
