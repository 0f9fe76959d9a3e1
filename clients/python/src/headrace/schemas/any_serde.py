"""RegistryDeserializer: read values of any schema type, by the id in their first bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import wire
from .avro_serde import AvroDeserializer
from .cache import Bounded
from .json_serde import JsonDeserializer
from .models import SchemaType
from .registry import SchemaRegistry
from .serde import SchemaDeserializer


class RegistryDeserializer(SchemaDeserializer):
    """Reads values of every schema type. Avro and JSON values become the Python values of their JSON form; Protobuf
    messages become dicts (proto JSON with the fields' own names). Use this class in a program that shows or routes
    values without knowing their types. JSON values are not validated. ``number`` makes the value of a JSON number from
    its text, such as decimal.Decimal; None: int or float, which has 17 digits at most.
    """

    def __init__(
        self, registry: SchemaRegistry, *, is_key: bool = False, number: Callable[[str], Any] | None = None
    ) -> None:
        super().__init__(registry, is_key=is_key)
        self._number = number
        self._kinds: Bounded[bytes, SchemaDeserializer] = Bounded(registry.cache_capacity)
        self._readers: dict[SchemaType, SchemaDeserializer] = {}

    def _deserialize(self, topic: str, data: bytes | None, may_wait: bool) -> Any:
        if data is None:
            return None
        header = bytes(data[: wire.HEADER_BYTES])
        reader = self._kinds.get(header)
        if reader is None:
            resolved = self._resolved(topic, data, None, may_wait=may_wait)
            reader = self._kinds.put(header, self._reader(resolved.schema.type))
        return reader.deserialize(topic, data) if may_wait else reader.deserialize_nowait(topic, data)

    def _reader(self, kind: SchemaType) -> SchemaDeserializer:
        found = self._readers.get(kind)
        if found is None:
            found = self._readers[kind] = self._new(kind)
        return found

    def _new(self, kind: SchemaType) -> SchemaDeserializer:
        is_key = self._field == "key"
        if kind is SchemaType.AVRO:
            return AvroDeserializer(self.registry, is_key=is_key)
        if kind is SchemaType.JSON:
            return JsonDeserializer(self.registry, validate=False, is_key=is_key, number=self._number)
        from .protobuf_serde import ProtobufDeserializer

        return ProtobufDeserializer(self.registry, into=dict, is_key=is_key)

    def _bind(self, field: str) -> None:
        super()._bind(field)
        self._kinds, self._readers = Bounded(self.registry.cache_capacity), {}
