"""AvroArrowDeserializer and AvroArrowSerializer: whole Arrow arrays in place of single values.

    reading = AvroArrowDeserializer(registry, registry.resolved(7))
    orders = reading.deserialize(table["value"].combine_chunks())         # .values: structs; .reasons: {row: text}

A value that cannot be converted becomes null and has a reason; the other values are kept. The registry is asked once
for each schema id. Needs ``pip install 'headrace[arrow]'``.
"""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa

from headrace_core.errors import InvalidArgumentError
from headrace_core.records.arrow_layouts import plain_array, plain_type

from . import avro, wire
from .avro.arrow import ArrowDecoder, ArrowEncoder, BatchTooLargeError, Converted, Layout, NoArrowTypeError
from .avro_serde import parsed_avro
from .errors import (
    CorruptValueError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    InvalidValueError,
    RegistryUnavailableError,
    SchemaError,
)
from .models import RegisteredSchema, ResolvedSchema, SchemaType
from .registry import SchemaRegistry
from .serde import named

__all__ = [
    "AvroArrowDeserializer",
    "AvroArrowSerializer",
    "BatchTooLargeError",
    "Converted",
    "Layout",
]


class AvroArrowDeserializer:
    """Reads binary arrays with Confluent's wire format as arrays of ``type``.

    ``reader``: the schema to which each value is resolved (fields by name and alias, defaults, promotions); the values
    may have several writers' schemas. ``subject`` is named in errors. ``layout``: which Arrow types represent Avro's
    types. Raises InvalidSchemaError: the reader's schema is not a valid Avro schema, or a field has no Arrow type.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        reader: ResolvedSchema,
        *,
        subject: str | None = None,
        layout: Layout = Layout.ARROW,
    ) -> None:
        self._registry, self._subject = registry, subject
        self._reader = reader
        version = reader.version_in(subject)
        _check_avro(reader, subject)
        try:
            self._decoder = ArrowDecoder(parsed_avro(reader, subject=subject, version=version), layout=layout)
        except NoArrowTypeError as error:
            raise _no_type(error, subject, version, reader.id) from None

    @property
    def type(self) -> pa.DataType:
        """The type of the arrays that ``deserialize`` returns."""
        return self._decoder.type

    def deserialize(self, values: pa.Array) -> Converted:
        """Deserialize an array of type binary in any layout; null stays null. Raises RegistryUnavailableError,
        BatchTooLargeError, and InvalidArgumentError for an array of another type. If a writer's schema is unknown, or
        does not match the reader's schema, the values of this writer's schema become null, with the reason."""
        values = _binary(values)
        unusable = {}
        with self._decoder.lock:
            for schema_id in self._decoder.missing(values):
                try:
                    self._add_writer(schema_id)
                except RegistryUnavailableError:
                    raise
                except SchemaError as error:
                    unusable[schema_id] = error.message
            return self._decoder.decode(values, unusable)

    def refuse(self, converted: Converted) -> None:
        """Raise CorruptValueError if a value could not be deserialized."""
        if converted.reasons:
            row, reason = next(iter(converted.reasons.items()))
            raise CorruptValueError(
                f"cannot read a value of subject {self._subject!r}: {reason} (row {row} of a batch of "
                f"{len(converted.values)}, of which {len(converted.reasons)} are bad)",
                subject=self._subject,
                version=self._reader.version_in(self._subject),
            )

    def _add_writer(self, schema_id: int) -> None:
        resolved = self._registry.resolved(schema_id)
        subject = (
            self._subject if resolved.version_in(self._subject) is not None else next(iter(resolved.uses), (None,))[0]
        )
        version = resolved.version_in(subject)
        _check_avro(resolved, subject)
        writer = parsed_avro(resolved, subject=subject, version=version)
        try:
            self._decoder.add_writer(schema_id, writer)
        except avro.Unresolvable as error:
            raise IncompatibleSchemaError(
                f"{error.path or 'the value'}: {error.reason} (writer's schema: {named(subject, version, schema_id)})",
                reasons=(error.reason,),
                path=error.path,
                subject=subject,
                version=version,
                schema_id=schema_id,
            ) from None


class AvroArrowSerializer:
    """Writes arrays as binary arrays with Confluent's wire format.

    ``registered``: the version to write with, ``resolved``: its schema with references. A struct's fields are found by
    name. A field that the array does not have gets its default; fields that the schema does not have are ignored.
    Thread-safe. Raises InvalidSchemaError.
    """

    def __init__(self, registered: RegisteredSchema, resolved: ResolvedSchema) -> None:
        self._registered = registered
        _check_avro(resolved, registered.subject)
        self._schema = parsed_avro(resolved, subject=registered.subject, version=registered.version)
        self._prefix = wire.header(registered.id)
        self._encoder: ArrowEncoder | None = None

    def serialize(self, values: pa.Array) -> Converted:
        """Serialize an array; a null stays null (a tombstone). Raises InvalidValueError (the array's type does not fit
        the schema), BatchTooLargeError."""
        encoder = self._encoder
        if encoder is None or encoder.type != values.type:
            encoder = self._encoder = self._fitting(values.type)
        return encoder.encode(values, self._prefix)

    def refuse(self, converted: Converted) -> None:
        """Raise InvalidValueError if a value could not be serialized."""
        if converted.reasons:
            row, reason = next(iter(converted.reasons.items()))
            self._invalid(
                f"{reason} (row {row} of a batch of {len(converted.values)}, of which {len(converted.reasons)} are bad)"
            )

    def _fitting(self, kind: pa.DataType) -> ArrowEncoder:
        try:
            return ArrowEncoder(self._schema, kind)
        except NoArrowTypeError as error:
            self._invalid(f"{error.path or 'the value'}: {error.reason}", error.path)
        except avro.Unresolvable as error:
            self._invalid(f"{error.path or 'the value'}: {error.reason}", error.path)

    def _invalid(self, reason: str, path: str = "") -> NoReturn:
        found = self._registered
        raise InvalidValueError(
            f"cannot write a value: {reason} (schema: {named(found.subject, found.version, found.id)})",
            subject=found.subject,
            version=found.version,
            schema_id=found.id,
            path=path,
        )


def _binary(values: pa.Array) -> pa.Array:
    kind = plain_type(values.type)
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        if not (pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind)):
            raise InvalidArgumentError(f"an array of type {values.type} is not binary; cast it, or name another column")
        return plain_array(values).cast(pa.binary())
    return plain_array(values)


def _check_avro(resolved: ResolvedSchema, subject: str | None) -> None:
    if resolved.schema.type is not SchemaType.AVRO:
        raise InvalidSchemaError(
            f"{named(subject, resolved.version_in(subject), resolved.id)} is of type {resolved.schema.type}, and must "
            "be of type AVRO",
            subject=subject,
            version=resolved.version_in(subject),
            schema_id=resolved.id,
        )


def _no_type(error: NoArrowTypeError, subject: str | None, version: int | None, schema_id: int) -> InvalidSchemaError:
    which = "the given schema" if schema_id < 0 else named(subject, version, schema_id)
    return InvalidSchemaError(
        f"{error.path or 'the value'}: {error.reason} ({which})",
        subject=subject,
        version=version,
        schema_id=None if schema_id < 0 else schema_id,
        path=error.path,
    )
