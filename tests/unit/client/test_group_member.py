"""A member of a group, driven by events and times: its requests, and the events for its consumer."""

from __future__ import annotations

import pytest

from headrace.group.member import (
    NOTHING,
    Answer,
    Assign,
    Event,
    Failed,
    Lost,
    Member,
    Part,
    Parts,
    PauseCause,
    Request,
    Resumed,
    Revoke,
    Suspended,
)
from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    HeadraceError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

INTERVAL_S, SESSION_S, GRACE_S = 5.0, 45.0, 1.5


def parts(*numbers: int) -> Parts:
    return frozenset(Part(b"i" * 16, "t", number) for number in numbers)


class Connected:
    """A member with short helpers for its coordinator's messages, and a clock."""

    def __init__(self, *, rebalance_timeout_s: float = 300.0) -> None:
        self.member = Member(rebalance_timeout_s=rebalance_timeout_s)
        self.now = 100.0
        self.epoch = 0
        self.revision = 0
        self.shard_epoch = 0
        self.age_s: float | None = None

    def joins(self, *numbers: int) -> None:
        """The member connects, joins, and reads these partitions."""
        self.member.join(self.now)
        self.member.connected(self.now)
        self.answers(1, parts(*numbers))
        (assign,) = self.events()
        assert isinstance(assign, Assign)
        self.member.begin(assign.ticket, self.now)
        self.answers()

    def asks(self) -> Request:
        request = self.member.request(self.now)
        assert request is not None
        return request

    def hears(self, number: int, epoch: int | None = None, assignment: Parts | None = None) -> None:
        if epoch is not None:
            self.epoch = epoch
        if assignment is not None:
            self.revision += 1
        self.member.answered(
            Answer(
                number,
                self.epoch,
                self.revision,
                assignment,
                INTERVAL_S,
                SESSION_S,
                GRACE_S,
                self.shard_epoch,
                self.age_s,
            ),
            self.now,
        )

    def answers(self, epoch: int | None = None, assignment: Parts | None = None) -> Request:
        request = self.asks()
        self.hears(request.number, epoch, assignment)
        return request

    def pushes(self, assignment: Parts, epoch: int | None = None) -> None:
        self.hears(0, epoch, assignment)

    def refuses(self, error: HeadraceError) -> None:
        self.member.refused(self.asks().number, error, self.now)

    def finds(self, shard_epoch: int, *, is_vacant: bool, age_s: float | None) -> None:
        """The member has looked up the owner of the shard."""
        as_of = None if age_s is None else self.now - age_s
        self.member.looked_up(shard_epoch, as_of, self.now, is_vacant=is_vacant)

    def passes(self, seconds: float) -> None:
        """Let time pass, with the member's regular checks of the clock."""
        end = self.now + seconds
        while (look := self.member.look_at()) < end:
            self.now = look
            self.member.tick(self.now)
        self.now = end
        self.member.tick(self.now)

    def sleeps(self, seconds: float) -> None:
        """The process pauses; its clock continues."""
        self.now += seconds
        self.member.tick(self.now)

    def events(self) -> list[Event]:
        return self.member.take_events()


@pytest.fixture
def fresh() -> Connected:
    return Connected()


def test_the_first_words_name_everything_and_the_next_only_what_changed(fresh: Connected) -> None:
    fresh.member.join(fresh.now)
    assert fresh.member.request(fresh.now) is None  # no connection exists on which the request could be sent
    fresh.member.connected(fresh.now)
    first = fresh.answers(1, parts(0, 1))
    assert first == Request(1, 0, 0, None, True)
    # the assignment is received, but the member owns no partition of it yet
    assert fresh.answers() == Request(2, 1, 1, NOTHING, False)
    (assign,) = fresh.events()
    assert isinstance(assign, Assign)
    assert assign.parts == parts(0, 1)
    assert fresh.member.begin(assign.ticket, fresh.now) == parts(0, 1)
    assert fresh.answers() == Request(3, 1, 1, parts(0, 1), False)
    assert fresh.member.request(fresh.now) is None
    assert fresh.member.next_at() == fresh.now + INTERVAL_S
    fresh.passes(INTERVAL_S)
    assert fresh.answers() == Request(4, 1, 1, None, False)


