"""Tells the controllers in which directory each replica of this broker is (KIP-858).

What is to be told follows from comparing: the metadata says where the controllers believe a replica to be, the storage
says where it is. It is compared when the metadata of a partition has changed, and when the storage says that a replica
was moved or its directory has failed: nothing has to be remembered, and a report that was lost is made again. With one
directory a broker has nothing to tell, for the controllers know it from the start.

A replica that is to begin anew, empty, is told of as ``fresh`` before its log is made (``begin_anew``, KIP-903): from
then on the controllers hold it to be eligible for nothing. The metadata shows when that is so, and whoever makes the
log waits for it (``roles``).

One task sends, thousands of partitions in a call, as long as there is anything to tell.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from headrace_core.errors import HeadraceError, PolicyViolationError, UnknownTopicIdError
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.rpc.outage import Backoff
from headrace_core.types import TopicPartition

from .controller_link import DirectoriesTold, ReplicaKey
from .settings import BrokerIdentity

logger = logging.getLogger(__name__)

#: Replicas of one call: far fewer than the controllers' metadata.max.records.per.request (where that was set lower,
#: calls become smaller), and some 50 KiB.
CALL_REPLICAS_MAX = 2_000
#: A call is repeated by itself: it never stops trying, but after a while it is in no hurry.
_BACKOFF_MS_MAX = 10_000

#: Tells the controllers where replicas are, and which of them begin anew there; gives what they refused.
Tell = Callable[[Mapping[ReplicaKey, bytes], Collection[ReplicaKey]], Awaitable[DirectoriesTold]]


class DirectoryAssignments:
    """``directory_of``: the id of the directory that a replica is in, working or failed; None if there is no
    replica. ``run`` is the task; all other methods are called in the same event loop."""

    def __init__(
        self,
        identity: BrokerIdentity,
        directory_of: Callable[[TopicPartition], uuid.UUID | None],
        tell: Tell,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._identity = identity
        self._directory_of = directory_of
        self._tell = tell
        self._backoff = backoff or Backoff(most_ms=_BACKOFF_MS_MAX)
        self._image = MetadataImage()
        self._pending: dict[ReplicaKey, bytes] = {}
        #: Those of the pending ones that begin anew, and who waits for the controllers to know it.
        self._fresh: dict[ReplicaKey, Callable[[int], None]] = {}
        self._call_max = CALL_REPLICAS_MAX
        self._wake = asyncio.Event()

    @property
    def pending(self) -> int:
        """Replicas whose directory the controllers have not been told yet."""
        return len(self._pending)

    def all_changed(self, image: MetadataImage) -> None:
        """The first image is in force: compare everything."""
        everything = {topic_id: frozenset(range(len(topic.partitions))) for topic_id, topic in image.topics.items()}
        self.metadata_changed(image, MetadataDelta(0, image.next_offset, partitions=everything))

    def metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """``delta`` has been put into force: the logs that it asks for exist, or have failed."""
        self._image = image
        for topic_id, numbers in delta.partitions.items():
            topic = image.topics[topic_id]
            for number in numbers:
                self._compare(topic_id, TopicPartition(topic.name, number))

    def replicas_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """These replicas were moved to other directories, or theirs have failed."""
        for partition in partitions:
            topic_id = self._image.topic_ids.get(partition.topic)
            if topic_id is not None:
                self._compare(topic_id, partition)

    def begin_anew(self, topic_id: bytes, partition: int, directory: bytes, told: Callable[[int], None]) -> None:
        """Tell that this broker's replica begins anew, empty, in ``directory``. Its log is not there yet, or is damaged
        and about to be deleted. ``told`` is called with the metadata offset as of which the controllers know it.
        Whoever has no sign of it in the metadata may ask again."""
        key = (topic_id, partition)
        self._fresh[key] = told
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
        """Tell what there is to tell, until cancelled."""
        while True:
            self._wake.clear()
            while self._pending:
                told = dict(itertools.islice(self._pending.items(), self._call_max))
                fresh = {key: self._fresh[key] for key in told if key in self._fresh}
                try:
                    answer = await self._tell(told, fresh.keys())
                except HeadraceError as error:
                    if isinstance(error, PolicyViolationError) and len(told) > 1:
                        self._call_max = len(told) // 2
                        continue
                    # Also what no repetition cures: a former life of the broker ends by its heartbeats, not by this.
                    level = logging.DEBUG if error.retriable else logging.WARNING
                    logger.log(level, "%d replicas could not be assigned to directories: %s", len(told), error)
                    await asyncio.sleep(self._backoff.next_s())
                    continue
                self._backoff.reset()
                self._told(told, answer.refused)
                for key, told_anew in fresh.items():
                    if key not in answer.refused:
                        told_anew(answer.metadata_offset)
            await self._wake.wait()

    def _told(self, told: Mapping[ReplicaKey, bytes], refused: Mapping[ReplicaKey, HeadraceError]) -> None:
        for key, directory in told.items():
            if self._pending.get(key) == directory:  # else it was moved meanwhile, and is told again
                del self._pending[key]
                self._fresh.pop(key, None)
        for (topic_id, partition), error in refused.items():
            if not isinstance(error, UnknownTopicIdError):  # the topic was deleted meanwhile
                logger.warning(
                    "partition %d of topic %s: its directory was refused: %s", partition, topic_id.hex(), error
                )
