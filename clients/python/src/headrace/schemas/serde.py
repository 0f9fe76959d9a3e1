"""The common part of all serializers and deserializers: the choice of a subject, the lookup of ids, the wire format's
header.

A serializer is an object for ``value.serializer`` and ``key.serializer``; a program may also call it directly.
``serialize`` may block on a registry request; ``serialize_nowait`` raises WouldWait instead of blocking
(``headrace.serializers``). ``serialize`` and ``serialize_nowait`` send a request only for the first value of a topic
and schema. With use.latest.version, the serializer also looks for a newer version after latest.cache.ttl.ms.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypedDict

from headrace_core.errors import InvalidConfigError

from . import wire
from .building import Build, builder
from .cache import Bounded
from .errors import InvalidSchemaError, InvalidValueError, SchemaError, SchemaNotFoundError
from .models import ResolvedSchema, Schema, SchemaType
from .registry import SchemaRegistry
from .settings import serializer_values


class SerializerSettings(TypedDict, total=False):
    """Keywords of every serializer."""

    auto_register_schemas: bool
    use_latest_version: bool
    use_schema_id: int | None
    normalize_schemas: bool
    subject_name_strategy: Any


class Chosen(NamedTuple):
    """The schema with which a serializer writes, and its subject and version in the registry."""

    id: int
    subject: str
    version: int | None
    resolved: ResolvedSchema


class Writing(NamedTuple):
    """The encoder that a serializer keeps for a schema: ``encode`` returns the complete bytes of a value. After the
    time ``until`` (monotonic, in seconds) the serializer chooses the schema again."""

    encode: Callable[[Any], bytes]
    chosen: Chosen
    until: float


class FieldBound:
    """Base of the serializers and deserializers: an object that a client uses for keys or for values."""

    _field: str

    def for_field(self, field: str) -> Self:
        """Return this object for keys ("key") or for values ("value"). A client calls this method with the field for
        which it uses the object."""
        if field == self._field:
            return self
        other = copy.copy(self)
        other._bind(field)
        return other

    def _bind(self, field: str) -> None:
        self._field = field


class SchemaSerializer(FieldBound):
    """Base of the serializers."""

    _type: ClassVar[SchemaType]

    def __init__(
        self,
        registry: SchemaRegistry,
        config: Mapping[str, Any] | None,
        settings: Mapping[str, Any],
        *,
        is_key: bool,
        to_dict: Callable[[Any], Any] | None,
    ) -> None:
        if not isinstance(registry, SchemaRegistry):
            raise InvalidConfigError(
                f"{type(self).__name__} needs a SchemaRegistry, not {registry!r:.80}: "
                "SchemaRegistry('http://HOST:8081')"
            )
        values = serializer_values(config, settings)
        self.registry = registry
        self._strategy = values["subject.name.strategy"]
        self._registers: bool = values["auto.register.schemas"]
        self._uses_latest: bool = values["use.latest.version"]
        self._schema_id: int | None = values["use.schema.id"]
        self._normalizes: bool = values["normalize.schemas"]
        self._to_dict = to_dict
        self._bind("key" if is_key else "value")

    def _bind(self, field: str) -> None:
        super()._bind(field)
        self._writings: Bounded[Any, Writing] = Bounded(self.registry.cache_capacity)

    def __call__(self, topic: str, value: Any) -> bytes | None:
        """Serialize a value for a topic; None stays None (a tombstone)."""
        return self._serialize(topic, value, True)

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Serialize a value for a topic; None stays None (a tombstone). Raises InvalidValueError, SchemaNotFoundError,
        IncompatibleSchemaError, RegistryUnavailableError, and other SchemaErrors."""
        return self._serialize(topic, value, True)

    def serialize_nowait(self, topic: str, value: Any) -> bytes | None:
        """Serialize like ``serialize``; raise WouldWait if the registry must be asked first."""
        return self._serialize(topic, value, False)

    def _serialize(self, topic: str, value: Any, may_wait: bool) -> bytes | None:
        raise NotImplementedError

    def _is_fresh(self, writing: Writing | None) -> bool:
        return writing is not None and (writing.until == math.inf or time.monotonic() < writing.until)

    def _until(self) -> float:
        return time.monotonic() + self.registry.latest_ttl_s if self._uses_latest else math.inf

    def _choose(
        self, topic: str, schema: Schema | None, record_name: str | None, *, may_wait: bool, serialized: bool = False
    ) -> Chosen:
        """The schema to write with. ``schema``: the caller's own schema, or None. ``serialized`` has the same meaning
        as in SchemaRegistry.resolved. Raises SchemaErrors; WouldWait."""
        subject = self._strategy(topic, self._field, record_name)
        if self._schema_id is not None:
            resolved = self.registry.resolved(self._schema_id, serialized=serialized, may_wait=may_wait)
            return self._of_type(Chosen(self._schema_id, subject, resolved.version_in(subject), resolved))
        if self._uses_latest:
            try:
                latest = self.registry.latest(subject, serialized=serialized, may_wait=may_wait)
            except SchemaNotFoundError as error:
                raise _with_cure(error, f"register one: `headrace schemas register {subject} FILE`") from None
            found = latest.registered
            return self._of_type(Chosen(found.id, subject, found.version, latest.resolved))
        assert schema is not None
        try:
            registered = self.registry.registered(
                subject, schema, normalize=self._normalizes, register=self._registers, may_wait=may_wait
            )
        except SchemaNotFoundError as error:
            raise _with_cure(
                error,
                f"register the schema (`headrace schemas register {subject} FILE`), or set auto.register.schemas=true "
                "or use.latest.version=true",
            ) from None
        resolved = self.registry.with_references(schema, may_wait=may_wait)
        return Chosen(registered.id, subject, registered.version, resolved)

    def _of_type(self, chosen: Chosen) -> Chosen:
        _check_type(chosen.resolved, self._type, type(self).__name__, chosen.subject)
        return chosen

    def _check_has_schema(self, schema: Schema | None, what: str) -> None:
        if schema is None and not self._uses_latest and self._schema_id is None:
            raise InvalidConfigError(f"{type(self).__name__} needs {what}, or use_latest_version=True")


