"""If a guard of the cleaner is removed, the model test fails within a few histories."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headrace_core.errors import HeadraceError
from headrace_core.log import swap
from headrace_core.log.compaction import cleaner, transactions
from headrace_core.log.compaction.cleaner import CleaningReport
from headrace_core.log.compaction.horizon import Verdict
from headrace_core.log.compaction.manager import CleanerManager
from headrace_core.log.compaction.transactions import TransactionHistory, TransactionJudge
from headrace_core.log.files import FileSystem
from headrace_core.log.partition_log import PartitionLog
from headrace_core.log.segment import LOG_SUFFIX, segment_name
from headrace_core.records import ABORT, BatchHeader
from tests.worlds.compaction_world import Counts, run_history

#: Numbers of the random histories to try when the recorded history of a mutant no longer detects the mutant.
HISTORIES = range(60)


def markers_go_with_their_data(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-8351, 13727, 14055: an ABORT marker is removed at once, while a header of its transaction may stay."""
    judge = TransactionJudge.judge

    def hasty(self: TransactionJudge, header: BatchHeader, control_type: int) -> int:
        verdict = judge(self, header, control_type)
        return int(Verdict.DISCARD | Verdict.OF_NOTHING) if control_type == ABORT else verdict

    patch.setattr(TransactionJudge, "judge", hasty)


def aborted_records_stay(patch: pytest.MonkeyPatch) -> None:
    """An aborted record counts as a key's latest value."""
    patch.setattr(TransactionHistory, "observe", lambda self, header, control_type: None)


def aborts_from_before_the_dirty_part_count(patch: pytest.MonkeyPatch) -> None:
    """A pass that begins after an ABORT marker treats the producer's next transaction as aborted (a former bug of
    Headrace)."""
    init = TransactionJudge.__init__

    def forgetful(self: TransactionJudge, aborted: Iterable[transactions.AbortedTransaction], now_ms: int) -> None:
        init(self, [entry._replace(last_offset=2**62) for entry in aborted], now_ms)

    patch.setattr(TransactionJudge, "__init__", forgetful)


def producers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Empty batches are removed, and so the last sequence numbers are lost."""
    clean = cleaner.Cleaner.clean

    def clean_without(self: cleaner.Cleaner, *args: object, **options: object) -> CleaningReport:
        return clean(self, *args, **(options | {"producers": {}}))  # type: ignore[arg-type]

    patch.setattr(cleaner.Cleaner, "clean", clean_without)


def tombstones_go_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleaner, "horizon_from", lambda now_ms, delete_retention_ms: now_ms)


def the_stable_offset_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Records of an open transaction replace older records. If the transaction is aborted later, the older records and
    the records of the transaction are lost."""
    plan = CleanerManager.plan

    def reckless(self: CleanerManager, *args: object, **options: object) -> object:
        return plan(self, *args, **(options | {"stable_offset_of": lambda log: log.log_end_offset}))  # type: ignore[arg-type]

    patch.setattr(CleanerManager, "plan", reckless)
    patch.setattr(TransactionHistory, "first_open_offset", None)


def the_log_takes_its_name_first(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-12520: the new segment has its final name, the process crashes, and the replaced segments return."""
    finish = swap.finish_swap

    def hasty(fs: FileSystem, directory: str, base_offset: int, replaced: Iterable[int]) -> None:
        path = f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}"
        fs.rename(path + swap.SWAP, path)
        fs.sync_directory(directory)
        fs.rename(path, path + swap.SWAP)
        finish(fs, directory, base_offset, replaced)

    patch.setattr(cleaner, "finish_swap", hasty)


def nothing_is_finished_at_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("headrace_core.log.opening.finish_swaps", lambda fs, directory: [])


def readers_find_the_old_places(patch: pytest.MonkeyPatch) -> None:
    """A replaced segment stays in the log's list of segments."""
    patch.setattr(PartitionLog, "replace_segments", lambda self, old, new: None)


#: Each mutant with the recorded number of a history in which a check detects the mutant. If the recorded number of a
#: history is out of date, the test of the mutant runs for fifteen seconds longer.
MUTANTS = {
    markers_go_with_their_data: 16,
    aborted_records_stay: 16,
    aborts_from_before_the_dirty_part_count: 101,
    producers_are_forgotten: 47,
    tombstones_go_at_once: 47,
    the_stable_offset_is_not_asked: 16,
    the_log_takes_its_name_first: 16,
    nothing_is_finished_at_open: 16,
    readers_find_the_old_places: 16,
}


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_cleaner_without_the_guard_is_found_out(
    mutant: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    mutant(monkeypatch)  # type: ignore[operator]
    for history in (MUTANTS[mutant], *HISTORIES):  # type: ignore[index]
        try:
            run_history(history, Counts())
        except (AssertionError, HeadraceError, OSError) as error:
            print(f"found out in history {history}: {str(error)[:200]}")
            return
    pytest.fail(f"{mutant.__name__} survived {len(HISTORIES)} histories and that which found it before")  # type: ignore[attr-defined]
