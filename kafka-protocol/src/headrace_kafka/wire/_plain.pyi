TOPIC_IDS: int
PLAIN_BYTES_MAX: int

def read_plain(frame: bytes) -> tuple[int, int, str, bool, int, str | bytes, int, bytes] | None: ...
def plain_answer(
    version: int, correlation_id: int, topic: str | bytes, index: int, base_offset: int, start_offset: int
) -> bytes: ...
