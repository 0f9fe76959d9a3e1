from collections.abc import Sequence

from .types import BatchHeader, BatchSpan, Buffer, DecodeLimits, SchemaIds

def read_header(data: Buffer, position: int = 0) -> BatchHeader: ...
def check_batch(data: Buffer, position: int = 0) -> BatchHeader: ...
def split_batches(data: Buffer) -> list[BatchSpan]: ...
def check_slice(data: Buffer, offset: int, end_offset: int, epochs: Sequence[tuple[int, int]] | None = None) -> int: ...
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
    schemas: SchemaIds | None = None,
) -> list[BatchHeader]: ...
def check_plain_batch(
    data: Buffer, size_max: int, require_keys: bool, timestamp_ms_min: int, timestamp_ms_max: int
) -> BatchHeader | None: ...
