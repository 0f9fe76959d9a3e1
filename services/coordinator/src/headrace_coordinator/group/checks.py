"""Checks of group requests and of their senders (KIP-848, KIP-345). Each check raises its error before the group
changes.

A heartbeat may name any epoch from the member's join on, because several assignments may be pushed before the member
answers. The coordinator fences heartbeats of a member's older process by the number of the connection. Commits of the
older process are fenced by the epoch in the commit (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_core.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidGroupIdError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnsupportedAssignorError,
)
from headrace_core.plurals import counted
from headrace_core.types import check_topic_name

from ..assignors import ASSIGNORS
from .messages import AWAY_EPOCH, JOIN_EPOCH, LEAVE_EPOCH, Heartbeat, Leave, Part, Parts
from .settings import GroupSettings
from .state import Group, Member
from .subscriptions import compile_pattern

TOPIC_CHARACTERS_MAX = 249  #: Length of the longest topic name.
REBALANCE_TIMEOUT_MS_MAX = 2**31 - 1


def check_group_id(group_id: str, settings: GroupSettings) -> None:
    """Raises InvalidGroupIdError."""
    if not group_id:
        raise InvalidGroupIdError("the group id is empty: set group.id")
    if (size := len(group_id.encode())) > settings.name_bytes_max:
        raise InvalidGroupIdError(
            f"the group id is too long: {size} bytes, at most {settings.name_bytes_max} are allowed; choose a "
            "shorter group.id"
        )


def check_heartbeat(request: Heartbeat, settings: GroupSettings) -> None:
    """Check the fields of the request without looking at the group. Raises InvalidGroupIdError, InvalidRequestError,
    InvalidTopicError, UnsupportedAssignorError, InvalidRegularExpressionError."""
    check_group_id(request.group_id, settings)
    if not request.member_id:
        raise InvalidRequestError("member_id is empty: must be a UUID that the member chooses when it starts")
    for what in ("member_id", "instance_id", "rack", "client_id", "client_host", "assignor"):
        value = getattr(request, what)
        if value is not None and len(value.encode()) > settings.name_bytes_max:
            raise InvalidRequestError(f"{what} has more than {settings.name_bytes_max} bytes; shorten it")
    if request.instance_id == "":
        raise InvalidRequestError("instance_id is empty: leave it out, or set group.instance.id")
    if request.member_epoch < JOIN_EPOCH:
        raise InvalidRequestError(
            f"member epoch {request.member_epoch} in a heartbeat: must be 0 (join) or above; to leave, send a leave "
            "request"
        )
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    timeout_ms = request.rebalance_timeout_ms
    if timeout_ms is not None and not 0 < timeout_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise InvalidRequestError(
            f"rebalance_timeout_ms={timeout_ms}: must be from 1 to {REBALANCE_TIMEOUT_MS_MAX}; the client's "
            "max.poll.interval.ms sets it"
        )
    if request.assignor and (request.assignor not in settings.assignors or request.assignor not in ASSIGNORS):
        raise UnsupportedAssignorError(
            f"unknown assignor {request.assignor!r}: must be one of {', '.join(settings.assignors)}"
        )
    _check_subscription(request, settings)


def _check_join(request: Heartbeat) -> None:
    if request.rebalance_timeout_ms is None:
        raise InvalidRequestError("JoinGroup needs rebalance_timeout_ms > 0; the client's max.poll.interval.ms sets it")
    if request.topics is None and not request.topic_regex:
        raise InvalidRequestError("JoinGroup needs a subscription: topics, or topic_regex")
    if request.owned:
        raise InvalidRequestError(
            f"a joining member must not own partitions, but this member owns {len(request.owned)}: revoke them first"
        )


def _check_subscription(request: Heartbeat, settings: GroupSettings) -> None:
    if request.topics is not None:
        if len(request.topics) > settings.topics_max:
            raise InvalidRequestError(
                f"the subscription names {len(request.topics)} topics, at most {settings.topics_max} are allowed: "
                "use a pattern"
            )
        if (size := sum(len(name.encode()) for name in request.topics)) > settings.topics_bytes_max:
            raise InvalidRequestError(
                f"the topic names of the subscription have {size} bytes, at most {settings.topics_bytes_max} fit into "
                "the member's record: use a pattern"
            )
        for name in request.topics:
            # Refuse only names that are too long. Kafka accepts other invalid topic names in a subscription, and for
            # librdkafka a refusal is a fatal error.
            if len(name) > TOPIC_CHARACTERS_MAX:
                check_topic_name(name)
    if request.topic_regex:
        if (size := len(request.topic_regex.encode())) > settings.regex_bytes_max:
            raise InvalidRegularExpressionError(
                f"the topic pattern is too long: {size} bytes, at most {settings.regex_bytes_max} are allowed; "
                "use a shorter pattern"
            )
        compile_pattern(request.topic_regex)


def check_size(group: Group, settings: GroupSettings) -> None:
    """Raise GroupMaxSizeReachedError if the group is full."""
    if len(group.members) >= settings.max_size:
        raise GroupMaxSizeReachedError(
            f"group {group.group_id!r} already has {counted(len(group.members), 'member')}, the most that "
            f"group.consumer.max.size={settings.max_size} allows"
        )


def check_leave(request: Leave, settings: GroupSettings) -> None:
    """Raises InvalidGroupIdError, InvalidRequestError."""
    check_group_id(request.group_id, settings)
    if request.member_epoch not in (LEAVE_EPOCH, AWAY_EPOCH):
        raise InvalidRequestError(
            f"member epoch {request.member_epoch} in a leave request: must be {LEAVE_EPOCH}, or {AWAY_EPOCH} for a "
            "static member"
        )


def known_member(group: Group | None, group_id: str, member_id: str, instance_id: str | None = None) -> Member:
    """The member with the requested id and, if the request names one, the requested instance id. Raises
    FencedInstanceIdError, or UnknownMemberIdError, which also means that there is no group with the requested id."""
    if instance_id is not None:
        holder = group.statics.get(instance_id) if group is not None else None
        if holder is not None and holder != member_id:
            raise FencedInstanceIdError(
                f"group {group_id!r}: member {member_id!r} was replaced: instance id {instance_id!r} belongs to "
                f"member {holder!r} now; two processes have the same group.instance.id, or this member's session "
                "timed out"
            )
    member = group.members.get(member_id) if group is not None else None
    if member is None or member.value is None:
        why = group.departed.get(member_id) if group is not None else None
        raise UnknownMemberIdError(
            f"group {group_id!r} has no member {member_id!r}"
            + (f": {why}" if why else "")
            + "; join again with epoch 0"
        )
    if instance_id is not None and member.value.instance_id != instance_id:
        raise UnknownMemberIdError(
            f"group {group_id!r}: member {member_id!r} does not have instance id {instance_id!r}; join again with "
            "epoch 0"
        )
    return member


def check_connection(member: Member, connection: int | None) -> None:
    """Guard: raise an error for a stream that is older than the member's latest stream. Raises
    FencedMemberEpochError."""
    if connection is not None and connection < member.session.connection:
        raise FencedMemberEpochError(f"member {member.member_id!r} has a newer connection; this connection is closed")


def check_uses_heartbeats(member: Member) -> None:
    """Raise UnknownMemberIdError if the id belongs to a member of the classic protocol (classic_members.py)."""
    if member.said.classic is not None:
        raise UnknownMemberIdError(
            f"member {member.member_id!r} uses the classic protocol; join with a member id of your own"
        )


def knows_all(request: Heartbeat, member: Member) -> bool:
    """Whether the member knows its latest assignment, including revocations."""
    return request.revision == member.current.revision


def owned_that_counts(request: Heartbeat, member: Member) -> Parts | None:
    """Guard: the partitions that the member reads; None if the member does not know its latest assignment (messages.py,
    revisions)."""
    return request.owned if knows_all(request, member) else None


def check_epoch(member: Member, epoch: int) -> None:
    """Check a heartbeat's epoch, which must be an epoch that the member got after it joined. The epoch in a heartbeat
    may be older than the member's latest epoch, whose push may still be in flight. The coordinator recognizes an older
    process of a member by the lower number of its connection. Raises FencedMemberEpochError."""
    current = member.current
    if not current.first_epoch <= epoch <= current.epoch:
        raise FencedMemberEpochError(
            f"member {member.member_id!r} sent epoch {epoch}, but is in epoch {current.epoch}: release all partitions "
            "and join again with epoch 0"
        )


def check_commit(group: Group, member: Member, epoch: int, parts: Iterable[Part] | None) -> None:
    """Check that the member may commit with the epoch of its request. Raises StaleMemberEpochError.

    With its current epoch a member may commit, except for partitions that another member has or will get, or that were
    taken from it. After a disconnection longer than the grace period, the member learns the new epoch before it
    releases partitions that were reassigned. A member that has more partitions to release keeps its epoch. So a delayed
    commit may arrive with the current epoch after the release, and even after a further member has had the partition.
    With an older epoch the member may only commit partitions that it has had from that epoch on (KIP-1251), including
    partitions that it must release. A member with an older epoch may not know that the epoch is outdated. If ``parts``
    is None, the partitions are unknown and the commit is refused.
    Guard: a delayed commit must not reset a partition's offset after the partition's new member has committed later
    offsets.
    """
    current = member.current
    where = f"group {group.group_id!r}, member {member.member_id!r}"
    if epoch == current.epoch:
        unowned = []
        for part in parts or ():
            owner = group.owners.get(part)
            if owner is None and part in current.taken:
                raise StaleMemberEpochError(
                    f"{where}: partition {part[1]} of topic {part[0].hex()} was free for other members while this "
                    "member was disconnected: apply the new assignment, then commit what is still assigned"
                )
            if owner is None:
                unowned.append(part)
            elif owner != member.member_id:
                raise StaleMemberEpochError(
                    f"{where}: partition {part[1]} of topic {part[0].hex()} belongs to member {owner!r} now: commit "
                    "only partitions that are still assigned"
                )
        if unowned:
            wanted = frozenset[Part]().union(*(each.target for each in group.members.values()))
            for part in unowned:
                if part in wanted:
                    raise StaleMemberEpochError(
                        f"{where}: partition {part[1]} of topic {part[0].hex()} is not assigned to this member, and "
                        "waits for its next member: commit only partitions that are still assigned"
                    )
        return
    if epoch > current.epoch:
        raise StaleMemberEpochError(f"{where}: epoch {epoch} does not exist; the current one is {current.epoch}")
    if epoch < current.first_epoch or parts is None or not all(current.has_since(part, epoch) for part in parts):
        raise StaleMemberEpochError(
            f"{where}: the commit has epoch {epoch}, the current one is {current.epoch}: apply the new assignment, "
            "then commit what is still assigned"
        )


def known_group(group: Group | None, group_id: str) -> Group:
    """Raises GroupIdNotFoundError."""
    if group is None or group.value is None:
        raise GroupIdNotFoundError(f"group {group_id!r} does not exist")
    return group
