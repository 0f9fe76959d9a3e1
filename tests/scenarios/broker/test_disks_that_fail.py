"""Effects on producers and consumers when a disk fails, fills up, stalls, or loses unforced data."""

from __future__ import annotations

import asyncio
import errno

from headrace_broker.app import Broker
from headrace_core import errors
from headrace_core.log import LogConfig, format_directory
from headrace_core.log.checkpoints import CLEAN_SHUTDOWN
from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession, RegisteredBroker
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import PartitionRecord, TopicRecord
from headrace_core.node.config import NodeConfig
from headrace_core.telemetry import LogDirectoryFailed, PartitionFailed
from headrace_core.testing.crashing_fs import BLOCK_BYTES, CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import produce_pb2
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, StallingFileSystem, batch, fetch, produce
from tests.worlds.waiting import in_loop


@in_loop
async def test_a_failed_fsync_takes_its_directory_offline_and_no_other():
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders")
        await broker.topic("payments")  # to the other directory, which has fewer partitions
        assert not (await broker.append("orders", batch(b"a"))).error.code
        fs.fail("sync", errno.EIO, path_contains="/orders-0/", times=1000)
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "orders", offset=1))
        failed = await broker.append("orders", batch(b"b"))
        assert failed.error.code == errors.StorageError.number
        (ended,) = await answers.wait_sent(1)
        assert ended.results[0].error.code == errors.StorageError.number
        assert (await broker.append("orders", batch(b"c"))).error.code == errors.StorageError.number
        assert not (await broker.append("payments", batch(b"d"))).error.code
        assert broker.values("payments") == [b"d"]
        consumer.on_closed()
        kinds = [type(event) for event in broker.events]
        assert kinds.count(LogDirectoryFailed) == 1
        assert kinds.count(PartitionFailed) == 1
        await broker.topic("late")  # only one directory is left for the topic
        assert not (await broker.append("late", batch(b"e"))).error.code


@in_loop
async def test_a_directory_that_fails_under_a_leader_is_reported_to_the_controllers_at_once() -> None:
    """The controllers elect other leaders when they learn of the failure (test_controller_directories.py)."""
    fs, roots = CrashingFileSystem(), ("/one", "/two")
    for root in roots:
        format_directory(fs, root, cluster_id="test", node_id=BROKER_ID)
    given = {"log.dirs": ",".join(roots), "controller.quorum.voters": "1@127.0.0.1:1"}
    broker = Broker(NodeConfig.from_properties(given, role="broker"), fs=fs)
    broker.identity.broker_id = BROKER_ID
    who = BrokerRegistration(cluster_id="test", incarnation_id=b"", directory_ids=(), endpoints=())
    broker._session = session = BrokerSession(["127.0.0.1:1"], who, heartbeat_interval_ms=1)
    session._registered = RegisteredBroker(BROKER_ID, 1, 0)
    await broker.storage.open(lambda topic: LogConfig())
    topic_id = b"i" * 16
    placed = PartitionRecord(topic_id, 0, (BROKER_ID,), (BROKER_ID,), BROKER_ID, 0, 0)
    await broker.roles.apply_all(MetadataImage().apply([TopicRecord("orders", topic_id), placed], 2))
    orders = TopicPartition("orders", 0)
    replica, directory = broker.partitions.led[orders], broker.storage.directory_of(orders)
    assert directory is not None
    assert not session._heartbeat(1).offline_log_dirs
    session._nudge.clear()
    fs.fail("sync", errno.EIO, path_contains="/orders-0/", times=1000)
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    replica.append(batch(b"a"), 1000, answered.set_result, committed=True)
    assert isinstance(await answered, errors.StorageError)
    assert list(session._heartbeat(2).offline_log_dirs) == [directory.bytes], "and not the other one"
    assert session._nudge.is_set(), "the heartbeat does not wait for its time"
    await broker.storage.close({}, broker_epoch=1)


