"""The producer table's last stable offset and aborted transactions, against a model that only knows the batches."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any, cast

from headrace_core.log.config import LogConfig
from headrace_core.log.producer_files import tell_marker
from headrace_core.log.producer_state import ProducerTable, Remembered
from headrace_core.log.segments import SegmentedLog
from headrace_core.records import read_header
from headrace_core.types import TopicPartition
from tests.worlds.log_world import Transactions, aborted_of, stable_offset_of
from tests.worlds.this_process import without_collections


def fed(table: ProducerTable, data: bytes) -> Remembered:
    """Pass a batch to the table, and return the function that undoes the change."""
    header = read_header(data)
    remembered = table.remember(header.producer_id)
    if header.is_control:
        tell_marker(table, header, data)
    else:
        table.appended(header)
    return remembered


def check(table: ProducerTable, transactions: Transactions, end: int, since: int) -> None:
    for high_watermark in range(since, end + 1):
        expected = stable_offset_of(transactions.written, end, high_watermark)
        assert table.last_stable_offset(high_watermark) == expected, (end, high_watermark)
    open_ones = stable_offset_of(transactions.written, end, end)
    assert (end if table.first_unstable_offset is None else table.first_unstable_offset) == open_ones


def test_random_histories_with_undone_appends_and_a_rising_high_watermark(rng: random.Random) -> None:
    for _ in range(25):
        transactions, table = Transactions(rng), ProducerTable()
        end = committed = 0
        aborted = []
        for _ in range(40):
            made = transactions.batches(end, rng.randint(1, 4))
            undo = [fed(table, data) for data, _ in made]
            if rng.random() < 0.3:  # the write failed
                table.take_back(reversed(undo), end)
                transactions.cut(end)
            else:
                transactions.written += [written for _, written in made]
                end = made[-1][1].next_offset
            aborted += table.aborted
            table.aborted.clear()
            check(table, transactions, end, committed)
            assert aborted == aborted_of(transactions.written, end)
            if rng.random() < 0.5:
                committed = rng.randint(committed, end)
                table.committed_end = committed
        assert table.undecided_count < 30, "what is committed is forgotten"


def test_a_snapshot_and_the_batches_behind_it_give_the_same_answers(rng: random.Random) -> None:
    for _ in range(25):
        transactions, table = Transactions(rng), ProducerTable()
        made = transactions.batches(0, 60)
        transactions.written += [written for _, written in made]
        at = rng.randrange(len(made))
        snapshot = b""
        for number, (data, written) in enumerate(made):
            if number == at:
                snapshot, offset = table.snapshot(), written.base_offset
            fed(table, data)
        again = ProducerTable.from_snapshot(snapshot, "snapshot", offset)
        for data, _ in made[at:]:
            fed(again, data)
        end = made[-1][1].next_offset
        check(again, transactions, end, end)
        assert again.aborted == [each for each in aborted_of(transactions.written, end) if each.last_offset >= offset]
        again.inherit_undecided(table, offset)
        check(again, transactions, end, 0)


def test_many_decided_transactions_cost_as_much_each_as_few(rng: random.Random) -> None:
    """While a log is opened nothing counts as committed, so the table keeps every transaction that has ended."""

    def seconds(count: int) -> float:
        table, transactions, end = ProducerTable(), Transactions(rng), 0
        made = transactions.batches(end, count)
        with without_collections():  # a collection's time depends on what other tests have left
            started = time.process_time()
            for data, _ in made:
                fed(table, data)
                table.last_stable_offset(table.next_offset)
            return (time.process_time() - started) / count

    few, many = (min(seconds(count) for _ in range(3)) for count in (1_000, 30_000))
    assert many < 5 * few


def test_a_table_that_does_not_know_how_transactions_ended_lets_readers_wait() -> None:
    table = ProducerTable(next_offset=10)
    table.forget_undecided(10)
    assert [table.last_stable_offset(high_watermark) for high_watermark in (9, 10)] == [0, 10]


def test_a_log_keeps_a_loaded_table_that_has_no_producers() -> None:
    """All producers expired while the last marker was not committed: the table still knows the marker."""
    table = ProducerTable(next_offset=5)
    assert not len(table)
    log = SegmentedLog(
        cast(Any, None), "t-0", TopicPartition("t", 0), LogConfig(), cast(Any, None), random.Random(1), None, (),
        cast(Any, SimpleNamespace(entries=[])), 0, 5, table,
    )  # fmt: skip
    assert log.producers is table
