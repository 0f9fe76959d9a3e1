"""Which markers and which transactional batches a leader appends."""

from __future__ import annotations

import errno
import struct

import pytest

from headrace_core.errors import (
    DiskFullError,
    HeadraceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
)
from headrace_core.log import Append, AppendInfo, LogConfig, PartitionLog
from headrace_core.log.producer_state import ProducerEntry
from headrace_core.log.transactions import (
    Marker,
    TransactionalAppend,
    check_in_transaction,
    marker_batch,
    must_append,
)
from headrace_core.records import decode_batch, read_header
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.log_world import NOW_MS, ORDERS, TOPIC_ID, formatted, open_directory, transactional

PRODUCER = 7
EPOCH = 5
VERIFIED, UNVERIFIED = TransactionalAppend(2, True), TransactionalAppend(2, False)


def entry(*, is_open: bool, epoch: int = EPOCH, coordinator_epoch: int = 3) -> ProducerEntry:
    return ProducerEntry(
        PRODUCER, epoch, coordinator_epoch=coordinator_epoch, transaction_first_offset=10 if is_open else None
    )


def end(epoch: int, version: int = 2, *, coordinator_epoch: int = 3, commit: bool = True) -> Marker:
    return Marker(PRODUCER, epoch, commit, coordinator_epoch, version)


APPEND, DONE, REFUSE = "append", "done", "refuse"


@pytest.mark.parametrize(
    ("epoch", "is_open", "version", "verdict"),
    [
        (EPOCH + 1, True, 2, APPEND),
        (EPOCH + 1, False, 2, APPEND),
        (EPOCH + 9, True, 2, APPEND),
        (EPOCH, False, 2, DONE),
        (EPOCH, True, 2, REFUSE),
        (EPOCH - 1, True, 2, REFUSE),
        (EPOCH - 1, False, 2, REFUSE),
        (EPOCH + 1, True, 1, APPEND),
        (EPOCH + 1, False, 1, APPEND),
        (EPOCH, True, 1, APPEND),
        (EPOCH, False, 1, DONE),
        (EPOCH - 1, True, 1, REFUSE),
        (EPOCH - 1, False, 1, REFUSE),
    ],
)
def test_a_marker_is_judged_by_its_epoch_and_version(epoch: int, is_open: bool, version: int, verdict: str) -> None:
    judged = entry(is_open=is_open)
    if verdict == REFUSE:
        with pytest.raises(InvalidProducerEpochError, match=f"epoch {epoch} is (out of date|late)"):
            must_append(end(epoch, version), judged, ORDERS)
        return
    assert must_append(end(epoch, version), judged, ORDERS) is (verdict == APPEND)
    with pytest.raises(TransactionCoordinatorFencedError, match="coordinator epoch 2 is out of date"):
        must_append(end(epoch, version, coordinator_epoch=2), judged, ORDERS)
    is_needed = verdict == APPEND or version == 1  # version 1: the log must learn the coordinator epoch
    assert must_append(end(epoch, version, coordinator_epoch=4), judged, ORDERS) is is_needed


def test_a_marker_of_an_unknown_producer_is_appended() -> None:
    for version in (1, 2):
        assert must_append(end(0, version, coordinator_epoch=0), None, ORDERS)


def test_a_marker_has_kafkas_bytes() -> None:
    batch = marker_batch(end(EPOCH, commit=False, coordinator_epoch=9), NOW_MS)
    header = read_header(batch)
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER, EPOCH, -1)
    (record,) = decode_batch(batch)
    assert (record.key, record.value) == (struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 9))
    (record,) = decode_batch(marker_batch(end(EPOCH), NOW_MS))
    assert record.key == struct.pack(">hh", 0, 1)


def check(append: TransactionalAppend, known: ProducerEntry | None, *, epoch: int = EPOCH, sequence: int = 0) -> None:
    check_in_transaction(read_header(transactional(PRODUCER, sequence, epoch=epoch)), known, append, ORDERS)


def test_a_batch_of_the_open_transaction_needs_no_verification() -> None:
    check(UNVERIFIED, entry(is_open=True), sequence=4)


def test_a_batch_behind_the_marker_is_refused_without_a_verification() -> None:
    for known in (None, entry(is_open=False), entry(is_open=False, epoch=EPOCH - 1)):
        with pytest.raises(TransactionAbortableError, match="not part of an open transaction"):
            check(UNVERIFIED, known)
        with pytest.raises(InvalidTxnStateError, match="not part of an open transaction"):
            check(TransactionalAppend(1, False), known)
        check(VERIFIED, known)


def test_no_batch_enters_where_the_former_epoch_is_open() -> None:
    for append in (VERIFIED, UNVERIFIED):
        with pytest.raises(TransactionAbortableError, match="has no marker in the partition yet"):
            check(append, entry(is_open=True, epoch=EPOCH - 1))


