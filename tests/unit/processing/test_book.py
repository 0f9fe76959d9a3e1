"""The book of ``Consumer.process``: order for each key, finished offsets, and the metadata of commits."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import OffsetAndMetadata, TopicPartition
from headrace.consumer.processing.book import Book, Work, check_order
from headrace.consumer.processing.progress import PREFIX, WINDOW, decode_done, encode_done
from headrace.consumer.processing.settings import failure_of, letter_of
from headrace.errors import InvalidArgumentError
from headrace_core.records import Record

TP = TopicPartition("t", 0)


def record(offset: int, key: bytes | None = None, partition: int = 0, value: bytes | None = b"v") -> Record:
    return Record("t", partition, offset, 0, key, value)


def taken(book: Book, now: float = 0.0) -> list[int]:
    found = []
    while (work := book.take(now)) is not None:
        found.append(work.record.offset)
    return found


def position(book: Book, read: int) -> OffsetAndMetadata:
    return book.positions({TP: OffsetAndMetadata(read)})[TP]


# -- progress ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**40), st.sets(st.integers(0, 400)), st.integers(0, 400))
def test_finished_offsets_come_back(base: int, unfinished: set[int], span: int) -> None:
    text = encode_done(base, base + span, {base + each for each in unfinished})
    assert decode_done(base, text) == {base + each for each in range(span) if each not in unfinished}


def test_the_widest_window_fits_into_a_commit() -> None:
    scattered = {each for each in range(2 * WINDOW) if each * 2654435761 % 7 < 3}
    text = encode_done(0, 2 * WINDOW, scattered)
    assert len(text) < 4_096
    assert decode_done(0, text) == {each for each in range(WINDOW) if each not in scattered}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "of another program",
        PREFIX,
        PREFIX + "b",
        PREFIX + "b???",
        PREFIX + "zAAAA",
        PREFIX + "q" + "A" * 8,
        PREFIX + "bA",
    ],
)
def test_other_metadata_names_no_finished_offset(text: str) -> None:
    assert decode_done(5, text) == set()


def test_a_small_text_does_not_become_a_large_set() -> None:
    import base64
    import zlib

    bomb = PREFIX + "z" + base64.b64encode(zlib.compress(b"\xff" * 10_000_000)).decode()
    assert len(decode_done(0, bomb)) == WINDOW


# -- order -------------------------------------------------------------------------------------------------------------


def test_records_of_a_key_follow_each_other() -> None:
    book = Book("key")
    book.add([record(0, b"a"), record(1, b"b"), record(2, b"a"), record(3), record(4)])
    first, other = book.take(0.0), book.take(0.0)
    assert first is not None
    assert other is not None
    assert (first.record.offset, other.record.offset) == (0, 1)
    assert taken(book) == [3, 4], "records without a key have no order; offset 2 waits for offset 0"
    book.finish(first)
    assert taken(book) == [2]


def test_the_same_key_in_two_partitions_has_no_order() -> None:
    book = Book("key")
    book.add([record(0, b"a"), record(0, b"a", partition=1)])
    assert len(taken(book)) == 2


@pytest.mark.parametrize(("order", "expected"), [("partition", [0]), ("none", [0, 1, 2])])
def test_other_orders(order: str, expected: list[int]) -> None:
    book = Book(order)
    book.add([record(0), record(1, b"a"), record(2, b"a")])
    assert taken(book) == expected


def test_a_wrong_order_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="order='keys': must be 'key', 'partition' or 'none'"):
        check_order("keys")


def test_a_delayed_record_holds_its_key_up_until_its_time() -> None:
    book = Book("key")
    book.add([record(0, b"a"), record(1, b"a")])
    work = book.take(0.0)
    assert work is not None
    book.again(work, at=5.0)
    assert taken(book, now=4.9) == []
    again = book.take(5.0)
    assert again is work
    assert work.attempts == 2
    book.finish(work)
    assert taken(book, now=5.0) == [1]


# -- what is committed -------------------------------------------------------------------------------------------------


def works_of(book: Book) -> dict[int, Work]:
    found: dict[int, Work] = {}
    while (work := book.take(0.0)) is not None:
        found[work.record.offset] = work
    return found


def test_the_first_unfinished_offset_is_committed_with_what_is_finished_behind_it() -> None:
    book = Book("none")
    book.add(record(each) for each in range(10, 16))
    works = works_of(book)
    for each in (10, 12, 13, 15):
        book.finish(works[each])
    found = position(book, 16)
    assert found.offset == 11
    assert decode_done(11, found.metadata) == {12, 13, 15}
    book.finish(works[11])
    book.finish(works[14])
    assert position(book, 20) == OffsetAndMetadata(20)


def test_the_next_owner_handles_only_what_is_unfinished() -> None:
    first = Book("none")
    first.add(record(each) for each in range(6))
    works = works_of(first)
    for each in (1, 2, 5):
        first.finish(works[each])
    committed = position(first, 6)

    second = Book("none")
    second.assigned({TP: committed})
    assert position(second, 0) == committed, "nothing is forgotten before a record was returned"
    second.add([record(0), record(1)])
    assert decode_done(0, position(second, 2).metadata) == {1, 2, 5}, "also what was not returned yet"
    second.add(record(each) for each in range(2, 6))
    assert taken(second) == [0, 3, 4]


def test_a_partition_that_is_revoked_gives_out_no_more_and_keeps_what_runs() -> None:
    book = Book("key")
    book.add([record(0, b"a"), record(1, b"a"), record(2, b"b"), record(0, b"a", partition=1)])
    work = book.take(0.0)
    assert work is not None
    book.close([TP])
    assert [each.part.tp.partition for each in works_of(book).values()] == [1]
    assert book.is_running([TP])
    book.finish(work)
    assert not book.is_running([TP])
    assert position(book, 3) == OffsetAndMetadata(1)
    book.forget([TP])
    assert (book.unfinished, book.bytes) == (1, 2)


def test_a_partition_that_comes_back_waits_for_the_key_of_a_handler_that_still_runs() -> None:
    book = Book("key")
    book.add([record(0, b"a")])
    old = book.take(0.0)
    assert old is not None
    book.forget([TP])
    book.assigned({TP: OffsetAndMetadata(0)})
    book.add([record(0, b"a")])
    assert taken(book) == [], "the old handler has the key"
    book.finish(old)
    assert book.unfinished == 1, "the old handler finishes nothing of the new assignment"
    assert taken(book) == [0]


def test_a_delayed_record_of_a_closed_partition_lets_its_key_go() -> None:
    book = Book("key")
    book.add([record(0, b"a")])
    work = book.take(0.0)
    assert work is not None
    book.again(work, at=1.0)
    book.close([TP])
    assert book.due_at is None
    assert taken(book, now=9.0) == []
    assert position(book, 1) == OffsetAndMetadata(0)


def test_a_partition_too_far_ahead_is_named() -> None:
    book = Book("none")
    book.add(record(each) for each in range(WINDOW - 1))
    assert book.too_far() == set()
    book.add([record(WINDOW - 1)])
    assert book.too_far() == {TP}


@given(st.data())
def test_against_a_plain_model(data: Any) -> None:
    """Any interleaving: one record of a key at a time, offsets of a key in order, and a commit that says exactly what
    is finished."""
    book = Book("key")
    keys = data.draw(st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=25), "keys")
    given_out = 0
    running: dict[int, Work] = {}
    finished: set[int] = set()
    order: dict[bytes, list[int]] = defaultdict(list)
    for _ in range(120):
        action = data.draw(st.sampled_from(["add", "take", "finish", "again"]))
        if action == "add" and given_out < len(keys):
            book.add([record(given_out, keys[given_out])])
            given_out += 1
        elif action == "take" and (work := book.take(1.0)) is not None:
            key = work.record.key
            assert key is None or all(other.record.key != key for other in running.values())
            assert work.record.offset not in finished
            running[work.record.offset] = work
        elif action in ("finish", "again") and running:
            offset = data.draw(st.sampled_from(sorted(running)))
            work = running.pop(offset)
            if action == "again":
                book.again(work, 1.0)
                continue
            book.finish(work)
            finished.add(offset)
            if work.record.key is not None:
                order[work.record.key].append(offset)
        found = position(book, given_out)
        unfinished = set(range(given_out)) - finished
        assert found.offset == min(unfinished, default=given_out)
        assert decode_done(found.offset, found.metadata) == {each for each in finished if each > found.offset}
        assert book.unfinished == len(unfinished)
        assert book.running == len(running)
    assert all(offsets == sorted(offsets) for offsets in order.values())


def test_after_going_back_the_lowest_unfinished_offset_is_committed() -> None:
    """The log was truncated by an unclean election, or the program seeks: offsets come again."""
    book = Book("none")
    book.add([record(100), record(101)])
    first, second = book.take(0.0), book.take(0.0)
    assert first is not None
    assert second is not None
    book.add([record(50), record(51)])
    assert position(book, 52).offset == 50
    book.add([record(100)])
    assert book.unfinished == 5
    book.finish(first)
    assert position(book, 101).offset == 50
    for offset in (50, 51):
        work = book.take(0.0)
        assert work is not None
        assert work.record.offset == offset
        book.finish(work)
    assert position(book, 101).offset == 100, "the record that came again is not finished"
    again = book.take(0.0)
    assert again is not None
    book.finish(second)
    book.finish(again)
    assert (position(book, 101), book.unfinished, book.bytes) == (OffsetAndMetadata(101), 0, 0)


class _SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [OSError("no file a\udcff.log"), _SilentError()])
def test_an_error_whose_text_is_no_text_makes_a_dead_letter_and_a_failure(error: Exception) -> None:
    book = Book("none")
    book.add([record(7)])
    work = book.take(0.0)
    assert work is not None
    headers = dict(letter_of(work, error)["headers"])
    assert headers["headrace.dead-letter.reason"].startswith(type(error).__name__.encode())
    assert type(error).__name__ in failure_of(work, error).message
