"""Logs found at a start that the metadata does not assign to the broker: deleted if the broker knows that they were its
own before, set aside otherwise."""

from __future__ import annotations

from headrace_core import errors
from headrace_core.metadata import EMPTY_IMAGE, MetadataImage, PartitionRecord, RemoveTopicRecord, TopicRecord
from headrace_core.telemetry import PartitionClosed, PartitionSetAside
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, batch
from tests.worlds.waiting import in_loop

OTHER_ID = BROKER_ID + 1
ID = b"1" * 16
LOG = "00000000000000000000.log"
ORDERS = TopicPartition("orders", 0)


def _with_replica(broker_id: int) -> MetadataImage:
    placed = PartitionRecord(ID, 0, (broker_id,), (broker_id,), broker_id, 0, 0)
    return EMPTY_IMAGE.apply([TopicRecord("orders", ID), placed], 2)


HERE, ELSEWHERE = _with_replica(BROKER_ID), _with_replica(OTHER_ID)
DELETED = HERE.apply([RemoveTopicRecord(ID)], 3)


async def _written() -> CrashingFileSystem:
    """The disk of a broker that stopped with two records in the partition."""
    fs = CrashingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders", topic_id=ID)
        for value in (b"a", b"b"):
            assert not (await broker.append("orders", batch(value))).error.code
    return fs


def _names(fs: CrashingFileSystem, ending: str) -> list[str]:
    return [name for name in fs.listdir("/data") if name.startswith("orders-0") and name.endswith(ending)]


def _closed_and_aside(broker: SoloBroker) -> tuple[list[TopicPartition], list[TopicPartition]]:
    return (
        [event.partition for event in broker.events if isinstance(event, PartitionClosed)],
        [event.partition for event in broker.events if isinstance(event, PartitionSetAside)],
    )


@in_loop
async def test_a_log_whose_topic_was_deleted_or_reassigned_meanwhile_is_deleted() -> None:
    for image in (DELETED, ELSEWHERE):
        fs = await _written()
        async with SoloBroker(fs, image=image, former=HERE) as broker:
            assert not _names(fs, "-0")
            assert len(_names(fs, "-delete")) == 1
            assert _closed_and_aside(broker) == ([ORDERS], [])


@in_loop
async def test_a_log_that_the_metadata_never_gave_to_this_broker_is_set_aside_and_kept() -> None:
    for image, former in ((EMPTY_IMAGE, EMPTY_IMAGE), (ELSEWHERE, EMPTY_IMAGE), (ELSEWHERE, ELSEWHERE)):
        fs = await _written()
        content = fs.files()[f"/data/orders-0/{LOG}"]
        async with SoloBroker(fs, image=image, former=former) as broker:
            (name,) = _names(fs, "-stray")
            assert not _names(fs, "-0")
            assert _closed_and_aside(broker) == ([], [ORDERS])
            (writer,) = broker.storage.writers()
            writer.directory.remove_deleted(everything=True)  # as on a full disk
        async with SoloBroker(fs.crash_clone(), image=image, former=former) as again:
            assert again.fs.files()[f"/data/{name}/{LOG}"] == content
            assert _closed_and_aside(again) == ([], [])


@in_loop
async def test_a_log_that_was_set_aside_is_served_again_under_its_former_name() -> None:
    fs = await _written()
    async with SoloBroker(fs) as broker:
        assert _closed_and_aside(broker) == ([], [ORDERS])
    (name,) = _names(fs, "-stray")
    fs.rename(f"/data/{name}", "/data/orders-0")
    async with SoloBroker(fs, image=HERE) as broker:
        assert (await broker.append("orders", batch(b"c"))).base_offset == 2
        assert broker.values("orders") == [b"a", b"b", b"c"]


@in_loop
async def test_a_log_that_was_set_aside_does_not_hinder_a_new_topic_of_its_name() -> None:
    fs = await _written()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders", topic_id=b"2" * 16)
        assert (await broker.append("orders", batch(b"new"))).base_offset == 0
        assert len(_names(fs, "-stray")) == 1


@in_loop
async def test_a_damaged_log_is_set_aside_too() -> None:
    fs = await _written()
    fs.unlink("/data/.kafka_cleanshutdown")
    fs.flip(f"/data/orders-0/{LOG}", 70)
    async with SoloBroker(fs, image=HERE) as broker:
        assert (await broker.append("orders", batch(b"x"))).error.code == errors.CorruptLogError.number
    async with SoloBroker(fs) as broker:
        assert _closed_and_aside(broker) == ([], [ORDERS])
        assert len(_names(fs, "-stray")) == 1
