"""Schemas in the three languages of Confluent's registry: parsing, limits, and the rule that decides when two texts
are the same schema.

The package is pure: it opens no file and no connection. A text comes from a client, so each parser has limits. A parser
refuses a text that is too long, nested too deeply or too costly, with an :class:`InvalidSchemaError`.

================ =====================================================================================================
module           content
================ =====================================================================================================
``model``        Schema, Reference, Parsed, the limits
``json_text``    JSON in and out, as Jackson reads and writes it
``avro``         Avro, as Avro's Java implementation understands it
``json_schema``  JSON Schema of drafts 4 to 2020-12, in the model of the Java library everit
``protobuf``     Protobuf: .proto files and serialized FileDescriptorProtos
================ =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_registry.schemas import avro, json_schema
from headrace_registry.schemas.model import InvalidSchemaError, Parsed, Reference, Schema, SchemaType
from headrace_registry.schemas.protobuf import schema as protobuf

__all__ = ["InvalidSchemaError", "Parsed", "Reference", "Schema", "SchemaType", "parse"]


def parse(schema: Schema, resolved: Mapping[str, Schema], *, is_new: bool = True) -> Parsed:
    """Parse a schema. ``resolved`` has the schema of each name in its references, direct or transitive.

    ``is_new=False`` is for a schema that the registry has stored. With ``is_new=False``, the parser does not check the
    defaults of Avro fields, because old versions of Confluent's registry stored invalid defaults. The parser does not
    check the rules of ``protobuf/rules.py`` either. Raise InvalidSchemaError.
    """
    match schema.type:
        case SchemaType.AVRO:
            return avro.parse(schema, resolved, check_defaults=is_new)
        case SchemaType.JSON:
            return json_schema.parse(schema, resolved)
        case SchemaType.PROTOBUF:
            return protobuf.parse(schema, resolved, is_new=is_new)
