"""Reports of replicas' directories to the controllers: content, time, and frequency."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping

from headrace_broker import assignments
from headrace_broker.assignments import DirectoryAssignments
from headrace_broker.controller_link import DirectoriesAssigned, ReplicaKey
from headrace_broker.settings import BrokerIdentity
from headrace_core.errors import (
    HeadraceError,
    NetworkError,
    PolicyViolationError,
    StaleBrokerEpochError,
    UnknownTopicIdError,
)
from headrace_core.metadata import (
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_core.rpc.outage import Backoff
from headrace_core.types import TopicPartition

ME, OTHER = 1, 2
A, B = b"a" * 16, b"b" * 16
ONE, TWO = b"1" * 16, b"2" * 16


class DirectoryAssignmentsWorld:
    """A storage (``at``), a controller that records its calls (``calls``), and the metadata between them."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, bytes] = {}
        self.calls: list[dict[ReplicaKey, bytes]] = []
        self.fresh: list[set[ReplicaKey]] = []
        #: Metadata offsets as of which the controllers know that a replica starts empty.
        self.anew: list[int] = []
        self.failures: list[HeadraceError] = []
        self.refusals: dict[ReplicaKey, HeadraceError] = {}
        self.on_call: Callable[[], None] | None = None
        self.records_max = 10_000
        self.image = MetadataImage()
        self.reporter = DirectoryAssignments(
            BrokerIdentity("tests", ME, 1), self._directory_of, self._tell, backoff=Backoff(first_ms=0.1, most_ms=1)
        )

    def _directory_of(self, partition: TopicPartition) -> uuid.UUID | None:
        directory = self.at.get(partition)
        return None if directory is None else uuid.UUID(bytes=directory)

    async def _tell(self, where: Mapping[ReplicaKey, bytes], fresh: Collection[ReplicaKey]) -> DirectoriesAssigned:
        self.calls.append(dict(where))
        self.fresh.append(set(fresh))
        if self.on_call is not None:
            self.on_call()
        await asyncio.sleep(0)
        if len(where) > self.records_max:
            raise PolicyViolationError("metadata.max.records.per.request")
        if self.failures:
            raise self.failures.pop(0)
        return DirectoriesAssigned({key: error for key, error in self.refusals.items() if key in where}, 77)

    def change(self, *records: MetadataRecord) -> None:
        image, delta = self.image.apply_with_delta(records, self.image.next_offset + len(records))
        self.image = image
        self.reporter.metadata_changed(image, delta)

    def topic(self, name: str, topic_id: bytes, directory: bytes = b"", partitions: int = 1) -> None:
        """A topic whose logs were created in ``directory``."""
        for number in range(partitions):
            if directory:
                self.at[TopicPartition(name, number)] = directory
        self.change(
            TopicRecord(name, topic_id),
            *(PartitionRecord(topic_id, number, (ME, OTHER), (ME,), ME, 0, 0) for number in range(partitions)),
        )

    async def finished(self) -> None:
        """Run until all assignments are reported."""
        task = asyncio.create_task(self.reporter.run())
        async with asyncio.timeout(60):
            while self.reporter.pending:  # noqa: ASYNC110
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_new_replicas_are_reported_together() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE, partitions=3)
    world.topic("u", B, TWO)
    asyncio.run(world.finished())
    assert world.calls == [{(A, 0): ONE, (A, 1): ONE, (A, 2): ONE, (B, 0): TWO}]


def test_what_the_controllers_know_is_not_reported() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE, partitions=2)
    world.change(
        *(PartitionChangeRecord(A, number, 1, directories=(ONE, bytes(16))) for number in range(2)),
    )
    assert world.reporter.pending == 0, "somebody told them meanwhile"
    world.reporter.replicas_changed([TopicPartition("t", 0)])
    asyncio.run(world.finished())
    assert world.calls == []


