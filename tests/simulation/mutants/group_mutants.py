"""Mutants of shards, groups, offsets and members, each with one guard removed. The groups' part of the simulator must
detect each mutant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.group.member import Assign, Member
from headrace_coordinator.group import checks, groups, rebalancing, reconciling, timing
from headrace_coordinator.group.messages import Heartbeat, RemovalReason
from headrace_coordinator.group.reconciling import Current, advance
from headrace_coordinator.handlers import membership
from headrace_coordinator.offsets.logic import OffsetsLogic
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import Answer, Replay, Shard, ShardState, Tell
from headrace_coordinator.runtime.shards import Shards
from headrace_coordinator.state_machine import Decision, ShardRecord
from headrace_core.log import LogConfig, fencing
from headrace_core.log import group as log_group
from headrace_core.types import TopicPartition
from tests.simulation.mutants.mutant import Mutant, Patch

GROUPS = "groups"

# -- shards ------------------------------------------------------------------------------------------------------------

_check_fence = fencing.check_fence


def _no_epoch(fence: fencing.Fence, largest_epoch: int, end: int, partition: Any) -> None:
    _check_fence(fence, fencing.NO_SHARD_EPOCH, end, partition)


def _no_end(fence: fencing.Fence, largest_epoch: int, end: int, partition: Any) -> None:
    _check_fence(fence._replace(expected_end=None), largest_epoch, end, partition)


_appended = Shard.appended


def _wherever_it_was_written(self: Shard, attempt: int, base_offset: int) -> None:
    if attempt == self.attempt and self.state is ShardState.SERVING:
        self._end = base_offset
    _appended(self, attempt, base_offset)


_decided = Shard._decided


def _answer_before_the_commit(self: Shard, ticket: object, decision: Decision) -> None:
    if ticket is not None:
        self._todo.append(Answer(ticket, decision.reply))
    _decided(self, None, decision)


def _tell_before_the_commit(self: Shard, ticket: object, decision: Decision) -> None:
    if decision.pushes:
        self._todo.append(Tell(decision.pushes))
    _decided(self, ticket, decision._replace(pushes=()))


_append_failed = Shard.append_failed


def _take_silence_for_done(self: Shard, attempt: int, error: Any) -> None:
    if error.code == "REQUEST_TIMED_OUT" and attempt == self.attempt and self._flying is not None:
        _appended(self, attempt, self._end)
    else:
        _append_failed(self, attempt, error)


_replay = ShardRunner._replay


async def _replay_less(self: ShardRunner, replay: Replay) -> None:
    await _replay(self, replay._replace(end=max(replay.end - 4, 0)))


def _topics_untold(self: Shards, runner: ShardRunner, state: ShardState) -> None:
    """A shard that begins to serve learns of topics only when they change."""


_ask = Shard.ask


def _news_is_refused_too(self: Shard, ticket: object, request: object, now_ms: int, **how: Any) -> None:
    if ticket is not None or self._gathering.bytes < self._gathered_bytes_max:
        _ask(self, ticket, request, now_ms, **how)


def _vouch_without_the_log(self: Shard, ticket: object, request: object, now_ms: int, **how: Any) -> None:
    _ask(self, ticket, request, now_ms)


# -- groups ------------------------------------------------------------------------------------------------------------


def _all_owned_counts(request: Heartbeat, member: Any) -> Any:
    return request.owned


def _revoked_is_let_go(current: Current, target: Any, *arguments: Any, owned: Any = None, **rest: Any) -> Current:
    return advance(current, target, *arguments, owned=frozenset(), **rest)


_taken_from = reconciling._taken_from


def _nothing_was_taken(current: Current, target: Any) -> Current:
    return replace(_taken_from(current, target), taken=frozenset())


_broke = timing.Session.broke


def _broken_for_less(self: timing.Session, now_ms: int, grace_ms: int, session_timeout_ms: int) -> None:
    _broke(self, now_ms, grace_ms // 5, session_timeout_ms)


_watch = rebalancing.Rebalancing.watch


_overdue = groups.Groups._overdue


def _slow_since_the_answer(self: groups.Groups, turn: Any, group: Any, member: Any) -> Any:
    since_ms = member.session.revoking_ms
    if since_ms is not None and turn.owned_ms - since_ms >= member.said.rebalance_timeout_ms:
        return RemovalReason.REBALANCE
    return _overdue(self, turn, group, member)


def _watch_the_time_out(self: rebalancing.Rebalancing, group: Any, member: Any) -> None:
    """(The check runs as soon as the rebalance timeout is over.)"""
    _watch(self, group, member)
    if member.session.revoking_ms is not None:
        due_ms = member.session.revoking_ms + member.said.rebalance_timeout_ms
        self._agenda.put((group.group_id, member.member_id), due_ms)


def _lost_at_once(member: Any, steady_ms: int) -> bool:
    return not member.session.connected


def _any_stream_breaks_it(self: groups.Groups, request: Any, turn: Any) -> Decision:
    group = self._state.groups.get(request.group_id)
    member = group.members.get(request.member_id) if group is not None else None
    if member is not None and member.value is not None:
        request = request._replace(connection=member.session.connection)
    return _disconnected(self, request, turn)


def _not_replaced(self: membership.MembershipStream) -> None:
    """(Without this patch a stream that was replaced does not report its end.)"""


_disconnected = groups.Groups._disconnected


def _replace_at_once(self: groups.Groups, request: Heartbeat, turn: Any, group: Any) -> Any:
    instance_id = request.instance_id
    holder_id = group.statics.get(instance_id) if group is not None and instance_id is not None else None
    if holder_id is not None:
        return turn.replace(group, group.members[holder_id], request.member_id), []
    return _new_member(self, request, turn, group)


_new_member = groups.Groups._new_member
_loaded = groups.Groups.loaded


def _sessions_go_on(self: groups.Groups, now_ms: int) -> Decision:
    """A new coordinator of a shard continues to count the members' sessions, although the members have never
    reached this coordinator."""
    decision = _loaded(self, now_ms)
    for group in self._state.groups.values():
        for member in group.members.values():
            member.session.last_contact_ms -= self._settings.session_timeout_ms
            self._rebalancing.watch(group, member)
    return decision


def _look_at_no_topics(self: groups.Groups, turn: Any, group: Any) -> None:
    return


# -- offsets -----------------------------------------------------------------------------------------------------------


def _any_epoch_commits(group: Any, member: Any, epoch: int, parts: Any) -> None:
    return


def _strangers_commit(self: groups.Groups, group: Any, group_id: str, member_id: str) -> None:
    return


_tick = OffsetsLogic.tick


class _AllEmpty:
    """The groups as seen by a sweep that ignores members: every group counts as empty."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def is_empty(self, group_id: str) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _expire_under_members(self: OffsetsLogic, now_ms: int) -> Any:
    real, self._groups = self._groups, _AllEmpty(self._groups)  # type: ignore[assignment]
    try:
        return _tick(self, now_ms)
    finally:
        self._groups = real


