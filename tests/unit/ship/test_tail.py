"""Files of ``headrace ship``: growth, rotation, truncation, partial lines, positions of an earlier run."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_tools.ship.positions import Stored, pattern_key_of, pattern_value_of, position_of, value_of
from headrace_tools.ship.tail import (
    CLOSED_AFTER_S,
    FORGOTTEN_AFTER_MS,
    LAST_LINE_AFTER_S,
    Files,
    Position,
    _descriptor_of,
    _is_rotated,
    _unrotated,
    check_paths,
    files_max_of,
)

NOW_MS = 1_000_000


def files_of(*paths: Path | str, known: dict[tuple[int, int], Position] | None = None, **options: object) -> Files:
    settings = {"from_end": False, "line_bytes_max": 1_000, "now_s": 0.0, "now_ms": 0, "followed_since": {}} | options
    return Files(map(str, paths), known or {}, **settings)  # type: ignore[arg-type]


def read(files: Files, now_s: float = 0.0, now_ms: int = NOW_MS) -> list[bytes]:
    files.look(now_s, now_ms)
    found = []
    for tail in files.grown():
        found += [line.text for line in tail.lines(1 << 20, takes_rest=files.takes_rest(tail, now_s))]
    return found


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)
    touch(path)


_SECONDS = itertools.count(1)


def touch(path: Path) -> None:
    """As if the last write were later, by a second, than all earlier ones."""
    at_s = time.time() + next(_SECONDS)
    os.utime(path, (at_s, at_s))


def positions(files: Files) -> dict[tuple[int, int], Position]:
    return {identity: tail.position() for identity, tail in files.tails.items()}


def test_lines_come_once_and_a_partial_line_waits(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\r\n\ntwo")
    files = files_of(log)
    assert read(files) == [b"one", b""]
    assert read(files) == []
    append(log, b" and more\nthree\n")
    assert read(files) == [b"two and more", b"three"]


def test_a_line_above_the_limit_comes_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 2_500 + b"\nshort\n")
    files = files_of(log)
    files.look(0.0, NOW_MS)
    (tail,) = files.grown()
    lines = list(tail.lines(1 << 20, takes_rest=False))
    assert [(len(line.text), line.is_whole) for line in lines] == [
        (1_000, False),
        (1_000, False),
        (500, True),
        (5, True),
    ]
    assert [line.begin for line in lines] == [0, 1_000, 2_000, 2_501]
    assert tail.offset == log.stat().st_size


def test_a_renamed_file_is_read_to_its_end_and_the_new_one_from_its_begin(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    assert read(files) == [b"1", b"2"]
    writer = log.open("ab")
    log.rename(tmp_path / "a.log.1")
    log.write_bytes(b"4\n")
    writer.write(b"3\n")  # by a program that has not opened the new file yet
    writer.close()
    assert read(files, 1.0) == [b"3"], "the new file waits for the old one's end"
    assert read(files, 1.0) == [b"4"]
    assert files.finished(1.0) == []
    (gone,) = files.finished(1.0 + CLOSED_AFTER_S)
    files.drop(gone)
    assert read(files, 9.0) == []


@pytest.mark.parametrize("is_restarted", [True, False], ids=["after a restart", "after the file was closed"])
def test_a_line_that_a_program_writes_late_to_a_renamed_file_is_read_before_the_new_file(
    is_restarted: bool, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    known = positions(files)
    rotate(log)
    if is_restarted:
        files.close()
        files = files_of(log, known=known)
    assert read(files, 1.0) == []
    for tail in files.finished(1.0 + CLOSED_AFTER_S):
        files.drop(tail)
    append(log.with_name("a.log.1"), b"2\n")
    append(log, b"3\n")
    assert read(files, 7.0) == [b"2"]
    assert read(files, 8.0) == [b"3"]


def test_a_renamed_file_that_was_unreadable_at_the_start_is_read_when_it_becomes_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, renamed = tmp_path / "a.log", tmp_path / "a.log.1"
    append(log, b"1\n")
    first = files_of(log)
    assert read(first) == [b"1"]
    known = positions(first)
    first.close()
    append(log, b"2\n")
    rotate(log)
    append(log, b"3\n")
    with unreadable(monkeypatch, renamed):
        second = files_of(log, known=known)
        assert read(second) == [b"3"]
        assert second.unreadable == {str(renamed): "Permission denied"}
    assert read(second, 1.0) == [b"2"]
    assert second.unreadable == {}
    assert second.notes == [f"{renamed} cannot be read: Permission denied; the shipper retries"]


@pytest.mark.parametrize("is_known", [True, False], ids=["a later file", "the first file"])
def test_an_unreadable_file_that_is_renamed_is_read_when_it_becomes_readable(
    is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, renamed = tmp_path / "a.log", tmp_path / "a.log.1"
    append(log, b"0\n")
    files = files_of(log) if is_known else None
    if files is not None:
        assert read(files) == [b"0"]
        log.rename(tmp_path / "a.log.2")
        append(log, b"1\n")
    with unreadable(monkeypatch, log):
        files = files or files_of(log)
        files.look(1.0, NOW_MS + 60_000)  # the path last led to the file long after its last line
        log.rename(renamed)
        append(log, b"2\n")
        files.look(2.0, NOW_MS + 120_000)
        assert read(files, 3.0) == [b"2"]
    assert read(files, 4.0) == [b"1" if is_known else b"0"]
    assert files.unreadable == {}
    assert files.notes == [f"{path} cannot be read: Permission denied; the shipper retries" for path in (log, renamed)]


def test_a_file_that_becomes_readable_and_is_renamed_between_two_checks_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\n")
    with unreadable(monkeypatch, log):
        files = files_of(log)
        files.look(1.0, 2_000_000_000_000)
    log.rename(tmp_path / "a.log.1")
    append(log, b"2\n")
    assert [line for _ in range(2) for line in read(files, 2.0)] == [b"1", b"2"]


def test_a_rotated_file_that_is_unreadable_when_it_is_found_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    rotate_twice(log, then=(b"2\n", b"3\n"))
    with unreadable(monkeypatch, tmp_path / "a.log.1"):
        assert read(files) == [b"3"]
    assert read(files, 1.0) == [b"2"]


def test_the_rest_of_a_copy_that_is_unreadable_at_first_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    append(log, b"2\n")
    copy_and_truncate(log)
    append(log, b"3\n")
    with unreadable(monkeypatch, tmp_path / "a.log.1"):
        assert read(files) == [b"3"]
    assert read(files, 1.0) == [b"2"]
    assert read(files, 2.0) == []


def test_without_birth_times_an_empty_copy_gets_no_position_that_a_later_copy_with_its_inode_could_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_tools.ship.tail.born_ns", lambda _: 0)
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    append(log, b"1\n")
    first = files_of(log)
    assert read(first) == [b"1"]
    log.rename(tmp_path / "a.log.2")
    copy.write_bytes(b"")
    touch(copy)
    append(log, b"2\n")
    assert [line for _ in range(2) for line in read(first)] == [b"2"]
    assert copy.stat().st_ino in {inode for _, inode in first.tails}  # perhaps a renamed file: a program may write late
    assert copy.stat().st_ino not in {tail.identity[1] for tail in first.without_position()}
    append(copy, b"late\n")
    assert [line for _ in range(2) for line in read(first)] == [b"late"]
    assert copy.stat().st_ino in {tail.identity[1] for tail in first.without_position()}


def test_a_file_that_was_empty_when_the_shipper_stopped_is_read_if_it_was_then_renamed(tmp_path: Path) -> None:
    """A random history lost these lines: the program wrote late to the renamed file."""
    log = tmp_path / "a.log"
    append(log, b"")
    first = files_of(log)
    assert read(first) == []
    log.rename(tmp_path / "a.log.1")
    log.write_bytes(b"")
    assert read(first) == []
    known = positions(first)
    append(tmp_path / "a.log.1", b"late\n")
    second = files_of(log, known=known)
    later_ms = (tmp_path / "a.log.1").stat().st_mtime_ns // 1_000_000 + 500
    lines = read(second, now_ms=later_ms) + read(second, now_ms=later_ms)
    append(log, b"2\n")
    assert lines + read(second, now_ms=later_ms + 1_000) + read(second, now_ms=later_ms + 1_000) == [b"late", b"2"]


def test_a_copy_that_is_not_complete_is_not_taken_for_a_truncated_file(tmp_path: Path) -> None:
    """A random history began the copy again after another copy with the same first bytes."""
    other, log = tmp_path / "other.log", tmp_path / "a.log"
    append(other, b"0\n")
    files = files_of(log, other)
    assert read(files) == [b"0"]
    append(tmp_path / "a.log.1", b"line")
    append(log, b"")
    files.look(0.0, NOW_MS)  # takes the incomplete copy for a renamed file
    append(tmp_path / "a.log.1", b" 1\n")
    append(tmp_path / "a.log.2", b"line 2\n")
    touch(log)
    assert [line for _ in range(3) for line in read(files)] == [b"line 1", b"line 2"]
    assert not [note for note in files.notes if "truncated" in note and "a.log was" in note]


def test_a_copy_of_the_present_content_of_a_new_path_is_not_read_beside_the_file(tmp_path: Path) -> None:
    """A random history sent the lines of a file that was copied before the shipper saw its path."""
    other, log, copy = tmp_path / "other.log", tmp_path / "a.log", tmp_path / "a.log.1"
    append(other, b"0\n")
    files = files_of(tmp_path / "*.log")
    assert read(files) == [b"0"]
    append(log, b"1\n")
    shutil.copyfile(log, copy)
    touch(copy)
    assert [line for _ in range(3) for line in read(files)] == [b"1"]
    os.truncate(log, 0)
    append(log, b"2\n")
    assert [line for _ in range(3) for line in read(files)] == [b"2"]


@contextlib.contextmanager
def unreadable(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Iterator[None]:
    """Refuse to open the files that now have these paths, under any name, as without permission."""
    refused = {os.stat(path).st_ino for path in paths}

    def refuse(path: str) -> int:
        if os.stat(path).st_ino in refused:
            raise PermissionError(errno.EACCES, "Permission denied")
        return _descriptor_of(path)

    with monkeypatch.context() as patched:
        patched.setattr("headrace_tools.ship.tail._descriptor_of", refuse)
        yield


def rotated_twice(log: Path) -> None:
    """The file loses its path, and so does the next one at once."""
    append(log, b"2\n")
    log.rename(log.with_name("a.log.1"))
    log.write_bytes(b"3\n")
    log.rename(log.with_name("a.log.2"))


def test_a_file_that_comes_and_goes_between_two_looks_is_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    rotated_twice(log)
    log.write_bytes(b"4\n")
    assert [line for _ in range(3) for line in read(files)] == [b"2", b"3", b"4"]


def test_it_is_read_too_when_the_path_leads_to_no_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    rotated_twice(log)
    assert [line for _ in range(3) for line in read(files)] == [b"2", b"3"]
    log.write_bytes(b"4\n")
    assert [line for _ in range(3) for line in read(files)] == [b"4"]


def rotate(log: Path) -> None:
    """a.log.1 becomes a.log.2, a.log becomes a.log.1."""
    if log.with_name("a.log.1").exists():
        log.with_name("a.log.1").rename(log.with_name("a.log.2"))
    log.rename(log.with_name("a.log.1"))
    log.touch()


@pytest.mark.parametrize("comes_back", [True, False], ids=["new files", "no new files"])
def test_one_scan_finds_the_files_of_all_paths_that_were_rotated_together(
    comes_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a scan for each path, a check after 2,000 rotations took a minute."""
    logs = [tmp_path / f"{number}.log" for number in range(100)]
    for log in logs:
        log.write_bytes(b"1\n")
    files = files_of(tmp_path / "*.log")
    assert read(files) == [b"1"] * 100
    for log in logs:
        append(log, b"2\n")
        log.rename(f"{log}.1")
        append(log, b"3\n")
        log.rename(f"{log}.2")
        if comes_back:
            log.write_bytes(b"4\n")
    scans: list[str] = []

    def counted(path: str) -> object:
        scans.append(path)
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr("headrace_tools.ship.tail.os.scandir", counted)
    files.look(0.0, NOW_MS)
    monkeypatch.undo()
    assert scans.count(str(tmp_path)) <= 3  # two scans that must agree, and perhaps glob's
    found = [line for _ in range(3) for line in read(files)]
    assert found == [line for line in (b"2", b"3", b"4")[: 2 + comes_back] for _ in logs]


