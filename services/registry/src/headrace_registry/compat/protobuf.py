"""Confluent's rules for Protobuf: can a reader with one schema read the bytes that were written with another schema?

A record contains the numbers of its fields, not their names. Therefore the rules compare fields with the same number,
within messages with the same name. Compatible changes are: a renamed field, an added optional field, and a removed
optional field outside a oneof. Any change of an enum's constants is compatible too. Scalar types of one group have the
same bytes:

====================== ================================================
group                  types
====================== ================================================
varint                 int32, int64, uint32, uint64, bool, every enum
zigzag                 sint32, sint64
bytes                  string, bytes
four bytes             fixed32, sfixed32
eight bytes            fixed64, sfixed64
float, double          a group each
====================== ================================================

Another package changes the full names of all messages, which generated readers look for. A oneof may not have fields
of several earlier oneofs, or fields that stood alone: a record may have one of each. Numbers may not become repeated
or singular; Confluent's registry allows this to fields of proto3 without ``optional``.

As in Confluent's registry, groups of proto2, extensions and services are not compared.

Source: Confluent's documentation, "Protobuf compatibility rules"; protobuf.dev, "Updating A Message Type".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from headrace_registry.compat.model import REPORTED_MAX, STEPS_MAX, Difference, Steps, run
from headrace_registry.schemas.protobuf.elements import SCALARS, Enum, Field, Label, MapType, Message, OneOf
from headrace_registry.schemas.protobuf.names import FoundType, Types
from headrace_registry.schemas.protobuf.schema import ProtobufSchema

#: Maps each kind of incompatibility to its reason in words (Incompatibility.reason).
REASONS: Final = {
    "PACKAGE_CHANGED": "The package of the {reader} schema does not match the package of the {writer} schema",
    "MESSAGE_REMOVED": "The {reader} schema is missing a MESSAGE type at path '{path}' in the {writer} schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{path}' in the {reader} schema does not match the {writer} "
    "schema",
    "FIELD_SCALAR_KIND_CHANGED": "The kind of a SCALAR field at path '{path}' in the {reader} schema does not match "
    "its kind in the {writer} schema",
    "FIELD_NAMED_TYPE_CHANGED": "The type of a MESSAGE field at path '{path}' in the {reader} schema does not match "
    "its type in the {writer} schema",
    "FIELD_NUMERIC_LABEL_CHANGED": "The label for a NUMERIC field at path '{path}' in the {reader} schema does not "
    "match its label in the {writer} schema",
    "REQUIRED_FIELD_ADDED": "A required field  at path '{path}' in the {reader} schema is missing in the {writer} "
    "schema",
    "REQUIRED_FIELD_REMOVED": "The {reader} schema is missing a required field at path: '{path}' in the {writer} "
    "schema",
    "ONEOF_FIELD_REMOVED": "The {reader} schema is missing a oneof field at path '{path}' in the {writer} schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": "Multiple fields in the oneof at path '{path}' in the {reader} schema are "
    "outside a oneof in the {writer} schema",
    "FIELD_MOVED_TO_EXISTING_ONEOF": "A field in the oneof at path '{path}' in the {reader} schema is outside an "
    "existing oneof in the {writer} schema",
}
#: Maps each scalar type to its group; types of one group have the same encoding.
_GROUPS: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool"), "varint"),
    **dict.fromkeys(("sint32", "sint64"), "zigzag"),
    **dict.fromkeys(("string", "bytes"), "bytes"),
    **dict.fromkeys(("fixed32", "sfixed32"), "four bytes"),
    **dict.fromkeys(("fixed64", "sfixed64"), "eight bytes"),
    "float": "float",
    "double": "double",
}
_Found = list[Difference]


def can_read(reader: ProtobufSchema, writer: ProtobufSchema, steps_max: int = STEPS_MAX) -> Sequence[Difference]:
    """Return the differences that keep ``reader`` from reading the data of ``writer``."""
    return run(_Check(writer, reader).files(), steps_max)


def _in_scope(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _place(name: str, *below: str | int) -> str:
    """A path in Confluent's notation: ``#/Outer/Inner/2`` is the field 2 of the message ``Outer.Inner``."""
    return "/".join(["#", *name.split("."), *map(str, below)])


