"""The topics of the sink: a task makes sure that a topic exists before it sends rows.

A missing topic is created as for any producer of the SDK. The task's metadata request names the topic, and the cluster
creates it if ``auto.create.topics.enable`` and the client's ``allow.auto.create.topics`` are true. If too few brokers
are alive for the replication factor, the failure is temporary, so the task tries again until ``delivery.timeout.ms``
has passed. If no address answers a process that has seen no topic yet, the address is probably wrong, and the task
fails after ``bootstrap.timeout.ms``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace_core.errors import (
    BootstrapError,
    HeadraceError,
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from headrace import Admin
    from headrace.cluster_models import TopicDescription

RETRY_PAUSE_S = 0.5  #: Seconds to pause before a failed attempt to create a topic is repeated.


class Describes(Protocol):
    """The method of headrace's Admin that a task uses; the method creates no topic."""

    def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """Raises UnknownTopicOrPartitionError if a topic does not exist."""


class Creates(Protocol):
    """The method of headrace's Producer that creates a missing topic."""

    def partitions_for(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions."""


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic that did not exist before the sink wrote to it."""

    topic: str
    partitions: int
    replication_factor: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} did not exist; the cluster created it (auto.create.topics.enable), "
            f"partitions: {self.partitions}, replication factor: {self.replication_factor}"
        )


class SinkTopics:
    """The topics that this process has seen. Only the first use of a topic in the process costs a request."""

    def __init__(self, admin: Describes, timeout_s: float) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._seen: set[str] = set()

    def ensure(self, topic: str, producer: Creates) -> TopicCreated | None:
        """Create the topic if it does not exist and the cluster allows it; return the topic that was created.

        Raises UnknownTopicOrPartitionError if the cluster or the client allows no creation, and the last failure when
        the timeout has passed.
        """
        if topic in self._seen:
            return None
        deadline = time.monotonic() + self._timeout_s
        was_missing = False
        while True:
            try:
                found = self._describe(topic)
                if found is None:
                    was_missing = True
                    producer.partitions_for(topic)
                    found = self._describe(topic)
                if found is not None:
                    self._seen.add(topic)
                    created = TopicCreated(topic, len(found.partitions), len(found.partitions[0].replicas))
                    return created if was_missing else None
                failure: HeadraceError = LeaderNotAvailableError(f"some nodes do not know the new topic {topic!r} yet")
            except HeadraceError as error:
                if not _is_passing(error) or (isinstance(error, BootstrapError) and not self._seen):
                    raise
                failure = error
            if time.monotonic() + RETRY_PAUSE_S > deadline:
                raise type(failure)(
                    f"{failure.message}; tried until delivery.timeout.ms={self._timeout_s * 1000:g}"
                ) from failure
            time.sleep(RETRY_PAUSE_S)

    def _describe(self, topic: str) -> TopicDescription | None:
        try:
            return self._admin.describe_topics([topic])[0]
        except UnknownTopicOrPartitionError:
            return None


def _is_passing(error: HeadraceError) -> bool:
    """Whether a later attempt may work: brokers are down, or too few are alive for the replication factor. The error of
    an unknown topic is final, because the client has already asked for the topic repeatedly, or until max.block.ms had
    passed."""
    if isinstance(error, UnknownTopicOrPartitionError) or isinstance(error.__cause__, UnknownTopicOrPartitionError):
        return False
    return error.retriable or isinstance(error, InvalidReplicationFactorError)


# -- the clients of a worker process. The last clients stay open, because Spark ends its workers with a signal. The keys
# of the clients include the process id, because workers are forked processes; the least recently used client comes
# first.

#: Maximum number of clients of one kind that a worker keeps. Each delegation token needs its own clients.
KEPT = 4

Key = tuple[int, frozenset[tuple[str, str]]]

_admins: dict[Key, Admin] = {}
_topics: dict[Key, SinkTopics] = {}


def open_admin(client: Mapping[str, str]) -> Admin:
    """Create an Admin with the keys of ``client`` that an Admin has; the caller must close it."""
    from headrace import Admin
    from headrace.settings import ADMIN

    return Admin({key: value for key, value in client.items() if key in ADMIN.keys})


def worker_admin(client: Mapping[str, str]) -> Admin:
    """Return the Admin of this worker process."""
    key = (os.getpid(), frozenset(client.items()))
    found = _admins.pop(key, None) or open_admin(client)
    while len(_admins) >= KEPT:
        oldest = next(iter(_admins))
        _topics.pop(oldest, None)
        _admins.pop(oldest).close()
    _admins[key] = found
    return found


def worker_topics(client: Mapping[str, str], timeout_s: float) -> SinkTopics:
    """Return the topics that this worker process has seen."""
    key, admin = (os.getpid(), frozenset(client.items())), worker_admin(client)
    if key not in _topics:
        _topics[key] = SinkTopics(admin, timeout_s)
    return _topics[key]