def rotate_twice(log: Path, *, then: tuple[bytes, bytes]) -> None:
    for text, suffix in zip(then, ("2", "1"), strict=True):
        log.rename(f"{log}.{suffix}")
        append(log, text)


def test_files_that_are_renamed_during_each_scan_hide_no_file_of_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, busy = tmp_path / "quiet.log", tmp_path / "busy.log"
    append(quiet, b"q1\n")
    append(busy, b"b1\n")
    files = files_of(tmp_path / "*.log")
    assert read(files) == [b"b1", b"q1"]
    rotate_twice(quiet, then=(b"q2\n", b"q3\n"))
    rotate_twice(busy, then=(b"b2\n", b"b3\n"))
    scandir = os.scandir

    def renaming(path: str) -> object:
        for name in os.listdir(tmp_path):
            if name.startswith("busy.log.1"):
                os.rename(tmp_path / name, tmp_path / f"busy.log.1{next(_SECONDS)}")
        return scandir(path)

    monkeypatch.setattr("headrace_tools.ship.tail.os.scandir", renaming)
    found = read(files)
    monkeypatch.undo()
    assert [line for line in found + read(files) if line.startswith(b"q")] == [b"q2", b"q3"]
    assert [note for note in files.notes if "missed" in note] == [
        f"files of {busy} were renamed in each of 50 scans: some files may have been missed"
    ]


