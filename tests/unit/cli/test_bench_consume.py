"""``bench consume`` reads each partition exactly up to the end that it had at the start, with every interface."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

import headrace
from headrace_core.errors import RequestTimedOutError
from headrace_core.records import Record
from headrace_core.types import TopicPartition
from headrace_tools.bench.common import BenchOptions

# The package re-exports a function of the same name, so the module is asked for by its full name.
consume_module = importlib.import_module("headrace_tools.bench.consume")

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
ENDS = dict(zip(PARTITIONS, (3, 2), strict=True))
SOUND = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (0, 2)]  # meanwhile a producer writes to partition 1


class _Consumer:
    """Returns the records of ``log`` one at a time."""

    log: list[tuple[int, int]] = SOUND

    def __init__(self, config: dict[str, Any]) -> None:
        self._left = [Record("t", partition, offset, 0, None, b"x", [], 0) for partition, offset in self.log]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def partitions_for(self, topic: str) -> list[int]:
        return [0, 1]

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return ENDS

    def assign(self, partitions: list[TopicPartition]) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def poll(self, timeout: float, max_records: int) -> list[Record]:
        assert max_records > 0
        return [self._left.pop(0)] if self._left else []


class _AsyncConsumer(_Consumer):
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def partitions_for(self, topic: str) -> list[int]:  # type: ignore[override]
        return [0, 1]

    async def beginning_offsets(self, partitions: Any) -> dict[TopicPartition, int]:  # type: ignore[override]
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Any) -> dict[TopicPartition, int]:  # type: ignore[override]
        return ENDS

    async def __aiter__(self) -> AsyncIterator[Record]:
        for record in self._left:
            yield record


@pytest.fixture(params=["object", "async"])
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BenchOptions:
    monkeypatch.setattr(headrace, "Consumer", _Consumer, raising=False)
    monkeypatch.setattr(headrace, "AsyncConsumer", _AsyncConsumer, raising=False)
    monkeypatch.setattr(consume_module, "STALL_S", 0.02)
    return BenchOptions(topic="t", config={}, api=request.param, warm=False)


def test_what_is_written_meanwhile_hides_no_partition_and_is_not_counted(options: BenchOptions) -> None:
    result = consume_module.consume(options)
    assert (result.records, result.value_bytes, result.verified) == (5, 5, True)


@pytest.mark.parametrize("log", [SOUND[1:], [*SOUND[:2], (0, 1), *SOUND[2:]]], ids=["missing", "doubled"])
def test_a_missing_and_a_doubled_record_are_not_verified(
    options: BenchOptions, log: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Consumer, "log", log)
    assert not consume_module.consume(options).verified


def test_a_short_partition_is_an_error_though_as_many_records_come(
    options: BenchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Consumer, "log", SOUND[:6])
    # the iteration of this log ends; a real consumer would wait, and the time limit would end it
    if options.api == "async":
        assert not consume_module.consume(options).verified
    else:
        with pytest.raises(RequestTimedOutError):
            consume_module.consume(options)