def _forget_tombstones(self: OffsetsLogic, offsets: Iterable[Any]) -> tuple[ShardRecord, ...]:
    for group_id, partition in tuple(offsets):
        self._apply(group_id, partition, None)
    return ()


_commit_in_transaction = OffsetsLogic.commit_in_transaction


def _the_last_marker_wins(self: OffsetsLogic, producer_id: int) -> dict[Any, Any]:
    return {}


def _requests_without_numbers(self: OffsetsLogic, request: Any, now_ms: int) -> Decision:
    return _commit_in_transaction(self, request._replace(sequence=0), now_ms)


_fetched = OffsetsLogic._fetched


def _the_commits_time_tells_namesakes(self: OffsetsLogic, request: Any, offsets: Any, *more: Any) -> Any:
    """An offset of a topic that this coordinator does not know counts as new by the clock of its committer."""
    loaded_ms, wanted = self._loaded_ms, more[1]
    found = offsets.get(TopicPartition(wanted.topic, wanted.partition))
    self._loaded_ms = 0 if found is None else found.commit_timestamp_ms
    try:
        return _fetched(self, request, offsets, *more)
    finally:
        self._loaded_ms = loaded_ms


def _as_for_clients(self: LogConfig) -> LogConfig:
    return self


# -- members (the SDK's) -----------------------------------------------------------------------------------------------

