"""Avro's resolution of schemas: can a reader with one schema read all data that were written with another schema?

The verdicts, kinds, places and messages are those of ``SchemaCompatibility`` of Avro's Java implementation, as
Confluent's registry shows them. Three properties of Java's check look odd, and Headrace keeps them:

* The check compares names without their namespaces, but aliases with their namespaces.
* The check compares a pair of types once. If the same pair occurs at another place, the check repeats the first result.
* A field is ambiguous when its name and its alias, or two of its aliases, are names of the writer's fields.

Source: the Avro specification 1.12, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from headrace_registry.compat.model import LOOKS_PER_STEP, REPORTED_MAX, STEPS_MAX, Difference, Steps, run
from headrace_registry.schemas.avro import Array, AvroSchema, Enum, Fixed, Map, Named, Node, Record, Union
from headrace_registry.schemas.json_text import pointer

#: Maps a reader's type to the other types that a writer may use, because the reader promotes them.
_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
#: The kind of the incompatibility if a reader's field matches several fields of the writer. Avro for Java throws an
#: exception, which Confluent's registry reports as an incompatibility.
AMBIGUOUS = "READER_FIELD_MATCHES_SEVERAL_FIELDS"
#: Maps each kind of incompatibility to its reason in words (Incompatibility.reason).
REASONS = {
    "FIXED_SIZE_MISMATCH": "The size of FIXED type field at path '{path}' in the {reader} schema does not match with "
    "the {writer} schema",
    "TYPE_MISMATCH": "The type (path '{path}') of a field in the {reader} schema does not match with the {writer} "
    "schema",
    "NAME_MISMATCH": "The name of the schema has changed (path '{path}')",
    "MISSING_ENUM_SYMBOLS": "The {reader} schema is missing enum symbols '{detail}' at path '{path}' in the {writer} "
    "schema",
    "MISSING_UNION_BRANCH": "The {reader} schema is missing a type inside a union field at path '{path}' in the "
    "{writer} schema",
    AMBIGUOUS: "The field '{detail}' at path '{path}' in the {reader} schema has the name or alias of several fields "
    "in the {writer} schema",
    "READER_FIELD_MISSING_DEFAULT_VALUE": "The field '{detail}' at path '{path}' in the {reader} schema has no "
    "default value and is missing in the {writer} schema",
}
#: A path into a schema as (parent path, last part); None means the whole schema.
_Path: TypeAlias = "tuple[_Path, str | int] | None"
_Problems = list[Difference]


def can_read(reader: AvroSchema, writer: AvroSchema, steps_max: int = STEPS_MAX) -> Sequence[Difference]:
    """Return the differences that keep ``reader`` from reading the data of ``writer``."""
    return run(_Check().compare(reader.root, writer.root, None), steps_max)


class _Check:
    def __init__(self) -> None:
        # Maps a pair of types (their object ids) to its differences; None while the pair is being compared.
        self._results: dict[tuple[int, int], _Problems | None] = {}
        # For each union of the reader (its object id): the branches that a type of the writer may match, by label. The
        # label is the simple name of a named type, else "".
        self._branches: dict[int, dict[str, list[Node]]] = {}

    def compare(self, reader: Node, writer: Node, path: _Path) -> Steps[_Problems]:
        pair = (id(reader), id(writer))
        if pair in self._results:
            return self._results[pair] or []
        self._results[pair] = None
        problems: _Problems = yield self._calculate(reader, writer, path)
        del problems[REPORTED_MAX:]
        self._results[pair] = problems
        return problems

    def _calculate(self, reader: Node, writer: Node, path: _Path) -> Steps[_Problems]:
        problems: _Problems = []
        if isinstance(reader, Named) and isinstance(writer, Named):
            yield len(reader.aliases) // LOOKS_PER_STEP
        match reader, writer:
            case Union(), Union():
                for index, branch in enumerate(writer.branches):
                    below: _Problems = yield self.compare(reader, branch, None)
                    if below:
                        problems.append(_missing_branch(branch, (path, index)))
            case _, Union():
                for index, branch in enumerate(writer.branches):
                    below = yield self.compare(reader, branch, (path, index))
                    problems.extend(below)
            case Union(), _:
                for branch in self._candidates(reader, writer):
                    below = yield self.compare(branch, writer, None)
                    if not below:
                        return []
                problems.append(_missing_branch(writer, path))
            case Array(), Array():
                below = yield self.compare(reader.items, writer.items, (path, "items"))
                problems.extend(below)
            case Map(), Map():
                below = yield self.compare(reader.values, writer.values, (path, "values"))
                problems.extend(below)
            case Record(), Record():
                problems.extend(_names(reader, writer, path))
                yield self._fields(problems, reader, writer, path)
            case Enum(), Enum():
                yield (len(reader.symbols) + len(writer.symbols)) // LOOKS_PER_STEP
                problems.extend(_names(reader, writer, path))
                problems.extend(_symbols(reader, writer, path))
            case Fixed(), Fixed():
                problems.extend(_names(reader, writer, path))
                problems.extend(_sizes(reader, writer, path))
            case _ if reader.kind != writer.kind and writer.kind not in _PROMOTIONS.get(reader.kind, ()):
                detail = f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
                problems.append(Difference("TYPE_MISMATCH", _shown(path), detail))
        return problems

    def _candidates(self, reader: Union, writer: Node) -> list[Node]:
        """The branches of the reader's union that could read ``writer``. A named type can be read only by a branch with
        the same simple name, or with an alias of this simple name."""
        found = self._branches.get(id(reader))
        if found is None:
            found = self._branches[id(reader)] = {}
            for branch in reader.branches:
                names = [branch.name, *branch.aliases] if isinstance(branch, Named) else []
                for label in {name.simple for name in names} or {""}:
                    found.setdefault(label, []).append(branch)
        return found.get(writer.name.simple if isinstance(writer, Named) else "", [])

    def _fields(self, problems: _Problems, reader: Record, writer: Record, path: _Path) -> Steps[None]:
        for index, one in enumerate(reader.fields):
            place = ((path, "fields"), index)
            if one.aliases:
                yield len(one.aliases) // LOOKS_PER_STEP
            written = [writer.by_name[name] for name in (one.name, *one.aliases) if name in writer.by_name]
            if len(written) > 1:
                problems.append(Difference(AMBIGUOUS, _shown(place), one.name))
            elif written:
                below: _Problems = yield self.compare(one.type, written[0].type, (place, "type"))
                problems.extend(below)
            elif one.has_default:
                continue
            elif isinstance(one.type, Enum) and one.type.default is not None:
                # As in Avro for Java: compare the reader's enum with the writer's record; the two always differ.
                below = yield self.compare(one.type, writer, (place, "type"))
                problems.extend(below)
            else:
                problems.append(Difference("READER_FIELD_MISSING_DEFAULT_VALUE", _shown(place), one.name))
            if len(problems) >= REPORTED_MAX:
                return


def _names(reader: Named, writer: Named, path: _Path) -> Iterator[Difference]:
    if reader.name.simple != writer.name.simple and writer.name not in reader.aliases:
        yield Difference("NAME_MISMATCH", _shown((path, "name")), f"expected: {writer.name.full}")


def _symbols(reader: Enum, writer: Enum, path: _Path) -> Iterator[Difference]:
    missing = sorted(set(writer.symbols).difference(reader.symbols))
    if missing and reader.default is None:
        yield Difference("MISSING_ENUM_SYMBOLS", _shown((path, "symbols")), f"[{', '.join(missing)}]")


def _sizes(reader: Fixed, writer: Fixed, path: _Path) -> Iterator[Difference]:
    if reader.size != writer.size:
        detail = f"expected: {writer.size}, found: {reader.size}"
        yield Difference("FIXED_SIZE_MISMATCH", _shown((path, "size")), detail)


def _missing_branch(writer: Node, path: _Path) -> Difference:
    detail = f"reader union lacking writer type: {writer.kind.upper()}"
    return Difference("MISSING_UNION_BRANCH", _shown(path), detail)


def _shown(path: _Path) -> str:
    parts: list[str | int] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return pointer(reversed(parts))
