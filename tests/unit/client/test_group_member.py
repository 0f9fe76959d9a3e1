"""A member of a group, told events and times by hand: what it says, and what it has its consumer do."""

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


class Told:
    """A member, its coordinator's words as short as they can be, and a clock."""

    def __init__(self) -> None:
        self.member = Member()
        self.now = 100.0
        self.epoch = 0
        self.revision = 0
        self.shard_epoch = 0
        self.age_s: float | None = None

    def joins(self, *numbers: int) -> None:
        """It connects, joins, and reads these."""
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
        self.member.heard(
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
        """It has looked up who has the shard."""
        as_of = None if age_s is None else self.now - age_s
        self.member.looked_up(shard_epoch, as_of, self.now, is_vacant=is_vacant)

    def passes(self, seconds: float) -> None:
        """Time, with its looks at the clock."""
        end = self.now + seconds
        while (look := self.member.look_at()) < end:
            self.now = look
            self.member.tick(self.now)
        self.now = end
        self.member.tick(self.now)

    def sleeps(self, seconds: float) -> None:
        """The process does; its clock goes on."""
        self.now += seconds
        self.member.tick(self.now)

    def events(self) -> list[Event]:
        return self.member.take_events()


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_first_words_name_everything_and_the_next_only_what_changed(told: Told) -> None:
    told.member.join(told.now)
    assert told.member.request(told.now) is None  # there is no connection to send it on
    told.member.connected(told.now)
    first = told.answers(1, parts(0, 1))
    assert first == Request(1, 0, 0, None, True)
    assert told.answers() == Request(2, 1, 1, NOTHING, False)  # the assignment is heard, and nothing of it owned yet
    (assign,) = told.events()
    assert isinstance(assign, Assign)
    assert assign.parts == parts(0, 1)
    assert told.member.begin(assign.ticket, told.now) == parts(0, 1)
    assert told.answers() == Request(3, 1, 1, parts(0, 1), False)
    assert told.member.request(told.now) is None
    assert told.member.next_at() == told.now + INTERVAL_S
    told.passes(INTERVAL_S)
    assert told.answers() == Request(4, 1, 1, None, False)


def test_one_request_at_a_time(told: Told) -> None:
    told.joins(0)
    told.passes(INTERVAL_S)
    told.asks()
    told.passes(INTERVAL_S)
    assert told.member.request(told.now) is None
    assert told.member.is_waiting
    assert told.member.next_at() == float("inf")


def test_what_goes_goes_before_anything_comes(told: Told) -> None:
    told.joins(0, 1)
    told.pushes(parts(1, 2))
    (revoke,) = told.events()
    assert revoke == Revoke(revoke.ticket, parts(0))  # type: ignore[union-attr]
    assert told.answers().owned == parts(0, 1)  # still: the consumer has not let go
    assert told.events() == []
    told.member.released(revoke.ticket)  # type: ignore[union-attr]
    assert told.member.owned == parts(1)
    (assign,) = told.events()
    assert isinstance(assign, Assign)
    assert assign.parts == parts(2)
    assert told.answers().owned == parts(1)
    told.member.begin(assign.ticket, told.now)
    assert told.answers().owned == parts(1, 2)


def test_what_is_taken_back_before_it_was_begun_is_never_owned(told: Told) -> None:
    told.joins(0)
    told.pushes(parts(0, 1, 2))
    (assign,) = told.events()
    told.pushes(parts(0, 2))
    assert told.events() == []  # one change at a time
    assert told.member.begin(assign.ticket, told.now) == parts(2)  # type: ignore[union-attr]
    assert told.member.owned == parts(0, 2)
    assert told.events() == []


def test_what_is_given_back_while_it_is_let_go_of_is_let_go_of_and_begun_anew(told: Told) -> None:
    told.joins(0, 1)
    told.pushes(parts(0))
    (revoke,) = told.events()
    told.pushes(parts(0, 1))
    told.member.released(revoke.ticket)  # type: ignore[union-attr]
    assert told.member.owned == parts(0)
    (assign,) = told.events()
    assert isinstance(assign, Assign)
    assert assign.parts == parts(1)


def test_a_connection_that_is_back_within_the_grace_stops_nothing(told: Told) -> None:
    told.joins(0)
    told.member.disconnected(told.now)
    told.passes(GRACE_S * 0.9)
    told.member.connected(told.now)
    again = told.answers()
    assert again.is_full
    assert again.epoch == 1
    assert again.owned == parts(0)
    told.passes(GRACE_S)
    assert told.events() == []


def test_beyond_the_grace_nothing_is_read_until_the_coordinator_has_answered(told: Told) -> None:
    told.joins(0)
    told.member.disconnected(told.now)
    assert told.member.lease_ends_at() == told.now + GRACE_S
    told.passes(GRACE_S)
    (suspended,) = told.events()
    assert isinstance(suspended, Suspended)
    assert told.member.lease_ends_at() == float("inf")
    told.member.connected(told.now)  # which does not yet prove ownership
    told.passes(0.1)
    assert told.events() == []
    told.answers()
    assert told.events() == [Resumed()]


def test_connections_that_break_again_before_an_answer_have_one_grace_together(told: Told) -> None:
    told.joins(0)
    for _ in range(3):
        told.member.disconnected(told.now)
        told.passes(GRACE_S * 0.4)
        told.member.connected(told.now)
    assert [type(event) for event in told.events()] == [Suspended]


def test_what_others_may_have_by_now_is_let_go_of_before_reading_goes_on(told: Told) -> None:
    told.joins(0, 1)
    told.member.disconnected(told.now)
    told.passes(GRACE_S)
    told.member.connected(told.now)
    told.events()
    told.answers(2, parts(1))
    revoke, resumed = told.events()  # in this order: what is revoked is stopped first
    assert isinstance(revoke, Revoke)
    assert revoke.parts == parts(0)
    assert resumed == Resumed()


def test_a_coordinator_that_is_silent_for_a_session_is_believed_no_longer(told: Told) -> None:
    told.joins(0)
    told.passes(INTERVAL_S)
    told.asks()
    told.passes(SESSION_S - INTERVAL_S - 0.1)
    assert told.events() == []
    told.passes(0.1)
    assert [type(event) for event in told.events()] == [Suspended]


def test_the_session_counts_from_when_the_answered_request_was_sent(told: Told) -> None:
    """The coordinator counts from when it got the request, which may be long before its answer is read."""
    told.joins(0)
    told.passes(INTERVAL_S)
    request = told.asks()
    sent = told.now
    told.passes(30.0)
    told.hears(request.number)
    assert told.member.lease_ends_at() == sent + SESSION_S


def test_a_push_is_no_answer_and_renews_no_lease(told: Told) -> None:
    told.joins(0)
    before = told.member.lease_ends_at()
    told.passes(30.0)
    told.pushes(parts(0, 1))
    assert told.member.lease_ends_at() == before


def test_a_process_that_stood_still_reads_nothing_until_it_was_answered(told: Told) -> None:
    """Its connection may have broken while it slept, and the grace be over: it would see the break only now."""
    told.joins(0)
    told.passes(INTERVAL_S)
    late = told.asks()
    assert told.events() == []
    told.sleeps(GRACE_S)
    (suspended,) = told.events()
    assert isinstance(suspended, Suspended)
    assert "was paused" in suspended.why
    told.hears(late.number)  # it was asked before, and may have lain in a buffer
    assert told.events() == []
    told.answers()  # asked at once
    assert told.events() == [Resumed()]


def test_a_member_that_reads_nothing_has_nothing_to_stop(told: Told) -> None:
    told.member.join(told.now)
    told.member.connected(told.now)
    told.answers(1, NOTHING)
    told.member.disconnected(told.now)
    told.passes(100.0)
    assert told.events() == []


@pytest.mark.parametrize("error", [UnknownMemberIdError("who?"), FencedMemberEpochError("too old")])
def test_a_member_that_is_none_any_more_says_what_it_lost_and_joins_anew(told: Told, error: HeadraceError) -> None:
    told.joins(0, 1)
    told.passes(INTERVAL_S)
    told.refuses(error)
    (lost,) = told.events()
    assert isinstance(lost, Lost)
    assert lost.parts == parts(0, 1)
    assert error.message in lost.why
    again = told.asks()
    assert (again.epoch, again.revision, again.owned, again.is_full) == (0, 0, None, True)


def test_what_was_said_of_an_earlier_membership_is_not_heard(told: Told) -> None:
    told.joins(0)
    told.passes(INTERVAL_S)
    late = told.asks()
    told.member.lost("evicted")
    told.member.join(told.now)
    told.events()
    told.hears(late.number, 7, parts(0, 1))
    assert told.member.epoch == 0
    assert told.events() == []


def test_a_commit_of_the_change_before_it_was_lost_means_nothing(told: Told) -> None:
    told.joins(0)
    told.pushes(parts(0, 1))
    (assign,) = told.events()
    told.member.lost("evicted")
    assert told.member.begin(assign.ticket, told.now) == NOTHING  # type: ignore[union-attr]
    assert told.member.owned == NOTHING


def test_refusals_that_pass_are_waited_for(told: Told) -> None:
    told.member.join(told.now)
    told.member.connected(told.now)
    for error in (UnreleasedInstanceIdError("the other lives"), CoordinatorLoadInProgressError("soon")):
        told.refuses(error)
        assert told.member.request(told.now) is None
        assert told.member.next_at() > told.now
        told.now = told.member.next_at()
    assert told.asks().is_full
    assert told.events() == []


def test_a_refusal_for_good_ends_the_membership(told: Told) -> None:
    told.joins(0)
    told.passes(INTERVAL_S)
    error = FencedInstanceIdError("another one has it")
    told.refuses(error)
    lost, failed = told.events()
    assert isinstance(lost, Lost)
    assert failed == Failed(error)
    told.passes(INTERVAL_S)
    assert told.member.request(told.now) is None


def test_a_new_subscription_is_told_at_once_and_in_full(told: Told) -> None:
    told.joins(0)
    told.member.subscribed_anew()
    request = told.asks()
    assert request.is_full
    assert request.owned == parts(0)


def test_a_member_that_left_says_nothing_and_owns_nothing(told: Told) -> None:
    told.joins(0)
    assert told.member.left() == parts(0)
    told.passes(INTERVAL_S)
    assert told.member.request(told.now) is None
    assert told.events() == []


def test_what_a_refused_request_named_is_named_again(told: Told) -> None:
    """A coordinator that has just taken over did not take the new subscription in."""
    told.joins(0)
    told.member.subscribed_anew()
    told.refuses(CoordinatorLoadInProgressError("soon"))
    told.now = told.member.next_at()
    assert told.asks().is_full


def test_what_goes_does_not_wait_for_what_comes(told: Told) -> None:
    """Finding the start of a new partition may take long: another member waits for the revoked one."""
    told.joins(0, 1)
    told.pushes(parts(0, 1, 2))
    (assign,) = told.events()
    assert isinstance(assign, Assign)
    told.pushes(parts(1, 2))
    (revoke,) = told.events()
    assert isinstance(revoke, Revoke)
    assert revoke.parts == parts(0)
    assert told.member.begin(assign.ticket, told.now) == NOTHING
    told.member.released(revoke.ticket)
    (again,) = told.events()
    assert isinstance(again, Assign)
    assert again.parts == parts(2)
    assert told.member.begin(again.ticket, told.now) == parts(2)
    assert told.member.owned == parts(1, 2)


@pytest.mark.parametrize("silent_s", [GRACE_S, SESSION_S])
def test_what_was_assigned_before_the_lease_was_over_is_not_begun_before_an_answer(told: Told, silent_s: float) -> None:
    """Where it begins was long in coming; meanwhile it may have been taken for gone."""
    told.member.join(told.now)
    told.member.connected(told.now)
    told.answers(1, parts(0))
    (assign,) = told.events()
    assert isinstance(assign, Assign)
    if silent_s < SESSION_S:
        told.member.disconnected(told.now)
    told.now += silent_s
    assert told.member.begin(assign.ticket, told.now) == NOTHING
    assert told.member.owned == NOTHING
    told.member.disconnected(told.now)
    told.member.connected(told.now)
    told.answers()
    (again,) = told.events()
    assert isinstance(again, Assign)
    assert told.member.begin(again.ticket, told.now) == parts(0)


# -- without a coordinator: the metadata prove that the member was not removed -----------------------------------------

EPOCH = 7


@pytest.fixture
def alone() -> Told:
    """It was answered by an owner of epoch 7, a second after that one last knew for certain that it was the owner, and
    the connection has just broken."""
    alone = Told()
    alone.shard_epoch, alone.age_s = EPOCH, 1.0
    alone.joins(0)
    alone.member.disconnected(alone.now)
    return alone


def test_without_a_coordinator_reading_goes_on_for_as_long_as_the_metadata_say_that_there_is_none(alone: Told) -> None:
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


def test_metadata_that_are_never_new_enough_renew_nothing(alone: Told) -> None:
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    end = alone.member.lease_ends_at()
    for _ in range(10):
        alone.passes(4.0)
        alone.finds(EPOCH + 1, is_vacant=True, age_s=60.0)
        alone.finds(EPOCH + 1, is_vacant=True, age_s=None)
        assert alone.member.lease_ends_at() == end
    alone.passes(end - alone.now)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_news_that_come_after_the_grace_come_too_late(alone: Told) -> None:
    """Its coordinator may have taken it for gone before it was deposed."""
    alone.passes(GRACE_S)
    alone.events()
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    alone.passes(1.0)
    assert alone.events() == []
    assert alone.member.is_suspended


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH, 0])
def test_a_vacancy_that_was_filled_by_its_own_coordinator_means_nothing(alone: Told, epoch: int) -> None:
    alone.finds(epoch, is_vacant=epoch != EPOCH, age_s=0.0)
    alone.passes(GRACE_S)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_the_next_owner_ends_the_grace_and_renews_nothing(alone: Told) -> None:
    """It may have begun to count at any moment since the one before it was deposed."""
    end = alone.now - 1.0 + SESSION_S
    alone.finds(EPOCH + 2, is_vacant=False, age_s=0.0)
    assert alone.member.lease_ends_at() == end
    alone.passes(20.0)
    alone.finds(EPOCH + 2, is_vacant=False, age_s=0.0)
    assert alone.member.lease_ends_at() == end
    alone.finds(EPOCH + 3, is_vacant=True, age_s=0.0)  # and it is gone, too, before it can have taken this one for gone
    assert alone.member.lease_ends_at() == alone.now + SESSION_S


