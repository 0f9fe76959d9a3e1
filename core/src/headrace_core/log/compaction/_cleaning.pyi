from collections.abc import Callable

from ...records import BatchHeader, Buffer
from ..index import BatchMeta

Judge = Callable[[BatchHeader, int], int]

def key_hash(key: bytes, secret: bytes) -> bytes: ...
def scan_batches(data: Buffer, observe: Callable[[BatchHeader, int], object]) -> int: ...

class OffsetMap:
    capacity: int
    size: int
    def __init__(self, memory_bytes: int, secret: bytes, load_factor: float = 0.9) -> None: ...
    def clear(self) -> None: ...
    def put(self, key: bytes, offset: int) -> None: ...
    def get(self, key: bytes) -> int: ...

class KeyIndexer:
    latest: int
    is_full: bool
    records_read: int
    def __init__(self, offset_map: OffsetMap, start_offset: int, judge: Judge) -> None: ...
    def feed(self, data: Buffer) -> int: ...

class BatchFilter:
    records_read: int
    records_kept: int
    records_without_key: int
    def __init__(
        self,
        offset_map: OffsetMap,
        *,
        latest: int,
        keep_next_offset: int,
        judge: Judge,
        last_offsets: dict[int, int],
        marker_epochs: dict[int, int],
        now_ms: int,
        horizon_ms: int,
    ) -> None: ...
    def feed(self, data: Buffer) -> int: ...
    def take(self) -> tuple[bytearray, list[BatchMeta]]: ...
