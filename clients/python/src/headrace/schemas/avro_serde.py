"""AvroSerializer and AvroDeserializer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from headrace_core.errors import InvalidConfigError

from . import avro, wire
from .cache import Bounded
from .errors import CorruptValueError, IncompatibleSchemaError, InvalidSchemaError
from .models import ResolvedSchema, Schema, SchemaType
from .registry import SchemaRegistry
from .serde import Chosen, PlainValueSerializer, SchemaDeserializer, SerializerSettings, Writing, given_schema, named


class AvroSerializer(PlainValueSerializer):
    """Writes values as Avro.

        serializer = AvroSerializer(SchemaRegistry("http://127.0.0.1:8081"), schema)
        with Producer(value_serializer=serializer) as producer:
            producer.send("orders", {"id": 1, "customer": "c-7"})

    ``schema``: JSON text, a dict, or a Schema (with references). The registry must have this schema under the topic's
    subject (``headrace schemas register``), unless ``auto_register_schemas`` is set. Without a schema pass
    ``use_latest_version=True``. A value is a dict, a dataclass, a pydantic model, an attrs object or a named tuple;
    ``to_dict(value)`` converts any other object first. A field that a value lacks gets its default; dict keys that are
    not fields are ignored. Set ``is_key`` only if you call the serializer yourself, without a client.

    The settings are those of Confluent's serializers, but ``auto.register.schemas`` is off by default.
    """

    _type = SchemaType.AVRO
    _mismatch = avro.Mismatch

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | list[Any] | Schema | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        is_key: bool = False,
        to_dict: Callable[[Any], Any] | None = None,
        **settings: Unpack[SerializerSettings],
    ) -> None:
        super().__init__(registry, config, settings, is_key=is_key, to_dict=to_dict)
        self._schema = given_schema(schema, SchemaType.AVRO)
        self._encoders: Bounded[tuple[int, Schema], avro.Encoder] = Bounded(registry.cache_capacity)
        self._check_has_schema(self._schema, "a schema")
        self._name: str | None = None
        if self._schema is not None and not self._schema.references:
            parsed = parsed_avro(ResolvedSchema(-1, self._schema), subject=None)
            self._name = parsed.name or None
        elif self._schema is not None:
            self._name = _name_in(self._schema.text)

    def _writing(self, topic: str, may_wait: bool) -> Writing:
        until = self._until()
        chosen = self._choose(topic, self._schema, self._name, may_wait=may_wait)
        key = (chosen.id, chosen.resolved.schema)
        encoder = self._encoders.get(key)
        if encoder is None:
            parsed = parsed_avro(chosen.resolved, subject=chosen.subject, version=chosen.version)
            encoder = self._encoders.put(key, _encoder(parsed, chosen))
        return self._writings.put(topic, Writing(encoder.encode, chosen, until))


class AvroDeserializer(SchemaDeserializer):
    """Reads values that AvroSerializer, or any other serializer with Confluent's wire format, has written.

        consumer = Consumer(group_id="g", value_deserializer=AvroDeserializer(registry))

    A value becomes a dict. ``schema``: the reader's schema, to which each value is resolved (fields by name and alias,
    defaults, promotions). Without ``schema``, values have the form of their writer's schema. ``into``: a dataclass, a
    pydantic model, or any callable that takes the dict.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | list[Any] | Schema | None = None,
        *,
        into: Any = None,
        is_key: bool = False,
    ) -> None:
        super().__init__(registry, is_key=is_key, into=into)
        self._schema = given_schema(schema, SchemaType.AVRO)
        self._decoders: Bounded[bytes, tuple[avro.Decoder, ResolvedSchema]] = Bounded(registry.cache_capacity)
        if self._schema is not None and not self._schema.references:
            parsed_avro(ResolvedSchema(-1, self._schema), subject=None)  # raises an error now, not at the first record

    def _deserialize(self, topic: str, data: bytes | None, may_wait: bool) -> Any:
        if data is None:
            return None
        known = self._decoders.get(data[: wire.HEADER_BYTES])
        if known is None:
            known = self._decoder(topic, data, may_wait)
        try:
            value = known[0].decode(data, wire.HEADER_BYTES)
        except avro.Damaged as error:
            raise self._damaged(error, topic, known[1]) from error.__cause__
        return value if self._build is None else self._built(self._build, value, topic, known[1])

    def _decoder(self, topic: str, data: bytes, may_wait: bool) -> tuple[avro.Decoder, ResolvedSchema]:
        resolved = self._resolved(topic, data, SchemaType.AVRO, may_wait=may_wait)
        place = self._place(topic, resolved)
        writer = parsed_avro(resolved, subject=place["subject"], version=place["version"])
        reader = None
        if self._schema is not None:
            own = self.registry.with_references(self._schema, may_wait=may_wait)
            reader = parsed_avro(own, subject=None)
        try:
            decoder = avro.decoder(writer, reader)
        except avro.Unresolvable as error:
            raise IncompatibleSchemaError(
                f"{error.path or 'the value'}: {error.reason} (writer's schema: "
                f"{named(place['subject'], place['version'], resolved.id)})",
                reasons=(error.reason,),
                path=error.path,
                **place,
            ) from None
        return self._decoders.put(bytes(data[: wire.HEADER_BYTES]), (decoder, resolved))

    def _damaged(self, error: avro.Damaged, topic: str, resolved: ResolvedSchema) -> Exception:
        place = self._place(topic, resolved)
        where = named(place["subject"], place["version"], resolved.id)
        text = f"{error.path or 'the value'}: {error.reason}"
        if isinstance(error, avro.Unreadable):
            return IncompatibleSchemaError(
                f"{text} (writer's schema: {where})", reasons=(error.reason,), path=error.path, **place
            )
        return CorruptValueError(f"{text}; the bytes are not a value of {where}", path=error.path, **place)


def parsed_avro(resolved: ResolvedSchema, *, subject: str | None, version: int | None = None) -> avro.Type:
    """Parse an Avro schema with its references. Raises InvalidSchemaError."""
    try:
        return avro.parse(resolved.schema.text, [each.text for each in resolved.references.values()])
    except avro.AvroSchemaError as error:
        at = f" at {error.path}" if error.path else ""
        which = "the given schema" if resolved.id < 0 else named(subject, version, resolved.id)
        raise InvalidSchemaError(
            f"{which} is not a valid Avro schema: {error.reason}{at}",
            subject=subject,
            version=version,
            schema_id=None if resolved.id < 0 else resolved.id,
            path=error.path,
        ) from None


def _encoder(parsed: avro.Type, chosen: Chosen) -> avro.Encoder:
    try:
        return avro.encoder(parsed, wire.header(chosen.id))
    except avro.Unresolvable as error:
        raise InvalidSchemaError(
            f"{named(chosen.subject, chosen.version, chosen.id)}: {error.reason}",
            subject=chosen.subject,
            version=chosen.version,
            schema_id=chosen.id,
            path=error.path,
        ) from None


def _name_in(text: str) -> str | None:
    """The full name of a schema that cannot be parsed without its references."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidConfigError("schema: the text is not valid JSON") from None
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    name, namespace = document["name"], document.get("namespace")
    return f"{namespace}.{name}" if isinstance(namespace, str) and namespace and "." not in name else name
