"""Closing the descriptors of files has no effect on readers, on write-back errors, or on renamed files."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import ServerBusyError
from headrace_core.log.descriptors import CachedFile, DescriptorCache
from headrace_core.log.files import RealFileSystem
from headrace_core.testing.crashing_fs import CrashingFileSystem


def filled(cache: DescriptorCache, directory: str, count: int) -> list[CachedFile]:
    """Files /0, /1, ... which contain their own number, synced."""
    files = []
    for number in range(count):
        file = cache.open_lazily(f"{directory}/{number}", create=True)
        file.pwritev([b"%d" % number], 0)
        file.sync()
        files.append(file)
    return files


def open_of(files: list[CachedFile]) -> list[int]:
    return [number for number, file in enumerate(files) if file.is_open]


def descriptors_of(directory: Path) -> int:
    """The number of this process's descriptors that point into a directory."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(directory))
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


# ---------------------------------------------------------------------------------------------- how many, and which


def test_there_are_never_more_descriptors_than_allowed(tmp_path: Path):
    cache = DescriptorCache(RealFileSystem(), 5)
    files = filled(cache, str(tmp_path), 50)
    rng = random.Random(7)
    for _ in range(500):
        number = rng.randrange(50)
        assert files[number].pread(10, 0) == b"%d" % number
        assert cache.open_files == descriptors_of(tmp_path) <= 5


def test_a_file_is_not_opened_before_it_is_used():
    fs = CrashingFileSystem()
    cache = DescriptorCache(fs, 5)
    fs.replace("/sealed", b"old records")
    file = cache.open_lazily("/sealed")
    assert not [entry for entry in fs.trace if entry.operation == "open"]
    assert file.pread(3, 0) == b"old"
    assert file.is_open


def test_what_is_used_between_two_rounds_of_the_hand_stays_open():
    cache = DescriptorCache(CrashingFileSystem(), 4)
    files = filled(cache, "", 5)  # the fifth file moved the clock hand around once, so only this file is marked
    for turn in range(40):
        files[0].pread(1, 0)
        files[1 + turn % 4].pread(1, 0)
        assert files[0].is_open, f"turn {turn}: {open_of(files)}"


def test_a_file_that_nobody_holds_gives_its_descriptor_back_at_once(tmp_path: Path):
    cache = DescriptorCache(RealFileSystem(), 100)
    files = filled(cache, str(tmp_path), 20)
    del files[3:]
    assert descriptors_of(tmp_path) == cache.open_files == 3


def test_a_closed_file_is_not_opened_again(tmp_path: Path):
    cache = DescriptorCache(RealFileSystem(), 5)
    (file,) = filled(cache, str(tmp_path), 1)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)


def test_a_missing_file_is_reported_when_it_is_used(tmp_path: Path):
    cache = DescriptorCache(RealFileSystem(), 5)
    file = cache.open_lazily(f"{tmp_path}/nothing")
    with pytest.raises(FileNotFoundError):
        file.pread(1, 0)
    with pytest.raises(FileNotFoundError):
        cache.file_size(f"{tmp_path}/nothing")


# ---------------------------------------------------------------------------------------------- unsynced bytes


@pytest.mark.parametrize("change", [lambda file: file.pwritev([b"new"], 0), lambda file: file.truncate(0)])
@pytest.mark.parametrize("together", [False, True])
def test_a_file_with_unsynced_bytes_keeps_its_descriptor_until_it_is_synced(change: Any, together: bool):
    cache = DescriptorCache(CrashingFileSystem(), 2)
    files = filled(cache, "", 4)
    change(files[0])
    for _ in range(3):
        for file in files:
            file.pread(1, 0)
        assert files[0].is_open
    if together:
        cache.sync_files([files[0], files[1]])
    else:
        files[0].sync()
    for _ in range(3):
        for file in files[1:]:
            file.pread(1, 0)
    assert not files[0].is_open
    assert cache.open_files == 2


