from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

from ..types import TimestampType
from .types import (
    BatchHeader,
    BatchSpan,
    Buffer,
    Compression,
    DecodeLimits,
    Headers,
    RecordTuple,
)

@final
class Record:
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def headers(self) -> Headers: ...
    key: Any
    value: Any
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
        timestamp_type: TimestampType = ...,
    ) -> None: ...
    __hash__: None  # type: ignore[assignment]

@final
class BatchBuilder:
    @property
    def max_bytes(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __init__(self, max_bytes: int) -> None: ...
    def clear(self) -> None: ...
    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] | None = None,
    ) -> int: ...
    def append_many(self, records: Sequence[Any], start: int = 0, timestamp_ms: int = -1) -> int: ...
    def build(
        self,
        *,
        compression: Compression = ...,
        level: int | None = None,
        base_offset: int = 0,
        leader_epoch: int = -1,
        timestamp_type: TimestampType = ...,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
    ) -> bytes: ...

@final
class RecordIterator(Iterator[Record]):
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def position(self) -> int: ...
    def __init__(
        self,
        slices: Buffer | Iterable[Buffer],
        *,
        topic: str = "",
        partition: int = -1,
        start_offset: int = 0,
        limits: DecodeLimits = ...,
        check_crc: bool = True,
        include_control: bool = False,
    ) -> None: ...
    def __iter__(self) -> RecordIterator: ...
    def __next__(self) -> Record: ...
    def take(self, count: int) -> list[Record]: ...

def read_header(data: Buffer, position: int = 0) -> BatchHeader: ...
def check_batch(data: Buffer, position: int = 0) -> BatchHeader: ...
def split_batches(data: Buffer) -> list[BatchSpan]: ...
def record_bytes_max(
    key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]] | None = None
) -> int: ...
def encode_batch(records: Iterable[RecordTuple], **fields: Any) -> bytes: ...
def decode_batch(
    data: Buffer,
    position: int = 0,
    *,
    topic: str = "",
    partition: int = -1,
    start_offset: int = 0,
    limits: DecodeLimits = ...,
    check_crc: bool = True,
) -> list[Record]: ...
def validate_batches(
    data: Buffer,
    *,
    limits: DecodeLimits = ...,
    allow_control: bool = False,
    allow_transactional: bool = False,
    allow_producer_id: bool = False,
    require_keys: bool = False,
    timestamp_ms_min: int = ...,
    timestamp_ms_max: int = ...,
) -> list[BatchHeader]: ...
