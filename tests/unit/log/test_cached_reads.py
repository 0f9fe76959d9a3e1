"""Reads of the real file system that must not wait for the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace_core.log import files
from headrace_core.log.files import RealFile, RealFileSystem

SIZE = 1 << 20
native = pytest.mark.skipif(files._read_cached is None, reason="headrace_core.log._cached_read is not compiled")


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    path = tmp_path / "log"
    path.write_bytes(os.urandom(SIZE))
    opened = RealFileSystem().open(str(path))
    assert isinstance(opened, RealFile)
    return opened


def forget(file: RealFile) -> None:
    """Drop the file from the page cache, or skip the test where the file is only in memory."""
    os.fsync(file.fileno())
    file.drop_cache(SIZE, 0)
    if file.is_cached(SIZE, 0):
        pytest.skip("this file system keeps its files in memory")


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=native), False])
def test_cached_bytes_are_read_and_others_are_not(
    file: RealFile, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(files, "_read_cached", None)
    data = file.pread(SIZE, 0)
    assert file.pread_cached(SIZE, 0) == data
    assert file.pread_cached(1000, 70_000) == data[70_000:71_000]
    assert file.pread_cached(SIZE, SIZE - 5) == data[-5:]
    assert file.pread_cached(10, SIZE) == b""
    assert file.pread_cached(0, 0) == b""
    forget(file)
    assert file.pread_cached(SIZE, 0) is None
    assert file.pread(SIZE, 0) == data
    assert file.pread_cached(SIZE, 0) == data


@native
def test_a_partly_cached_range_is_not_cached(file: RealFile) -> None:
    forget(file)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    file.pread(4096, 0)
    assert file.pread_cached(4096, 0) is not None
    assert file.pread_cached(SIZE, 0) is None


@native
def test_a_failed_read_raises_the_error_of_the_system(file: RealFile) -> None:
    assert files._read_cached is not None
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
        files._read_cached(-1, 10, 0)
    assert caught.value.errno == errno.EBADF
