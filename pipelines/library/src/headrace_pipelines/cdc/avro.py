"""Convert Debezium's events in Avro to the JSON that Connect's JsonConverter would have written.

    0 | schema id | Avro    -->    {"schema": {...}, "payload": {...}}

Connect's Avro converters write Confluent's wire format. The Avro schemas of these converters contain the name, type and
parameters of Connect's own schema as ``connect.name``, ``connect.type`` and ``connect.parameters``. So events in Avro
and events in JSON give the same columns, and all other modules read JSON. The JSON has only the parts of a value that
the modules of this package read.

Sources: Confluent's documentation ("Formats, Serializers, and Deserializers: Wire format"); AvroData of Confluent's and
Apicurio's converters; Kafka's JsonConverter.
"""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.schemas import (
    InvalidSchemaError,
    ResolvedSchema,
    SchemaRegistry,
    SchemaType,
    UnknownSchemaIdError,
    avro,
    wire,
)

from .columns import DIGITS_MAX, EventSchemaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

#: The fields of the column that ``as_json`` returns.
KEY, VALUE, KEY_REASON, VALUE_REASON = "key", "value", "key_reason", "value_reason"
#: The fields of an event's value that the JSON text contains. The JSON text also contains the schema of one field,
#: _TABLE.
_READ = ("op", "after", "source")
_TABLE = "after"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_PLAIN = {
    "boolean": "boolean", "int": "int32", "long": "int64", "float": "float", "double": "double", "bytes": "bytes",
    "string": "string",
}  # fmt: skip
#: Maximum number of converters that a worker process caches, one for each registry.
_KEPT_MAX = 8
#: Maximum number of schemas that a converter caches.
_SCHEMAS_MAX = 1_000

#: A function that encodes a decoded value as JSON text.
Text = Callable[[Any], str]


def as_json(key: Column, value: Column, registry: SchemaRegistry) -> Column:
    """A struct with the JSON of a record's key and value, and the reason if one of them cannot be converted. The field
    of a key or value that is not in Avro is null. A registry that does not answer, or that refuses the client, fails
    the task."""
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
    from pyspark.sql.types import StringType, StructType

    kind = StructType()
    for name in (KEY, VALUE, KEY_REASON, VALUE_REASON):
        kind.add(name, StringType())
    settings = pickle.dumps(registry)

    def convert(keys: pa.Array, values: pa.Array) -> pa.Array:
        import pyarrow as pa

        converter = _kept(settings)
        found = [converter.json_of(each, is_key=True) for each in keys.to_pylist()]
        found_values = [converter.json_of(each, is_key=False) for each in values.to_pylist()]
        parts = [[each[at] for each in every] for at in (0, 1) for every in (found, found_values)]
        arrays = [pa.array(each, pa.string()) for each in parts]
        return pa.StructArray.from_arrays(arrays, [KEY, VALUE, KEY_REASON, VALUE_REASON])

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "It is preferred to specify type hints", UserWarning)
        made = arrow_udf(convert, kind, ArrowUDFType.SCALAR)
    # Spark would call a deterministic function again for each expression that reads its result.
    return made.asNondeterministic()(key, value)


_converters: dict[tuple[int, bytes], Converter] = {}


def _kept(settings: bytes) -> Converter:
    """The converter of this process. The process id is in the key of the cache, because workers are forks of one
    process."""
    known = (os.getpid(), settings)
    if known not in _converters:
        while len(_converters) >= _KEPT_MAX:
            del _converters[next(iter(_converters))]
        _converters[known] = Converter(pickle.loads(settings))
    return _converters[known]


