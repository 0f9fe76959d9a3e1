"""Declared configuration: each key once, with type, range, default, documentation, source and effect.

A component declares a frozen ``ConfigDef`` of ``ConfigKey``s. Users pass strings (files, command lines, the wire) or
Python values (keyword arguments), with Kafka's dotted names or their snake_case twins; the result is a dict of typed
values with every default filled in. An unknown key is InvalidConfigError with a "did you mean".

A key is *honoured*; or *accepted*, with a note about its replacement, which is logged; or *refused*, with the reason,
unless it has its default value. docs/reference/configuration.md is generated from here.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidConfigError

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
NAME_CHARACTERS_MAX = 255  #: Above the length of every key's name.
VALUE_CHARACTERS_SHOWN = 100  #: Characters of a wrong value that an error repeats.
HEADRACE = "Headrace"  #: ConfigKey.source of the keys that are not Kafka's.


class Kind(enum.Enum):
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    PASSWORD = "password"  # a string that is never shown: not in errors, descriptions or logs
    CLASS = "class"  # any Python object: serializers, partitioners; never comes from text


class Scope(enum.Enum):
    """How a key can be changed. A broker key goes by Kafka's "update mode", a topic key by the topic."""

    READ_ONLY = "read-only"  # in the properties file (or when a client is made), and a restart
    PER_BROKER = "per-broker"  # while it runs, for one broker; not for all of them at once
    CLUSTER_WIDE = "cluster-wide"  # while they run, for all brokers, or for one that is to differ
    PER_TOPIC = "per-topic"


class Status(enum.Enum):
    HONOURED = "honoured"
    ACCEPTED = "accepted"  # replaced by something else: see the note
    REFUSED = "refused"  # see the refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key. ``low`` and ``high`` are inclusive; ``choices`` are the legal strings (of each item, for a LIST).

    ``note``: what replaces an accepted key (logged when it is set). ``refusal``: why only the default is accepted.
    ``source``: "Kafka", the KIP that introduced it, or "Headrace". A name that ends in ``.*`` declares a family: every
    key with that prefix that is not declared by itself.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None
    check: Callable[[Any], str | None] | None = None  # returns the error, or None
    note: str | None = None
    refusal: str | None = None
    scope: Scope = Scope.READ_ONLY
    source: str = "Kafka"
    #: For a topic's key: the broker's key whose value applies to topics that do not set their own.
    server_key: str | None = None

    @property
    def dynamic(self) -> bool:
        """Whether it can be changed while brokers run (``headrace configs alter``)."""
        return self.scope is not Scope.READ_ONLY

    @property
    def sensitive(self) -> bool:
        """Its value must not be shown."""
        return self.kind is Kind.PASSWORD

    @property
    def status(self) -> Status:
        if self.refusal is not None:
            return Status.REFUSED
        return Status.HONOURED if self.note is None else Status.ACCEPTED

    @property
    def documentation(self) -> str:
        """Its whole documentation as one text."""
        parts = [self.doc]
        if self.source == HEADRACE:
            parts.append("Headrace's own key.")
        if self.note is not None:
            parts.append(f"({self.note})")
        if self.refusal is not None:
            parts.append(f"(refused: {self.refusal})")
        return " ".join(parts)

    @property
    def allowed(self) -> str:
        """The legal values in words; empty when all values of the type are legal."""
        if self.choices is not None:
            return ("any of " if self.kind is Kind.LIST else "one of ") + ", ".join(self.choices)
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.low is not None and self.high is not None:
            return f"{_number(self.low)} to {_number(self.high)}"
        if self.low is not None:
            return f"{_number(self.low)} or more"
        return "" if self.high is None else f"{_number(self.high)} or less"

    def parse(self, raw: Any) -> Any:
        """The typed value of ``raw``; InvalidConfigError names the key, the value and legal values."""
        if self.refusal is not None:
            return self._parse_refused(raw)
        return self._parse(raw)

    def format(self, value: Any) -> str:
        """``value`` as text, as Kafka's tools print it; inverse of parse (of CLASS: a name)."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple):
            return ",".join(map(str, value))
        return "" if value is None else str(value)

    def shown(self, raw: Any) -> str:
        """``key=value`` for an error, without passwords, long values shortened."""
        if self.sensitive:
            return f"{self.name}=[hidden]"
        text = repr(raw)
        if len(text) > VALUE_CHARACTERS_SHOWN:
            text = f"{text[:VALUE_CHARACTERS_SHOWN]}... ({len(text)} characters)"
        return f"{self.name}={text}"

    def _parse(self, raw: Any) -> Any:
        value = _CONVERT[self.kind](self, raw)
        if self.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            low, high = self._bounds()
            if not low <= value <= high:
                raise InvalidConfigError(
                    f"{self.shown(raw)}: must be between {_number(low)} and {_number(high)}{_unit_hint(self, raw)}"
                )
        if self.choices is not None and value is not None:
            for item in value if self.kind is Kind.LIST else (value,):
                if item not in self.choices:
                    raise InvalidConfigError(f"{self.shown(raw)}: must be {self.allowed}{_near(item, self.choices)}")
        if self.check is not None and (wrong := self.check(value)):
            raise InvalidConfigError(f"{self.shown(raw)}: {wrong}")
        return value

    def _parse_refused(self, raw: Any) -> Any:
        """Accept only the default; the error does not repeat the value, which may be a secret."""
        try:
            value = self._parse(raw)
        except InvalidConfigError:
            value = object()
        empty = self.default is None and (raw is None or str(raw).strip() == "")
        if not empty and (self.default is None or value != self.default):
            raise InvalidConfigError(f"{self.name} is refused: {self.refusal}")
        return self.default

    def _bounds(self) -> tuple[float, float]:
        widest = INT_MAX if self.kind is Kind.INT else LONG_MAX if self.kind is Kind.LONG else math.inf
        return (-widest if self.low is None else self.low, widest if self.high is None else self.high)


_KINDS = {bool: Kind.BOOLEAN, int: Kind.INT, float: Kind.DOUBLE, str: Kind.STRING, list: Kind.LIST}


def honoured(name: str, default: Any, doc: str, **more: Any) -> ConfigKey:
    """Declare a key that works as documented.

    ``more``: further fields of ConfigKey. ``kind`` follows from the default (None: a string) unless it is given.
    """
    kind = more.pop("kind", None) or _KINDS.get(type(default), Kind.STRING)
    return ConfigKey(name=name, kind=kind, default=default, doc=doc, **more)


def accepted(name: str, default: Any, doc: str, note: str, **more: Any) -> ConfigKey:
    """Declare a key of Kafka's that has a replacement: ``note``."""
    return honoured(name, default, doc, note=note, **more)


