"""Transactions in a log: the last stable offset and the transaction indexes. The log goes through rolls, failed writes,
truncations, crashes, restarts, retention, moves and damage. A model that only knows the batches gives the expected
results."""

from __future__ import annotations

import contextlib
import errno
import math
import random
import uuid
from collections.abc import Iterator

import pytest

from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog, reading
from headrace_core.log.dump import AbortedLine, Note, Problem, dump
from headrace_core.log.moving import LogCopy, Pace
from headrace_core.log.scrubbing import scrub_segment
from headrace_core.log.segment import LogSegment
from headrace_core.log.txn_index import AbortedTransaction, overlapping, pack_entries
from headrace_core.log.verify import verify
from headrace_core.records import decode_batch, read_header
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.worlds.log_world import (
    ABORT,
    COMMIT,
    NOW_MS,
    ORDERS,
    ROOT,
    TINY,
    TOPIC_ID,
    Transactions,
    Written,
    aborted_of,
    append_to,
    begun,
    committed_values,
    formatted,
    index_files,
    log_files,
    log_of,
    marker,
    open_directory,
    transactional,
)


def filled(seed: int, segments: int = 6) -> tuple[CrashingFileSystem, LogDirectory, PartitionLog, Transactions]:
    fs, directory, log = begun(TINY)
    transactions = Transactions(random.Random(seed))
    while len(log.segments) < segments:
        transactions.write(log, 2)
    return fs, directory, log, transactions


def txn_files(fs: CrashingFileSystem) -> dict[int, bytes]:
    """{base offset: bytes} of the .txnindex files."""
    found = {}
    for path, data in fs.files().items():
        name = path.rpartition("/")[2]
        if name.endswith(".txnindex"):
            found[int(name.removesuffix(".txnindex"))] = data
    return found


def bases_of(fs: CrashingFileSystem) -> list[str]:
    """The names of the segments, without their suffix."""
    return [path.rpartition("/")[2].removesuffix(".log") for path in fs.files() if path.endswith(".log")]


def expected_files(transactions: Transactions, log: PartitionLog) -> dict[int, bytes]:
    bases = [segment.base_offset for segment in log.segments]
    return index_files(transactions.written, log.log_end_offset, bases)


# ---------------------------------------------------------------------------------------------- what is answered


def test_an_open_transaction_holds_the_stable_offset_until_its_marker_is_committed() -> None:
    _, _, log = begun(TINY)
    append_to(log, transactional(7, 0, 2))
    append_to(log, transactional(8, 0))
    assert [log.last_stable_offset(high_watermark) for high_watermark in (0, 1, 3)] == [0, 0, 0]
    append_to(log, marker(7, COMMIT))
    assert log.last_stable_offset(3) == 0, "the marker may still be lost"
    assert log.last_stable_offset(4) == 2
    append_to(log, marker(8, ABORT))
    assert [log.last_stable_offset(high_watermark) for high_watermark in (3, 4, 5)] == [0, 2, 5]
    assert [tuple(each) for each in log.aborted_transactions(0, 5)] == [(8, 2, 4, 5)]
    assert log.aborted_transactions(0, 2) == []


def test_any_history_gives_the_stable_offsets_and_aborted_transactions_of_its_batches(rng: random.Random) -> None:
    for seed in range(8):
        fs, directory, log, transactions = filled(rng.randrange(1 << 30))
        transactions.check(log)
        directory.close()
        assert txn_files(fs) == expected_files(transactions, log_of(open_directory(fs, TINY))), seed


def test_a_log_without_aborted_transactions_has_no_index_file() -> None:
    fs, directory, log = begun(TINY)
    append_to(log, transactional(7, 0))
    append_to(log, marker(7, COMMIT))
    append_to(log, marker(8, ABORT))  # of an empty transaction
    log.roll()
    directory.close()
    assert txn_files(fs) == {}