def _meaning(types: Types, kind: str | MapType, scope: str) -> str | MapType | FoundType:
    """The meaning of a field's type ``kind`` in ``scope``: a scalar's name, a MapType, or a FoundType. For the entry
    message of a map, return the MapType."""
    if isinstance(kind, MapType) or kind in SCALARS:
        return kind
    found = types.find(kind, scope)
    assert found is not None, "the parser checks that all types exist"
    return found.map_entry or found


class _Check:
    """One check of an old schema (the writer's) against a new schema (the reader's)."""

    def __init__(self, old: ProtobufSchema, new: ProtobufSchema) -> None:
        self._old, self._new = old, new
        # Maps a pair of messages (their object ids) to its differences; None while the pair is being compared.
        self._results: dict[tuple[int, int], _Found | None] = {}

    def files(self) -> Steps[_Found]:
        found: _Found = []
        old, new = self._old.file, self._new.file
        if old.package != new.package:  # generated readers look for the full name of a message
            found.append(Difference("PACKAGE_CHANGED", "#/"))
        yield self._types(found, "", (old.types, old.package), (new.types, new.package))
        return found[:REPORTED_MAX]

    def _types(
        self,
        found: _Found,
        name: str,
        old: tuple[list[Message | Enum], str],
        new: tuple[list[Message | Enum], str],
    ) -> Steps[None]:
        """Compare the types within a message or a file (whose name is ""), with their scopes."""
        (old_types, old_scope), (new_types, new_scope) = old, new
        new_messages = {one.name: one for one in new_types if isinstance(one, Message)}
        for one in old_types:
            if len(found) >= REPORTED_MAX:
                return
            if not isinstance(one, Message):
                continue
            full = _in_scope(name, one.name)
            other = new_messages.get(one.name)
            if other is not None:
                below: _Found = yield self._messages(
                    full, (one, _in_scope(old_scope, one.name)), (other, _in_scope(new_scope, one.name))
                )
                found.extend(below)
            elif one.map_entry is None:
                found.append(Difference("MESSAGE_REMOVED", _place(full)))

    def _messages(self, name: str, old: tuple[Message, str], new: tuple[Message, str]) -> Steps[_Found]:
        """Compare two messages with their scopes; ``name`` is their common name within their packages."""
        pair = (id(old[0]), id(new[0]))
        if pair in self._results:
            return self._results[pair] or []
        self._results[pair] = None
        found: _Found = []
        yield self._fields(found, name, old, new)
        yield self._types(found, name, (old[0].types, old[1]), (new[0].types, new[1]))
        self._results[pair] = found[:REPORTED_MAX]
        return found[:REPORTED_MAX]

    def _fields(self, found: _Found, name: str, old: tuple[Message, str], new: tuple[Message, str]) -> Steps[None]:
        (old_message, old_scope), (new_message, new_scope) = old, new
        old_fields = {one.number: one for one in old_message.fields}
        new_fields = {one.number: one for one in new_message.fields}
        old_in_oneofs = {one.number: (oneof, one) for oneof in old_message.oneofs for one in oneof.fields}
        new_in_oneofs = {one.number: (oneof, one) for oneof in new_message.oneofs for one in oneof.fields}
        for oneof in new_message.oneofs:
            found.extend(_moved(name, oneof, old_fields.keys(), old_in_oneofs))
        found.extend(_removed_from_oneofs(name, old_message, new_message))
        for number, one in old_fields.items():
            if number not in new_fields and number not in new_in_oneofs and one.label is Label.REQUIRED:
                found.append(Difference("REQUIRED_FIELD_REMOVED", _place(name, number)))
        for number, one in new_fields.items():
            if number not in old_fields and number not in old_in_oneofs and one.label is Label.REQUIRED:
                found.append(Difference("REQUIRED_FIELD_ADDED", _place(name, number)))
        old_all = old_fields | {number: one for number, (_, one) in old_in_oneofs.items()}
        new_all = new_fields | {number: one for number, (_, one) in new_in_oneofs.items()}
        for number in sorted(old_all.keys() & new_all.keys()):
            if len(found) >= REPORTED_MAX:
                return
            # As in Confluent's registry, name the oneof only if the field stays in the same oneof.
            place = _place(name, number)
            if number in old_in_oneofs and number in new_in_oneofs:
                old_oneof, new_oneof = old_in_oneofs[number][0].name, new_in_oneofs[number][0].name
                place = _place(name, new_oneof, number) if old_oneof == new_oneof else place
            yield self._one_field(found, place, (old_all[number], old_scope), (new_all[number], new_scope))

    def _one_field(self, found: _Found, place: str, old: tuple[Field, str], new: tuple[Field, str]) -> Steps[None]:
        labels = (old[0].label, new[0].label)
        before = len(found)
        yield self._field_types(found, place, labels, (old[0].type, old[1]), (new[0].type, new[1]))
        if labels[1] is Label.REQUIRED and labels[0] is not Label.REQUIRED and len(found) == before:
            found.append(Difference("REQUIRED_FIELD_ADDED", place))  # Confluent accepts it for texts and messages

    def _field_types(
        self,
        found: _Found,
        place: str,
        labels: tuple[Label | None, Label | None],
        old: tuple[str | MapType, str],
        new: tuple[str | MapType, str],
    ) -> Steps[None]:
        old_type, new_type = _meaning(self._old.types, *old), _meaning(self._new.types, *new)
        match old_type, new_type:
            case MapType(), MapType():
                for old_part, new_part in ((old_type.key, new_type.key), (old_type.value, new_type.value)):
                    yield self._field_types(found, place, (None, None), (old_part, old[1]), (new_part, new[1]))
            case FoundType(element=Message()), FoundType(element=Message()):
                yield self._named_types(found, place, old_type, new_type)
            case _:
                old_group, new_group = _group(old_type), _group(new_type)
                if old_group is None or new_group is None:
                    found.append(Difference("FIELD_KIND_CHANGED", place))
                elif old_group != new_group:
                    found.append(Difference("FIELD_SCALAR_KIND_CHANGED", place))
                elif old_group != "bytes" and _are_other_labels(*labels):
                    found.append(Difference("FIELD_NUMERIC_LABEL_CHANGED", place))

    def _named_types(self, found: _Found, place: str, old: FoundType, new: FoundType) -> Steps[None]:
        """Compare the types of a field in the two schemas, which are messages."""
        if old.local_name != new.local_name:
            found.append(Difference("FIELD_NAMED_TYPE_CHANGED", place))
            return
        if old.is_local and new.is_local:
            return  # these messages are compared anyway, with all messages of both files
        if old.reference is not None and new.reference is not None:
            old_version = (old.reference.subject, old.reference.version)
            if old_version == (new.reference.subject, new.reference.version):
                return
        assert isinstance(old.element, Message)
        assert isinstance(new.element, Message)
        below: _Found = yield self._messages(old.local_name, (old.element, old.name), (new.element, new.name))
        if below:
            found.extend(below)
            found.append(Difference("FIELD_NAMED_TYPE_CHANGED", place))


