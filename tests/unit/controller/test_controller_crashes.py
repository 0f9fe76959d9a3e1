"""The controller's storage in a crash: acknowledged state survives, no other state appears, and no term is used
twice."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import dataclass, field

import pytest

from headrace_controller import storage
from headrace_controller.cluster.requests import CreateTopics, DeleteTopics, NewTopic
from headrace_controller.raft import HardState
from headrace_core.errors import CorruptLogError, DiskFullError, HeadraceError, InvalidConfigError, StorageError
from headrace_core.metadata import MetadataImage
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.worlds.controllers_world import (
    LOG,
    QUORUM_STATE,
    ROOT,
    formatted,
    live_broker,
    new_driver,
    open_storage,
    running,
)


@dataclass
class History:
    """The requests, and the answers that arrived before the power failure."""

    sent: set[str] = field(default_factory=set)
    created: dict[str, bytes] = field(default_factory=dict)
    delete_sent: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


async def _workload(fs: CrashingFileSystem, history: History) -> None:
    async with running(fs) as driver:
        await live_broker(driver)

        async def create(name: str) -> None:
            history.sent.add(name)
            (result,) = (await driver.ask(CreateTopics((NewTopic(name=name, partitions=3),)))).reply
            history.created[name] = result.topic_id

        await create("a")
        await asyncio.gather(create("b"), create("c"))
        history.delete_sent.add("a")
        await driver.ask(DeleteTopics(("a",)))
        history.deleted.add("a")
        await create("d")


def _run(fs: CrashingFileSystem, history: History) -> None:
    """Run the workload until it ends or the power fails."""
    try:
        asyncio.run(_workload(fs, history))
    except (SimulatedCrash, HeadraceError):
        return


def _recover(fs: CrashingFileSystem) -> tuple[MetadataImage, HardState]:
    """Start again, read the state, and stop without a write to the disk."""
    storage = open_storage(fs)
    driver = new_driver(storage)
    driver.start()
    state = storage.hard_state
    storage.close(clean=False)
    return driver.image, state


def _check(history: History, image: MetadataImage) -> None:
    assert image.cluster_id == "cluster-one"
    found = dict(image.topic_ids)
    for name, topic_id in history.created.items():
        if name not in history.delete_sent:
            assert found.get(name) == topic_id, f"topic {name} was acknowledged and is lost"
    assert not history.deleted & set(found), "an acknowledged deletion is undone"
    assert set(found) <= history.sent, "a topic that nobody asked for"
    for topic in image.topics.values():
        assert len(topic.partitions) == 3, "half a decision"


@pytest.mark.parametrize("loss", list(Loss))
def test_what_was_answered_survives_a_crash_at_every_operation(loss: Loss, rng: random.Random) -> None:
    dry = formatted()
    before = dry.operations
    _run(dry, History())
    operations = dry.operations - before
    assert operations > 30
    acknowledged = 0
    for number in range(operations):
        fs, history = formatted(), History()
        fs.crash_at(fs.operations + number)
        _run(fs, history)
        acknowledged += len(history.created)
        fs.crash(rng, loss)
        image, state = _recover(fs)
        try:
            _check(history, image)
            again, later = _recover(fs)
        except AssertionError as error:
            raise AssertionError(f"crash at operation {number} of {operations}, {loss}: {error}") from error
        assert again.topics == image.topics
        assert later.term == state.term + 1, "a term came twice"
    assert acknowledged > operations // 4, "most crashes came before anything was acknowledged"


def test_every_answer_follows_the_fsync_of_what_it_says() -> None:
    fs = formatted()

    async def work() -> None:
        async with running(fs) as driver:
            await live_broker(driver)
            for number in range(20):
                names = [f"t{number}-{index}" for index in range(number % 3 + 1)]
                await asyncio.gather(*(create(driver, name) for name in names))

    async def create(driver, name: str) -> None:  # type: ignore[no-untyped-def]
        await driver.ask(CreateTopics((NewTopic(name=name),)))
        fs.note("answered", LOG)

    asyncio.run(work())
    last, answers = "", 0
    for entry in fs.trace:
        if entry.path == LOG and entry.operation in ("write", "sync"):
            last = entry.operation
        elif entry.operation == "answered":
            answers += 1
            assert last == "sync", f"answered before the fsync, at operation {entry.number}"
    assert answers > 30


def test_many_requests_share_one_write_and_one_fsync() -> None:
    fs = formatted()

    async def work() -> int:
        async with running(fs) as driver:
            await live_broker(driver)
            before = sum(entry.operation == "sync" for entry in fs.trace)
            await asyncio.gather(*(driver.ask(CreateTopics((NewTopic(name=f"t{n}"),))) for n in range(500)))
            return sum(entry.operation == "sync" for entry in fs.trace) - before

    assert asyncio.run(work()) <= 2


def test_a_clean_stop_and_start_goes_on_where_it_was() -> None:
    fs, history = formatted(), History()
    _run(fs, history)
    assert set(history.created) == {"a", "b", "c", "d"}
    image, _ = _recover(fs)
    _check(history, image)
    assert sorted(image.topic_ids) == ["b", "c", "d"]


def test_a_torn_tail_is_cut_and_damage_before_it_is_refused() -> None:
    fs, history = formatted(), History()
    _run(fs, history)
    data = fs.files()[LOG]
    torn = fs.crash_clone()
    torn.replace(LOG, data[:-7])
    torn.unlink(f"{ROOT}/.kafka_cleanshutdown")
    torn.unlink(f"{ROOT}/recovery-point-offset-checkpoint")
    image, _ = _recover(torn)
    assert sorted(image.topic_ids) == ["b", "c"]
    fs.flip(LOG, len(data) // 2)
    fs.unlink(f"{ROOT}/.kafka_cleanshutdown")
    with pytest.raises(CorruptLogError):
        open_storage(fs)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"state": "{}", "crc32": 0}', b"\xff\xfe", b"[1]"])
def test_a_damaged_vote_stops_the_voter(content: bytes) -> None:
    fs = formatted()
    _run(fs, History())
    fs.replace(QUORUM_STATE, content)
    with pytest.raises(CorruptLogError, match="could vote twice"):
        open_storage(fs)


def test_a_flipped_bit_in_the_term_is_noticed() -> None:
    fs = formatted()
    _run(fs, History())
    content = fs.files()[QUORUM_STATE]
    fs.flip(QUORUM_STATE, content.index(b"leaderEpoch") + 15, 0x04)
    with pytest.raises(CorruptLogError, match="wrong checksum"):
        open_storage(fs)


def test_a_vote_that_is_gone_stops_a_voter_with_a_log() -> None:
    fs = formatted()
    _run(fs, History())
    fs.unlink(QUORUM_STATE)
    with pytest.raises(CorruptLogError, match="is missing, but the log has records"):
        open_storage(fs)


def test_a_directory_has_one_controller_at_a_time() -> None:
    fs = formatted()
    storage = open_storage(fs)
    with pytest.raises(StorageError, match="another process"):
        open_storage(fs)
    storage.close()
    open_storage(fs).close()


def test_an_unformatted_directory_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="not formatted"):
        open_storage(CrashingFileSystem())


def test_a_full_disk_refuses_changes_and_the_next_ones_succeed() -> None:
    fs = formatted()

    async def work() -> None:
        async with running(fs) as driver:
            await live_broker(driver)
            await driver.ask(CreateTopics((NewTopic(name="before"),)))
            fs.fail("write", 28, path_ends=".log")
            with pytest.raises(DiskFullError, match="no space left"):
                await driver.ask(CreateTopics((NewTopic(name="lost"),)))
            assert sorted(driver.image.topic_ids) == ["before"]
            (result,) = (await driver.ask(CreateTopics((NewTopic(name="lost"),)))).reply
            assert result.error is None, "the dropped decision must not linger in the speculation"
            assert driver.term == 2

    asyncio.run(work())
    image, _ = _recover(fs)
    assert sorted(image.topic_ids) == ["before", "lost"]


def test_a_disk_too_full_for_a_checkpoint_ends_no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_RECOVERY_POINT_EVERY", 1)
    fs = formatted()

    async def work() -> None:
        async with running(fs) as driver:
            await live_broker(driver)
            full = fs.fail("create", errno.ENOSPC, path_contains="recovery-point")
            await driver.ask(CreateTopics((NewTopic(name="a"),)))
            assert full.seen == 1
            await driver.ask(CreateTopics((NewTopic(name="b"),)))
            assert full.seen == 2

    asyncio.run(work())
    image, _ = _recover(fs)
    assert sorted(image.topic_ids) == ["a", "b"]


def test_a_failed_fsync_ends_the_controller_and_answers_nobody() -> None:
    fs = formatted()

    async def work() -> None:
        async with running(fs) as driver:
            await live_broker(driver)
            fs.fail("sync", 5, path_ends=".log")
            with pytest.raises(HeadraceError, match="has stopped"):
                await driver.ask(CreateTopics((NewTopic(name="t"),)))

    with pytest.raises(OSError, match="Input/output"):
        asyncio.run(work())