def test_what_is_committed_is_forgotten_and_the_answers_stay() -> None:
    _, _, log = begun(TINY)
    transactions = Transactions(random.Random(3))
    for _ in range(60):
        transactions.write(log)
        log.producers.committed_end = log.log_end_offset - 2
        transactions.check_stable_offsets(log, since=log.log_end_offset - 2)
    assert log.producers.undecided_count < 12
    assert log.last_stable_offset(5) == 0, "a high watermark that went back is not believed: readers wait"


def test_a_follower_answers_as_its_leader() -> None:
    _, _, leader, transactions = filled(4)
    fs, directory, follower = begun(TINY)
    result = leader.read(0, 1 << 20)
    while follower.log_end_offset < leader.log_end_offset:
        result = leader.read(follower.log_end_offset, 1 << 20)
        assert result is not None
        (outcome,) = follower.append_many([Append(data=result.records, leader_epoch=0, replicated=True)])
        assert isinstance(outcome, AppendInfo), outcome
    transactions.check(follower)
    directory.close()
    assert txn_files(fs) == expected_files(transactions, log_of(open_directory(fs, TINY)))


def test_what_could_not_be_written_is_undone() -> None:
    fs, _, log = begun(TINY)
    append_to(log, transactional(7, 0))
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    batches = [marker(7, ABORT), transactional(7, 1), transactional(8, 0)]
    append = Append(data=b"".join(batches), leader_epoch=0, headers=[read_header(each) for each in batches])
    assert isinstance(log.append_many([append])[0], DiskFullError)
    assert log.last_stable_offset(1) == 0
    assert log.producers.first_unstable_offset == 0
    append_to(log, transactional(8, 0))
    append_to(log, marker(7, ABORT))
    assert [tuple(each) for each in log.aborted_transactions(0, 1)] == [(7, 0, 2, 1)]
    assert [log.last_stable_offset(high_watermark) for high_watermark in (2, 3)] == [0, 1]


