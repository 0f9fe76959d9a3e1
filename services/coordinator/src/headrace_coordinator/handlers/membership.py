"""Group members and their streams: each stream belongs to one member of one group.

    heartbeats, leave ---> the group's shard ---> answers, in the order of the decisions
                                 `---> pushes go to the latest stream of the member

A stream that ends without a Leave is a broken connection, which is reported to the group at once. When a shard moves to
another coordinator, the streams of its members end with NOT_COORDINATOR. The members learn of the move without sending
a request.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError, NotCoordinatorError
from headrace_core.item_errors import error_to_proto
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.security.access import current_access
from headrace_core.security.acl_types import Operation, ResourceType
from headrace_core.security.shapes import hide_assignment
from headrace_protos.v1 import groups_pb2

from ..group.messages import Disconnected, LeaveReply
from ..runtime.runner import ShardRunner
from ..state_machine import Push
from . import messages

logger = logging.getLogger("headrace.coordinator")

#: Number of unanswered requests of a member's stream above which the coordinator does not read the stream.
UNANSWERED_MAX = 64
#: Number of unread bytes of a member's stream above which the coordinator neither reads the stream nor pushes
#: assignments. A member that missed a push sends its old assignment revision in the next heartbeat, and the response
#: then has the current assignment.
UNREAD_BYTES_MAX = 1024 * 1024

FindShard = Callable[[str], ShardRunner]  #: Returns the runner of a group's shard, or raises HeadraceError.


class Members:
    """All open streams; streams with a known member are indexed by (group, member)."""

    def __init__(self, find_shard: FindShard, metadata_age_ms: Callable[[], float | None] = lambda: None) -> None:
        """``metadata_age_ms`` returns the age of the metadata that assigns the shards; None if it is unknown."""
        self._find_shard = find_shard
        self.metadata_age_ms = metadata_age_ms
        self._connections = itertools.count(1)
        self._streams: set[MembershipStream] = set()
        self._by_member: dict[tuple[str, str], MembershipStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(self, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        member = MembershipStream(self, stream, next(self._connections), _host_of(context.peer()))
        self._streams.add(member)
        await stream.run(member)

    def tell(self, pushes: Sequence[Push]) -> None:
        """Push messages to the members that are connected to this coordinator; the other members get the same content
        in the answer to their next heartbeat."""
        for push in pushes:
            member = self._by_member.get((push.group_id, push.member_id))
            if member is not None:
                member.tell(push.message)

    def shard_left(self, runner: ShardRunner) -> None:
        """Called when the shard of ``runner`` no longer belongs to this coordinator."""
        for member in [each for each in self._streams if each.runner is runner]:
            member.end(
                NotCoordinatorError(f"{runner.shard.name} moved to another coordinator; look up the coordinator again")
            )

    def end_all(self, error: HeadraceError) -> None:
        for member in list(self._streams):
            member.end(error)

    def find_shard(self, group_id: str) -> ShardRunner:
        return self._find_shard(group_id)

    def identified(self, member: MembershipStream) -> None:
        """Called when a stream has named its member; any other stream of the same member ends."""
        assert member.who is not None
        before = self._by_member.get(member.who)
        self._by_member[member.who] = member
        if before is not None:
            before.replaced()

    def closed(self, member: MembershipStream) -> None:
        self._streams.discard(member)
        if member.who is not None and self._by_member.get(member.who) is member:
            del self._by_member[member.who]


class MembershipStream(StreamHandler[Any]):
    __slots__ = ("_access", "_connection", "_has_left", "_host", "_members", "_stream", "_unanswered", "runner", "who")

    def __init__(self, members: Members, stream: ServerStream[Any, Any], connection: int, host: str) -> None:
        self._access = current_access()
        self._members = members
        self._stream = stream
        self._connection = connection
        self._host = host
        self._unanswered = 0
        self._has_left = False
        self.who: tuple[str, str] | None = None  #: (group id, member id); None until the first request.
        self.runner: ShardRunner | None = None  #: The runner that received the last request of the stream.

    def on_request(self, request: Any) -> None:
        kind = request.WhichOneof("request")
        number = request.correlation_id
        if kind is None or not number:
            raise InvalidRequestError(
                "a Membership request must be a heartbeat or a leave, with a correlation id above 0"
            )
        message = request.heartbeat if kind == "heartbeat" else request.leave
        self._check_member(message.group_id, message.member_id)
        try:
            if self._access.is_limited:
                self._check(message, is_heartbeat=kind == "heartbeat")
            # Identify the stream only after these checks: an identified stream replaces the member's former stream, and
            # gets the member's assignments.
            self._identify(message.group_id, message.member_id)
            runner = self._members.find_shard(message.group_id)
            if kind == "heartbeat":
                asked: object = messages.heartbeat(message, self._connection, self._host, self._access)
            else:
                asked = messages.leave(message, self._connection)
        except HeadraceError as error:
            self._answer(number, error)
            return
        # A member assumes that a stream belongs to one owner of the shard.
        if self.runner is not None and self.runner is not runner:
            self.end(
                NotCoordinatorError(f"{runner.shard.name} has another shard epoch now; look up the coordinator again")
            )
            return
        self.runner = runner
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_MAX:
            self._stream.pause()
        runner.put(asked, lambda outcome: self._answered(number, outcome, runner))

    def _check(self, message: Any, *, is_heartbeat: bool) -> None:
        """Raise GroupAuthorizationFailedError if the member may not READ the group. Raise TopicAuthorizationFailedError
        if the member may not DESCRIBE a topic that its heartbeat names."""
        self._access.require(Operation.READ, ResourceType.GROUP, message.group_id)
        for topic in message.topics.names if is_heartbeat else ():
            self._access.require(Operation.DESCRIBE, ResourceType.TOPIC, topic)

    def is_idle(self) -> bool:
        return self._unanswered == 0

    def on_written(self) -> None:
        self._resume()

    def on_closed(self) -> None:
        self._members.closed(self)
        if self.who is None or self._has_left or self.runner is None:
            return
        if self.runner.is_serving:  # another owner replays the shard, and every session begins again
            self.runner.put(Disconnected(*self.who, self._connection))

    def tell(self, message: object) -> None:
        if self._stream.queued_bytes <= UNREAD_BYTES_MAX:
            self._send(messages.membership_response(message, 0))

    def replaced(self) -> None:
        """Called when the member has opened another stream: this stream ends."""
        self._has_left = True
        self._stream.finish()

    def end(self, error: HeadraceError) -> None:
        self._has_left = True  # the shard's next owner does not know the stream
        self._stream.finish(error)

    def _check_member(self, group_id: str, member_id: str) -> None:
        """Raise InvalidRequestError if the request names no member, or another member than earlier requests on this
        stream."""
        if not member_id:
            raise InvalidRequestError("member_id is empty: must be a UUID that the member chooses when it starts")
        if self.who is not None and self.who != (group_id, member_id):
            raise InvalidRequestError(
                f"the stream of member {self.who[1]!r} of group {self.who[0]!r} has a request of member "
                f"{member_id!r} of group {group_id!r}: each member needs its own stream"
            )

    def _identify(self, group_id: str, member_id: str) -> None:
        if self.who is None:
            self.who = group_id, member_id
            self._members.identified(self)

    def _answered(self, number: int, outcome: object, runner: ShardRunner) -> None:
        self._unanswered -= 1
        self._answer(number, outcome, runner)
        self._resume()

    def _answer(self, number: int, outcome: object, runner: ShardRunner | None = None) -> None:
        if isinstance(outcome, HeadraceError):
            response = groups_pb2.MembershipResponse(correlation_id=number, error=error_to_proto(outcome))
            if self.who is not None:  # None: the stream's requests were refused
                response.member_id = self.who[1]
        else:
            response = messages.membership_response(outcome, number)
            age_ms = self._members.metadata_age_ms()
            if runner is not None:
                response.shard_epoch = runner.shard.claim.shard_epoch
                if age_ms is not None:
                    response.ownership_age_ms = int(age_ms) + 1
        self._send(response)
        if isinstance(outcome, LeaveReply):
            self._has_left = True
            self._stream.finish()

    def _send(self, response: Any) -> None:
        if self._access.is_limited:
            hide_assignment(self._access, response)
        self._stream.send(response, response.ByteSize())
        if self._stream.queued_bytes > UNREAD_BYTES_MAX:
            self._stream.pause()

    def _resume(self) -> None:
        few = self._unanswered <= UNANSWERED_MAX // 2 and self._stream.queued_bytes <= UNREAD_BYTES_MAX // 2
        if self._stream.paused and few:
            self._stream.resume()


def _host_of(peer: str) -> str:
    """ "ipv4:127.0.0.1:4711" -> "127.0.0.1"."""
    _, _, address = peer.partition(":")
    return address.rpartition(":")[0] or peer
