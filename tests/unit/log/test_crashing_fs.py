"""The crashing file system itself: the state after a power loss, and planned faults."""

from __future__ import annotations

import errno
import random

import pytest

from headrace_core.log.files import read_file
from headrace_core.testing.crashing_fs import BLOCK_BYTES, CrashingFileSystem, Loss, SimulatedCrash


def durable_file(fs: CrashingFileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, create=True)
    file.pwritev([data], 0)
    file.sync()
    fs.sync_directory(path.rpartition("/")[0])


def test_unsynced_bytes_are_lost_and_synced_ones_stay() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"synced")
    file = fs.open("/f", write=True)
    file.pwritev([b" and not"], 6)
    assert read_file(fs.crash_clone(), "/f") == b"synced"
    assert read_file(fs.crash_clone(loss=Loss.NONE), "/f") == b"synced and not"
    assert read_file(fs, "/f") == b"synced and not", "a clone leaves the original alone"
    fs.crash()
    assert read_file(fs, "/f") == b"synced"
    with pytest.raises(OSError, match="before a crash"):
        file.pread(1, 0)


def test_killed_process_leaves_its_bytes_in_the_cache_only() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"old")
    fs.open("/f", write=True).pwritev([b"new"], 0)
    fs.crash(loss=Loss.NONE)
    assert read_file(fs, "/f") == b"new"
    fs.crash(loss=Loss.ALL)
    assert read_file(fs, "/f") == b"old"


def test_names_are_durable_once_their_directory_is_synced() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    fs.sync_directory("/")
    durable_file(fs, "/d/kept", b"1")
    fs.open("/d/new", create=True).sync()
    fs.unlink("/d/kept")
    assert fs.crash_clone().listdir("/d") == ["kept"]
    fs.sync_directory("/d")
    assert fs.crash_clone().listdir("/d") == ["new"]
    fs.rename("/d/new", "/d/newer")
    assert {tuple(fs.crash_clone(random.Random(seed), Loss.PREFIX).listdir("/d")) for seed in range(20)} == {
        ("new",),
        ("newer",),
    }


def test_prefix_loss_keeps_a_prefix_of_the_writes_torn_at_any_byte() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"")
    file = fs.open("/f", write=True)
    file.pwritev([b"abc"], 0)
    file.pwritev([b"def"], 3)
    found = {read_file(fs.crash_clone(random.Random(seed), Loss.PREFIX), "/f") for seed in range(200)}
    assert found == {b"abcdef"[:size] for size in range(7)}


def test_block_loss_leaves_zeros_where_blocks_never_arrived() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"s" * 100)
    fs.open("/f", write=True).pwritev([b"x" * (3 * BLOCK_BYTES)], 100)
    holes = 0
    for seed in range(50):
        data = read_file(fs.crash_clone(random.Random(seed), Loss.BLOCKS), "/f")
        assert data.startswith(b"s" * 100)
        blocks = [set(data[at : at + BLOCK_BYTES]) for at in range(BLOCK_BYTES, len(data), BLOCK_BYTES)]
        assert all(len(block) == 1 for block in blocks)
        holes += any(blocks[i] == {0} and blocks[i + 1] == {ord("x")} for i in range(len(blocks) - 1))
    assert holes


def test_machine_is_down_from_the_planned_operation_until_it_is_rebooted() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"")
    file = fs.open("/f", write=True)
    fs.crash_at(fs.operations + 1)
    file.pwritev([b"a"], 0)
    with pytest.raises(SimulatedCrash, match="sync /f"):
        file.sync()
    for call in (lambda: file.pread(1, 0), lambda: fs.listdir("/"), lambda: fs.open("/f")):
        with pytest.raises(SimulatedCrash):
            call()
    fs.crash()
    assert read_file(fs, "/f") == b""


def test_planned_faults_strike_at_the_nth_matching_operation() -> None:
    fs = CrashingFileSystem()
    log, other = fs.open("/a.log", create=True), fs.open("/b", create=True)
    fs.fail("write", errno.ENOSPC, nth=2, times=2, path_ends=".log", partial_bytes=2)
    assert log.pwritev([b"1234"], 0) == 4
    other.pwritev([b"x"], 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as caught:
            log.pwritev([b"5678"], 4)
        assert caught.value.errno == errno.ENOSPC
        assert log.pread(100, 0) == b"123456"
    assert log.pwritev([b"5678"], 4) == 4


def test_failed_sync_loses_the_bytes_for_good_while_everybody_still_sees_them() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"old")
    file = fs.open("/f", write=True)
    file.pwritev([b"new"], 0)
    fs.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()  # Linux reports a lost write once, and then marks the pages clean
    assert read_file(fs, "/f") == b"new"
    assert read_file(fs.crash_clone(), "/f") == b"old"


