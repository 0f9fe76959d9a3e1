"""Check the versions in a client's request: the topic's id, and the leader epoch (KIP-320, KIP-516)."""

from __future__ import annotations

from typing import Protocol

from headrace_core.errors import FencedLeaderEpochError, InconsistentTopicIdError, UnknownLeaderEpochError
from headrace_core.types import NO_EPOCH, TopicPartition


class Versioned(Protocol):
    """The state with which a client's request is compared: a leader's state, or a follower's state."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> bytes: ...

    @property
    def leader_epoch(self) -> int: ...


def check_epoch(replica: Versioned, current_leader_epoch: int) -> None:
    """Check the leader epoch in a client's request; -1 means that the client gave none. Raises FencedLeaderEpochError,
    UnknownLeaderEpochError."""
    if current_leader_epoch in (NO_EPOCH, replica.leader_epoch):
        return
    if current_leader_epoch < replica.leader_epoch:
        raise FencedLeaderEpochError(
            f"{replica.partition}: leader epoch {current_leader_epoch} is out of date, the current one is "
            f"{replica.leader_epoch}; refresh the metadata"
        )
    raise UnknownLeaderEpochError(
        f"{replica.partition}: leader epoch {current_leader_epoch} is newer than this broker's metadata (epoch "
        f"{replica.leader_epoch}); retry"
    )


def check_topic_id(replica: Versioned, topic_id: bytes) -> None:
    """Check the topic id in a client's request; an empty id is not checked. Raises InconsistentTopicIdError if the
    topic was deleted and created again."""
    if topic_id and topic_id != replica.topic_id:
        raise InconsistentTopicIdError(
            f"{replica.partition}: the request is for topic id {topic_id.hex()}, but the topic's id is "
            f"{replica.topic_id.hex()}: the topic was deleted and created again; refresh the metadata"
        )
