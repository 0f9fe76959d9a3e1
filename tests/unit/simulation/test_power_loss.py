"""The file system that can lose power under a real process: fsynced data survives, and other data may be lost."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from headrace_core.log.files import RealFileSystem, make_directories, write_file_atomically
from headrace_core.testing.power_loss import Dials, Loss, PowerLossFileSystem, lose_power

PAGE = 4096


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def disk(journal: Path) -> PowerLossFileSystem:
    return PowerLossFileSystem(journal)


def made(disk: PowerLossFileSystem, path: Path, content: bytes) -> None:
    """A durable file."""
    file = disk.open(str(path), write=True, create=True)
    file.pwritev([content], 0)
    file.sync()
    disk.sync_directory(str(path.parent))


def test_what_was_forced_stays_and_what_was_appended_later_goes(
    disk: PowerLossFileSystem, data: Path, journal: Path
) -> None:
    made(disk, data / "log", b"durable")
    file = disk.open(str(data / "log"), write=True)
    file.pwritev([b" and", b" not"], 7)
    assert file.pread(100, 0) == b"durable and not", "the process itself sees everything"
    assert lose_power(journal) == len(" and not")
    assert (data / "log").read_bytes() == b"durable"
    assert lose_power(journal) == 0, "it is lost once"


def test_a_mere_kill_loses_nothing(disk: PowerLossFileSystem, data: Path, journal: Path) -> None:
    disk.open(str(data / "log"), write=True, create=True).pwritev([b"unforced"], 0)
    assert lose_power(journal, loss=Loss.NONE) == 0
    assert (data / "log").read_bytes() == b"unforced"


def test_what_was_overwritten_and_what_was_cut_comes_back(disk: PowerLossFileSystem, data: Path, journal: Path) -> None:
    made(disk, data / "log", b"0123456789")
    file = disk.open(str(data / "log"), write=True)
    file.pwritev([b"ab"], 3)
    file.truncate(6)
    file.pwritev([b"xyz"], 6)
    file.truncate(20)
    lose_power(journal)
    assert (data / "log").read_bytes() == b"0123456789"


def test_a_name_that_was_not_forced_goes_though_its_bytes_were(
    disk: PowerLossFileSystem, data: Path, journal: Path
) -> None:
    file = disk.open(str(data / "new"), write=True, create=True)
    file.pwritev([b"forced"], 0)
    file.sync()
    disk.mkdir(str(data / "directory"))
    disk.open(str(data / "directory" / "inside"), write=True, create=True)
    disk.sync_directory(str(data / "directory"))
    lose_power(journal)
    assert list(data.iterdir()) == []


def test_a_rename_that_was_not_forced_is_taken_back(disk: PowerLossFileSystem, data: Path, journal: Path) -> None:
    made(disk, data / "checkpoint", b"old")
    made(disk, data / "checkpoint.tmp", b"new")
    disk.rename(str(data / "checkpoint.tmp"), str(data / "checkpoint"))
    assert (data / "checkpoint").read_bytes() == b"new"
    lose_power(journal)
    assert (data / "checkpoint").read_bytes() == b"old"
    assert (data / "checkpoint.tmp").read_bytes() == b"new"


def test_files_that_are_replaced_atomically_survive_whole(disk: PowerLossFileSystem, data: Path, journal: Path) -> None:
    make_directories(disk, str(data / "a" / "b"))
    write_file_atomically(disk, str(data / "a" / "b" / "checkpoint"), b"first")
    write_file_atomically(disk, str(data / "a" / "b" / "checkpoint"), b"second")
    lose_power(journal)
    assert (data / "a" / "b" / "checkpoint").read_bytes() == b"second"


def test_bytes_of_a_file_that_was_renamed_meanwhile_are_found(
    disk: PowerLossFileSystem, data: Path, journal: Path
) -> None:
    (data / "t-0").mkdir()
    made(disk, data / "t-0" / "log", b"durable")
    file = disk.open(str(data / "t-0" / "log"), write=True)
    file.pwritev([b" lost"], 7)
    disk.rename(str(data / "t-0"), str(data / "t-0-delete"))
    disk.rename(str(data / "t-0-delete" / "log"), str(data / "t-0-delete" / "log.deleted"))
    disk.sync_directory(str(data))  # the directory keeps its new name, but the file does not
    lose_power(journal)
    assert (data / "t-0-delete" / "log").read_bytes() == b"durable"


def test_what_a_former_life_left_unforced_is_still_lost_later(data: Path, journal: Path) -> None:
    first = PowerLossFileSystem(journal)
    made(first, data / "log", b"durable")
    first.open(str(data / "log"), write=True).pwritev([b" of the first life"], 7)
    second = PowerLossFileSystem(journal)
    made(second, data / "other", b"of the second")
    lose_power(journal)
    assert (data / "log").read_bytes() == b"durable"
    assert (data / "other").read_bytes() == b"of the second"


def test_a_later_life_that_forces_it_keeps_it(data: Path, journal: Path) -> None:
    first = PowerLossFileSystem(journal)
    made(first, data / "log", b"durable")
    first.open(str(data / "log"), write=True).pwritev([b", too"], 7)
    PowerLossFileSystem(journal).open(str(data / "log"), write=True).sync()
    lose_power(journal)
    assert (data / "log").read_bytes() == b"durable, too"


def test_a_file_that_is_removed_and_made_anew_is_another_file(
    disk: PowerLossFileSystem, data: Path, journal: Path
) -> None:
    made(disk, data / "log", b"first")
    file = disk.open(str(data / "log"), write=True)
    file.pwritev([b"+"], 5)
    disk.unlink(str(data / "log"))
    file.pwritev([b"+"], 6)  # open descriptors continue to work
    made(disk, data / "log", b"second, longer")
    lose_power(journal)
    assert (data / "log").read_bytes() == b"second, longer"


@pytest.mark.parametrize("loss", [Loss.PREFIX, Loss.BLOCKS])
def test_part_of_what_was_appended_may_arrive(
    disk: PowerLossFileSystem, data: Path, journal: Path, rng: random.Random, loss: Loss
) -> None:
    made(disk, data / "log", b"d" * 5000)
    file = disk.open(str(data / "log"), write=True)
    for position in range(5000, 65_000, 1000):
        file.pwritev([b"n" * 1000], position)
    lose_power(journal, loss=loss, rng=rng)
    left = (data / "log").read_bytes()
    assert left[:5000] == b"d" * 5000
    assert set(left[5000:]) <= set(b"n\0")
    if loss is Loss.PREFIX:
        assert 0 not in left
    else:
        assert len(left) == 65_000
        assert 0 in left, "of 15 blocks some are missing, for nearly every seed"


def test_random_changes_leave_what_the_last_syncs_had(data: Path, tmp_path: Path, rng: random.Random) -> None:
    """Against a model: the content of each file at its last sync."""
    for round_number in range(8):
        here, journal = data / str(round_number), tmp_path / f"journal-{round_number}"
        here.mkdir()
        disk = PowerLossFileSystem(journal)
        names = ["a", "b", "c"]
        for name in names:
            made(disk, here / name, name.encode() * 10)
        durable = {name: (here / name).read_bytes() for name in names}
        for _ in range(60):
            name = rng.choice(names)
            file = disk.open(str(here / name), write=True)
            action = rng.randrange(5)
            if action == 0:
                file.pwritev([rng.randbytes(rng.randrange(1, 30))], rng.randrange(file.size() + 1))
            elif action == 1:
                file.pwritev([rng.randbytes(rng.randrange(1, 30))], file.size())
            elif action == 2:
                file.truncate(rng.randrange(file.size() + 5))
            elif action == 3:
                disk.sync_files([file])
                durable[name] = (here / name).read_bytes()
            elif rng.random() < 0.1:
                disk = PowerLossFileSystem(journal)  # the process dies, and another begins
        lose_power(journal)
        assert {name: (here / name).read_bytes() for name in names} == durable


def test_a_process_that_is_killed_at_any_moment_keeps_what_it_said_was_forced(data: Path, journal: Path) -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from headrace_core.testing.power_loss import PowerLossFileSystem
        disk = PowerLossFileSystem(Path(sys.argv[1]))
        file = disk.open(sys.argv[2], write=True, create=True)
        disk.sync_directory(str(Path(sys.argv[2]).parent))
        size = 0
        while True:
            size += file.pwritev([b"x" * 100], size)
            if size % 300 == 0:
                file.sync()
                print(size, flush=True)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(journal), str(data / "log")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split()]
    lose_power(journal)
    size = (data / "log").stat().st_size
    assert size % 300 == 0
    assert size >= said[-1]


def test_the_dials_turn_while_it_runs(disk: PowerLossFileSystem, data: Path, journal: Path) -> None:
    made(disk, data / "log", b"quick")
    file = disk.open(str(data / "log"), write=True)
    Dials(sync_delay_ms=300).write(journal)
    started = time.monotonic()
    file.sync()
    assert time.monotonic() - started >= 0.3
    Dials(sync_errno=errno.EIO).write(journal)
    with pytest.raises(OSError, match="Input/output error") as caught:
        disk.sync_directory(str(data))
    assert caught.value.errno == errno.EIO
    Dials().write(journal)
    file.sync()


def failing_sync(disk: PowerLossFileSystem, path: Path, journal: Path) -> None:
    Dials(sync_errno=errno.EIO).write(journal)
    with pytest.raises(OSError, match="Input/output error"):
        disk.open(str(path), write=True).sync()
    Dials().write(journal)


def test_what_a_failed_sync_lost_no_later_sync_forces(disk: PowerLossFileSystem, data: Path, journal: Path) -> None:
    made(disk, data / "log", b"durable")
    file = disk.open(str(data / "log"), write=True)
    file.pwritev([b" and lost" + bytes(PAGE)], 7)
    failing_sync(disk, data / "log", journal)
    # another process, which sees the state after the loss
    later = PowerLossFileSystem(journal).open(str(data / "log"), write=True)
    assert later.pread(9, 7) == b" and lost"
    later.sync()
    assert lose_power(journal) == len(" and lost") + PAGE
    assert (data / "log").read_bytes() == b"durable"


def test_what_a_failed_sync_lost_is_forced_once_it_was_written_again(
    disk: PowerLossFileSystem, data: Path, journal: Path
) -> None:
    """Page by page: one byte makes the whole page dirty again, and the pages around it stay lost."""
    made(disk, data / "log", b"o" * PAGE)
    file = disk.open(str(data / "log"), write=True)
    pages = [letter * PAGE for letter in (b"a", b"b", b"c")]
    file.pwritev(pages, PAGE)
    failing_sync(disk, data / "log", journal)
    file.pwritev([b"b"], 2 * PAGE + 5)
    file.pwritev([b"end"], 4 * PAGE)
    file.sync()
    file.pwritev([b"not forced"], 4 * PAGE + 3)
    assert lose_power(journal) == 2 * PAGE + len("not forced")
    assert (data / "log").read_bytes() == b"o" * PAGE + bytes(PAGE) + pages[1] + bytes(PAGE) + b"end"


def test_reading_and_locking_are_those_of_the_real_file_system(disk: PowerLossFileSystem, data: Path) -> None:
    made(disk, data / "log", b"content")
    real = RealFileSystem()
    assert disk.open(str(data / "log")).pread(100, 0) == real.open(str(data / "log")).pread(100, 0)
    lock = disk.lock(str(data / ".lock"))
    with pytest.raises(BlockingIOError):
        real.lock(str(data / ".lock"))
    lock.release()
    assert disk.listdir(str(data)) == [".lock", "log"]
    assert os.path.exists(data / "log")
