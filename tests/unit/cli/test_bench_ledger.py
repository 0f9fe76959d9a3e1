"""``verified`` fails for planted gaps, duplicates and damage, and the figures are right."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_core.records import Record
from headrace_core.types import TopicPartition
from headrace_tools.bench.common import BenchOptions, BenchResult, Values, percentile
from headrace_tools.bench.consume import _Ledger
from headrace_tools.bench.latency import _WARM_UP_RECORDS, _Trip

STARTS = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 0}


def _record(partition: int, offset: int, value: bytes | None = b"12345") -> Record:
    return Record("t", partition, offset, 0, None, value, [], 0)


def _stream(rng: random.Random) -> list[tuple[int, int]]:
    """(partition, offset) of two partitions in runs of random lengths, each partition without a gap."""
    following = {0: 10, 1: 0}
    found: list[tuple[int, int]] = []
    while len(found) < 400:
        partition = rng.randrange(2)
        for _ in range(rng.randrange(1, 60)):
            found.append((partition, following[partition]))
            following[partition] += 1
    return found


def _plant(kind: str, stream: list[tuple[int, int]], rng: random.Random) -> list[tuple[int, int]]:
    at = rng.randrange(1, len(stream) - 1)
    if kind == "gap":
        partition = stream[at][0]
        rest = [(p, offset + (p == partition)) for p, offset in stream[at:]]
        return stream[:at] + rest
    if kind == "lost":
        return stream[:at] + stream[at + 1 :] if _followed(stream, at) else _plant(kind, stream, rng)
    if kind == "twice":
        return [*stream[: at + 1], stream[at], *stream[at + 1 :]]
    if kind == "swapped":
        if stream[at][0] != stream[at + 1][0]:
            return _plant(kind, stream, rng)
        return [*stream[:at], stream[at + 1], stream[at], *stream[at + 2 :]]
    assert kind == "late start"
    return stream[1:] if _followed(stream, 0) else _plant(kind, stream, rng)


def _followed(stream: list[tuple[int, int]], at: int) -> bool:
    """A record that is lost at the end of a partition leaves no gap. Only the number of records shows the loss; the
    ledger does not."""
    return any(partition == stream[at][0] for partition, _ in stream[at + 1 :])


def _polls(stream: list[tuple[int, int]], rng: random.Random) -> list[list[tuple[int, int]]]:
    found, position = [], 0
    while position < len(stream):
        size = rng.randrange(1, 150)
        found.append(stream[position : position + size])
        position += size
    return found


def _fed(how: str, stream: list[tuple[int, int]], rng: random.Random) -> _Ledger:
    ledger = _Ledger(STARTS)
    for poll in _polls(stream, rng):
        if how == "records":
            ledger.take_records([_record(*each) for each in poll])
        else:
            columns = {
                "partition": pa.array([partition for partition, _ in poll], pa.int32()),
                "offset": pa.array([offset for _, offset in poll], pa.int64()),
                "value": pa.array([b"12345"] * len(poll), pa.binary()),
            }
            ledger.take_table(pa.table(columns))
    return ledger


@pytest.mark.parametrize("how", ["records", "table"])
def test_a_sound_stream_is_sound_and_counted(how: str, rng: random.Random) -> None:
    for _ in range(20):
        stream = _stream(rng)
        ledger = _fed(how, stream, rng)
        assert ledger.sound
        assert ledger.records == len(stream)
        assert ledger.value_bytes == 5 * len(stream)


@pytest.mark.parametrize("how", ["records", "table"])
@pytest.mark.parametrize("kind", ["gap", "lost", "twice", "swapped", "late start"])
def test_a_planted_fault_is_found(how: str, kind: str, rng: random.Random) -> None:
    for _ in range(20):
        assert not _fed(how, _plant(kind, _stream(rng), rng), rng).sound


def test_values_are_of_the_size_and_number_asked_for() -> None:
    for total, portion in ((1, 10), (10, 10), (25, 10), (7, 3)):
        values = Values(16, total)
        portions = values.portions(total, portion)
        assert sum(map(len, portions)) == total
        assert max(map(len, portions)) <= portion
        assert {len(value) for part in portions for value in part} == {16}
        assert len({value for part in portions for value in part}) == total  # random: all different
        assert values.table(1).column("value")[0].as_py() == values.pool[0]


def test_large_values_are_reused_rather_than_held_in_memory() -> None:
    values = Values(8 << 20, 100)
    assert values.distinct == 4
    assert sum(map(len, values.portions(10, 6))) == 10


def test_percentiles_are_of_the_nearest_rank() -> None:
    ordered = [float(number) for number in range(1, 1001)]
    assert [percentile(ordered, share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([], 0.5) == 0.0


def test_the_document_has_the_contracts_names() -> None:
    result = BenchResult(
        workload="produce",
        api="many",
        records=2_000,
        seconds=2.0,
        value_bytes=4 << 20,
        latencies_ms=[3.0, 1.0, 2.0],
        verified=True,
    )
    assert result.document() == {
        "workload": "produce",
        "api": "many",
        "records": 2_000,
        "seconds": 2.0,
        "records_per_s": 1_000.0,
        "mib_per_s": 2.0,
        "latency_ms": {"p50": 2.0, "p99": 3.0, "p999": 3.0, "max": 3.0},
        "verified": True,
    }


def test_a_round_trip_is_complete_only_when_every_record_came_back_once_and_whole() -> None:
    def trip(change: str = "") -> _Trip:
        found = _Trip(5, 32)
        for number in range(found.count):
            value = found.send(number)
            if change == "damaged" and number == 7:
                value = value[:-1] + bytes([value[-1] ^ 1])
            if not (change == "lost" and number == 7):
                found.take([_record(0, number, value), _record(0, number, b"not ours")])
            if change == "twice" and number == 7:
                found.take([_record(0, number, value)])
        return found

    sound = trip()
    assert sound.complete()
    assert len(sound.latencies_ms()) == sound.count - _WARM_UP_RECORDS == 5
    assert min(sound.latencies_ms()) >= 0
    assert not any(trip(change).complete() for change in ("damaged", "lost", "twice"))


@pytest.mark.parametrize("wrong", [{"records": 0}, {"record_bytes": 0}, {"rate": 0}, {"partitions": 0}])
def test_impossible_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        BenchOptions(topic="t", config={}, **wrong).check()  # type: ignore[arg-type]


# -- up to the ends ---------------------------------------------------------------------------------------------------

ENDS = {TopicPartition("t", 0): 13, TopicPartition("t", 1): 2}
WHOLE = [(0, 10), (0, 11), (1, 0), (0, 12), (1, 1)]


def _read(stream: list[tuple[int, int]], *, arrow: bool) -> _Ledger:
    ledger = _Ledger(STARTS, ENDS)
    if arrow:
        columns = {
            "partition": pa.array([each for each, _ in stream], pa.int32()),
            "offset": pa.array([each for _, each in stream], pa.int64()),
            "value": pa.array([b"12345"] * len(stream), pa.binary()),
        }
        ledger.take_table(pa.table(columns))
    else:
        ledger.take_records([_record(*each) for each in stream])
    return ledger


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize(
    ("stream", "done", "verified"),
    [
        (WHOLE, True, True),
        ([*WHOLE[:3], *WHOLE[4:]], False, False),  # partition 0 is short
        ([*WHOLE[:3], *WHOLE[4:], (1, 2)], False, False),  # short there, although the total number of records is right
        ([*WHOLE[:1], *WHOLE[2:]], True, False),  # one is missing
        ([*WHOLE[:2], (0, 11), *WHOLE[2:]], True, False),  # one record is duplicated
        ([*WHOLE, (1, 2), (1, 3)], True, True),  # written later: checked, not counted
        ([*WHOLE, (1, 3)], True, False),
    ],
)
def test_without_a_number_every_partition_is_read_exactly_to_its_end(
    stream: list[tuple[int, int]], done: bool, verified: bool, arrow: bool
) -> None:
    ledger = _read(stream, arrow=arrow)
    assert (ledger.is_done(5), ledger.is_verified(5)) == (done, verified)
    if verified:
        assert (ledger.records, ledger.value_bytes) == (5, 25)
