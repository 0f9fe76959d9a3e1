"""The records of the topic ``_schemas``, in the JSON that Confluent's Schema Registry writes and reads.

    key                                                             value
    {"keytype":"SCHEMA","subject":S,"version":V,"magic":1}          {"subject":S,"version":V,"id":I,["schemaType":T,]
                                                                     ["references":[...],]"schema":TEXT,"deleted":B}
    {"keytype":"CONFIG","subject":S,"magic":0}                      {"subject":S,...,"compatibilityLevel":L}
    {"keytype":"MODE","subject":S,"magic":0}                        {"subject":S,"mode":M}
    {"keytype":"DELETE_SUBJECT","subject":S,"magic":0}              {"subject":S,"version":V}: versions up to V
    {"keytype":"CLEAR_SUBJECT","subject":S,"magic":0}               {"subject":S}: forget the soft-deleted versions
    {"keytype":"NOOP","magic":0}                                    ignored
    {"keytype":"NOOP","magic":0,"of":"maxId"}                       {"maxId":I}: no new schema may have an id up to I

A null value deletes the entry that the key names, and has no effect for DELETE_SUBJECT, CLEAR_SUBJECT and NOOP. The
subject null stands for the whole registry. The topic is compacted, so the bytes of a key must always be the same: the
order of the fields is fixed. A schema without ``schemaType`` is an Avro schema. Headrace adds the record ``maxId``:
compaction removes permanently deleted schemas, and ``maxId`` prevents that their ids are assigned again. Confluent's
registry skips ``maxId`` as a NOOP.

Records of newer registries may have more fields; ``metadata`` and ``ruleSet`` of a schema are kept as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from ..compat import Level
from ..schemas import Reference, SchemaType

INT_MAX = 2**31 - 1

_Word = TypeVar("_Word", bound=StrEnum)


class UnreadableRecordError(Exception):
    """A record of ``_schemas`` that is not a record of a schema registry; the message says why.

    ``schema_id``: the id in the record of a schema, which no other schema may get; 0 if the record has none.
    """

    schema_id = 0


class Mode(StrEnum):
    """The mode of a subject or of the registry, which determines the accepted writes."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    #: A read-only mode of the whole registry, which overrides the mode of each subject.
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"  #: Each registration sets the id of its schema, and the registry does not check compatibility.


@dataclass(frozen=True, slots=True)
class SchemaKey:
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ConfigKey:
    subject: str | None


@dataclass(frozen=True, slots=True)
class ModeKey:
    subject: str | None


@dataclass(frozen=True, slots=True)
class DeleteSubjectKey:
    subject: str


@dataclass(frozen=True, slots=True)
class ClearSubjectKey:
    subject: str | None


@dataclass(frozen=True, slots=True)
class NoopKey:
    """``is_max_id``: whether the record's value is the highest assigned id."""

    is_max_id: bool = False


Key = SchemaKey | ConfigKey | ModeKey | DeleteSubjectKey | ClearSubjectKey | NoopKey


@dataclass(frozen=True, slots=True)
class SchemaValue:
    """``extras`` is the JSON of the fields ``metadata`` and ``ruleSet``, empty if the schema has none."""

    subject: str
    version: int
    id: int
    type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    extras: str = ""
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a subject or of the whole registry; None means not set."""

    normalize: bool | None = None
    validate_fields: bool | None = None
    level: Level | None = None

    def updated(self, other: Config) -> Config:
        """Return a copy in which the settings of ``other`` replace those of this configuration."""
        return Config(
            normalize=self.normalize if other.normalize is None else other.normalize,
            validate_fields=self.validate_fields if other.validate_fields is None else other.validate_fields,
            level=self.level if other.level is None else other.level,
        )

    def fields(self, level_name: str = "compatibilityLevel") -> dict[str, Any]:
        """The fields that are set, in Confluent's order. ``level_name``: a PUT calls the level ``compatibility``."""
        found = {"normalize": self.normalize, "validateFields": self.validate_fields, level_name: self.level}
        return {name: value for name, value in found.items() if value is not None}


# --- writing ---------------------------------------------------------------------------------------------------------


def dump(value: object) -> bytes:
    """Encode a value as Jackson does: UTF-8, no spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def encode_key(key: Key) -> bytes:
    match key:
        case SchemaKey(subject, version):
            return dump({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})
        case ConfigKey(subject):
            return dump({"keytype": "CONFIG", "subject": subject, "magic": 0})
        case ModeKey(subject):
            return dump({"keytype": "MODE", "subject": subject, "magic": 0})
        case DeleteSubjectKey(subject):
            return dump({"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0})
        case ClearSubjectKey(subject):
            return dump({"keytype": "CLEAR_SUBJECT", "subject": subject, "magic": 0})
        case NoopKey(is_max_id):
            return dump({"keytype": "NOOP", "magic": 0} | ({"of": "maxId"} if is_max_id else {}))


def encode_schema(value: SchemaValue) -> bytes:
    fields: dict[str, Any] = {"subject": value.subject, "version": value.version, "id": value.id}
    fields |= schema_fields(value.type, value.references, value.extras)
    return dump(fields | {"schema": value.text, "deleted": value.is_deleted})


def schema_fields(type_: SchemaType, references: tuple[Reference, ...], extras: str) -> dict[str, Any]:
    """The fields of a schema that a plain Avro schema does not have, in Confluent's order."""
    fields: dict[str, Any] = {}
    if type_ is not SchemaType.AVRO:
        fields["schemaType"] = type_
    if references:
        fields["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in references
        ]
    if extras:
        fields |= json.loads(extras)
    return fields


