"""One record in plain Python: its encoding, and the object that a consumer receives. Part of the reference codec,
_pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..errors import InvalidRecordError
from ..types import TimestampType, TopicPartition
from .types import RECORD_BYTES_MIN, BatchHeader, Buffer, DecodeLimits, Headers

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_ASSIGNABLE = frozenset(("key", "value"))


class Record:
    """One record as a consumer receives it.

    ``key`` and ``value`` are bytes or None, ``headers`` is a list of (str, bytes or None), ``leader_epoch`` is -1 if
    unknown. Deserializers may assign ``key`` and ``value``; all other fields are read-only. Two records are equal when
    all their fields are equal. A record holds no reference to the batch that contained it.
    """

    __slots__ = (
        "_headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "timestamp_ms",
        "timestamp_type",
        "topic",
        "value",
    )
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    #: bytes or None; a deserializer puts its object here, which a program casts.
    key: bytes | None
    value: bytes | None
    leader_epoch: int
    timestamp_type: TimestampType
    _headers: Headers | None

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: Any,
        value: Any,
        headers: Headers | None = None,
        leader_epoch: int = -1,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    ) -> None:
        put = super().__setattr__
        put("topic", topic)
        put("partition", partition)
        put("offset", offset)
        put("timestamp_ms", timestamp_ms)
        put("key", key)
        put("value", value)
        put("_headers", headers)
        put("leader_epoch", leader_epoch)
        put("timestamp_type", TimestampType(timestamp_type))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _ASSIGNABLE:
            raise AttributeError(f"attribute {name!r} of a Record cannot be assigned")
        super().__setattr__(name, value)

    @property
    def headers(self) -> Headers:
        if self._headers is None:  # most records have no headers, so the list of headers is created on first use
            super().__setattr__("_headers", [])
        return self._headers  # type: ignore[return-value]

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def _fields(self) -> tuple[Any, ...]:
        return (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.headers,
            self.leader_epoch,
            self.timestamp_type,
        )

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Record) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it holds a list

    def __repr__(self) -> str:
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, headers={self.headers!r}, "
            f"leader_epoch={self.leader_epoch})"
        )

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, self._fields()


def append_varint(out: bytearray, value: int) -> None:
    """Append ``value`` zigzag-encoded: 0, -1, 1, -2 become 0, 1, 2, 3, seven bits a byte, lowest first."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def varint_size(value: int) -> int:
    """Number of bytes that ``append_varint`` appends for ``value``."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    return max((rest.bit_length() + 6) // 7, 1)


def read_varint(data: Buffer, position: int, end: int, bits: int = 32) -> tuple[int, int]:
    """(value, position after it); InvalidRecordError when it runs past ``end`` or does not fit into ``bits``."""
    result = shift = 0
    while True:
        if position >= end:
            raise InvalidRecordError(f"a varint runs past the end of its record at byte {end}")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise InvalidRecordError(f"the varint before byte {position} is too long for {bits} bits")
    if result >> bits:
        raise InvalidRecordError(f"the varint before byte {position} does not fit into {bits} bits")
    return (result >> 1) ^ -(result & 1), position


class _RawRecord(NamedTuple):
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, Buffer | None]] | None,
) -> bytes:
    """Append one encoded record, with its length in front."""
    body = bytearray(1)  # the attributes of a record: no bit is defined
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_nullable(body, key)
    _append_nullable(body, value)
    pairs = [] if headers is None else list(headers)
    append_varint(body, len(pairs))
    for name, content in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a record header must be str, not {type(name).__name__}")
        _append_nullable(body, name.encode())
        _append_nullable(body, content)
    out = bytearray()
    append_varint(out, len(body))
    out += body
    return bytes(out)


def _append_nullable(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        append_varint(out, -1)
    else:
        view = memoryview(data)  # memoryview raises TypeError for a value that is not bytes-like
        append_varint(out, view.nbytes)
        out += view


def _read_nullable(data: Buffer, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position, end)
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise InvalidRecordError(f"a {what} claims {length} bytes, but its record has only {end - position} left")
    return bytes(data[position : position + length]), position + length


def _read_record(data: Buffer, position: int, end: int, limits: DecodeLimits) -> tuple[_RawRecord, int]:
    length, position = read_varint(data, position, end)
    if not RECORD_BYTES_MIN - 1 <= length <= end - position:
        raise InvalidRecordError(f"the record claims {length} bytes, but its batch has only {end - position} left")
    end = position + length
    timestamp_delta, position = read_varint(data, position + 1, end, 64)
    offset_delta, position = read_varint(data, position, end)
    key, position = _read_nullable(data, position, end, "key")
    value, position = _read_nullable(data, position, end, "value")
    count, position = read_varint(data, position, end)
    if not 0 <= count <= min((end - position) // 2, limits.max_headers):
        raise InvalidRecordError(f"the record claims {count} headers in {end - position} bytes")
    headers: Headers | None = [] if count else None
    for _ in range(count):
        name, position = _read_nullable(data, position, end, "header name")
        if name is None:
            raise InvalidRecordError("the name of a record header is null")
        content, position = _read_nullable(data, position, end, "header value")
        headers.append((name.decode(errors="replace"), content))  # type: ignore[union-attr]
    if position != end:
        raise InvalidRecordError(f"the record claims {length} bytes, but its fields end {end - position} bytes earlier")
    return _RawRecord(timestamp_delta, offset_delta, key, value, headers), end


def read_records(body: Buffer, header: BatchHeader, limits: DecodeLimits) -> Iterator[_RawRecord]:
    """Check and yield the records of a batch; the last record must end where ``body`` ends."""
    if header.record_count > min(limits.max_records, len(body) // RECORD_BYTES_MIN):
        raise bad_record(
            header,
            None,
            f"{header.record_count} records do not fit into {len(body)} bytes, or exceed the limit of a batch",
        )
    position, last_delta = 0, -1
    for index in range(header.record_count):
        try:
            record, position = _read_record(body, position, len(body), limits)
        except InvalidRecordError as error:
            raise bad_record(header, index, error.message) from None
        if not last_delta < record.offset_delta <= header.last_offset_delta:
            raise bad_record(
                header,
                index,
                f"the record's offset delta is {record.offset_delta}, after {last_delta} in the record before",
            )
        last_delta = record.offset_delta
        if not INT64_MIN <= header.base_timestamp_ms + record.timestamp_delta <= INT64_MAX:
            raise bad_record(header, index, f"the record's timestamp delta {record.timestamp_delta} overflows")
        if index == header.record_count - 1 and position != len(body):
            break
        yield record
    if position != len(body):
        raise bad_record(header, None, f"{len(body) - position} bytes follow the last record")


def bad_record(header: BatchHeader, index: int | None, why: str) -> InvalidRecordError:
    where = "" if index is None else f"record {index} of "
    return InvalidRecordError(f"{where}the batch with base offset {header.base_offset}: {why}")
