"""Check the arguments of ``send_offsets``, in the caller's thread."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidArgumentError, InvalidGroupIdError

from .. import arguments
from ..faces import ConsumerFace
from ..group.commits import GroupOffsets
from ..models import GroupMetadata


def group_offsets(given: Any, group: GroupMetadata | None) -> GroupOffsets:
    """Raises InvalidArgumentError, InvalidGroupIdError, and the consumer's errors (for example after ``close``)."""
    if isinstance(given, ConsumerFace):
        if group is not None:
            raise arguments.wrong(
                "group", group, "must be None when you pass a consumer, because the consumer knows its group"
            )
        found: GroupOffsets = given._offsets_for_transaction()
        return found
    offsets = {
        arguments.partition(tp): arguments.offset_to_commit(arguments.partition(tp), offset)
        for tp, offset in arguments.mapping("offsets", given, "TopicPartition: offset; or pass the consumer").items()
    }
    if not isinstance(group, GroupMetadata):
        raise InvalidArgumentError(
            f"group={group!r:.100}: offsets need the identity of the member that read the records: pass "
            "group=consumer.group_metadata(), or pass the consumer instead of offsets"
        )
    if not group.group_id:
        raise InvalidGroupIdError("send_offsets needs a consumer group: GroupMetadata has an empty group_id")
    return GroupOffsets(group, offsets)
