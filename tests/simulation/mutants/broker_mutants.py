"""Mutants of replication and idempotence, each with one guard removed. The brokers' half of the simulator must detect
each mutant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_broker import roles
from headrace_broker.leader_replica import LeaderReplica
from headrace_broker.partition import isr, push_stream
from headrace_broker.partition.follower import FollowerState, LogsMatch, PartitionFollower, Truncate
from headrace_broker.partition.healing import HealingReplica, Step, next_step
from headrace_broker.partition.isr import InSyncSet
from headrace_broker.partition.leader import PartitionLeader
from headrace_broker.partition.matching import MATCHES, Match, match
from headrace_broker.partition_table import PartitionTable
from headrace_broker.replication.follower_replica import FollowerReplica
from headrace_controller.cluster import brokers, elections
from headrace_controller.cluster.elections import Electorate
from headrace_core.errors import HeadraceError
from headrace_core.log import opening, partition_log
from headrace_core.log.group import Group
from headrace_core.log.partition_log import PartitionLog
from headrace_core.log.producer_state import Check, ProducerTable
from headrace_core.metadata import PartitionImage
from headrace_core.testing.clock import EPOCH_MS
from headrace_core.types import NO_LEADER
from tests.simulation import broker_clients
from tests.simulation.mutants.mutant import Mutant, Patch
from tests.simulation.mutants.shell_mutants import scan_and_trust_the_cache

REPLICAS = "replicas"

# -- where logs part ---------------------------------------------------------------------------------------------------

_joined = PartitionFollower.joined


def _cut_to_the_high_watermark(self: PartitionFollower, answer: Any, end_of: Any) -> Any:
    outcome = _joined(self, answer, end_of)
    if isinstance(outcome, LogsMatch) and self.high_watermark < self.log_end:
        self._end(FollowerState.TRUNCATING)
        return Truncate(self.high_watermark, self.last_epoch)
    return outcome


def _match_anything(**given: Any) -> Match:
    return MATCHES


def _trust_the_end(**given: Any) -> Match:
    """An epoch that the leader never had is treated as if it ended at the log end."""
    found = match(**given)
    if found.diverging is not None and found.diverging.epoch < given["follower_epoch"]:
        return MATCHES if given["follower_end"] <= given["log_end"] else found
    return found


def _check_no_epoch(self: PartitionLeader | FollowerReplica, current_leader_epoch: int) -> None:
    return


# -- who counts --------------------------------------------------------------------------------------------------------


def _maximal_is_what_is_asked_for(self: InSyncSet) -> None:
    self.maximal = frozenset(self.committed if self.asked is None else self.asked.members)


def _maximal_is_what_is_committed(self: InSyncSet) -> None:
    self.maximal = frozenset(self.committed)


def _is_given(self: PartitionLeader, value: Any) -> None:
    """Replaces the setting of an attribute."""


def _all_is_promised(self: PartitionLeader) -> int:
    return self.log_end


def _all_is_durable(self: PartitionLog) -> int:
    return self.log_end_offset


_logs_advanced = PartitionTable.logs_advanced


def _followers_look_at_once(self: PartitionTable, logs: Any, sent: Any = None) -> None:
    """Lets followers report at once: usually they wait for the end of the writer's turn, when all data is fsynced. The
    wait for the end of the turn would hide that followers report too much."""
    for log in logs:
        followed = self.followed.get(log.topic_partition)
        if followed is not None and followed.log is log:
            followed.log_advanced()
    _logs_advanced(self, logs, sent)


def _never_too_few(self: PartitionLeader) -> bool:
    return False


def _latest_is_always_known(self: PartitionLeader) -> None:
    return


_in_sync_epoch = InSyncSet._in_sync_epoch


def _join_below_the_epoch(
    self: InSyncSet, follower: Any, now_ms: int, broker_epoch_of: Any, leader_end: int, mark: int
) -> Any:
    start, self.epoch_start = self.epoch_start, 0
    try:
        return _in_sync_epoch(self, follower, now_ms, broker_epoch_of, leader_end, mark)
    finally:
        self.epoch_start = start


def _join_below_the_high_watermark(
    self: InSyncSet, follower: Any, now_ms: int, broker_epoch_of: Any, leader_end: int, mark: int
) -> Any:
    return _in_sync_epoch(self, follower, now_ms, broker_epoch_of, leader_end, 0)


def _join_in_any_life(
    self: InSyncSet, follower: Any, now_ms: int, broker_epoch_of: Any, leader_end: int, mark: int
) -> Any:
    """Counts an acknowledgement of a follower's earlier process as if the present process had sent it."""
    broker_epoch = broker_epoch_of(follower.broker_id)
    if follower.broker_id in self.committed or broker_epoch is None:
        return _in_sync_epoch(self, follower, now_ms, broker_epoch_of, leader_end, mark)
    return broker_epoch if follower.durable_end >= max(mark, self.epoch_start) else None


