"""A follower's messages on one stream: handles of joined partitions, the reports about them, and the small number of
reports."""

from __future__ import annotations

from headrace_broker.partition.follower_joins import ITEMS_MAX, FollowerJoins
from headrace_core.errors import FencedLeaderEpochError
from headrace_protos.v1.replication_pb2 import FollowAck, FollowJoin, FollowRequest
from tests.worlds.replication_messages import a_join, an_ack, an_answer, an_end


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

    def join(self, handle: int) -> FollowJoin:
        self.handle, self._acked = handle, -1
        return a_join(handle, self.name.encode(), 0, 1, 0, self.end, -1, self.end, 1_000)

    def next_ack(self) -> FollowAck | None:
        if self.end == self._acked:
            return None
        self._acked = self.end
        return an_ack(self.handle, self.end, self.end, 0)


Joins = FollowerJoins[Replica]


def _following(*names: str) -> tuple[Joins, list[Replica]]:
    """All partitions follow, and no message is left to send."""
    joins, all_of_them = Joins(), [Replica(name) for name in names]
    for followed in all_of_them:
        joins.join(followed)
    request = joins.next()
    assert request is not None
    for join in request.joins:
        assert joins.joined(an_answer(join.handle)) is not None
    joins.next()
    assert joins.next() is None
    return joins, all_of_them


def _next(joins: Joins) -> FollowRequest:
    request = joins.next()
    assert request is not None
    return request


def test_a_partition_joins_once_its_log_is_at_rest() -> None:
    joins, a, b = Joins(), Replica("a"), Replica("b")
    a.is_busy = True
    joins.join(a)
    joins.join(b)
    assert [join.topic_id for join in _next(joins).joins] == [b"b"]
    assert joins.next() is None
    assert len(joins) == 2
    a.is_busy, a.end = False, 7
    (join,) = _next(joins).joins
    assert (join.topic_id, join.log_end) == (b"a", 7)


def test_nobody_is_pushed_to_before_the_answer_to_its_join() -> None:
    joins, a = Joins(), Replica("a")
    joins.join(a)
    (join,) = _next(joins).joins
    assert joins.find(join.handle) is None
    a.end = 5
    joins.ack_due(a)
    assert joins.next() is None  # nor does it acknowledge
    assert joins.joined(an_answer(join.handle)) is a
    assert joins.find(join.handle) is a
    assert _next(joins).acks == [an_ack(join.handle, 5, 5, 0)]


def test_a_partition_that_moved_often_is_acknowledged_once() -> None:
    joins, (a, b) = _following("a", "b")
    for end in range(1, 101):
        a.end = end
        joins.ack_due(a)
        b.end = 2 * end
        joins.ack_due(b)
    assert _next(joins).acks == [an_ack(a.handle, 100, 100, 0), an_ack(b.handle, 200, 200, 0)]
    joins.ack_due(a)  # it has been said
    assert joins.next() is None


def test_a_handle_that_was_let_go_of_names_nobody() -> None:
    joins, (a, b) = _following("a", "b")
    before = a.handle
    a.end = 3
    joins.ack_due(a)
    joins.join(a)
    assert joins.find(before) is None
    assert joins.ended(an_end(before)) is None
    request = _next(joins)
    assert request.leaves == [before]
    assert [join.handle for join in request.joins] == [a.handle]
    assert a.handle not in (before, b.handle)
    assert not request.acks
    joins.leave(b)
    assert _next(joins).leaves == [b.handle]
    assert len(joins) == 1


def test_who_is_let_go_of_before_it_was_joined_says_nothing() -> None:
    joins, a = Joins(), Replica("a")
    joins.join(a)
    joins.leave(a)
    assert joins.next() is None
    assert len(joins) == 0


def test_an_answer_that_is_no_welcome_ends_the_handle_without_a_leave() -> None:
    joins, a = Joins(), Replica("a")
    joins.join(a)
    (join,) = _next(joins).joins
    assert joins.joined(an_answer(join.handle, error=FencedLeaderEpochError("over"))) is a
    assert joins.joined(an_answer(join.handle)) is None
    assert a not in joins
    assert joins.next() is None


def test_a_leader_that_ends_a_handle_gets_nothing_more_of_it() -> None:
    joins, (a,) = _following("a")
    a.end = 9
    joins.ack_due(a)
    assert joins.ended(an_end(a.handle, other_lane=True)) is a
    assert joins.next() is None


def test_all_of_them_join_again_when_the_stream_breaks_under_new_handles() -> None:
    joins, (a, b) = _following("a", "b")
    c = Replica("c")
    joins.join(c)
    joins.leave(b)
    used = {a.handle, b.handle}
    assert joins.broken() == [a]
    request = _next(joins)
    assert not request.leaves  # they ended with the stream
    assert [join.topic_id for join in request.joins] == [b"a", b"c"]
    assert used.isdisjoint(join.handle for join in request.joins)


def test_thousands_of_joins_and_acknowledgements_go_in_several_messages() -> None:
    joins = Joins()
    many = [Replica(str(number)) for number in range(ITEMS_MAX + 1)]
    for followed in many:
        joins.join(followed)
    first, second = _next(joins), _next(joins)
    assert (len(first.joins), len(second.joins)) == (ITEMS_MAX, 1)
    for followed in many:
        joins.joined(an_answer(followed.handle))
        followed.end = 1
        joins.ack_due(followed)
    assert [len(_next(joins).acks), len(_next(joins).acks)] == [ITEMS_MAX, 1]
    assert joins.next() is None
