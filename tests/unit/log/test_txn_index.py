"""The transaction index: Kafka's bytes, searches against a brute-force model, and the life of the file."""

from __future__ import annotations

import errno
import random
import struct
from typing import Any

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.log import txn_index
from headrace_core.log.index import OFFSET_ENTRY, OffsetIndex, parse_offset_entries
from headrace_core.log.txn_index import (
    ABORTED_ENTRY,
    AbortedTransaction,
    TransactionIndex,
    check_entries,
    overlapping,
    pack_entries,
    read_entries,
)
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss

PATH = "/d/00000000000000000010.txnindex"
BASE = 10


def entries_of(rng: random.Random, count: int) -> list[AbortedTransaction]:
    """Aborted transactions as in a real log. Markers ascend, and the stable offset is the start of the first open
    transaction."""
    found: list[AbortedTransaction] = []
    open_since: dict[int, int] = {}
    offset = BASE
    while len(found) < count:
        producer_id = rng.randrange(5)
        if producer_id in open_since and rng.random() < 0.6:
            first = open_since.pop(producer_id)
            found.append(AbortedTransaction(producer_id, first, offset, min([offset + 1, *open_since.values()])))
        else:
            open_since.setdefault(producer_id, offset)
        offset += 1
    return found


def begun() -> tuple[CrashingFileSystem, TransactionIndex]:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    fs.sync_directory("/")
    return fs, TransactionIndex(fs, PATH, BASE)


def attached(fs: CrashingFileSystem) -> TransactionIndex:
    index = TransactionIndex(fs, PATH, BASE)
    index.attach()
    return index


def test_an_entry_has_the_bytes_of_kafkas_aborted_txn() -> None:
    (data,) = [pack_entries([AbortedTransaction(7, 11, 23, 19)])]
    assert data == struct.pack(">hqqqq", 0, 7, 11, 23, 19)
    assert len(data) == 34
    assert read_entries(data) == [AbortedTransaction(7, 11, 23, 19)]


def test_searches_find_what_a_walk_over_all_entries_finds(rng: random.Random) -> None:
    for _ in range(30):
        entries = entries_of(rng, rng.randint(1, 40))
        data = pack_entries(entries)
        end = entries[-1].last_offset + 2
        for _ in range(60):
            start = rng.randint(BASE, end)
            up_to = rng.randint(start, end)
            found, is_complete = overlapping(data, start, up_to)
            stop = next(
                (number for number, entry in enumerate(entries)
                 if entry.last_offset >= start and entry.last_stable_offset >= up_to),
                None,
            )  # fmt: skip
            assert is_complete == (stop is not None)
            wanted = [entry for entry in entries if entry.last_offset >= start and entry.first_offset < up_to]
            assert found == wanted, "nothing behind the stop overlaps"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (b"\0" * 33, "whole number"),
        (ABORTED_ENTRY.pack(1, 7, 10, 12, 13), "version 1"),
        (ABORTED_ENTRY.pack(0, 7, 3, 9, 10), "not above 9"),
        (ABORTED_ENTRY.pack(0, 7, 12, 12, 13), "impossible"),
        (ABORTED_ENTRY.pack(0, 7, 10, 12, 14), "impossible"),
        (ABORTED_ENTRY.pack(0, -1, 10, 12, 13), "impossible"),
        (ABORTED_ENTRY.pack(0, 7, 10, 12, 13) * 2, "position 34"),
    ],
)
def test_what_cannot_be_an_index_is_refused_with_its_place(data: bytes, what: str) -> None:
    with pytest.raises(CorruptLogError, match=what):
        check_entries(data, PATH, BASE)


def test_entries_are_in_memory_at_once_and_in_the_file_when_it_is_synced() -> None:
    fs, index = begun()
    assert index.is_empty
    index.append(AbortedTransaction(7, 10, 12, 13))
    assert read_entries(index.load()) == [AbortedTransaction(7, 10, 12, 13)]
    file = index.begin_sync()
    assert file is not None
    file.sync()
    index.file.end_sync(durable=True)
    fs.crash(random.Random(1), Loss.ALL)
    assert read_entries(attached(fs).load()) == [AbortedTransaction(7, 10, 12, 13)], "its name is durable, too"


def test_entries_that_the_file_lacks_are_never_unloaded() -> None:
    _, index = begun()
    index.append(AbortedTransaction(7, 10, 12, 13))
    index.unload()
    assert index.loaded
    index.file.sync()
    index.unload()
    assert index.loaded is None
    assert not index.is_empty
    assert read_entries(index.load()) == [AbortedTransaction(7, 10, 12, 13)]


def test_a_cut_keeps_what_lies_before_it_and_leaves_no_empty_file() -> None:
    fs, index = begun()
    entries = [AbortedTransaction(7, 10, 12, 13), AbortedTransaction(8, 11, 15, 16)]
    for entry in entries:
        index.append(entry)
    index.file.sync()
    index.truncate_to(15)
    assert fs.files()[PATH] == pack_entries(entries[:1])
    index.append(AbortedTransaction(9, 14, 16, 17))
    index.file.sync()
    assert fs.files()[PATH] == pack_entries([entries[0], AbortedTransaction(9, 14, 16, 17)])
    index.truncate_to(11)
    assert index.is_empty
    assert PATH not in fs.files()
    fs.crash(random.Random(1), Loss.ALL)
    assert PATH not in fs.files(), "a file that came back would hide committed records"


