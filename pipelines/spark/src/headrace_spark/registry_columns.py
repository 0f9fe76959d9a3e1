"""from_registry and to_registry: columns of values that a schema registry describes.

    orders = source.select(from_registry("value", "http://127.0.0.1:8081", subject="orders-value").alias("order"))
    bytes_again = orders.select(to_registry("order", "http://127.0.0.1:8081", subject="orders-value").alias("value"))

The driver asks the registry for the subject's version when the column is made, and the plan keeps that version. The
executors ask the registry themselves for the writers' schemas of the values, once for each schema and worker process.

Avro is converted by compiled code, a whole Arrow batch at a time. JSON Schema and Protobuf are converted in Python, a
value at a time; in Spark such a value is its JSON text.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import Column
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from headrace.schemas import (
    InvalidValueError,
    RegisteredSchema,
    RegistryUnavailableError,
    ResolvedSchema,
    Schema,
    SchemaError,
    SchemaRegistry,
    SchemaType,
)
from headrace_core import exact_json
from headrace_core.errors import InvalidArgumentError

from .shipping import ship

if TYPE_CHECKING:
    import pyarrow as pa

Mode = Literal["failfast", "permissive"]

#: The fields of a column in the mode ``permissive``.
VALUE: Final = "value"
REASON: Final = "reason"
#: Maximum number of converters that a worker process caches.
KEPT_MAX: Final = 64


def from_registry(
    column: Column | str,
    registry: SchemaRegistry | str | Mapping[str, Any] | None = None,
    *,
    subject: str,
    version: int | str = "latest",
    schema: str | Schema | None = None,
    mode: Mode = "failfast",
) -> Column:
    """Decode values with Confluent's wire format.

    ``column``: a column of type binary. ``registry``: a SchemaRegistry, its URLs, or its settings. The result has the
    type of ``subject``'s ``version``, or of your own Avro ``schema``. ``latest`` means the version that is the latest
    at the time of this call. Values of other versions are resolved to this version by Avro's rules. A null stays null.

    ``mode``: with ``failfast`` a bad value fails the query. With ``permissive`` the column is a struct of ``value``,
    null for a bad value, and ``reason``, null for a good value. An unavailable registry fails the task in both modes.

    Raises SchemaNotFoundError, InvalidSchemaError (a field has no Spark type, such as a record that contains itself),
    RegistryUnavailableError, InvalidArgumentError.
    """
    _check(mode, subject)
    with _client(registry) as client:
        if schema is not None:
            resolved = client.with_references(schema if isinstance(schema, Schema) else Schema(schema))
        else:
            _, resolved = _fixed(client, subject, version)
    reading = _Reading(client, subject, resolved, mode)
    return _udf(reading, reading.converter().spark_type, mode)(column)


def to_registry(
    column: Column | str,
    registry: SchemaRegistry | str | Mapping[str, Any] | None = None,
    *,
    subject: str,
    version: int | str = "latest",
    mode: Mode = "failfast",
) -> Column:
    """Encode values with Confluent's wire format, as ``subject``'s ``version``, which the registry must have.
    ``latest`` means the version that is the latest at the time of this call.

    For Avro, ``column`` is a struct (or the type that the schema's own type needs). The struct's fields are found by
    name: a missing field gets its default, and other fields are ignored. For JSON Schema and Protobuf, ``column`` is a
    string with the value's JSON. A null stays null, because a null value is a tombstone.

    ``mode``: with ``failfast`` a value that the schema does not allow fails the query. With ``permissive`` the column
    is a struct of ``value`` and ``reason``. ``value`` is null for a value that the schema does not allow; ``reason`` is
    null for a good value. A column whose type cannot fit the schema fails the query in both modes.

    Raises SchemaNotFoundError, InvalidSchemaError, RegistryUnavailableError, InvalidArgumentError.
    """
    _check(mode, subject)
    with _client(registry) as client:
        registered, resolved = _fixed(client, subject, version)
    writing = _Writing(client, registered, resolved, mode)
    writing.converter()  # raises errors of the schema itself here
    return _udf(writing, BinaryType(), mode)(column)


@contextlib.contextmanager
def _client(registry: SchemaRegistry | str | Mapping[str, Any] | None) -> Iterator[SchemaRegistry]:
    """The caller's client, or a new client that is closed at the end of the block. Workers make their own clients from
    the settings of the caller's client."""
    if isinstance(registry, SchemaRegistry):
        yield registry
    else:
        with SchemaRegistry(registry) as made:
            yield made


def _check(mode: str, subject: str) -> None:
    if mode not in ("failfast", "permissive"):
        raise InvalidArgumentError(f"mode={mode!r}: must be failfast or permissive")
    if not isinstance(subject, str) or not subject:
        raise InvalidArgumentError(f"subject={subject!r}: name a subject, such as 'orders-value'")


def _fixed(client: SchemaRegistry, subject: str, version: int | str) -> tuple[RegisteredSchema, ResolvedSchema]:
    registered = client.version(subject, version)
    return registered, client.resolved(registered.id, serialized=registered.schema.type is SchemaType.PROTOBUF)


def _udf(function: _Shipped, kind: DataType, mode: Mode) -> Callable[[Column | str], Column]:
    if mode == "permissive":
        kind = StructType([StructField(VALUE, kind), StructField(REASON, StringType())])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "It is preferred to specify type hints", UserWarning)
        made = arrow_udf(function, kind, ArrowUDFType.SCALAR)
    # Spark would copy a deterministic function into each filter on the function's result, and so call the function
    # twice.
    unique: Callable[[Column | str], Column] = made.asNondeterministic()
    return unique


