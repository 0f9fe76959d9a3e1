"""Searches for records: what they keep in memory, and where the next search goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from headrace import TopicPartition
from headrace_console import finding
from headrace_console.cluster import Cluster
from headrace_console.display import Beginning
from headrace_core.records import Record

PART = TopicPartition("orders", 0)
LARGE = b"x" * 1_000_000


class _Consumer:
    """The log of one partition, as a consumer reads it: offset ``n`` has the record ``record(n)``."""

    def __init__(self, end: int, value: bytes) -> None:
        self._end, self._value, self._next = end, value, 0

    async def beginning_offsets(self, wanted: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        return dict.fromkeys(wanted, 0)

    async def end_offsets(self, wanted: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        return dict.fromkeys(wanted, self._end)

    async def assign(self, wanted: list[TopicPartition]) -> None: ...

    async def pause(self, *wanted: TopicPartition) -> None: ...

    async def close(self, timeout: float) -> None: ...

    async def seek(self, part: TopicPartition, offset: int) -> None:
        self._next = offset

    async def position(self, part: TopicPartition) -> int:
        return self._next

    async def poll(self, timeout: float, max_records: int) -> list[Record]:
        offsets = range(self._next, min(self._end, self._next + max_records))
        self._next = offsets.stop
        return [
            Record("orders", 0, offset, 1_000_000 - offset, b"k", self._value, [("h", self._value)])
            for offset in offsets
        ]


class _Cluster:
    def __init__(self, end: int, value: bytes = b"v") -> None:
        self._consumer = _Consumer(end, value)

    def consumer(self, *, is_committed: bool) -> Any:
        return self._consumer


def _found(cluster: _Cluster, before: dict[int, int] | None = None) -> finding.Found:
    there = cast("Cluster", cluster)
    return asyncio.run(finding.by_key(there, "orders", [0], b"k", is_committed=False, before=before))


def test_a_list_keeps_the_beginning_of_a_large_value_and_no_headers() -> None:
    cluster = cast("Cluster", _Cluster(40, LARGE))
    found = asyncio.run(finding.latest(cluster, "orders", [0], is_committed=False))
    assert len(found.records) == 40
    assert all(len(record.value) < 4_000 and not record.headers for record in found.records)
    assert isinstance(found.records[0].value, Beginning)
    assert found.records[0].value.whole_size == len(LARGE)


def test_one_record_is_read_whole() -> None:
    found = asyncio.run(finding.one(cast("Cluster", _Cluster(40, LARGE)), "orders", 0, 7))
    assert found is not None
    assert (found.offset, found.value, found.headers) == (7, LARGE, [("h", LARGE)])


def test_a_key_of_all_records_is_found_page_by_page_without_a_gap() -> None:
    # The newest offset has the oldest timestamp: the page is sorted by time, the search goes by offset.
    cluster, seen, before = _Cluster(1_030), [], None
    while before is None or before:
        found = _found(cluster, before)
        assert len(found.records) <= finding.PAGE
        seen += [record.offset for record in found.records]
        before = dict(found.before or {})
    assert sorted(seen) == list(range(1_030))
    assert max(seen[:50]) == 1_029