def test_a_read_searches_only_the_segments_that_concern_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose first transaction stays open for long, so that no index entry before its marker ends a search."""
    _, _, log = begun(LogConfig())
    append_to(log, transactional(7, 0))
    for number in range(30):
        append_to(log, transactional(8, number))
        append_to(log, marker(8, ABORT if number % 2 else COMMIT))
        log.roll()
    append_to(log, marker(7, ABORT))
    log.roll()
    append_to(log, transactional(9, 0))
    searched: list[int] = []

    def search(data: bytes, start: int, end: int) -> object:
        searched.append(len(data))
        return overlapping(data, start, end)

    monkeypatch.setattr(reading, "overlapping", search)
    assert [tuple(each) for each in log.aborted_transactions(3, 5)] == [(7, 0, 61, 62), (8, 3, 4, 0)]  # loads them
    searched.clear()
    assert [tuple(each) for each in log.aborted_transactions(3, 5)] == [(7, 0, 61, 62), (8, 3, 4, 0)]
    assert len(searched) == 2, "that of the segment with the range, and that of the marker"
    segments = log.segments
    assert len(log._with_aborted(segments)) == 17
    for segment in segments[:-1]:
        segment.txn_index.unload()
    searched.clear()
    assert log.aborted_transactions(63, 64, wait=False) == []
    assert not searched


# ---------------------------------------------------------------------------------------------- restarts and damage


@pytest.mark.parametrize("clean", [True, False])
def test_a_restarted_log_answers_the_same_for_any_high_watermark(clean: bool, rng: random.Random) -> None:
    """The last stable offset is also right for a log that is cut below its snapshots. A snapshot contains the open
    transactions, but not the transactions that ended later."""
    for _ in range(6):
        fs, directory, log, transactions = filled(rng.randrange(1 << 30), 4)
        end = log.log_end_offset
        high_watermark = rng.randint(0, end)
        directory.write_high_watermarks({ORDERS: high_watermark})
        log.flush()
        if clean:
            directory.close()
        else:
            fs.crash(rng, Loss.NONE)
        again = log_of(open_directory(fs, TINY))
        assert again.log_end_offset == end
        transactions.check(again, since=high_watermark)


def test_indexes_of_an_unclean_stop_are_rebuilt_from_the_log(rng: random.Random) -> None:
    for loss in Loss:
        fs, directory, log, transactions = filled(rng.randrange(1 << 30))
        log.flush()
        wrong = f"{log.directory}/{0:020d}.txnindex"
        for path in list(fs.files()):
            if path.endswith(".txnindex") and path != wrong and rng.random() < 0.5:
                fs.unlink(path)
        fs.replace(wrong, b"torn")
        fs.crash(rng, loss)
        directory = open_directory(fs, TINY)
        again = log_of(directory)
        transactions.cut(again.log_end_offset)
        transactions.check(again)
        assert txn_files(fs) == expected_files(transactions, again)
        before = log_files(fs)
        fs.crash(rng, Loss.ALL)
        open_directory(fs, TINY)
        assert {path for path in log_files(fs) if path.endswith(".txnindex")} == {
            path for path in before if path.endswith(".txnindex")
        }, "their names are durable"


@pytest.mark.parametrize("damage", [b"", b"x" * 33, b"\1" * 34, None])
def test_a_damaged_index_of_a_sealed_segment_is_rebuilt_when_it_is_read(
    damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    fs, directory, log, transactions = filled(11)
    directory.close()
    base, sound = next((base, data) for base, data in txn_files(fs).items() if base < log.log_end_offset)
    path = f"{log.directory}/{base:020d}.txnindex"
    directory = open_directory(fs, TINY)
    again = log_of(directory)
    if damage is None:
        fs.unlink(path)
    else:
        fs.replace(path, damage)
    transactions.check(again)
    assert "transaction index" in caplog.text
    found = again.aborted_in(next(segment for segment in again.segments if segment.base_offset == base))
    assert found == [each for each in aborted_of(transactions.written, again.log_end_offset)
                     if each.last_offset in {entry.last_offset for entry in found}]  # fmt: skip
    assert len(sound) == 34 * len(found)


def test_a_damaged_index_of_the_active_segment_is_rebuilt_at_a_clean_start() -> None:
    fs, directory, log = begun(LogConfig())
    transactions = Transactions(random.Random(5))
    transactions.write(log, 30)
    directory.close()
    path = f"{log.directory}/{0:020d}.txnindex"
    sound = fs.files()[path]
    assert sound
    fs.replace(path, sound[:-1])
    again = log_of(open_directory(fs, LogConfig()))
    assert fs.files()[path] == sound
    transactions.check(again)
    transactions.write(again, 10)
    transactions.check(again)


def test_a_start_without_the_indexes_of_a_segment_rebuilds_the_transaction_index_too() -> None:
    fs, directory, log, transactions = filled(12)
    directory.close()
    before = txn_files(fs)
    base = min(before)
    for suffix in (".index", ".timeindex", ".txnindex"):
        fs.unlink(f"{log.directory}/{base:020d}{suffix}")
    again = log_of(open_directory(fs, TINY))
    assert txn_files(fs) == before
    transactions.check(again)


@pytest.mark.parametrize("loss", list(Loss))
def test_a_crash_while_the_indexes_of_a_segment_are_rebuilt_hides_no_aborted_transaction(
    loss: Loss, rng: random.Random
) -> None:
    """The next start trusts the offset index that this start has written."""
    fs, directory, log, transactions = filled(12)
    directory.close()
    base = min(txn_files(fs))
    for suffix in (".index", ".timeindex", ".txnindex"):
        fs.unlink(f"{log.directory}/{base:020d}{suffix}")
    fs.sync_directory(log.directory)
    stop_at, crashed = 0, True
    while crashed:
        copy = fs.crash_clone(loss=Loss.NONE)
        copy.crash_at(stop_at)
        try:
            open_directory(copy, TINY)
            crashed = False
        except SimulatedCrash:
            pass
        copy.crash(rng, loss)
        transactions.check(log_of(open_directory(copy, TINY)))
        stop_at += 1
    assert stop_at > 10


def test_a_damaged_index_and_a_full_disk_do_not_stop_a_cut() -> None:
    fs, directory, log, transactions = filled(12)
    log.flush()
    base = max(base for base in txn_files(fs) if base < log.active.base_offset)
    segment = next(each for each in log.segments if each.base_offset == base)
    segment.txn_index.unload()
    fs.replace(segment.txn_index.file.path, b"damaged")
    end = log.segments[log.segments.index(segment) + 1].base_offset
    directory.write_recovery_points()
    fs.fail("write", errno.ENOSPC, times=10_000, path_ends=".txnindex")
    directory.truncate(log, end)
    transactions.cut(log.log_end_offset)
    transactions.check(log)
    fs.faults.clear()
    crashed = fs.crash_clone()
    transactions.check(log_of(open_directory(crashed, TINY)))
    transactions.write(log, 4)
    transactions.check(log)
    directory.close()
    assert txn_files(fs) == expected_files(transactions, log_of(open_directory(fs, TINY)))


def scrubbed(fs: CrashingFileSystem, log: PartitionLog) -> dict[int, str]:
    """{base offset: the fault that was found in its transaction index}"""
    found = {}
    for segment in log.segments:
        result = scrub_segment(fs, log, segment, spend=lambda size: None, should_stop=lambda: False)
        assert result.index_fault is None
        if result.txn_index_fault is not None:
            found[segment.base_offset] = result.txn_index_fault
    return found


def test_a_scrub_finds_no_fault_in_any_sound_history(rng: random.Random) -> None:
    for _ in range(10):
        fs, directory, log, _ = filled(rng.randrange(1 << 30), 9)
        log.flush()
        assert not scrubbed(fs, log)
        directory.write_recovery_points()
        directory.delete_records(log, log.segments[3].base_offset)
        assert not scrubbed(fs, log)
        for path in [path for path in fs.files() if path.endswith(".snapshot")]:
            fs.unlink(path)  # the transactions that were open at the log's start are not known any more
        assert not scrubbed(fs, log)
        directory.truncate(log, log.segments[-2].base_offset + 2)
        assert not scrubbed(fs, log)


def test_a_scrub_compares_transaction_indexes_with_the_log() -> None:
    fs, directory, log, transactions = filled(13, 9)
    directory.close()
    directory = open_directory(fs, TINY)
    log = log_of(directory)
    bases = [segment.base_offset for segment in log.segments]
    base, sound = next((base, data) for base, data in txn_files(fs).items() if base < bases[-1] and len(data) > 34)
    segment = log.segments[bases.index(base)]
    path = segment.txn_index.file.path
    empty = next(each for each in log.segments[:-1] if each.txn_index.is_empty)
    for wrong in (
        sound[:-1],
        sound[34:],
        sound[:9] + bytes([sound[9] ^ 1]) + sound[10:],  # the producer
        sound[:17] + bytes([sound[17] + 1]) + sound[18:],  # the first offset
        sound[:33] + bytes([sound[25] + 1]) + sound[34:],  # the last stable offset
        b"",
        None,
    ):
        if wrong is None:
            fs.unlink(path)
        else:
            fs.replace(path, wrong)
        assert list(scrubbed(fs, log)) == [base], wrong
        assert log.replace_aborted(segment, log.aborted_by_log(segment))
        assert fs.files()[path] == sound
        assert not scrubbed(fs, log)
    offset = empty.base_offset
    fs.replace(empty.txn_index.file.path, pack_entries([AbortedTransaction(3, offset, offset + 1, offset + 2)]))
    assert "ABORT marker" in scrubbed(fs, log).get(offset, "") or not any(
        header.is_control for _, header in empty.places(0, empty.size)
    ), "an entry too many would hide committed records"
    assert log.replace_aborted(empty, log.aborted_by_log(empty))
    assert not scrubbed(fs, log)
    transactions.check(log)


def test_damage_in_the_log_is_not_hidden_by_a_rebuild() -> None:
    fs, directory, log, transactions = filled(11)
    directory.close()
    spans = aborted_of(transactions.written, log.log_end_offset)
    again = log_of(open_directory(fs, TINY))
    segment = next(each for each in again.segments if not each.txn_index.is_empty and each.txn_index.loaded is None)
    place = segment.find(next(span.last_offset for span in spans if span.last_offset >= segment.base_offset))
    fs.flip(segment.path, place.position + 70)
    fs.replace(segment.path.replace(".log", ".txnindex"), b"")
    with pytest.raises(CorruptLogError, match=r"\.log, position"):
        again.aborted_transactions(segment.base_offset, again.log_end_offset)


# ---------------------------------------------------------------------------------------------- cuts and crashes


def test_a_cut_at_any_offset_leaves_the_answers_of_the_batches_left() -> None:
    fs, directory, log, transactions = filled(8, 4)
    log.flush()
    directory.write_recovery_points()
    end = log.log_end_offset
    for offset in range(end + 1):
        clone = fs.crash_clone(loss=Loss.NONE)
        cut_directory = open_directory(clone, TINY)
        cut = log_of(cut_directory)
        cut_directory.truncate(cut, offset)
        left = Transactions(random.Random(offset))
        left.written = list(transactions.written)
        left.cut(cut.log_end_offset)
        left.check(cut)
        left.write(cut, 4)
        left.check(cut)
        cut_directory.close()
        assert txn_files(clone) == expected_files(left, log_of(open_directory(clone, TINY)))


@pytest.mark.parametrize("way", ["cut", "cut all", "restart"])
def test_a_reader_during_a_cut_gets_no_record_of_an_open_transaction(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stable offset is also right for a high watermark from before the cut."""
    fs, directory, log = begun(TINY)
    append_to(log, transactional(7, 0), leader_epoch=0)
    append_to(log, transactional(8, 0), leader_epoch=0)
    append_to(log, marker(7, ABORT), leader_epoch=0)
    log.roll()
    append_to(log, marker(8, ABORT), leader_epoch=0)
    append_to(log, transactional(9, 0), leader_epoch=0)
    log.flush()
    high_watermark = log.log_end_offset
    assert log.last_stable_offset(high_watermark) == 4
    reads = 0

    def look() -> None:
        nonlocal reads
        reads += 1
        if log.segments and log.log_end_offset:
            assert log.last_stable_offset(high_watermark) <= 4
        with contextlib.suppress(OffsetNotAvailableError, OffsetOutOfRangeError, UnknownTopicOrPartitionError):
            result = log.read_committed(0, 1 << 20, high_watermark)
            aborted = [(each.producer_id, each.first_offset) for each in result.aborted]
            assert not committed_values(result.records, 0, aborted)

    forget_places = log._forget_places
    monkeypatch.setattr(log, "_forget_places", lambda: (look(), forget_places()))
    fs.on_operation = lambda entry: None if entry.operation in ("read", "open", "listdir") else look()
    if way == "cut":
        directory.truncate(log, 2)  # both are open again
    elif way == "cut all":
        directory.truncate(log, 0)
    else:
        directory.restart(log, 20)
    assert reads > 3
    with contextlib.suppress(OffsetOutOfRangeError):
        assert not log.read_committed(0, 1 << 20, high_watermark).records


