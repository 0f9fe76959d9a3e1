"""An iteration over a RangeReader that is left (``break``, an error) loses no record: the next one goes on after it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from headrace.errors import ClosedError, CorruptMessageError
from headrace.fetch import OffsetRange, RangeReader, RangeSlice
from headrace_core.records import RecordIterator, encode_batch
from tests.scenarios.client.test_decoded_bytes import COUNT, LIMIT, fill


@pytest.mark.parametrize("limit", [1, LIMIT, 8 << 20])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("again", ["arrow", "other columns", "slices", "all of them"])
def test_a_range_reader_whose_iteration_was_left_goes_on_after_the_last_batch(
    fake: Any, again: str, partitions: int, limit: int
) -> None:
    fill(fake, partitions)
    ranges = [OffsetRange("t", number, 5, COUNT - 5) for number in range(partitions)]
    found: dict[int, list[int]] = defaultdict(list)
    with RangeReader(ranges, bootstrap_servers=fake.bootstrap_servers) as reader:
        ways = {
            "arrow": lambda: reader.arrow_batches(max_bytes=limit),
            "other columns": lambda: reader.arrow_batches(
                columns=["partition", "offset", "value"], max_bytes=2 * limit
            ),
            "slices": reader.slices,
        }
        order = ["arrow", again] if again in ways else [*ways]
        for turn in range(1000):
            item = next(iter(ways[order[turn % len(order)]]()), None)
            if item is None:
                break
            if isinstance(item, RangeSlice):
                records = RecordIterator(item.records, start_offset=item.start)
                found[item.partition] += [each.offset for each in records if each.offset < item.end]
            else:
                found[item["partition"][0].as_py()] += item["offset"].to_pylist()
        assert list(reader.slices()) == list(reader.arrow_batches()) == []
    assert dict(sorted(found.items())) == {number: list(range(5, COUNT - 5)) for number in range(partitions)}


def test_two_iterations_over_a_range_reader_share_its_records(fake: Any) -> None:
    fill(fake)
    with RangeReader([OffsetRange("t", 0, 0, COUNT)], bootstrap_servers=fake.bootstrap_servers) as reader:
        ways = [reader.arrow_batches(max_bytes=LIMIT), reader.arrow_batches(max_bytes=LIMIT, columns=["offset"])]
        found = []
        for turn in range(1000):
            batch = next(ways[turn % 2], None)
            if batch is None:
                break
            found += batch["offset"].to_pylist()
    assert found == list(range(COUNT))


def test_a_range_reader_that_was_closed_in_the_middle_does_not_look_complete(fake: Any) -> None:
    fill(fake)
    with RangeReader([OffsetRange("t", 0, 0, COUNT)], bootstrap_servers=fake.bootstrap_servers) as reader:
        batches = reader.arrow_batches(max_bytes=LIMIT)
        next(batches)
    with pytest.raises(ClosedError):
        next(batches)


def test_damage_ends_an_iteration_of_a_range_reader_and_the_next_one_meets_it_again(fake: Any) -> None:
    fill(fake)
    fake.append("t", 0, encode_batch([(1, None, b"x" * 50, None)]))
    fake.logs["t", 0][-1] = fake.logs["t", 0][-1][:-1] + b"y"
    found: list[int] = []
    with RangeReader([OffsetRange("t", 0, 0, COUNT + 1)], bootstrap_servers=fake.bootstrap_servers) as reader:
        for _ in range(3):
            with pytest.raises(CorruptMessageError):
                found.extend(
                    each for batch in reader.arrow_batches(max_bytes=LIMIT) for each in batch["offset"].to_pylist()
                )
    assert found == list(range(len(found)))
    assert len(found) >= 2 * COUNT // 3  # the batches before the one in front of the damage
