"""Objects from decoded dicts, and plain values from objects: dataclasses, pydantic models, attrs classes.

pydantic is used only when the caller's class is a pydantic model: this module never imports it.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from headrace_core.errors import InvalidConfigError
from headrace_core.exact_json import Number

Build = Callable[[Any], Any]


def builder(into: Any) -> Build | None:
    """The function that makes ``into`` from a decoded value: a dataclass, a pydantic model, or any callable of one
    argument. Returns None if ``into`` is None. Raises InvalidConfigError."""
    if into is None:
        return None
    if isinstance(into, type):
        if hasattr(into, "model_validate"):
            validate: Build = into.model_validate
            return validate
        if dataclasses.is_dataclass(into):
            return _DataclassBuilder({}).build(into)
    if callable(into):
        function: Build = into
        return function
    raise InvalidConfigError(f"into={into!r:.80}: must be a dataclass, a pydantic model, or a callable of one argument")


class _DataclassBuilder:
    """Builds nested dataclasses by their type hints: fields of the types list, tuple, set, dict and Optional may hold
    other dataclasses and enums."""

    def __init__(self, made: dict[type, Build]) -> None:
        self._made = made

    def build(self, kind: type) -> Build:
        if kind in self._made:
            return self._made[kind]
        conversions: dict[str, Build] = {}

        def make(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            given = {name: value[name] for name in names if name in value}
            for name, convert in conversions.items():
                if given.get(name) is not None:
                    given[name] = convert(given[name])
            return kind(**given)

        self._made[kind] = make  # a class may contain itself
        hints = typing.get_type_hints(kind)
        fields = [each for each in dataclasses.fields(kind) if each.init]
        names = [each.name for each in fields]
        for each in fields:
            convert = self._conversion(hints[each.name])
            if convert is not None:
                conversions[each.name] = convert
        return make

    def _conversion(self, hint: Any) -> Build | None:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            found = [self._conversion(each) for each in arguments if each is not type(None)]
            return found[0] if len(found) == 1 else None  # a value does not show which of several members it has
        if origin is typing.Annotated:
            return self._conversion(arguments[0])
        if origin in (list, set, frozenset) and arguments:
            return _of_items(origin, self._conversion(arguments[0]))
        if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
            return _of_items(tuple, self._conversion(arguments[0]))
        if origin is dict and len(arguments) == 2:
            inner = self._conversion(arguments[1])
            return None if inner is None else _of_values(inner)
        if isinstance(hint, type):
            if hasattr(hint, "model_validate"):
                validate: Build = hint.model_validate
                return validate
            if dataclasses.is_dataclass(hint):
                return self.build(hint)
            if issubclass(hint, enum.Enum):
                return _of_enum(hint)
        return None


def _of_items(kind: Callable[[Any], Any], inner: Build | None) -> Build | None:
    if inner is None:
        return None if kind is list else kind
    item = inner
    return lambda values: kind(item(each) for each in values)


def _of_values(inner: Build) -> Build:
    return lambda values: {key: inner(each) for key, each in values.items()}


def _of_enum(kind: type[enum.Enum]) -> Build:
    def make(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            return kind[value]

    return make


def plain(value: Any) -> Any:
    """The value as JSON's types: objects become dicts; dates, UUIDs and decimals become text, and bytes become base64.
    A Number of ``exact_json`` stays one. Raises TypeError, and ValueError for two keys that become one."""
    if value is None or isinstance(value, bool | int | float | str | Number):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, Mapping):
        made = {str(plain(key)): plain(each) for key, each in value.items()}
        if len(made) < len(value):
            raise ValueError(f"two of the keys {list(value)!r:.80} become one in JSON")
        return made
    if isinstance(value, list | tuple | set | frozenset):
        names = getattr(value, "_fields", None)
        if names is not None:
            return {name: plain(each) for name, each in zip(names, value, strict=True)}
        return [plain(each) for each in value]
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if hasattr(type(value), "__attrs_attrs__"):
        return {each.name: plain(getattr(value, each.name)) for each in type(value).__attrs_attrs__}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if hasattr(value, "__index__"):
        return int(value)
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
