TOPIC_IDS: int
PLAIN_BYTES_MAX: int
PLAIN_BATCH_BYTES_MAX: int
PLAIN_PARTITIONS_MAX: int

_Batches = list[tuple[str | bytes, int, bytes]]

def read_plain(frame: bytes) -> tuple[int, int, str, bool, int, _Batches] | None: ...
def plain_answer(version: int, correlation_id: int, batches: _Batches, outcomes: list[tuple[int, int]]) -> bytes: ...
