"""The controller's rules and the broker's reports together, over random histories. Directories fail and recover,
replicas move, topics are created and deleted, the broker restarts without some of its disks, and calls and answers are
lost. When no change is pending, the controller knows the directory of each replica. A partition has a leader exactly if
its log is in a working directory. After every disk is back, every partition has a leader again with its former log.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Collection, Mapping

import pytest

from headrace_broker.assignments import DirectoryAssignments
from headrace_broker.controller_link import DirectoriesAssigned, ReplicaKey
from headrace_broker.settings import BrokerIdentity
from headrace_controller.cluster.requests import AssignDirectories, DeleteTopics, Placement
from headrace_core.errors import NetworkError
from headrace_core.metadata import EMPTY_IMAGE, LOST_DIRECTORY, UNASSIGNED_DIRECTORY, MetadataImage
from headrace_core.rpc.outage import Backoff
from headrace_core.types import NO_LEADER, TopicPartition
from tests.worlds.cluster_world import ClusterWorld, id16

DISKS = (id16(71), id16(72), id16(73))
HISTORIES = 400
STEPS = 40


class Broker:
    """A broker's handling of its directories, without files. ``disks`` survive restarts; all other state belongs to one
    process."""

    def __init__(self, world: ClusterWorld, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.disks: dict[bytes, set[ReplicaKey]] = {disk: set() for disk in DISKS}
        self.broken: set[bytes] = set()
        self.calls_are_lost = True
        self.life = 0
        self.start()

    def start(self) -> None:
        """Start a new process on the disks that work now. Reports that the last process had not sent are lost."""
        self.life += 1
        self.world.now_ms += 60_000
        named = tuple(disk for disk in DISKS if disk not in self.broken)
        self.registered = self.world.register(7, life=self.life, directories=named)
        self.opened = {disk: self.disks[disk] for disk in named}
        self.failed: set[bytes] = set()
        self.withheld: set[ReplicaKey] = set()
        self.image: MetadataImage = EMPTY_IMAGE
        self.reporter = DirectoryAssignments(
            BrokerIdentity("tests", self.registered.broker_id, self.registered.broker_epoch),
            self._directory_of,
            self._tell,
            backoff=Backoff(first_ms=0, most_ms=0),
        )
        self.apply()
        self.beat()

    def online(self) -> list[bytes]:
        return [disk for disk in self.opened if disk not in self.failed]

    def find(self, key: ReplicaKey) -> bytes | None:
        return next((disk for disk, logs in self.opened.items() if key in logs), None)

    def _directory_of(self, partition: TopicPartition) -> uuid.UUID | None:
        key = (self.image.topic_ids[partition.topic], partition.partition)
        found = LOST_DIRECTORY if key in self.withheld else self.find(key)
        return None if found is None else uuid.UUID(bytes=found)

    def apply(self) -> None:
        """Apply the whole metadata log, in one step or several."""
        log = self.world.log
        while self.image.next_offset < self.world.image.next_offset:
            first = not self.image.next_offset
            end = len(log) if first else self.rng.randint(self.image.next_offset + 1, len(log))
            image, delta = self.image.apply_with_delta(log[self.image.next_offset : end], end)
            self.image = image
            for logs in (self.opened[disk] for disk in self.online()):
                logs -= {key for key in logs if key[0] not in image.topics}
            for topic_id, numbers in delta.partitions.items():
                for number in sorted(numbers):
                    self._place((topic_id, number), at_start=first)
            self.reporter.metadata_changed(image, delta)

    def _place(self, key: ReplicaKey, *, at_start: bool) -> None:
        """The method has the same rule as headrace_broker.placement."""
        if self.find(key) is not None:
            return
        assigned = self.image.topics[key[0]].partitions[key[1]].directories[0]
        is_placed = assigned not in (UNASSIGNED_DIRECTORY, LOST_DIRECTORY)
        if is_placed and assigned not in self.online():
            return
        if key in self.withheld or (at_start and len(self.opened) < len(DISKS)):
            self.withheld.add(key)
        else:
            self.opened[assigned if is_placed else self.rng.choice(self.online())].add(key)

    def beat(self) -> None:
        self.world.beat(self.registered, applied=self.image.next_offset, offline_directories=tuple(sorted(self.failed)))

    def fail(self, disk: bytes) -> None:
        """The last working directory does not fail, because the broker would end."""
        if disk in self.online() and len(self.online()) > 1:
            self.broken.add(disk)
            self.failed.add(disk)
            partitions = [TopicPartition(self.image.topics[topic].name, n) for topic, n in sorted(self.opened[disk])
                          if topic in self.image.topics]  # fmt: skip
            self.reporter.replicas_changed(partitions)

    def move(self) -> None:
        held = [
            (disk, key) for disk in self.online() for key in sorted(self.opened[disk]) if key[0] in self.image.topics
        ]
        if held:
            source, key = self.rng.choice(held)
            self.opened[source].remove(key)
            self.opened[self.rng.choice(self.online())].add(key)
            self.reporter.replicas_changed([TopicPartition(self.image.topics[key[0]].name, key[1])])

    async def _tell(self, where: Mapping[ReplicaKey, bytes], fresh: Collection[ReplicaKey]) -> DirectoriesAssigned:
        fate = self.rng.random() if self.calls_are_lost else 1.0
        await asyncio.sleep(0)
        if fate < 0.25:
            raise NetworkError("the call is lost")
        placements = tuple(Placement(*key, directory) for key, directory in where.items())
        epoch = self.registered.broker_epoch
        refused = self.world.ask(
            AssignDirectories(broker_id=self.registered.broker_id, broker_epoch=epoch, placements=placements)
        )
        if fate < 0.5:
            raise NetworkError("the answer is lost")
        return DirectoriesAssigned(
            {(each.placement.topic_id, each.placement.partition): each.error for each in refused},
            self.world.image.next_offset,
        )

    async def report(self, turns: int) -> None:
        """Let the reports run for this number of turns of the event loop (0: until no report is left)."""
        task = asyncio.create_task(self.reporter.run())
        async with asyncio.timeout(60):
            while turns or self.reporter.pending:
                await asyncio.sleep(0)
                turns -= 1 if turns else 0
                if not turns and self.calls_are_lost:
                    break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def settle(self) -> None:
        """Run until no node has a message to send."""
        self.calls_are_lost, offset = False, -1
        while offset != self.world.image.next_offset:
            offset = self.world.image.next_offset
            self.apply()
            self.beat()
            await self.report(0)
        self.calls_are_lost = True

    def check(self) -> None:
        for topic in self.world.image.topics.values():
            for number, state in enumerate(topic.partitions):
                name, key = f"{topic.name}-{number}", (topic.topic_id, number)
                disk = self.find(key)
                serves = disk is not None and disk not in self.failed
                assert (state.leader != NO_LEADER) == serves, f"{name}: {state}, but the log is in {disk!r}"
                if disk is not None:
                    assert state.directories == (disk,), f"{name} is in {disk.hex()}, not where {state} says"
                assert sum(key in logs for logs in self.disks.values()) <= 1, f"{name} has two logs"


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_what_the_controller_believes_becomes_what_is(seed: int) -> None:
    asyncio.run(_history(seed))


async def _history(seed: int) -> None:
    rng = random.Random(seed)
    world = ClusterWorld(seed)
    broker = Broker(world, rng)
    for step in range(STEPS):
        match rng.randrange(10):
            case 0 | 1:
                world.create(f"t{step}", rng.randint(1, 3))
                if rng.random() < 0.8:
                    broker.apply()
            case 2 if world.image.topic_ids:
                world.ask(DeleteTopics((rng.choice(sorted(world.image.topic_ids)),)))
            case 3:
                broker.fail(rng.choice(DISKS))
            case 4:
                broker.beat()
            case 5:
                broker.move()
            case 6:
                broker.apply()
            case 7:
                await broker.report(rng.randint(1, 6))
            case 8 if rng.random() < 0.5:
                broker.broken.discard(rng.choice(DISKS))
                broker.start()
            case 9 if rng.random() < 0.3:
                await broker.settle()
                broker.check()
    try:
        await broker.settle()
        broker.check()
        held = {key: disk for disk, logs in broker.disks.items() for key in logs}
        broker.broken.clear()
        broker.start()
        await broker.settle()
        broker.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    for topic in world.image.topics.values():
        for number, state in enumerate(topic.partitions):
            assert state.leader == 1, f"seed {seed}: {topic.name}-{number} has no leader although every disk is back"
            before = held.get((topic.topic_id, number))
            assert before in (None, state.directories[0]), f"seed {seed}: {topic.name}-{number} left {before!r}"
