"""The controller's driver and storage with one guard removed."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from headrace_controller import quorum_state, snapshots, storage
from headrace_controller.applying import Applier
from headrace_controller.cluster.core import ClusterCore
from headrace_controller.quorum_controller import QuorumController
from headrace_controller.raft import Role
from headrace_controller.snapshots import SnapshotJob
from headrace_controller.storage import MetadataStorage
from headrace_controller.waiting import Decisions, Outcome
from headrace_core.log import opening
from headrace_core.log.appending import Append
from headrace_core.log.files import FileSystem
from headrace_core.log.partition_log import PartitionLog
from headrace_core.log.recovery import Scan
from tests.simulation.mutants.mutant import Mutant, Patch


def _write_carelessly(fs: FileSystem, path: str, data: bytes) -> None:
    """Overwrites a file in place, instead of writing a new file that is forced, renamed and forced again."""
    file = fs.open(path, write=True, create=True)
    file.truncate(0)
    file.pwritev([data], 0)
    file.close()


def _flush(self: PartitionLog) -> int:
    return self.log_end_offset


def _truncate(self: MetadataStorage, offset: int) -> None:
    return


def _keep_refused(self: MetadataStorage, end: int) -> None:
    return


def _open_raw(cls: type[MetadataStorage], fs: FileSystem, root: str, **how: Any) -> MetadataStorage:
    """A start on a full disk that raises a bare ENOSPC, without the cause and the remedy."""
    with patch.object(storage, "_NO_SPACE", ()):
        found: MetadataStorage = _open(cls, fs, root, **how)
        return found


_open = vars(MetadataStorage)["open"].__func__


def _append_anywhere(**given: Any) -> Append:
    return Append(**{**given, "follows": None})


def _forget_terms_in_memory(self: MetadataStorage) -> None:
    """Does not remember that the file still has the terms if a full disk has no room for a new file."""
    epochs, end = self._log.epochs, self._log.log_end_offset
    epochs.restore(each for each in epochs.entries if each.start_offset < end)


def _write_snapshot(self: SnapshotJob) -> None:
    """Does everything except the forced write."""
    file = self._fs.open(self.temporary_path, write=True, create=True)
    voters = snapshots.snapshot_voters(self.snapshot.voters)
    for piece in snapshots.encode_snapshot(self._image, voters=voters, timestamp_ms=self._timestamp_ms):
        file.pwritev([piece], self.size)
        self.size += len(piece)
    file.close()


def _keep_speculating(self: ClusterCore) -> None:
    return


def _answer_at_once(self: Decisions, applied: int, log: Any) -> list[Outcome]:
    outcomes = [Outcome(each.done, each.result) for each in self._waiting]
    self._waiting.clear()
    return outcomes


_resign = QuorumController._resign_if_deposed


def _refuse_what_was_appended(self: QuorumController) -> None:
    if self._active_term >= 0 and not self.is_active:
        self._outcomes += self._decisions.drop(self.not_controller())
    _resign(self)


_replay = Applier.replay


def _apply_all(self: Applier, offset: int, *, at_once: bool = False) -> None:
    _replay(self, max(offset, self._storage.log_end_offset), at_once=at_once)


def _lead_at_once(self: QuorumController) -> None:
    raft = self._raft
    if self.is_active or raft.role is not Role.LEADER:
        return
    self._active_term = raft.term
    self._has_caught_up = True
    self._decider.lead(self._clock.monotonic_ms())
    self._is_due = True


_scan = opening.scan


def scan_and_trust_the_cache(*given: Any, **options: Any) -> Scan:
    """Recovery that does not write the sound batches again."""
    return _scan(*given, **{**options, "accept": None})


def _mutant(name: str, breaks: str, *patches: Patch, faults: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, breaks, 5, patches, faults=faults)


MUTANTS = (
    _mutant(
        "AnswersBeforeTheDisk",
        "unflushed page cache: 10 bytes truncated on one node lose data cluster-wide",
        Patch(PartitionLog, "flush", _flush),
        faults=("power_loss",),
    ),
    _mutant(
        "VoteInThePageCache",
        "KIP-595, etcd 14370: vote and term durable before the reply",
        Patch(quorum_state, "write_file_atomically", _write_carelessly),
        faults=("power_loss",),
    ),
    _mutant(
        "RecoveryTrustsThePageCache",
        "fsyncgate: after a failed fsync the cache has what the disk has not, and calls it clean",
        Patch(opening, "scan", scan_and_trust_the_cache),
    ),
    _mutant(
        "TruncationForgotten",
        "KIP-101; Raft 5.3",
        Patch(MetadataStorage, "truncate", _truncate),
        faults=("cut_leader",),
    ),
    _mutant(
        "KeepsRefusedEntries",
        "DiskFullError: no entry was appended",
        Patch(MetadataStorage, "_take_back", _keep_refused),
        faults=("refused_term",),
    ),
    _mutant(
        "AppendsBehindARefusedEntry",
        "log matching (5.3): no entry without the one before it",
        Patch(storage, "Append", _append_anywhere),
        faults=("full_at_a_roll",),
    ),
    _mutant(
        "RawErrorAtAFullStart",
        "full disk: a start names the cause and the cure, and goes on where it can",
        Patch(MetadataStorage, "open", classmethod(_open_raw)),
        faults=("full_start",),
    ),
    _mutant(
        "RefusedTermStaysInItsFile",
        "KIP-101: the history of terms is that of the log",
        Patch(MetadataStorage, "_forget_terms_behind_the_end", _forget_terms_in_memory),
        faults=("refused_term",),
    ),
    _mutant(
        "SnapshotInThePageCache",
        "torn checkpoint: write, fsync, rename, fsync the directory",
        Patch(SnapshotJob, "_write", _write_snapshot),
        faults=("power_loss",),
    ),
    _mutant(
        "SpeculationSurvives",
        "decision 9: on resignation the speculation is dropped",
        Patch(ClusterCore, "resign", _keep_speculating),
    ),
    _mutant(
        "LeadsBeforeItKnows",
        "T 6.4, 5.4.2: active once all is applied",
        Patch(QuorumController, "_become_active_if_ready", _lead_at_once),
    ),
    _mutant("AnswersBeforeTheCommit", "promise 1; Raft 5.3", Patch(Decisions, "settle", _answer_at_once)),
    _mutant(
        "RefusesWhatMayHappen",
        "promise 2: NotController means that nothing was done",
        Patch(QuorumController, "_resign_if_deposed", _refuse_what_was_appended),
        faults=("unheard_acknowledgements",),
    ),
    _mutant("AppliesWhatIsNotCommitted", "5.4.3: only what is committed", Patch(Applier, "replay", _apply_all)),
)