@pytest.mark.parametrize("failure", [errno.EIO, errno.ESTALE, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("where", ["scan", "entry"])
def test_files_that_had_a_path_are_still_found_after_a_scan_that_failed(
    where: str, failure: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for log in logs:
        append(log, b"1\n")
    files = files_of(*logs)
    assert read(files) == [b"1", b"1"]
    for log in logs:
        rotate_twice(log, then=(b"2\n", b"3\n"))
    scandir = os.scandir

    class Failing:
        path = str(tmp_path / "a.log.1")

        def stat(self, **_: object) -> object:
            raise OSError(failure, os.strerror(failure))

    def failing(path: str) -> object:
        if where == "scan":
            raise OSError(failure, os.strerror(failure))
        return contextlib.nullcontext([Failing(), *scandir(path)])

    monkeypatch.setattr("headrace_tools.ship.tail.os.scandir", failing)
    assert read(files) == []
    assert files.unreadable == {str(log): os.strerror(failure) for log in logs}
    monkeypatch.undo()
    assert sorted(line for _ in range(4) for line in read(files)) == [b"2", b"2", b"3", b"3"]
    assert files.unreadable == {}


def test_a_directory_without_permission_to_read_is_noted_once_and_its_paths_are_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]

    def refused(path: str) -> object:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("headrace_tools.ship.tail.os.scandir", refused)
    for text in (b"2\n", b"3\n"):
        log.rename(tmp_path / "a.log.1")
        append(log, text)
        assert text.strip() in [line for _ in range(3) for line in read(files)]
    assert [note for note in files.notes if "Permission denied" in note] == [
        f"{tmp_path} cannot be read: Permission denied: the shipper does not see files that are renamed;"
        " the shipper retries"
    ]
    monkeypatch.undo()
    rotate_twice(log, then=(b"4\n", b"5\n"))
    assert [line for _ in range(3) for line in read(files)] == [b"4", b"5"]
    assert files.unreadable == {}


@pytest.mark.parametrize("paths", ["a.log", "*.log"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["while a shipper runs", "while no shipper runs"])
def test_the_first_file_of_a_path_that_is_renamed_before_the_shipper_sees_it_is_read(
    is_restarted: bool, paths: str, tmp_path: Path
) -> None:
    other, log = tmp_path / "other.log", tmp_path / "a.log"
    append(tmp_path / "a.log.9", b"older than the first run\n")
    os.utime(tmp_path / "a.log.9", (0, 0))
    append(other, b"0\n")
    files = files_of(tmp_path / paths, other, now_ms=NOW_MS)
    assert read(files) == [b"0"]
    if is_restarted:
        known, since = positions(files), dict(files.unstored)
        files.close()
    append(log, b"1\n")
    log.rename(tmp_path / "a.log.1")
    append(log, b"2\n")
    if is_restarted:
        files = files_of(tmp_path / paths, other, known=known, now_ms=NOW_MS, followed_since=since)
    assert [line for _ in range(2) for line in read(files)] == [b"1", b"2"]


@pytest.mark.parametrize("paths", ["a.log", "*.log"])
def test_the_first_file_of_a_path_is_read_by_the_next_shipper_if_its_path_leads_to_no_file_until_then(
    paths: str, tmp_path: Path
) -> None:
    """A random history lost this file: the positions of the other files were younger than it."""
    other, log = tmp_path / "other.log", tmp_path / "a.log"
    append(other, b"0\n")
    files = files_of(tmp_path / paths, other, now_ms=NOW_MS)
    append(log, b"1\n")
    log.rename(tmp_path / "a.log.1")
    later_ms = (tmp_path / "a.log.1").stat().st_mtime_ns // 1_000_000 + 60_000
    assert [read(files, now_ms=later_ms) for _ in range(2)] == [[b"0"], []]
    known, since = positions(files), dict(files.unstored)
    assert {position.at_ms for position in known.values()} == {later_ms}
    files.close()
    files = files_of(tmp_path / paths, other, known=known, now_ms=later_ms, followed_since=since)
    append(log, b"2\n")
    assert [line for _ in range(2) for line in read(files, now_ms=later_ms)] == [b"1", b"2"]


def test_a_path_that_a_later_run_names_for_the_first_time_begins_with_the_file_at_the_path(tmp_path: Path) -> None:
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    append(old, b"0\n")
    files = files_of(old, now_ms=NOW_MS)
    assert read(files) == [b"0"]
    assert files.unstored == {str(old): NOW_MS}
    append(tmp_path / "new.log.1", b"older than the first run that names new.log\n")
    append(new, b"1\n")
    known = positions(files)
    files.close()
    files = files_of(old, new, known=known, now_ms=NOW_MS, followed_since={str(old): NOW_MS})
    assert [line for _ in range(2) for line in read(files)] == [b"1"]
    assert files.unstored == {str(new): NOW_MS}
    files.close()
    followed_since = {str(old): NOW_MS, str(new): NOW_MS}
    assert files_of(new, now_ms=NOW_MS, followed_since=followed_since).unstored == {str(old): None}


def test_a_path_without_a_file_for_more_than_a_day_begins_without_its_older_copies(tmp_path: Path) -> None:
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    append(log, b"1\n")
    now_ms = log.stat().st_mtime_ns // 1_000_000 + 60_000
    files = files_of(log, now_ms=now_ms)
    assert read(files, now_ms=now_ms) == [b"1"]
    shutil.copy2(log, copy)
    log.unlink()
    files.look(0.0, now_ms)
    closed = files.finished(2 * CLOSED_AFTER_S)
    assert files.gone(closed) == []  # it is the last file of its path
    for tail in closed:
        files.drop(tail)
    now_ms += FORGOTTEN_AFTER_MS + 1
    files.look(3 * CLOSED_AFTER_S, now_ms)
    assert len(files.forgotten) == 1
    append(log, b"2\n")
    assert read(files, 4 * CLOSED_AFTER_S, now_ms) == [b"2"]


def test_stored_records_say_since_when_each_path_is_followed() -> None:
    stored = Stored()
    for path in ("/a/*.log", "/b/\udcff.log"):
        owner, _, file = pattern_key_of("s", path).rpartition(b"/")
        assert owner == b"s"
        stored.apply(file, pattern_value_of(path, 7))
    assert stored.followed_since == {"/a/*.log": 7, "/b/\udcff.log": 7}
    stored.apply(pattern_key_of("s", "/a/*.log").rpartition(b"/")[2], None)
    assert (stored.followed_since, stored.positions) == ({"/b/\udcff.log": 7}, {})
    with pytest.raises(KeyError):
        stored.apply(pattern_key_of("s", "/a").rpartition(b"/")[2], b"{}")


def test_a_file_that_comes_after_the_scan_and_is_renamed_before_it_is_open_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    log.rename(tmp_path / "a.log.2")
    look_at = files._look_at

    def comes(*arguments: object) -> object:
        append(log, b"2\n")
        return look_at(*arguments)  # type: ignore[arg-type]

    def goes(path: str) -> int:
        if path == str(log):
            log.rename(tmp_path / "a.log.1")
        return _descriptor_of(path)

    monkeypatch.setattr(files, "_look_at", comes)
    monkeypatch.setattr("headrace_tools.ship.tail._descriptor_of", goes)
    found = read(files)
    monkeypatch.undo()
    assert found + read(files) == [b"2"]


@pytest.mark.parametrize("is_first", [True, False], ids=["first look", "later look"])
def test_a_file_that_is_renamed_between_stat_and_open_is_read(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"0\n")
    files = files_of(log) if not is_first else None
    if files is not None:
        assert read(files) == [b"0"]
        rotate(log)
        append(log, b"1\n")
    whole = _descriptor_of

    def rotated_before(path: str) -> int:
        if path == str(log):
            monkeypatch.setattr("headrace_tools.ship.tail._descriptor_of", whole)
            rotate(log)
            append(log, b"2\n")
        return whole(path)

    monkeypatch.setattr("headrace_tools.ship.tail._descriptor_of", rotated_before)
    files = files or files_of(log)
    assert read(files) + read(files, 1.0) == [b"0" if is_first else b"1", b"2"]


def test_a_file_that_a_scan_misses_because_it_is_renamed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"0\n")
    files = files_of(log)
    assert read(files) == [b"0"]
    for line in (b"1\n", b"2\n"):
        rotate(log)
        append(log, line)
    whole = files._entries

    def entries(directory: str) -> list[os.DirEntry[str]]:
        monkeypatch.setattr(files, "_entries", whole)
        found = whole(directory)
        rotate(log)  # now a.log.1 is a.log.2, and "2" is in a.log.1
        append(log, b"3\n")
        return found

    monkeypatch.setattr(files, "_entries", entries)
    assert [line for now_s in (1.0, 2.0, 3.0) for line in read(files, now_s)] == [b"1", b"2", b"3"]


def test_it_is_read_by_the_next_run_when_the_shipper_dies_first(tmp_path: Path) -> None:
    """The old file's last lines were shipped after the next file was rotated: the old file's position must not hide
    the next one."""
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    rotated_twice(log)
    later_ns = (NOW_MS + 1_000) * 1_000_000
    os.utime(log.with_name("a.log.2"), ns=(later_ns, later_ns))
    (old,) = files.tails.values()
    files.look(1.0, NOW_MS + 5_000)
    assert [line.text for line in old.lines(1 << 20, takes_rest=False)] == [b"2"]
    again = files_of(log, known={old.identity: old.position()})
    assert read(again) == [b"3"]


def test_the_unterminated_rest_of_a_removed_file_is_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\nrest")
    files = files_of(log)
    assert read(files, 1.0) == [b"1"]
    log.unlink()
    assert read(files, 2.0) == []
    assert read(files, 2.0 + LAST_LINE_AFTER_S) == [b"rest"]


def test_a_line_that_grows_slowly_in_a_renamed_file_is_not_split(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files, 1.0) == [b"1"]
    log.rename(tmp_path / "a.log.1")
    for number in range(20):
        append(tmp_path / "a.log.1", b"x")
        assert read(files, 1.0 + 0.4 * number) == []
    append(tmp_path / "a.log.1", b"\n")
    assert read(files, 9.0) == [b"x" * 20]


def test_a_half_written_line_in_a_file_that_was_renamed_before_a_restart_is_not_split(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, b"1\nha")
    first = files_of(log)
    assert read(first) == [b"1"]
    known = positions(first)
    first.close()
    log.rename(tmp_path / "a.log.1")
    second = files_of(log, known=known, now_s=100.0)
    assert read(second, 100.0) == read(second, 101.0) == []
    assert second.has_rest(), "with --once, the shipper waits for it"
    append(tmp_path / "a.log.1", b"lf\nre")
    assert read(second, 101.5) == [b"half"]
    assert read(second, 101.5 + LAST_LINE_AFTER_S) == [b"re"]
    assert not second.has_rest()


@pytest.mark.parametrize("content", [b"new\n", b"another first line, longer than what was there before\nsecond\n"])
def test_a_truncated_or_overwritten_file_begins_again(tmp_path: Path, content: bytes) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old line\nold line 2\n")
    files = files_of(log)
    assert len(read(files)) == 2
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(content)
    assert read(files) == content.splitlines()
    assert "truncated or overwritten" in files.notes[0]


def copy_and_truncate(log: Path, copy: str = "a.log.1") -> None:
    """As logrotate does with ``copytruncate``."""
    shutil.copyfile(log, log.with_name(copy))
    touch(log.with_name(copy))
    os.truncate(log, 0)
    touch(log)


def test_the_unread_rest_of_a_truncated_file_is_read_from_its_copy(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    assert read(files) == [b"1", b"2"]
    append(log, b"3\n")
    copy_and_truncate(log)
    append(log, b"4, longer than all before\n")
    assert read(files) == [b"3"], "the truncated file waits for the rest"
    assert read(files) == [b"4, longer than all before"]
    assert files.notes == [
        f"{log} was truncated or overwritten at position 4: shipping the rest of its copy {log}.1, then "
        "from its beginning"
    ]


@pytest.mark.parametrize("more", [b"", b"5\n"], ids=["nothing new", "a new line"])
@pytest.mark.parametrize("rest", [b"", b"3\n"], ids=["all shipped", "a rest"])
def test_the_copy_of_a_file_that_was_truncated_between_two_runs_is_not_read_again(
    rest: bytes, more: bytes, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\n")
    first = files_of(log)
    assert read(first) == [b"1", b"2"]
    known = positions(first)
    first.close()
    append(log, rest)
    copy_and_truncate(log)
    append(log, more)
    second = files_of(log, known=known)
    assert read(second) + read(second) == (rest + more).splitlines()
    third = files_of(log, known=known | {each: at for each, at in positions(second).items() if at.offset})
    assert read(third) == []


def test_a_backup_that_an_editor_changes_is_not_a_part_of_a_log_that_was_not_truncated(tmp_path: Path) -> None:
    log, backup = tmp_path / "a.log", tmp_path / "a.log.bak"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    shutil.copyfile(log, backup)
    append(backup, b"X\n")
    append(log, b"2\n")
    assert read(files) == [b"2"]
    assert files.notes == []


def test_a_file_whose_name_begins_with_the_path_is_not_a_rotated_file(tmp_path: Path) -> None:
    log, other = tmp_path / "app.log", tmp_path / "app.log.audit"
    append(log, b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    append(other, b"audit\n")
    log.rename(tmp_path / "app.log.1")
    append(log, b"2\n")
    assert [line for _ in range(3) for line in read(files)] == [b"2"]


@pytest.mark.parametrize(
    ("suffix", "is_rotated"),
    [
        *((each, True) for each in (".1", ".001", "-20261129", "-20261129-1764407559", ".2026-11-29_10-00", ".old")),
        *((each, True) for each in ("-2026-11-29T10:00:00+01:00", "-20261129.txt", ".20261129.1", "_2026-11-29")),
        *((each, False) for each in (".bak", ".audit", "~", ".swp", ".1.gz", ".1.bak", ".1~", "", "1", ".older")),
    ],
)
def test_a_rotation_appends_a_number_or_a_date_to_a_name(suffix: str, is_rotated: bool) -> None:
    assert _is_rotated(f"/logs/a.log{suffix}", "/logs/a.log") is is_rotated
    assert ("/logs/a.log" in _unrotated(f"/logs/a.log{suffix}")) is is_rotated


def test_a_copy_of_a_file_that_is_not_truncated_is_not_read(tmp_path: Path) -> None:
    """logrotate's ``copy``; also a copy that logrotate is about to complete."""
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    assert read(files) == [b"1", b"2"]
    shutil.copyfile(log, copy)
    touch(copy)
    append(log, b"3\n")
    assert read(files) == [b"3"]
    known = positions(files)
    files.close()
    assert read(files_of(log, known=known)) == []


def test_all_copies_between_two_looks_are_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    assert read(files) == [b"1", b"2"]
    copy_and_truncate(log, "a.log.2")  # all of it is shipped
    append(log, b"3\n4\n")
    copy_and_truncate(log, "a.log.1")
    append(log, b"5\n")
    assert read(files) + read(files) == [b"3", b"4", b"5"]


def test_of_copies_with_the_same_long_beginning_the_oldest_is_the_files_copy(tmp_path: Path) -> None:
    log, banner = tmp_path / "a.log", b"#" * 2_000 + b"\n"
    log.write_bytes(banner + b"1\n")
    first = files_of(log, line_bytes_max=4_000)
    assert read(first)[1:] == [b"1"]
    copy_and_truncate(log, "a.log.3")  # of an earlier truncation; it is shipped
    assert read(first) == []
    append(log, banner + b"2\n")
    assert [line for line in read(first) + read(first) if line[:1] != b"#"] == [b"2"]
    known = positions(first)
    first.close()
    append(log, b"3\n")
    copy_and_truncate(log, "a.log.2")
    append(log, banner + b"4\n5, longer than all before\n")
    copy_and_truncate(log, "a.log.1")
    append(log, b"6\n")
    second = files_of(log, known=known, line_bytes_max=4_000)
    found = [line[:2] for _ in range(3) for line in read(second)]
    assert found == [b"3", b"##", b"4", b"5,", b"6"]


def test_a_copy_may_have_the_inode_of_a_copy_that_is_gone(tmp_path: Path) -> None:
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    read(files)
    copy_and_truncate(log)
    append(log, b"3\n")
    assert read(files) == [b"3"]
    assert read(files) == []
    for tail in files.finished(CLOSED_AFTER_S):
        files.drop(tail)
    append(log, b"4\n")
    copy.write_bytes(log.read_bytes())  # as if its inode were used again
    touch(copy)
    os.truncate(log, 0)
    append(log, b"5\n")
    assert read(files) + read(files) == [b"4", b"5"]


def test_a_renamed_file_with_the_same_first_line_is_no_copy(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"same\n")
    first = files_of(log)
    assert read(first) == [b"same"]
    known = positions(first)
    log.rename(tmp_path / "a.log.2")
    for path, text in ((tmp_path / "a.log.1", b"same\n2\n"), (log, b"3\n")):
        path.write_bytes(text)
        os.utime(path, (NOW_MS / 1_000 + 5, NOW_MS / 1_000 + 5))
    second = files_of(log, known=known)
    assert read(second) + read(second) == [b"same", b"2", b"3"]


def test_patterns_find_new_files(tmp_path: Path) -> None:
    files = files_of(tmp_path / "*.log")
    assert read(files) == []
    (tmp_path / "b.log").write_bytes(b"b\n")
    (tmp_path / "other").write_bytes(b"no\n")
    assert read(files) == [b"b"]


def test_compressed_files_are_not_read_although_a_pattern_matches_them(tmp_path: Path) -> None:
    append(tmp_path / "access.log", b"1\n")
    packed = tmp_path / "access.log.2.gz"
    append(packed, b"\x1f\x8b\n")
    files = files_of(tmp_path / "access.log*")
    assert read(files) == [b"1"]
    assert files.notes == []
    named = files_of(packed)
    assert read(named) == read(named) == []
    assert named.notes == [f"{packed} names compressed files, and is ignored; decompress them to ship them"]


def test_a_file_with_brackets_in_its_name_is_followed_also_after_a_file_that_they_match_appears(tmp_path: Path) -> None:
    log = tmp_path / "app[1].log"
    append(log, b"1\n")
    first = files_of(log)
    assert read(first) == [b"1"]
    append(tmp_path / "app1.log", b"other\n")
    append(log, b"2\n")
    second = files_of(log, known=positions(first))
    assert read(second) == [b"2"]
    log.rename(tmp_path / "app[1].log.1")
    assert read(second) == []


def test_a_hard_link_is_the_same_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    os.link(log, tmp_path / "b.log")
    assert read(files_of(tmp_path / "*.log")) == [b"1"]


def test_a_second_run_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    log.write_bytes(b"1\n2\n")
    other.write_bytes(b"x\n")
    first = files_of(log, other)
    assert read(first) == [b"1", b"2", b"x"]
    known = positions(first)
    first.close()
    append(log, b"3\n")
    log.rename(tmp_path / "a.log.1")
    log.write_bytes(b"4\n")
    other.unlink()
    other.write_bytes(b"y\n")  # often with the same inode
    second = files_of(log, other, known=known)
    assert sorted(read(second) + read(second)) == [b"3", b"4", b"y"]
    assert {tail.path for tail in second.tails.values()} == {str(log), str(other)}, "a renamed file keeps its name"


def test_a_file_system_with_another_device_number_at_the_next_start_doubles_no_line(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    append(log, b"1\n")
    append(other, b"x\n")
    first = files_of(log, other)
    assert read(first) == [b"1", b"x"]
    known = {(7, inode): replace(at, device=7) for (_, inode), at in positions(first).items()}
    first.close()
    append(log, b"2\n")
    rotate(log)
    append(log, b"3\n")
    append(other, b"y\n")
    second = files_of(log, other, known=known)
    assert sorted(read(second) + read(second)) == [b"2", b"3", b"y"]
    third = files_of(log, other, known=known | positions(second))
    assert read(third) == []


def test_files_that_came_and_went_between_two_runs_are_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    old, rotated, packed = tmp_path / "a.log.3", tmp_path / "a.log.1", tmp_path / "a.log.2.gz"
    old.write_bytes(b"before all\n")
    log.write_bytes(b"1\n")
    first = files_of(log)
    assert read(first) == [b"1"]
    known = positions(first)
    for number, (path, text) in enumerate([(rotated, b"2\n"), (packed, b"\x1f\x8b"), (old, b"before all\n")]):
        path.write_bytes(text)
        at_s = 0 if path is old else NOW_MS / 1_000 + 5 + number
        os.utime(path, (at_s, at_s))
    log.rename(tmp_path / "a.log.2")
    log.write_bytes(b"3\n")
    second = files_of(log, known=known)
    assert read(second) + read(second) == [b"2", b"3"]


def test_positions_of_files_that_are_long_gone_are_forgotten(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n")
    gone = Position(str(log), 1, 2, 3, "", 0, at_ms=0, modified_ns=0)
    elsewhere = Position("/nowhere/b.log", 1, 3, 3, "", 0, at_ms=0, modified_ns=0)
    known = {each.identity: each for each in (gone, elsewhere)}
    assert files_of(log, known=known, now_ms=3_600_000).forgotten == []
    assert files_of(log, known=known, now_ms=25 * 3_600_000).forgotten == [(1, 2)]


def test_a_batch_that_was_not_shipped_is_read_again(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    read(files)
    known = positions(files)
    files.shipped(files.tails.values())
    append(log, b"3\n")
    assert read(files) == [b"3"]
    files.rewind(known)
    assert read(files) == [b"3"]


def test_a_file_without_a_position_goes_back_to_where_this_shipper_began(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    assert read(files) == [b"1", b"2"]
    files.rewind({})
    assert read(files) == [b"1", b"2"]
    late = files_of(log, from_end=True)
    append(log, b"3\n")
    assert read(late) == [b"3"]
    late.rewind({})
    assert read(late) == [b"3"], "not the lines before the start of a shipper with --from-end"


def test_a_removed_file_whose_position_is_gone_is_not_shipped_again(tmp_path: Path) -> None:
    """The batch that removed the position was committed, but its answer was lost."""
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\n")
    files = files_of(log)
    assert read(files) == [b"1", b"2"]
    files.shipped(files.tails.values())
    log.unlink()
    files.look(1.0, NOW_MS)
    assert len(files.finished(1.0 + CLOSED_AFTER_S)) == 1
    files.rewind({})
    assert read(files, 9.0) == []


def test_a_file_that_was_overwritten_after_its_last_position_begins_again(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old 1\n")
    files = files_of(log)
    assert read(files) == [b"old 1"]
    known = positions(files)
    files.shipped(files.tails.values())
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(b"new line 1\nnew line 2\n")
    assert read(files) == [b"new line 1", b"new line 2"]
    files.rewind(known)  # that batch was not shipped
    assert read(files) == [b"new line 1", b"new line 2"]


def test_a_file_that_comes_back_goes_on_at_its_position(tmp_path: Path) -> None:
    log, away = tmp_path / "a.log", tmp_path / "away"
    log.write_bytes(b"1\n")
    files = files_of(log)
    assert read(files) == [b"1"]
    log.rename(away)
    files.look(1.0, NOW_MS)
    (gone,) = files.finished(1.0 + CLOSED_AFTER_S)
    files.drop(gone)
    away.rename(log)
    append(log, b"2\n")
    assert read(files, 9.0) == [b"2"]


def test_many_short_lines_are_read_in_linear_time(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x\n" * 500_000)
    (tail,) = files_of(log).grown()
    copied = sum(line.end - line.begin for line in tail.lines(1 << 20, takes_rest=False))
    assert copied == 1_000_000
    assert tail._buffer.count(b"\n") > 0, "the buffer is not copied for each line"


def test_a_file_that_cannot_be_opened_is_noted_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, secret = tmp_path / "a.log", tmp_path / "b.log"
    log.write_bytes(b"1\n")
    secret.write_bytes(b"2\n")
    opened = os.open

    def refuse(path: str, *given: int) -> int:
        if path == str(secret):
            raise PermissionError(13, "Permission denied")
        return opened(path, *given)

    monkeypatch.setattr(os, "open", refuse)
    files = files_of(tmp_path / "*.log")
    assert read(files) == [b"1"]
    assert read(files) == []
    assert files.notes == [f"{secret} cannot be read: Permission denied; the shipper retries"]
    assert files.unreadable == {str(secret): "Permission denied"}
    monkeypatch.undo()
    assert read(files) == [b"2"]
    assert files.unreadable == {}


@pytest.mark.parametrize("what", ["open", "scandir"])
@pytest.mark.parametrize("is_copied", [False, True], ids=["renamed", "copied and truncated"])
def test_a_shortage_of_descriptors_at_any_call_costs_no_line(
    is_copied: bool, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th call of a later look fails, for each n."""
    real = getattr(os, what)
    left = -1
    made = 0

    def fail_once(*given: object) -> object:
        nonlocal left, made
        left, made = left - 1, made + 1
        if left == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*given)

    for number in range(1, 30):
        log = tmp_path / what / str(number) / "a.log"
        log.parent.mkdir(parents=True)
        log.write_bytes(b"1\n")
        files = files_of(log)
        assert read(files) == [b"1"]
        append(log, b"2\n")
        if is_copied:
            copy_and_truncate(log)
            append(log, b"3\n4\n")
        else:
            rotate(log)
            append(log, b"3\n")
            rotate(log)
            append(log, b"4\n")
        with monkeypatch.context() as patched:
            patched.setattr(os, what, fail_once)
            left, made = number, 0
            found = read(files)
        found += [line for _ in range(4) for line in read(files)]
        assert found == [b"2", b"3", b"4"], number
        files.close()
        if made < number:
            assert number > 1, "no call failed"
            return
    pytest.fail("a look has more calls than the test counts")


def test_a_file_whose_disk_fails_holds_no_other_file_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = tmp_path / "bad.log", tmp_path / "good.log"
    bad.write_bytes(b"1\n")
    good.write_bytes(b"2\n")
    files = files_of(bad, good)
    (descriptor,) = (tail._descriptor for tail in files.tails.values() if tail.path == str(bad))
    pread = os.pread

    def fail(given: int, size: int, at: int) -> bytes:
        if given == descriptor:
            raise OSError(5, "Input/output error")
        return pread(given, size, at)

    monkeypatch.setattr(os, "pread", fail)
    for tail in files.tails.values():
        tail._fingerprint = "", 0
    assert read(files) == [b"2"]
    assert read(files) == []
    assert files.notes == [f"{bad} cannot be read at position 0: Input/output error; the shipper retries"]
    monkeypatch.undo()
    assert read(files) == [b"1"]


def test_a_fifo_is_left_out_and_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "a.log"
    os.mkfifo(fifo)
    files = files_of(fifo)
    assert read(files) == read(files) == []
    assert files.notes == [f"{fifo} is not a regular file, and is ignored"]
    assert not files._open(str(fifo), (0, 0), NOW_MS), "it took the path between stat and open"
    assert files.tails == {}


def test_a_path_that_is_not_utf_8_comes_back_from_its_position() -> None:
    given = Position("/logs/\udcff.log", 1, 2, 3, "f", 4, NOW_MS, 5)
    assert position_of(given.identity, value_of(given)) == given


def test_a_position_of_the_first_release_counts_as_modified_when_it_was_seen() -> None:
    value = b'{"path": "/a.log", "offset": 3, "fingerprint": "f", "fingerprint_bytes": 4, "at_ms": 7}'
    assert position_of((1, 2), value) == Position("/a.log", 1, 2, 3, "f", 4, at_ms=7, modified_ns=7_000_000)


def test_from_end_begins_behind_the_last_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n2\npart")
    files = files_of(log, tmp_path / "*.new", from_end=True)
    assert read(files) == []
    append(log, b"ial\n")
    (tmp_path / "b.new").write_bytes(b"first\n")
    assert read(files) == [b"partial", b"first"]


def test_from_end_begins_a_file_at_its_first_line_if_an_earlier_run_has_followed_its_path(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old\n")
    first = files_of(log, from_end=True)
    assert first.without_position() == list(first.tails.values())
    known = positions(first)
    first.close()
    append(log, b"1\n")
    log.rename(tmp_path / "a.log.1")
    log.write_bytes(b"2\n")
    second = files_of(log, known=known, from_end=True)
    assert [tail.identity for tail in second.without_position()] == [
        tail.identity for tail in second.tails.values() if tail.has_path
    ]
    assert read(second) + read(second) == [b"1", b"2"]


def test_a_batch_has_a_limit(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"0123456789\n" * 100)
    files = files_of(log)
    files.look(0.0, NOW_MS)
    (tail,) = files.grown()
    assert len(list(tail.lines(50, takes_rest=False))) == 5
    assert tail.unread == 95 * 11


def test_a_directory_is_refused_with_the_pattern_to_write(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a directory; name its files by a pattern, such as '.*/\*\.log'"):
        check_paths([str(tmp_path)])


def test_more_files_than_descriptors_leave_some_for_connections_and_are_named_once(tmp_path: Path) -> None:
    """Otherwise the shipper cannot connect to a broker that was restarted, and writes a line for each file."""
    for number in range(20):
        (tmp_path / f"{number:02}.log").write_bytes(b"%d\n" % number)
    files = files_of(tmp_path / "*.log", files_max=8)
    assert [int(line) for line in read(files)] == list(range(8))
    assert len(files.tails) == 8
    (note,) = files.notes
    assert "08.log, and possibly other files, must wait: 8 files are open" in note
    assert "ulimit -n" in note
    assert len(files.unreadable) == 12
    (tmp_path / "19.log").rename(tmp_path / "19.log.1")
    (tmp_path / "19.log").write_bytes(b"new 19\n")
    found = []
    for number in range(16):
        if number < 12:
            (tmp_path / f"{number:02}.log").unlink()
        files.look(10.0 * number, NOW_MS)
        found += read(files, 10.0 * number + 9)
        for tail in files.finished(10.0 * number + 9):
            files.drop(tail)
    assert sorted(found) == sorted([*(b"%d" % number for number in range(8, 20)), b"new 19"])
    assert found.index(b"19") < found.index(b"new 19")
    assert not files.unreadable
    assert [files_max_of(each) for each in (-1, 20_000, 256, 60, 1)] == [sys.maxsize, 19_900, 156, 30, 1]
    files.close()


@pytest.mark.parametrize("ahead_s", [3_600, -3_600], ids=["file ahead of the clock", "clock set back later"])
def test_an_empty_file_needs_one_position_whatever_its_time_is(ahead_s: int, tmp_path: Path) -> None:
    """Otherwise the shipper sends a transaction after each check."""
    log = tmp_path / "a.log"
    log.touch()
    now_ms = int(time.time()) * 1_000
    if ahead_s > 0:
        os.utime(log, (now_ms / 1_000 + ahead_s, now_ms / 1_000 + ahead_s))
    files = files_of(log, now_ms=now_ms)
    stored = 0
    for number in range(1, 20):
        files.look(0.25 * number, now_ms + 250 * number + (min(ahead_s, 0) * 1_000 if number > 5 else 0))
        assert files.grown() == []
        noted = files.without_position()
        stored += bool(noted)
        files.shipped(noted)
    assert stored == 1


def test_a_file_with_only_a_header_may_be_copied_and_get_the_same_header_again(tmp_path: Path) -> None:
    log, header = tmp_path / "a.log", b"#head\n"
    log.write_bytes(header)
    first = files_of(log)
    assert read(first) == [b"#head"]
    known = positions(first)
    first.close()
    append(log, b"1\n2\n")
    copy_and_truncate(log)
    append(log, header + b"3\n4\n")
    second = files_of(log, known=known)
    assert read(second) + read(second) == [b"1", b"2", b"#head", b"3", b"4"]


def test_the_position_of_a_paths_last_file_is_forgotten_after_a_day(tmp_path: Path) -> None:
    files = files_of(tmp_path / "*.log")
    for number in range(3):
        (tmp_path / f"job{number}.log").write_bytes(b"1\n")
    assert len(read(files)) == 3
    files.shipped(files.tails.values())
    for path in tmp_path.glob("*.log"):
        path.unlink()
    files.look(1.0, NOW_MS)
    closed = files.finished(1.0 + CLOSED_AFTER_S)
    assert files.gone(closed) == [], "the next run looks for later files of the path by them"
    identities = {tail.identity for tail in closed}
    for tail in closed:
        files.drop(tail)
    files.look(9.0, NOW_MS + 23 * 3_600_000)
    assert files.forgotten == []
    files.look(9.0, NOW_MS + 25 * 3_600_000)
    assert set(files.forgotten) == identities
