"""Members of KIP-848 groups that send each heartbeat as a separate call: Kafka's clients.

Such a member has no stream, so it gets no pushes and has no grace period: it is removed after its session
timeout. Kafka's clients send no revisions of assignments (group/messages.py). A client sends one heartbeat at a time,
so its next heartbeat shows that it received the previous answer. The coordinator therefore keeps the revision of that
answer's assignment as the member's. A *full* heartbeat contains the subscription; clients send it when they join and
after an error. The answer to a full heartbeat has the whole assignment. franz-go reports released partitions only in a
full heartbeat. The coordinator therefore uses the owned partitions in a full heartbeat, if the assignment is unchanged
since the member's latest answer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_to_proto
from headrace_core.security.access import current_access
from headrace_protos.v1 import groups_pb2

from ..group.messages import AWAY_EPOCH, LEAVE_EPOCH, NO_REVISION, HeartbeatReply, Leave
from ..group.timing import NO_STREAM
from ..runtime.runner import ShardRunner
from . import messages

#: Maximum number of stored revisions; a member whose revision is not stored gets its assignment again.
KNOWN_MAX = 100_000


class UnaryMembers:
    """The latest assignment revisions that members without a stream have received."""

    def __init__(self) -> None:
        self._revisions: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def heartbeat(self, runner: ShardRunner, request: Any) -> Any:
        """Handle one heartbeat; returns HeartbeatResponse."""
        message = request.heartbeat
        who = message.group_id, message.member_id
        try:
            if message.member_epoch in (LEAVE_EPOCH, AWAY_EPOCH):
                instance_id = message.instance_id if message.HasField("instance_id") else None
                self._revisions.pop(who, None)
                left = await runner.ask(Leave(*who, message.member_epoch, instance_id, NO_STREAM))
                return groups_pb2.HeartbeatResponse(member_id=left.member_id, member_epoch=left.member_epoch)
            asked = messages.heartbeat(
                message, NO_STREAM, messages.host_of_client(request.client_host), current_access()
            )
            is_full = asked.topics is not None or bool(asked.topic_regex)
            known = NO_REVISION if is_full else self._revisions.get(who, NO_REVISION)
            reply: HeartbeatReply = await runner.ask(asked._replace(revision=known))
            if is_full and asked.owned is not None and self._revisions.get(who, reply.revision) == reply.revision:
                counted: HeartbeatReply = await runner.ask(asked._replace(revision=reply.revision))
                whole = reply if counted.assignment is None else counted
                reply = counted._replace(assignment=whole.assignment, names=whole.names)
        except HeadraceError as error:
            self._revisions.pop(who, None)
            return groups_pb2.HeartbeatResponse(error=error_to_proto(error), member_id=message.member_id)
        self._revisions[who] = reply.revision
        self._revisions.move_to_end(who)
        if len(self._revisions) > KNOWN_MAX:
            self._revisions.popitem(last=False)
        response = groups_pb2.HeartbeatResponse(
            member_id=reply.member_id,
            member_epoch=reply.member_epoch,
            heartbeat_interval_ms=reply.heartbeat_interval_ms,
        )
        if reply.assignment is not None:
            response.assignment.CopyFrom(messages.group_partitions(reply.assignment, reply.names))
        return response
