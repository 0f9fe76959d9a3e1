"""Checks of groups, shards and committed offsets, which run after every event.

A separate state machine replays the committed log record by record as it grows. The checks compare every other state
with the state of this machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.group.member import Part, Parts
from headrace_coordinator.group.groups import Groups
from headrace_coordinator.group.reconciling import Current
from headrace_coordinator.group.records import decode_key as decode_group_key
from headrace_coordinator.group.state import Group
from headrace_coordinator.offsets.codec import decode_key, decode_value
from headrace_coordinator.offsets.pending import decode_pending, decode_pending_key
from headrace_coordinator.runtime.claims import decode_claim, is_claim
from headrace_coordinator.runtime.shard import Shard, ShardState
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import RecordKind, kind_of
from headrace_core.errors import HeadraceError
from headrace_core.metadata.shards import shard_of
from tests.simulation.group_hosts import SESSION_MS
from tests.simulation.group_log import LoggedRecord, LogPartition
from tests.simulation.group_members import Attempt
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.group_members import Caller, SimMember
    from tests.simulation.group_sim_world import GroupWorld
    from tests.simulation.group_transactions import Transactor

#: Error codes with which a state machine refuses a request: nothing was written, so the request must never have an
#: effect. (Requests with other errors may have had an effect.)
DEFINITE = frozenset(
    ("UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH", "FENCED_INSTANCE_ID", "GROUP_ID_NOT_FOUND",
     "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID")
)  # fmt: skip

_OFFSETS = (RecordKind.OLD_OFFSET_COMMIT, RecordKind.OFFSET_COMMIT)


class Floor(NamedTuple):
    """The acknowledged offset of a partition when a request was sent. ``resets``: how often the offset had been reset
    before; ``long_since``: the offset one coordinator session earlier."""

    offset: int
    topic_id: bytes | None
    resets: int
    long_since: int


class Truth:
    """The state of one shard according to the committed part of its log."""

    def __init__(self, state_machine: ShardStateMachine) -> None:
        self.state_machine = state_machine
        self.batch_epoch = -1
        self.claim = (-1, -1)

    @property
    def groups(self) -> dict[str, Group]:
        return groups_of(self.state_machine)


def groups_of(state_machine: Any) -> dict[str, Group]:
    groups: Groups = state_machine._groups._groups
    return groups._state.groups


class GroupChecks:
    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self.truths = [Truth(world.new_state_machine()) for _ in range(world.plan.shards)]
        #: For every member that ever existed: the largest epoch and revision that the log has given it.
        self._given: dict[tuple[str, str], tuple[int, int]] = {}
        self._attempts: dict[str, Attempt] = {}
        self._committed: set[str] = set()
        self._refused: set[str] = set()
        #: (group, topic, partition): the last commit, of the topic with that id; how often it was reset.
        self._last: dict[tuple[str, str, int], tuple[int, bytes | None]] = {}
        self._acknowledged: dict[tuple[str, str, int], tuple[int, bytes | None]] = {}
        #: The commits since the last reset, with times: (ms, offset).
        self._acknowledged_ms: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
        self._resets: Counter[tuple[str, str, int]] = Counter()
        self._readers: dict[tuple[str, Part], SimMember] = {}
        self._holders: dict[tuple[str, Part], dict[SimMember, int]] = {}
        #: Partitions that a member was asked to revoke, and the time: a member that does not revoke them may be
        #: removed.
        self._revoked_ms: dict[tuple[SimMember, Part], float] = {}
        #: Partitions that a member owned when its lease ended: other members may get them before this member learns
        #: that it must release them.
        self._doubtful: set[tuple[SimMember, Part]] = set()
        #: Members whose coordinator noticed the broken connection before the member did, and the time at which the
        #: coordinator noticed it. The next response to a member removes the member from this dict.
        self._misled: dict[SimMember, float] = {}
        #: Offsets in transactions, by their tags: the producer, the epoch of the transaction, and the position in the
        #: log at which the offset became pending. The tags in each record of pending offsets, and the position of the
        #: write that is committed.
        self._in_transaction: dict[str, tuple[Transactor, int]] = {}
        self._written: dict[str, int] = {}
        self._pending: dict[bytes, set[str]] = {}
        self._last_write: dict[tuple[str, str, int], int] = {}
        self._appends = 0
        self.acknowledgements = 0

    # -- the log -----------------------------------------------------------------------------------------------------

    def committed(self, log: LogPartition, before: int) -> None:
        """The committed part of the log has grown beyond ``before``."""
        truth = self.truths[log.partition.partition]
        for batch in log.batches:
            if batch.end <= before or batch.end > log.committed:
                continue
            if batch.epoch < truth.batch_epoch:
                raise Violation(
                    "epochs", f"{log.partition}: a batch of epoch {batch.epoch} comes after epoch {truth.batch_epoch}"
                )
            truth.batch_epoch = batch.epoch
            for record in batch.records:
                self._record(log, truth, record)
        self._appends += 1
        if self._appends % 8 == 0:
            self.state_machines_are_what_the_log_says(log)

    def _record(self, log: LogPartition, truth: Truth, record: LoggedRecord) -> None:
        if is_claim(record.key):
            if record.value is not None:
                claim = decode_claim(record.value)
                if claim.shard_epoch < truth.claim[0]:
                    raise Violation("epochs", f"{log.partition}: {claim} comes after epoch {truth.claim[0]}")
                truth.claim = claim.shard_epoch, claim.coordinator_id
            return
        kind = kind_of(record.key)
        if kind in _OFFSETS:
            self._offset(truth, record)
        elif kind == RecordKind.PENDING_OFFSETS:
            self._becomes_pending(record)
        elif kind == RecordKind.GROUP:
            self._group(truth, record)
        before = self._current(truth, record) if kind == RecordKind.CURRENT_ASSIGNMENT else None
        try:
            truth.state_machine.replay(record.key, record.value, record.timestamp_ms)
        except (HeadraceError, KeyError, AssertionError) as error:
            raise Violation("replay", f"{log.partition}: offset {record.offset} contradicts the log: {error}") from None
        if kind == RecordKind.CURRENT_ASSIGNMENT and record.value is not None:
            key = decode_group_key(record.key)
            current = self._current(truth, record)
            assert current is not None
            if before is not None and current.revision < before.revision:
                raise Violation("epochs", f"{key}: revision {current.revision} comes after revision {before.revision}")
            epoch, revision = self._given.get((key.group_id, key.member), (0, 0))
            self._given[key.group_id, key.member] = max(epoch, current.epoch), max(revision, current.revision)

    def is_member(self, member: SimMember) -> bool:
        """Whether the committed log has the member in its group."""
        group = self.truths[shard_of(member.group_id, self.world.plan.shards)].groups.get(member.group_id)
        return group is not None and member.member_id in group.members

    def _current(self, truth: Truth, record: LoggedRecord) -> Current | None:
        key = decode_group_key(record.key)
        group = truth.groups.get(key.group_id)
        member = None if group is None else group.members.get(key.member)
        return None if member is None else member.current

    def _group(self, truth: Truth, record: LoggedRecord) -> None:
        key = decode_group_key(record.key)
        before = truth.groups.get(key.group_id)
        if record.value is None:
            if before is not None and before.members:
                raise Violation("groups", f"{key.group_id} is deleted, but has members")
            return
        state_machine = self.world.new_state_machine()
        state_machine.replay(record.key, record.value, record.timestamp_ms)
        after = groups_of(state_machine)[key.group_id].said
        if before is not None and after.epoch < before.said.epoch:
            raise Violation(
                "epochs", f"{key.group_id}: group epoch {after.epoch} comes after epoch {before.said.epoch}"
            )
        if after.target_epoch > after.epoch:
            raise Violation("epochs", f"{key.group_id}: a target of epoch {after.target_epoch} in epoch {after.epoch}")

    def _offset(self, truth: Truth, record: LoggedRecord) -> None:
        group_id, partition = decode_key(record.key)
        where = group_id, partition.topic, partition.partition
        if record.value is None:
            is_read = bool(truth.state_machine._groups.subscribed(group_id, {partition.topic}))
            topic = self.world.image.topic(partition.topic)
            known = self._last.pop(where, None)
            self._last_write.pop(where, None)
            is_of_old_topic = topic is None or (known is not None and known[1] != topic.topic_id)
            if is_read and not is_of_old_topic and known is not None:
                raise Violation("offsets", f"{where}: the offset is removed, but a member subscribes to the topic")
            self._set_anew(where)
            return
        committed = decode_value(record.value)
        attempt = self._attempts.get(committed.metadata)
        if attempt is None or attempt[:4] != (*where, committed.offset):
            raise Violation("offsets", f"{where}: no client committed {committed}")
        if committed.metadata in self._refused:
            raise Violation("refused", f"{where}: {committed.metadata} was refused, but is in the log: {attempt}")
        if attempt.member_id:
            self._committer(truth, attempt, committed.topic_id)
        known = self._last.get(where)
        if known is not None and known[1] != committed.topic_id:
            known = None
            self._set_anew(where)
        if committed.metadata in self._in_transaction:
            self._committed_by_marker(where, committed.metadata)
        elif attempt.admin:
            self._set_anew(where)
            self._acknowledged.pop(where, None)  # (after a reset, earlier acknowledged offsets no longer count)
        elif known is not None and committed.offset < known[0]:
            raise Violation("offsets", f"{where}: goes back from {known[0]} to {committed.offset}: {attempt}")
        self._last[where] = committed.offset, committed.topic_id
        self._committed.add(committed.metadata)

    def _set_anew(self, where: tuple[str, str, int]) -> None:
        self._resets[where] += 1
        self._acknowledged_ms.pop(where, None)

    def in_transaction(self, tag: str, producer: Transactor, epoch: int) -> None:
        self._in_transaction[tag] = producer, epoch

    def _becomes_pending(self, record: LoggedRecord) -> None:
        """(A request that arrives once more, after its offset was overtaken, is a new write, as in Kafka.)"""
        value = record.value
        offsets = {} if value is None else decode_pending(decode_pending_key(record.key), value).offsets
        tags = {one.committed.metadata for one in offsets.values()}
        self._written.update(dict.fromkeys(tags - self._pending.get(record.key, set()), record.offset))
        self._pending[record.key] = tags

    def _committed_by_marker(self, where: tuple[str, str, int], tag: str) -> None:
        producer, epoch = self._in_transaction[tag]
        if not producer.outcomes.get(epoch):
            raise Violation("transaction", f"{where}: {self._attempts[tag]} of {producer} was not committed")
        before, written = self._last_write.get(where, -1), self._written[tag]
        if written < before:
            raise Violation("offsets", f"{where}: a marker sets the write at {before} back to the one at {written}")
        self._last_write[where] = written

    def _committer(self, truth: Truth, attempt: Attempt, topic_id: bytes | None) -> None:
        """A member may commit only offsets of partitions that it owns."""
        group = truth.groups.get(attempt.group_id)
        member = None if group is None else group.members.get(attempt.member_id)
        if member is None or member.value is None:
            raise Violation("offsets", f"{attempt}: committed by a client that is no member")
        if (topic_id, attempt.partition) not in member.current.held:
            raise Violation("offsets", f"{attempt}: committed by a member that does not have the partition")

    # -- commits -----------------------------------------------------------------------------------------------------

    def attempted(self, attempt: Attempt) -> str:
        tag = f"{len(self._attempts)}"
        self._attempts[tag] = attempt
        return tag

    def acknowledged(self, tag: str, *earlier: str) -> None:
        """``earlier``: the former attempts of the same commit."""
        attempt = self._attempts[tag]
        if self._committed.isdisjoint((tag, *earlier)):
            raise Violation("commit", f"{attempt} was acknowledged, but is not in the committed log")
        self.acknowledgements += 1
        where = attempt[:3]
        last = self._last.get(where)
        if last is not None:  # (its own, or a later one)
            self._acknowledged[where] = last
            self._acknowledged_ms[where].append((self.world.scheduler.now_ms, last[0]))

    def refused(self, tag: str, error: HeadraceError) -> None:
        self.world.count("refusal", error.code)
        if error.code in DEFINITE:
            self._refused.add(tag)
            if tag in self._committed:
                raise Violation("refused", f"{self._attempts[tag]} was refused ({error.code}), but is in the log")

    def floors(self, group_id: str, parts: Iterable[Part]) -> dict[Part, Floor]:
        """The smallest offsets that a request sent now may return."""
        found, long_since_ms = {}, self.world.scheduler.now_ms - SESSION_MS
        for part in parts:
            where = group_id, part.topic, part.partition
            known = self._acknowledged.get(where)
            if known is not None and known[1] == part.topic_id and self._last.get(where, (0, b""))[1] == known[1]:
                before = [offset for at_ms, offset in self._acknowledged_ms[where] if at_ms <= long_since_ms]
                found[part] = Floor(known[0], known[1], self._resets[where], max(before, default=-1))
        return found

    def begins_at(self, who: Caller, part: Part, offset: int, floor: Floor | None) -> None:
        """The caller received this committed offset, or -1 for no committed offset. A former coordinator whose session
        still lasts cannot know yet that it lost the shard. The former coordinator must return at least the offset that
        was acknowledged before this session. No epoch protects a read, because a read is not an append."""
        where = who.group_id, part.topic, part.partition
        if floor is None or floor.resets != self._resets[where] or floor.topic_id != part.topic_id:
            return
        topic = self.world.image.topic(part.topic)
        if topic is None or topic.topic_id != part.topic_id:
            return  # the topic is deleted, so its committed offsets no longer count
        is_owner = who.coordinator == self.world.owner(who.group_id)
        least = floor.offset if is_owner else floor.long_since
        if offset < least:
            raise Violation("read", f"{who}: got offset {offset} of {where}, but {least} had been acknowledged before")

    # -- who reads what ----------------------------------------------------------------------------------------------

    def reads(self, member: SimMember, part: Part) -> None:
        """From now on the member returns records of the partition."""
        key = member.group_id, part
        other = self._readers.setdefault(key, member)
        if other is not member and (self._is_overdue(other) or other in self._misled):
            self._readers[key] = member
        elif other is not member and member not in self._misled:
            raise Violation(
                "two readers", f"{other.name} ({other.member_id}) and {member.name} ({member.member_id}) read "
                f"{part.topic}-{part.partition} of {member.group_id}"
            )  # fmt: skip

    def is_misled(self, member: SimMember) -> None:
        """The member's coordinator sees the member's connection end before the member does. A member with a half-open
        connection may read partitions that belong to other members, until it stops or gets a response from any
        coordinator. No other rule is relaxed for a member with a half-open connection: its commits are refused like any
        others."""
        self._misled.setdefault(member, self.world.scheduler.now_ms)

    def _is_overdue(self, member: SimMember) -> bool:
        """The member has not revoked a partition within the rebalance timeout, and learns of its removal with the next
        message. (Until then the member returns no records, because its program is still in the callback.)"""
        since_ms = self.world.scheduler.now_ms - self.world.plan.rebalance_timeout_ms
        return member.connection is not None and any(
            who is member and revoked_ms <= since_ms for (who, _), revoked_ms in self._revoked_ms.items()
        )

    def stops_reading(self, member: SimMember, part: Part) -> None:
        key = member.group_id, part
        if self._readers.get(key) is member:
            del self._readers[key]

    def holds(self, member: SimMember, part: Part) -> None:
        """The member has started to read the partition: the previous owner must have revoked it, be long overdue, or be
        cut off."""
        holders = self._holders.setdefault((member.group_id, part), {})
        now_ms = self.world.scheduler.now_ms
        for other in holders:
            revoked_ms = self._revoked_ms.get((other, part))
            overdue = revoked_ms is not None and now_ms - revoked_ms > self.world.plan.rebalance_timeout_ms * 0.3
            is_off = other.is_paused or other.member.is_suspended
            excused = overdue or is_off or (other, part) in self._doubtful
            excused = excused or self._is_overdue(other) or other in self._misled or member in self._misled
            if other is not member and not excused:
                raise Violation(
                    "two owners",
                    f"{other.name} still has {part.topic}-{part.partition} when {member.name} begins to read it",
                )
        holders[member] = member.life

    def suspends(self, member: SimMember) -> None:
        """The member's lease has ended."""
        self._misled.pop(member, None)
        self._doubtful.update((member, part) for part in member.held)
        for part in member.reading:
            self.stops_reading(member, part)

    def resumes(self, member: SimMember) -> None:
        """The member got a response: it owns all partitions that it is not asked to revoke."""
        for part in member.reading:
            self._doubtful.discard((member, part))
            self.reads(member, part)

    def revokes(self, member: SimMember, parts: Parts) -> None:
        for part in parts:
            self._revoked_ms[member, part] = self.world.scheduler.now_ms

    def lets_go(self, member: SimMember, part: Part) -> None:
        self._holders.get((member.group_id, part), {}).pop(member, None)
        self._revoked_ms.pop((member, part), None)
        self._doubtful.discard((member, part))

    def member_answered(self, member: SimMember, response: Any) -> float | None:
        """Check that a response or a pushed message depends on committed state only. If this response ends a time in
        which the member was misled (``is_misled``), return the beginning of that time, else None. ``misled_no_more``
        must follow when the member has processed the response."""
        if response.error.code:
            return None
        misled_since_ms = self._misled.pop(member, None) if response.correlation_id else None
        epoch, revision = self._given.get((member.group_id, member.member_id), (0, 0))
        if response.member_epoch > epoch or response.revision > revision:
            raise Violation(
                "answer",
                f"{member.name} got epoch {response.member_epoch} and revision {response.revision}, but the "
                f"committed log has {epoch} and {revision}",
            )  # fmt: skip
        return misled_since_ms

    def misled_no_more(self, member: SimMember, since_ms: float) -> None:
        """The member has processed its first response after a half-open connection. All partitions that the member
        still reads are checked again. The member no longer reads the partitions that it must release, but holds them
        until its last commit. If the grace period had ended, the coordinator may have given the held partitions to
        other members before the response."""
        if self.world.scheduler.now_ms - since_ms >= self.world.plan.grace_ms:
            self._doubtful.update((member, part) for part in member.held if part not in member.reading)
        if not member.member.is_suspended:
            for part in member.reading:
                self.reads(member, part)

    # -- state machines ----------------------------------------------------------------------------------------------

    def state_machines_are_what_the_log_says(self, log: LogPartition) -> int:
        """Compare the state of every coordinator that serves, has no work in flight, and has seen the whole log."""
        seen = 0
        for host in self.world.hosts:
            if host.process is None or host.process.shards is None:
                continue
            for runner in host.process.shards:
                shard: Shard = runner.shard
                if shard.name != str(log.partition) or shard.state is not ShardState.SERVING:
                    continue
                if shard._flying is not None or shard._gathering or not log.has_only_claims_from(shard._end):
                    continue
                if log.end != log.committed or shard.claim.shard_epoch != self.truths[log.partition.partition].claim[0]:
                    continue
                seen += 1
                why = difference(shard.state_machine, self.truths[log.partition.partition].state_machine)
                if why:
                    raise Violation(
                        "state machine", f"the state of {host} differs from a replay of the log of {shard.name}: {why}"
                    )
        self.world.coverage["check", "state machine compared with its log"] += seen
        return seen

    # -- the end -----------------------------------------------------------------------------------------------------

    def why_not_well(self) -> str | None:
        """The conditions of a healthy state that do not hold yet, after the repair."""
        for number, group_id in enumerate(self.world.group_ids):
            why = self._why_not_stable(number, group_id)
            if why is not None:
                return f"{group_id}: {why}"
        return None

    def why_not_equal(self) -> str | None:
        """When commits have ended, every shard must have a coordinator whose state matches its log."""
        for log in self.world.logs:
            if not self.state_machines_are_what_the_log_says(log):
                return f"nobody serves {log.partition}, or something is under way"
        return None

    def _why_not_stable(self, number: int, group_id: str) -> str | None:
        world = self.world
        group = self.truths[shard_of(group_id, world.plan.shards)].groups.get(group_id)
        members = [each for each in world.members if each.group == number and each.is_alive]
        if not members:
            return None
        if group is None or group.value is None or not group.members:
            return "it does not exist"
        if group.state != "stable":
            return f"it is {group.state}"
        if group.members.keys() != {each.member_id for each in members}:
            return f"its members are {sorted(group.members)}"
        read: dict[tuple[bytes, int], str] = {}
        for each in members:
            if each.member.is_suspended or each.connection is None:
                return f"{each} is not connected"
            owned = {(part.topic_id, part.partition) for part in each.member.owned}
            if owned != group.members[each.member_id].target or set(each.reading) != each.member.owned:
                return f"{each} has not arrived"
            read.update(dict.fromkeys(owned, each.name))
        wanted = {
            (topic.topic_id, partition)
            for name in {name for each in members for name in each.subscribes}
            if (topic := world.image.topic(name)) is not None
            for partition in range(len(topic.partitions))
        }
        if read.keys() != wanted:
            return f"{len(read)} partitions are read, and there are {len(wanted)}"
        sizes = [len(each.member.owned) for each in members]
        if len({each.subscribes for each in members}) == 1 and max(sizes) - min(sizes) > len(world.topic_names):
            return f"partitions are uneven: {sizes}"
        return None


def difference(state_machine: Any, truth: ShardStateMachine) -> str:
    """The differences between two states."""
    mine, theirs = groups_of(state_machine), groups_of(truth)
    if mine.keys() != theirs.keys():
        return f"groups {sorted(mine)}, and {sorted(theirs)}"
    for group_id, group in mine.items():
        other = theirs[group_id]
        if group.value != other.value:
            return f"{group_id}: {group.value}, and {other.value}"
        if group.owners != other.owners or group.statics != other.statics or group.stories != other.stories:
            return f"{group_id}: owners, static members or stories"
        members, others = (
            {each.member_id: (each.value, each.target, each.current) for each in one.members.values()}
            for one in (group, other)
        )
        if members != others:
            return f"{group_id}: {members}, and {others}"
    if state_machine._offsets.book._by_group != truth._offsets.book._by_group:
        return "committed offsets"
    if state_machine._offsets.book.pending._by_producer != truth._offsets.book.pending._by_producer:
        return "pending offsets"
    return ""
