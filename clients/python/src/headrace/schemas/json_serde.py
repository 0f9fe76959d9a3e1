"""JsonSerializer and JsonDeserializer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Unpack
from urllib.parse import urljoin

from headrace_core.errors import InvalidArgumentError, MissingDependencyError
from headrace_core.plurals import counted

from .. import strict_json
from . import wire
from .building import plain
from .cache import Bounded
from .errors import CorruptValueError, InvalidSchemaError, InvalidValueError
from .models import ResolvedSchema, Schema, SchemaType
from .registry import SchemaRegistry
from .serde import PlainValueSerializer, SchemaDeserializer, SerializerSettings, Writing, given_schema, named

#: A validator returns the path of the first mismatch and its reason, or None.
Validate = Callable[[Any], tuple[str, str] | None]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    """A number of a schema. The validator would take an infinity for null."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large for a double")
    return number


_decode = json.JSONDecoder(parse_constant=_no_constant).decode


class _Mismatch(Exception):
    """The value does not match its schema, or is not valid JSON."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path


class JsonSerializer(PlainValueSerializer):
    """Writes values as JSON that matches a JSON Schema.

        serializer = JsonSerializer(SchemaRegistry("http://127.0.0.1:8081"), schema)
        producer.send("orders", {"id": 1, "customer": "c-7"})

    ``schema``: JSON text, a dict, or a Schema (with references). A value is a dict or list, a dataclass, a pydantic
    model, an attrs object or a named tuple; ``to_dict(value)`` converts any other object first. ``validate=False``
    writes values without validation against the schema; validation needs ``pip install 'headrace[schemas]'``. The
    settings are those of AvroSerializer.
    """

    _type = SchemaType.JSON
    _mismatch = _Mismatch
    _joint = ": "

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | Schema | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        validate: bool = True,
        is_key: bool = False,
        to_dict: Callable[[Any], Any] | None = None,
        **settings: Unpack[SerializerSettings],
    ) -> None:
        super().__init__(registry, config, settings, is_key=is_key, to_dict=to_dict)
        self._schema = given_schema(schema, SchemaType.JSON)
        self._check_has_schema(self._schema, "a schema")
        self._validates = validate
        self._name: str | None = None
        if self._schema is not None:
            title = parsed_json(ResolvedSchema(-1, self._schema), None).get("title")
            self._name = title if isinstance(title, str) else None
        if validate:
            _jsonschema()  # raise an error for a bad schema now, not at the first record

    def _writing(self, topic: str, may_wait: bool) -> Writing:
        until = self._until()
        chosen = self._choose(topic, self._schema, self._name, may_wait=may_wait)
        validate = _validator(chosen.resolved, chosen.subject, chosen.version) if self._validates else None
        prefix = wire.header(chosen.id)

        def encode(value: Any) -> bytes:
            return prefix + _encoded(value, validate)

        return self._writings.put(topic, Writing(encode, chosen, until))


class _Read(NamedTuple):
    resolved: ResolvedSchema
    validate: Validate | None


class JsonDeserializer(SchemaDeserializer):
    """Reads JSON that JsonSerializer, or any other serializer with Confluent's wire format, has written.

        consumer = Consumer(group_id="g", value_deserializer=JsonDeserializer(registry))

    A value is checked against its writer's schema, or against ``schema`` (the reader's own); ``validate=False`` checks
    nothing. ``into``: a dataclass, a pydantic model, or any callable that takes the decoded JSON. ``number`` makes the
    value of a JSON number from its text, such as decimal.Decimal; it needs ``validate=False``.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | Schema | None = None,
        *,
        validate: bool = True,
        into: Any = None,
        is_key: bool = False,
        number: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(registry, is_key=is_key, into=into)
        if number is not None and validate:
            raise InvalidArgumentError("number: needs validate=False, because only int and float can be validated")
        self._number = number
        self._schema = given_schema(schema, SchemaType.JSON)
        self._validates = validate
        self._reads: Bounded[bytes, _Read] = Bounded(registry.cache_capacity)
        if validate:
            _jsonschema()

    def _deserialize(self, topic: str, data: bytes | None, may_wait: bool) -> Any:
        if data is None:
            return None
        read = self._reads.get(data[: wire.HEADER_BYTES])
        if read is None:
            read = self._read(topic, data, may_wait)
        try:
            value = self._decoded(str(data[wire.HEADER_BYTES :], "utf-8"))
        except (ValueError, ArithmeticError, RecursionError) as error:
            place = self._place(topic, read.resolved)
            raise CorruptValueError(
                f"the bytes are not valid JSON: {error} "
                f"({named(place['subject'], place['version'], read.resolved.id)})",
                **place,
            ) from None
        if read.validate is not None and (found := read.validate(value)) is not None:
            path, reason = found
            place = self._place(topic, read.resolved)
            raise InvalidValueError(
                f"{f'field {path}' if path else f'the {self._field}'}: {reason} (schema: "
                f"{named(place['subject'], place['version'], read.resolved.id)})",
                path=path,
                **place,
            )
        return value if self._build is None else self._built(self._build, value, topic, read.resolved)

    def _decoded(self, text: str) -> Any:
        if self._number is None:
            return _decode(text)
        return json.loads(text, parse_constant=_no_constant, parse_float=self._number, parse_int=self._number)

    def _read(self, topic: str, data: bytes, may_wait: bool) -> _Read:
        resolved = self._resolved(topic, data, SchemaType.JSON, may_wait=may_wait)
        place = self._place(topic, resolved)
        validate = None
        if self._validates:
            checked = resolved
            if self._schema is not None:
                checked = self.registry.with_references(self._schema, may_wait=may_wait)
            validate = _validator(checked, place["subject"], place["version"])
        return self._reads.put(bytes(data[: wire.HEADER_BYTES]), _Read(resolved, validate))


