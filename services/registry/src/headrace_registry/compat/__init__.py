"""Check whether a new schema may join the versions of a subject, by Confluent's compatibility levels and with
Confluent's messages.

============================= =================================== ======================
level                         who must read whose data            compared with
============================= =================================== ======================
NONE                          no check                            no version
BACKWARD                      the new schema reads the old data   the latest version
FORWARD                       the old schema reads the new data   the latest version
FULL                          both                                the latest version
..._TRANSITIVE                as without                          every version
============================= =================================== ======================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from headrace_registry.compat import avro, json_schema, protobuf
from headrace_registry.compat.model import (
    DIFFERENT_TYPE,
    STEPS_MAX,
    TEXT_MAX,
    ComparisonTooLargeError,
    Difference,
    Incompatibility,
)
from headrace_registry.schemas import Parsed
from headrace_registry.schemas.avro import AvroSchema
from headrace_registry.schemas.json_schema import JsonSchema
from headrace_registry.schemas.protobuf.schema import ProtobufSchema

__all__ = ["STEPS_MAX", "ComparisonTooLargeError", "Incompatibility", "Level", "check"]


class Level(StrEnum):
    """Confluent's compatibility levels."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether a new schema is compared with every version, not only with the latest version."""
        return self.endswith("_TRANSITIVE")


def check(level: Level, new: Parsed, earlier: Sequence[Parsed], steps_max: int = STEPS_MAX) -> list[Incompatibility]:
    """Return the reasons why ``new`` is not compatible with the schemas ``earlier``, of which the oldest comes first.

    The check goes from the latest schema to the oldest schema, and ends at the first incompatible schema. The attribute
    ``earlier`` of each Incompatibility is the index of the incompatible schema in the argument ``earlier``. Raise
    ComparisonTooLargeError if the comparison of two schemas takes more than ``steps_max`` steps.
    """
    if level is Level.NONE:
        return []
    for index in range(len(earlier) - 1, -1, -1):
        problems: list[Incompatibility] = []
        if not level.startswith("FORWARD"):
            problems += _unreadable(new, earlier[index], "new", "old", index, steps_max)
        if not level.startswith("BACKWARD"):
            problems += _unreadable(earlier[index], new, "old", "new", index, steps_max)
        if problems or not level.is_transitive:
            return problems
    return []


def _unreadable(
    reader: Parsed, writer: Parsed, reader_word: str, writer_word: str, earlier: int, steps_max: int
) -> Iterator[Incompatibility]:
    """Yield the reasons why ``reader`` cannot read the data of ``writer``. ``reader_word`` and ``writer_word`` are the
    names of the two schemas in the text of a reason."""
    differences: Sequence[Difference] = ()
    reasons: Mapping[str, str] = {}
    match reader, writer:
        case AvroSchema(), AvroSchema():
            differences, reasons = avro.can_read(reader, writer, steps_max), avro.REASONS
        case JsonSchema(), JsonSchema():
            differences, reasons = json_schema.can_read(reader, writer, steps_max), json_schema.REASONS
        case ProtobufSchema(), ProtobufSchema():
            differences, reasons = protobuf.can_read(reader, writer, steps_max), protobuf.REASONS
        case _:
            yield Incompatibility(DIFFERENT_TYPE, "/", "Incompatible because of different schema type", None, earlier)
    for kind, full_path, full_detail in differences:
        path, detail = _start_of(full_path), None if full_detail is None else _start_of(full_detail)
        reason = reasons.get(kind, "").format(path=path, detail=detail, reader=reader_word, writer=writer_word)
        yield Incompatibility(kind, path, reason, detail, earlier)


def _start_of(text: str) -> str:
    """Return only the start of a long text, because a path can have thousands of parts, and a name a megabyte."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
