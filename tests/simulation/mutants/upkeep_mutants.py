"""Mutants of log starts, retention and compaction, and of the writer turns, epochs and high watermarks on which they
depend. Each mutant has one guard removed. The mutants run in the brokers' half. ``hard``: how records are deleted in a
mutant's schedules (``broker_plan.UPKEEP``).
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import Any

from headrace_broker.leader_replica import LeaderReplica
from headrace_broker.partition.follower import PartitionFollower
from headrace_broker.partition.leader import PartitionLeader
from headrace_broker.partition_table import PartitionTable
from headrace_broker.upkeep.cleaners import Cleaners
from headrace_core.config import LONG_MAX
from headrace_core.log import partition_log, retention
from headrace_core.log.compaction.cleaner import Cleaner, _Round
from headrace_core.log.directory import LOG_STARTS, LogDirectory
from headrace_core.log.epochs import LeaderEpochs
from headrace_core.log.partition_log import PartitionLog
from headrace_core.log.turns import Turn
from headrace_core.log.writer import DirectoryWriter
from headrace_core.types import NO_EPOCH
from tests.simulation.mutants.mutant import Mutant, Patch

REPLICAS = "replicas"

# -- retention and log starts ------------------------------------------------------------------------------------------


def _one_segment_more(segments: Any, config: Any, **given: Any) -> Any:
    """Deletes while the log is larger than the limit, instead of while it stays larger than the limit without the
    deleted part."""
    limit = config.retention_bytes
    if limit is not None and segments:
        config = replace(config, retention_bytes=max(limit - segments[0].size + 1, 0))
    return retention.expired(segments, config, **given)


def _whatever_is_committed(segments: Any, config: Any, *, high_watermark: int, **given: Any) -> Any:
    return retention.expired(segments, config, high_watermark=LONG_MAX, **given)


async def _delete_what_is_not_committed(self: LeaderReplica, before_offset: int) -> None:
    directory, log = self._writer.directory, self.log
    before = min(before_offset, log.log_end_offset)
    await asyncio.shield(self._writer.run(functools.partial(directory.delete_records, log, before), log=log))
    self.leader.advance_log_start(min(log.log_start_offset, self.leader.high_watermark))


_write = LogDirectory._write


def _log_starts_in_memory(self: LogDirectory, name: str, offsets: Any) -> None:
    if name != LOG_STARTS or not offsets:  # (the file of the directory's first log exists, and is empty)
        _write(self, name, offsets)


def _own_log_start(self: PartitionFollower) -> int:
    return self.log_start


def _wait_for_nobody(self: PartitionLeader, offset: int, waiter: Any) -> None:
    waiter(None)


def _forgets_who_has_not_joined(self: PartitionLeader) -> int:
    return min((self.log_start, *(each.log_start for each in self.progress if each.is_joined)))


def _leaders_log_start(self: PartitionLeader) -> int:
    return self.log_start


# -- compaction --------------------------------------------------------------------------------------------------------


def _to_the_end(self: Cleaners, directory: LogDirectory, logs: Any) -> Any:
    return directory.compaction.plan(logs, stable_offset_of=lambda log: log.log_end_offset, now_ms=self._clock.now_ms())


def _keep_the_map(self: Cleaner, log: Any, target: Any, *, should_stop: Any = lambda: False, **given: Any) -> Any:
    """The offset map of an earlier log is kept, so that records of this log look outdated."""
    return _Round(self, log, target, given["execute"], given["producers"], should_stop).run()


# -- high watermarks and epochs ------------------------------------------------------------------------------------


def _log_ends(self: PartitionTable) -> Any:
    return {partition: each.log.log_end_offset for partition, each in (self.led | self.followed).items()}


_begin_to_lead = PartitionLeader.__init__


def _lead_from_the_end(self: PartitionLeader, partition: Any, **given: Any) -> None:
    _begin_to_lead(self, partition, **(given | {"high_watermark": given["log_end"]}))


_advanced, _learn_offsets = PartitionFollower.advanced, PartitionFollower._learn_offsets


def _what_it_wrote_is_committed(self: PartitionFollower, *ends: int) -> None:
    _advanced(self, *ends)
    if self._leader_high_watermark > 0:
        self.high_watermark = max(self.high_watermark, self.log_end)


def _what_it_has_is_committed(self: PartitionFollower, *of_the_leader: int) -> None:
    _learn_offsets(self, *of_the_leader)
    if self._leader_high_watermark > 0:
        self.high_watermark = max(self.high_watermark, self.log_end)


def _keep_epochs(self: LeaderEpochs, end_offset: int, last_epoch: int = NO_EPOCH) -> None:
    return


_restart = LogDirectory.restart


def _restart_without_producers(self: LogDirectory, log: PartitionLog, offset: int, producers: bytes = b"") -> None:
    _restart(self, log, offset)


_assign = LeaderEpochs.assign


def _epochs_begin_late(self: LeaderEpochs, epoch: int, start_offset: int) -> None:
    _assign(self, epoch, start_offset + 1)


# -- turns of the writer -----------------------------------------------------------------------------------------------


_write_turn = DirectoryWriter._write


def _answer_before_it_is_forced(self: DirectoryWriter, turn: Turn) -> None:
    _write_turn(self, turn)
    if turn.failure is None:
        for done, outcome in turn.outcomes:
            self._loop.call_soon_threadsafe(done, outcome)
        turn.outcomes = []


def _mutant(name: str, breaks: str, *patches: Patch, hard: tuple[str, ...] = (), issue: int = 17) -> Mutant:
    return Mutant(name, breaks, issue, patches, REPLICAS, faults=hard)


MUTANTS = (
    _mutant(
        "RetentionTakesOneMore",
        "retention.bytes: what stays is smaller than the limit",
        Patch(partition_log, "expired", _one_segment_more),
        hard=("retention",),
    ),
    _mutant(
        "RetentionForgetsTheMark",
        "retention deletes what is not committed",
        Patch(partition_log, "expired", _whatever_is_committed),
        hard=("retention",),
    ),
    _mutant(
        "DeletesAboveTheMark",
        "KIP-107: DeleteRecords above the high watermark",
        Patch(LeaderReplica, "delete_records", _delete_what_is_not_committed),
        hard=("deletes",),
    ),
    _mutant(
        "LogStartInMemoryOnly",
        "KIP-107: records that were deleted are back after a restart",
        Patch(LogDirectory, "_write", _log_starts_in_memory),
        hard=("deletes",),
    ),
    _mutant(
        "FollowersDeleteNothing",
        "KIP-107: a follower keeps what its leader has deleted",
        Patch(PartitionFollower, "wanted_log_start", property(_own_log_start)),
        hard=("deletes",),
    ),
    _mutant(
        "DeletesWaitForNobody",
        "KIP-107: DeleteRecords is answered before the replicas have deleted",
        Patch(PartitionLeader, "when_deleted", _wait_for_nobody),
        hard=("deletes",),
    ),
    _mutant(
        "LowWatermarkForgetsMembers",
        "KIP-107: the low watermark leaves out members of the in-sync set that have not joined yet",
        Patch(PartitionLeader, "low_watermark", property(_forgets_who_has_not_joined)),
        hard=("deletes",),
    ),
    _mutant(
        "LowWatermarkIsTheLeaders",
        "KIP-107: the low watermark leaves the followers out",
        Patch(PartitionLeader, "low_watermark", property(_leaders_log_start)),
        hard=("deletes",),
    ),
    _mutant(
        "CompactsWhatIsNotCommitted",
        "KIP-58: a record that is cut off makes a committed one superfluous",
        Patch(Cleaners, "_targets", _to_the_end),
        hard=("compaction",),
    ),
    _mutant(
        "CompactsWithAnOldMap",
        "compaction: keys of one log delete records of another",
        Patch(Cleaner, "clean", _keep_the_map),
        hard=("compaction",),
    ),
    _mutant(
        "CheckpointsTheLogEnd",
        "KIP-101: what is not committed counts as committed after a restart",
        Patch(PartitionTable, "high_watermarks", _log_ends),
    ),
    _mutant(
        "LeadsFromItsEnd",
        "a new leader takes all that it has for committed",
        Patch(PartitionLeader, "__init__", _lead_from_the_end),
    ),
    _mutant(
        "FollowersOvertakeTheMark",
        "a follower's high watermark is ahead of its leader's",
        Patch(PartitionFollower, "advanced", _what_it_wrote_is_committed),
        Patch(PartitionFollower, "_learn_offsets", _what_it_has_is_committed),
    ),
    _mutant(
        "CutsKeepTheirEpochs",
        "KIP-101: epochs of records that were truncated stay",
        Patch(LeaderEpochs, "truncate_from_end", _keep_epochs),
    ),
    _mutant(
        "RestartsForgetProducers",
        "idempotence: a follower that begins again at the leader's start does not know what was sent before",
        Patch(LogDirectory, "restart", _restart_without_producers),
        hard=("deletes",),
    ),
    _mutant(
        "EpochsBeginLate",
        "KIP-101: an epoch is said to begin behind its first record",
        Patch(LeaderEpochs, "assign", _epochs_begin_late),
    ),
    _mutant(
        "AnswersBeforeItForces",
        "group commit: acks=1 is told before its record is on the disk",
        Patch(DirectoryWriter, "_write", _answer_before_it_is_forced),
    ),
)
