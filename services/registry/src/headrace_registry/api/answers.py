"""The JSON values of Confluent's answers, with their fields in Confluent's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..state import StoredSchema, Version
from ..state.records import schema_fields


def version(found: Version, text: str | None = None) -> dict[str, Any]:
    """The answer for a version of a subject. ``text``: the schema's text in another format; None for the stored
    text."""
    stored = found.stored
    return {
        "subject": found.subject,
        "version": found.number,
        "id": stored.id,
        **schema_fields(stored.schema.type, stored.schema.references, stored.extras),
        "schema": stored.schema.text if text is None else text,
    }


def schema(found: StoredSchema, text: str, max_id: int | None) -> dict[str, Any]:
    """The answer for a schema id. The field ``schema`` precedes ``references``; in the answer for a version, ``schema``
    follows ``references``."""
    fields = schema_fields(found.schema.type, found.schema.references, found.extras)
    answer: dict[str, Any] = {"schemaType": fields.pop("schemaType")} if "schemaType" in fields else {}
    answer |= {"schema": text, **fields}
    if max_id is not None:
        answer["maxId"] = max_id
    return answer


def subject_version(found: Version) -> dict[str, Any]:
    return {"subject": found.subject, "version": found.number}


def compatibility(messages: Sequence[str], *, verbose: bool) -> dict[str, Any]:
    return {"is_compatible": not messages} | ({"messages": list(messages)} if verbose else {})