def test_a_failed_sync_leaves_the_descriptor_where_it_is():
    fs = CrashingFileSystem()
    cache = DescriptorCache(fs, 1)
    left, right = filled(cache, "", 2)
    for together in (False, True):
        left.pwritev([b"lost"], 0)
        fs.fail("sync", path_ends="/0")
        with pytest.raises(OSError, match="Input/output error"):
            cache.sync_files([left, right]) if together else left.sync()
        right.pread(1, 0)
        right.pread(1, 0)
        assert left.is_open


def test_a_turn_that_wrote_to_many_files_gives_their_descriptors_back_when_it_has_synced_them(tmp_path: Path):
    cache = DescriptorCache(RealFileSystem(), 5)
    files = filled(cache, str(tmp_path), 40)
    for file in files:
        file.pwritev([b"x"], 1)
    assert descriptors_of(tmp_path) == 40
    cache.sync_files(files)
    assert descriptors_of(tmp_path) <= 5


def test_many_unsynced_files_leave_room_for_others():
    cache = DescriptorCache(CrashingFileSystem(), 8)
    files = filled(cache, "", 40)
    for file in files[:20]:
        file.pwritev([b"x"], 0)
    for _ in range(2):
        for file in files:
            file.pread(1, 0)
    assert open_of(files[:20]) == list(range(20))
    assert 1 <= len(open_of(files[20:])) <= 2
    for file in files[:20]:
        file.sync()
    for file in files[20:]:
        file.pread(1, 0)
    assert cache.open_files <= 8


# ---------------------------------------------------------------------------------------------- names


def _both(tmp_path: Path) -> list[tuple[Any, str]]:
    return [(RealFileSystem(), str(tmp_path)), (CrashingFileSystem(), "")]


def test_a_reader_finishes_on_a_file_that_is_unlinked_and_made_anew(tmp_path: Path):
    for fs, root in _both(tmp_path):
        cache = DescriptorCache(fs, 1)
        old, other = filled(cache, root, 2)
        assert not old.is_open
        cache.unlink(f"{root}/0")
        new = cache.open_lazily(f"{root}/0", create=True)
        new.pwritev([b"another file"], 0)
        new.sync()
        for _ in range(3):
            assert old.pread(20, 0) == b"0"
            assert other.pread(20, 0) == b"1"
            assert new.pread(20, 0) == b"another file"


def test_a_reader_finishes_on_a_file_that_another_one_is_renamed_over(tmp_path: Path):
    for fs, root in _both(tmp_path):
        cache = DescriptorCache(fs, 1)
        old, swapped = filled(cache, root, 2)
        cache.rename(f"{root}/1", f"{root}/0")
        for _ in range(3):
            assert old.pread(20, 0) == b"0"
            assert swapped.pread(20, 0) == b"1"  # under its new name
        assert swapped.path == f"{root}/0"
        cache.unlink(f"{root}/0")
        assert [old.pread(20, 0), swapped.pread(20, 0)] == [b"0", b"1"]


def test_files_go_with_their_directory(tmp_path: Path):
    for fs, root in _both(tmp_path):
        cache = DescriptorCache(fs, 2)
        cache.mkdir(f"{root}/orders-0")
        files = filled(cache, f"{root}/orders-0", 4)
        cache.rename(f"{root}/orders-0", f"{root}/orders-0.gone-delete")
        cache.mkdir(f"{root}/orders-0")
        again = filled(cache, f"{root}/orders-0", 1)
        again[0].pwritev([b"new"], 0)
        again[0].sync()
        assert [file.pread(9, 0) for file in files] == [b"0", b"1", b"2", b"3"]
        for number in range(4):
            cache.unlink(f"{root}/orders-0.gone-delete/{number}")
        cache.rmdir(f"{root}/orders-0.gone-delete")
        assert [file.pread(9, 0) for file in files] == [b"0", b"1", b"2", b"3"]
        assert again[0].pread(9, 0) == b"new"
        del files, again
        assert cache.open_files == 0


def test_deleting_what_nobody_holds_opens_nothing():
    fs = CrashingFileSystem()
    cache = DescriptorCache(fs, 1)
    fs.mkdir("/orders-0")
    files = filled(cache, "/orders-0", 10)
    files.clear()
    before = sum(entry.operation == "open" for entry in fs.trace)
    cache.rename("/orders-0", "/orders-0-delete")
    for number in range(10):
        cache.unlink(f"/orders-0-delete/{number}")
    assert sum(entry.operation == "open" for entry in fs.trace) == before


