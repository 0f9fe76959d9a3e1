"""The follower's side of one stream to one leader (pure): the partitions that joined on the stream, and the next
message to send.

A partition on a stream is *wanted* until its follower can join the leader. While a partition is wanted, the appends to
its log must end, because a join reports the log's end. The partition is *joining* until the leader answers, and
*following* until its join ends::

    wanted  --next()-->  joining  --joined-->  following
      ^                     |                      |
      +--- join() again ----+-- error, cut, ... ---+      and all of them when the stream breaks

Outgoing items of a stream (joins, leaves, acknowledgements) are collected into one message. If a partition advanced a
hundred times while the last message was written, the next message has only its last position. A handle is the number of
one join on the stream. After the join has ended, the follower drops later messages for the handle.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from headrace_protos.v1.replication_pb2 import FollowAck, FollowEnded, FollowJoin, FollowJoined, FollowRequest

ITEMS_MAX = 2_000  #: Maximum number of joins, leaves and acknowledgements in one message: about 50 KiB.


class Joinable(Protocol):
    """The methods of a followed partition that a FollowerJoins calls (``PartitionFollower`` and the I/O code around
    it)."""

    @property
    def can_join(self) -> bool:
        """Whether the partition can join, because no append to its log is in progress. After a result of False, the I/O
        code calls ``FollowerJoins.next`` again when the partition can join."""

    def join(self, handle: int) -> FollowJoin: ...

    def next_ack(self) -> FollowAck | None:
        """The next acknowledgement."""


F = TypeVar("F", bound=Joinable)


class _Handle(Generic[F]):
    __slots__ = ("is_joined", "number", "replica")

    def __init__(self, number: int, replica: F) -> None:
        self.number = number
        self.replica = replica
        self.is_joined = False


class FollowerJoins(Generic[F]):
    """The partitions that this broker follows at one leader over one kind of stream, live or catch-up.
    They outlive their streams."""

    def __init__(self) -> None:
        self._next_number = 1
        self._by_number: dict[int, _Handle[F]] = {}
        self._by_replica: dict[F, _Handle[F]] = {}
        self._wanted: dict[F, None] = {}
        self._leaves: list[int] = []
        #: Handles (numbers of joins) of replicas that leave the stream because their log takes no appends.
        self._cannot_append: set[int] = set()
        self._acks_due: dict[_Handle[F], None] = {}

    def __len__(self) -> int:
        """Number of partitions on this stream."""
        return len(self._wanted) + len(self._by_replica)

    def __contains__(self, replica: F) -> bool:
        return replica in self._wanted or replica in self._by_replica

    def join(self, replica: F) -> None:
        """Put the partition on this stream, or let it join again."""
        self._let_go(replica)
        self._wanted[replica] = None

    def leave(self, replica: F, *, cannot_append: bool = False) -> None:
        """Take the partition off this stream. ``cannot_append``: the partition leaves because its log takes no
        appends."""
        handle = self._let_go(replica)
        if cannot_append and handle is not None:
            self._cannot_append.add(handle.number)
        self._wanted.pop(replica, None)

    def ack_due(self, replica: F) -> None:
        """Note that the partition has new progress, which the next message acknowledges."""
        handle = self._by_replica.get(replica)
        if handle is not None and handle.is_joined:
            self._acks_due[handle] = None

    def find(self, number: int) -> F | None:
        """The partition of a push or an offsets update; None if the partition's join has ended."""
        handle = self._by_number.get(number)
        return handle.replica if handle is not None and handle.is_joined else None

    def joined(self, answer: FollowJoined) -> F | None:
        """The partition that an answer to a join is for; None if the follower has already ended this join. The join has
        ended unless the logs match and pushes follow."""
        handle = self._by_number.get(answer.handle)
        if handle is None:
            return None
        if answer.error.code or answer.HasField("diverging") or answer.out_of_range or answer.other_lane:
            self._forget(handle)
        else:
            handle.is_joined = True
            self._acks_due[handle] = None  # acknowledge: the log end may have advanced since the join
        return handle.replica

    def ended(self, ended: FollowEnded) -> F | None:
        """The partition whose join the leader has ended; None if the follower ended the join before."""
        handle = self._by_number.get(ended.handle)
        if handle is None:
            return None
        self._forget(handle)
        return handle.replica

    def broken(self) -> list[F]:
        """Called when the stream ended, which also ends all joins on the stream. Returns the partitions that had joined
        on the stream, which will join the next stream. After the next join the leader pushes again the records that
        were received but not written."""
        lost = list(self._by_replica)
        self._by_number.clear()
        self._by_replica.clear()
        self._acks_due.clear()
        self._leaves.clear()
        self._cannot_append.clear()
        self._wanted = dict.fromkeys((*lost, *self._wanted))
        return lost

    def next(self) -> FollowRequest | None:
        """The next message to the leader; None if there is nothing to send."""
        if not (self._wanted or self._acks_due or self._leaves):
            return None
        request = FollowRequest(leaves=self._leaves, cannot_append=self._cannot_append)
        self._leaves.clear()
        self._cannot_append.clear()
        if self._wanted:
            self._add_joins(request)
        acks_due = self._acks_due
        while acks_due and len(request.acks) < ITEMS_MAX:
            handle = next(iter(acks_due))
            del acks_due[handle]
            ack = handle.replica.next_ack()
            if ack is not None:
                request.acks.append(ack)
        return request if request.leaves or request.joins or request.acks else None

    def _add_joins(self, request: FollowRequest) -> None:
        for replica in list(self._wanted):
            if len(request.joins) >= ITEMS_MAX:
                break
            if not replica.can_join:
                continue
            del self._wanted[replica]
            number, self._next_number = self._next_number, self._next_number + 1
            self._by_number[number] = self._by_replica[replica] = _Handle(number, replica)
            request.joins.append(replica.join(number))

    def _let_go(self, replica: F) -> _Handle[F] | None:
        handle = self._by_replica.get(replica)
        if handle is not None:
            self._forget(handle)
            self._leaves.append(handle.number)
        return handle

    def _forget(self, handle: _Handle[F]) -> None:
        del self._by_number[handle.number]
        del self._by_replica[handle.replica]
        self._acks_due.pop(handle, None)
