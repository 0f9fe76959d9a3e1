"""How ``produce`` splits its input into messages, in chunks of any size, and its summary on a terminal."""

from __future__ import annotations

import os
import random
import threading
from itertools import chain

import pytest

from headrace_tools.cli.produce import _split, _summary


def _through_a_pipe(pieces: list[bytes], delimiter: bytes) -> list[bytes]:
    reader, writer = os.pipe()

    def feed() -> None:
        for piece in pieces:
            os.write(writer, piece)
        os.close(writer)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        return list(chain.from_iterable(_split(reader, delimiter)))
    finally:
        feeder.join()
        os.close(reader)


@pytest.mark.parametrize(
    ("data", "delimiter", "expected"),
    [
        (b"", b"\n", []),
        (b"one", b"\n", [b"one"]),
        (b"one\n", b"\n", [b"one"]),
        (b"one\n\ntwo\n", b"\n", [b"one", b"", b"two"]),
        (b"one--two-three--", b"--", [b"one", b"two-three"]),
        (b"a\0b\0", b"\0", [b"a", b"b"]),
    ],
)
def test_messages_end_with_the_delimiter_and_the_rest_is_one_too(
    data: bytes, delimiter: bytes, expected: list[bytes]
) -> None:
    assert _through_a_pipe([data], delimiter) == expected


@pytest.mark.parametrize("delimiter", [b"\n", b"--", b"abab"])
def test_however_the_bytes_arrive_the_messages_are_the_same(delimiter: bytes, rng: random.Random) -> None:
    for _ in range(50):
        data = bytes(rng.choice(b"ab-\n") for _ in range(rng.randrange(200)))
        expected = data.split(delimiter)
        if not expected[-1]:
            expected.pop()
        pieces, position = [], 0
        while position < len(data):
            size = rng.randrange(1, 8)
            pieces.append(data[position : position + size])
            position += size
        assert _through_a_pipe(pieces, delimiter) == expected


def _range(partition: int, records: int, first: int, last: int) -> dict[str, int]:
    return {"partition": partition, "records": records, "first_offset": first, "last_offset": last}


def test_a_terminal_shows_where_the_records_are() -> None:
    assert _summary("orders", [_range(2, 1, 0, 0)]) == ["1 record to orders-2 at offset 0"]
    assert _summary("orders", [_range(0, 5, 7, 11), _range(1, 1, -1, -1)]) == [
        "5 records to orders-0 at offsets 7 to 11",
        "1 record to orders-1",
    ]
    assert _summary("orders", [_range(number, 100, 0, 99) for number in range(20)]) == [
        "2,000 records to orders (20 partitions)"
    ]
    assert _summary("orders", []) == ["0 records to orders"]