def _are_other_labels(old: Label | None, new: Label | None) -> bool:
    """Whether numbers are written in another way, or refused. None: without a label, or in a oneof. Confluent's
    registry does not compare these with ``repeated``, whose packed numbers a singular field does not read."""
    if (old is Label.REPEATED) is not (new is Label.REPEATED):
        return True
    return old is not new and None not in (old, new)


def _group(kind: str | MapType | FoundType) -> str | None:
    """The group of a scalar type or an enum; None for a map and a message."""
    if isinstance(kind, FoundType):
        return "varint" if isinstance(kind.element, Enum) else None
    return _GROUPS[kind] if isinstance(kind, str) else None


def _moved(
    name: str, oneof: OneOf, old_fields: Collection[int], old_in_oneofs: Mapping[int, tuple[OneOf, Field]]
) -> _Found:
    """The incompatible moves of fields into a oneof. An old writer may have written several of them, if they were not
    in one oneof already, but a oneof keeps only one field."""
    moved = sum(one.number in old_fields for one in oneof.fields)
    oneofs = {old_in_oneofs[one.number][0].name for one in oneof.fields if one.number in old_in_oneofs}
    if moved + len(oneofs) < 2:
        return []
    kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if moved > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
    return [Difference(kind, _place(name, oneof.name))]


def _removed_from_oneofs(name: str, old: Message, new: Message) -> _Found:
    """Fields that were removed from oneofs that both messages have. A field that only left its oneof loses nothing."""
    names = {oneof.name for oneof in new.oneofs}
    kept = {one.number for oneof in new.oneofs for one in oneof.fields} | {one.number for one in new.fields}
    return [
        Difference("ONEOF_FIELD_REMOVED", _place(name, oneof.name, one.number))
        for oneof in old.oneofs
        if oneof.name in names
        for one in oneof.fields
        if one.number not in kept
    ]
