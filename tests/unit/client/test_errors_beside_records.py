"""Partitions that cannot be read do not keep a consumer from the records of the others."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopicPartition
from headrace.consumer.core import ConsumerCore
from headrace.consumer.inbox import Slice
from headrace.consumer.reading import Reading
from headrace.settings import CONSUMER, resolve
from headrace_core.errors import HeadraceError, InvalidArgumentError, UnknownTopicOrPartitionError
from headrace_core.records import encode_batch

HEALTHY = TopicPartition("healthy", 0)
BATCH = 10  # records of one slice


class Consuming:
    """A Reading of one healthy partition and of ``missing`` partitions that do not exist, and the calls of its
    fetcher."""

    def __init__(self, missing: int = 1, **settings: Any) -> None:
        self.reading: Reading = ConsumerCore(resolve(CONSUMER, settings, {})).reading
        self.reading.inbox._on_room = lambda: None
        self.missing = [TopicPartition("missing", number) for number in range(missing)]
        self.reading.replace_assignment([HEALTHY, *self.missing], from_group=False)
        for assigned in self.reading.partitions.values():
            assigned.begin(0)
        self._end = 0

    def fetch(self, slices: int = 1) -> None:
        assigned = self.reading.partitions[HEALTHY]
        for _ in range(slices):
            data = encode_batch([(1, None, b"v", None)] * BATCH, base_offset=self._end)
            end = self._end + BATCH
            self.reading.inbox.put(Slice(assigned, self._end, end, [data], len(data)))
            self._end = end

    def fail(self, error: HeadraceError | None = None) -> None:
        """Report an error of each missing partition, as a lookup of their topic does."""
        for tp in self.missing:
            each = error or UnknownTopicOrPartitionError(f"{tp} does not exist")
            self.reading.fetcher.tell(self.reading.partitions[tp], each)

    def polls(self, most: int = 1_000) -> list[int | str]:
        """The results of polls until one returns nothing: the number of records, or the partition that failed."""
        found: list[int | str] = []
        while True:
            try:
                records = self.reading.drain(most)
            except HeadraceError as error:
                found.append(str(error).split()[0])
                continue
            if not records:
                return found
            found.append(len(records))


def test_errors_of_a_missing_topic_do_not_pile_up_between_seldom_polls() -> None:
    consuming = Consuming()
    for _ in range(50):  # the fetcher looks for the topic again and again while no poll comes
        consuming.fail()
    consuming.fetch()
    for _ in range(50):
        consuming.fail()
    assert consuming.polls() == ["missing-0", BATCH]


def test_an_error_occurs_again_after_a_poll_has_raised_it() -> None:
    consuming = Consuming()
    consuming.fail()
    assert consuming.polls() == ["missing-0"]
    consuming.fail()
    consuming.fail()
    assert consuming.polls() == ["missing-0"]


def test_a_hundred_missing_partitions_delay_the_records_by_one_error() -> None:
    consuming = Consuming(missing=100)
    consuming.fail()
    consuming.fetch(slices=3)
    found = consuming.polls(most=BATCH)
    assert found[:6] == ["missing-0", BATCH, "missing-1", BATCH, "missing-2", BATCH]
    assert found[6:] == [f"missing-{number}" for number in range(3, 100)], "each error is raised, once"


def test_an_error_that_ends_a_poll_with_records_is_raised_by_the_next_poll() -> None:
    consuming = Consuming()
    consuming.fetch()
    consuming.fail()
    consuming.fetch()
    assert consuming.polls() == [BATCH, "missing-0", BATCH]


def test_an_error_that_ends_a_read_of_arrow_batches_is_raised_by_the_next_one() -> None:
    pytest.importorskip("pyarrow")
    consuming = Consuming()
    consuming.fetch()
    consuming.fail()
    consuming.fetch()
    found: list[int | str] = []
    for _ in range(3):
        try:
            found.append(sum(each.num_rows for each in consuming.reading.take_arrow(1 << 20, None, False)))
        except UnknownTopicOrPartitionError:
            found.append("error")
    assert found == [BATCH, "error", BATCH]


def test_the_error_of_a_paused_partition_waits_for_its_resume() -> None:
    consuming = Consuming()
    consuming.fail()
    consuming.fetch()
    consuming.reading.pause(consuming.missing)
    assert consuming.polls() == [BATCH]
    consuming.reading.resume(consuming.missing)
    assert consuming.polls() == ["missing-0"]


def test_a_partition_that_stopped_for_good_raises_before_and_after_the_records() -> None:
    consuming = Consuming()
    consuming.fail(InvalidArgumentError("missing-0 does not exist"))
    consuming.fetch(slices=2)
    found: list[int | str] = []
    for _ in range(4):
        try:
            found.append(len(consuming.reading.drain(1_000)))
        except InvalidArgumentError:
            found.append("stopped")
    assert found == ["stopped", 2 * BATCH, "stopped", "stopped"]


def test_a_poll_of_many_slices_copies_no_record_list(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    class Records(list[Any]):
        def __add__(self, other: Any) -> Any:
            copied.append(len(self))
            return Records([*self, *other])

    consuming = Consuming(missing=0)
    monkeypatch.setattr(consuming.reading, "plain", False)
    monkeypatch.setattr(consuming.reading, "_deserialized", Records)
    consuming.fetch(slices=50)
    assert consuming.polls() == [50 * BATCH]
    assert not copied  # the copies of 40,000 slices would take two seconds
