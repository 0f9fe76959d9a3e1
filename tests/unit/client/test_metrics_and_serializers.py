"""Sliding windows, and serializers."""

from __future__ import annotations

import math
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
    samples = metrics.Samples(10.0, 2)
    samples.record(50, 5)
    now[0] += 5
    samples.record(30)
    assert samples.rate() == pytest.approx(80 / 5)
    assert samples.average() == pytest.approx(80 / 6)
    assert samples.maximum() == 50
    now[0] += 10
    samples.record(10)
    assert samples.rate() == pytest.approx(90 / 15)
    now[0] += 12
    samples.record(1)
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
