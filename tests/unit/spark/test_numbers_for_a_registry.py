"""to_registry and from_registry keep the digits of JSON numbers."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import BinaryType

from headrace.schemas import SchemaRegistry, wire
from headrace_spark.registry_columns import _fixed, _Reading, _Writing
from tests.worlds.registries import fake_registry

TEXT = '{"price":0.1234567890123456789,"small":1.0E-30,"zero":-0,"many":[12345678901234567890]}'


def test_a_json_value_is_written_and_read_with_its_own_numbers() -> None:
    with fake_registry() as fake, SchemaRegistry(fake.url) as registry:
        schema_id = fake.add("orders-value", {"schema": '{"type": "object"}', "schemaType": "JSON"})
        registered, resolved = _fixed(registry, "orders-value", "latest")
        write = _Writing(registry, registered, resolved, "permissive").converter()
        assert isinstance(write.spark_type, BinaryType)
        data, reasons = write.convert(pa.array([TEXT, '{"huge":1e400}', "[1.10]"]), "permissive")
        assert data.to_pylist() == [wire.header(schema_id) + TEXT.encode(), None, None]
        assert set(reasons) == {1, 2}, "no JSON number, and no object"
        read = _Reading(registry, "orders-value", resolved, "permissive").converter()
        assert read.convert(data, "permissive")[0].to_pylist() == [TEXT, None, None]