@pytest.mark.parametrize("change", ["roll", "compaction", "cut"])
def test_records_and_aborted_transactions_are_of_one_state_of_the_log(change: str) -> None:
    """The log changes after the records were read."""
    fs, directory, log = begun(TINY)
    append_to(log, transactional(7, 0))
    append_to(log, marker(7, ABORT))
    append_to(log, transactional(8, 0))
    append_to(log, marker(8, COMMIT))
    log.roll()
    log.flush()
    listed = log.aborted_transactions

    def changed(*args: int, **keys: bool) -> object:
        log.aborted_transactions = listed  # type: ignore[method-assign]
        if change == "roll":
            append_to(log, transactional(9, 0))
            log.roll()
        elif change == "cut":
            directory.truncate(log, 1)
        else:  # two compactions: no data of the transaction is left, so that the index has no entry
            first = log.segments[0]
            kept = first.log.pread(first.size, 0)[len(transactional(7, 0)) :]
            fs.replace(first.path, kept)
            fs.unlink(first.txn_index.file.path)
            new = LogSegment.attach(
                fs, log.directory, 0, index_bytes_max=240, interval_bytes=120, now_ms=NOW_MS, has_txn_index=False
            )
            log.replace_segments([first], new)
        return listed(*args, **keys)

    log.aborted_transactions = changed  # type: ignore[method-assign, assignment]
    if change == "cut":
        with pytest.raises(OffsetNotAvailableError):
            log.read_committed(0, 1 << 20, 4)
        return
    result = log.read_committed(0, 1 << 20, 4)
    aborted = [(each.producer_id, each.first_offset) for each in result.aborted]
    assert committed_values(result.records, 0, aborted) == [(2, b"8:0")]