def _encoded(value: Any, validate: Validate | None) -> bytes:
    """The JSON of a value. The validation checks the encoded bytes, not the Python value. Raises _Mismatch."""
    if not isinstance(value, dict | list | str | int | float | bool):
        value = _plain(value)
    try:
        try:
            data = strict_json.encode(value)
        except strict_json.NotJsonError as error:
            if not isinstance(error.__cause__, TypeError):
                raise
            value = _plain(value)  # an object within a dict or list, such as a dataclass
            data = strict_json.encode(value)
        if validate is not None:
            try:
                found = validate(value)
            except (TypeError, ValueError):  # a key that is not a string, or a subclass of a JSON type
                found = validate(_decode(data.decode()))
            if found is not None:
                raise _Mismatch(found[1], found[0])
        return data
    except strict_json.NotJsonError as error:
        raise _Mismatch(f"the value is not valid JSON: {error.reason}", error.path) from error


def _plain(value: Any) -> Any:
    try:
        return plain(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _Mismatch(f"the value is not valid JSON: {error}") from error


def parsed_json(resolved: ResolvedSchema, subject: str | None, version: int | None = None) -> dict[str, Any]:
    """The document of a JSON Schema; ``true`` and ``false`` are replaced by equivalent objects. Raises
    InvalidSchemaError."""
    return _document(resolved.schema.text, resolved, subject, version)


def _document(text: str, resolved: ResolvedSchema, subject: str | None, version: int | None) -> dict[str, Any]:
    try:
        document = json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        reason = f"the text is not valid JSON: {error}"
    else:
        if isinstance(document, dict):
            return document
        if isinstance(document, bool):
            return {} if document else {"not": {}}
        reason = "the document is neither an object nor a boolean"
    raise _invalid_schema(reason, resolved, subject, version)


def _invalid_schema(
    reason: str, resolved: ResolvedSchema, subject: str | None, version: int | None
) -> InvalidSchemaError:
    which = "the given schema" if resolved.id < 0 else named(subject, version, resolved.id)
    return InvalidSchemaError(
        f"{which} is not a valid JSON Schema: {reason}",
        subject=subject,
        version=version,
        schema_id=None if resolved.id < 0 else resolved.id,
    )


def _jsonschema() -> Any:
    try:
        import jsonschema_rs
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "JSON Schema validation needs jsonschema-rs, which is not installed: pip install 'headrace[schemas]', or "
            "pass validate=False"
        ) from None
    return jsonschema_rs


