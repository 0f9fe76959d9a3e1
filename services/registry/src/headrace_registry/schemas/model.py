"""The common parts of schemas in all languages: a text, references, limits, and the error of an invalid schema.

A :class:`Schema` is what a client sends and what the topic ``_schemas`` stores. A :class:`Parsed` is the result of a
parser of this package. Two schemas are the same schema when their types, canonical texts and references are equal; the
registry compares their ``metadata`` and ``ruleSet`` too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from headrace_core.errors import HeadraceError

#: Maximum size of a schema's text, in UTF-8 bytes.
SCHEMA_BYTES_MAX = 1 << 20
#: Maximum nesting depth of braces and brackets in a schema's text.
DEPTH_MAX = 128
#: Maximum number of schemas that one schema may reference, directly and through other references.
REFERENCES_MAX = 1000
#: Maximum size of a schema together with all schemas that it references, in characters.
RESOLVED_CHARACTERS_MAX = 8 << 20
#: Maximum number of characters of all full names (in JSON Schema: of all URIs) that a parser makes for one schema. A
#: full name repeats its namespace, so one long namespace can make gigabytes of names from a megabyte of text.
NAMES_CHARACTERS_MAX = 64 << 20
#: Maximum number of steps of the check of a schema's defaults. Nested defaults of records can double the steps with
#: each level.
DEFAULT_STEPS_MAX = 200_000

#: Maximum number of characters in an error message.
MESSAGE_MAX = 1000


class InvalidSchemaError(HeadraceError):
    """The text of a schema is invalid in its language, or is above a limit.

    If the fault has a place in the text, the error message names the place."""

    code = "INVALID_SCHEMA"

    def __init__(self, message: str) -> None:
        """Keep only the start of a long message, because the names in a schema can have a megabyte."""
        super().__init__(message if len(message) <= MESSAGE_MAX else f"{message[:MESSAGE_MAX]}…")


class SchemaType(StrEnum):
    """The language of a schema: Confluent's ``schemaType``. A schema without a type is an Avro schema."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a version of another subject, under the name by which the schema's text uses that version.

    The name is a full name in Avro, a path of an import in Protobuf, and a URI in JSON Schema.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a client sends it: its language, its text and its references."""

    type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()


class Names:
    """Counts the characters of the full names that a parser makes for one schema, and for the schemas that it
    references."""

    def __init__(self) -> None:
        self.kept = 0  #: Number of characters of the names of definitions, which the parsed schema keeps.
        self._left = NAMES_CHARACTERS_MAX

    def define(self, characters: int) -> None:
        """Count the full name of a definition. Raise InvalidSchemaError."""
        self.kept += characters
        self.look_up(characters)

    def look_up(self, characters: int) -> None:
        """Count the names that the search for a definition compares. Raise InvalidSchemaError."""
        self._left -= characters
        if self._left < 0:
            raise InvalidSchemaError(
                f"the full names of the schema have more than {NAMES_CHARACTERS_MAX} characters together; use a "
                "shorter namespace, package or $id"
            )


class Parsed:
    """A parsed schema. The subclasses add what the checks of compatibility need. ``kept_characters``: approximate size
    of what the parsed schema keeps in addition to the texts."""

    type: ClassVar[SchemaType]
    kept_characters = 0

    def __init__(self, schema: Schema, canonical: str) -> None:
        """``canonical`` is Confluent's ``canonicalString()`` of the schema."""
        check_unicode(canonical)
        self.schema = schema
        self.canonical = canonical

    @cached_property
    def normalized(self) -> str:
        """The text under ``normalize=true``: the same text for all schemas that differ only in order and spelling."""
        raise NotImplementedError

    def formatted(self, form: str) -> str:
        """The schema in a format of Confluent's query parameter ``format``. An unknown format means the canonical
        text."""
        return self.canonical

    @property
    def references(self) -> tuple[Reference, ...]:
        """The references of the schema, in the order in which the client sent them."""
        return self.schema.references

    @property
    def normalized_references(self) -> tuple[Reference, ...]:
        """The references under ``normalize=true``: sorted by subject and version, without duplicates."""
        return tuple(sorted(dict.fromkeys(self.schema.references), key=lambda one: (one.subject, one.version)))


def check_unicode(text: str) -> None:
    """Raise InvalidSchemaError for a text that UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError(
            f"the schema has half of a surrogate pair, \\u{ord(text[error.start]):04x}, which is not a character; "
            "write the whole character"
        ) from None


def check_size(schema: Schema) -> None:
    """Raise InvalidSchemaError when the text of a schema is too long."""
    size = len(schema.text)
    if size <= SCHEMA_BYTES_MAX:
        check_unicode(schema.text)
        size = len(schema.text.encode())
    if size > SCHEMA_BYTES_MAX:
        raise InvalidSchemaError(
            f"the schema has at least {size} bytes, the limit is {SCHEMA_BYTES_MAX}; split the schema and use "
            "references"
        )


def in_order(schema: Schema, resolved: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """Yield the name and the schema of each reference of ``schema``, direct and transitive, dependencies first.

    Raise InvalidSchemaError for a name that ``resolved`` lacks, for a schema of another language and for a cycle.
    InvalidSchemaError also reports too many schemas, and schemas that are too long.
    """
    done: set[str] = set()
    open_names: dict[str, None] = {}  # the names from the schema to the place of the search, in order
    size = len(schema.text)
    stack: list[tuple[str | None, Iterator[Reference]]] = [(None, iter(schema.references))]
    while stack:
        name, rest = stack[-1]
        reference = next(rest, None)
        if reference is None:
            stack.pop()
            if name is not None:
                del open_names[name]
                done.add(name)
                yield name, resolved[name]
            continue
        if reference.name in done:
            continue
        if reference.name in open_names:
            cycle = " -> ".join([*open_names, reference.name])
            raise InvalidSchemaError(f"the references of the schema form a cycle: {cycle}; remove one of them")
        found = resolved.get(reference.name)
        if found is None:
            raise InvalidSchemaError(
                f'no schema for the reference "{reference.name}" (subject "{reference.subject}", version '
                f"{reference.version}); register that version first"
            )
        if found.type is not schema.type:
            raise InvalidSchemaError(
                f'the reference "{reference.name}" names a schema of type {found.type}, and a schema of type '
                f"{schema.type} can reference only its own type"
            )
        size += len(found.text)
        if len(done) + len(open_names) >= REFERENCES_MAX or size > RESOLVED_CHARACTERS_MAX:
            raise InvalidSchemaError(
                f"the schema references too much: the limits are {REFERENCES_MAX} schemas and "
                f"{RESOLVED_CHARACTERS_MAX} characters in all; reference fewer schemas"
            )
        open_names[reference.name] = None
        stack.append((reference.name, iter(found.references)))