@in_loop
async def test_a_stop_marks_no_directory_whose_flush_failed_and_the_next_start_forces_what_it_finds():
    """One failure is enough: a second flush of the same file would succeed, and write nothing."""
    lost = b"b" * 3 * BLOCK_BYTES  # pages that no later write makes dirty again
    fs = CrashingFileSystem()
    async with SoloBroker(fs, "/one", "/two") as broker:
        await broker.topic("orders")
        await broker.topic("payments")  # to the other directory, which has fewer partitions
        assert not (await broker.append("orders", batch(b"a"))).error.code
        fs.fail("sync", errno.EIO, path_contains="/one/orders-0/")
        assert (await broker.append("orders", batch(lost))).error.code == errors.StorageError.number
        assert not (await broker.append("payments", batch(b"p"))).error.code
        image = broker.image
    assert not fs.exists(f"/one/{CLEAN_SHUTDOWN}")
    assert fs.exists(f"/two/{CLEAN_SHUTDOWN}")
    async with SoloBroker(fs, "/one", "/two", image=image) as again:
        assert again.values("orders") == [b"a", lost]  # (it was never acknowledged, and is in the page cache)
        assert (await again.append("orders", batch(b"c"))).base_offset == 2
        fs.crash()
    async with SoloBroker(fs, "/one", "/two", image=image) as after:
        assert after.values("orders") == [b"a", lost, b"c"]
        assert after.values("payments") == [b"p"]


@in_loop
async def test_a_full_disk_refuses_appends_serves_reads_and_recovers():
    fs = CrashingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        assert not (await broker.append("orders", batch(b"a"))).error.code
        fs.fail("write", errno.ENOSPC, path_ends=".log", times=2)
        for _ in range(2):
            full = await broker.append("orders", batch(b"x"))
            assert full.error.code == errors.DiskFullError.number
            assert broker.values("orders") == [b"a"]
        assert (await broker.append("orders", batch(b"b"))).base_offset == 1


@in_loop
async def test_nothing_is_acknowledged_or_readable_before_it_is_forced():
    fs = StallingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        producer, acknowledged = broker.producer()
        consumer, fetched = broker.consumer()
        consumer.on_request(fetch(1, "orders", max_wait_ms=60_000))
        fs.stall()
        try:
            # The batch is large, so that the directory's thread waits for the disk, and not the event loop.
            producer.on_request(produce(1, "orders", batch(b"x" * 100_000)))
            assert await asyncio.to_thread(fs.stalling.wait, 20)
            producer.on_request(produce(2, "orders", batch(b"y")))
            for _ in range(50):
                await asyncio.sleep(0)
            assert (acknowledged.sent, fetched.sent) == ([], [])
        finally:
            fs.release()
        await acknowledged.wait_sent(2)
        await fetched.wait_sent(1)
        assert [answer.results[0].base_offset for answer in acknowledged.sent] == [0, 1]
        assert {answer.results[0].durability for answer in acknowledged.sent} == {produce_pb2.DURABILITY_COMMIT}
        producer.on_closed()
        consumer.on_closed()


@in_loop
async def test_an_append_that_takes_too_long_times_out_and_may_still_take_effect():
    fs = StallingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        producer, answers = broker.producer()
        fs.stall()
        try:
            producer.on_request(produce(1, "orders", batch(b"x" * 100_000), timeout_ms=50))
            (late,) = await answers.wait_sent(1)
        finally:
            fs.release()
        assert late.results[0].error.code == errors.RequestTimedOutError.number
        assert late.results[0].base_offset == -1
        assert (await broker.append("orders", batch(b"next"))).base_offset == 1
        assert len(answers.sent) == 1
        assert (producer.is_idle(), broker.context.flow.in_memory, len(broker.context.flow.deadlines)) == (True, 0, 0)


@in_loop
async def test_a_producer_is_held_back_while_its_requests_pile_up_and_let_go_after():
    fs = StallingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        producer, answers = broker.producer()
        most = broker.context.limits.stream_bytes_max
        bulk = batch(b"x" * 1_000_000)
        fs.stall()
        sent = 0
        try:
            while not answers.paused:
                sent += 1
                producer.on_request(produce(sent, "orders", bulk))
            assert most < sent * len(bulk) <= most + len(bulk)
        finally:
            fs.release()
        await answers.wait_sent(sent)
        assert not answers.paused
        assert broker.context.flow.in_memory == 0


@in_loop
async def test_a_power_loss_keeps_what_was_acknowledged_and_invents_nothing():
    fs = CrashingFileSystem()
    sent = [b"%d" % number for number in range(40)]
    broker = SoloBroker(fs)
    await broker.__aenter__()
    await broker.topic("orders")
    producer, answers = broker.producer()
    for number, value in enumerate(sent):
        producer.on_request(produce(number, "orders", batch(value)))
        if number == 20:
            await answers.wait_sent(10)
    acknowledged = len(answers.sent)
    after = fs.crash_clone()
    await answers.wait_sent(len(sent))
    await broker.__aexit__()
    assert 10 <= acknowledged < len(sent)
    async with SoloBroker(after, image=broker.image) as again:
        stored = again.values("orders")
        assert len(stored) >= acknowledged
        assert stored == sent[: len(stored)]
