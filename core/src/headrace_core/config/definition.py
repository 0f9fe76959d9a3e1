"""Declare configuration keys: each key once, with type, range, default, documentation, source and effect.

A component declares a frozen ``ConfigDef`` of ``ConfigKey``s. Users pass strings (from files, command lines, requests)
or Python values (keyword arguments), with Kafka's dotted names or the same names in snake_case. ``ConfigDef.parse``
returns a dict of typed values with every default filled in. An unknown key raises InvalidConfigError with a "did you
mean".

A key has one of three statuses. *Honoured*: the key works. *Accepted*: the key has no effect, and a note about its
replacement is logged. *Refused*: a value other than the default is an error that says why. The page
docs/reference/configuration.md is generated from the declared keys.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidConfigError

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
NAME_CHARACTERS_MAX = 255  #: Maximum number of characters of a key's name.
VALUE_CHARACTERS_SHOWN = 100  #: Maximum number of characters of a wrong value that an error shows.
HEADRACE = "Headrace"  #: Value of ConfigKey.source for keys that Kafka does not have.
CONFLUENT = "Confluent"  #: Value of ConfigKey.source for keys of Confluent's Schema Registry and Confluent Server.


class Kind(enum.Enum):
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    PASSWORD = "password"  # a string that is never shown: not in errors, descriptions or logs
    CLASS = "class"  # any Python object, such as a serializer or a partitioner; a CLASS value never comes from text


class Scope(enum.Enum):
    """The scope of a change of a key. For a broker key, the scope is Kafka's "update mode"; a topic key is changed per
    topic."""

    # A value set in the properties file (or when a client is created); a change needs a restart.
    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"  # a value that may change while the broker runs, for one broker only
    CLUSTER_WIDE = "cluster-wide"  # a value that may change while brokers run, for all brokers or for one broker
    PER_TOPIC = "per-topic"


class Status(enum.Enum):
    HONOURED = "honoured"
    ACCEPTED = "accepted"  # the key is accepted and has no effect: ``note`` names the replacement
    REFUSED = "refused"  # the key is refused, and ``refusal`` gives the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One configuration key. ``low`` and ``high`` are the inclusive limits of a number; ``choices`` are the legal
    strings (of each item, for a LIST).

    ``note``: what replaces an accepted key (logged when the key is set). ``refusal``: why only the default value is
    accepted. ``source``: "Kafka", the KIP that introduced the key, "Confluent" or "Headrace". A name that ends in
    ``.*`` declares a family: all keys with that prefix that have no declaration of their own.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None
    check: Callable[[Any], str | None] | None = None  # returns an error message for a wrong value, or None
    note: str | None = None
    refusal: str | None = None
    scope: Scope = Scope.READ_ONLY
    source: str = "Kafka"
    #: The broker key that sets this topic key's default, such as log.retention.ms for retention.ms.
    server_key: str | None = None

    @property
    def dynamic(self) -> bool:
        """Whether the key can be changed while brokers run (``headrace configs alter``)."""
        return self.scope is not Scope.READ_ONLY

    @property
    def sensitive(self) -> bool:
        """Whether the key's value must never be shown."""
        return self.kind is Kind.PASSWORD

    @property
    def status(self) -> Status:
        if self.refusal is not None:
            return Status.REFUSED
        return Status.HONOURED if self.note is None else Status.ACCEPTED

    @property
    def documentation(self) -> str:
        """The key's whole documentation as one text."""
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
        """The key's legal values in words; empty when all values of the type are legal."""
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
        """Convert ``raw`` to a typed value; InvalidConfigError names the key, the value and the legal values."""
        if self.refusal is not None:
            return self._parse_refused(raw)
        return self._parse(raw)

    def format(self, value: Any) -> str:
        """Format ``value`` as Kafka's tools print it; the inverse of ``parse``, except for a CLASS value."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple):
            return ",".join(map(str, value))
        if value == math.inf:
            return "Infinity"  # the text that Java, Go and Python parse
        return "" if value is None else str(value)

    def shown(self, raw: Any) -> str:
        """Format ``key=value`` for an error, with passwords hidden and long values shortened."""
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
        if self.choices is not None:
            for item in value if self.kind is Kind.LIST else (value,):
                if item not in self.choices:
                    raise InvalidConfigError(f"{self.shown(raw)}: must be {self.allowed}{_near(item, self.choices)}")
        if value is None and self.check is not None and self.default is not None:
            raise InvalidConfigError(f"{self.shown(raw)}: must be a value; leave the key out to use its default")
        if value is not None and self.check is not None and (wrong := self.check(value)):
            raise InvalidConfigError(f"{self.shown(raw)}: {wrong}")
        return value

    def _parse_refused(self, raw: Any) -> Any:
        """Accept only the default of a refused key; the error does not repeat the refused value, which may be a
        secret."""
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

    ``more``: further fields of ConfigKey. Without the argument ``kind``, the key's kind follows from its default (a
    default of None means a string).
    """
    kind = more.pop("kind", None) or _KINDS.get(type(default), Kind.STRING)
    return ConfigKey(name=name, kind=kind, default=default, doc=doc, **more)