def test_a_cut_opens_a_transaction_again_whose_producer_has_expired() -> None:
    _, directory, log = begun(LogConfig())
    append_to(log, transactional(7, 0))
    append_to(log, marker(7, COMMIT))
    log.flush()
    log.producers.expire(1e15, 0)
    assert len(log.producers) == 0
    directory.truncate(log, 1)
    append_to(log, marker(7, ABORT))
    assert [tuple(each) for each in log.aborted_transactions(0, 2)] == [(7, 0, 1, 2)]


def work(fs: CrashingFileSystem, transactions: Transactions) -> None:
    """Appends, rolls, a cut, a clean stop."""
    directory = open_directory(fs, TINY)
    log = directory.logs.get(ORDERS) or directory.create(ORDERS, TOPIC_ID, TINY)
    for turn in range(14):
        transactions.write(log)
        log.producers.committed_end = max(log.flushed_end - 3, 0)
        if turn % 3 == 0:
            log.flush()
        if turn == 7:
            directory.write_recovery_points()
        if turn == 9:
            directory.truncate(log, max(log.flushed_end - 3, 0))
            transactions.cut(log.log_end_offset)
    directory.close()


def run_until(stop_at: int | None, seed: int) -> tuple[CrashingFileSystem, bool]:
    fs = formatted()
    transactions = Transactions(random.Random(seed), ids=3)
    if stop_at is not None:
        fs.crash_at(fs.operations + stop_at)
    try:
        work(fs, transactions)
        work(fs, transactions)
    except SimulatedCrash:
        return fs, True
    return fs, False


