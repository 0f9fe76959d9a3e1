"""How ``produce`` cuts its input into messages, however the bytes arrive."""

from __future__ import annotations

import os
import random
import threading
from itertools import chain

import pytest

from headrace_tools.cli.produce import _split


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