def accepted(name: str, default: Any, doc: str, note: str, **more: Any) -> ConfigKey:
    """Declare a key of Kafka that Headrace has replaced; ``note`` names the replacement."""
    return honoured(name, default, doc, note=note, **more)


def refused(name: str, default: Any, doc: str, refusal: str, **more: Any) -> ConfigKey:
    """Declare a key of Kafka without a replacement: a value other than the default is an error with the text
    ``refusal``."""
    return honoured(name, default, doc, refusal=refusal, **more)


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) or value.is_integer() else f"{value:g}"


def _near(name: str, names: Iterable[str]) -> str:
    import difflib  # only an unknown key needs it

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
#: Maps the suffix of a key's name, such as ``.minutes``, to the milliseconds in the suffix's unit.
_TIME_UNITS = {".ms": 1, ".seconds": 1_000, ".secs": 1_000, ".minutes": 60_000, ".hours": 3_600_000}


def _unit_hint(key: ConfigKey, raw: Any) -> str:
    """Return a hint such as ``; 7d is 604800000`` for a value with a unit, which Kafka's numbers do not have."""
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
    """A contradiction between the values of several keys, each of which is legal alone."""

    keys: tuple[str, ...]
    message: str


#: Checks all values of a component together, and returns the conflicts between keys; any key may be missing from the
#: mapping.
CrossCheck = Callable[[Mapping[str, Any]], Iterable[Conflict]]


def at_most(smaller: str, larger: str, why: str, *, strictly: bool = False) -> CrossCheck:
    """Return a check that the value of key ``smaller`` is at most that of key ``larger`` (``strictly``: is below that
    value)."""

    def check(values: Mapping[str, Any]) -> Iterator[Conflict]:
        low, high = values.get(smaller), values.get(larger)
        if low is not None and high is not None and (low > high or (strictly and low == high)):
            relation = "not below" if strictly else "above"
            yield Conflict((smaller, larger), f"{smaller}={low} is {relation} {larger}={high}: {why}")

    return check


class ConfigDef:
    """The configuration keys of one component. ``where`` names the component in errors.

    ``checks``: conditions on several keys together. ``hints``: {name: text} for names that are unknown to the component
    but known to another component.
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
        self.families: dict[str, ConfigKey] = {}  #: Families of keys by prefix ("ssl."), longest prefix first.
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
        """Return the key with a dotted or snake_case name; an unknown name raises InvalidConfigError with a "did you
        mean"."""
        found = self.keys.get(name) or self.keys.get(self._snake.get(name, "")) or self._of_family(name)
        if found is None:
            # Cut an unknown key's name, because clients choose it and the search for similar names is slow for a long
            # name.
            shown = name[:NAME_CHARACTERS_MAX]
            dotted = shown.replace("_", ".")
            hint = f"; {self.hints[dotted]}" if dotted in self.hints else _near(dotted, self.keys)
            raise InvalidConfigError(f"unknown {self.where} configuration key {shown!r}{hint}")
        return found

    def parse(
        self, given: Mapping[str, Any], *, defaults: bool = True, set_in: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return typed values by dotted name: the given values and, unless ``defaults`` is False, the defaults of all
        other keys.

        ``set_in``: {name as given: the place where the name was set}, for the text of an error. One InvalidConfigError
        names all faults of the configuration.
        """
        values: dict[str, Any] = {}
        wrong = []
        for name, raw in given.items():
            try:
                key = self.key(name)
                if key.name in values:
                    raise InvalidConfigError(f"{self.where} configuration key {key.name!r} is given twice")
                values[key.name] = key.default  # the key counts as given, although its value is wrong
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
        """Return the contradictions among typed values of keys."""
        return [conflict for check in self.checks for conflict in check(values)]

    def check_together(self, values: Mapping[str, Any], *, touched: Iterable[str] | None = None) -> None:
        """Raise InvalidConfigError if values contradict each other; with ``touched``, only contradictions that involve
        one of the ``touched`` keys."""
        concerned = None if touched is None else set(touched)
        found = [
            conflict.message
            for conflict in self.conflicts(values)
            if concerned is None or not concerned.isdisjoint(conflict.keys)
        ]
        if found:
            raise InvalidConfigError("; ".join(found))

    def notes(self, given: Iterable[str]) -> list[str]:
        """Return a line for each given key that is not honoured: the key's replacement, or why the key has no
        effect."""
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
