"""Report to the controllers in which log directory each replica of this broker is (KIP-858).

A report contains the replicas whose directory in the metadata differs from their directory in the storage. The broker
compares metadata and storage when a partition's metadata changes, when a replica moves to another directory, and when a
directory fails. The comparison depends only on metadata and storage, so the broker reports a replica again after a lost
report. A broker with one directory reports no replica, because the controllers know the directory from the
registration.

A replica that starts again with an empty log is reported as ``fresh`` before its log is created (``report_fresh``,
KIP-903). From the ``fresh`` report on, the controllers do not elect the replica as a leader. ``roles`` creates the log
when the metadata shows that the replica is fresh.

One task sends all reports; one report can contain thousands of replicas.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from headrace_core.errors import HeadraceError, PolicyViolationError, UnknownTopicIdError
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.plurals import counted
from headrace_core.rpc.outage import Backoff
from headrace_core.types import TopicPartition

from .controller_link import DirectoriesAssigned, ReplicaKey
from .settings import BrokerIdentity

logger = logging.getLogger(__name__)

#: Maximum number of replicas in one AssignReplicasToDirs call: about 50 KiB. If metadata.max.records.per.request of the
#: controllers is lower, one AssignReplicasToDirs call has fewer replicas.
CALL_REPLICAS_MAX = 2_000
#: Longest pause in milliseconds between two attempts to report directories; the number of attempts is unlimited.
_BACKOFF_MS_MAX = 10_000

#: Reports to the controllers which directory each replica is in, and which replicas start with an empty log. The
#: reporting function returns the replicas that the controllers refused.
Assign = Callable[[Mapping[ReplicaKey, bytes], Collection[ReplicaKey]], Awaitable[DirectoriesAssigned]]


class DirectoryAssignments:
    """``directory_of`` returns the id of the directory that has a replica, even if the directory has failed; None if
    there is no replica. ``run`` is the task that sends the reports; call all other methods in the same event loop."""

    def __init__(
        self,
        identity: BrokerIdentity,
        directory_of: Callable[[TopicPartition], uuid.UUID | None],
        assign: Assign,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._identity = identity
        self._directory_of = directory_of
        self._assign = assign
        self._backoff = backoff or Backoff(most_ms=_BACKOFF_MS_MAX)
        self._image = MetadataImage()
        self._pending: dict[ReplicaKey, bytes] = {}
        #: Pending replicas that start with an empty log, each with its callback.
        self._fresh: dict[ReplicaKey, Callable[[int], None]] = {}
        self._call_max = CALL_REPLICAS_MAX
        self._wake = asyncio.Event()

    @property
    def pending(self) -> int:
        """Number of replicas whose directory is not reported yet."""
        return len(self._pending)

    def all_changed(self, image: MetadataImage) -> None:
        """Compare all replicas with the broker's first metadata image."""
        everything = {topic_id: frozenset(range(len(topic.partitions))) for topic_id, topic in image.topics.items()}
        self.metadata_changed(image, MetadataDelta(0, image.next_offset, partitions=everything))

    def metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Compare the partitions of ``delta``; call this method after the broker applied ``delta``, when the
        partitions' logs exist or have failed."""
        self._image = image
        for topic_id, numbers in delta.partitions.items():
            topic = image.topics[topic_id]
            for number in numbers:
                self._compare(topic_id, TopicPartition(topic.name, number))

    def replicas_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """Compare the metadata with replicas that moved to another directory, or whose directory failed."""
        for partition in partitions:
            topic_id = self._image.topic_ids.get(partition.topic)
            if topic_id is not None:
                self._compare(topic_id, partition)

    def report_fresh(self, topic_id: bytes, partition: int, directory: bytes, recorded: Callable[[int], None]) -> None:
        """Report that this broker's replica starts again with an empty log in ``directory``. The replica's old log is
        missing, or is damaged and about to be deleted. ``recorded`` is called with the metadata offset from which the
        controllers know the replica as fresh. A caller may repeat the call if the metadata does not show the replica as
        fresh."""
        key = (topic_id, partition)
        self._fresh[key] = recorded
        self._pending[key] = directory
        self._wake.set()

    def _compare(self, topic_id: bytes, partition: TopicPartition) -> None:
        state = self._image.partition(topic_id, partition.partition)
        if state is None or self._identity.broker_id not in state.replicas:
            self._forget((topic_id, partition.partition))
            return
        key = (topic_id, partition.partition)
        if key in self._fresh:
            return
        directory = self._directory_of(partition)
        if directory is None or directory.bytes == state.directory_of(self._identity.broker_id):
            self._pending.pop(key, None)
        else:
            self._pending[key] = directory.bytes
            self._wake.set()

    def _forget(self, key: ReplicaKey) -> None:
        self._pending.pop(key, None)
        self._fresh.pop(key, None)

    async def run(self) -> None:
        """Send the pending reports until this task is cancelled."""
        while True:
            self._wake.clear()
            while self._pending:
                sent = dict(itertools.islice(self._pending.items(), self._call_max))
                fresh = {key: self._fresh[key] for key in sent if key in self._fresh}
                try:
                    answer = await self._assign(sent, fresh.keys())
                except HeadraceError as error:
                    if isinstance(error, PolicyViolationError) and len(sent) > 1:
                        self._call_max = len(sent) // 2
                        continue
                    # Retry after every error. The heartbeats, not this call, detect an outdated broker epoch.
                    level = logging.DEBUG if error.retriable else logging.WARNING
                    logger.log(
                        level, "cannot report the directories of %s, retrying: %s", counted(len(sent), "replica"), error
                    )
                    await asyncio.sleep(self._backoff.next_s())
                    continue
                self._backoff.reset()
                self._answered(sent, answer.refused)
                for key, recorded in fresh.items():
                    if key not in answer.refused:
                        recorded(answer.metadata_offset)
            await self._wake.wait()

    def _answered(self, sent: Mapping[ReplicaKey, bytes], refused: Mapping[ReplicaKey, HeadraceError]) -> None:
        for key, directory in sent.items():
            # A replica that has moved since the report stays pending, and is reported again.
            if self._pending.get(key) == directory:
                del self._pending[key]
                self._fresh.pop(key, None)
        for (topic_id, partition), error in refused.items():
            if not isinstance(error, UnknownTopicIdError):  # UnknownTopicIdError: the topic was deleted in the meantime
                logger.warning(
                    "partition %d of topic %s: the controllers refused the reported log directory: %s",
                    partition,
                    topic_id.hex(),
                    error,
                )
