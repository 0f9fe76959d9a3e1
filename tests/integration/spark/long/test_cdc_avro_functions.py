"""Change events in Avro on static frames: they give the rows of the same events in JSON, and the registry may fail."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas import AvroSerializer, SchemaRegistry, wire
from headrace_pipelines.cdc import replica
from headrace_pipelines.cdc.events import events
from headrace_pipelines.cdc.replica import DEAD_LETTERS, write_batch
from headrace_pipelines.expectations import REASON
from headrace_pipelines.lake.lakes import lakes
from headrace_pipelines.tables.table import Batch
from tests.integration.spark.long.test_cdc_functions import ID, NAME, PRICE, TOPIC, Log, content, frame, key_of
from tests.unit.pipelines.test_cdc_avro import DECIMAL, envelope
from tests.worlds.registries import FakeRegistry, fake_registry

KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
ROW = (("id", "long"), ("name", ["null", "string"]), ("price", ["null", DECIMAL]))


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


@pytest.fixture
def registry(fake: FakeRegistry) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(fake.url, request_timeout_ms=2_000) as client:
        yield client


class AvroLog(Log):
    """The records of a topic, as Debezium would write them in Avro."""

    def __init__(self, registry: SchemaRegistry) -> None:
        super().__init__()
        self._key = AvroSerializer(registry, KEY, is_key=True, auto_register_schemas=True)
        self._value = AvroSerializer(registry, envelope(*ROW), auto_register_schemas=True)

    def event(self, op: str, key: int, after: dict[str, Any] | None, *fields: Any, **more: Any) -> None:
        payload = {"op": op, "before": None, "after": after, "source": {"lsn": 100 + len(self.records), "ts_ms": 1_500}}
        self.raw(self._key.serialize(self.topic, {"id": key}), self._value.serialize(self.topic, payload))


def test_events_in_avro_give_the_rows_of_events_in_json(
    spark: Any, registry: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "batch_of", lambda frame, number: Batch("replica", number))
    in_avro, in_json = AvroLog(registry), Log()
    for log, price in ((in_avro, Decimal("1.50")), (in_json, 1.50)):
        log.event("r", 1, {"id": 1, "name": "a", "price": price}, ID, NAME, PRICE)
        log.event("c", 2, {"id": 2, "name": None, "price": None}, ID, NAME, PRICE)
        log.event("d", 2, None, ID, NAME, PRICE)
        log.raw(None, None)  # a tombstone
    mixed = AvroLog(registry)  # a converter was replaced between two events
    mixed.event("c", 1, {"id": 1, "name": "b", "price": Decimal("2.25")})
    mixed.raw(*in_json.records[0][:2])
    for name, log in (("avro", in_avro), ("json", in_json), ("mixed", mixed)):
        (tmp_path / name).mkdir()
        every = lakes(tmp_path / name)
        write_batch(every, registry)(frame(spark, log), 0)
        for lake in every:
            assert content(lake) == {1: {"id": 1, "name": "a", "price": Decimal("1.50")}}
            table = lake.table(DEAD_LETTERS)
            assert not table.exists() or not table.read().num_rows


def test_what_cannot_be_decoded_gets_a_reason_and_stays_as_it_was(spark: Any, registry: SchemaRegistry) -> None:
    log = AvroLog(registry)
    log.event("c", 1, {"id": 1, "name": "a", "price": None})
    key, value = log.records[0][:2]
    log.raw(key, wire.header(9_999) + b"\0")
    log.raw(key, value[:-1])
    log.raw(wire.header(9_999) + b"\0", value)
    log.raw(key_of(1), value)  # a key in JSON
    log.raw(key, b"{")
    found = events(frame(spark, log), registry).orderBy("offset").collect()
    reasons = [each[REASON] for each in found]
    assert reasons[0] is None
    assert reasons[4] is None
    assert "value: " in reasons[1]
    assert "9999" in reasons[1]
    assert reasons[2].startswith("value: ")
    assert reasons[3].startswith("key: ")
    assert "event of Debezium" in reasons[5]
    assert [(bytes(each["key"]), bytes(each["value"])) for each in found] == [each[:2] for each in log.records]


def test_without_a_registry_events_in_avro_get_a_reason_that_names_the_key(
    spark: Any, registry: SchemaRegistry
) -> None:
    log = AvroLog(registry)
    log.event("c", 1, {"id": 1, "name": "a", "price": None})
    (found,) = events(frame(spark, log)).collect()
    assert "set schema.registry.url" in found[REASON]
    assert found["topic"] == TOPIC


def test_a_registry_that_is_down_fails_the_batch_and_makes_no_dead_letter(
    spark: Any, fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    log = AvroLog(registry)
    log.event("c", 1, {"id": 1, "name": "a", "price": None})
    fake.stop()
    with SchemaRegistry(fake.url, request_timeout_ms=500) as client, pytest.raises(Exception, match="schema registry"):
        events(frame(spark, log), client).collect()