#: Maximum number of bytes that the compiled regular expressions of one schema may take together. A schema comes from
#: a client of the registry; compiling 128 MiB takes about two seconds.
PATTERN_BYTES_MAX = 128 * 1024 * 1024
#: Maximum number of bytes of one compiled regular expression, the default of the engine.
_PATTERN_BYTES_EACH = 10 * 1024 * 1024
#: Maximum number of steps back that a search for a look-ahead or a back reference takes, about 60 ms. Beyond it the
#: value counts as a mismatch.
BACKTRACKS_MAX = 1_000_000

#: End of the library's message for an expression that is wrong, or too large.
_NO_REGEX = 'is not a "regex"'

#: The base URI that jsonschema-rs gives to a schema without $id.
_BASE = "json-schema:///"


def _validator(resolved: ResolvedSchema, subject: str | None, version: int | None) -> Validate:
    """The validator of a schema. References are looked up by name in the schema's own list, never over the network.
    Patterns run in linear time; those with look-around or back references, which linear engines lack, with at most
    BACKTRACKS_MAX. Raises InvalidSchemaError, also for expressions that take too much memory."""
    library = _jsonschema()
    document = parsed_json(resolved, subject, version)
    identity = document.get("$id")
    base = identity if isinstance(identity, str) else _BASE
    known: dict[str, Any] = {}
    patterns = _patterns(document)
    for name, schema in resolved.references.items():
        referred = _document(schema.text, resolved, subject, version)
        patterns |= _patterns(referred)
        for uri in (name, urljoin(base, name), _BASE + name):
            known[uri] = referred

    def retrieve(uri: str) -> Any:
        found = known.get(uri)
        if found is None:
            raise ValueError(f"{uri} is not a reference of the schema")
        return found

    limit = min(_PATTERN_BYTES_EACH, PATTERN_BYTES_MAX // max(len(patterns), 1))
    options = library.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX, size_limit=limit)
    try:
        compiled = library.validator_for(document, retriever=retrieve, pattern_options=options)
    except (library.ValidationError, library.ReferencingError, ValueError) as error:
        wrong = str(error).partition("\n")[0]
        if wrong.endswith(_NO_REGEX) and r"\k<" in wrong:
            wrong += r": named back references (\k<name>) are not supported; use a number such as \1"
        elif wrong.endswith(_NO_REGEX):
            wrong += f" that compiles to at most {limit} bytes (the schema has {counted(len(patterns), 'expression')})"
        raise _invalid_schema(wrong, resolved, subject, version) from None

    def validate(value: Any) -> tuple[str, str] | None:
        if compiled.is_valid(value):
            return None
        error = next(iter(compiled.iter_errors(value)))
        return _path(error.instance_path), error.message

    return validate


def _patterns(document: Any) -> set[str]:
    """The regular expressions of a schema; each is compiled once."""
    found: set[str] = set()
    left = [document]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            pattern, properties = each.get("pattern"), each.get("patternProperties")
            if isinstance(pattern, str):
                found.add(pattern)
            if isinstance(properties, dict):
                found.update(properties)
            left += each.values()
        elif isinstance(each, list):
            left += each
    return found


def _path(parts: Any) -> str:
    text = ""
    for each in parts:
        text += f"[{each}]" if isinstance(each, int) else f".{each}" if text else str(each)
    return text