class PlainValueSerializer(SchemaSerializer):
    """Base of the serializers whose schema follows from the topic alone. ``_mismatch``: the codec's error class for a
    value that does not match; the error has ``reason`` and ``path``. ``_joint``: the text between the place and the
    reason in a message."""

    _mismatch: ClassVar[type[Exception]]
    _joint: ClassVar[str] = " "

    def _serialize(self, topic: str, value: Any, may_wait: bool) -> bytes | None:
        if value is None:
            return None
        writing = self._writings.get(topic)
        if writing is None or not self._is_fresh(writing):
            writing = self._writing(topic, may_wait)
        if self._to_dict is not None:
            value = self._to_dict(value)
        try:
            return writing.encode(value)
        except self._mismatch as error:
            raise self._invalid(error, topic, writing.chosen) from error.__cause__

    def _writing(self, topic: str, may_wait: bool) -> Writing:
        """Choose the schema for a topic, and cache the choice in ``_writings``."""
        raise NotImplementedError

    def _invalid(self, error: Any, topic: str, chosen: Chosen) -> InvalidValueError:
        where = f"field {error.path}" if error.path else f"the {self._field}"
        return InvalidValueError(
            f"{where}{self._joint}{error.reason} (schema: {named(chosen.subject, chosen.version, chosen.id)})",
            subject=chosen.subject,
            version=chosen.version,
            schema_id=chosen.id,
            path=error.path,
            topic=topic,
            field=self._field,
        )