def _believe_any_refusal(self: InSyncSet, code: str, *, retriable: bool, now_ms: int) -> None:
    """A lost answer is treated as a refusal."""
    self.asked = None
    self._next_ms = now_ms + 20
    self._set_maximal()


_refused = InSyncSet.refused


def _an_ineligible_replica_ends_the_question(self: InSyncSet, code: str, *, retriable: bool, now_ms: int) -> None:
    """An INELIGIBLE_REPLICA refusal counts as final, although an earlier attempt may still be granted."""
    if code == "INELIGIBLE_REPLICA":
        self.is_uncertain = False
    _refused(self, code, retriable=retriable, now_ms=now_ms)


def _is_certain(self: PartitionLeader) -> bool:
    """The broker always tells the controllers that its in-sync set is certain."""
    return False


def _count_one_attempt(self: InSyncSet, code: str, *, retriable: bool, now_ms: int) -> None:
    """The last answer counts for all attempts, as if the attempts were retries inside of one call."""
    if code in isr._NOT_DONE:
        self.is_uncertain = False
    _refused(self, code, retriable=retriable, now_ms=now_ms)


# -- replicas that start empty -----------------------------------------------------------------------------------------


def _make_before_it_is_known(self: roles.Roles, each: Any) -> bool:
    """Neither the leader nor the controllers learn that a replica lost its records. (It is harmless that ``next_step``
    returns MAKE too soon: only a replica with metadata calls it again.)"""
    if each.state.leader in (NO_LEADER, self._broker_id) or next_step(each.state, self._broker_id) is Step.KEEP:
        return False
    self._healing.setdefault(each.partition, HealingReplica())
    return True


# -- idempotence -------------------------------------------------------------------------------------------------------

_check = ProducerTable.check


def _all_is_next(self: ProducerTable, header: Any) -> Any:
    return _check(self, header)._replace(check=Check.NEXT)


def _gaps_are_next(self: ProducerTable, header: Any) -> Any:
    checked = _check(self, header)
    return checked._replace(check=Check.NEXT) if checked.check is Check.OUT_OF_ORDER else checked


def _expired_by_record_time(self: ProducerTable, now_ms: float, expiration_ms: int) -> list[int]:
    """Producers expire by the timestamp of their last record, as in Kafka."""
    return [entry.producer_id for entry in self if entry.last_timestamp_ms <= EPOCH_MS - expiration_ms]


def _expire_by_record_time(self: ProducerTable, now_ms: float, expiration_ms: int, candidates: Any = None) -> list[int]:
    found = _expired_by_record_time(self, now_ms, expiration_ms)
    for producer_id in found:
        del self._entries[producer_id]
    return found


_cut_at = PartitionLog._cut_at


def _keep_the_table(self: PartitionLog, offset: int, last_epoch: int) -> None:
    table = self.producers
    _cut_at(self, offset, last_epoch)
    table.next_offset = self.log_end_offset
    self.producers = table


_load = partition_log.load_producers