def encode_config(subject: str | None, config: Config) -> bytes:
    return dump(_of_subject(subject) | config.fields())


def encode_mode(subject: str | None, mode: Mode) -> bytes:
    return dump(_of_subject(subject) | {"mode": mode})


def encode_delete_subject(subject: str, version: int) -> bytes:
    return dump({"subject": subject, "version": version})


def encode_clear_subject(subject: str | None) -> bytes:
    return dump(_of_subject(subject))


def encode_max_id(max_id: int) -> bytes:
    return dump({"maxId": max_id})


def _of_subject(subject: str | None) -> dict[str, Any]:
    return {} if subject is None else {"subject": subject}


# --- reading ---------------------------------------------------------------------------------------------------------


def decode_key(data: bytes | None) -> Key | None:
    """The key of a record; None for a kind that a newer registry writes. Raises UnreadableRecordError."""
    if data is None:
        raise UnreadableRecordError("the record has no key")
    fields = _object(data, "key")
    kind = fields.get("keytype")
    magic = fields.get("magic")
    if kind == "SCHEMA":
        # Confluent's registries before 3.1 wrote the magic number 0, with the same fields.
        if magic not in (0, 1):
            raise UnreadableRecordError(f"a SCHEMA key has the magic number {magic!r}, expected 0 or 1")
        return SchemaKey(_text(fields, "subject"), _number(fields, "version", 1))
    if kind not in ("CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP"):
        return None
    if magic != 0:
        raise UnreadableRecordError(f"a {kind} key has the magic number {magic!r}, expected 0")
    match kind:
        case "CONFIG":
            return ConfigKey(_text_or_none(fields, "subject"))
        case "MODE":
            return ModeKey(_text_or_none(fields, "subject"))
        case "DELETE_SUBJECT":
            return DeleteSubjectKey(_text(fields, "subject"))
        case "CLEAR_SUBJECT":
            return ClearSubjectKey(_text_or_none(fields, "subject"))
    return NoopKey(fields.get("of") == "maxId")


def decode_schema(key: SchemaKey, data: bytes) -> SchemaValue:
    """Raises UnreadableRecordError. The key's subject and version are used; the value only repeats them."""
    fields = _object(data, "value")
    schema_id = _number(fields, "id", 0)
    try:
        return _schema(key, schema_id, fields)
    except UnreadableRecordError as error:
        error.schema_id = schema_id
        raise


def _schema(key: SchemaKey, schema_id: int, fields: Mapping[str, Any]) -> SchemaValue:
    listed = fields.get("references") or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise UnreadableRecordError('the field "references" of the schema is not a list of objects')
    extras = {name: fields[name] for name in ("metadata", "ruleSet") if fields.get(name) is not None}
    try:
        extras_text = dump(extras).decode() if extras else ""
    except (ValueError, RecursionError) as error:
        raise UnreadableRecordError(f'the field "metadata" or "ruleSet" cannot be encoded: {error}') from None
    return SchemaValue(
        subject=key.subject,
        version=key.version,
        id=schema_id,
        type=_word(SchemaType, fields.get("schemaType") or SchemaType.AVRO, "schemaType"),
        text=_text(fields, "schema"),
        references=tuple(
            Reference(_text(each, "name"), _text(each, "subject"), _number(each, "version", -1)) for each in listed
        ),
        extras=extras_text,
        is_deleted=_flag_or_none(fields, "deleted") or False,
    )


def decode_config(data: bytes) -> Config:
    """Raises UnreadableRecordError."""
    fields = _object(data, "value")
    level = fields.get("compatibilityLevel")
    return Config(
        normalize=_flag_or_none(fields, "normalize"),
        validate_fields=_flag_or_none(fields, "validateFields"),
        level=None if level is None else _word(Level, level, "compatibilityLevel"),
    )


def decode_mode(data: bytes) -> Mode:
    """Raises UnreadableRecordError."""
    return _word(Mode, _object(data, "value").get("mode"), "mode")


def decode_delete_subject(data: bytes) -> int:
    """The number of the last version that the record soft-deletes. Raises UnreadableRecordError."""
    return _number(_object(data, "value"), "version", 0)


def decode_max_id(data: bytes) -> int:
    """Raises UnreadableRecordError."""
    return _number(_object(data, "value"), "maxId", 0)


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecordError(f"the record's {what} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableRecordError(f"the record's {what} is not a JSON object")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise UnreadableRecordError(f'the field "{name}" is not a string')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnreadableRecordError(f'the field "{name}" has half of a surrogate pair') from None
    return value


def _text_or_none(fields: Mapping[str, Any], name: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, name)


def _flag_or_none(fields: Mapping[str, Any], name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise UnreadableRecordError(f'the field "{name}" is not a boolean')
    return value


def _number(fields: Mapping[str, Any], name: str, least: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= INT_MAX:
        raise UnreadableRecordError(f'the field "{name}" is not an integer from {least} to {INT_MAX}')
    return value


def _word(kind: type[_Word], value: Any, name: str) -> _Word:
    try:
        return kind(value)
    except ValueError:
        raise UnreadableRecordError(f'the field "{name}" has the unknown value {value!r}') from None
