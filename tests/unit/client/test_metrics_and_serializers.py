"""Sliding windows, and serializers."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest

from headrace import metrics
from headrace.errors import InvalidConfigError, SerializationError
from headrace.serializers import deserializer, from_json, from_utf8, json_utf8, serializer, utf8


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    reading = [100.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: reading[0])
    return reading


def test_rate_average_and_maximum_look_at_the_last_windows(now: list[float]) -> None:
    found = metrics.Metrics({"metrics.sample.window.ms": 10_000, "metrics.num.samples": 2})
    samples = found["x"]
    found.record(now[0], ("x", 50, 5))
    now[0] += 5
    found.record(now[0], ("x", 30, 1))
    assert samples.rate() == pytest.approx(80 / 5)
    assert samples.average() == pytest.approx(80 / 6)
    assert samples.maximum() == 50
    now[0] += 10
    found.record(now[0], ("x", 10, 1))
    assert samples.rate() == pytest.approx(90 / 15)
    now[0] += 12
    found.record(now[0], ("x", 1, 1))
    assert samples.maximum() == 10  # the first window is gone
    assert samples.total == 91
    now[0] += 100
    assert samples.rate() == 0
    assert math.isnan(samples.average())
    assert math.isnan(samples.maximum())


def test_samples_are_made_when_first_used() -> None:
    found = metrics.Metrics({"metrics.sample.window.ms": 30_000, "metrics.num.samples": 2})
    assert found["x"] is found["x"]
    assert found["y"].total == 0


def test_ready_made_serializers() -> None:
    assert utf8("t", "ä") == "ä".encode()
    assert utf8("t", None) is None
    assert json_utf8("t", {"a": [1, None]}) == b'{"a":[1,null]}'
    assert json_utf8("t", None) is None
    assert from_utf8("t", "ä".encode()) == "ä"
    assert from_json("t", b'{"a":1}') == {"a": 1}


class Loop(list):  # type: ignore[type-arg]
    """A list that contains itself, with a short repr."""

    def __init__(self) -> None:
        super().__init__([self])


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "nan is not a JSON number"),
        ({"a": [1, {"b": math.inf}]}, r"a\[1\]\.b: inf is not a JSON number; write null, or a text"),
        ({math.nan: 1}, "the key nan"),
        ({"a": {1: 1, "1": 2}}, "a: two keys become '1' in JSON"),
        ({None: 1, "null": 2}, "two keys become 'null'"),
        ({True: 1, "true": 2}, "two keys become 'true'"),
        ({1.5: 1, "1.5": 2}, "two keys become '1.5'"),
        ({(1, 2): 3}, "JSON has only text as keys"),
        (["\ud800"], r"\[0\]: the text .* half of a surrogate pair at character 0"),
        ({"\udfff": 1}, "the key .* half of a surrogate pair"),
        ({"d": Decimal("1.0")}, "d: a Decimal cannot be written as JSON"),
        ({"n": [10**5_000]}, r"n\[0\]: an integer of this many digits cannot be written"),
        (nested(501), r"\[0\]\[0\].*nested more than 500 levels deep"),
        (Loop(), "or contains itself"),
        (b"x", "a bytes cannot be written as JSON"),
    ],
)
def test_values_that_json_does_not_have_are_refused_with_their_place(value: Any, words: str) -> None:
    with pytest.raises(SerializationError, match=words):
        json_utf8("t", value)


@pytest.mark.parametrize("value", [nested(499), {1: {2: 3}}, -0.0, 10**4_000, (1, (2,)), 1e308, "\U0001f600"])
def test_what_json_utf8_writes_is_read_as_the_same_value(value: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = json_utf8("t", value)
    assert data is not None
    assert json.loads(data, parse_constant=refuse) == from_json("t", data)
    assert repr(from_json("t", data)) == repr(json.loads(json.dumps(value)))


@pytest.mark.parametrize(("value", "words"), [(5, "a int is not text"), ("\ud800", "half of a surrogate pair")])
def test_values_that_are_no_text_are_refused(value: Any, words: str) -> None:
    with pytest.raises(SerializationError, match=words):
        utf8("t", value)


class Upper:
    def serialize(self, topic: str, value: str) -> bytes:
        return value.upper().encode()

    def deserialize(self, topic: str, data: bytes) -> str:
        return data.decode().lower()


@pytest.mark.parametrize("given", [Upper, Upper(), Upper().serialize])
def test_serializer_may_be_a_class_an_object_or_a_function(given: Any) -> None:
    call = serializer(given, "value.serializer")
    assert call is not None
    assert call("t", "a") == b"A"


def test_failures_name_key_and_topic() -> None:
    call = serializer(lambda topic, value: 5, "key.serializer")
    assert call is not None
    with pytest.raises(SerializationError, match=r"key\.serializer returned int for topic 't'; it must return bytes"):
        call("t", "v")
    back = deserializer(Upper, "value.deserializer")
    assert back is not None
    assert back("t", b"A") == "a"
    with pytest.raises(SerializationError, match=r"value\.deserializer failed for topic 't': UnicodeDecodeError"):
        back("t", b"\xff")
    with pytest.raises(InvalidConfigError, match="must be callable"):
        serializer("org.apache.kafka.StringSerializer", "key.serializer")
    assert serializer(None, "key.serializer") is None
