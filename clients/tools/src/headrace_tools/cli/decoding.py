"""``consume -r``: keys and values decoded by a schema registry, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from headrace_core.exact_json import Number

from .kcat import Decoded

if TYPE_CHECKING:
    from headrace.schemas import RegistryDeserializer

#: kcat's names for the format; each means the schema type that the registry has for the id.
_FORMATS: Final = ("registry", "avro", "protobuf", "json")


def decoders(formats: list[str] | None, registry: str | None) -> dict[str, Any]:
    """The deserializers of a consumer's configuration for -s and -r; empty without these flags."""
    if not formats and registry is None:
        return {}
    from headrace.schemas import RegistryDeserializer, SchemaRegistry

    from .output import usage_of

    fields = {field: True for text in formats or () for field in _fields(text)} or {"key": False, "value": False}
    with usage_of("-r"):
        client = SchemaRegistry(registry)
    return {
        f"{field}.deserializer": RegistryDecoder(
            RegistryDeserializer(client, is_key=field == "key", number=Number), is_strict
        )
        for field, is_strict in fields.items()
    }


def _fields(text: str) -> list[str]:
    """The fields (key, value) that one option -s selects. Raises a usage error for an invalid option."""
    field, equals, kind = text.rpartition("=")
    if kind not in _FORMATS or (equals and field not in ("key", "value")):
        raise typer.BadParameter(
            f"{text!r}: must be registry (or avro, protobuf, json), key=registry or value=registry", param_hint="-s"
        )
    return [field] if equals else ["key", "value"]


class RegistryDecoder:
    """A consumer's deserializer, whose results are printed as JSON. ``is_strict``: False returns data unchanged if they
    have no schema id, or an id that the registry does not know."""

    def __init__(self, inner: RegistryDeserializer, is_strict: bool) -> None:
        self._inner, self._is_strict = inner, is_strict

    def deserialize(self, topic: str, data: bytes) -> bytes:
        return self._decoded(self._inner.deserialize, topic, data)

    def deserialize_nowait(self, topic: str, data: bytes) -> bytes:
        return self._decoded(self._inner.deserialize_nowait, topic, data)

    def _decoded(self, deserialize: Any, topic: str, data: bytes) -> bytes:
        from headrace.schemas import UnknownSchemaIdError, WrongMagicByteError, plain, wire

        try:
            return Decoded.of(plain(deserialize(topic, data)), wire.schema_id(data))
        except (UnknownSchemaIdError, WrongMagicByteError):
            if self._is_strict:
                raise
            return data
