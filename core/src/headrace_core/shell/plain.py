"""Convert metadata values for JSON: ids to text, structs and tables to objects."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from ..metadata.records import ScramCredentialRecord
from ..node.ids import ID_BYTES, id_to_text

#: Fields that are never shown, as in Kafka's shell: they are enough to search for a password, or to act as the server.
_HIDDEN: dict[type, tuple[str, ...]] = {ScramCredentialRecord: ("salt", "stored_key", "server_key")}


def plain(value: Any) -> Any:
    """Convert ``value`` to dicts, lists, text and numbers. 16 bytes are shown as an id, any other bytes as
    hexadecimal. The keys of a user's credential are hidden."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return id_to_text(value) if len(value) == ID_BYTES else value.hex()
    if isinstance(value, msgspec.Struct):
        hidden = _HIDDEN.get(type(value), ())
        return {name: "[hidden]" if name in hidden else plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key_text(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]


def key_text(key: Any) -> str:
    """Convert a table's key to a name: ``(topic id, 3)`` becomes ``JEXY6aqzQY-32P5TStzaFg-3``."""
    parts = key if isinstance(key, tuple) else (key,)
    return "-".join(str(plain(part)) for part in parts)