def test_a_cut_repairs_a_damaged_file() -> None:
    fs, index = begun()
    fs.replace(PATH, b"damaged")
    index = attached(fs)
    with pytest.raises(CorruptLogError):
        index.load()
    entries = [AbortedTransaction(7, 10, 12, 13), AbortedTransaction(8, 11, 15, 16)]
    index.keep_in_memory(pack_entries(entries), index.changes)
    index.unload()
    assert index.loaded, "the file does not have them"
    index.truncate_to(20)
    assert fs.files()[PATH] == pack_entries(entries)


def test_a_rebuild_that_meets_a_full_disk_leaves_a_file_that_counts_as_damaged() -> None:
    fs, index = begun()
    fs.replace(PATH, pack_entries([AbortedTransaction(7, 10, 12, 13)]))
    index = attached(fs)
    fs.fail("write", errno.ENOSPC, path_ends=".txnindex")
    assert not index.replace([AbortedTransaction(8, 11, 15, 16)])
    assert read_entries(index.load()) == [AbortedTransaction(8, 11, 15, 16)]
    with pytest.raises(CorruptLogError, match="empty"):
        attached(fs).load()
    index.append(AbortedTransaction(9, 14, 16, 17))
    index.file.sync()
    assert read_entries(attached(fs).load()) == [AbortedTransaction(8, 11, 15, 16), AbortedTransaction(9, 14, 16, 17)]


def test_a_new_file_that_meets_a_full_disk_is_not_lost_in_a_crash() -> None:
    """A missing file would mean that no transaction was aborted."""
    fs, index = begun()
    fs.fail("write", errno.ENOSPC, path_ends=".txnindex")
    assert not index.replace([AbortedTransaction(8, 11, 15, 16)])
    with pytest.raises(CorruptLogError, match="empty"):
        attached(fs.crash_clone()).load()
    index.append(AbortedTransaction(9, 14, 16, 17))
    index.file.sync()
    assert len(read_entries(attached(fs.crash_clone()).load())) == 2


def test_a_cut_on_a_full_disk_leaves_a_damaged_file_empty_until_there_is_room() -> None:
    fs, _ = begun()
    fs.replace(PATH, b"damaged")
    index = attached(fs)
    entries = [AbortedTransaction(7, 10, 12, 13), AbortedTransaction(8, 11, 15, 16)]
    index.keep_in_memory(pack_entries(entries), index.changes)
    fs.fail("write", errno.ENOSPC, path_ends=".txnindex")
    index.truncate_to(15)
    assert fs.files()[PATH] == b""
    index.append(AbortedTransaction(9, 14, 16, 17))
    index.file.sync()
    assert fs.files()[PATH] == pack_entries([entries[0], AbortedTransaction(9, 14, 16, 17)])


def test_a_reader_that_loads_the_file_during_a_cut_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, index = begun()
    entries = [AbortedTransaction(7, 10, 12, 13), AbortedTransaction(8, 11, 15, 16)]
    for entry in entries:
        index.append(entry)
    index.file.sync()
    index.unload()

    def cut(*args: Any) -> None:
        monkeypatch.undo()  # the owner loads the index first
        index.truncate_to(15)

    monkeypatch.setattr(txn_index, "check_entries", cut)
    assert read_entries(index.load()) == entries[:1]
    index.append(AbortedTransaction(9, 14, 16, 17))
    index.file.sync()
    assert fs.files()[PATH] == pack_entries([entries[0], AbortedTransaction(9, 14, 16, 17)])


def test_a_reader_that_loads_an_offset_index_during_a_cut_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, _ = begun()
    index = OffsetIndex(fs, "/d/00000000000000000010.index", BASE, 80)
    index.create()
    for offset in (12, 15, 18):
        index.append(offset, offset * 10)
    index.file.sync()
    index.unload()

    def cut(*args: Any) -> Any:
        monkeypatch.undo()
        index.truncate_to(15)
        return parse_offset_entries(*args)

    monkeypatch.setattr(OffsetIndex, "_parse", staticmethod(cut))
    assert len(index) == 1
    index.append(16, 155)
    index.file.sync()
    assert fs.files()[index.file.path] == OFFSET_ENTRY.pack(2, 120) + OFFSET_ENTRY.pack(6, 155)


def test_what_a_reader_loaded_before_a_change_is_not_kept() -> None:
    _, index = begun()
    index.append(AbortedTransaction(7, 10, 12, 13))
    index.file.sync()
    index.unload()
    changes = index.changes
    old = bytes(index.load())
    index.truncate_to(10)
    index.keep_in_memory(old, changes)
    assert index.is_empty