class Converter:
    """Converts keys and values; asks the registry once for each schema."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._forms: dict[tuple[int, bool], Form | str] = {}

    def json_of(self, data: bytes | None, *, is_key: bool) -> tuple[str | None, str | None]:
        """Return the JSON of a key or value, or the reason why it cannot be converted; return neither for data that are
        not in Avro. Raises RegistryUnavailableError and RegistryRefusedError."""
        if not data or data[0] != wire.MAGIC or len(data) < wire.HEADER_BYTES:
            return None, None
        schema_id = wire.schema_id(data)
        form = self._form(schema_id, is_key)
        if isinstance(form, str):
            return None, form
        try:
            payload = form.decoder.decode(data, wire.HEADER_BYTES)
        except avro.Damaged as error:
            return None, f"{error.path or 'the bytes'}: {error.reason} (schema id {schema_id})"
        return f'{{"schema":{form.schema},"payload":{form.text(payload)}}}', None

    def _form(self, schema_id: int, is_key: bool) -> Form | str:
        known = (schema_id, is_key)
        if known not in self._forms:
            while len(self._forms) >= _SCHEMAS_MAX:
                del self._forms[next(iter(self._forms))]
            self._forms[known] = self._new_form(schema_id, is_key)
        return self._forms[known]

    def _new_form(self, schema_id: int, is_key: bool) -> Form | str:
        try:
            resolved = self._registry.resolved(schema_id)
            if resolved.schema.type is not SchemaType.AVRO:
                return (
                    f"schema id {schema_id} is of the type {resolved.schema.type}, and events must be in Avro or JSON"
                )
            return form_of(resolved) if is_key else form_of(resolved, read=_READ, described=(_TABLE,))
        except (UnknownSchemaIdError, InvalidSchemaError, EventSchemaError) as error:
            return str(error)


def payload_of(value: bytes, converter: Converter | None) -> dict[str, Any]:
    """The payload of an event in Avro or JSON: ``op``, ``after``, ``source``. ``converter``: None if the events are in
    JSON. Raises EventSchemaError for an event that cannot be read."""
    text, reason = (None, None) if converter is None else converter.json_of(value, is_key=False)
    if reason is not None:
        raise EventSchemaError(reason)
    found: dict[str, Any] = json.loads(value if text is None else text)["payload"]
    return found


class Form(NamedTuple):
    """The conversion of the values of one Avro schema to JSON. ``schema``: Connect's schema, as JSON."""

    schema: str
    decoder: avro.Decoder
    text: Text


def form_of(resolved: ResolvedSchema, *, read: Sequence[str] = (), described: Sequence[str] = ()) -> Form:
    """The conversion for a record's schema. ``read``: names of the fields in the JSON; ``described``: names of the
    fields in Connect's schema. An empty sequence means all fields. Raises EventSchemaError."""
    builder = _Builder()
    try:
        texts = [each.text for each in (*resolved.references.values(), resolved.schema)]
        *references, document = [_without_logical_types(json.loads(text)) for text in texts]
        decoder = avro.decoder(avro.parse(json.dumps(document), map(json.dumps, references)))
        for each in texts:
            found = builder.node(json.loads(each), "")
    except (ValueError, RecursionError) as error:
        raise EventSchemaError(f"schema id {resolved.id} cannot be read: {error}") from error
    fields = found.connect.get("fields")
    if fields is None:
        raise EventSchemaError(f"schema id {resolved.id} is not an Avro record; check that Debezium writes this topic")
    schema = found.connect | {"fields": [each for each in fields if not described or each["field"] in described]}
    text = found.text if not read else _record({name: each for name, each in found.parts.items() if name in read})
    return Form(json.dumps(schema, ensure_ascii=False), decoder, text)


def _without_logical_types(schema: Any) -> Any:
    """The schema without logical types, so that values are decoded in their stored form: a date as a number, a decimal
    as bytes."""
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _without_logical_types(each) for name, each in schema.items() if name != "logicalType"}
    return schema


class _Node(NamedTuple):
    """Connect's schema of an Avro type, and the function that converts a value of this type to JSON. ``parts``: for a
    record, the JSON of each field."""

    connect: dict[str, Any]
    text: Text
    parts: Mapping[str, Text] = {}


