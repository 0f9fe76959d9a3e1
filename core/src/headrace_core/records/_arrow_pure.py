"""Arrow conversion in plain Python: the slow, short reference for _arrow_decode and _arrow_encode, and their oracle in
tests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..errors import InvalidArgumentError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from ._pure import BatchBuilder, Record, batch_body, decode_batch
from .batches import check_batch, read_whole_header
from .types import Buffer, DecodeLimits

_TIMESTAMP_US_MAX = 2**63 - 1


class Encoder:
    """Packs the rows of several chunks into batches of at most ``max_batch_bytes``. A row above ``max_batch_bytes``
    gets a separate batch of at most ``max_row_bytes``."""

    def __init__(self, max_batch_bytes: int, max_row_bytes: int, fields: dict[str, Any]) -> None:
        self._max_row_bytes = max_row_bytes
        self._fields = fields
        self._builder = BatchBuilder(max_batch_bytes)
        self._rows_done = 0
        self.batches: list[tuple[bytes, int]] = []

    def add(self, columns: dict[str, pa.Array], now_ms: int, rows: list[int] | None) -> None:
        """Encode one chunk."""
        count = len(columns["value"]) if rows is None else len(rows)
        for index in range(count):
            row = index if rows is None else rows[index]
            key, value, headers = (_cell(columns.get(name), row) for name in ("key", "value", "headers"))
            timestamp_ms = _milliseconds(columns.get("timestamp"), row)
            pairs = None if headers is None else [(pair["key"], pair["value"]) for pair in headers]
            if pairs and any(name is None for name, _ in pairs):
                raise InvalidArgumentError(f"row {self._rows_done + index}: a header has no name (null)")
            self._append(index, now_ms if timestamp_ms is None else timestamp_ms, key, value, pairs)
        self._rows_done += count

    def _append(self, index: int, timestamp_ms: int, key: Any, value: Any, headers: Any) -> None:
        row = self._rows_done + index
        try:
            if self._builder.append(timestamp_ms, key, value, headers) < 0:
                self._finish()
                self._builder.append(timestamp_ms, key, value, headers)
        except InvalidTimestampError as error:
            raise InvalidTimestampError(f"row {row}: {error.message}") from None
        if self._builder.size > self._max_row_bytes:
            raise RecordTooLargeError(
                f"row {row} alone needs more than {self._max_row_bytes} bytes, the limit of a batch"
            )

    def finish(self) -> list[tuple[bytes, int]]:
        """Return the finished batches: a list of (bytes, record count)."""
        if self._builder.count:
            self._finish()
        return self.batches

    def _finish(self) -> None:
        count = self._builder.count
        self.batches.append((self._builder.build(**self._fields), count))


def _cell(column: pa.Array | None, row: int) -> Any:
    value = None if column is None else column[row].as_py()
    return value.encode() if isinstance(value, str) else value


def _milliseconds(column: pa.Array | None, row: int) -> int | None:
    if column is None or not column[row].is_valid:
        return None
    if not pa.types.is_timestamp(column.type):
        return int(column[row].as_py())
    return int(column[row].value) // {"ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]


class Decoder:
    """Collects batches (``add``) until their records would exceed ``max_bytes``, then turns the batches into
    columns."""

    def __init__(self, start_offset: int, end_offset: int, limits: DecodeLimits, check_crc: bool) -> None:
        self._range = (start_offset, end_offset)
        self._limits = limits
        self._check_crc = check_crc
        self._records: list[Record] = []
        self._bytes = 0

    def add(self, data: Buffer, position: int, max_bytes: int, max_batch_bytes: int = -1) -> int:
        """Collect the batches from ``position`` on; returns the position of the first batch that did not fit into
        ``max_bytes`` beside others, or the end. InvalidRecordError: a batch has more than ``max_batch_bytes`` (by
        default, ``max_bytes``)."""
        start_offset, end_offset = self._range
        if max_batch_bytes < 0:
            max_batch_bytes = max_bytes
        while position < len(data):
            header = read_whole_header(data, position)
            # Check also the CRC of skipped batches: a flipped bit must not turn a wanted batch into a skipped batch.
            if self._check_crc and header.base_offset < end_offset:
                check_batch(data, position)
            if not (header.is_control or header.last_offset < start_offset or header.base_offset >= end_offset):
                records = decode_batch(data, position, limits=self._limits, check_crc=False)
                size = len(batch_body(data, position, header, self._limits))
                if self._records and self._bytes + size > max_bytes:
                    break
                if size > max_batch_bytes:
                    raise InvalidRecordError(
                        f"the batch with base offset {header.base_offset} decompresses to more than "
                        f"{max_batch_bytes} bytes, the limit"
                    )
                self._bytes += size
                self._records += [record for record in records if start_offset <= record.offset < end_offset]
            position += header.size
        return position

    def columns(
        self, key: bool, value: bool, offset: bool, timestamp: bool, timestamp_type: bool, headers: bool
    ) -> dict[str, Any]:
        """Return the added records as arrays by column name, and "rows" (their number); the decoder is empty
        afterwards."""
        records, self._records, self._bytes = self._records, [], 0
        columns: dict[str, Any] = {"rows": len(records)}
        if key:
            columns["key"] = pa.array([record.key for record in records], pa.binary())
        if value:
            columns["value"] = pa.array([record.value for record in records], pa.binary())
        if offset:
            columns["offset"] = pa.array([record.offset for record in records], pa.int64())
        if timestamp:
            for record in records:
                if not -_TIMESTAMP_US_MAX - 1 <= record.timestamp_ms * 1000 <= _TIMESTAMP_US_MAX:
                    raise InvalidRecordError(
                        f"the timestamp of offset {record.offset} cannot be expressed in microseconds"
                    )
            micros = pa.array([record.timestamp_ms * 1000 for record in records], pa.int64())
            columns["timestamp"] = micros.cast(pa.timestamp("us", tz="UTC"))
        if timestamp_type:
            columns["timestampType"] = pa.array([int(record.timestamp_type) for record in records], pa.int32())
        if headers:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            lists = [[{"key": k, "value": v} for k, v in record.headers] or None for record in records]
            columns["headers"] = pa.array(lists, kind)
        return columns