def test_one_request_at_a_time(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.passes(INTERVAL_S)
    fresh.asks()
    fresh.passes(INTERVAL_S)
    assert fresh.member.request(fresh.now) is None
    assert fresh.member.is_waiting
    assert fresh.member.next_at() == float("inf")


def test_what_goes_goes_before_anything_comes(fresh: Connected) -> None:
    fresh.joins(0, 1)
    fresh.pushes(parts(1, 2))
    (revoke,) = fresh.events()
    assert revoke == Revoke(revoke.ticket, parts(0))  # type: ignore[union-attr]
    assert fresh.answers().owned == parts(0, 1)  # still assigned, because the consumer has not released the partition
    assert fresh.events() == []
    fresh.member.released(revoke.ticket)  # type: ignore[union-attr]
    assert fresh.member.owned == parts(1)
    (assign,) = fresh.events()
    assert isinstance(assign, Assign)
    assert assign.parts == parts(2)
    assert fresh.answers().owned == parts(1)
    fresh.member.begin(assign.ticket, fresh.now)
    assert fresh.answers().owned == parts(1, 2)


def test_what_is_taken_back_before_it_was_begun_is_never_owned(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.pushes(parts(0, 1, 2))
    (assign,) = fresh.events()
    fresh.pushes(parts(0, 2))
    assert fresh.events() == []  # one change at a time
    assert fresh.member.begin(assign.ticket, fresh.now) == parts(2)  # type: ignore[union-attr]
    assert fresh.member.owned == parts(0, 2)
    assert fresh.events() == []


@pytest.mark.parametrize("kept", [parts(), parts(2)], ids=["alone", "with another one"])
def test_offsets_of_before_another_member_had_the_partition_are_not_used(fresh: Connected, kept: Parts) -> None:
    """The partition leaves the target and comes back while its committed offset is on its way. In between it was free,
    so another member may have read on and committed."""
    fresh.joins(0)
    fresh.pushes(parts(0, 1) | kept)
    (first,) = fresh.events()
    fresh.pushes(parts(0) | kept)
    assert fresh.answers().owned == parts(0)  # the coordinator may give it to another member
    fresh.pushes(parts(0, 1) | kept)
    assert fresh.member.begin(first.ticket, fresh.now) == kept  # type: ignore[union-attr]
    (again,) = fresh.events()
    assert isinstance(again, Assign)
    assert again.parts == parts(1)
    assert fresh.member.begin(again.ticket, fresh.now) == parts(1)
    assert fresh.member.owned == parts(0, 1) | kept


def test_a_partition_that_comes_back_at_once_waits_for_offsets_of_its_own(fresh: Connected) -> None:
    """The answers of both searches come in any order."""
    fresh.joins(0)
    fresh.pushes(parts(0, 1))
    (first,) = fresh.events()
    fresh.pushes(parts(0))
    fresh.pushes(parts(0, 1))
    (again,) = fresh.events()
    assert fresh.member.begin(again.ticket, fresh.now) == parts(1)  # type: ignore[union-attr]
    assert fresh.member.begin(first.ticket, fresh.now) == NOTHING  # type: ignore[union-attr]


def test_what_is_given_back_while_it_is_let_go_of_is_let_go_of_and_begun_anew(fresh: Connected) -> None:
    fresh.joins(0, 1)
    fresh.pushes(parts(0))
    (revoke,) = fresh.events()
    fresh.pushes(parts(0, 1))
    fresh.member.released(revoke.ticket)  # type: ignore[union-attr]
    assert fresh.member.owned == parts(0)
    (assign,) = fresh.events()
    assert isinstance(assign, Assign)
    assert assign.parts == parts(1)


def test_a_connection_that_is_back_within_the_grace_stops_nothing(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.member.disconnected(fresh.now)
    fresh.passes(GRACE_S * 0.9)
    fresh.member.connected(fresh.now)
    again = fresh.answers()
    assert again.is_full
    assert again.epoch == 1
    assert again.owned == parts(0)
    fresh.passes(GRACE_S)
    assert fresh.events() == []


def test_beyond_the_grace_nothing_is_read_until_the_coordinator_has_answered(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.member.disconnected(fresh.now)
    assert fresh.member.lease_ends_at() == fresh.now + GRACE_S
    fresh.passes(GRACE_S)
    (suspended,) = fresh.events()
    assert isinstance(suspended, Suspended)
    assert fresh.member.lease_ends_at() == float("inf")
    fresh.member.connected(fresh.now)  # which does not yet prove ownership
    fresh.passes(0.1)
    assert fresh.events() == []
    fresh.answers()
    assert fresh.events() == [Resumed()]


def test_connections_that_break_again_before_an_answer_have_one_grace_together(fresh: Connected) -> None:
    fresh.joins(0)
    for _ in range(3):
        fresh.member.disconnected(fresh.now)
        fresh.passes(GRACE_S * 0.4)
        fresh.member.connected(fresh.now)
    assert [type(event) for event in fresh.events()] == [Suspended]


# -- the epochs of commits --------------------------------------------------------------------------------------------


def test_a_partition_to_release_is_committed_under_the_epoch_that_owned_it(fresh: Connected) -> None:
    """A later epoch may be the epoch of the partition's next ownership, even by the same member."""
    fresh.joins(0, 1)
    fresh.passes(INTERVAL_S)
    fresh.answers(3)
    assert fresh.member.ended == {}
    fresh.pushes(parts(0), 4)
    (revoke,) = fresh.events()
    fresh.pushes(parts(0), 6)
    assert fresh.member.epoch == 6
    assert fresh.member.ended == dict.fromkeys(parts(1), 3)
    fresh.member.released(revoke.ticket)  # type: ignore[union-attr]
    assert fresh.member.ended == {}


def test_a_partition_that_an_older_coordinator_gives_back_too_soon_keeps_the_epoch_that_ended(fresh: Connected) -> None:
    fresh.joins(0, 1)
    fresh.pushes(parts(0), 4)
    (revoke,) = fresh.events()
    fresh.pushes(parts(0, 1), 6)
    assert fresh.member.ended == dict.fromkeys(parts(1), 1)
    fresh.member.released(revoke.ticket)  # type: ignore[union-attr]
    (assign,) = fresh.events()
    fresh.member.begin(assign.ticket, fresh.now)  # type: ignore[union-attr]
    assert fresh.member.ended == {}
    assert fresh.member.owned == parts(0, 1)


def test_a_partition_that_an_older_coordinator_gives_back_behind_another_release_is_released_too(
    fresh: Connected,
) -> None:
    """Otherwise its commits would have the epoch that ended, and would be refused for ever."""
    fresh.joins(0, 1, 2)
    fresh.pushes(parts(0, 1), 4)
    fresh.pushes(parts(0), 5)
    fresh.pushes(parts(0, 1), 6)
    for number in (2, 1):
        (revoke,) = fresh.events()
        assert isinstance(revoke, Revoke)
        assert revoke.parts == parts(number)
        assert parts(1) <= fresh.member.ended.keys()
        fresh.member.released(revoke.ticket)
    (assign,) = fresh.events()
    assert isinstance(assign, Assign)
    assert fresh.member.begin(assign.ticket, fresh.now) == parts(1)
    assert fresh.member.owned == parts(0, 1)
    assert not fresh.member.ended
    assert not fresh.events()


def test_partitions_that_end_one_after_the_other_have_their_own_epochs(fresh: Connected) -> None:
    fresh.joins(0, 1, 2)
    fresh.pushes(parts(0, 1), 2)
    fresh.pushes(parts(0), 3)
    assert fresh.member.ended == {**dict.fromkeys(parts(2), 1), **dict.fromkeys(parts(1), 2)}
    fresh.member.lost("")
    assert fresh.member.ended == {}


def test_what_others_may_have_by_now_is_let_go_of_before_reading_goes_on(fresh: Connected) -> None:
    fresh.joins(0, 1)
    fresh.member.disconnected(fresh.now)
    fresh.passes(GRACE_S)
    fresh.member.connected(fresh.now)
    fresh.events()
    fresh.answers(2, parts(1))
    revoke, resumed = fresh.events()  # in this order: reading of revoked partitions stops first
    assert isinstance(revoke, Revoke)
    assert revoke.parts == parts(0)
    assert resumed == Resumed()


def test_reading_goes_on_only_when_every_partition_to_release_has_been_named(fresh: Connected) -> None:
    """A static member's caller is slow to release one partition; before the release, the coordinator reassigns another
    partition of the member. The member is suspended at that time. The member's next response proves the lease, but not
    for the second partition, whose revocation must wait for the end of the first revocation."""
    fresh.joins(0, 1, 2)
    fresh.pushes(parts(0, 1))
    (first,) = fresh.events()
    assert isinstance(first, Revoke)
    fresh.member.disconnected(fresh.now)
    fresh.passes(GRACE_S)
    assert [type(event) for event in fresh.events()] == [Suspended]
    fresh.member.connected(fresh.now)
    fresh.answers(assignment=parts(0))
    assert fresh.events() == []
    assert fresh.member.is_suspended
    fresh.member.released(first.ticket)
    (second,) = fresh.events()
    assert isinstance(second, Revoke)
    assert second.parts == parts(1)
    fresh.passes(GRACE_S / 3)
    assert fresh.events() == [Resumed()]


def test_a_coordinator_that_is_silent_for_a_session_is_believed_no_longer(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.passes(INTERVAL_S)
    fresh.asks()
    fresh.passes(SESSION_S - INTERVAL_S - 0.1)
    assert fresh.events() == []
    fresh.passes(0.1)
    assert [type(event) for event in fresh.events()] == [Suspended]


def test_the_session_counts_from_when_the_answered_request_was_sent(fresh: Connected) -> None:
    """The coordinator counts the session from the arrival of the request, which may be long before the member reads the
    answer."""
    fresh.joins(0)
    fresh.passes(INTERVAL_S)
    request = fresh.asks()
    sent = fresh.now
    fresh.passes(30.0)
    fresh.hears(request.number)
    assert fresh.member.lease_ends_at() == sent + SESSION_S


def test_a_push_is_no_answer_and_renews_no_lease(fresh: Connected) -> None:
    fresh.joins(0)
    before = fresh.member.lease_ends_at()
    fresh.passes(30.0)
    fresh.pushes(parts(0, 1))
    assert fresh.member.lease_ends_at() == before


def test_a_process_that_stood_still_reads_nothing_until_it_was_answered(fresh: Connected) -> None:
    """The member's connection may have broken while its machine slept, and the grace period may be over. The member
    notices the break only now."""
    fresh.joins(0)
    fresh.passes(INTERVAL_S)
    late = fresh.asks()
    assert fresh.events() == []
    fresh.sleeps(GRACE_S)
    (suspended,) = fresh.events()
    assert isinstance(suspended, Suspended)
    assert "was paused" in suspended.why
    fresh.hears(late.number)  # the answer belongs to an earlier request, and may have been in a buffer
    assert fresh.events() == []
    fresh.answers()  # asked at once
    assert fresh.events() == [Resumed()]


def test_a_member_that_reads_nothing_has_nothing_to_stop(fresh: Connected) -> None:
    fresh.member.join(fresh.now)
    fresh.member.connected(fresh.now)
    fresh.answers(1, NOTHING)
    fresh.member.disconnected(fresh.now)
    fresh.passes(100.0)
    assert fresh.events() == []


@pytest.mark.parametrize("error", [UnknownMemberIdError("who?"), FencedMemberEpochError("too old")])
def test_a_member_that_is_none_any_more_says_what_it_lost_and_joins_anew(
    fresh: Connected, error: HeadraceError
) -> None:
    fresh.joins(0, 1)
    fresh.passes(INTERVAL_S)
    fresh.refuses(error)
    (lost,) = fresh.events()
    assert isinstance(lost, Lost)
    assert lost.parts == parts(0, 1)
    assert error.message in lost.why
    again = fresh.asks()
    assert (again.epoch, again.revision, again.owned, again.is_full) == (0, 0, None, True)


def test_answers_to_an_earlier_membership_count_for_nothing(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.passes(INTERVAL_S)
    late = fresh.asks()
    fresh.member.lost("evicted")
    fresh.member.join(fresh.now)
    fresh.events()
    fresh.hears(late.number, 7, parts(0, 1))
    assert fresh.member.epoch == 0
    assert fresh.events() == []


def test_a_commit_of_the_change_before_it_was_lost_means_nothing(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.pushes(parts(0, 1))
    (assign,) = fresh.events()
    fresh.member.lost("evicted")
    assert fresh.member.begin(assign.ticket, fresh.now) == NOTHING  # type: ignore[union-attr]
    assert fresh.member.owned == NOTHING


def test_refusals_that_pass_are_waited_for(fresh: Connected) -> None:
    fresh.member.join(fresh.now)
    fresh.member.connected(fresh.now)
    for error in (UnreleasedInstanceIdError("the other lives"), CoordinatorLoadInProgressError("soon")):
        fresh.refuses(error)
        assert fresh.member.request(fresh.now) is None
        assert fresh.member.next_at() > fresh.now
        fresh.now = fresh.member.next_at()
    assert fresh.asks().is_full
    assert fresh.events() == []


def test_a_refusal_for_good_ends_the_membership(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.passes(INTERVAL_S)
    error = FencedInstanceIdError("another one has it")
    fresh.refuses(error)
    lost, failed = fresh.events()
    assert isinstance(lost, Lost)
    assert failed == Failed(error)
    fresh.passes(INTERVAL_S)
    assert fresh.member.request(fresh.now) is None


def test_a_new_subscription_is_reported_at_once_and_in_full(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.member.subscribed_anew()
    request = fresh.asks()
    assert request.is_full
    assert request.owned == parts(0)


def test_a_member_that_left_says_nothing_and_owns_nothing(fresh: Connected) -> None:
    fresh.joins(0)
    assert fresh.member.left() == parts(0)
    fresh.passes(INTERVAL_S)
    assert fresh.member.request(fresh.now) is None
    assert fresh.events() == []


def test_what_a_refused_request_named_is_named_again(fresh: Connected) -> None:
    """A coordinator that has just taken the shard over did not receive the new subscription."""
    fresh.joins(0)
    fresh.member.subscribed_anew()
    fresh.refuses(CoordinatorLoadInProgressError("soon"))
    fresh.now = fresh.member.next_at()
    assert fresh.asks().is_full


def test_what_goes_does_not_wait_for_what_comes(fresh: Connected) -> None:
    """The lookup of a new partition's start offset may take long, while another member waits for the revoked
    partition."""
    fresh.joins(0, 1)
    fresh.pushes(parts(0, 1, 2))
    (assign,) = fresh.events()
    assert isinstance(assign, Assign)
    fresh.pushes(parts(1, 2))
    (revoke,) = fresh.events()
    assert isinstance(revoke, Revoke)
    assert revoke.parts == parts(0)
    assert fresh.member.begin(assign.ticket, fresh.now) == NOTHING
    fresh.member.released(revoke.ticket)
    (again,) = fresh.events()
    assert isinstance(again, Assign)
    assert again.parts == parts(2)
    assert fresh.member.begin(again.ticket, fresh.now) == parts(2)
    assert fresh.member.owned == parts(1, 2)


@pytest.mark.parametrize("silent_s", [GRACE_S, SESSION_S])
def test_what_was_assigned_before_the_lease_was_over_is_not_begun_before_an_answer(
    fresh: Connected, silent_s: float
) -> None:
    """The lookup of the start offset took long; in that time the coordinator may have removed the member."""
    fresh.member.join(fresh.now)
    fresh.member.connected(fresh.now)
    fresh.answers(1, parts(0))
    (assign,) = fresh.events()
    assert isinstance(assign, Assign)
    if silent_s < SESSION_S:
        fresh.member.disconnected(fresh.now)
    fresh.now += silent_s
    assert fresh.member.begin(assign.ticket, fresh.now) == NOTHING
    assert fresh.member.owned == NOTHING
    fresh.member.disconnected(fresh.now)
    fresh.member.connected(fresh.now)
    fresh.answers()
    (again,) = fresh.events()
    assert isinstance(again, Assign)
    assert fresh.member.begin(again.ticket, fresh.now) == parts(0)


# -- without a coordinator: the metadata prove that the member was not removed -----------------------------------------

EPOCH = 7


@pytest.fixture
def alone() -> Connected:
    """An owner of epoch 7 answered the member, one second after this owner had last confirmed its ownership. The
    connection has just broken."""
    alone = Connected()
    alone.shard_epoch, alone.age_s = EPOCH, 1.0
    alone.joins(0)
    alone.member.disconnected(alone.now)
    return alone


def test_without_a_coordinator_reading_goes_on_for_as_long_as_the_metadata_say_that_there_is_none(
    alone: Connected,
) -> None:
    answered_at = alone.now
    alone.passes(GRACE_S * 0.9)
    alone.finds(EPOCH + 1, is_vacant=True, age_s=None)
    assert alone.member.lease_ends_at() == answered_at - 1.0 + SESSION_S, "from when the last one still was the owner"
    for _ in range(20):
        alone.passes(SESSION_S * 0.9)
        alone.finds(EPOCH + 1, is_vacant=True, age_s=0.2)
        assert alone.member.lease_ends_at() == pytest.approx(alone.now - 0.2 + SESSION_S)
    assert alone.events() == []
    alone.member.connected(alone.now)
    alone.shard_epoch = EPOCH + 2
    alone.answers()
    assert not alone.member.is_orphaned
    alone.member.disconnected(alone.now)
    alone.passes(GRACE_S)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_metadata_that_are_never_new_enough_renew_nothing(alone: Connected) -> None:
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    end = alone.member.lease_ends_at()
    for _ in range(10):
        alone.passes(4.0)
        alone.finds(EPOCH + 1, is_vacant=True, age_s=60.0)
        alone.finds(EPOCH + 1, is_vacant=True, age_s=None)
        assert alone.member.lease_ends_at() == end
    alone.passes(end - alone.now)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_news_that_come_after_the_grace_come_too_late(alone: Connected) -> None:
    """The coordinator may have removed the member before the coordinator was deposed."""
    alone.passes(GRACE_S)
    alone.events()
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    alone.passes(1.0)
    assert alone.events() == []
    assert alone.member.is_suspended


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH, 0])
def test_a_vacancy_that_was_filled_by_its_own_coordinator_means_nothing(alone: Connected, epoch: int) -> None:
    alone.finds(epoch, is_vacant=epoch != EPOCH, age_s=0.0)
    alone.passes(GRACE_S)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_the_next_owner_ends_the_grace_and_renews_nothing(alone: Connected) -> None:
    """The new coordinator may have begun to count the session at any time since the previous coordinator was
    deposed."""
    end = alone.now - 1.0 + SESSION_S
    alone.finds(EPOCH + 2, is_vacant=False, age_s=0.0)
    assert alone.member.lease_ends_at() == end
    alone.passes(20.0)
    alone.finds(EPOCH + 2, is_vacant=False, age_s=0.0)
    assert alone.member.lease_ends_at() == end
    # and this coordinator ends too, before it can have removed the member
    alone.finds(EPOCH + 3, is_vacant=True, age_s=0.0)
    assert alone.member.lease_ends_at() == alone.now + SESSION_S


def test_a_vacancy_before_an_owner_who_was_seen_renews_nothing_however_young_it_looks(alone: Connected) -> None:
    """The age was measured by the clock of another machine, which may have been suspended."""
    alone.finds(EPOCH + 2, is_vacant=False, age_s=0.0)
    end = alone.member.lease_ends_at()
    alone.passes(20.0)
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.2)
    assert alone.member.lease_ends_at() == end


def test_a_request_that_was_lost_makes_all_later_news_doubtful(alone: Connected) -> None:
    """The coordinator that received the lost request, under any epoch, counts the grace period from the moment when it
    saw the break."""
    alone.member.connected(alone.now)
    alone.asks()
    alone.member.disconnected(alone.now)
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    assert not alone.member.is_orphaned
    alone.passes(GRACE_S)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_a_request_that_nobody_took_notice_of_does_not(alone: Connected) -> None:
    alone.member.connected(alone.now)
    alone.member.not_coordinator(alone.asks().number)
    alone.member.disconnected(alone.now)
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    alone.passes(GRACE_S)
    assert alone.events() == []


def test_a_connection_to_somebody_who_never_answers_has_its_grace(alone: Connected) -> None:
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    alone.passes(10.0)
    alone.member.connected(alone.now)
    alone.asks()
    alone.member.disconnected(alone.now)
    alone.finds(EPOCH + 3, is_vacant=True, age_s=0.0)
    alone.passes(GRACE_S)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_a_coordinator_that_does_not_say_its_epoch_leaves_the_grace_as_it_was(fresh: Connected) -> None:
    fresh.joins(0)
    fresh.member.disconnected(fresh.now)
    fresh.finds(EPOCH, is_vacant=True, age_s=0.0)
    fresh.passes(GRACE_S)
    assert [type(event) for event in fresh.events()] == [Suspended]


def test_news_are_needed_by_who_reads_and_is_not_answered(alone: Connected) -> None:
    assert alone.member.needs_news
    alone.member.connected(alone.now)
    assert not alone.member.needs_news
    alone.member.disconnected(alone.now)
    alone.passes(GRACE_S)
    assert not alone.member.needs_news, "they come too late"


# -- late releases: the coordinator removes a member in contact that has not released within the rebalance timeout ----

REBALANCE_S = 20.0


def late_to_release() -> Connected:
    """A member that has partitions 0 and 1, and had to release partition 0 long ago."""
    late = Connected(rebalance_timeout_s=REBALANCE_S)
    late.shard_epoch, late.age_s = 3, 0.0
    late.joins(0, 1)
    late.pushes(parts(1))
    late.answers()
    for _ in range(4):
        late.passes(INTERVAL_S)
        late.answers()
    late.passes(1.0)
    return late


def test_a_late_release_alone_stops_nothing() -> None:
    late = late_to_release()
    assert not late.member.is_suspended


def test_a_member_with_a_late_release_stops_when_its_connection_breaks() -> None:
    late = late_to_release()
    late.events()
    late.member.disconnected(late.now)
    late.member.tick(late.now)
    (suspended,) = late.events()
    assert isinstance(suspended, Suspended)
    assert suspended.cause == PauseCause.LATE_RELEASE
    assert "rebalance timeout of 20 s" in suspended.why
    late.finds(4, is_vacant=True, age_s=0.0)  # the coordinator may have removed the member before it lost the shard
    assert late.member.is_suspended
    late.member.connected(late.now)
    late.member.tick(late.now)
    assert late.member.is_suspended  # nothing is known yet
    late.answers()
    assert not late.member.is_suspended


def test_a_release_that_no_answer_confirmed_is_still_late() -> None:
    late = late_to_release()
    revoke = next(event for event in late.events() if isinstance(event, Revoke))
    late.member.disconnected(late.now)
    late.member.released(revoke.ticket)
    late.member.tick(late.now)
    assert late.member.is_suspended


def test_a_member_without_a_connection_stops_at_its_rebalance_timeout() -> None:
    late = Connected(rebalance_timeout_s=GRACE_S / 2)
    late.joins(0, 1)
    late.pushes(parts(1))
    late.answers()
    late.member.disconnected(late.now)
    assert late.member.reads_until() == late.now + GRACE_S / 2
    late.passes(GRACE_S / 2 - 0.01)
    assert not late.member.is_suspended
    late.passes(0.01)
    assert late.member.is_suspended


def test_a_release_in_time_is_forgotten_with_the_next_answer() -> None:
    prompt = Connected(rebalance_timeout_s=GRACE_S / 2)
    prompt.joins(0, 1)
    prompt.pushes(parts(1))
    revoke = next(event for event in prompt.events() if isinstance(event, Revoke))
    prompt.member.released(revoke.ticket)
    prompt.answers()
    prompt.member.disconnected(prompt.now)
    prompt.passes(GRACE_S * 0.9)
    assert not prompt.member.is_suspended
