"""The birth time of a file distinguishes it from later files with its inode number."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_tools.ship.births import born_ns
from headrace_tools.ship.positions import position_of, value_of
from headrace_tools.ship.tail import CLOSED_AFTER_S, Files, Position

NOW_MS = 1_000_000


def birth(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return born_ns(descriptor)
    finally:
        os.close(descriptor)


def files_of(path: Path, known: dict[tuple[int, int], Position]) -> Files:
    return Files(
        [str(path)],
        known,
        from_end=False,
        line_bytes_max=1_000,
        now_s=0.0,
        now_ms=NOW_MS,
        followed_since={str(path): NOW_MS},
    )


def read(files: Files) -> list[bytes]:
    files.look(0.0, NOW_MS)
    return [line.text for tail in files.grown() for line in files.read(tail, 1 << 20, 0.0)]


def test_a_birth_time_stays_when_a_file_is_written_and_renamed(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    before_ns = time.time_ns()
    file.write_bytes(b"1\n")
    first = birth(file)
    assert first == 0 or before_ns - 1_000_000_000 < first <= time.time_ns()
    os.utime(file, (0, 0))
    with file.open("ab") as appended:
        appended.write(b"2\n")
    assert birth(file.rename(tmp_path / "a.log.1")) == first


def test_a_file_with_the_inode_number_and_the_bytes_of_a_removed_file_begins_at_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"header\n1\n")
    first = files_of(log, {})
    assert read(first) == [b"header", b"1"]
    known = {identity: tail.position() for identity, tail in first.tails.items()}
    first.close()
    if not next(iter(known.values())).born_ns:
        pytest.skip("the file system of the temporary directory has no birth times")
    removed = {identity: replace(each, born_ns=each.born_ns - 1) for identity, each in known.items()}
    assert read(files_of(log, known)) == []
    assert read(files_of(log, removed)) == [b"header", b"1"]


def test_a_file_that_was_rotated_before_the_inode_number_came_back_is_read(tmp_path: Path) -> None:
    """While no shipper ran: the known file was removed, and the second of two new files has its inode number."""
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    first = files_of(log, {})
    assert read(first) == [b"1"]
    known = {identity: tail.position() for identity, tail in first.tails.items()}
    first.close()
    if not next(iter(known.values())).born_ns:
        pytest.skip("the file system of the temporary directory has no birth times")
    removed = {identity: replace(each, born_ns=each.born_ns - 1) for identity, each in known.items()}
    (tmp_path / "a.log.1").write_bytes(b"2\n")
    log.write_bytes(b"3\n")
    second = files_of(log, removed)
    assert [line for _ in range(2) for line in read(second)] == [b"2", b"3"]


def test_late_lines_of_a_file_that_was_empty_when_it_was_closed_are_read(tmp_path: Path) -> None:
    log, renamed = tmp_path / "a.log", tmp_path / "a.log.1"
    log.write_bytes(b"")
    files = files_of(log, {})
    assert read(files) == []
    if not birth(log):
        pytest.skip("the file system of the temporary directory has no birth times")
    log.rename(renamed)
    log.write_bytes(b"2\n")
    assert [line for _ in range(2) for line in read(files)] == [b"2"]
    for tail in files.finished(2 * CLOSED_AFTER_S):
        files.drop(tail)
    assert len(files.tails) == 1
    renamed.write_bytes(b"late\n")
    files.look(3 * CLOSED_AFTER_S, NOW_MS)
    assert [line.text for tail in files.grown() for line in files.read(tail, 1 << 20, 0.0)] == [b"late"]


def test_late_lines_of_an_older_file_come_before_those_of_a_younger_renamed_file(tmp_path: Path) -> None:
    """A random history shipped them in the order in which the files were opened."""
    log, oldest = tmp_path / "a.log", tmp_path / "a.log.2"
    log.write_bytes(b"1\n")
    first = files_of(log, {})
    assert read(first) == [b"1"]
    if not birth(log):
        pytest.skip("the file system of the temporary directory has no birth times")
    known = {identity: tail.position() for identity, tail in first.tails.items()}
    first.close()
    log.rename(oldest)
    log.write_bytes(b"")
    while birth(log) == birth(oldest):  # the kernel's clock of births advances in steps
        log.unlink()
        log.write_bytes(b"")
    second = files_of(log, known)
    with oldest.open("ab") as late:
        late.write(b"late\n")
    second.look(1.0, NOW_MS)  # opens the old file after the new one
    log.write_bytes(b"2\n")
    log.rename(tmp_path / "a.log.1")
    assert [line for _ in range(3) for line in read(second)] == [b"late", b"2"]


def test_positions_of_earlier_releases_have_no_birth_time() -> None:
    position = Position("a.log", 1, 2, 3, "f", 4, 5, 6, 7)
    assert position_of((1, 2), value_of(position)) == position
    assert position_of((1, 2), value_of(position).replace(b', "born_ns": 7', b"")) == replace(position, born_ns=0)
