"""Log directories that cannot be used, at the start or later: they cost their own partitions, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import uuid

import pytest

from headrace_broker.placement import Placement
from headrace_core import errors
from headrace_core.log import format_directory
from headrace_core.log.checkpoints import META_PROPERTIES
from headrace_core.telemetry import LogDirectoryFailed
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop

STORAGE_ERROR = errors.StorageError.number


def ids_of(broker: SoloBroker) -> dict[str, uuid.UUID]:
    return {root: one for one, root in broker.storage.directory_ids().items()}


async def append(broker: SoloBroker, topic: str, value: bytes, partition: int = 0) -> int:
    """Return the error's number, or 0 without an error."""
    return int((await broker.append(topic, batch(value), partition)).error.code)


async def two_directories(fs: CrashingFileSystem) -> tuple[SoloBroker, dict[TopicPartition, uuid.UUID]]:
    """A stopped broker with "orders" in /one and "payments" in /two, and the controller's metadata about the broker."""
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders")
        await broker.topic("payments")
        for topic in ("orders", "payments"):
            assert await append(broker, topic, b"a") == 0
        where = {
            partition: found
            for topic in ("orders", "payments")
            if (found := broker.storage.directory_of(partition := TopicPartition(topic, 0))) is not None
        }
        assert [broker.storage.directory_ids()[one] for one in where.values()] == ["/one", "/two"]
    return broker, where


def _unformatted(fs: CrashingFileSystem) -> None:
    fs.unlink(f"/two/{META_PROPERTIES}")


def _damaged(fs: CrashingFileSystem) -> None:
    fs.replace(f"/two/{META_PROPERTIES}", b"nonsense")


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (_unformatted, "not formatted"),
        (_damaged, "format the directory again"),
        (lambda fs: fs.break_disk("/two", errno.EROFS), "Read-only file system"),
        (lambda fs: fs.break_disk("/two", errno.EIO, reads=True), "Input/output error"),
        (lambda fs: fs.fail("listdir", errno.EIO, path_contains="/two", times=1000), "Input/output error"),
    ],
    ids=["unmounted", "damaged", "read-only", "dead", "dies while it is opened"],
)
@pytest.mark.parametrize("known", [True, False], ids=["on record", "not on record"])
@in_loop
async def test_a_start_goes_on_without_a_directory_and_makes_none_of_its_partitions_anew(
    break_it: object, why: str, known: bool
) -> None:
    fs = CrashingFileSystem()
    before, where = await two_directories(fs)
    sound = fs.crash_clone()
    break_it(fs)  # type: ignore[operator]
    broker = SoloBroker(fs, "/one", "/two", image=before.image)
    if known:
        broker.assigned = lambda partition, _: where[partition]
    async with broker:
        (reason,) = broker.storage.offline_directories().values()
        assert why in reason
        assert "/two" in reason
        assert await append(broker, "orders", b"b") == 0
        assert await append(broker, "payments", b"lost?") == STORAGE_ERROR
        await broker.again("payments")  # a change of it must not create the log again either
        refused = await broker.append("payments", batch(b"lost?"))
        assert refused.error.code == STORAGE_ERROR
        assert "payments-0" in refused.error.message
        assert not fs.exists("/one/payments-0")
        assert broker.values("orders") == [b"a", b"b"]
        broker.assigned = lambda partition, _: None
        await broker.topic("late")  # new: it cannot be in the missing directory
        assert await append(broker, "late", b"x") == 0
        await broker.delete("payments")
        await broker.topic("payments", topic_id=b"another payments")
        assert await append(broker, "payments", b"new") == 0
    async with SoloBroker(sound, "/one", "/two", image=before.image) as whole:  # the disk is back
        assert whole.values("payments") == [b"a"]
        assert not whole.storage.offline_directories()


@in_loop
async def test_a_start_says_with_how_many_directories_it_goes_on_and_only_if_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = CrashingFileSystem()
    await two_directories(fs)
    caplog.clear()
    _unformatted(fs)
    async with SoloBroker(fs, "/one", "/two"):
        pass
    assert "the broker continues with 1 of its 2 log directories" in caplog.messages
    caplog.clear()
    fs.unlink(f"/one/{META_PROPERTIES}")
    with pytest.raises(errors.InvalidConfigError, match="not formatted"):
        async with SoloBroker(fs, "/one", "/two"):
            pass
    assert not [line for line in caplog.messages if "continues with" in line]
    assert len([line for line in caplog.messages if "is offline: log.dirs=" in line]) == 2