# --- what a worker process runs ---------------------------------------------------------------------------------------


class _Shipped:
    """A function of Arrow arrays, which Spark sends to the workers. The function keeps its converter in the worker
    process."""

    _mode: Mode

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        state = {name: value for name, value in self.__dict__.items() if name != "_key"}
        return ship(self, state | {"_key": pickle.dumps(state)})

    def _new_converter(self) -> _Converter:
        raise NotImplementedError

    def converter(self) -> _Converter:
        """A new converter. Raises SchemaErrors."""
        return self._new_converter()

    def __call__(self, values: pa.Array) -> pa.Array:
        import pyarrow as pa

        key = (os.getpid(), type(self).__name__, self.__dict__["_key"])
        converter = _kept.get(key)
        if converter is None:
            while len(_kept) >= KEPT_MAX:
                del _kept[next(iter(_kept))]
            converter = _kept[key] = self._new_converter()
        found, reasons = converter.convert(values, self._mode)
        if self._mode == "failfast":
            return found
        texts = pa.nulls(len(found), pa.string())
        if reasons:
            texts = pa.array([reasons.get(row) for row in range(len(found))], pa.string())
        return pa.StructArray.from_arrays([found, texts], [VALUE, REASON])


#: Cached converters by process id, function name and pickled state. The key of a cached converter includes the process
#: id, because workers are forks.
_kept: dict[tuple[int, str, bytes], _Converter] = {}


class _Reading(_Shipped):
    __name__ = "from_registry"

    def __init__(self, registry: SchemaRegistry, subject: str, reader: ResolvedSchema, mode: Mode) -> None:
        self._registry, self._subject, self._reader, self._mode = registry, subject, reader, mode

    def _new_converter(self) -> _Converter:
        kind = self._reader.schema.type
        if kind is SchemaType.AVRO:
            return _AvroReader(self._registry, self._reader, self._subject)
        from headrace.schemas import JsonDeserializer, ProtobufDeserializer
        from headrace.schemas.wire import HEADER_BYTES

        topic = _topic(self._subject)
        if kind is SchemaType.JSON:
            as_json = JsonDeserializer(self._registry)

            def checked(data: bytes) -> str:
                as_json.deserialize(topic, data)
                return data[HEADER_BYTES:].decode()  # the written text: a number parsed as a float loses digits

            return _Each(checked, StringType())
        as_dict = ProtobufDeserializer(self._registry, into=dict)
        return _Each(lambda data: json.dumps(as_dict.deserialize(topic, data), separators=(",", ":")), StringType())


