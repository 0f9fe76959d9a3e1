from collections.abc import Iterable, Iterator
from typing import Any, final

from ..types import TimestampType, TopicPartition
from .types import Buffer, DecodeLimits, Headers

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
    @property
    def topic_partition(self) -> TopicPartition: ...
    #: bytes or None; a deserializer puts its object here, which a program casts.
    key: bytes | None
    value: bytes | None
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
    @property
    def taken_bytes(self) -> int: ...
    def take(self, count: int, max_bytes: int = ...) -> list[Record]: ...

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
def without_aborted(data: Buffer, aborted: Iterable[tuple[int, int]], *, check_crc: bool = True) -> list[Buffer]: ...
