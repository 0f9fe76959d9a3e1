"""Avro's resolution of schemas: can a reader with one schema read all data that another schema wrote?

The verdicts, kinds, places and messages are those of ``SchemaCompatibility`` of Avro's Java implementation, as
Confluent's registry shows them. Three of its habits look odd and are kept:

* names are compared without their namespaces;
* the place of a problem within a branch of a union begins again at ``/``;
* a pair of types is compared once; at another place of the same pair its first result is repeated.

Source: the Avro specification 1.12, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_registry.compat.model import Difference, Steps, run
from headrace_registry.schemas.avro import Array, AvroSchema, Enum, Field, Fixed, Map, Named, Node, Record, Union
from headrace_registry.schemas.json_text import pointer

#: Reader's type -> the other writer's types that it reads.
_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
#: The reason of each kind in words, for Incompatibility.reason.
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
    "READER_FIELD_MISSING_DEFAULT_VALUE": "The field '{detail}' at path '{path}' in the {reader} schema has no "
    "default value and is missing in the {writer} schema",
}
_Path = tuple[str | int, ...]
_Problems = tuple[Difference, ...]


def can_read(reader: AvroSchema, writer: AvroSchema) -> Sequence[Difference]:
    """The reasons for which ``reader`` cannot read what ``writer`` wrote; none when it can."""
    return run(_Check().compare(reader.root, writer.root, ()))


class _Check:
    def __init__(self) -> None:
        # The results of pairs by identity; None while a pair is being compared, which ends a recursion.
        self._results: dict[tuple[int, int], _Problems | None] = {}

    def compare(self, reader: Node, writer: Node, path: _Path) -> Steps[_Problems]:
        pair = (id(reader), id(writer))
        if pair in self._results:
            return self._results[pair] or ()
        self._results[pair] = None
        result: _Problems = yield self._calculate(reader, writer, path)
        self._results[pair] = result
        return result

    def _calculate(self, reader: Node, writer: Node, path: _Path) -> Steps[_Problems]:
        match reader, writer:
            case Union(), Union():
                problems: _Problems = ()
                for index, branch in enumerate(writer.branches):
                    below: _Problems = yield self.compare(reader, branch, ())
                    if below:
                        problems += _missing_branch(branch, (*path, index))
                return problems
            case _, Union():
                problems = ()
                for branch in writer.branches:
                    problems += yield self.compare(reader, branch, ())
                return problems
            case Union(), _:
                for branch in reader.branches:
                    below = yield self.compare(branch, writer, ())
                    if not below:
                        return ()
                return _missing_branch(writer, path)
            case Array(), Array():
                problems = yield self.compare(reader.items, writer.items, (*path, "items"))
                return problems
            case Map(), Map():
                problems = yield self.compare(reader.values, writer.values, (*path, "values"))
                return problems
            case Record(), Record():
                fields: _Problems = yield self._fields(reader, writer, path)
                return _names(reader, writer, path) + fields
            case Enum(), Enum():
                return _names(reader, writer, path) + _symbols(reader, writer, path)
            case Fixed(), Fixed():
                return _names(reader, writer, path) + _sizes(reader, writer, path)
        if reader.kind == writer.kind or writer.kind in _PROMOTIONS.get(reader.kind, ()):
            return ()
        return _different_types(reader, writer, path)

    def _fields(self, reader: Record, writer: Record, path: _Path) -> Steps[_Problems]:
        problems: _Problems = ()
        for index, one in enumerate(reader.fields):
            place = (*path, "fields", index)
            written = _written_field(writer, one)
            if written is not None:
                problems += yield self.compare(one.type, written.type, (*place, "type"))
            elif one.has_default:
                continue
            elif isinstance(one.type, Enum) and one.type.default is not None:
                # Java compares the enum with the writer's record here, which never succeeds.
                problems += yield self.compare(one.type, writer, (*place, "type"))
            else:
                problems += (Difference("READER_FIELD_MISSING_DEFAULT_VALUE", pointer(place), one.name),)
        return problems


def _written_field(writer: Record, reader: Field) -> Field | None:
    """The writer's field of the reader's field, by its name or else by its aliases."""
    for name in (reader.name, *reader.aliases):
        if name in writer.by_name:
            return writer.by_name[name]
    return None


def _names(reader: Named, writer: Named, path: _Path) -> _Problems:
    if reader.name.simple == writer.name.simple or writer.name in reader.aliases:
        return ()
    return (Difference("NAME_MISMATCH", pointer((*path, "name")), f"expected: {writer.name.full}"),)


def _symbols(reader: Enum, writer: Enum, path: _Path) -> _Problems:
    missing = sorted(set(writer.symbols).difference(reader.symbols))
    if not missing or reader.default is not None:
        return ()
    return (Difference("MISSING_ENUM_SYMBOLS", pointer((*path, "symbols")), f"[{', '.join(missing)}]"),)


def _sizes(reader: Fixed, writer: Fixed, path: _Path) -> _Problems:
    if reader.size == writer.size:
        return ()
    detail = f"expected: {writer.size}, found: {reader.size}"
    return (Difference("FIXED_SIZE_MISMATCH", pointer((*path, "size")), detail),)


def _missing_branch(writer: Node, path: _Path) -> _Problems:
    detail = f"reader union lacking writer type: {writer.kind.upper()}"
    return (Difference("MISSING_UNION_BRANCH", pointer(path), detail),)


def _different_types(reader: Node, writer: Node, path: _Path) -> _Problems:
    detail = f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
    return (Difference("TYPE_MISMATCH", pointer(path), detail),)
