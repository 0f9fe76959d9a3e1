"""JSON that every reader reads as the value that was written: no NaN, no keys that meet, no half surrogate pairs."""

from __future__ import annotations

import json
from typing import Any

#: The levels of nesting that readers take: Python's own parser ends near 1,000 less its caller's depth, and Java's
#: Jackson at 1,000.
DEPTH_MAX = 500
_NESTED = (dict, list, tuple)

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class NotJsonError(ValueError):
    """The value cannot be written as JSON. ``path`` names the place ("" for the whole value)."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason, self.path = reason, path


def encode(value: Any) -> bytes:
    """Compact JSON as UTF-8. Raises NotJsonError."""
    try:
        text = _encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(value, str(error)) from error
    if isinstance(value, _NESTED) and not _is_readable(value):
        raise _not_json(value, "it cannot be read back")
    return text


def _not_json(value: Any, otherwise: str) -> NotJsonError:
    try:
        path, reason = _fault(value, "", 0) or ("", otherwise)
    except RecursionError:  # the caller's own stack is deep
        path, reason = "", "is nested too deep for Python's recursion limit here"
    return NotJsonError(reason, path)


def _is_readable(value: Any) -> bool:
    """Whether each object has as many keys as the dict, and nothing is nested too deep."""
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                try:
                    "".join(each)  # the fastest way to see that each key is text
                except TypeError:
                    if len(set(map(_key, each))) < len(each):
                        return False
                each = each.values()
            below += [item for item in each if isinstance(item, _NESTED)]
        if not below:
            return True
        level = below
    return False


def _key(key: Any) -> str:
    """A key as ``json`` writes it."""
    if isinstance(key, str):
        return key
    return str(_encode(key))


def _fault(value: Any, path: str, depth: int) -> tuple[str, str] | None:
    """The path and the reason of the first fault."""
    if depth > DEPTH_MAX:
        return path[:60] + "...", f"is nested more than {DEPTH_MAX} levels deep, or contains itself"
    if isinstance(value, dict):
        seen: set[str] = set()
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool | None):
                return path, f"the key {key!r:.60} is a {type(key).__name__}; JSON has only text as keys"
            try:
                name = _key(key)
            except ValueError:
                return path, f"the key {key!r:.60} is not a JSON number"
            if name in seen:
                return path, f"two keys become {name!r:.60} in JSON; readers would keep one of them"
            seen.add(name)
            found = _text_fault(name, path, "the key") or _fault(item, f"{path}.{name}" if path else name, depth + 1)
            if found:
                return found
        return None
    if isinstance(value, list | tuple):
        for at, item in enumerate(value):
            found = _fault(item, f"{path}[{at}]", depth + 1)
            if found:
                return found
        return None
    if isinstance(value, str):
        return _text_fault(value, path, "the text")
    if value is None or isinstance(value, int | float):
        try:
            _encode(value)
        except ValueError:
            if isinstance(value, float):
                return path, f"{value!r} is not a JSON number; write null, or a text"
            return path, "an integer of this many digits cannot be written; write it as text"
        return None
    return path, f"a {type(value).__name__} cannot be written as JSON; convert it to a JSON type first"


def _text_fault(text: str, path: str, what: str) -> tuple[str, str] | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return path, f"{what} {text!r:.60} has half of a surrogate pair at character {error.start}, which is not UTF-8"
    return None