def refused(name: str, default: Any, doc: str, refusal: str, **more: Any) -> ConfigKey:
    """Declare a key of Kafka's without a replacement: any value but the default is an error with ``refusal``."""
    return honoured(name, default, doc, refusal=refusal, **more)


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) or value.is_integer() else f"{value:g}"


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name)[:NAME_CHARACTERS_MAX], list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _boolean(key: ConfigKey, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise InvalidConfigError(f"{key.shown(raw)}: must be true or false")


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
    raise InvalidConfigError(f"{key.shown(raw)}: must be a whole number{_unit_hint(key, raw)}")


def _double(key: ConfigKey, raw: Any) -> float:
    try:
        if isinstance(raw, bool):
            raise ValueError
        return float(raw)
    except (TypeError, ValueError, OverflowError):
        raise InvalidConfigError(f"{key.shown(raw)}: must be a number{_unit_hint(key, raw)}") from None


def _string(key: ConfigKey, raw: Any) -> str | None:
    if raw is None or isinstance(raw, str):
        return raw
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return str(raw)
    raise InvalidConfigError(f"{key.shown(raw)}: must be a string")


def _list(key: ConfigKey, raw: Any) -> list[str]:
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",") if item.strip()]
    if isinstance(raw, Iterable):
        return [str(item) for item in raw]
    raise InvalidConfigError(f"{key.shown(raw)}: must be a list, or a string with commas")


_CONVERT: dict[Kind, Callable[[ConfigKey, Any], Any]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT: _integer,
    Kind.LONG: _integer,
    Kind.DOUBLE: _double,
    Kind.STRING: _string,
    Kind.LIST: _list,
    Kind.PASSWORD: _string,
    Kind.CLASS: lambda key, raw: raw,
}