class _Writing(_Shipped):
    __name__ = "to_registry"

    def __init__(
        self, registry: SchemaRegistry, registered: RegisteredSchema, resolved: ResolvedSchema, mode: Mode
    ) -> None:
        self._registry, self._registered, self._resolved, self._mode = registry, registered, resolved, mode

    def _new_converter(self) -> _Converter:
        kind = self._resolved.schema.type
        if kind is SchemaType.AVRO:
            return _AvroWriter(self._registered, self._resolved)
        from headrace.schemas import JsonSerializer, ProtobufSerializer
        from headrace.schemas.wire import HEADER_BYTES

        topic, schema_id = _topic(self._registered.subject), self._registered.id
        if kind is SchemaType.JSON:
            as_json = JsonSerializer(self._registry, use_schema_id=schema_id)

            def written(text: str) -> bytes:
                checked = as_json.serialize(topic, _parsed(topic, text))
                assert checked is not None, "the value is not null"
                # A number parsed as a float loses digits: they are those of the text.
                try:
                    exact = exact_json.dumps(exact_json.loads(text), separators=(",", ":"))
                except ValueError as error:  # two equal names
                    raise _no_json(topic, error) from None
                return checked[:HEADER_BYTES] + exact.encode()

            return _Each(written, BinaryType())
        as_message = ProtobufSerializer(self._registry, _first_message(self._resolved), use_schema_id=schema_id)
        return _Each(lambda text: as_message.serialize(topic, _parsed(topic, text)), BinaryType())


def _parsed(topic: str, text: str) -> Any:
    """The value of JSON text. Raises InvalidValueError for a text that is no JSON, and for the text null, which a
    serializer would write as a tombstone (a record that deletes its key)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_json(topic, error) from None
    if value is None:
        raise InvalidValueError(
            "the value is the JSON text null; to write a tombstone, set the column to NULL", topic=topic
        )
    return value


def _no_json(topic: str, error: Exception) -> InvalidValueError:
    return InvalidValueError(f"the column's text is not valid JSON: {error}; make it with to_json", topic=topic)


def _topic(subject: str) -> str:
    return subject.removesuffix("-value").removesuffix("-key")


class _Converter:
    """Converts arrays; ``spark_type`` is the type of the results."""

    spark_type: DataType

    def convert(self, values: pa.Array, mode: Mode) -> tuple[pa.Array, dict[int, str]]:
        """The converted array, and {row: reason} of bad values, which are null. In the mode ``failfast`` a bad value
        raises an error."""
        raise NotImplementedError


class _AvroReader(_Converter):
    def __init__(self, registry: SchemaRegistry, reader: ResolvedSchema, subject: str) -> None:
        from headrace.schemas.arrow_serde import AvroArrowDeserializer, Layout

        self._deserializer = AvroArrowDeserializer(registry, reader, subject=subject, layout=Layout.SPARK)
        self.spark_type = from_arrow_type(self._deserializer.type, prefer_timestamp_ntz=True)

    def convert(self, values: pa.Array, mode: Mode) -> tuple[pa.Array, dict[int, str]]:
        found = self._deserializer.deserialize(values)
        if mode == "failfast":
            self._deserializer.refuse(found)
        return found


class _AvroWriter(_Converter):
    spark_type = BinaryType()

    def __init__(self, registered: RegisteredSchema, resolved: ResolvedSchema) -> None:
        from headrace.schemas.arrow_serde import AvroArrowSerializer

        self._serializer = AvroArrowSerializer(registered, resolved)

    def convert(self, values: pa.Array, mode: Mode) -> tuple[pa.Array, dict[int, str]]:
        found = self._serializer.serialize(values)
        if mode == "failfast":
            self._serializer.refuse(found)
        return found


class _Each(_Converter):
    """Converts one value at a time, in Python."""

    def __init__(self, function: Callable[[Any], Any], spark_type: DataType) -> None:
        self._function, self.spark_type = function, spark_type

    def convert(self, values: pa.Array, mode: Mode) -> tuple[pa.Array, dict[int, str]]:
        import pyarrow as pa

        reasons: dict[int, str] = {}
        found: list[Any] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                found.append(None if value is None else self._function(value))
            except RegistryUnavailableError:
                raise
            except (SchemaError, ValueError, RecursionError) as error:
                if mode == "failfast":
                    raise
                found.append(None)
                reasons[row] = str(error)
        return pa.array(found, pa.binary() if isinstance(self.spark_type, BinaryType) else pa.string()), reasons


def _first_message(resolved: ResolvedSchema) -> Any:
    from headrace.schemas.protobuf_files import load, message_at, message_class

    descriptor = message_at(load(resolved, lambda: f"the schema with id {resolved.id}"), (0,))
    if descriptor is None:
        raise InvalidArgumentError(f"the Protobuf schema with id {resolved.id} has no message, so it has no values")
    return message_class(descriptor)
