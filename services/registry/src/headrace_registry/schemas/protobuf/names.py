"""The names of the types of a file and of its imports, and how a name in a message finds its type.

The search for a name without a leading dot goes from the innermost scope to the outermost scope. Within ``a.b.C``, the
name ``D`` means the first of ``a.b.C.D``, ``a.b.D``, ``a.D`` and ``D`` that exists.

Source: protobuf.dev, "Packages and Name Resolution".
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_registry.schemas.model import Names, Reference
from headrace_registry.schemas.protobuf.elements import Enum, File, MapType, Message


def entry_name(name: str) -> str:
    """The name of the message of a map's entries: FooBarEntry for the field foo_bar."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"


@dataclass(frozen=True, slots=True, eq=False)
class FoundType:
    """A type by its full name, without a leading dot.

    ``reference`` is the reference whose file defines the type; None if the schema does not itself list this reference.
    ``map_entry`` is the type of the map whose entry the message is; None for other types.
    """

    name: str
    package: str
    element: Message | Enum
    reference: Reference | None
    is_local: bool
    map_entry: MapType | None

    @property
    def local_name(self) -> str:
        """The name within the package of the type."""
        return self.name.removeprefix(f"{self.package}.") if self.package else self.name


class Types:
    """The types that a file can use, by full name."""

    def __init__(self) -> None:
        self._found: dict[str, FoundType] = {}
        self.names = Names()

    def add(self, file: File, reference: Reference | None, *, is_local: bool) -> None:
        """Add the types of a file; a type replaces an earlier type with the same name. Raise InvalidSchemaError."""
        prefix = f"{file.package}." if file.package else ""
        open_types = [(prefix, one) for one in file.types]
        while open_types:
            prefix, element = open_types.pop()
            name = prefix + element.name
            self.names.define(len(name))
            map_entry = element.map_entry if isinstance(element, Message) else None
            self._found[name] = FoundType(name, file.package, element, reference, is_local, map_entry)
            if isinstance(element, Message):
                groups = [*element.groups, *(group for oneof in element.oneofs for group in oneof.groups)]
                prefix = f"{name}."
                open_types += [(prefix, one) for one in (*element.types, *(group.message for group in groups))]

    def find(self, name: str, scope: str) -> FoundType | None:
        """The type that a name means in a scope, the full name of a message or package."""
        if name.startswith("."):
            return self._found.get(name[1:])
        while scope:
            found = self._found.get(f"{scope}.{name}")
            if found is not None:
                return found
            scope = scope.rpartition(".")[0]
        return self._found.get(name)