_why_to_stop = Member._why_to_stop


def _read_without_a_lease(self: Member, now: float) -> str:
    return ""


def _a_late_release_is_no_reason(self: Member) -> float:
    return float("inf")


_go_on = Member._go_on


def _assign_goes_on(self: Member) -> None:
    """An Assign in progress keeps the partitions that have left the target and come back."""
    change = self._change
    if isinstance(change, Assign) and not self._excess and not change.parts <= (self._target or frozenset()):
        return
    _go_on(self)


_begin = Member.begin


def _begin_what_is_assigned_now(self: Member, ticket: int, now: float) -> Any:
    if isinstance(self._change, Assign):
        self._change = self._change._replace(parts=self._change.parts & (self._target or frozenset()))
    return _begin(self, ticket, now)


def _begin_whatever_was_assigned(self: Member, ticket: int, now: float) -> Any:
    change = self._change
    begun = _begin(self, ticket, now)
    if change is not None and change.ticket == ticket:
        self.owned |= change.parts
        return change.parts
    return begun


_request = Member.request


def _own_what_is_let_go(self: Member, now: float) -> Any:
    """A member reports that it has released partitions as soon as it is asked to release them."""
    request = _request(self, now)
    if request is not None and request.owned is not None and self._target is not None:
        return request._replace(owned=request.owned & self._target)
    return request


_looked_up = Member.looked_up


def _any_vacancy_counts(self: Member, shard_epoch: int, as_of: float | None, now: float, *, is_vacant: bool) -> None:
    """Metadata that is older than the member's own coordinator counts if it shows a shard without a coordinator."""
    _looked_up(self, self._shard_epoch + 1 if is_vacant else shard_epoch, as_of, now, is_vacant=is_vacant)


def _all_metadata_are_new(self: Member, shard_epoch: int, as_of: float | None, now: float, *, is_vacant: bool) -> None:
    _looked_up(self, shard_epoch, now, now, is_vacant=is_vacant)


def _late_news_counts(self: Member, shard_epoch: int, as_of: float | None, now: float, *, is_vacant: bool) -> None:
    """A member reads again when it learns that its coordinator was deposed, although the grace period was over."""
    if self._shard_epoch and not self._is_connected and shard_epoch > self._shard_epoch:
        self._is_orphaned, self._broken_at, self._vacant_at = True, None, now
    _looked_up(self, shard_epoch, as_of, now, is_vacant=is_vacant)


def _who_follows_is_who_is_vacant(
    self: Member, shard_epoch: int, as_of: float | None, now: float, *, is_vacant: bool
) -> None:
    """A coordinator with which the member has had no contact renews its lease."""
    _looked_up(self, shard_epoch, as_of, now, is_vacant=True)


def _whatever_the_clock_says(self: Member) -> float:
    """Only the timer checks the end of the lease, and timers fire late after a suspension."""
    return float("inf")


_group_turn = groups.Groups._turn


def _asks_for_ever(self: Member) -> bool:
    return bool(self.owned) and not self._is_connected


async def _tick_without_proof(self: ShardRunner, is_ours: Any) -> None:
    self._is_proving = False
    self.shard.tick(self._now_ms())
    self._turn()


def _no_proof(self: groups.Groups, now_ms: int) -> Any:
    turn = _group_turn(self, now_ms)
    turn.owned_ms = turn.steady_ms
    return turn


def _mutant(name: str, breaks: str, *patches: Patch, hard: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, breaks, 7, patches, GROUPS, faults=hard)


