"""A record that a deserializer refuses: the error contains the record, and reading continues after a seek
(KIP-1036)."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, Producer, TopicPartition
from headrace.errors import SerializationError
from headrace.serializers import from_json, from_utf8

TP = TopicPartition("t", 0)


@pytest.fixture
def poisoned(fake: Any) -> Any:
    """Values 1, 2, invalid JSON (with key, headers, timestamp), 4, and a key that is not UTF-8."""
    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        out.send_many("t", [b"1", b"2"]).result(60)
        out.send("t", b"{no", key=b"k", headers=[("h", b"1")], timestamp_ms=5_000).result(60)
        out.send("t", b"4").result(60)
        out.send("t", b"5", key=b"\xff").result(60)
        out.send("t", b"6").result(60)
    return fake


def consumer(cluster: Any) -> Any:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "value_deserializer": from_json,
        "key_deserializer": from_utf8,
    }


def check(error: SerializationError, *, offset: int, field: str, key: Any, value: bytes) -> None:
    assert (error.topic, error.partition, error.offset, error.field) == ("t", 0, offset, field)
    assert error.topic_partition == TP
    record = error.record
    assert (record.key, record.value, record.offset) == (key, value, offset)
    assert record.topic_partition == TP
    assert f"t-0 at offset {offset}: {field}.deserializer failed" in error.message


def test_poll_hands_over_the_raw_record_and_goes_on_after_a_seek(poisoned: Any) -> None:
    seen: list[Any] = []
    dead: list[SerializationError] = []
    positions: list[int] = []
    with Consumer(**consumer(poisoned)) as inp:
        inp.assign([TP])
        while len(seen) < 4:
            try:
                seen += [record.value for record in inp.poll(60)]
            except SerializationError as error:
                dead.append(error)
                positions.append(inp.position(TP))
                inp.seek(error.topic_partition, error.offset + 1)
        assert inp.position(TP) == 6
    assert seen == [1, 2, 4, 6]
    assert positions == [2, 4]
    check(dead[0], offset=2, field="value", key=b"k", value=b"{no")
    assert dead[0].record.headers == [("h", b"1")]
    assert dead[0].record.timestamp_ms == 5_000
    assert isinstance(dead[0].__cause__, ValueError)
    check(dead[1], offset=4, field="key", key=b"\xff", value=b"5")
    again = pickle.loads(pickle.dumps(dead[0]))
    assert (again.offset, again.record, again.message) == (2, dead[0].record, dead[0].message)
    assert copy.copy(dead[0]).record == dead[0].record


def test_iteration_raises_it_again_until_somebody_seeks(poisoned: Any) -> None:
    seen: list[Any] = []
    with Consumer(**consumer(poisoned)) as inp:
        inp.assign([TP])
        for _ in range(3):
            with pytest.raises(SerializationError) as caught:
                seen.extend(record.value for record in inp)
            check(caught.value, offset=2, field="value", key=b"k", value=b"{no")
        inp.seek(caught.value.topic_partition, caught.value.offset + 1)
        assert next(inp).value == 4
    assert seen == [1, 2]


def test_asyncio_twin_hands_it_over_too(poisoned: Any) -> None:
    async def run() -> tuple[list[Any], list[Any]]:
        seen: list[Any] = []
        dead: list[Any] = []
        async with AsyncConsumer(**consumer(poisoned)) as inp:
            await inp.assign([TP])
            while len(seen) < 4:
                try:
                    async for record in inp:
                        seen.append(record.value)
                        if record.offset == 5:
                            break
                except SerializationError as error:
                    dead.append(error.record.value)
                    await inp.seek(error.topic_partition, error.offset + 1)
        return seen, dead

    assert asyncio.run(run()) == ([1, 2, 4, 6], [b"{no", b"5"])


def test_what_cannot_be_serialized_names_topic_and_field(fake: Any) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers, key_serializer=lambda topic, key: key.encode()) as out:
        with pytest.raises(SerializationError) as caught:
            out.send("t", b"v", key=5)
        assert (caught.value.topic, caught.value.field) == ("t", "key")
        assert (caught.value.partition, caught.value.offset, caught.value.record) == (None, None, None)
