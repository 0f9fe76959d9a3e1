"""The parts of a .proto file, as written: comments are lost, names of types are unresolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum as PythonEnum
from enum import StrEnum
from typing import Any, Final

#: The largest field number; in a range, the word ``max`` means this number.
NUMBER_MAX: Final = (1 << 29) - 1
#: The largest number of a constant; in a range of an enum, the word ``max`` means this number.
CONSTANT_MAX: Final = (1 << 31) - 1

#: Maps each scalar type to its number in FieldDescriptorProto.
SCALARS: Final = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}


class Label(StrEnum):
    OPTIONAL = "optional"
    REQUIRED = "required"
    REPEATED = "repeated"


class OptionKind(PythonEnum):
    """The kind of an option's value. STRING: a str, WORD: a str (in a message: a Word), OPTION: an Option, MAP: a dict,
    LIST: a list."""

    STRING = "a string"
    WORD = "a number, a boolean or the name of a constant"
    OPTION = "an option of the option"
    MAP = "a message"
    LIST = "a list"


@dataclass(frozen=True, slots=True)
class Word:
    """A value in an option's message that is not a string: a number, a boolean or the name of a constant."""

    text: str


@dataclass(frozen=True, slots=True)
class Option:
    """An option. ``is_custom``: whether the file has the option's name in parentheses, as that of an extension."""

    name: str
    kind: OptionKind
    value: Any
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class MapType:
    """The type ``map<key, value>``."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


@dataclass(eq=False, slots=True)
class Field:
    name: str
    number: int
    type: str | MapType
    label: Label | None
    options: list[Option] = field(default_factory=list)  # without default and json_name
    default: Option | None = None
    json_name: Option | None = None


@dataclass(eq=False, slots=True)
class Group:
    """A group of proto2: a field and a message in one declaration."""

    field: Field
    message: Message


@dataclass(eq=False, slots=True)
class OneOf:
    name: str
    fields: list[Field] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


#: An item of a ``reserved`` statement: a name, a number, or the first and last number of a range.
Reserved = str | int | tuple[int, int]


@dataclass(eq=False, slots=True)
class Extensions:
    """An ``extensions`` statement: the first and last number of each range, and the options of all."""

    ranges: list[tuple[int, int]]
    options: list[Option] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Message:
    """``nested``: the names of all messages within this one, in the order of their numbers in a record's message path:
    those of ``types``, of groups, and the entries of maps."""

    name: str
    fields: list[Field] = field(default_factory=list)
    oneofs: list[OneOf] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    types: list[Message | Enum] = field(default_factory=list)
    reserved: list[list[Reserved]] = field(default_factory=list)  # one list for each statement
    extension_ranges: list[Extensions] = field(default_factory=list)
    extensions: list[Extend] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)

    @property
    def map_entry(self) -> MapType | None:
        """The type of the map whose entry this message is; None for an ordinary message."""
        if not any(option.name == "map_entry" and option.value == "true" for option in self.options):
            return None
        types = {one.number: str(one.type) for one in self.fields}
        return MapType(types.get(1, ""), types.get(2, ""))


@dataclass(eq=False, slots=True)
class Constant:
    name: str
    number: int
    options: list[Option] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Enum:
    name: str
    constants: list[Constant] = field(default_factory=list)
    reserved: list[list[Reserved]] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Extend:
    """An ``extend`` declaration: fields that a file adds to a message, usually a message of another file."""

    message: str
    fields: list[Field] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Call:
    """A call (rpc) of a service."""

    name: str
    request: str
    response: str
    streams_request: bool
    streams_response: bool
    options: list[Option] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Service:
    name: str
    calls: list[Call] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class File:
    """A .proto file. ``syntax`` is None if the file names no syntax, which means proto2. ``imports`` has the weak
    imports too."""

    syntax: str | None = None
    package: str = ""
    imports: list[str] = field(default_factory=list)
    public_imports: list[str] = field(default_factory=list)
    weak_imports: set[str] = field(default_factory=set)
    options: list[Option] = field(default_factory=list)
    types: list[Message | Enum] = field(default_factory=list)
    extensions: list[Extend] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)

    @property
    def is_proto3(self) -> bool:
        return self.syntax == "proto3"
