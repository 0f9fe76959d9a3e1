"""Large deleted files leave the disk in steps, so that flushes of other files need not wait long."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace_core.errors import ServerBusyError
from headrace_core.log import deleting, files
from headrace_core.log.deleting import DeletedFiles, Removed
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.files import RealFileSystem
from headrace_core.testing.crashing_fs import CrashingFileSystem

STEP = 4096
LARGE = bytes(range(256)) * 64  # four steps


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREED_AT_ONCE", STEP)
    monkeypatch.setattr(files, "FREEING_PAUSE_S", 0.0)


def without_pause(_seconds: float) -> bool:
    return False


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes to which removed files are cut."""
    sizes: list[int] = []
    cut = os.ftruncate

    def noted(fd: int, size: int) -> None:
        sizes.append(size)
        cut(fd, size)

    monkeypatch.setattr(os, "ftruncate", noted)
    return sizes


def test_a_large_file_is_freed_in_steps(tmp_path: Path, cuts: list[int]) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    RealFileSystem().unlink_gradually(str(path), without_pause)
    assert not path.exists()
    assert cuts == [3 * STEP, 2 * STEP, STEP]


def test_the_cuts_are_at_multiples_of_a_step(tmp_path: Path, cuts: list[int]) -> None:
    """A cut within a block of the file system would read and rewrite the block."""
    path = tmp_path / "large"
    path.write_bytes(LARGE + b"x")
    assert RealFileSystem().unlink_gradually(str(path), without_pause) == 0
    assert cuts == [4 * STEP, 3 * STEP, 2 * STEP, STEP]


def test_blocks_that_are_reserved_beyond_the_end_are_freed_in_steps(tmp_path: Path, cuts: list[int]) -> None:
    fs, path = RealFileSystem(), tmp_path / "reserved"
    file = fs.open(str(path), create=True)
    file.preallocate(0, 4 * STEP)
    file.pwritev([b"x"], 0)
    file.close()
    fs.unlink_gradually(str(path), without_pause)
    assert cuts == [4 * STEP, 3 * STEP, 2 * STEP, STEP]


def test_a_hard_link_keeps_all_bytes(tmp_path: Path, cuts: list[int]) -> None:
    """Such as a backup by ``cp -al`` or ``rsync --link-dest``."""
    path, backup = tmp_path / "large", tmp_path / "backup"
    path.write_bytes(LARGE)
    os.link(path, backup)
    RealFileSystem().unlink_gradually(str(path), without_pause)
    assert not path.exists()
    assert cuts == []
    assert backup.read_bytes() == LARGE


@pytest.mark.parametrize("has_target", [True, False])
def test_the_target_of_a_symbolic_link_keeps_all_bytes(tmp_path: Path, cuts: list[int], has_target: bool) -> None:
    directory, target = tmp_path / "log-delete", tmp_path / "target"
    directory.mkdir()
    if has_target:
        target.write_bytes(LARGE)
    (directory / "link").symlink_to(target)
    queue = DeletedFiles(RealFileSystem())
    queue.add(str(directory), 0, due_ms=0)
    assert queue.remove(1.0).names == 1
    assert not directory.exists()
    assert cuts == []
    assert target.exists() == has_target
    assert not has_target or target.read_bytes() == LARGE


def test_the_steps_end_when_the_thread_is_needed(tmp_path: Path, cuts: list[int]) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    assert RealFileSystem().unlink_gradually(str(path), lambda _: True) == 3 * STEP
    assert cuts == [3 * STEP]
    assert not path.exists()


def test_a_failed_cut_removes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "ftruncate", fail)
    RealFileSystem().unlink_gradually(str(path), without_pause)
    assert not path.exists()


def test_a_small_file_is_removed_in_one_step(tmp_path: Path, cuts: list[int]) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x" * STEP)
    RealFileSystem().unlink_gradually(str(path), without_pause)
    assert not path.exists()
    assert cuts == []


def test_a_reader_keeps_all_bytes_of_a_removed_file(tmp_path: Path, cuts: list[int]) -> None:
    fs, path = RealFileSystem(), tmp_path / "large"
    path.write_bytes(LARGE)
    reader = fs.open(str(path))
    fs.unlink_gradually(str(path), without_pause)
    assert not path.exists()
    assert cuts == []
    assert reader.pread(len(LARGE), 0) == LARGE
    reader.close()


def test_a_reader_whose_descriptor_was_closed_between_its_reads_keeps_all_bytes(
    tmp_path: Path, cuts: list[int]
) -> None:
    cache, path = DescriptorCache(RealFileSystem(), files_max=1), tmp_path / "large"
    path.write_bytes(LARGE)
    (tmp_path / "other").write_bytes(b"x")
    reader, other = cache.open_lazily(str(path)), cache.open_lazily(str(tmp_path / "other"))
    assert reader.pread(1, 0) == LARGE[:1]
    assert other.pread(1, 0) == b"x"  # takes the only descriptor
    cache.unlink_gradually(str(path), without_pause)
    assert cuts == []
    assert reader.pread(len(LARGE), 0) == LARGE


