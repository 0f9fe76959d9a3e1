"""JSON whose numbers keep their digits, for programs that show or pass on the JSON of others.

dumps(loads('{"a": 1.10, "b": -0, "c": 1e400}'))        # '{"a": 1.10, "b": -0, "c": 1e400}'
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: Marks the text of a number until the JSON is written. No value has this text, because it is random.
_MARK = f"number-{os.urandom(8).hex()}:"
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a JSON text, as it was written. It is no float: a float would lose digits, the sign of -0, or all of
    1e400."""

    text: str


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; each number is a Number. Raises RecursionError, and ValueError also for an object with
    two equal names: a dict would lose one of their values."""
    return json.loads(text, parse_float=Number, parse_int=Number, object_pairs_hook=_object)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) < len(members):
        seen: set[str] = set()
        twice = next(name for name, _ in members if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the name {twice!r:.60} twice")
    return made


def dumps(value: Any, *, separators: tuple[str, str] | None = None) -> str:
    """The JSON of a value with Numbers, on one line. Raises TypeError, ValueError and RecursionError."""
    return _MARKED.sub(r"\1", json.dumps(value, ensure_ascii=False, separators=separators, default=_marked))


def parts(value: Any) -> Iterator[str]:
    """The same on several lines, part by part, so that a reader may stop before the end."""
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=_marked).iterencode(value):
        yield _MARKED.sub(r"\1", part)


def _marked(value: object) -> str:
    if isinstance(value, Number):
        return _MARK + value.text
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
