"""Durations and times on the command line: all options use one grammar.

duration   500ms  10s  5m  2h  7d  1w  1h30m  P1DT2H (ISO 8601); a number alone is in seconds
time       2026-11-21T08:00:00.000 (UTC, or with a zone: +01:00)  2026-11-21  -2h (two hours ago)
           a number alone is in milliseconds since 1970
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import typer

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIT = r"\d+(?:\.\d+)?(?:ms|min|[smhdw])"
_DURATION = re.compile(rf"(?:{_UNIT})+", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])", re.IGNORECASE)
_ISO_DURATION = re.compile(
    r"P(?=.)(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?"
    r"(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


def duration_ms(text: str) -> int:
    """Convert a duration with a unit to milliseconds. Raises ValueError."""
    wanted = text.strip()
    if _DURATION.fullmatch(wanted):
        return _bounded(sum(float(number) * _UNITS_MS[unit.lower()] for number, unit in _PART.findall(wanted)), text)
    found = _ISO_DURATION.fullmatch(wanted)
    if found is None:
        raise ValueError(f"{text!r}: must be a duration such as 500ms, 10s, 5m, 2h, 7d, 1h30m or PT1H30M")
    parts = found.groupdict().items()
    return _bounded(sum(float(number) * _UNITS_MS[unit] for unit, number in parts if number), text)


def _bounded(ms: float, text: str) -> int:
    """``ms`` as an integer. Raises ValueError if ``ms`` does not fit into the protocol's 64-bit fields."""
    if ms >= 1 << 63:
        raise ValueError(f"{text[:40]!r}: must be less than 2^63 milliseconds")
    return round(ms)


def time_ms(text: str) -> int:
    """Milliseconds since 1970. Raises ValueError."""
    wanted = text.strip()
    if wanted.isascii() and wanted.isdigit():
        if len(wanted) > 19 or int(wanted) >= 1 << 63:
            raise ValueError(f"{text[:40]!r}: must be less than 2^63 milliseconds")
        return int(wanted)
    now_ms = int(time.time() * 1_000)
    try:
        if wanted.startswith("-"):
            return max(0, now_ms - duration_ms(wanted[1:]))
        when = datetime.fromisoformat(wanted)
    except ValueError:
        raise ValueError(
            f"{text!r}: must be a time such as 2026-11-21T08:00:00.000 (UTC, or with a zone: +01:00), -2h (two hours "
            "ago), or milliseconds since 1970"
        ) from None
    found = round((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp() * 1_000)
    if found < 0:
        raise ValueError(f"{text!r}: must not be before 1970")
    return found


def config_value(key: str, value: str) -> str:
    """The value of a key; a duration such as ``retention.ms=7d`` is converted to milliseconds."""
    if key.endswith(".ms"):
        try:
            return str(duration_ms(value))
        except ValueError:
            pass
    return value


def duration(*flags: str, help: str, least_s: float = 0.0) -> Any:  # noqa: A002 -- as typer.Option calls it
    """Make a ``typer.Option`` for a duration; the command receives seconds, at least ``least_s``."""

    def seconds(given: Any) -> float:
        text = str(given)
        try:
            found = float(text) if _is_number(text) else duration_ms(text) / 1_000
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if found < least_s:
            raise typer.BadParameter(f"{text!r}: must be at least {least_s:g} s")
        return found

    return typer.Option(*flags, parser=seconds, metavar="DURATION", help=help)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d*)?|\.\d+", text.strip()) is not None
