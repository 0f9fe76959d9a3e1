"""Show bytes, numbers, times and durations as text. Pure.

Record contents are untrusted. Every control character and every character that changes the direction of text becomes a
visible escape. Bytes that are not UTF-8 become a hex dump, and long values are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from headrace_core import exact_json
from headrace_core.visible import escaped

#: Maximum number of characters that the console shows of a value: in a list, and on the page of the value's record.
LISTED_MAX = 300
WHOLE_MAX = 100_000
#: A JSON text with more bytes than this number is not formatted, because parsing costs time.
_JSON_BYTES_MAX = 1_000_000
#: Maximum size of a key or value that a list keeps whole; of a longer key or value, the list keeps the first _BEGINNING
#: bytes.
LISTED_BYTES_MAX, _BEGINNING = 65_536, 2_048
_HEX_ROW = 16
#: Maximum fraction of invalid bytes with which a value still counts as text with some broken characters.
_BROKEN_MAX = 0.1

Kind = Literal["null", "empty", "text", "json", "binary"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A key or value as text. ``size``: bytes of the whole key or value; ``is_cut``: whether ``text`` shows only its
    beginning."""

    kind: Kind
    text: str
    size: int
    is_cut: bool = False
    note: str = ""


class Beginning(bytes):
    """The beginning of a key or value. ``whole_size``: bytes of the whole key or value."""

    whole_size: int


def beginning(data: bytes | None) -> bytes | None:
    """``data``, or a Beginning if it is longer than LISTED_BYTES_MAX."""
    if data is None or len(data) <= LISTED_BYTES_MAX:
        return data
    found = Beginning(data[:_BEGINNING])
    found.whole_size = len(data)
    return found


def shown(data: bytes | None, *, limit: int = LISTED_MAX, pretty: bool = False) -> Shown:
    """``data`` as text of at most about ``limit`` characters; with ``pretty``, JSON is shown on several lines."""
    if data is None:
        return Shown("null", "", 0)
    if not data:
        return Shown("empty", "", 0)
    size = data.whole_size if isinstance(data, Beginning) else len(data)
    # A character has at most four bytes in UTF-8, so bytes after ``head`` would not be shown anyway.
    head = data if pretty and len(data) <= _JSON_BYTES_MAX else data[: 4 * limit + 4]
    text, is_broken = _decoded(head, is_whole=len(head) == size)
    if text is None:
        return _hex(data, limit, size)
    kind: Kind = "json" if not is_broken and text[:1] in '{["' else "text"
    if pretty and kind == "json" and len(head) == size:
        formatted = _formatted(text, limit)
        if formatted is None:
            kind = "text"
        else:
            text = formatted
    visible = escaped(text[:limit])
    is_cut = len(text) > limit or len(head) < size
    note = "not valid UTF-8: broken bytes are shown as \\xNN" if is_broken else ""
    return Shown(kind, visible, size, is_cut, note)


def _decoded(data: bytes, *, is_whole: bool) -> tuple[str | None, bool]:
    """The text of ``data``, and whether some of the bytes are not UTF-8; the text is None for binary data."""
    try:
        return data.decode(), False
    except UnicodeDecodeError as error:
        if not is_whole and error.start >= len(data) - 3:
            return data[: error.start].decode(), False  # the cut is within a character
    text = data.decode(errors="backslashreplace")
    broken = len(data) - len(data.decode(errors="ignore").encode())
    control = sum(byte < 0x20 and byte not in (0x09, 0x0A, 0x0D) for byte in data)
    if broken + control > _BROKEN_MAX * len(data):
        return None, True
    return text, True


def json_text(value: object, limit: int) -> str:
    """``value`` as JSON on several lines. If the JSON is longer than ``limit`` characters, only its beginning is
    returned, which may exceed ``limit`` a little. The JSON can be a thousand times as long as the record, because
    nested lines are indented. Raises ValueError and RecursionError."""
    parts: list[str] = []
    length = 0
    for part in exact_json.parts(value):
        parts.append(part)
        length += len(part)
        if length > limit:
            break
    return "".join(parts)


def _formatted(text: str, limit: int) -> str | None:
    try:
        return json_text(exact_json.loads(text), limit)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply to format
        return None


def _hex(data: bytes, limit: int, size: int) -> Shown:
    """A hex dump of ``data``; in a list of records, only one row of hex digits."""
    if limit <= LISTED_MAX:
        count = limit // 3
        return Shown("binary", data[:count].hex(" "), size, size > count)
    rows = limit // 76
    lines = []
    for start in range(0, min(len(data), rows * _HEX_ROW), _HEX_ROW):
        part = data[start : start + _HEX_ROW]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {letters}")
    return Shown("binary", "\n".join(lines), size, size > rows * _HEX_ROW)


# -- numbers and times


def number(value: float | None) -> str:
    """A count or a rate; "–" if unknown."""
    if value is None:
        return "–"
    if isinstance(value, float) and value < 10 and value != int(value):
        return f"{value:.1f}"
    return f"{round(value):,}"


def noun(count: float | None, one: str) -> str:
    """``one`` if ``number(count)`` is "1", else the plural: ``one`` with an s."""
    return one if number(count) == "1" else f"{one}s"


def size(count: float | None) -> str:
    """A number of bytes as text with a binary unit, such as "1.5 MiB"."""
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def duration(ms: float | None) -> str:
    """A duration in its two largest units: "2 d 3 h", "4 min 10 s", "250 ms"."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{round(ms)} ms"
    seconds = round(ms / 1_000)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def when(ms: float | None) -> str:
    """A time in UTC, to the millisecond; "–" if unknown (None, -1)."""
    if ms is None or ms == -1:
        return "–"
    if not -62_135_596_800_000 <= ms < 253_402_300_800_000:  # the years 1 to 9999
        return f"{round(ms)} ms since 1970"
    return (datetime(1970, 1, 1) + timedelta(milliseconds=round(ms))).isoformat(" ", "milliseconds")


def config_words(key: str, value: str) -> str:
    """A configuration value in readable form, for keys with a unit; "" if the value needs no explanation."""
    try:
        count = int(value)
    except ValueError:
        return ""
    if count == -1 and key.endswith((".ms", ".bytes")):
        return "no limit"
    if key.endswith(".ms") and 1_000 <= count < 1 << 62:
        return duration(count)
    if key.endswith(".bytes") and 1_024 <= count < 1 << 62:
        return size(count)
    return ""
