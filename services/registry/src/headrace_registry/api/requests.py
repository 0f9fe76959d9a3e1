"""Translate the path, query and body of a request into values of the state machine. Raises RegistryError."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ..compat import Level
from ..schemas import Reference, Schema, SchemaType
from ..schemas.model import REFERENCES_MAX
from ..state import LATEST, Config, Mode, Submission, errors
from ..state.parsing import shown_references
from ..state.records import INT_MAX
from .http import PlainError

#: Maximum number of characters in a subject's name.
SUBJECT_MAX = 1024
#: Subject names that Confluent's registry reserves.
_RESERVED = ("__GLOBAL", "__EMPTY")
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: Fields of Confluent's settings that this registry does not serve.
_UNSUPPORTED_SETTINGS = (
    "alias",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


# --- path and query --------------------------------------------------------------------------------------------------


def check_context(request: web.Request) -> None:
    """Check that the path names the default context. Raises RegistryError 42208."""
    context = request.match_info["context"]
    if context not in (".", ":.:"):
        raise _unknown_context(context)


def subject_of(request: web.Request) -> str:
    """The subject in the path, without the default context ``:.:``."""
    return without_context(request.match_info["subject"])


def without_context(subject: str) -> str:
    if len(subject) > SUBJECT_MAX:
        raise errors.invalid_subject(subject)
    if subject.startswith(":.:"):
        return subject[3:]
    if subject.startswith((":.", ":*:")):
        raise _unknown_context(subject)
    return subject


def checked_subject(request: web.Request) -> str:
    """The subject in the path, for a request that may create it."""
    raw = request.match_info["subject"]
    subject = subject_of(request)
    if _CONTROL.search(raw) or subject in _RESERVED:
        raise errors.invalid_subject(raw)
    return subject


def prefix_of(request: web.Request) -> str | None:
    """The ``subjectPrefix`` of the query without the default context; None if it names another context."""
    prefix = request.query.get("subjectPrefix", "")
    for default in (":*:", ":.:"):
        if prefix.startswith(default):
            return prefix[len(default) :]
    return None if prefix.startswith(":.") else prefix


def version_of(request: web.Request) -> int:
    """The version in the path. LATEST stands for the word ``latest`` and for -1."""
    raw = request.match_info["version"]
    word = raw.strip().lower()
    if word == "latest":
        return LATEST
    if _NUMBER.fullmatch(word) is None or abs(int(word)) > INT_MAX:
        raise errors.invalid_version(raw)
    number = int(word)
    if number <= 0 and number != LATEST:
        raise errors.invalid_version(str(number))
    return number


def id_of(request: web.Request) -> int:
    """The id in the path. As in Jersey, an id that is not a number counts as not found."""
    return _number(request.match_info["id"])


def flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def page(request: web.Request, default: int, most: int) -> tuple[int, int]:
    """The offset and the limit in the query of a request for a list. A limit that is not positive, or above ``most``,
    is replaced by ``default``."""
    offset = _number(request.query.get("offset", "0"))
    limit = _number(request.query.get("limit", "-1"))
    return max(offset, 0), limit if 0 < limit <= most else default


def _number(raw: str) -> int:
    if _NUMBER.fullmatch(raw) is None or abs(int(raw)) > INT_MAX:
        raise PlainError(404)
    return int(raw)


def _unknown_context(name: str) -> errors.RegistryError:
    found = errors.invalid_subject(name)
    found.message += " This registry has only the default context."
    return found


# --- bodies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """``sent``: the fields of the request that the registry knows, which the answer repeats."""

    config: Config
    sent: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModeRequest:
    mode: Mode
    sent: dict[str, Any]


def fields_of(data: bytes) -> dict[str, Any]:
    """Decode the JSON object in a body."""
    if not data.strip():
        raise PlainError(422, "The body of the request must not be null")
    try:
        found = json.loads(data.decode())
    except RecursionError:
        raise PlainError(400, "The body of the request is nested too deeply") from None
    except ValueError as error:
        raise PlainError(400, f"The body of the request is not valid JSON: {error}") from None
    if found is None:
        raise PlainError(422, "The body of the request must not be null")
    if not isinstance(found, dict):
        raise PlainError(400, "The body of the request is not a JSON object")
    return found


def submission_of(subject: str, fields: Mapping[str, Any]) -> Submission:
    """The schema in a body: the fields ``schema``, ``schemaType``, ``references``, ``version`` and ``id``."""
    for name, code in (
        ("metadata", 42201),
        ("ruleSet", 42210),
        ("schemaTagsToAdd", 42201),
        ("schemaTagsToRemove", 42201),
    ):
        if fields.get(name):
            raise errors.unsupported(code, f'the field "{name}" of schemas')
    type_name = _text(fields, "schemaType") or SchemaType.AVRO
    try:
        type_ = SchemaType(type_name)
    except ValueError:
        raise errors.invalid_schema(f"Invalid schema type {type_name}") from None
    schema = Schema(type_, _text(fields, "schema") or "", _references(fields))
    version, schema_id = _integer(fields, "version"), _integer(fields, "id")
    # As in Confluent's registry, any negative id means that the client names no id.
    return Submission(subject, schema, version or 0, -1 if schema_id is None else max(schema_id, -1))


def config_of(fields: Mapping[str, Any]) -> ConfigRequest:
    for name in _UNSUPPORTED_SETTINGS:
        if fields.get(name):
            raise errors.unsupported(422, f'the setting "{name}"')
    level_name = _text(fields, "compatibility")
    try:
        level = None if level_name is None else Level(level_name.upper())
    except ValueError:
        raise errors.invalid_compatibility_level() from None
    config = Config(_boolean(fields, "normalize"), _boolean(fields, "validateFields"), level)
    sent = config.fields("compatibility")
    if level_name is not None:
        sent["compatibility"] = level_name
    return ConfigRequest(config, sent)


def mode_of(fields: Mapping[str, Any]) -> ModeRequest:
    name = _text(fields, "mode")
    try:
        return ModeRequest(Mode((name or "").upper()), {"mode": name})
    except ValueError:
        raise errors.invalid_mode() from None


def _references(fields: Mapping[str, Any]) -> tuple[Reference, ...]:
    listed = fields.get("references") or []
    if not isinstance(listed, list):
        raise PlainError(400, 'The field "references" is not a list')
    if len(listed) > REFERENCES_MAX:
        raise errors.invalid_schema(f"The schema has more than {REFERENCES_MAX} references; reference fewer schemas")
    return tuple(_reference(each) for each in listed)


def _reference(value: object) -> Reference:
    if not isinstance(value, dict):
        raise PlainError(400, 'An item of the field "references" is not an object')
    name, subject, version = _text(value, "name"), _text(value, "subject"), _integer(value, "version")
    if name is None or subject is None or version is None:
        words = [f"'{each}'" if each is not None else "null" for each in (name, subject)]
        shown = f"{{name={words[0]}, subject={words[1]}, version={'null' if version is None else version}}}"
        raise errors.invalid_schema(f"Invalid reference: {shown}")
    found = Reference(name, without_context(subject), version)
    if version <= 0 and version != LATEST:
        raise errors.invalid_schema(f"Invalid reference: {shown_references((found,))}")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise PlainError(400, f'The field "{name}" is not a string')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PlainError(400, f'The field "{name}" has half of a surrogate pair; write the whole character') from None
    return value


def _boolean(fields: Mapping[str, Any], name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise PlainError(400, f'The field "{name}" is not a boolean')
    return value


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > INT_MAX:
        raise PlainError(400, f'The field "{name}" is not an integer from {-INT_MAX} to {INT_MAX}')
    return value
