"""Assignments reported when a directory fails before the controllers know its replicas (KIP-858)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from headrace_broker.assignments import DirectoryAssignments
from headrace_broker.controller_link import DirectoriesAssigned, ReplicaKey
from headrace_broker.settings import BrokerIdentity
from headrace_core import errors
from headrace_core.metadata import EMPTY_IMAGE, LOST_DIRECTORY, PartitionChangeRecord
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, batch
from tests.worlds.waiting import in_loop


class Assignments:
    """The broker's assignments, and the reported assignments by partition number."""

    def __init__(self, broker: SoloBroker) -> None:
        self.broker = broker
        self.where: dict[int, bytes] = {}
        self.assignments = DirectoryAssignments(
            BrokerIdentity("test", BROKER_ID, 1), broker.storage.directory_of, self._tell
        )

    async def _tell(self, where: Mapping[ReplicaKey, bytes], fresh: Collection[ReplicaKey]) -> DirectoriesAssigned:
        self.where.update({partition: directory for (_, partition), directory in where.items()})
        return DirectoriesAssigned({}, 0)

    async def everything(self) -> dict[int, bytes]:
        """Compare all of the metadata, and return the directories that the controllers then know."""
        self.assignments.all_changed(self.broker.image)
        task = asyncio.create_task(self.assignments.run())
        async with asyncio.timeout(60):
            while self.assignments.pending:  # noqa: ASYNC110
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self.where


@in_loop
async def test_a_replica_that_could_not_be_made_is_said_to_be_in_the_directory_that_failed() -> None:
    """Without the report, the partition would keep a leader that cannot serve, because the controllers count an
    unassigned replica as working."""
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        one, two = (each.directory_id for each in broker.storage.describe())
        assert one is not None
        assert two is not None
        fs.break_disk("/two")
        await broker.topic("orders", 4)
        assert broker.storage.offline_directory_ids() == [two]
        outcomes = [(await broker.append("orders", batch(b"a"), number)).error.code for number in range(4)]
        assert sorted(outcomes) == [0, 0, errors.StorageError.number, errors.StorageError.number]
        assigned = await Assignments(broker).everything()
        assert assigned == {number: two.bytes if code else one.bytes for number, code in enumerate(outcomes)}


@in_loop
async def test_a_replica_whose_directory_failed_unassigned_is_said_to_have_been_there() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders", 2)
        before = await Assignments(broker).everything()
        fs.break_disk("/two")
        outcomes = [(await broker.append("orders", batch(b"a"), number)).error.code for number in range(2)]
        assert sorted(outcomes) == [0, errors.StorageError.number]
        assert await Assignments(broker).everything() == before
        assert len(set(before.values())) == 2


@in_loop
async def test_a_replica_that_is_not_found_while_a_directory_is_away_is_said_to_be_lost() -> None:
    """The broker crashed before it could report its replicas' directories, and one of its disks is missing
    afterwards."""
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders", 2)
        before = await Assignments(broker).everything()
        image = broker.image
    fs.break_disk("/two", reads=True)
    async with SoloBroker(fs, "/one", "/two", image=image) as broker:
        (one,) = (each.bytes for each in broker.storage.directory_ids())
        assigned = await Assignments(broker).everything()
        assert assigned == {number: one if was == one else LOST_DIRECTORY for number, was in before.items()}
        assert sorted(assigned.values()) == sorted([one, LOST_DIRECTORY])
        await broker.change(
            *(
                PartitionChangeRecord(image.topic_ids["orders"], number, 1, directories=(directory,))
                for number, directory in assigned.items()
            )
        )
        image = broker.image
    fs.mend_disk("/two")
    async with SoloBroker(fs, "/one", "/two", image=image) as broker:
        assert await Assignments(broker).everything() == {n: where for n, where in before.items() if where != one}
        outcomes = [(await broker.append("orders", batch(b"a"), number)).error.code for number in range(2)]
        assert outcomes == [0, 0]


@in_loop
async def test_a_broker_without_partitions_tells_nothing() -> None:
    async with SoloBroker(CrashingFileSystem(), "/one", "/two") as broker:
        assigned = Assignments(broker)
        assigned.assignments.all_changed(EMPTY_IMAGE)
        assert await assigned.everything() == {}
