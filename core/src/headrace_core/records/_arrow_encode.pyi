from typing import Any, final

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
