from collections.abc import Iterable, Sequence
from typing import Any, final

from ..types import TimestampType
from .types import Buffer, Compression, RecordTuple

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

def record_bytes_max(
    key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]] | None = None
) -> int: ...
def encode_batch(records: Iterable[RecordTuple], **fields: Any) -> bytes: ...
