"""Errors of schemas, serializers and the registry's client. Each error is a SerializationError. An error that a
producer or consumer raises names the topic and the field (key or value)."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import SerializationError


class SchemaError(SerializationError):
    """Base of all errors about schemas.

    ``subject``, ``version`` and ``schema_id`` name the schema, as far as they are known. ``path`` is the field within
    the value or the schema, such as ``customer.address[2].zip`` ("" for the whole)."""

    code = "SCHEMA_ERROR"

    def __init__(
        self,
        message: str = "",
        *,
        subject: str | None = None,
        version: int | None = None,
        schema_id: int | None = None,
        path: str = "",
        topic: str | None = None,
        field: str | None = None,
        record: Any = None,
    ) -> None:
        super().__init__(message, topic=topic, field=field, record=record)
        self.subject, self.version, self.schema_id, self.path = subject, version, schema_id, path


class WrongMagicByteError(SchemaError):
    """The data does not begin with the magic byte 0 and a schema id: it was not written by a schema serializer."""

    code = "WRONG_MAGIC_BYTE"


class CorruptValueError(SchemaError):
    """The data after the schema id is not a valid value of the schema with that id."""

    code = "CORRUPT_VALUE"


class InvalidValueError(SchemaError):
    """The value does not match its schema; ``path`` names the field."""

    code = "INVALID_VALUE"


class InvalidSchemaError(SchemaError):
    """The text is not a valid schema of its type."""

    code = "INVALID_SCHEMA"


class UnknownSchemaIdError(SchemaError):
    """The registry has no schema with this id."""

    code = "UNKNOWN_SCHEMA_ID"


class SchemaNotFoundError(SchemaError):
    """The registry does not have the subject, the version, or this schema under the subject."""

    code = "SCHEMA_NOT_FOUND"


class IncompatibleSchemaError(SchemaError):
    """Two schemas are incompatible.

    A new version breaks the subject's compatibility level, or a reader's schema cannot read what the writer's schema
    wrote. ``reasons`` describes each mismatch."""

    code = "INCOMPATIBLE_SCHEMA"

    def __init__(self, message: str = "", *, reasons: tuple[str, ...] = (), **more: Any) -> None:
        super().__init__(message, **more)
        self.reasons = reasons


class RegistryUnavailableError(SchemaError):
    """No URL of the schema registry answered; the message names each URL with its cause."""

    code, retriable = "REGISTRY_UNAVAILABLE", True


class RegistryRefusedError(SchemaError):
    """The registry refused the request.

    ``status``: the HTTP status; ``error_code``: the registry's own code, such as 42205 (the subject is in read-only
    mode), or 0."""

    code = "REGISTRY_REFUSED"

    def __init__(self, message: str = "", *, status: int = 0, error_code: int = 0, **more: Any) -> None:
        super().__init__(message, **more)
        self.status, self.error_code = status, error_code