@in_loop
async def test_a_log_that_moved_before_the_controller_knows_is_not_made_anew_where_it_was() -> None:
    fs = CrashingFileSystem()
    before, where = await two_directories(fs)
    orders = TopicPartition("orders", 0)
    async with SoloBroker(fs, "/one", "/two", image=before.image) as broker:
        await broker.storage.move(orders, "/two")
        await broker.storage.until_moved(orders)
        assert await append(broker, "orders", b"b") == 0
    sound = fs.crash_clone()
    fs.break_disk("/two", errno.EIO, reads=True)
    half = SoloBroker(fs, "/one", "/two", image=before.image)
    half.assigned = lambda partition, _: where[partition]
    async with half:
        assert await append(half, "orders", b"lost?") == STORAGE_ERROR
        await half.again("orders")
        assert not fs.exists("/one/orders-0")
    async with SoloBroker(sound, "/one", "/two", image=before.image) as whole:
        assert whole.values("orders") == [b"a", b"b"]


@in_loop
async def test_a_replica_goes_where_the_controller_has_it_on_record() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        ids = ids_of(broker)
        broker.assigned = lambda *_: ids["/two"]
        for name in ("a", "b", "c"):
            await broker.topic(name)
        assert [fs.exists(f"/two/{name}-0") for name in ("a", "b", "c")] == [True] * 3
        broker.assigned = lambda *_: uuid.UUID(int=4711)
        await broker.topic("d")
        refused = await broker.append("d", batch(b"x"))
        assert refused.error.code == STORAGE_ERROR
        assert "/one, /two" in refused.error.message
        assert "is in log directory AAAAAAAAAAAAAAAAAAASZw," in refused.error.message  # 4711, as Kafka writes it
        broker.assigned = lambda *_: uuid.UUID(int=0)  # none yet
        await broker.again("d")
        assert await append(broker, "d", b"x") == 0
        assert fs.exists("/one/d-0")


@in_loop
async def test_new_partitions_go_where_there_are_fewest_then_where_there_is_most_room() -> None:
    fs = CrashingFileSystem()
    for root, size in (("/one", 100_000), ("/two", 300_000), ("/three", 200_000)):
        fs.mount(root, size)
    async with SoloBroker(fs, "/one", "/two", "/three") as broker:
        await broker.topic("orders", partitions=4)
        where = [root for n in range(4) for root in ("/one", "/two", "/three") if fs.exists(f"{root}/orders-{n}")]
        assert where == ["/two", "/three", "/one", "/two"]
        fs.mount("/one", 100)  # full, although it has the fewest partitions
        fs.mount("/three", 100)
        await broker.topic("payments", partitions=2)
        assert [fs.exists(f"/two/payments-{n}") for n in range(2)] == [True, True]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda fs: fs.break_disk("/two", errno.EROFS),
        lambda fs: fs.break_disk("/two", errno.EIO, reads=True),
        _unformatted,
    ],
    ids=["read-only", "dead", "unmounted"],
)
@in_loop
async def test_a_disk_that_goes_while_nobody_uses_it_is_noticed(break_it: object) -> None:
    fs = CrashingFileSystem()
    reported: list[uuid.UUID] = []
    broker = SoloBroker(fs, "/one", "/two")
    broker.storage.failed.subscribe(lambda *_: reported.extend(broker.storage.offline_directory_ids()))
    async with broker:
        await broker.topic("orders")
        await broker.topic("payments")
        assert await append(broker, "payments", b"a") == 0
        ids = ids_of(broker)
        await broker.storage.checkpoint({})
        break_it(fs)  # type: ignore[operator]
        assert not reported
        await broker.storage.checkpoint({})
        assert reported == [ids["/two"]]
        assert broker.storage.offline_directory_ids() == reported
        assert broker.storage.directory_of(TopicPartition("payments", 0)) == ids["/two"]
        assert await append(broker, "payments", b"b") == STORAGE_ERROR
        assert await append(broker, "orders", b"b") == 0
        (two,) = [one for one in broker.storage.describe() if one.root == "/two"]
        assert two.error is not None
        assert (two.total_bytes, two.usable_bytes, list(two.logs)) == (-1, -1, [])
        assert sum(isinstance(event, LogDirectoryFailed) for event in broker.events) == 1


