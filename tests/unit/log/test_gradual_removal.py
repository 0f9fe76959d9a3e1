"""Large deleted files leave the disk in steps, so that flushes of other files need not wait long."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

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
    RealFileSystem().unlink_gradually(str(path))
    assert not path.exists()
    assert cuts == [3 * STEP, 2 * STEP, STEP]


def test_a_small_file_is_removed_in_one_step(tmp_path: Path, cuts: list[int]) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x" * STEP)
    RealFileSystem().unlink_gradually(str(path))
    assert not path.exists()
    assert cuts == []


def test_a_reader_keeps_all_bytes_of_a_removed_file(tmp_path: Path, cuts: list[int]) -> None:
    fs, path = RealFileSystem(), tmp_path / "large"
    path.write_bytes(LARGE)
    reader = fs.open(str(path))
    fs.unlink_gradually(str(path))
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
    cache.unlink_gradually(str(path))
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
    RealFileSystem().unlink_gradually(str(path))
    assert not path.exists()
    assert cuts == []


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealFileSystem().unlink_gradually(str(tmp_path / "gone"))


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
