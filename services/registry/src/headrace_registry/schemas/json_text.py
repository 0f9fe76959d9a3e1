"""JSON as Confluent's registry reads and writes it, with a limit on the nesting.

Avro's parser in Java allows comments in a schema. Both of Confluent's JSON parsers keep the last of several equal keys.
The numbers of a JSON Schema keep their digits (``1.0`` stays ``1.0``). In an Avro schema, a number with a fraction or
an exponent becomes a double.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from headrace_registry.schemas.model import DEPTH_MAX, InvalidSchemaError, check_unicode

#: Matches a string, a comment or a bracket. The end of a string or comment is optional, so that no alternative fails
#: halfway and a search takes linear time.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.?)*+"?+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?+|//[^\n]*+|[\[\]{}]', re.DOTALL)
#: Matches an escape of a surrogate, which may lack its other half.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
#: Maps Python's types to JSON's names of these types.
_NAMES: Final = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


def read(text: str, *, comments: bool = False, exact: bool = False) -> Any:
    """Read a JSON text.

    ``comments`` allows C's and C++'s comments. With ``exact``, a number with a fraction or an exponent becomes a
    Decimal; without ``exact``, such a number becomes a float. Raise InvalidSchemaError for text that is not JSON, is
    nested too deeply, or has half of a surrogate pair.
    """
    text = _checked(text, comments)
    try:
        value = json.loads(text, parse_float=_exact_number if exact else _double, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidSchemaError(
            f"the schema is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise InvalidSchemaError(f"the schema is not valid JSON: {error}") from None
    if _SURROGATE.search(text):
        check_unicode(write(value))
    return value


def _checked(text: str, comments: bool) -> str:
    """Return the text without its comments, after a check of its nesting."""
    depth = 0
    kept: list[str] = []
    end = 0
    for token in _TOKEN.finditer(text):
        first = token.group()[0]
        if first in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                line = text.count("\n", 0, token.start()) + 1
                raise InvalidSchemaError(
                    f"the schema is nested deeper than {DEPTH_MAX} levels at line {line}; name its parts and refer to "
                    "the names"
                )
        elif first in "]}":
            depth -= 1
        elif first == "/" and comments:
            kept.append(text[end : token.start()])
            kept.append(re.sub(r"[^\n]", " ", token.group()))  # so that errors still name the right line and column
            end = token.end()
    return "".join([*kept, text[end:]]) if kept else text


def _exact_number(digits: str) -> Decimal:
    try:
        return Decimal(digits)
    except InvalidOperation:
        raise ValueError(f"the exponent of the number {digits[:40]} is too large; write a smaller number") from None


def _double(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large for a double; write a smaller number")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number; write a finite number")


def kind(value: Any) -> str:
    """The name of a JSON value's type, for messages."""
    return _NAMES.get(type(value), "number")


def write(value: Any, *, sort: bool = False) -> str:
    """Write a value as compact JSON, as Jackson does; with ``sort``, the keys of objects are sorted."""
    parts: list[str] = []
    _write(value, sort, parts)
    return "".join(parts)


def _write(value: Any, sort: bool, parts: list[str]) -> None:
    if isinstance(value, dict):
        parts.append("{")
        for index, key in enumerate(sorted(value) if sort else value):
            parts.append(f"{',' if index else ''}{quoted(key)}:")
            _write(value[key], sort, parts)
        parts.append("}")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for index, item in enumerate(value):
            if index:
                parts.append(",")
            _write(item, sort, parts)
        parts.append("]")
    elif isinstance(value, str):
        parts.append(quoted(value))
    elif isinstance(value, float):
        parts.append(java_double(value))
    elif value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    else:
        parts.append(str(value))  # int, and Decimal in Java's form of BigDecimal


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


def quoted(text: str) -> str:
    """A string in JSON, escaped as Jackson escapes it."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    return _ESCAPES.get(character) or f"\\u{ord(character):04X}"


def java_double(number: float) -> str:
    """A double as Java's ``Double.toString`` writes it: ``1.0``, ``1.0E10``, ``1.5E-5``; infinity and NaN in quotes."""
    if not math.isfinite(number):
        return '"NaN"' if math.isnan(number) else f'"{"-" if number < 0 else ""}Infinity"'
    if number == 0:
        return "-0.0" if math.copysign(1, number) < 0 else "0.0"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    figures = "".join(map(str, digits)).rstrip("0") or "0"
    magnitude = exponent + len(digits) - 1
    if -3 <= magnitude < 7:
        if magnitude < 0:
            whole, fraction = "0", "0" * (-magnitude - 1) + figures
        else:
            padded = figures.ljust(magnitude + 1, "0")
            whole, fraction = padded[: magnitude + 1], padded[magnitude + 1 :]
        return f"{'-' if sign else ''}{whole}.{fraction or '0'}"
    return f"{'-' if sign else ''}{figures[0]}.{figures[1:] or '0'}E{magnitude}"


def pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer (RFC 6901) to a place of a JSON text, for messages; ``/`` is the whole text."""
    return "/" + "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)
