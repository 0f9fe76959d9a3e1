from typing import Any, final

from .types import Buffer, DecodeLimits

@final
class Memory:
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...

@final
class Decoder:
    def __init__(self, start_offset: int, end_offset: int, limits: DecodeLimits, check_crc: bool) -> None: ...
    def add(self, data: Buffer, position: int, max_bytes: int, max_batch_bytes: int = -1) -> int: ...
    def columns(
        self, key: bool, value: bool, offset: bool, timestamp: bool, timestamp_type: bool, headers: bool
    ) -> dict[str, Any]: ...
