r"""kcat's output formats: ``-f`` templates, ``-J`` envelopes, and headers as text. The functions of the module convert
bytes to bytes, without files or a clock.

    %s value   %S its length (-1: null)   %R its length as 4 bytes, big-endian
    %k key     %K its length (-1: null)   %T timestamp (ms)   %h headers as a=b,c=d
    %t topic   %p partition   %o offset   %% a percent sign    \n \r \t \\ \0 \xHH escapes

The tokens of a format string are documented in kcat(1), "Format string tokens".

kcat's ``-o``, where to start and stop:

    beginning (earliest)  end (latest)  stored  N (absolute)  -N (the last N)  s@TIME (from)  e@TIME (up to)

``s@`` and ``e@`` may be combined by passing ``-o`` twice. A TIME is milliseconds since 1970, as in kcat, or a duration
or time that times.py accepts. Without ``s@``, a duration such as ``-2h`` or an ISO time means the same as with ``s@``.
The forms of an offset are documented in kcat(1), option -o.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_core import exact_json
from headrace_core.errors import InvalidArgumentError, UnsupportedVersionError
from headrace_core.types import TimestampType

from .times import time_ms

if TYPE_CHECKING:
    from headrace_core.records import Record

Headers = Sequence[tuple[str, bytes | None]]

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def unescape(text: str) -> bytes:
    r"""The bytes of a string with the escapes ``\n``, ``\t``, ``\0``, ``\xHH``. Raises InvalidArgumentError for an
    unknown escape."""

    def replace(found: re.Match[str]) -> str:
        what = found.group(1)
        if what in _PLAIN:
            return _PLAIN[what]
        if len(what) == 3:
            return chr(0xDC00 + int(what[1:], 16)) if int(what[1:], 16) > 127 else chr(int(what[1:], 16))
        raise InvalidArgumentError(rf"unknown escape \{what} in {text!r}; use one of \n \r \t \\ \0 \xHH")

    return _ESCAPE.sub(replace, text).encode("utf-8", "surrogateescape")


def header_text(headers: Headers) -> bytes:
    """``a=b,c=NULL``: kcat's %h."""
    return b",".join(key.encode() + b"=" + (b"NULL" if value is None else value) for key, value in headers)


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def compile_format(template: str, *, null: bytes = b"") -> Callable[[Record], bytes]:
    """Compile a format string to a function that renders a record; ``null`` is printed for a missing key or value
    (``NULL`` with kcat's -Z).

    Raises InvalidArgumentError for an unknown token.
    """
    tokens: dict[str, Callable[[Record], bytes]] = {
        "s": lambda record: null if record.value is None else record.value,
        "S": lambda record: b"%d" % _size(record.value),
        "R": lambda record: struct.pack(">i", _size(record.value)),
        "k": lambda record: null if record.key is None else record.key,
        "K": lambda record: b"%d" % _size(record.key),
        "T": lambda record: b"%d" % record.timestamp_ms,
        "h": lambda record: header_text(record.headers or ()),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
    }
    parts: list[Callable[[Record], bytes]] = []
    position = 0
    for found in re.finditer(r"%(.?)", template, re.DOTALL):
        _literal(parts, template[position : found.start()])
        position = found.end()
        token = found.group(1)
        if token == "%":
            _literal(parts, "%")
        elif token in tokens and token:
            parts.append(tokens[token])
        else:
            known = " ".join(f"%{name}" for name in tokens)
            raise InvalidArgumentError(f"-f: unknown token %{token} in {template!r}; use one of {known} %%")
    _literal(parts, template[position:])
    return lambda record: b"".join([part(record) for part in parts])


def _literal(parts: list[Callable[[Record], bytes]], text: str) -> None:
    if text:
        raw = unescape(text)
        parts.append(lambda record: raw)


def default_format(delimiter: bytes, key_delimiter: bytes | None, *, null: bytes = b"") -> Callable[[Record], bytes]:
    """The function that renders a record if -f is not given: the value, then the delimiter of -D. With -K, the key and
    the delimiter of -K come before the value."""

    def render(record: Record) -> bytes:
        value = null if record.value is None else record.value
        if key_delimiter is None:
            return value + delimiter
        return (null if record.key is None else record.key) + key_delimiter + value + delimiter

    return render


def envelope(record: Record) -> dict[str, Any]:
    """kcat's -J object. ``broker`` is -1, as in kcat with an older librdkafka. Bytes that are not valid UTF-8 become
    replacement characters; the field ``..._base64`` has the exact bytes."""
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": "logappend" if record.timestamp_type is TimestampType.LOG_APPEND_TIME else "create",
        "ts": record.timestamp_ms,
        "broker": -1,
    }
    if record.headers:
        found["headers"] = [item for key, value in record.headers for item in (key, _text(value))]
    return found | _named("key", record.key) | _named("payload", record.value)