def test_a_vacancy_before_an_owner_who_was_seen_renews_nothing_however_young_it_looks(alone: Told) -> None:
    """Its age is by the clock of another machine, which may have stood still."""
    alone.finds(EPOCH + 2, is_vacant=False, age_s=0.0)
    end = alone.member.lease_ends_at()
    alone.passes(20.0)
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.2)
    assert alone.member.lease_ends_at() == end


def test_a_request_that_was_lost_makes_all_later_news_doubtful(alone: Told) -> None:
    """The coordinator that received it, under any epoch, counts the grace period from the break that it saw."""
    alone.member.connected(alone.now)
    alone.asks()
    alone.member.disconnected(alone.now)
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    assert not alone.member.is_orphaned
    alone.passes(GRACE_S)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_a_request_that_nobody_took_notice_of_does_not(alone: Told) -> None:
    alone.member.connected(alone.now)
    alone.member.refused_unheard(alone.asks().number)
    alone.member.disconnected(alone.now)
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    alone.passes(GRACE_S)
    assert alone.events() == []


def test_a_connection_to_somebody_who_never_answers_has_its_grace(alone: Told) -> None:
    alone.finds(EPOCH + 1, is_vacant=True, age_s=0.0)
    alone.passes(10.0)
    alone.member.connected(alone.now)
    alone.asks()
    alone.member.disconnected(alone.now)
    alone.finds(EPOCH + 3, is_vacant=True, age_s=0.0)
    alone.passes(GRACE_S)
    assert [type(event) for event in alone.events()] == [Suspended]


def test_a_coordinator_that_does_not_say_its_epoch_leaves_the_grace_as_it_was(told: Told) -> None:
    told.joins(0)
    told.member.disconnected(told.now)
    told.finds(EPOCH, is_vacant=True, age_s=0.0)
    told.passes(GRACE_S)
    assert [type(event) for event in told.events()] == [Suspended]


def test_news_are_needed_by_who_reads_and_is_not_answered(alone: Told) -> None:
    assert alone.member.needs_news
    alone.member.connected(alone.now)
    assert not alone.member.needs_news
    alone.member.disconnected(alone.now)
    alone.passes(GRACE_S)
    assert not alone.member.needs_news, "they come too late"