# ---------------------------------------------------------------------------------------------- no descriptor left


class FewDescriptors(RealFileSystem):
    """A process with this number of free descriptors. A test may change ``left``."""

    __slots__ = ("directory", "left")

    def __init__(self, directory: Path, left: int) -> None:
        self.directory = directory
        self.left = left

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        if descriptors_of(self.directory) >= self.left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open(path, write=write, create=create)


def test_a_process_without_descriptors_left_takes_one_from_an_idle_file(tmp_path: Path):
    cache = DescriptorCache(FewDescriptors(tmp_path, 8), 100)
    files = filled(cache, str(tmp_path), 30)
    assert [file.pread(5, 0) for file in files] == [b"%d" % number for number in range(30)]
    with_checkpoint = cache.open(f"{tmp_path}/checkpoint", write=True, create=True)
    with_checkpoint.pwritev([b"0"], 0)
    assert descriptors_of(tmp_path) <= 8


def test_without_any_descriptor_the_error_says_what_to_do(tmp_path: Path):
    fs = FewDescriptors(tmp_path, 8)
    cache = DescriptorCache(fs, 100)
    busy, idle = filled(cache, str(tmp_path), 2)
    busy.pwritev([b"unsynced"], 0)
    idle._file = None
    fs.left = 1
    with pytest.raises(ServerBusyError, match=r"/1 cannot be opened: .*ulimit -n.*log\.open\.files\.max"):
        idle.pread(1, 0)
    with pytest.raises(ServerBusyError, match="checkpoint"):
        cache.open(f"{tmp_path}/checkpoint", write=True, create=True)
    cache.unlink(f"{tmp_path}/1")  # continues; the reader comes too late
    with pytest.raises(OSError, match="Stale file handle"):
        idle.pread(1, 0)
    fs.left = 8
    busy.sync()
    assert busy.pread(8, 0) == b"unsynced"


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="files_max=0"):
        DescriptorCache(RealFileSystem(), 0)
    with pytest.raises(ValueError, match="files_max=0"):
        DescriptorCache(RealFileSystem(), 1).resize(0)


def test_a_smaller_limit_closes_files_at_once_and_a_larger_one_keeps_more(tmp_path: Path):
    cache = DescriptorCache(RealFileSystem(), 8)
    files = filled(cache, str(tmp_path), 10)
    cache.resize(3)
    assert descriptors_of(tmp_path) == cache.open_files == 3
    cache.resize(10)
    assert [file.pread(2, 0) for file in files] == [b"%d" % number for number in range(10)]
    assert descriptors_of(tmp_path) == 10


# ---------------------------------------------------------------------------------------------- threads


def test_readers_a_writer_and_deletions_share_three_descriptors(tmp_path: Path):
    """Files are repeatedly replaced by other files of the same name. A reader that opened a file before its replacement
    continues with this file."""
    cache = DescriptorCache(RealFileSystem(), 3)
    root, count = str(tmp_path), 12
    current: list[tuple[int, CachedFile]] = []

    def make(number: int, life: int) -> CachedFile:
        file = cache.open_lazily(f"{root}/{number}", create=True)
        file.pwritev([b"%d-%d" % (number, life)], 0)
        file.sync()
        return file

    current[:] = [(0, make(number, 0)) for number in range(count)]
    done = threading.Event()
    wrong: list[str] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        while not done.is_set():
            number = rng.randrange(count)
            life, file = current[number]
            found = [file.pread(20, 0) for _ in range(3)]
            if found != [b"%d-%d" % (number, life)] * 3:
                wrong.append(f"seed {seed}: {found} instead of {number}-{life}")

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    rng = random.Random(99)
    for life in range(1, 400):
        number = rng.randrange(count)
        cache.unlink(f"{root}/{number}")
        current[number] = (life, make(number, life))
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong, wrong[:5]
    assert descriptors_of(tmp_path) <= 3
