"""A partition whose position is looked up again, because retention or a truncation has taken the records there, keeps
the position of its caller until the caller has read what was fetched before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.consumer import fetcher
from headrace.consumer.core import ConsumerCore
from headrace.consumer.inbox import Slice
from headrace.consumer.reading import Reading
from headrace.settings import CONSUMER, resolve
from headrace_core.records import encode_batch

T0 = TopicPartition("t", 0)


@pytest.fixture
def reading() -> Reading:
    """A consumer of one partition without a position."""
    found = ConsumerCore(resolve(CONSUMER, {"auto.offset.reset": "earliest"}, {})).reading
    found.replace_assignment([T0], from_group=False)
    return found


def looked_up(reading: Reading, log_start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look the position up as for a partition without one; the log begins at ``log_start``."""

    async def list_offsets(engine: Any, wanted: Any, isolation: Any, deadline: float) -> Any:
        return {tp: SimpleNamespace(offset=log_start) for tp in wanted}

    monkeypatch.setattr(fetcher, "list_offsets", list_offsets)
    partition = reading.partitions[T0]
    partition.fetch_at = None  # as after OFFSET_OUT_OF_RANGE
    asyncio.run(reading.fetcher._find_position(partition))
    assert partition.fetch_at == log_start


def fetched(reading: Reading, base: int) -> None:
    data = encode_batch([(1, None, b"v", None)] * 10, base_offset=base)
    reading.inbox.put(Slice(reading.partitions[T0], base, base + 10, [data], len(data)))


def to_commit(reading: Reading) -> int:
    return reading.offsets_to_commit(None)[T0].offset


def test_a_second_lookup_moves_no_position_past_records_that_wait_to_be_read(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of the new position would lose the ten records, if the program ended then."""
    looked_up(reading, 0, monkeypatch)
    assert to_commit(reading) == 0
    fetched(reading, 0)
    looked_up(reading, 100, monkeypatch)
    assert to_commit(reading) == 0
    assert [record.offset for record in reading.drain(4)] == [0, 1, 2, 3]
    assert to_commit(reading) == 4
    assert [record.offset for record in reading.drain(100)] == [4, 5, 6, 7, 8, 9]
    assert to_commit(reading) == 100, "the records from 10 on are gone"


def test_a_second_lookup_while_the_caller_reads_the_first_records_comes_after_them(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up(reading, 0, monkeypatch)
    fetched(reading, 0)
    assert len(reading.drain(4)) == 4
    looked_up(reading, 100, monkeypatch)
    assert to_commit(reading) == 4
    assert len(reading.drain(100)) == 6
    assert to_commit(reading) == 100


def test_a_second_lookup_before_anything_was_fetched_moves_the_position_with_the_next_poll(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up(reading, 0, monkeypatch)
    looked_up(reading, 100, monkeypatch)
    assert reading.drain(100) == []
    assert to_commit(reading) == 100
