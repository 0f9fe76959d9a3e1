"""The functions that handle records: a slow call, rows of a database, many keys at a time, a cache before the call.

Every function handles records at least once: a member first stores its results and writes its notes (notes.py), and
then commits its offsets. Rows are idempotent by partition and offset, so a record that is handled again changes
nothing.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from headrace import Consumer, Record

from ..access import Access
from ..errors import PipelineFailedError
from . import schema
from .caching import Cache
from .notes import Note, Notes
from .scenes import CACHE_SIZE, CACHE_TTL_S, CALL_S, CONCURRENCY

POLL_S, POLL_RECORDS = 0.2, 200
TABLE = "CREATE TABLE IF NOT EXISTS handled (part INT, number INT, key TEXT, n INT, PRIMARY KEY (part, number))"
INSERT = "INSERT OR IGNORE INTO handled VALUES (?, ?, ?, ?)"


def call() -> None:
    """The slow downstream call."""
    time.sleep(CALL_S)


def noted(record: Record, at_ns: int, word: str = "-") -> Note:
    """The note of a record whose handling began at ``at_ns`` and ends now.

    Raises PipelineFailedError for a record that does not have the form in schema.py."""
    try:
        n = int(json.loads(record.value or b"")["n"])
    except (ValueError, TypeError, KeyError):
        raise PipelineFailedError(
            f'{record.topic}-{record.partition} at offset {record.offset}: the value is not {{"n": NUMBER}}; only the '
            "run may write to its topics"
        ) from None
    key = (record.key or b"").decode()
    return Note(record.partition, record.offset, key, n, at_ns, time.monotonic_ns(), word)


def consumer_of(access: Access, scene: str) -> Consumer:
    """A member of the scene's group, which commits after it has handled the records."""
    settings = access.consumer() | {
        "group.id": schema.group(scene),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "metadata.max.age.ms": 2_000,  # new partitions are found within this time
    }
    consumer = Consumer(settings)
    consumer.subscribe([schema.topic_of(scene)])
    return consumer


def polls(consumer: Consumer, ended: threading.Event, handle: Callable[[list[Record]], None]) -> None:
    """Handle the records of a poll, then commit, until ``ended``. Raises HeadraceError."""
    while not ended.is_set():
        if records := consumer.poll(POLL_S, POLL_RECORDS):
            handle(records)
            consumer.commit()


def slow(consumer: Consumer, ended: threading.Event, out: Path, notes: Notes) -> None:
    """Make the slow call for each record, one call after another."""

    def handle(records: list[Record]) -> None:
        lines = []
        for record in records:
            at_ns = time.monotonic_ns()
            call()
            lines.append(noted(record, at_ns))
        notes.write(lines)

    polls(consumer, ended, handle)


def cached(consumer: Consumer, ended: threading.Event, out: Path, notes: Notes) -> None:
    """Make the slow call only for a key that the cache does not have."""
    cache: Cache[bytes, bool] = Cache(CACHE_SIZE, CACHE_TTL_S)

    def handle(records: list[Record]) -> None:
        lines = []
        for record in records:
            key, at_ns = record.key or b"", time.monotonic_ns()
            is_hit = cache.get(key, at_ns / 1e9) is not None
            if not is_hit:
                call()
                cache.put(key, True, at_ns / 1e9)
            lines.append(noted(record, at_ns, "hit" if is_hit else "miss"))
        notes.write(lines)

    polls(consumer, ended, handle)


def concurrent(consumer: Consumer, ended: threading.Event, out: Path, notes: Notes) -> None:
    """Make the slow call for each record, for many keys at the same time; records with the same key are handled one
    after another."""

    def handle(record: Record) -> None:
        at_ns = time.monotonic_ns()
        call()
        notes.write([noted(record, at_ns)])

    consumer.process(handle, concurrency=CONCURRENCY, stop=ended)


def rows(consumer: Consumer, ended: threading.Event, out: Path, notes: Notes) -> None:
    """Write a row for each record, each row in its own transaction."""
    _rows(consumer, ended, out, notes, 1)


def batches(consumer: Consumer, ended: threading.Event, out: Path, notes: Notes) -> None:
    """Write a row for each record, all rows of a poll in one transaction."""
    _rows(consumer, ended, out, notes, POLL_RECORDS)


def _rows(consumer: Consumer, ended: threading.Event, out: Path, notes: Notes, size: int) -> None:
    with closing(sqlite3.connect(out, timeout=30, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")  # a commit is on the disk
        database.execute(TABLE)

        def handle(records: list[Record]) -> None:
            for at in range(0, len(records), size):
                lines = []
                database.execute("BEGIN IMMEDIATE")
                for record in records[at : at + size]:
                    note = noted(record, time.monotonic_ns())
                    database.execute(INSERT, note[:4])
                    lines.append(note._replace(ended_ns=time.monotonic_ns()))
                database.execute("COMMIT")
                notes.write(lines)

        polls(consumer, ended, handle)


#: Maps the name in a scene to the function with which a member handles records.
WORK: Mapping[str, Callable[[Consumer, threading.Event, Path, Notes], None]] = {
    "slow": slow, "rows": rows, "batches": batches, "concurrent": concurrent, "cached": cached,
}  # fmt: skip
