"""An interrupted poll loses no records: Ctrl-C in a notebook, or no memory for a large table."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopicPartition
from headrace.consumer.core import ConsumerCore
from headrace.consumer.inbox import Slice
from headrace.consumer.reading import Reading
from headrace.settings import CONSUMER, resolve
from headrace_core.records import encode_batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BATCH = 10  # records of one slice


class Interrupting:
    """A deserializer that Ctrl-C interrupts at one record."""

    def __init__(self, at: bytes) -> None:
        self.at: bytes | None = at

    def __call__(self, topic: str, data: bytes) -> bytes:
        if data == self.at:
            self.at = None
            raise KeyboardInterrupt
        return data


def reading(**settings: Any) -> Reading:
    found = ConsumerCore(resolve(CONSUMER, settings, {})).reading
    found.inbox._on_room = lambda: None
    found.replace_assignment([T0, T1], from_group=False)
    for tp in (T0, T1):
        fetch(found, tp, 0)
    return found


def fetch(r: Reading, tp: TopicPartition, base: int) -> None:
    """Queue one slice of ``BATCH`` records, as the fetcher does; the values are the offsets."""
    assigned = r.partitions[tp]
    data = encode_batch([(1, None, b"%d" % (base + n), None) for n in range(BATCH)], base_offset=base)
    r.inbox.put(Slice(assigned, base, base + BATCH, [data], len(data)))


def test_records_of_an_interrupted_poll_are_read_again() -> None:
    r = reading(value_deserializer=Interrupting(b"7"))
    assert [record.offset for record in r.drain(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyboardInterrupt):
        r.drain(100)
    assert r.known_position(T0) == 5
    fetch(r, T0, 5)  # what the fetcher does at the position after the next ``sync``
    assert [(record.partition, record.offset) for record in r.drain(5 + BATCH)] == [
        *((1, offset) for offset in range(BATCH)),
        *((0, offset) for offset in range(5, 10)),
    ]


def test_an_interrupted_poll_gives_back_each_partition_that_it_has_read() -> None:
    r = reading(value_deserializer=Interrupting(b"12"))
    fetch(r, T1, 10)
    assert [record.offset for record in r.drain(2)] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        r.drain(100)
    assert (r.known_position(T0), r.known_position(T1)) == (2, 0)
    assert r.positions()[T0].offset == 2, "a commit covers no record that the program did not get"


def test_the_record_at_which_an_iteration_was_interrupted_comes_again() -> None:
    r = reading(value_deserializer=Interrupting(b"3"))
    iterator = r.next_iterator()
    assert iterator is not None
    got: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        got.extend(record.offset for record in r.iterate_ready(iterator))
    again = r.next_iterator()
    assert again is not None
    assert [record.offset for record in r.iterate_ready(again)] == list(range(3, 10))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_records_of_an_interrupted_arrow_table_are_read_again(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    pytest.importorskip("pyarrow")
    r = reading()
    decode = Reading._decode_arrow

    def interrupted(self: Reading, assigned: Any, parts: Any, start: int, **more: Any) -> Any:
        if assigned.tp == T1:
            raise error
        return decode(self, assigned, parts, start, **more)

    monkeypatch.setattr(Reading, "_decode_arrow", interrupted)
    with pytest.raises(error):
        r.take_arrow(1 << 20, None, False)
    monkeypatch.undo()
    assert (r.known_position(T0), r.known_position(T1)) == (0, 0)
    assert r.take_arrow(1 << 20, None, False) == [], "stale slices are gone; the fetcher begins at the positions"
    fetch(r, T0, 0)
    (batch,) = r.take_arrow(1 << 20, None, False)
    assert batch.column("offset").to_pylist() == list(range(BATCH))


def test_a_seek_while_a_table_is_decoded_keeps_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task of the event loop seeks while a thread decodes for ``AsyncConsumer.fetch_arrow``."""
    pytest.importorskip("pyarrow")
    r = reading()
    decode = Reading._decode_arrow

    def beside_a_seek(self: Reading, assigned: Any, parts: Any, start: int, **more: Any) -> Any:
        if assigned.tp == T0:
            r.seek(T0, 4)
        return decode(self, assigned, parts, start, **more)

    monkeypatch.setattr(Reading, "_decode_arrow", beside_a_seek)
    r.take_arrow(1 << 20, None, False)
    assert (r.known_position(T0), r.known_position(T1)) == (4, BATCH)