def batches_of(log: PartitionLog) -> Transactions:
    """The real contents of the log."""
    found = Transactions(random.Random(1))
    found.written = list(_written(log))
    return found


def _written(log: PartitionLog) -> Iterator[Written]:
    for segment in log.segments:
        for position, header in segment.places(0, segment.size):
            kind = None
            if header.is_control:
                (record,) = decode_batch(segment.log.pread(header.size, position))
                kind = int.from_bytes((record.key or b"")[2:4], "big")
            yield Written(header.base_offset, header.next_offset, header.producer_id, header.is_transactional, kind)


@pytest.mark.parametrize("loss", list(Loss))
def test_a_crash_at_any_operation_leaves_the_answers_of_the_batches_left(loss: Loss, rng: random.Random) -> None:
    stop_at, crashed = 0, True
    while crashed:
        fs, crashed = run_until(stop_at, 4)
        fs.crash(rng, loss)
        directory = open_directory(fs, TINY)
        assert not directory.quarantined
        if directory.logs:
            log = log_of(directory)
            left = batches_of(log)
            left.check(log)
            directory.close()
            assert txn_files(fs) == expected_files(left, log_of(open_directory(fs, TINY))), (stop_at, loss)
        stop_at += 3 if loss in (Loss.ALL, Loss.NONE) else 7
    assert stop_at > 100