def test_an_unknown_producer_begins_with_sequence_0_under_version_2() -> None:
    with pytest.raises(OutOfOrderSequenceNumberError, match="sequence 3, but must begin with 0"):
        check(VERIFIED, None, sequence=3)
    check(TransactionalAppend(1, True), None, sequence=3)


class Log:
    """A log on a simulated disk; appends go through the same method as a leader's."""

    def __init__(self, fs: CrashingFileSystem | None = None, config: LogConfig | None = None) -> None:
        self.fs = fs or formatted()
        self.directory = open_directory(self.fs, config)
        self.log: PartitionLog = self.directory.logs.get(ORDERS) or self.directory.create(
            ORDERS, TOPIC_ID, config or LogConfig()
        )

    def end(self, marker: Marker) -> AppendInfo | HeadraceError:
        return self._append(marker_batch(marker, NOW_MS), marker)

    def write(self, sequence: int, *, epoch: int, append: TransactionalAppend) -> AppendInfo | HeadraceError:
        return self._append(transactional(PRODUCER, sequence, epoch=epoch), append)

    def _append(self, data: bytes, transaction: Marker | TransactionalAppend) -> AppendInfo | HeadraceError:
        append = Append(data=data, leader_epoch=0, headers=[read_header(data)], transaction=transaction)
        (outcome,) = self.log.append_many([append])
        return outcome


def appended(outcome: AppendInfo | HeadraceError) -> tuple[int, int, bool]:
    assert isinstance(outcome, AppendInfo), outcome
    return outcome.base_offset, outcome.next_offset, outcome.is_duplicate


def test_a_repeated_marker_waits_for_the_first_one_and_appends_nothing() -> None:
    it = Log()
    assert appended(it.write(0, epoch=4, append=VERIFIED)) == (0, 1, False)
    assert appended(it.write(1, epoch=4, append=UNVERIFIED)) == (1, 2, False)
    first = Append(
        data=(data := marker_batch(end(5), NOW_MS)), leader_epoch=0, headers=[read_header(data)], transaction=end(5)
    )
    again = Append(data=data, leader_epoch=0, headers=[read_header(data)], transaction=end(5))
    outcomes = it.log.append_many([first, again])
    assert [appended(each) for each in outcomes] == [(2, 3, False), (-1, 3, True)]
    assert isinstance(it.write(2, epoch=4, append=VERIFIED), InvalidProducerEpochError), "fenced by the marker"
    assert isinstance(it.write(0, epoch=5, append=UNVERIFIED), TransactionAbortableError)
    assert appended(it.write(0, epoch=5, append=VERIFIED)) == (3, 4, False)
    assert isinstance(it.end(end(5)), InvalidProducerEpochError), "a late marker must not end the next transaction"
    assert it.log.last_stable_offset(4) == 3
    assert it.log.log_end_offset == 4


def test_a_restart_keeps_what_fences_markers_and_batches() -> None:
    it = Log()
    it.write(0, epoch=4, append=VERIFIED)
    it.end(end(5, coordinator_epoch=3))
    it.write(0, epoch=5, append=VERIFIED)
    it.log.flush()
    it.fs.crash()
    after = Log(it.fs)
    assert after.log.log_end_offset == 3
    assert isinstance(after.end(end(5)), InvalidProducerEpochError)
    assert isinstance(after.end(end(6, coordinator_epoch=2)), TransactionCoordinatorFencedError)
    assert appended(after.write(1, epoch=5, append=UNVERIFIED)) == (3, 4, False)
    assert appended(after.end(end(6))) == (4, 5, False)
    assert appended(after.end(end(6))) == (-1, 5, True)


def test_a_marker_is_appended_to_topics_with_small_batches_or_a_codec() -> None:
    it = Log(config=LogConfig(message_bytes_max=10, compression_type="lz4"))
    assert appended(it.end(end(1))) == (0, 1, False)
    (found,) = [header for _, header in it.log.active.places(0, it.log.active.size)]
    assert found.attributes == read_header(marker_batch(end(1), NOW_MS)).attributes


def test_a_batch_outside_of_the_open_transaction_of_its_producer_is_refused() -> None:
    it = Log()
    it.write(0, epoch=4, append=VERIFIED)
    plain = bytearray(transactional(PRODUCER, 1, epoch=4))
    header = read_header(bytes(plain))
    outside = header._replace(attributes=0)
    (outcome,) = it.log.append_many([Append(data=bytes(plain), leader_epoch=0, headers=[outside])])
    assert isinstance(outcome, InvalidTxnStateError), outcome
    assert it.log.log_end_offset == 1


def test_a_marker_that_a_full_disk_refused_fences_no_coordinator() -> None:
    it = Log()
    it.write(0, epoch=4, append=VERIFIED)
    it.log.flush()
    it.fs.fail("write", errno.ENOSPC, path_ends=".log")
    assert isinstance(it.end(end(5, coordinator_epoch=9)), DiskFullError)
    assert appended(it.end(end(5, coordinator_epoch=3))) == (1, 2, False)
