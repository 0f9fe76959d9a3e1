"""Values that the registry's client takes and returns."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class SchemaType(enum.StrEnum):
    """The registry's ``schemaType``."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


class Compatibility(enum.StrEnum):
    """A compatibility level of a subject: which changes its new versions may make."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class Mode(enum.StrEnum):
    """A mode of a subject: whether it takes new versions."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference of a schema to another schema. ``name`` is the name within the schema (Avro: a full name; Protobuf:
    an import; JSON: a ``$ref``). ``subject`` and ``version`` identify the other schema in the registry."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema's text, its type and its references."""

    text: str
    type: SchemaType = SchemaType.AVRO
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a subject. ``id`` is in the first bytes of each value that is written with the schema."""

    subject: str
    version: int
    id: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class ResolvedSchema:
    """A schema by its id. ``references``: {name: schema} for all references, including references of references; a
    schema stands after the schemas that it needs itself. ``uses``: (subject, version) of each version with this schema
    that the registry reports."""

    id: int
    schema: Schema
    references: Mapping[str, Schema] = field(default_factory=dict)
    uses: tuple[tuple[str, int], ...] = ()

    def version_in(self, subject: str | None) -> int | None:
        """The latest version of the subject that has this schema."""
        return max((version for name, version in self.uses if name == subject), default=None)
