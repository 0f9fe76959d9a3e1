"""A follower's messages on one stream: handles of joined partitions, the reports about them, and the small number of
reports."""

from __future__ import annotations

from headrace_broker.partition.follower_lane import ITEMS_MAX, FollowerLane
from headrace_broker.partition.messages import Ack, Ended, Join, Joined, Request
from headrace_core.errors import FencedLeaderEpochError


class Replica:
    """A partition with a log end; ``is_busy`` means that an append is in progress."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.end = 0
        self.is_busy = False
        self.handle = -1
        self._acked = -1

    @property
    def can_join(self) -> bool:
        return not self.is_busy

    def join(self, handle: int) -> Join:
        self.handle, self._acked = handle, -1
        return Join(handle, self.name.encode(), 0, 1, 0, self.end, -1, self.end, 1_000)

    def next_ack(self) -> Ack | None:
        if self.end == self._acked:
            return None
        self._acked = self.end
        return Ack(self.handle, self.end, self.end, 0)


Lane = FollowerLane[Replica]


def _following(*names: str) -> tuple[Lane, list[Replica]]:
    """All partitions follow, and no message is left to send."""
    lane, all_of_them = Lane(), [Replica(name) for name in names]
    for followed in all_of_them:
        lane.join(followed)
    request = lane.next()
    assert request is not None
    for join in request.joins:
        assert lane.joined(Joined(join.handle)) is not None
    lane.next()
    assert lane.next() is None
    return lane, all_of_them


def _next(lane: Lane) -> Request:
    request = lane.next()
    assert request is not None
    return request


def test_a_partition_joins_once_its_log_is_at_rest() -> None:
    lane, a, b = Lane(), Replica("a"), Replica("b")
    a.is_busy = True
    lane.join(a)
    lane.join(b)
    assert [join.topic_id for join in _next(lane).joins] == [b"b"]
    assert lane.next() is None
    assert len(lane) == 2
    a.is_busy, a.end = False, 7
    (join,) = _next(lane).joins
    assert (join.topic_id, join.log_end) == (b"a", 7)


def test_nobody_is_pushed_to_before_the_answer_to_its_join() -> None:
    lane, a = Lane(), Replica("a")
    lane.join(a)
    (join,) = _next(lane).joins
    assert lane.find(join.handle) is None
    a.end = 5
    lane.ack_due(a)
    assert lane.next() is None  # nor does it acknowledge
    assert lane.joined(Joined(join.handle)) is a
    assert lane.find(join.handle) is a
    assert _next(lane).acks == (Ack(join.handle, 5, 5, 0),)


def test_a_partition_that_moved_often_is_acknowledged_once() -> None:
    lane, (a, b) = _following("a", "b")
    for end in range(1, 101):
        a.end = end
        lane.ack_due(a)
        b.end = 2 * end
        lane.ack_due(b)
    assert _next(lane).acks == (Ack(a.handle, 100, 100, 0), Ack(b.handle, 200, 200, 0))
    lane.ack_due(a)  # it has been said
    assert lane.next() is None


def test_a_handle_that_was_let_go_of_names_nobody() -> None:
    lane, (a, b) = _following("a", "b")
    before = a.handle
    a.end = 3
    lane.ack_due(a)
    lane.join(a)
    assert lane.find(before) is None
    assert lane.ended(Ended(before)) is None
    request = _next(lane)
    assert request.leaves == (before,)
    assert [join.handle for join in request.joins] == [a.handle]
    assert a.handle not in (before, b.handle)
    assert request.acks == ()
    lane.leave(b)
    assert _next(lane).leaves == (b.handle,)
    assert len(lane) == 1


def test_who_is_let_go_of_before_it_was_joined_says_nothing() -> None:
    lane, a = Lane(), Replica("a")
    lane.join(a)
    lane.leave(a)
    assert lane.next() is None
    assert len(lane) == 0


def test_an_answer_that_is_no_welcome_ends_the_handle_without_a_leave() -> None:
    lane, a = Lane(), Replica("a")
    lane.join(a)
    (join,) = _next(lane).joins
    assert lane.joined(Joined(join.handle, error=FencedLeaderEpochError("over"))) is a
    assert lane.joined(Joined(join.handle)) is None
    assert a not in lane
    assert lane.next() is None


def test_a_leader_that_ends_a_handle_gets_nothing_more_of_it() -> None:
    lane, (a,) = _following("a")
    a.end = 9
    lane.ack_due(a)
    assert lane.ended(Ended(a.handle, other_lane=True)) is a
    assert lane.next() is None


def test_all_of_them_join_again_when_the_stream_breaks_under_new_handles() -> None:
    lane, (a, b) = _following("a", "b")
    c = Replica("c")
    lane.join(c)
    lane.leave(b)
    used = {a.handle, b.handle}
    assert lane.broken() == [a]
    request = _next(lane)
    assert request.leaves == ()  # they ended with the stream
    assert [join.topic_id for join in request.joins] == [b"a", b"c"]
    assert used.isdisjoint(join.handle for join in request.joins)


def test_thousands_of_joins_and_acknowledgements_go_in_several_messages() -> None:
    lane = Lane()
    many = [Replica(str(number)) for number in range(ITEMS_MAX + 1)]
    for followed in many:
        lane.join(followed)
    first, second = _next(lane), _next(lane)
    assert (len(first.joins), len(second.joins)) == (ITEMS_MAX, 1)
    for followed in many:
        lane.joined(Joined(followed.handle))
        followed.end = 1
        lane.ack_due(followed)
    assert [len(_next(lane).acks), len(_next(lane).acks)] == [ITEMS_MAX, 1]
    assert lane.next() is None
