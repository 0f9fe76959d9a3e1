"""The shards of this coordinator and their epochs, according to the metadata.

This coordinator owns a shard if the metadata names the coordinator *with its coordinator epoch*. When a process
registers with the coordinator id of a former process, the former process's shards get new epochs or other owners. A
shard with another epoch counts as another shard: the runner of the old epoch resigns, because its appends would be
refused.

    shard added, epoch changed -> a runner that claims it     removed -> its runner resigns
    topics changed -> sent to every serving shard of groups   (and to each that begins to serve)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from headrace_core.errors import (
    CoordinatorNotAvailableError,
    InvalidRequestError,
    NotCoordinatorError,
)
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.shards import OFFSETS_TOPIC, SHARD_TOPICS, TRANSACTIONS_TOPIC, shard_of
from headrace_core.security.access import Authorization
from headrace_core.types import TopicPartition

from .runner import ShardRunner
from .shard import ShardState
from .topics import TopicsView

logger = logging.getLogger("headrace.coordinator")

#: Returns a new runner for (partition, topic id, shard epoch).
NewRunner = Callable[[TopicPartition, bytes, int], ShardRunner]


class Shards:
    """Call all methods in the event loop. Call ``metadata_changed`` for every metadata image, in order."""

    def __init__(
        self,
        coordinator_id: int,
        coordinator_epoch: int,
        new_runner: NewRunner,
        authorization: Authorization,
    ) -> None:
        self._who = coordinator_id, coordinator_epoch
        self._new_runner = new_runner
        #: Maps a shard to (topic id, shard epoch, runner).
        self._running: dict[TopicPartition, tuple[bytes, int, ShardRunner]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._counts: dict[str, int] = {}  # topic -> number of shards
        self._topics = TopicsView(authorization)
        self._closed = False

    def of_group(self, group_id: str) -> ShardRunner:
        """The runner of the shard to which a group belongs. Raises CoordinatorNotAvailableError if the topic of the
        shards does not exist yet, and NotCoordinatorError if the metadata names another coordinator as owner."""
        return self._of(OFFSETS_TOPIC, group_id, "group")

    def of_transactional_id(self, transactional_id: str) -> ShardRunner:
        """The runner of the shard to which a transactional id belongs. Raises InvalidRequestError, and the errors of
        ``of_group``."""
        if not transactional_id:
            raise InvalidRequestError("the transactional id is empty: set transactional.id")
        return self._of(TRANSACTIONS_TOPIC, transactional_id, "transactional id")

    def of_shard(self, shard: TopicPartition) -> ShardRunner:
        """The runner of a shard. Raises NotCoordinatorError."""
        return self._of_shard(shard, f"{shard}")

    def shard_of_group(self, group_id: str) -> TopicPartition:
        """The shard to which a group belongs. Raises CoordinatorNotAvailableError."""
        return self._shard(OFFSETS_TOPIC, group_id)

    def _of(self, topic: str, key: str, kind: str) -> ShardRunner:
        shard = self._shard(topic, key)
        return self._of_shard(shard, f"{kind} {key!r} belongs to {shard}, which")

    def _shard(self, topic: str, key: str) -> TopicPartition:
        count = self._counts.get(topic)
        if not count:
            raise CoordinatorNotAvailableError(f"{topic} does not exist yet; ask a broker for the coordinator")
        return TopicPartition(topic, shard_of(key, count))

    def _of_shard(self, shard: TopicPartition, what: str) -> ShardRunner:
        found = self._running.get(shard)
        if found is None:
            raise NotCoordinatorError(f"{what} belongs to another coordinator; look up the coordinator again")
        return found[2]

    def of_topic(self, topic: str) -> list[ShardRunner]:
        """The runners of a topic's shards."""
        return [runner for shard, (_, _, runner) in self._running.items() if shard.topic == topic]

    def __iter__(self) -> Iterator[ShardRunner]:
        return iter([runner for _, _, runner in self._running.values()])

    def has(self, runner: ShardRunner) -> bool:
        """Whether the runner's shard is still running, according to the last applied metadata."""
        return any(each is runner for each in self)

    def began(self, runner: ShardRunner, state: ShardState) -> None:
        """Called when a shard has changed its state; a shard of groups that begins to serve receives the cluster's
        topics."""
        if state is ShardState.SERVING and any(each is runner for each in self.of_topic(OFFSETS_TOPIC)):
            runner.put(self._topics.current)

    def begin(self, image: MetadataImage) -> None:
        """Apply the first metadata image."""
        self._topics.begin(image)
        self._own(image)

    def metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if self._closed:
            return
        news = self._topics.advance(image, delta)
        if news is not None:
            for runner in self.of_topic(OFFSETS_TOPIC):
                if runner.is_serving:
                    runner.put(news)
        self._own(image)

    def _own(self, image: MetadataImage) -> None:
        """Guard: return only the shards that the metadata assigns to this coordinator with its epoch."""
        self._counts = {}
        ours: dict[TopicPartition, tuple[bytes, int]] = {}
        coordinator_id, coordinator_epoch = self._who
        registered = image.ledger.coordinators.get(coordinator_id)
        is_registered = registered is not None and registered.coordinator_epoch == coordinator_epoch
        for name in SHARD_TOPICS:
            topic = image.topic(name)
            if topic is None:
                continue
            self._counts[name] = len(topic.partitions)
            for number in range(len(topic.partitions)) if is_registered else ():
                shard = image.ledger.shards.get((topic.topic_id, number))
                if shard is not None and shard.coordinator_id == coordinator_id:
                    ours[TopicPartition(name, number)] = topic.topic_id, shard.shard_epoch
        before = {which: (topic_id, epoch) for which, (topic_id, epoch, _) in self._running.items()}
        if ours == before:
            return
        logger.info(
            "this coordinator now owns %d shards: %d are new, %d were released",
            len(ours),
            len(ours.items() - before.items()),
            len(before.items() - ours.items()),
        )
        for which, (topic_id, epoch, runner) in list(self._running.items()):
            if ours.get(which) != (topic_id, epoch):
                del self._running[which]
                self._end(runner)
        for which, (topic_id, epoch) in ours.items():
            if which not in self._running:
                runner = self._new_runner(which, topic_id, epoch)
                self._running[which] = topic_id, epoch, runner
                runner.start()

    def _end(self, runner: ShardRunner) -> None:
        task = asyncio.create_task(runner.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Stop all runners: their shards resign."""
        self._closed = True
        running, self._running = self._running, {}
        for _, _, runner in running.values():
            self._end(runner)
        await asyncio.gather(*self._ending, return_exceptions=True)