_WITH_UNIT = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]{1,7})\s*", re.IGNORECASE)
_MILLISECONDS = {
    **dict.fromkeys(("ms", "millis"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}
_BYTES = {"b": 1} | {
    unit: 1024**power for power, letter in enumerate("kmgt", start=1) for unit in (letter, f"{letter}b", f"{letter}ib")
}
#: Suffix of a key's name -> milliseconds in its unit.
_TIME_UNITS = {".ms": 1, ".seconds": 1_000, ".secs": 1_000, ".minutes": 60_000, ".hours": 3_600_000}


def _unit_hint(key: ConfigKey, raw: Any) -> str:
    """``; 7d is 604800000``: Kafka's numbers have no units, but people write them."""
    match = _WITH_UNIT.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        return ""
    number, unit = float(match[1]), match[2].lower()
    per_unit = next((factor for suffix, factor in _TIME_UNITS.items() if key.name.endswith(suffix)), None)
    if per_unit is not None and unit in _MILLISECONDS:
        return f"; {raw.strip()} is {number * _MILLISECONDS[unit] / per_unit:.15g}"
    if per_unit is None and unit in _BYTES and any(word in key.name for word in ("bytes", "size", "memory")):
        return f"; {raw.strip()} is {number * _BYTES[unit]:.15g}"
    return ""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Values that are legal alone and contradict each other."""

    keys: tuple[str, ...]
    message: str


#: Checks all values of a component; a key may be missing.
CrossCheck = Callable[[Mapping[str, Any]], Iterable[Conflict]]


def at_most(smaller: str, larger: str, why: str, *, strictly: bool = False) -> CrossCheck:
    """The value of ``smaller`` must be at most that of ``larger`` (``strictly``: below it)."""

    def check(values: Mapping[str, Any]) -> Iterator[Conflict]:
        low, high = values.get(smaller), values.get(larger)
        if low is not None and high is not None and (low > high or (strictly and low == high)):
            relation = "not below" if strictly else "above"
            yield Conflict((smaller, larger), f"{smaller}={low} is {relation} {larger}={high}: {why}")

    return check


class ConfigDef:
    """The keys of one component. ``where`` names it in errors.

    ``checks``: conditions on several keys together. ``hints``: {name: text} for names that are unknown here but have a
    meaning elsewhere.
    """

    def __init__(
        self,
        keys: Iterable[ConfigKey],
        *,
        where: str,
        checks: Iterable[CrossCheck] = (),
        hints: Mapping[str, str] | None = None,
    ) -> None:
        self.keys: dict[str, ConfigKey] = {}
        self.families: dict[str, ConfigKey] = {}  #: By prefix ("ssl."), longest first.
        self.where = where
        self.checks = tuple(checks)
        self.hints = dict(hints or {})
        for key in keys:
            declared, name = (self.families, key.name[:-1]) if key.name.endswith(".*") else (self.keys, key.name)
            if name in declared:
                raise ValueError(f"config key {key.name} is declared twice in {where}")
            declared[name] = key
        self.families = dict(sorted(self.families.items(), key=lambda item: -len(item[0])))
        self._snake = {name.replace(".", "_"): name for name in self.keys}

    def key(self, name: str) -> ConfigKey:
        """The key of a dotted or snake_case name; raises InvalidConfigError with a "did you mean"."""
        found = self.keys.get(name) or self.keys.get(self._snake.get(name, "")) or self._of_family(name)
        if found is None:
            shown = name[:NAME_CHARACTERS_MAX]  # names come from clients too: comparing a long one takes long
            dotted = shown.replace("_", ".")
            hint = f"; {self.hints[dotted]}" if dotted in self.hints else _near(dotted, self.keys)
            raise InvalidConfigError(f"unknown {self.where} configuration key {shown!r}{hint}")
        return found

    def parse(
        self, given: Mapping[str, Any], *, defaults: bool = True, set_in: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Typed values by dotted name: those given and, unless ``defaults`` is False, the default of each other key.

        ``set_in``: {name as given: where it was set}, for the error, which names all faults at once.
        """
        values: dict[str, Any] = {}
        wrong = []
        for name, raw in given.items():
            try:
                key = self.key(name)
                if key.name in values:
                    raise InvalidConfigError(f"{self.where} configuration key {key.name!r} is given twice")
                values[key.name] = key.default  # given, although it is wrong
                values[key.name] = key.parse(raw)
            except InvalidConfigError as error:
                where = (set_in or {}).get(name)
                wrong.append(error.message if where is None else f"{error.message} ({where})")
        if wrong:
            raise InvalidConfigError("; ".join(wrong))
        if defaults:
            for key in self.keys.values():
                values.setdefault(key.name, key.default)
        return values

    def conflicts(self, values: Mapping[str, Any]) -> list[Conflict]:
        """Contradictions among typed values."""
        return [conflict for check in self.checks for conflict in check(values)]

    def check_together(self, values: Mapping[str, Any], *, touched: Iterable[str] | None = None) -> None:
        """InvalidConfigError if values contradict each other; with ``touched``, only about those keys."""
        concerned = None if touched is None else set(touched)
        found = [
            conflict.message
            for conflict in self.conflicts(values)
            if concerned is None or not concerned.isdisjoint(conflict.keys)
        ]
        if found:
            raise InvalidConfigError("; ".join(found))

    def notes(self, given: Iterable[str]) -> list[str]:
        """One line for each given key that is not honoured: its replacement, or why it has no effect."""
        lines = []
        for key in map(self.key, given):
            if key.note is not None:
                lines.append(f"{key.name}: {key.note}")
            elif key.refusal is not None:
                lines.append(f"{key.name}: has no effect: {key.refusal}")
        return lines

    def _of_family(self, name: str) -> ConfigKey | None:
        dotted = name.replace("_", ".") if "." not in name else name
        for prefix, family in self.families.items():
            if dotted.startswith(prefix) and len(dotted) > len(prefix) and len(dotted) <= NAME_CHARACTERS_MAX:
                return dataclasses.replace(family, name=dotted)
        return None
