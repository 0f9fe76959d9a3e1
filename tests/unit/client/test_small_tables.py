"""Tables below the size of a batch (``fetch_arrow(max_bytes=...)``) decode each batch once, whatever comes between."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from headrace import TopicPartition
from headrace.consumer.core import ConsumerCore
from headrace.consumer.inbox import Slice
from headrace.consumer.reading import Reading
from headrace.settings import CONSUMER, resolve
from headrace_core.records import arrow, encode_batch
from headrace_core.records.arrow import data_bytes

ROWS = 100
VALUE = 1_024  # bytes of a row: its value, and what Arrow adds
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
WHOLE = ROWS * VALUE


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first records' offsets of the decoders' results that have rows."""
    found: list[int] = []
    build = arrow._record_batch

    def counted(*arguments: Any) -> Any:
        batch = build(*arguments)
        if batch.num_rows:
            found.append(batch.column("offset")[0].as_py())
        return batch

    monkeypatch.setattr(arrow, "_record_batch", counted)
    return found


def reading(partitions: int = 1, batches: int = 3) -> Reading:
    found = ConsumerCore(resolve(CONSUMER, {}, {})).reading
    found.inbox._on_room = lambda: None
    found.replace_assignment(PARTITIONS[:partitions], from_group=False)
    for number in range(batches):
        for tp in PARTITIONS[:partitions]:
            fetch(found, tp, number * ROWS)
    return found


def fetch(r: Reading, tp: TopicPartition, base: int, at: int = 0) -> None:
    """Queue a batch, as the fetcher does, which fetches from the offset ``at`` on."""
    assigned = r.partitions[tp]
    data = encode_batch([(1, None, bytes(VALUE - 24), None)] * ROWS, base_offset=base)
    r.inbox.put(Slice(assigned, max(base, at), base + ROWS, [data], len(data)))


def take(r: Reading, max_bytes: int, columns: list[str] | None = None) -> list[tuple[int, int]]:
    batches = r.take_arrow(max_bytes, columns, False)
    assert sum(map(data_bytes, batches)) <= max(max_bytes, VALUE)
    pairs = (zip(each["partition"].to_pylist(), each["offset"].to_pylist(), strict=True) for each in batches)
    return [pair for some in pairs for pair in some]


@pytest.mark.parametrize("max_bytes", [1, VALUE, 7 * VALUE, WHOLE - 1, WHOLE, WHOLE + 1, 10 * WHOLE])
@pytest.mark.parametrize("partitions", [1, 3])
def test_each_batch_is_decoded_once(decodes: list[int], partitions: int, max_bytes: int) -> None:
    r = reading(partitions)
    found: dict[int, list[int]] = defaultdict(list)
    while got := take(r, max_bytes):
        for partition, offset in got:
            found[partition].append(offset)
        assert r.inbox.queued_bytes <= 3 * partitions * (WHOLE + 10_000) + 2 * WHOLE, "one decoded batch at most"
    assert list(found.values()) == [list(range(3 * ROWS))] * partitions
    assert len(decodes) <= 3 * partitions
    assert r._decoded is None
    assert r.inbox.queued_bytes == 0


def test_a_partition_with_decoded_rows_keeps_no_other_waiting() -> None:
    """Its next batch comes after those of the others, although it is fetched again and again."""
    r = reading(3, batches=1)
    begun: list[int] = []
    for number in range(1, 60):
        fetch(r, PARTITIONS[0], number * ROWS)
        for partition, _ in take(r, 30 * VALUE):
            if partition not in begun:
                begun.append(partition)
    assert sorted(begun) == [0, 1, 2]


@pytest.mark.parametrize("end", ["seek", "pause", "revoke", "close", "poll", "other columns", "give back", "read"])
def test_decoded_rows_are_dropped_and_not_counted_any_more(end: str) -> None:
    r = reading()
    tp = PARTITIONS[0]
    before = r.inbox.queued_bytes
    assert take(r, 10 * VALUE)[0] == (0, 0)
    assert r._decoded is not None
    assert r.inbox.queued_bytes > before - WHOLE // 2, "the rows count as queued bytes"
    ways: dict[str, Callable[[], object]] = {
        "seek": lambda: r.seek(tp, 50),
        "pause": lambda: r.pause([tp]),
        "revoke": lambda: r.remove_assigned([tp]),
        "close": r.close,
        "poll": lambda: r.drain(1),
        "other columns": lambda: take(r, 10 * WHOLE, ["partition", "offset"]),
        "give back": r.give_back,
        "read": lambda: take(r, 10 * WHOLE),
    }
    ways[end]()
    assert r._decoded is None
    if end != "close":  # the fetcher closes the inbox
        assert r.inbox._decoded_bytes == 0


def test_a_fetcher_that_waits_for_room_hears_of_the_end_of_decoded_rows() -> None:
    r = reading()
    heard: list[int] = []
    r.inbox._on_room = lambda: heard.append(1)
    while r.inbox.slices:
        take(r, 7 * VALUE)
    assert r._decoded is not None
    r.inbox.max_bytes, r.inbox.fetcher_waits = WHOLE // 2, True
    take(r, 7 * VALUE)
    assert heard == []
    while take(r, 7 * VALUE):
        pass
    assert heard == [1]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_between_the_tables_each_record_is_returned_once(seed: int, decodes: list[int]) -> None:
    chance = random.Random(seed)
    r = reading(3)
    found: dict[int, list[int]] = defaultdict(list)
    fetched = dict.fromkeys(PARTITIONS, 3 * ROWS)
    for turn in range(2_000):
        match chance.randrange(10) if turn < 60 else 0:
            case 1:
                got = [(each.partition, each.offset) for each in r.drain(chance.randrange(1, 40))]
            case 2:
                tp = chance.choice(PARTITIONS)
                r.pause([tp])
                got = take(r, chance.randrange(1, WHOLE))
                r.resume([tp])
            case 3:
                tp = chance.choice(PARTITIONS)
                at = r.known_position(tp) or 0
                r.seek(tp, at)  # what was fetched is stale: fetch it again
                for base in range(at - at % ROWS, fetched[tp], ROWS):
                    fetch(r, tp, base, at)
                got = []
            case 4:
                tp = chance.choice(PARTITIONS)
                fetch(r, tp, fetched[tp])
                fetched[tp] += ROWS
                got = []
            case _:
                got = take(r, chance.choice([1, 5 * VALUE, 60 * VALUE, 2 * WHOLE]))
                if turn >= 60 and not got:
                    break
        for partition, offset in got:
            found[partition].append(offset)
    for tp in PARTITIONS:
        assert found[tp.partition] == list(range(fetched[tp]))