def test_what_is_not_here_is_not_reported() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("without a log", A)
    world.at[TopicPartition("theirs", 0)] = ONE
    world.change(TopicRecord("theirs", B), PartitionRecord(B, 0, (OTHER,), (OTHER,), OTHER, 0, 0))
    world.reporter.replicas_changed([TopicPartition("nobody knows it", 0), TopicPartition("t", 77)])
    assert world.reporter.pending == 0


def test_a_move_is_reported() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE)
    world.change(PartitionChangeRecord(A, 0, 1, directories=(ONE, bytes(16))))
    world.at[TopicPartition("t", 0)] = TWO
    world.reporter.replicas_changed([TopicPartition("t", 0)])
    asyncio.run(world.finished())
    assert world.calls == [{(A, 0): TWO}]


def test_a_replica_that_moves_while_it_is_reported_is_reported_again() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE)

    def move() -> None:
        world.on_call = None
        world.at[TopicPartition("t", 0)] = TWO
        world.reporter.replicas_changed([TopicPartition("t", 0)])

    world.on_call = move
    asyncio.run(world.finished())
    assert world.calls == [{(A, 0): ONE}, {(A, 0): TWO}]


def test_a_replica_that_moves_back_need_not_be_reported() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE)
    world.change(PartitionChangeRecord(A, 0, 1, directories=(ONE, bytes(16))))
    for directory in (TWO, ONE):
        world.at[TopicPartition("t", 0)] = directory
        world.reporter.replicas_changed([TopicPartition("t", 0)])
    assert world.reporter.pending == 0


def test_a_failed_call_is_repeated_until_it_succeeds() -> None:
    world = DirectoryAssignmentsWorld()
    world.failures = [NetworkError("gone"), StaleBrokerEpochError("a former life"), NetworkError("gone")]
    world.topic("t", A, ONE)
    asyncio.run(world.finished())
    assert world.calls == [{(A, 0): ONE}] * 4


def test_what_is_refused_is_not_reported_for_ever() -> None:
    world = DirectoryAssignmentsWorld()
    world.refusals = {(A, 0): UnknownTopicIdError("deleted meanwhile")}
    world.topic("t", A, ONE, partitions=2)
    world.change(RemoveTopicRecord(A))
    asyncio.run(world.finished())
    assert world.calls == [{(A, 0): ONE, (A, 1): ONE}]


def test_five_thousand_replicas_are_three_calls() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE, partitions=5_000)
    asyncio.run(world.finished())
    assert [len(call) for call in world.calls] == [assignments.CALL_REPLICAS_MAX, assignments.CALL_REPLICAS_MAX, 1_000]
    assert len({key for call in world.calls for key in call}) == 5_000


def test_calls_become_smaller_where_the_controllers_take_less() -> None:
    world = DirectoryAssignmentsWorld()
    world.records_max = 700
    world.topic("t", A, ONE, partitions=2_000)
    asyncio.run(world.finished())
    assert [len(call) for call in world.calls] == [2_000, 1_000, 500, 500, 500, 500]


def test_what_begins_anew_is_said_to_until_it_is_known_and_whoever_waits_hears_as_of_when() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE, partitions=2)
    world.change(*(PartitionChangeRecord(A, number, 1, directories=(ONE, bytes(16))) for number in range(2)))
    world.reporter.report_fresh(
        A, 1, ONE, world.anew.append
    )  # back in its earlier directory, which the metadata would not show
    world.failures.append(NetworkError("the answer is lost"))
    asyncio.run(world.finished())
    assert world.calls == [{(A, 1): ONE}] * 2
    assert world.fresh == [{(A, 1)}] * 2
    assert world.anew == [77]


def test_what_was_refused_does_not_begin_anew() -> None:
    world = DirectoryAssignmentsWorld()
    world.topic("t", A, ONE)
    world.refusals[A, 0] = UnknownTopicIdError("it was deleted")
    world.reporter.report_fresh(A, 0, TWO, world.anew.append)
    asyncio.run(world.finished())
    assert world.anew == []