class SchemaDeserializer(FieldBound):
    """Base of the deserializers."""

    def __init__(self, registry: SchemaRegistry, *, is_key: bool, into: Any = None) -> None:
        if not isinstance(registry, SchemaRegistry):
            raise InvalidConfigError(
                f"{type(self).__name__} needs a SchemaRegistry, not {registry!r:.80}: "
                "SchemaRegistry('http://HOST:8081')"
            )
        self.registry = registry
        self._field = "key" if is_key else "value"
        self._into = into
        self._build = self._builder(into)

    def _builder(self, into: Any) -> Build | None:
        """The function that makes the caller's object from a decoded value. Raises InvalidConfigError."""
        return builder(into)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the functions of ``_build``, which cannot be pickled; they are created again."""
        return {name: value for name, value in vars(self).items() if name != "_build"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._build = self._builder(self._into)

    def __call__(self, topic: str, data: bytes | None) -> Any:
        """Deserialize a topic's value; None stays None."""
        return self._deserialize(topic, data, True)

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        """Deserialize a topic's value; None stays None. Raises WrongMagicByteError, UnknownSchemaIdError,
        CorruptValueError, IncompatibleSchemaError, RegistryUnavailableError, and other SchemaErrors."""
        return self._deserialize(topic, data, True)

    def deserialize_nowait(self, topic: str, data: bytes | None) -> Any:
        """Deserialize like ``deserialize``; raise WouldWait if the registry must be asked first."""
        return self._deserialize(topic, data, False)

    def _deserialize(self, topic: str, data: bytes | None, may_wait: bool) -> Any:
        raise NotImplementedError

    def _resolved(
        self, topic: str, data: bytes, wanted: SchemaType | None, *, may_wait: bool, serialized: bool = False
    ) -> ResolvedSchema:
        """The writer's schema of ``data``, by the schema id in ``data``. Raises WrongMagicByteError,
        UnknownSchemaIdError; WouldWait."""
        try:
            schema_id = wire.schema_id(data)
            resolved = self.registry.resolved(schema_id, serialized=serialized, may_wait=may_wait)
        except SchemaError as error:
            found = error.copy()
            found.subject, found.topic, found.field = f"{topic}-{self._field}", topic, self._field
            found.args = (f"cannot read a value of subject {found.subject!r}: {error.message}",)
            raise found from None
        if wanted is not None:
            _check_type(resolved, wanted, type(self).__name__, self._subject(topic, resolved))
        return resolved

    def _built(self, build: Build, value: Any, topic: str, resolved: ResolvedSchema) -> Any:
        """Build the caller's object from a decoded value. Raises InvalidValueError."""
        try:
            return build(value)
        except Exception as error:
            place = self._place(topic, resolved)
            raise InvalidValueError(
                "the callable of into= failed for a value of "
                f"{named(place['subject'], place['version'], resolved.id)}: {type(error).__name__}: {error}",
                **place,
            ) from error

    def _subject(self, topic: str, resolved: ResolvedSchema) -> str:
        """The subject to name in errors: the topic's own subject if it has the schema, otherwise another subject that
        has it."""
        own = f"{topic}-{self._field}"
        names = [name for name, _ in resolved.uses]
        return own if own in names or not names else names[0]

    def _place(self, topic: str, resolved: ResolvedSchema) -> dict[str, Any]:
        """The attributes of an error about data that was written with this schema."""
        subject = self._subject(topic, resolved)
        return {
            "subject": subject,
            "version": resolved.version_in(subject),
            "schema_id": resolved.id,
            "topic": topic,
            "field": self._field,
        }


def _check_type(resolved: ResolvedSchema, wanted: SchemaType, who: str, subject: str) -> None:
    found = resolved.schema.type
    if found is not wanted:
        raise InvalidSchemaError(
            f"the schema with id {resolved.id} (subject {subject!r}) is of type {found}, and {who} needs {wanted}; use "
            "the class for its type",
            subject=subject,
            version=resolved.version_in(subject),
            schema_id=resolved.id,
        )


def _with_cure(error: SchemaNotFoundError, cure: str) -> SchemaNotFoundError:
    changed = error.copy()
    changed.args = (f"{error.message}; {cure}",)
    return changed


def named(subject: str | None, version: int | None, schema_id: int) -> str:
    """The name of a schema in the text of an error: ``orders-value version 3 (id 17)``."""
    number = "" if version is None else f" version {version}"
    return f"{subject}{number} (id {schema_id})" if subject else f"the schema with id {schema_id}"


def given_schema(schema: Any, kind: SchemaType) -> Schema | None:
    """The schema in the argument of a serializer: text, a JSON document, or a Schema. Raises InvalidConfigError."""
    if schema is None:
        return None
    if isinstance(schema, Schema):
        if schema.type is not kind:
            raise InvalidConfigError(f"schema: is of type {schema.type}, and must be of type {kind}")
        return schema
    if isinstance(schema, str):
        return Schema(schema, kind)
    if isinstance(schema, Mapping | list):
        try:
            return Schema(json.dumps(schema), kind)
        except (TypeError, ValueError) as error:
            raise InvalidConfigError(f"schema: cannot be written as JSON: {error}") from None
    raise InvalidConfigError(f"schema={schema!r:.80}: must be a text, a dict, or a Schema")
