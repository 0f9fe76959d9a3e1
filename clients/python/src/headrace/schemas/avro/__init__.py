"""Avro without a registry: parse schemas, encode and decode values, resolve a reader's schema against a writer's."""

from ._codec import DEPTH_MAX, Damaged, Decoder, Encoder, Mismatch, Unreadable
from .compile import Unresolvable, decoder, encoder
from .schema import AvroSchemaError, Field, Type, parse, parse_document

__all__ = [
    "DEPTH_MAX",
    "AvroSchemaError",
    "Damaged",
    "Decoder",
    "Encoder",
    "Field",
    "Mismatch",
    "Type",
    "Unreadable",
    "Unresolvable",
    "decoder",
    "encoder",
    "parse",
    "parse_document",
]