@in_loop
async def test_nothing_is_made_in_a_mount_point_without_its_disk() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders")
        _unformatted(fs)  # since the last look
        await broker.topic("payments")
        assert await append(broker, "payments", b"x") == STORAGE_ERROR
        assert not fs.exists("/two/payments-0")


@in_loop
async def test_a_disk_that_turns_read_only_under_load_costs_the_other_no_write_and_nobody_a_record() -> None:
    fs = CrashingFileSystem()
    broker = SoloBroker(fs, "/one", "/two")
    acknowledged: dict[str, list[bytes]] = {"orders": [], "payments": []}
    async with broker:
        for topic in acknowledged:
            await broker.topic(topic)
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "payments", offset=1_000_000))

        async def produce(topic: str) -> None:
            for number in range(200):
                if topic == "payments" and number == 100:
                    fs.break_disk("/two", errno.EROFS)
                value = b"%d" % number
                error = await append(broker, topic, value)
                assert error in (0, STORAGE_ERROR)
                if not error:
                    acknowledged[topic].append(value)

        await asyncio.gather(*(produce(topic) for topic in acknowledged))
        assert len(acknowledged["orders"]) == 200
        assert len(acknowledged["payments"]) == 100
        consumer.on_closed()
        assert answers.sent
    fs.mend_disk("/two")
    async with SoloBroker(fs, "/one", "/two", image=broker.image) as again:
        for topic, values in acknowledged.items():
            assert again.values(topic)[: len(values)] == values
            assert await append(again, topic, b"more") == 0


@in_loop
async def test_the_last_directory_takes_the_broker_with_it() -> None:
    fs = CrashingFileSystem()
    broker = SoloBroker(fs, "/one", "/two")
    async with broker:
        await broker.topic("orders")
        ending = asyncio.create_task(broker.storage.until_all_failed())
        fs.break_disk("/one", errno.EIO, reads=True)
        await broker.storage.checkpoint({})
        assert not ending.done()
        fs.break_disk("/two", errno.EIO, reads=True)
        await broker.storage.checkpoint({})
        with pytest.raises(errors.StorageError, match=r"/one.*/two"):
            await ending
    with pytest.raises(errors.StorageError, match="Input/output error"):
        await SoloBroker(fs, "/one", "/two", image=broker.image).__aenter__()


@in_loop
async def test_mistakes_of_people_stop_the_start() -> None:
    fs = CrashingFileSystem()
    format_directory(fs, "/one", cluster_id="test", node_id=1)
    format_directory(fs, "/two", cluster_id="another", node_id=1)
    with pytest.raises(errors.InconsistentClusterIdError):
        await SoloBroker(fs, "/one", "/two").__aenter__()
    with pytest.raises(errors.InvalidConfigError, match="the same directory"):
        await SoloBroker(fs, "/one", "/one").__aenter__()
    lock = fs.lock("/one/.lock")
    with pytest.raises(errors.StorageError, match="in use"):
        await SoloBroker(fs, "/one", "/three").__aenter__()
    lock.release()
    fs.unlink(f"/one/{META_PROPERTIES}")
    fs.unlink(f"/two/{META_PROPERTIES}")
    with pytest.raises(errors.InvalidConfigError, match="not formatted"):
        await SoloBroker(fs, "/one", "/two").__aenter__()


def test_a_log_that_must_not_be_used_is_refused_with_a_copy_of_its_error() -> None:
    placement = Placement([], lambda partition, topic_id: None)
    partition = TopicPartition("orders", 0)
    placement.refused[partition] = errors.CorruptLogError("orders-0 is damaged")
    with pytest.raises(errors.CorruptLogError, match="orders-0 is damaged"):
        placement.place(partition, uuid.uuid4(), {}, at_start=False)
    assert placement.refused[partition].__traceback__ is None