class _Builder:
    """Walks through Avro schemas, and remembers each named type."""

    def __init__(self) -> None:
        self._names: dict[str, _Node | None] = {}

    def node(self, schema: Any, namespace: str) -> _Node:
        """Raises EventSchemaError."""
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._named(schema, namespace)
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, (dict, list)):
            return self.node(kind, namespace)
        if kind == "record":
            return self._record(schema, namespace)
        if kind == "array":
            item = self.node(schema.get("items"), namespace)
            return _Node(_described(schema, {"type": "array", "items": item.connect}), _array(item.text))
        if kind == "map":
            item = self.node(schema.get("values"), namespace)
            connect = {"type": "map", "keys": {"type": "string", "optional": False}, "values": item.connect}
            return _Node(_described(schema, connect), _map(item.text))
        if kind in ("enum", "fixed"):
            node = _plain(schema, "string" if kind == "enum" else "bytes")
            self._names[_full_name(schema, namespace)] = node
            return node
        if kind in _PLAIN:
            return _plain(schema, _PLAIN[kind])
        return self._named(kind, namespace)

    def _named(self, name: Any, namespace: str) -> _Node:
        if isinstance(name, str) and name in _PLAIN:
            return _plain({}, _PLAIN[name])
        for full in (f"{namespace}.{name}", name):
            if full in self._names:
                node = self._names[full]
                if node is None:
                    raise EventSchemaError(f"the Avro record {full} contains itself, which a column of a lake cannot")
                return node
        raise EventSchemaError(f"Kafka Connect has no equivalent of the Avro type {name!r}")

    def _union(self, branches: list[Any], namespace: str) -> _Node:
        others = [each for each in branches if each != "null"]
        if len(others) != 1:
            raise EventSchemaError("Kafka Connect has no equivalent of an Avro union of several types")
        node = self.node(others[0], namespace)
        return (
            node if len(branches) == 1 else _Node(node.connect | {"optional": True}, _nullable(node.text), node.parts)
        )

    def _record(self, schema: Mapping[str, Any], namespace: str) -> _Node:
        name = _full_name(schema, namespace)
        within = name.rpartition(".")[0]
        self._names[name] = None
        nodes = {field["name"]: self.node(field["type"], within) for field in schema["fields"]}
        fields = [node.connect | {"field": field} for field, node in nodes.items()]
        parts = {field: node.text for field, node in nodes.items()}
        node = _Node(_described(schema, {"type": "struct", "fields": fields}), _record(parts), parts)
        self._names[name] = node
        return node


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name, own = schema.get("name", ""), schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"


def _described(schema: Mapping[str, Any], connect: dict[str, Any]) -> dict[str, Any]:
    """Connect's schema, with the name and the parameters that are stored in the Avro schema."""
    found = connect | {"optional": False}
    if "connect.name" in schema:
        found["name"] = schema["connect.name"]
    if isinstance(schema.get("connect.parameters"), dict):
        found["parameters"] = schema["connect.parameters"]
    return found


def _plain(schema: Mapping[str, Any], kind: str) -> _Node:
    connect = _described(schema, {"type": schema.get("connect.type", kind)})
    if kind == "bytes" and schema.get("logicalType") == "decimal":
        sizes = {"scale": str(schema.get("scale", 0))}
        if "connect.name" not in schema:  # Connect's converters write their own default value as the precision in Avro
            sizes["connect.decimal.precision"] = str(schema.get("precision"))
        connect |= {"name": _DECIMAL, "parameters": sizes | connect.get("parameters", {})}
    if kind == "bytes" and connect.get("name") == _DECIMAL:
        return _Node(connect, partial(_decimal, _scale(connect)))
    return _Node(connect, _TEXTS[kind])


def _scale(decimal: Mapping[str, Any]) -> int:
    try:
        scale = int(decimal["parameters"]["scale"])
    except (KeyError, TypeError, ValueError) as error:
        raise EventSchemaError("a decimal in the Avro schema has no scale") from error
    if not 0 <= scale <= DIGITS_MAX:
        raise EventSchemaError(
            f"a decimal in the Avro schema has the scale {scale}, and a lake's column has at most {DIGITS_MAX} digits"
        )
    return scale


def _integer(value: int) -> str:
    return str(value)


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _real(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _bytes(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def _decimal(scale: int, value: bytes) -> str:
    unscaled = int.from_bytes(value, "big", signed=True)
    if not scale:
        return str(unscaled)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


_quoted = json.JSONEncoder(ensure_ascii=False).encode
_TEXTS: Mapping[str, Text] = {
    "boolean": _boolean, "int32": _integer, "int64": _integer, "float": _real, "double": _real, "bytes": _bytes,
    "string": _quoted,
}  # fmt: skip


def _nullable(text: Text) -> Text:
    return lambda value: "null" if value is None else text(value)


def _array(item: Text) -> Text:
    return lambda values: f"[{','.join(map(item, values))}]"


def _map(item: Text) -> Text:
    return lambda values: f"{{{','.join(f'{_quoted(key)}:{item(value)}' for key, value in values.items())}}}"


def _record(parts: Mapping[str, Text]) -> Text:
    named = [(name, f"{_quoted(name)}:", text) for name, text in parts.items()]
    return lambda row: f"{{{','.join([quoted + text(row[name]) for name, quoted, text in named])}}}"