def _load_no_table(fs: Any, directory: str, segments: Any, end: int, **given: Any) -> Any:
    _, snapshots, notes = _load(fs, directory, segments, end, **given)
    return ProducerTable(next_offset=end), snapshots, notes


_add_part = Group._add_part


def _replicas_keep_no_table(self: Group, part: Any) -> None:
    log = self._log
    table, log.producers = log.producers, ProducerTable(next_offset=log.producers.next_offset)
    try:
        _add_part(self, part)
    finally:
        part.remembered.clear()
        log.producers = table


_appended = LeaderReplica._appended


def _all_are_able(self: Electorate, partition: PartitionImage, candidates: Iterable[int]) -> tuple[int, ...]:
    return tuple(candidates)


def _answer_duplicates_at_once(self: LeaderReplica, append: Any, outcome: Any) -> None:
    is_duplicate = not isinstance(outcome, HeadraceError) and outcome.is_duplicate
    append.committed = append.committed and not is_duplicate
    _appended(self, append, outcome)


def _mutant(name: str, breaks: str, *patches: Patch) -> Mutant:
    return Mutant(name, breaks, 6, patches, REPLICAS)


MUTANTS = (
    _mutant(
        "TrustsOlderCopies",
        "KIP-966: a broker that returns with an older copy of its disk has not all records of its last registration",
        Patch(brokers, "_outdated", lambda before, request: ()),
    ),
    _mutant(
        "CutsWhatWasCommitted",
        "a leader with a copy of its disk in the present epoch lacks committed records; its followers have them",
        Patch(PartitionFollower, "_leader_lacks", lambda self, answer, end_of: False),
    ),
    _mutant(
        "KeepsLeadersThatLackRecords",
        "a follower refuses to truncate committed records, and nobody elects another leader",
        Patch(elections, "without_lacking_leaders", lambda electorate, broker_id, reported: iter(())),
    ),
    _mutant(
        "CutsToTheHighWatermark",
        "KIP-101: truncating to the local high watermark loses or diverges data",
        Patch(PartitionFollower, "joined", _cut_to_the_high_watermark),
    ),
    _mutant(
        "ComparesNoLogs", "KIP-101: a follower's tail diverges unnoticed", Patch(push_stream, "match", _match_anything)
    ),
    _mutant(
        "TrustsUnknownEpochs", "KIP-279: fast double failover diverges", Patch(push_stream, "match", _trust_the_end)
    ),
    _mutant(
        "FencesNoReader",
        "KIP-320: stale-epoch fetch, undetected truncation",
        Patch(push_stream, "check_epoch", _check_no_epoch),
        Patch(broker_clients, "check_epoch", _check_no_epoch),
    ),
    _mutant(
        "CountsAnUnconfirmedShrink",
        "KIP-497: the high watermark advances on an unconfirmed ISR shrink",
        Patch(InSyncSet, "_set_maximal", _maximal_is_what_is_asked_for),
    ),
    _mutant(
        "ForgetsWhomItAskedFor",
        "KIP-497: an expansion whose answer is out counts for nothing",
        Patch(InSyncSet, "_set_maximal", _maximal_is_what_is_committed),
    ),
    _mutant(
        "TakesSilenceForNo",
        "KIP-497: an AlterPartition without an answer is taken for one that was refused",
        Patch(InSyncSet, "refused", _believe_any_refusal),
    ),
    _mutant(
        "BelievesAnIneligibleReplica",
        "KIP-497: a refusal as INELIGIBLE_REPLICA is taken for one of every earlier attempt",
        Patch(InSyncSet, "refused", _an_ineligible_replica_ends_the_question),
        Patch(PartitionLeader, "is_isr_uncertain", property(_is_certain)),
    ),
    _mutant(
        "EndsNoPartitionEpoch",
        "KIP-497: an uncertain leader is refused for ever, and nothing ends its uncertainty",
        Patch(PartitionLeader, "is_isr_uncertain", property(_is_certain)),
    ),
    _mutant(
        "CountsOneAttempt",
        "KIP-497: attempts that are repeated inside one call are counted as one",
        Patch(InSyncSet, "refused", _count_one_attempt),
        Patch(PartitionLeader, "is_isr_uncertain", property(_is_certain)),
    ),
    _mutant(
        "TakesBackFormerLives",
        "KIP-903: a wiped, rebooted broker joins the ISR by what its former life had",
        Patch(InSyncSet, "_in_sync_epoch", _join_in_any_life),
    ),
    _mutant(
        "BeginsAnewUntold",
        "KIP-903: an empty log stands where a full one was, and the controllers do not know",
        Patch(roles.Roles, "_may_be_made", _make_before_it_is_known),
    ),
    _mutant(
        "CommitsBelowMinInsync",
        "KIP-966: the high watermark stands still below min.insync.replicas",
        Patch(PartitionLeader, "is_below_min_insync", property(_never_too_few, _is_given)),
    ),
    _mutant(
        "JoinsBelowTheEpoch",
        "KIP-497, KIP-966: a member of the ISR lacks what a former leader committed",
        Patch(InSyncSet, "_in_sync_epoch", _join_below_the_epoch),
    ),
    _mutant(
        "JoinsBelowTheHighWatermark",
        "KIP-497: a member of the ISR lacks what its leader committed",
        Patch(InSyncSet, "_in_sync_epoch", _join_below_the_high_watermark),
    ),
    _mutant(
        "LeaderCountsItsPageCache",
        "unflushed page cache: the leader's own end counts before it is on its disk",
        Patch(PartitionLeader, "durable_end", property(_all_is_promised, _is_given)),
    ),
    _mutant(
        "LogsTrustThePageCache",
        "fsyncgate: after a failed fsync the cache has what the disk has not, and calls it clean",
        Patch(opening, "scan", scan_and_trust_the_cache),
    ),
    _mutant(
        "FollowersCountTheirPageCache",
        "unflushed page cache: 10 bytes truncated on one node lose data cluster-wide",
        Patch(PartitionLog, "durable_end", property(_all_is_durable)),
        Patch(PartitionTable, "logs_advanced", _followers_look_at_once),
    ),
    _mutant(
        "TellsTheLatestTooSoon",
        "KIP-207: after an election the latest offset goes back",
        Patch(PartitionLeader, "check_latest_known", _latest_is_always_known),
    ),
    _mutant(
        "TakesDuplicates",
        "KIP-360, KIP-890: a delayed produce is appended twice",
        Patch(ProducerTable, "check", _all_is_next),
    ),
    _mutant(
        "TakesGaps",
        "KIP-360: a batch is appended before the one that comes before it",
        Patch(ProducerTable, "check", _gaps_are_next),
    ),
    _mutant(
        "ExpiresByRecordTime",
        "KIP-854: a producer of old events is forgotten while it writes, and its retry is appended twice",
        Patch(ProducerTable, "expired", _expired_by_record_time),
        Patch(ProducerTable, "expire", _expire_by_record_time),
    ),
    _mutant(
        "RemembersWhatWasCut",
        "idempotence: a batch that was truncated is taken for a duplicate, and acknowledged",
        Patch(PartitionLog, "_cut_at", _keep_the_table),
    ),
    _mutant(
        "ForgetsProducersAtTheStart",
        "idempotence: a restart forgets who wrote what",
        Patch(partition_log, "load_producers", _load_no_table),
    ),
    _mutant(
        "FollowersForgetProducers",
        "idempotence: a failover forgets who wrote what",
        Patch(Group, "_add_part", _replicas_keep_no_table),
    ),
    _mutant(
        "LeavesTheLeadWithAFullDisk",
        "a broker that says that it cannot lead is believed to lead well",
        Patch(Electorate, "able_of", _all_are_able),
    ),
    _mutant(
        "AnswersDuplicatesAtOnce",
        "idempotence: a duplicate of what is not committed yet is acknowledged",
        Patch(LeaderReplica, "_appended", _answer_duplicates_at_once),
    ),
)