def test_a_file_is_removed_when_no_descriptor_is_left(
    tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", refuse)
    RealFileSystem().unlink_gradually(str(path), without_pause)
    assert not path.exists()
    assert cuts == []


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealFileSystem().unlink_gradually(str(tmp_path / "gone"), without_pause)


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> tuple[CrashingFileSystem, DeletedFiles]:
    """A deleted log of four segments of 100 bytes, and a deleted segment of 100 bytes. A call removes 200 bytes."""
    monkeypatch.setattr(deleting, "REMOVED_AT_ONCE", 200)
    fs = CrashingFileSystem()
    fs.mkdir("/data")
    fs.mkdir("/data/log-delete")
    for path in (*(f"/data/log-delete/{number}" for number in range(4)), "/data/segment.deleted"):
        file = fs.open(path, create=True)
        file.pwritev([b"x" * 100], 0)
        file.close()
    queue = DeletedFiles(fs)
    queue.add("/data/log-delete", 400, due_ms=1_000)
    queue.add("/data/segment.deleted", 100, due_ms=2_000)
    return fs, queue


def test_a_call_removes_a_limited_number_of_bytes(deleted: tuple[CrashingFileSystem, DeletedFiles]) -> None:
    fs, queue = deleted
    assert queue.remove(500.0) == Removed(0, 0)
    assert queue.remove(5_000.0) == Removed(0, 200)
    assert fs.listdir("/data/log-delete") == ["2", "3"]
    assert queue.next_due_ms == 1_000, "the remaining files stay due"
    assert queue.size_bytes == 300
    assert queue.remove(5_000.0) == Removed(1, 200)
    assert fs.listdir("/data") == ["segment.deleted"]
    assert queue.remove(5_000.0) == Removed(1, 100)
    assert fs.listdir("/data") == []
    assert queue.next_due_ms is None


def test_a_full_disk_removes_all_files_in_one_call(deleted: tuple[CrashingFileSystem, DeletedFiles]) -> None:
    fs, queue = deleted
    assert queue.remove(None) == Removed(2, 500)
    assert fs.listdir("/data") == []


def test_directories_of_unknown_size_count_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start queues leftover directories without their sizes."""
    monkeypatch.setattr(deleting, "REMOVED_AT_ONCE", 200)
    fs = CrashingFileSystem()
    fs.mkdir("/data")
    queue = DeletedFiles(fs)
    for number in range(5):
        fs.mkdir(f"/data/{number}-delete")
        file = fs.open(f"/data/{number}-delete/0", create=True)
        file.pwritev([b"x" * 100], 0)
        file.close()
        queue.add(f"/data/{number}-delete", 0, due_ms=0)
    assert queue.remove(1.0) == Removed(2, 0)
    assert queue.remove(1.0) == Removed(2, 0)
    assert queue.remove(1.0) == Removed(1, 0)
    assert fs.listdir("/data") == []


def test_a_removal_returns_after_its_present_file_when_it_shall_hurry(
    deleted: tuple[CrashingFileSystem, DeletedFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, queue = deleted
    unlink = fs.unlink

    def hurried(path: str) -> None:
        unlink(path)
        queue.hurry()

    monkeypatch.setattr(fs, "unlink", hurried)
    assert queue.remove(5_000.0) == Removed(0, 100)
    assert fs.listdir("/data/log-delete") == ["1", "2", "3"]
    monkeypatch.setattr(fs, "unlink", unlink)
    assert queue.remove(5_000.0) == Removed(0, 200), "a later call goes on"


def test_an_ended_queue_removes_nothing_gradually(deleted: tuple[CrashingFileSystem, DeletedFiles]) -> None:
    fs, queue = deleted
    queue.end()
    assert queue.remove(5_000.0) == Removed(0, 0)
    assert queue.next_due_ms == 1_000
    assert queue.remove(None) == Removed(2, 500)
    assert fs.listdir("/data") == []


def test_a_directory_waits_while_no_descriptor_is_left(
    deleted: tuple[CrashingFileSystem, DeletedFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, queue = deleted

    def refuse(path: str) -> list[str]:
        raise ServerBusyError("too many open files")

    monkeypatch.setattr(fs, "listdir", refuse)
    assert queue.remove(1_500.0) == Removed(0, 0)
    monkeypatch.undo()
    assert queue.size_bytes == 500
    assert queue.next_due_ms == 2_000, "the directory is tried again after the segment"
    assert queue.remove(1_500.0 + deleting.RETRY_MS).names == 2
    assert fs.listdir("/data") == []


def test_a_file_that_vanishes_keeps_no_other_file_on_the_disk(
    deleted: tuple[CrashingFileSystem, DeletedFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, queue = deleted
    listed = fs.listdir("/data/log-delete")
    fs.unlink("/data/log-delete/1")
    monkeypatch.setattr(fs, "listdir", lambda _: listed)
    assert queue.remove(1_000.0).size == 200
    queue.remove(1_000.0)
    monkeypatch.undo()
    assert fs.listdir("/data") == ["segment.deleted"]