MUTANTS = (
    _mutant(
        "ShardsHaveNoFence",
        "KAFKA-4362: a former owner still writes",
        Patch(fencing, "check_fence", _no_epoch),
        Patch(log_group, "check_fence", _no_epoch),
    ),
    _mutant(
        "AppendsAnywhere",
        "KAFKA-4362: what was decided on another log is written",
        Patch(fencing, "check_fence", _no_end),
        Patch(log_group, "check_fence", _no_end),
        Patch(Shard, "appended", _wherever_it_was_written),
    ),
    _mutant(
        "RepliesBeforeTheCommit",
        "KAFKA-3959: an acknowledged commit is lost",
        Patch(Shard, "_decided", _answer_before_the_commit),
    ),
    _mutant(
        "PushesBeforeTheCommit",
        "KIP-848: an assignment is told, and is not in the log",
        Patch(Shard, "_decided", _tell_before_the_commit),
    ),
    _mutant(
        "TakesSilentAppendsForDone",
        "an append without an answer counts as made",
        Patch(Shard, "append_failed", _take_silence_for_done),
        hard=("append_answer_lost", "append_late", "log_cut"),
    ),
    _mutant(
        "ReplaysShortOfTheClaim",
        "a coordinator serves before it has read all",
        Patch(ShardRunner, "_replay", _replay_less),
    ),
    _mutant("TellsNewShardsNoTopics", "a shard serves without topics", Patch(Shards, "began", _topics_untold)),
    _mutant(
        "PressureDropsNews",
        "a shard under back-pressure does not learn that topics changed",
        Patch(Shard, "ask", _news_is_refused_too),
        hard=("pressed_topics",),
    ),
    _mutant(
        "VouchesWithoutTheLog",
        "KAFKA-4362: a coordinator that the controllers took for gone answers members beside its successor",
        Patch(Shard, "ask", _vouch_without_the_log),
        hard=("silent_owner",),
    ),
    _mutant(
        "CountsCrossingHeartbeats",
        "a heartbeat that crossed an assignment seems to let go of it",
        Patch(checks, "owned_that_counts", _all_owned_counts),
        hard=("subscription_changed", "member_joins", "delay"),
    ),
    _mutant(
        "GivesBeforeItIsLetGo",
        "KIP-848: a partition has two owners",
        Patch(rebalancing, "advance", _revoked_is_let_go),
    ),
    _mutant(
        "GraceIsShort",
        "the coordinator's grace is shorter than the member's",
        Patch(timing.Session, "broke", _broken_for_less),
        hard=("connection_broken", "coordinator_cut"),
    ),
    _mutant(
        "UntoldMembersAreLate",
        "what a member was not told to let go of is given away while it reads on",
        Patch(groups.Groups, "_overdue", _slow_since_the_answer),
        Patch(rebalancing.Rebalancing, "watch", _watch_the_time_out),
        hard=("revoked_unheard",),
    ),
    _mutant(
        "ForgetsWhatWasTaken",
        "a static member reads on at its old position in a partition that another member had meanwhile",
        Patch(reconciling, "_taken_from", _nothing_was_taken),
        hard=("static_cut_off",),
    ),
    _mutant(
        "AssignGoesOn",
        "a member begins at a committed offset of before another member had the partition (SDK)",
        Patch(Member, "_go_on", _assign_goes_on),
        Patch(Member, "begin", _begin_what_is_assigned_now),
        hard=("offsets_late",),
    ),
    _mutant(
        "TheLastMarkerWins",
        "KIP-447: of two open transactions the marker that comes last sets the offset back",
        Patch(OffsetsLogic, "_overtaken", _the_last_marker_wins),
    ),
    _mutant(
        "RequestsWithoutNumbers",
        "an offset that arrives twice counts as a later write",
        Patch(OffsetsLogic, "commit_in_transaction", _requests_without_numbers),
    ),
    _mutant("BrokenMeansGone", "a connection has no grace", Patch(rebalancing, "reads_nothing", _lost_at_once)),
    _mutant(
        "AnyStreamBreaksIt",
        "the end of an overtaken stream counts",
        Patch(groups.Groups, "_disconnected", _any_stream_breaks_it),
        Patch(membership.MembershipStream, "replaced", _not_replaced),
        Patch(groups, "_RULES", {**groups._RULES, groups.Disconnected: _any_stream_breaks_it}),
        hard=("connection_lost_on_one_side",),
    ),
    _mutant(
        "ReplacesAtOnce",
        "KIP-345: a static member that lives is replaced",
        Patch(groups.Groups, "_new_member", _replace_at_once),
        hard=("static_double",),
    ),
    _mutant(
        "HoldsSilenceAgainstThem",
        "a change of coordinators costs members their place",
        Patch(groups.Groups, "loaded", _sessions_go_on),
    ),
    _mutant("SeesNoTopics", "new partitions are read by nobody", Patch(groups.Groups, "_review", _look_at_no_topics)),
    _mutant(
        "CommitsOfAnyEpoch",
        "KIP-848: a stale member's commit takes the offset back",
        Patch(checks, "check_commit", _any_epoch_commits),
        hard=("slow_to_revoke", "member_joins", "delay"),
    ),
    _mutant(
        "StrangersCommit",
        "a commit of no member counts while the group has some",
        Patch(groups.Groups, "_check_stranger", _strangers_commit),
        hard=("admin",),
    ),
    _mutant(
        "ExpiresUnderMembers",
        "KIP-211: offsets of a group with members expire",
        Patch(OffsetsLogic, "tick", _expire_under_members),
    ),
    _mutant(
        "ForgetsTombstones",
        "deleted offsets come back with the next coordinator",
        Patch(OffsetsLogic, "remove", _forget_tombstones),
    ),
    _mutant(
        "LeadersCheckTheTimesOfGroups",
        "a leader refuses a coordinator's records for their timestamps",
        Patch(LogConfig, "for_coordinators", _as_for_clients),
    ),
    _mutant(
        "TheCommitsTimeTellsNamesakes",
        "an offset of a new topic that only the former owner knew is taken for none",
        Patch(OffsetsLogic, "_fetched", _the_commits_time_tells_namesakes),
        hard=("topic_deleted", "metadata_late"),
    ),
    _mutant(
        "ReadsWithoutALease",
        "a member that is cut off reads on (SDK)",
        Patch(Member, "_why_to_stop", _read_without_a_lease),
    ),
    _mutant(
        "ReadsOnAfterALateRelease",
        "a member that is late with a release reads on without a connection (SDK)",
        Patch(Member, "_must_release_by", _a_late_release_is_no_reason),
        hard=("removed_untold",),
    ),
    _mutant(
        "HandsOutBeforeItLooks",
        "a member whose machine was suspended hands out records before the timer of its lease (SDK)",
        Patch(Member, "reads_until", _whatever_the_clock_says),
        hard=("member_paused",),
    ),
    _mutant(
        "GivesAwayWithoutProof",
        "a coordinator that was deposed, and does not know it, takes a member for gone that reads on",
        Patch(groups.Groups, "_turn", _no_proof),
        Patch(ShardRunner, "_tick_as_owner", _tick_without_proof),
    ),
    _mutant(
        "AnyVacancyCounts",
        "a member reads on by metadata that are older than its coordinator (SDK)",
        Patch(Member, "looked_up", _any_vacancy_counts),
        hard=("coordinators_gone", "old_news"),
    ),
    _mutant(
        "AllMetadataAreNew",
        "old metadata renew a lease: meanwhile somebody has taken the shard over (SDK)",
        Patch(Member, "looked_up", _all_metadata_are_new),
        hard=("takeover_unreached",),
    ),
    _mutant(
        "LateNewsCounts",
        "a member reads again because its coordinator was deposed, which had taken it for gone (SDK)",
        Patch(Member, "looked_up", _late_news_counts),
        Patch(Member, "needs_news", property(_asks_for_ever)),
        hard=("gone_after_the_grace",),
    ),
    _mutant(
        "AnyOwnerRenews",
        "the next coordinator renews the lease of a member that it never heard (SDK)",
        Patch(Member, "looked_up", _who_follows_is_who_is_vacant),
        hard=("takeover_unreached",),
    ),
    _mutant(
        "BeginsWhatIsNotItsOwn",
        "an assignment that was taken back meanwhile is read (SDK)",
        Patch(Member, "begin", _begin_whatever_was_assigned),
    ),
    _mutant(
        "LetsGoInWordsOnly",
        "a partition is said to be let go, and is read on (SDK)",
        Patch(Member, "request", _own_what_is_let_go),
    ),
)