def document(record: Record) -> dict[str, Any]:
    """One record as ``consume -o json`` prints it, with the field names of the Python client."""
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "headers": [[key, _text(value)] for key, value in record.headers or ()],
    }
    return found | _named("key", record.key) | _named("value", record.value)


class Decoded(bytes):
    """A key or value that a schema registry has decoded: the bytes of its JSON. ``document``: the value as JSON's
    types; ``schema_id``: the id of its schema."""

    document: Any
    schema_id: int

    @classmethod
    def of(cls, document: Any, schema_id: int) -> Decoded:
        valid = _valid(document)
        made = cls(exact_json.dumps(valid, separators=(",", ":")).encode())
        made.document, made.schema_id = valid, schema_id
        return made


def _valid(document: Any) -> Any:
    """The document with what JSON and UTF-8 cannot express replaced: NaN and infinities by the texts "NaN", "Infinity"
    and "-Infinity", as ProtoJSON writes them, and a lone surrogate by "?"."""
    if isinstance(document, str):
        return document if document.isascii() else document.encode("utf-8", "replace").decode()
    if isinstance(document, float) and not math.isfinite(document):
        return "NaN" if math.isnan(document) else "Infinity" if document > 0 else "-Infinity"
    if isinstance(document, dict):
        return {_valid(key): _valid(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_valid(each) for each in document]
    return document


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _named(name: str, data: bytes | None) -> dict[str, Any]:
    if isinstance(data, Decoded):
        return {name: data.document, f"{'value' if name == 'payload' else name}_schema_id": data.schema_id}
    found: dict[str, Any] = {name: _text(data)}
    if data is not None and (found[name] or "").encode() != data:
        found[f"{name}_base64"] = base64.b64encode(data).decode()
    return found


def json_line(record: Record) -> bytes:
    return exact_json.dumps(envelope(record), separators=(",", ":")).encode()


# -- where to start and stop


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The ``-o`` options. At most one of the three start fields is set; if none is set, reading starts at the
    beginning."""

    at: int | None = None  # an absolute offset, or -N for N records before the end
    from_end: bool = False
    start_ms: int | None = None
    stop_ms: int | None = None

    def start(self, beginning: int, end: int, by_time: int | None) -> int:
        """The offset at which reading starts, in a log with the offsets [beginning, end). ``by_time``: the offset found
        for ``start_ms``; None if no record has that timestamp or a later one. A deleted offset becomes the first offset
        that exists, so that no readable record is skipped; an offset beyond the end is kept. ``_Choice`` in consume.py
        applies auto.offset.reset to offsets that were deleted or are beyond the end."""
        if self.from_end:
            return end
        if self.start_ms is not None:
            return end if by_time is None else by_time
        if self.at is None:
            return beginning
        return max(beginning, end + self.at if self.at < 0 else self.at)


def parse_offsets(given: Iterable[str]) -> OffsetRange:
    """Parse the values of one or more ``-o``. Raises InvalidArgumentError, which lists the valid forms of an offset."""
    at: int | None = None
    from_end = False
    start_ms: int | None = None
    stop_ms: int | None = None
    starts = 0
    for text in given:
        name = text.strip().lower()
        if name == "stored":
            raise UnsupportedVersionError("-o stored: to continue at committed offsets use -G GROUP TOPIC...")
        if name.startswith("e@"):
            if stop_ms is not None:
                raise InvalidArgumentError("-o e@TIME is given twice; pass it once")
            stop_ms = _time(name[2:])
            continue
        starts += 1
        if name in ("end", "latest"):
            from_end = True
        elif name.startswith("s@"):
            start_ms = _time(name[2:])
        elif re.fullmatch(r"-?\d+", name):
            at = int(name)
        elif name not in ("beginning", "earliest"):
            try:
                start_ms = time_ms(name)
            except ValueError:
                raise InvalidArgumentError(
                    f"-o {text}: must be beginning, end, N, -N, -2h, s@TIME, e@TIME or json"
                ) from None
    if starts > 1:
        raise InvalidArgumentError("-o: pass only one start offset; you can add e@TIME and json")
    return OffsetRange(at=at, from_end=from_end, start_ms=start_ms, stop_ms=stop_ms)


def _time(text: str) -> int:
    try:
        return time_ms(text)
    except ValueError as error:
        raise InvalidArgumentError(f"-o: {error}") from None
