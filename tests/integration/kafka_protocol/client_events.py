"""What a program with a Kafka client prints, one line for each event; the Go programs print the same.

    sent PARTITION OFFSET KEY VALUE              acknowledged
    read TIME PARTITION OFFSET KEY VALUE HEADER  read; TIME in nanoseconds since 1970
    committed TIME PARTITION OFFSET              the group's next offset, acknowledged

A program that has no other end ends when its standard input closes: the test closes it, or the test has died.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator

#: The name of the header that each record has; its value is the record's number.
HEADER = "number"
#: The value of the last record of a partition, which the test writes.
END = b"end"
Headers = Iterable[tuple[str, bytes]]


def stdin_closed() -> threading.Event:
    """An event that is set when the standard input closes."""
    closed = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    return closed


def numbers(count: int) -> Iterator[int]:
    """``count`` numbers at once, or 500 numbers a second until the standard input closes if ``count`` is 0."""
    if count:
        yield from range(count)
        return
    closed = stdin_closed()
    number = 0
    while not closed.wait(0.002):
        yield number
        number += 1


def record(number: int) -> tuple[bytes, bytes, list[tuple[str, bytes]]]:
    """Key, value and headers of record ``number``."""
    return b"k%d" % (number % 60), b"v%d" % number, [(HEADER, b"%d" % number)]


def show(*words: object) -> None:
    """Print one line at once: a killed process loses no line that it printed."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def sent(partition: int, offset: int, key: bytes, value: bytes) -> None:
    show("sent", partition, offset, key.decode(), value.decode())


def read(partition: int, offset: int, key: bytes, value: bytes, headers: Headers) -> None:
    header = dict(headers).get(HEADER, b"-")
    show("read", time.time_ns(), partition, offset, key.decode(), value.decode(), header.decode())


def committed(partition: int, offset: int) -> None:
    show("committed", time.time_ns(), partition, offset)