def test_page_whose_flush_failed_is_durable_once_it_was_written_again_and_flushed() -> None:
    fs = CrashingFileSystem()
    file = fs.open("/f", create=True)
    fs.sync_directory("/")
    pages = [letter * BLOCK_BYTES for letter in (b"a", b"b", b"c")]
    file.pwritev(pages, 0)
    fs.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.pwritev([b"!"], BLOCK_BYTES + 7)  # one byte makes the whole page dirty
    file.sync()
    seen = pages[0] + pages[1][:7] + b"!" + pages[1][8:] + pages[2]
    assert read_file(fs, "/f") == seen
    kept = fs.crash_clone(loss=Loss.NONE)
    fs.crash()
    assert read_file(fs, "/f") == bytes(BLOCK_BYTES) + seen[BLOCK_BYTES : 2 * BLOCK_BYTES]
    assert kept.evict("/nowhere") == 0
    assert kept.evict() == 1
    assert kept.evict() == 0
    assert read_file(kept, "/f") == bytes(BLOCK_BYTES) + seen[BLOCK_BYTES : 2 * BLOCK_BYTES] + bytes(BLOCK_BYTES)


def test_failed_flush_may_have_written_some_pages_and_fails_every_open_handle_once() -> None:
    found = set()
    for seed in range(20):
        fs = CrashingFileSystem()
        file, other = fs.open("/f", create=True), fs.open("/f", write=True)
        fs.sync_directory("/")
        file.pwritev([b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES], 0)
        fs.fail("sync", rng=random.Random(seed))
        for handle in (file, other):
            with pytest.raises(OSError, match="Input/output"):
                handle.sync()
            handle.sync()
        fs.open("/f", write=True).sync()  # the error was reported before this one was opened
        fs.crash()
        found.add(read_file(fs, "/f").replace(b"a" * BLOCK_BYTES, b"A").replace(b"b" * BLOCK_BYTES, b"B"))
    assert found == {b"", b"A", bytes(BLOCK_BYTES) + b"B", b"AB"}


def test_cut_outlives_a_failed_flush_of_the_bytes_beside_it() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"0123456789")
    file = fs.open("/f", write=True)
    file.truncate(4)
    file.pwritev([b"x"], 4)
    fs.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert read_file(fs.crash_clone(), "/f") == b"0123456789"  # the journal has not reached this operation
    file.sync()
    fs.crash()
    assert read_file(fs, "/f") == b"0123"


def test_full_disk_takes_what_fits_and_gives_space_back() -> None:
    fs = CrashingFileSystem(capacity_bytes=10)
    file = fs.open("/f", create=True)
    file.pwritev([b"12345678"], 0)
    with pytest.raises(OSError, match="No space"):
        file.pwritev([b"abcd"], 8)
    assert file.size() == 10
    file.truncate(8)
    assert fs.free_bytes("/") == 2
    file.pwritev([b"over"], 0)
    fs.unlink("/f")
    assert fs.free_bytes("/") == 10


def test_trace_shows_operations_and_notes_in_order() -> None:
    fs = CrashingFileSystem()
    file = fs.open("/f", create=True)
    file.pwritev([b"ab"], 3)
    fs.note("acknowledged", "/f", 5)
    file.sync()
    assert [(entry.operation, entry.path, entry.position, entry.size) for entry in fs.trace] == [
        ("create", "/f", -1, -1),
        ("write", "/f", 3, 2),
        ("acknowledged", "/f", 5, -1),
        ("sync", "/f", -1, 5),
    ]


def test_flipped_byte_is_seen_at_once_and_after_a_crash() -> None:
    fs = CrashingFileSystem()
    durable_file(fs, "/f", b"\x00\x01")
    fs.flip("/f", 1, 0x10)
    assert read_file(fs, "/f") == b"\x00\x11"
    assert read_file(fs.crash_clone(), "/f") == b"\x00\x11"
