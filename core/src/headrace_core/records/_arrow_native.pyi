from typing import Any, final

from .types import Buffer, DecodeLimits

@final
class Memory:
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...

@final
class Encoder:
    @property
    def batches(self) -> list[tuple[bytes, int]]: ...
    def __init__(self, max_batch_bytes: int, fields: dict[str, Any]) -> None: ...
    def add(
        self,
        row_count: int,
        key: tuple[int, ...] | None,
        value: tuple[int, ...] | None,
        timestamps: tuple[int, ...] | None,
        headers: tuple[Any, ...] | None,
        now_ms: int,
        rows_address: int,
        bytes_bound: int,
    ) -> None: ...
    def finish(self) -> list[tuple[bytes, int]]: ...

@final
class Decoder:
    def __init__(self, start_offset: int, end_offset: int, limits: DecodeLimits, check_crc: bool) -> None: ...
    def add(self, data: Buffer, position: int, max_bytes: int) -> int: ...
    def columns(
        self, key: bool, value: bool, offset: bool, timestamp: bool, timestamp_type: bool, headers: bool
    ) -> dict[str, Any]: ...
