"""May a new schema join the versions of a subject? Confluent's compatibility levels, with its verdicts and messages.

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
from headrace_registry.compat.model import DIFFERENT_TYPE, ComparisonTooLargeError, Difference, Incompatibility
from headrace_registry.schemas import Parsed
from headrace_registry.schemas.avro import AvroSchema
from headrace_registry.schemas.json_schema import JsonSchema
from headrace_registry.schemas.protobuf.schema import ProtobufSchema

__all__ = ["ComparisonTooLargeError", "Incompatibility", "Level", "check"]


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
        """Whether a new schema is compared with every version, not only with the latest one."""
        return self.endswith("_TRANSITIVE")


def check(level: Level, new: Parsed, earlier: Sequence[Parsed]) -> list[Incompatibility]:
    """The reasons for which ``new`` may not follow the schemas ``earlier`` (the oldest first); none when it may.

    The check goes from the latest schema to the oldest and ends at the first schema that is incompatible;
    ``Incompatibility.earlier`` says which one that is. Raise ComparisonTooLargeError.
    """
    if level is Level.NONE:
        return []
    for index in range(len(earlier) - 1, -1, -1):
        problems: list[Incompatibility] = []
        if not level.startswith("FORWARD"):
            problems += _unreadable(new, earlier[index], "new", "old", index)
        if not level.startswith("BACKWARD"):
            problems += _unreadable(earlier[index], new, "old", "new", index)
        if problems or not level.is_transitive:
            return problems
    return []


def _unreadable(
    reader: Parsed, writer: Parsed, reader_word: str, writer_word: str, earlier: int
) -> Iterator[Incompatibility]:
    """The reasons for which ``reader`` cannot read what ``writer`` wrote. The words name them in the reasons."""
    differences: Sequence[Difference] = ()
    reasons: Mapping[str, str] = {}
    match reader, writer:
        case AvroSchema(), AvroSchema():
            differences, reasons = avro.can_read(reader, writer), avro.REASONS
        case JsonSchema(), JsonSchema():
            differences, reasons = json_schema.can_read(reader, writer), json_schema.REASONS
        case ProtobufSchema(), ProtobufSchema():
            differences, reasons = protobuf.can_read(reader, writer), protobuf.REASONS
        case _:
            yield Incompatibility(DIFFERENT_TYPE, "/", "Incompatible because of different schema type", None, earlier)
    for kind, path, detail in differences:
        reason = reasons.get(kind, "").format(path=path, detail=detail, reader=reader_word, writer=writer_word)
        yield Incompatibility(kind, path, reason, detail, earlier)
