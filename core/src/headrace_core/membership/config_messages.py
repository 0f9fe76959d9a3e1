"""Convert descriptions of configurations to protobuf messages, for DescribeConfigs in every role."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_protos.v1 import admin_pb2

from ..config import Kind
from ..metadata.configs import ConfigDescription

_TYPES = {
    Kind.BOOLEAN: admin_pb2.CONFIG_TYPE_BOOLEAN,
    Kind.INT: admin_pb2.CONFIG_TYPE_INT,
    Kind.LONG: admin_pb2.CONFIG_TYPE_LONG,
    Kind.DOUBLE: admin_pb2.CONFIG_TYPE_DOUBLE,
    Kind.STRING: admin_pb2.CONFIG_TYPE_STRING,
    Kind.LIST: admin_pb2.CONFIG_TYPE_LIST,
    Kind.PASSWORD: admin_pb2.CONFIG_TYPE_PASSWORD,
    Kind.CLASS: admin_pb2.CONFIG_TYPE_CLASS,
}


def config_entries(described: Iterable[ConfigDescription], *, include_synonyms: bool) -> list[admin_pb2.ConfigEntry]:
    """Build the entries of a DescribeConfigsResult."""
    return [
        admin_pb2.ConfigEntry(
            name=entry.name,
            value=entry.value,
            source=int(entry.source),  # type: ignore[arg-type]
            read_only=entry.read_only,
            documentation=entry.documentation,
            type=_TYPES[entry.kind],
            is_sensitive=entry.sensitive,
            allowed=entry.allowed,
            synonyms=[
                admin_pb2.ConfigSynonym(name=synonym.name, value=synonym.value, source=int(synonym.source))  # type: ignore[arg-type]
                for synonym in entry.synonyms
            ]
            if include_synonyms
            else (),
        )
        for entry in described
    ]
