"""Classic groups: the states, and the rules of Kafka's KIPs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace_coordinator.classic.consumer_protocol import subscribed_topics
from headrace_coordinator.classic.groups import NEW_MEMBER_JOIN_MS, ClassicGroups
from headrace_coordinator.classic.messages import (
    ClassicHeartbeat,
    ClassicState,
    Join,
    Joined,
    LeaveClassic,
    LeavingMember,
    MemberIdNeeded,
    Sync,
    Synced,
    Waiting,
)
from headrace_coordinator.classic.records import (
    GroupRecord,
    MemberRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace_coordinator.classic.settings import ClassicSettings
from headrace_coordinator.classic.state import TRANSITIONS
from headrace_core.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    HeadraceError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

RANGE = (("range", b"r"),)
BOTH = (("range", b"r"), ("sticky", b"s"))
SESSION_MS, REBALANCE_MS = 10_000, 60_000


class World:
    """A shard of classic groups with a clock; answers by ticket."""

    def __init__(self, **settings: Any) -> None:
        self.settings = ClassicSettings(**{"initial_delay_ms": 0, **settings})
        self.groups = ClassicGroups(self.settings)
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[int, Any] = {}
        self._tickets = itertools.count(1)
        self._ids = itertools.count(1)

    def ask(self, request: Any) -> Any:
        return self.take(self.groups.handle(request, self.now_ms))

    def take(self, decision: Any) -> Any:
        self.log += [(record.key, record.value) for record in decision.records]
        for ticket, outcome in decision.pushes:
            assert ticket not in self.answers, "an answer comes once"
            self.answers[ticket] = outcome
        return decision.reply

    def join(self, member_id: str = "", **given: Any) -> int:
        """Returns the ticket; the answer, if it came at once, is in ``answers``."""
        ticket = next(self._tickets)
        said = {"protocols": RANGE, "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS, **given}
        new_id = f"m{next(self._ids)}"
        reply = self.ask(Join("g", member_id, new_id, protocol_type="consumer", ticket=ticket, **said))
        if not isinstance(reply, Waiting):
            self.answers[ticket] = reply
        return ticket

    def sync(self, member: Joined, **given: Any) -> int:
        ticket = next(self._tickets)
        reply = self.ask(Sync("g", member.member_id, member.generation, ticket, **given))
        if not isinstance(reply, Waiting):
            self.answers[ticket] = reply
        return ticket

    def beat(self, member: Joined, **given: Any) -> None:
        self.ask(ClassicHeartbeat("g", member.member_id, member.generation, **given))

    def passes(self, ms: int) -> None:
        """Time passes, and all ticks that are due happen."""
        end_ms = self.now_ms + ms
        while (due_ms := self.groups.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.groups.tick(self.now_ms))
        self.now_ms = end_ms

    @property
    def state(self) -> ClassicState:
        described = self.groups.described("g")
        assert described is not None
        return described.state

    def members(self) -> list[str]:
        described = self.groups.described("g")
        return [] if described is None else [member.member_id for member in described.members]

    def two(self, **given: Any) -> tuple[Joined, Joined]:
        """A stable group of two members; the first leads."""
        first = self.answers[self.join(**given)]
        second_ticket = self.join(**given)
        assert self.state is ClassicState.PREPARING_REBALANCE
        first_ticket = self.join(first.member_id, **given)
        first, second = self.answers[first_ticket], self.answers[second_ticket]
        waits = self.sync(second)
        self.sync(first, assignments=((first.member_id, b"1"), (second.member_id, b"2")))
        assert self.answers[waits] == Synced("consumer", "range", b"2")
        assert self.state is ClassicState.STABLE
        return first, second

    def restarted(self) -> World:
        """The same shard after a change of coordinators."""
        other = World()
        other.settings, other.groups, other.now_ms = self.settings, ClassicGroups(self.settings), self.now_ms
        other._ids = self._ids
        for key, value in self.log:
            other.groups.replay(key, value)
        other.groups.loaded(other.now_ms)
        return other


def test_the_first_member_leads_a_generation_of_its_own() -> None:
    world = World()
    joined = world.answers[world.join()]
    assert (joined.generation, joined.protocol, joined.leader) == (1, "range", joined.member_id)
    assert [member.member_id for member in joined.members] == [joined.member_id]
    assert world.state is ClassicState.COMPLETING_REBALANCE
    assert world.log == [], "nothing is written before the leader assigns"
    ticket = world.sync(joined, assignments=((joined.member_id, b"all"),))
    assert world.answers[ticket] == Synced("consumer", "range", b"all")
    assert world.state is ClassicState.STABLE
    assert decode_value(world.log[-1][1] or b"").members[0].assignment == b"all"


def test_a_second_member_waits_until_the_first_has_joined_again() -> None:
    world = World()
    first, second = world.two()
    assert first.generation == second.generation == 2
    assert second.members == ()
    assert [member.member_id for member in first.members] == [first.member_id, second.member_id]


def test_a_member_learns_of_a_rebalance_by_its_heartbeat() -> None:
    world = World()
    first, second = world.two()
    world.join()
    with pytest.raises(RebalanceInProgressError):
        world.beat(first)
    with pytest.raises(RebalanceInProgressError):
        world.sync(second)


def test_the_initial_delay_gathers_members_and_grows_while_they_come() -> None:
    """KIP-134."""
    world = World(initial_delay_ms=3_000)
    first = world.join()
    world.passes(2_999)
    second = world.join()
    world.passes(1)
    assert first not in world.answers, "a member came during the delay, so it runs again"
    world.passes(3_000)
    assert world.answers[first].generation == world.answers[second].generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    world = World(initial_delay_ms=3_000)
    first = world.join(rebalance_timeout_ms=5_000)
    for _ in range(5):
        world.passes(1_000)
        world.join(rebalance_timeout_ms=5_000)
    world.passes(0)
    assert first in world.answers


def test_a_new_dynamic_member_joins_with_the_id_that_it_got() -> None:
    """KIP-394."""
    world = World()
    needed = world.answers[world.join(needs_known_id=True)]
    assert isinstance(needed, MemberIdNeeded)
    assert world.members() == []
    joined = world.answers[world.join(needed.member_id, needs_known_id=True)]
    assert joined.member_id == needed.member_id
    with pytest.raises(UnknownMemberIdError):
        world.join("never-given", needs_known_id=True)


def test_an_unused_member_id_delays_a_rebalance_only_for_its_session() -> None:
    world = World()
    world.join(needs_known_id=True)
    ticket = world.join()
    assert ticket not in world.answers, "the group waits for the member that is about to join"
    world.passes(SESSION_MS)
    assert world.answers[ticket].generation == 1


def test_member_ids_that_are_not_used_are_bounded() -> None:
    world = World(pending_max=3)
    for _ in range(3):
        world.join(needs_known_id=True)
    with pytest.raises(GroupMaxSizeReachedError):
        world.join(needs_known_id=True)
    world.passes(SESSION_MS)
    world.join(needs_known_id=True)


def test_a_group_has_a_largest_size() -> None:
    """KIP-389."""
    world = World(max_size=2)
    world.two()
    with pytest.raises(GroupMaxSizeReachedError):
        world.join()


def test_more_members_with_an_id_than_there_is_room_for_do_not_all_join() -> None:
    world = World(max_size=2)
    ids = [world.answers[world.join(needs_known_id=True)].member_id for _ in range(4)]
    for member_id in ids[:2]:
        world.join(member_id)
    for member_id in ids[2:]:
        with pytest.raises(GroupMaxSizeReachedError):
            world.join(member_id)
    assert world.members() == ids[:2]
    world.passes(SESSION_MS)
    assert world.state is ClassicState.COMPLETING_REBALANCE, "the ids without room have expired"


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    world = World()
    first, second = world.two()
    world.passes(SESSION_MS - 1)
    world.beat(first)
    world.passes(1)
    assert world.members() == [first.member_id]
    assert world.state is ClassicState.PREPARING_REBALANCE
    with pytest.raises(UnknownMemberIdError):
        world.beat(second)
    again = world.answers[world.join(first.member_id)]
    assert (again.generation, again.leader) == (3, first.member_id)


def test_a_rebalance_that_times_out_goes_on_without_the_late_members() -> None:
    world = World()
    first, second = world.two()
    third = world.join()
    for _ in range(REBALANCE_MS // 5_000):
        for member in (first, second):
            if member.member_id in world.members():
                with pytest.raises(RebalanceInProgressError):
                    world.beat(member)
        world.passes(5_000)
    joined = world.answers[third]
    assert world.members() == [joined.member_id]
    assert joined.leader == joined.member_id


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    world = World()
    first, second = world.two()
    world.join(first.member_id)  # the leader joins again: a rebalance
    ticket = world.join(second.member_id)
    second = world.answers[ticket]
    waits = world.sync(second)
    for _ in range(REBALANCE_MS // 5_000):
        world.passes(5_000)
        if first.member_id in world.members():
            world.beat(second)
            world.ask(ClassicHeartbeat("g", first.member_id, second.generation))
    assert isinstance(world.answers[waits], RebalanceInProgressError)
    assert world.members() == [second.member_id]


def test_a_new_member_whose_process_has_ended_leaves() -> None:
    world = World()
    first, _ = world.two(rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_MS)
    ticket = world.join(rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_MS)
    for _ in range(NEW_MEMBER_JOIN_MS // 5_000):
        with pytest.raises(RebalanceInProgressError):
            world.beat(first)
        world.passes(5_000)
    assert isinstance(world.answers[ticket], UnknownMemberIdError)


def test_a_member_that_lost_its_answer_gets_it_again() -> None:
    world = World()
    joined = world.answers[world.join()]
    assert world.answers[world.join(joined.member_id)] == joined
    assert world.state is ClassicState.COMPLETING_REBALANCE


def test_a_follower_that_joins_again_unchanged_changes_nothing_but_a_leader_begins_a_rebalance() -> None:
    world = World()
    first, second = world.two()
    assert world.answers[world.join(second.member_id)].generation == 2
    assert world.state is ClassicState.STABLE
    world.join(first.member_id)
    assert world.state is ClassicState.PREPARING_REBALANCE


def test_the_protocol_with_most_votes_among_the_common_ones_wins() -> None:
    world = World()
    first = world.answers[world.join(protocols=(("sticky", b"s"), ("range", b"r")))]
    world.join(protocols=BOTH)
    world.join(protocols=BOTH)
    ticket = world.join(first.member_id, protocols=(("sticky", b"s"), ("range", b"r")))
    assert world.answers[ticket].protocol == "range"
    with pytest.raises(InconsistentGroupProtocolError):
        world.join(protocols=(("other", b""),))


def test_generations_and_members_are_fenced() -> None:
    world = World()
    first, _ = world.two()
    with pytest.raises(IllegalGenerationError):
        world.beat(first._replace(generation=1))
    with pytest.raises(IllegalGenerationError):
        world.sync(first._replace(generation=3))
    with pytest.raises(UnknownMemberIdError):
        world.beat(first._replace(member_id="stranger"))
    with pytest.raises(InconsistentGroupProtocolError):
        world.sync(first, protocol="sticky")
    with pytest.raises(InconsistentGroupProtocolError):
        world.sync(first, protocol_type="connect")


@pytest.mark.parametrize(
    ("generation", "member", "error"),
    [(2, "first", None), (1, "first", IllegalGenerationError), (3, "first", IllegalGenerationError),
     (2, "stranger", UnknownMemberIdError), (-1, "", UnknownMemberIdError)],
)  # fmt: skip
def test_commits_are_checked_against_member_and_generation(
    generation: int, member: str, error: type[HeadraceError] | None
) -> None:
    world = World()
    first, _ = world.two()
    member_id = first.member_id if member == "first" else member
    if error is None:
        world.groups.check_commit("g", member_id, generation, None)
    else:
        with pytest.raises(error):
            world.groups.check_commit("g", member_id, generation, None)


def test_a_member_may_commit_during_the_join_phase_but_not_before_its_assignment() -> None:
    world = World()
    first, second = world.two()
    world.join()
    world.groups.check_commit("g", second.member_id, 2, None)
    first = world.answers[world.join(first.member_id)] if world.join(second.member_id) else first
    assert world.state is ClassicState.COMPLETING_REBALANCE
    with pytest.raises(RebalanceInProgressError):
        world.groups.check_commit("g", first.member_id, first.generation, None)


def test_a_plain_consumer_commits_to_an_empty_group() -> None:
    world = World()
    joined = world.answers[world.join()]
    world.sync(joined, assignments=())
    world.ask(LeaveClassic("g", (LeavingMember(joined.member_id),)))
    assert world.state is ClassicState.EMPTY
    world.groups.check_commit("g", "", -1, None)


def test_members_leave_one_by_one_with_a_result_for_each() -> None:
    world = World()
    first, second = world.two()
    left = world.ask(LeaveClassic("g", (LeavingMember(second.member_id), LeavingMember("stranger"))))
    assert left.errors[0] is None
    assert isinstance(left.errors[1], UnknownMemberIdError)
    assert world.members() == [first.member_id]
    with pytest.raises(UnknownMemberIdError):
        world.ask(LeaveClassic("nowhere", (LeavingMember("m1"),)))


def test_the_last_member_leaves_an_empty_group_with_a_record() -> None:
    world = World()
    first, second = world.two()
    world.ask(LeaveClassic("g", (LeavingMember(first.member_id), LeavingMember(second.member_id))))
    assert world.state is ClassicState.EMPTY
    record = decode_value(world.log[-1][1] or b"")
    assert (record.members, record.generation, record.leader) == ((), 3, None)
    world.groups.delete("g")
    with pytest.raises(GroupIdNotFoundError):
        world.groups.delete("g")


def test_a_group_with_members_is_not_deleted() -> None:
    world = World()
    world.two()
    with pytest.raises(NonEmptyGroupError):
        world.groups.delete("g")


# -- static members (KIP-345) ------------------------------------------------------------------------------------------


def static(world: World) -> Joined:
    joined: Joined = world.answers[world.join(instance_id="a")]
    world.sync(joined, assignments=((joined.member_id, b"all"),))
    return joined


def test_a_static_members_new_process_takes_over_without_a_rebalance() -> None:
    world = World()
    old = static(world)
    new = world.answers[world.join(instance_id="a")]
    assert world.state is ClassicState.STABLE
    assert (new.generation, new.member_id != old.member_id) == (old.generation, True)
    assert new.leader == old.member_id, "without KIP-814 it must not assign"
    assert world.answers[world.sync(new)].assignment == b"all"
    with pytest.raises(FencedInstanceIdError):
        world.beat(old, instance_id="a")
    with pytest.raises(UnknownMemberIdError):
        world.beat(old)


def test_a_static_leader_that_returns_may_skip_the_assignment() -> None:
    """KIP-814."""
    world = World()
    static(world)
    new = world.answers[world.join(instance_id="a", can_skip_assignment=True)]
    assert new.skip_assignment
    assert new.leader == new.member_id
    assert len(new.members) == 1


def test_a_static_member_with_other_data_begins_a_rebalance() -> None:
    world = World()
    static(world)
    new = world.answers[world.join(instance_id="a", protocols=(("range", b"other topics"),))]
    assert new.generation == 2


def test_a_waiting_process_is_fenced_when_another_takes_its_instance_id() -> None:
    world = World()
    world.two()
    waiting = world.join(instance_id="a")
    world.join(instance_id="a")
    assert isinstance(world.answers[waiting], FencedInstanceIdError)


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    world = World()
    static(world)
    left = world.ask(LeaveClassic("g", (LeavingMember("", "a"),)))
    assert left.errors == (None,)
    assert world.members() == []


# -- other coordinators ------------------------------------------------------------------------------------------------


def test_members_go_on_in_their_generation_at_the_next_coordinator() -> None:
    world = World()
    first, second = world.two()
    other = world.restarted()
    other.beat(first)
    assert other.answers[other.sync(second)].assignment == b"2"
    other.passes(SESSION_MS)
    assert other.members() == [], "sessions begin again, and end as before"


def test_a_member_that_never_comes_to_the_next_coordinator_is_removed_after_its_session() -> None:
    world = World()
    first, _ = world.two()
    later = world.restarted()
    later.passes(SESSION_MS - 1)
    assert len(later.members()) == 2
    later.beat(first)
    later.passes(1)
    assert later.members() == [first.member_id]


def test_a_static_members_place_is_kept_at_the_next_coordinator() -> None:
    world = World()
    old = static(world)
    other = world.restarted()
    new = other.answers[other.join(instance_id="a")]
    assert new.generation == old.generation
    with pytest.raises(FencedInstanceIdError):
        other.beat(old, instance_id="a")


def test_a_deleted_group_is_gone_at_the_next_coordinator() -> None:
    world = World()
    first, second = world.two()
    world.ask(LeaveClassic("g", (LeavingMember(first.member_id), LeavingMember(second.member_id))))
    world.take(world.groups.delete("g"))
    assert world.restarted().groups.get("g") is None


# -- limits and bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [({"session_timeout_ms": 5_999}, InvalidSessionTimeoutError),
     ({"session_timeout_ms": 1_800_001}, InvalidSessionTimeoutError),
     ({"protocols": ()}, InconsistentGroupProtocolError)],
)  # fmt: skip
def test_a_join_is_checked_before_anything_changes(given: dict[str, Any], error: type[HeadraceError]) -> None:
    world = World()
    with pytest.raises(error):
        world.join(**given)
    assert world.groups.get("g") is None


@pytest.mark.parametrize("group_id", ["", "x" * 250])
def test_a_group_id_has_a_legal_length(group_id: str) -> None:
    world = World()
    with pytest.raises(InvalidGroupIdError):
        world.ask(Join(group_id, "", "m1", SESSION_MS, REBALANCE_MS, "consumer", RANGE, 1))


def test_assignments_that_do_not_fit_into_a_record_are_refused_and_the_generation_waits() -> None:
    world = World(record_bytes_max=1_000)
    joined = world.answers[world.join()]
    with pytest.raises(InvalidCommitOffsetSizeError):
        world.sync(joined, assignments=((joined.member_id, bytes(2_000)),))
    assert world.state is ClassicState.COMPLETING_REBALANCE
    world.sync(joined, assignments=((joined.member_id, b"small"),))
    assert world.state is ClassicState.STABLE


def test_every_state_is_in_the_table_and_dead_is_the_end() -> None:
    assert set(TRANSITIONS) == set(ClassicState)
    assert TRANSITIONS[ClassicState.DEAD] == frozenset()
    assert all(ClassicState.DEAD in to for state, to in TRANSITIONS.items() if state is not ClassicState.DEAD)


def test_records_are_kafkas_bytes() -> None:
    assert encode_key("g") == b"\0\2\0\1g"
    assert decode_key(b"\0\2\0\1g") == "g"
    member = MemberRecord("m", None, "c", "h", 3, 2, b"sub", b"ass")
    record = GroupRecord("consumer", 7, "range", "m", 99, (member,))
    data = encode_value(record)
    assert data == (
        b"\0\3" b"\0\x08consumer" b"\0\0\0\7" b"\0\5range" b"\0\1m" b"\0\0\0\0\0\0\0\x63" b"\0\0\0\1"
        b"\0\1m" b"\xff\xff" b"\0\1c" b"\0\1h" b"\0\0\0\3" b"\0\0\0\2" b"\0\0\0\3sub" b"\0\0\0\3ass"
    )  # fmt: skip
    assert decode_value(data) == record


def test_subscriptions_are_read_from_the_members_data() -> None:
    assert subscribed_topics(b"\0\1\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff") == ("a", "bc")
    assert subscribed_topics(b"") is None
    world = World()
    data = b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"
    joined = world.answers[world.join(protocols=(("range", data),))]
    world.sync(joined, assignments=())
    assert world.groups.subscribed("g", {"orders", "payments"}) == {"orders"}
