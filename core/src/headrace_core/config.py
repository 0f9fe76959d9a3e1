"""Declared configuration: each key once, with type, range, default and documentation.

A component declares a frozen ``ConfigDef`` of ``ConfigKey``s; users hand in strings (files, command lines, the wire) or
Python values (keyword arguments), with Kafka's dotted names or their snake_case twins; what comes out is a dict of
typed values with every default filled in. Anything unknown is InvalidConfigError with a "did you mean".
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidConfigError

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
#: No key's name is near this long.
NAME_CHARACTERS_MAX = 255


class Kind(enum.Enum):
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    CLASS = "class"  # any Python object: serializers, partitioners; never comes from text


class Scope(enum.Enum):
    """How a key can be changed. A broker key goes by Kafka's "update mode", a topic key by the topic."""

    READ_ONLY = "read-only"  # in the properties file (or when a client is made), and a restart
    PER_BROKER = "per-broker"  # while it runs, for one broker; not for all of them at once
    CLUSTER_WIDE = "cluster-wide"  # while they run, for all brokers, or for one that is to differ
    PER_TOPIC = "per-topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key. ``low`` and ``high`` are inclusive; ``choices`` are the legal strings (of each item, for a LIST).

    ``note`` says what Headrace does with it: None when the key is honoured, else the note that is logged when a
    user sets it (Kafka keys that are accepted because something else stands in their place).
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None
    check: Callable[[Any], str | None] | None = None  # returns what is wrong, or None
    note: str | None = None
    scope: Scope = Scope.READ_ONLY

    @property
    def dynamic(self) -> bool:
        """Can it be changed while brokers run (``headrace configs alter``)?"""
        return self.scope is not Scope.READ_ONLY

    def parse(self, raw: Any) -> Any:
        """The typed value of ``raw``; raises InvalidConfigError naming the key, the value and what would fit."""
        value = _CONVERT[self.kind](self, raw)
        if self.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            low, high = self._bounds()
            if not low <= value <= high:
                raise InvalidConfigError(f"{self.name}={raw!r}: must be between {low:g} and {high:g}")
        if self.choices is not None:
            for item in value if self.kind is Kind.LIST else (value,):
                if item not in self.choices:
                    raise InvalidConfigError(f"{self.name}={raw!r}: must be one of {', '.join(self.choices)}")
        if self.check is not None and (wrong := self.check(value)):
            raise InvalidConfigError(f"{self.name}={raw!r}: {wrong}")
        return value

    def format(self, value: Any) -> str:
        """``value`` as text, the way Kafka's tools print it; the inverse of parse."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple):
            return ",".join(map(str, value))
        return "" if value is None else str(value)

    def _bounds(self) -> tuple[float, float]:
        widest = {Kind.INT: float(INT_MAX), Kind.LONG: float(LONG_MAX), Kind.DOUBLE: float("inf")}[self.kind]
        return (-widest if self.low is None else self.low, widest if self.high is None else self.high)


def _boolean(key: ConfigKey, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise InvalidConfigError(f"{key.name}={raw!r}: must be true or false")


def _integer(key: ConfigKey, raw: Any) -> int:
    if not isinstance(raw, bool):
        try:
            if isinstance(raw, int):
                return raw
            if isinstance(raw, str):
                return int(raw.strip())
            if isinstance(raw, float) and raw.is_integer():
                return int(raw)
        except ValueError:
            pass
    raise InvalidConfigError(f"{key.name}={raw!r}: must be a whole number")


def _double(key: ConfigKey, raw: Any) -> float:
    try:
        if isinstance(raw, bool):
            raise ValueError
        return float(raw)
    except (TypeError, ValueError):
        raise InvalidConfigError(f"{key.name}={raw!r}: must be a number") from None


def _string(key: ConfigKey, raw: Any) -> str | None:
    if raw is None or isinstance(raw, str):
        return raw
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return str(raw)
    raise InvalidConfigError(f"{key.name}={raw!r}: must be a string")


def _list(key: ConfigKey, raw: Any) -> list[str]:
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",") if item.strip()]
    if isinstance(raw, Iterable):
        return [str(item) for item in raw]
    raise InvalidConfigError(f"{key.name}={raw!r}: must be a list, or a string with commas")


_CONVERT: dict[Kind, Callable[[ConfigKey, Any], Any]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT: _integer,
    Kind.LONG: _integer,
    Kind.DOUBLE: _double,
    Kind.STRING: _string,
    Kind.LIST: _list,
    Kind.CLASS: lambda key, raw: raw,
}


class ConfigDef:
    """The keys that one component understands."""

    def __init__(self, keys: Iterable[ConfigKey], *, where: str) -> None:
        self.keys: dict[str, ConfigKey] = {}
        self.where = where
        for key in keys:
            if key.name in self.keys:
                raise ValueError(f"config key {key.name} is declared twice in {where}")
            self.keys[key.name] = key
        self._snake = {name.replace(".", "_"): name for name in self.keys}

    def key(self, name: str) -> ConfigKey:
        """The key of a dotted or snake_case name; raises InvalidConfigError with a "did you mean"."""
        found = self.keys.get(name) or self.keys.get(self._snake.get(name, ""))
        if found is None:
            shown = name[:NAME_CHARACTERS_MAX]  # a name may come from anybody: comparing a long one takes long
            near = difflib.get_close_matches(shown.replace("_", "."), self.keys, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidConfigError(f"unknown {self.where} configuration key {shown!r}{hint}")
        return found

    def parse(self, given: Mapping[str, Any], *, defaults: bool = True) -> dict[str, Any]:
        """Typed values by dotted name: those given and, unless ``defaults`` is False, the default of each other key."""
        values: dict[str, Any] = {}
        for name, raw in given.items():
            key = self.key(name)
            if key.name in values:
                raise InvalidConfigError(f"{self.where} configuration key {key.name!r} is given twice")
            values[key.name] = key.parse(raw)
        if defaults:
            for key in self.keys.values():
                values.setdefault(key.name, key.default)
        return values

    def notes(self, given: Mapping[str, Any]) -> list[str]:
        """One line for each given key that is accepted but that something else stands in for."""
        return [f"{key.name}: {key.note}" for key in map(self.key, given) if key.note]