# ---------------------------------------------------------------------------------------------- upkeep


def test_deleted_segments_take_their_indexes_along_and_late_readers_get_an_error() -> None:
    fs, directory, log, transactions = filled(9, 8)
    log.flush()
    assert txn_files(fs)
    start = log.segments[4].base_offset
    directory.delete_records(log, start)
    assert all(base >= start for base in txn_files(fs))
    transactions.check(log)
    with pytest.raises(OffsetOutOfRangeError, match="deleted during the read"):
        log.aborted_transactions(start - 1, start)
    directory.close()
    transactions.check(log_of(open_directory(fs, TINY)))


def test_a_transaction_whose_records_were_deleted_holds_the_stable_offset_at_the_start() -> None:
    _, directory, log = begun(TINY)
    append_to(log, transactional(7, 0, 2))
    append_to(log, transactional(8, 0, 2))
    append_to(log, marker(8, COMMIT))
    directory.delete_records(log, 3)
    assert log.last_stable_offset(5) == 3
    append_to(log, marker(7, ABORT))
    assert log.last_stable_offset(6) == 6


def test_a_log_that_is_moved_takes_its_indexes_along() -> None:
    fs, _, log, transactions = filled(10)
    fs.mkdir("/other")
    copy = LogCopy(fs, log, "/other", move_id=uuid.UUID(int=1), pace=Pace(ManualClock(NOW_MS), math.inf))
    copy.begin()
    copy.catch_up()
    transactions.write(log, 3)
    copy.finish()
    moved = PartitionLog.open(
        fs, copy.path, ORDERS, TINY, clock=ManualClock(NOW_MS), recovery_point=log.log_end_offset, clean=True,
        high_watermark=0,
    )  # fmt: skip
    transactions.check(moved)


def test_a_dump_shows_the_entries_and_both_tools_name_what_is_wrong() -> None:
    fs, directory, log, transactions = filled(13)
    directory.close()
    lines = [line for line in dump(log.directory, fs=fs) if isinstance(line, AbortedLine)]
    found = [(line.producer_id, line.first_offset, line.last_offset, line.last_stable_offset) for line in lines]
    assert sorted(found, key=lambda each: each[2]) == aborted_of(transactions.written, log.log_end_offset)
    assert not [line for line in verify(ROOT, fs=fs) if isinstance(line, Problem)]
    # The last segment's index may lag behind its log while the broker runs.
    base, sound = next((base, data) for base, data in txn_files(fs).items() if base < max(map(int, bases_of(fs))))
    path = f"{log.directory}/{base:020d}.txnindex"
    for wrong, what in (
        (sound[:-1], "whole number"),
        (sound[:25] + bytes([sound[25] ^ 1]) + sound[26:], "no ABORT marker"),
        (sound[:17] + bytes([sound[17] + 1]) + sound[18:], "begins at"),
        (sound[:-34], "has no entry"),
        (b"", "empty"),
    ):
        if wrong or what == "empty":
            fs.replace(path, wrong)
        else:
            fs.unlink(path)
        problems = [line for line in verify(ROOT, fs=fs) if isinstance(line, Problem)]
        assert {problem.path for problem in problems} == {path}
        assert what in problems[0].what
        assert isinstance(problems[0], Note) == (what == "empty")
