"""An error of a refused batch lists the records that broke the topic's rules (KIP-467)."""

from __future__ import annotations

import pytest

from headrace_core.errors import HeadraceError, InvalidRecordError, InvalidTimestampError
from headrace_core.log import appending
from headrace_core.log.appending import validate
from headrace_core.log.config import LogConfig
from headrace_core.records import Compression, RecordTuple, encode_batch

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_records_without_a_key_are_listed(compression: Compression) -> None:
    records: list[RecordTuple] = [(NOW_MS, None if at in (1, 3) else b"key", b"value", []) for at in range(5)]
    with pytest.raises(InvalidRecordError) as caught:
        validate(encode_batch(records, compression=compression), LogConfig(cleanup_compact=True), NOW_MS)
    assert [at for at, _ in caught.value.faults] == [1, 3]
    assert all("key" in text for _, text in caught.value.faults)


def test_records_with_a_wrong_time_are_listed() -> None:
    records: list[RecordTuple] = [(NOW_MS + at * 1_000, b"key", b"value", []) for at in range(4)]
    with pytest.raises(InvalidTimestampError) as caught:
        validate(encode_batch(records), LogConfig(timestamp_after_max_ms=1_500), NOW_MS)
    assert [at for at, _ in caught.value.faults] == [2, 3]


def test_the_list_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "FAULTS_MAX", 3)
    with pytest.raises(InvalidRecordError) as caught:
        validate(encode_batch([(NOW_MS, None, b"value", [])] * 10), LogConfig(cleanup_compact=True), NOW_MS)
    assert len(caught.value.faults) == 3


def test_a_batch_that_cannot_be_read_has_no_list() -> None:
    damaged = bytearray(encode_batch([(NOW_MS, b"key", b"value", [])]))
    damaged[16] = 1  # the magic number
    with pytest.raises(HeadraceError) as caught:
        validate(bytes(damaged), LogConfig(), NOW_MS)
    assert not getattr(caught.value, "faults", ())
