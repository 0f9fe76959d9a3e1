"""Following the metadata: across broken connections and leader changes, from a snapshot, and the age of the copy."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from headrace_controller.handlers import follow
from headrace_core.errors import DivergingMetadataError, InconsistentClusterIdError
from headrace_core.log.checkpoints import META_PROPERTIES
from headrace_core.log.files import RealFileSystem
from headrace_core.membership import metadata_follower
from headrace_core.membership.controllers import Controllers
from headrace_core.membership.image_store import ImageStore
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.metadata import EMPTY_IMAGE, MetadataDelta, MetadataImage, RemoveTopicRecord, TopicRecord
from headrace_core.rpc import ChannelPurpose, Channels
from headrace_core.telemetry import Emitter, Event, MetadataImageLoaded, MetadataImageSaved, Metrics
from headrace_core.testing.clock import ManualClock
from tests.worlds.controllers_world import FOLLOWED_CLUSTER, Member, Quorum, note, running_task, serving
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until


@pytest.fixture
def store(tmp_path: Any) -> ImageStore:
    (tmp_path / META_PROPERTIES).touch()
    return ImageStore(RealFileSystem(), str(tmp_path), FOLLOWED_CLUSTER, ManualClock())


@in_loop
async def test_a_controller_that_dies_is_left_for_another_at_once_though_only_one_was_configured() -> None:
    quorum = Quorum()
    async with serving([Member(quorum, node_id) for node_id in (1, 2, 3)]) as served:
        follower = MetadataFollower([served[0].member.address], FOLLOWED_CLUSTER)
        async with running_task(follower.run()):
            await follower.wait_applied(quorum.end)
            assert dict(follower.controllers.known) == served[0].member.controller_addresses()
            assert follower.leader_id == 1
            await served[0].stop()
            begun = asyncio.get_running_loop().time()
            quorum.elect(2)
            await follower.wait_applied(quorum.topic("t"), 60)
            assert asyncio.get_running_loop().time() - begun < 10  # no pause until every controller has been asked
            await until(lambda: follower.leader_id == 2, "the new leader to be known")
            assert served[1].follows + served[2].follows == 1


@in_loop
async def test_a_controller_of_the_former_release_confirms_how_old_the_image_is() -> None:
    """During a rolling upgrade a node may be newer than the controller that it asks."""
    quorum = Quorum()
    async with serving([Member(quorum, 1)], former=(1,)) as served:
        follower = MetadataFollower([served[0].member.address], FOLLOWED_CLUSTER)
        async with running_task(follower.run()):
            await until(lambda: follower.lag.ms is not None, "a first barrier")


@in_loop
async def test_when_nobody_can_be_reached_there_is_a_pause_between_the_rounds() -> None:
    quorum = Quorum()
    async with serving([Member(quorum, node_id) for node_id in (1, 2)]) as served:
        addresses = [each.member.address for each in served]
        for each in served:
            await each.stop()
        tried: list[str] = []

        class Watched(Channels):
            def open(self, address: str, purpose: ChannelPurpose) -> grpc.aio.Channel:
                tried.append(address)
                return super().open(address, purpose)

        follower = MetadataFollower(Controllers(addresses, Watched()), FOLLOWED_CLUSTER)
        async with running_task(follower.run()):
            await until(lambda: len(tried) >= 8, "eight attempts")
            waited = [tried[:8].count(address) for address in addresses]
            assert waited == [4, 4], tried  # round and round
            await served[1].start()
            await follower.wait_applied(quorum.end, 60)
        assert len(tried) < 20


def test_a_controller_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's process hangs, and the connection does not break."""
    monkeypatch.setattr(metadata_follower, "_SILENCE_S", 0.3)
    monkeypatch.setattr(follow, "KEEP_ALIVE_S", 1_000)

    async def work() -> None:
        quorum = Quorum()
        async with serving([Member(quorum, 1), Member(quorum, 2)]) as (first, second):
            follower = MetadataFollower([first.member.address], FOLLOWED_CLUSTER)
            async with running_task(follower.run()):
                await follower.wait_applied(quorum.end)
                await until(lambda: second.follows, "the other one to be asked")

    asyncio.run(work())


@pytest.mark.parametrize("can_ask", [False, True])
@in_loop
async def test_a_controller_that_is_cut_off_from_the_leader_is_left(
    monkeypatch: pytest.MonkeyPatch, can_ask: bool
) -> None:
    """With ``can_ask``, only the controller's log does not grow; the leader still answers its requests."""
    quorum = Quorum()
    async with serving([Member(quorum, 1), Member(quorum, 2), Member(quorum, 3)]) as (first, second, third):
        follower = MetadataFollower([second.member.address], FOLLOWED_CLUSTER)
        async with running_task(follower.run()):
            await until(lambda: follower.lag.ms is not None, "a barrier")
            second.member.is_deaf, second.member.leader_id = True, 1 if can_ask else -1
            offset = quorum.topic("t")
            with monkeypatch.context() as patched:  # only now: a busy machine may confirm the next one late, too
                patched.setattr(metadata_follower, "_UNCONFIRMED_S", 0.5)
                await until(lambda: first.follows + third.follows >= 1, "another controller is followed")
            await follower.wait_applied(offset, 10)
            assert second.follows == 1


@in_loop
async def test_the_lag_is_an_upper_bound_and_grows_while_nothing_is_confirmed() -> None:
    """Voters 2 and 3 are a majority. The leader 1 cannot reach them, and commits nothing without them."""
    quorum = Quorum()
    metrics = Metrics()
    async with serving([Member(quorum, 1)]) as (leader,):
        follower = MetadataFollower([leader.member.address], FOLLOWED_CLUSTER, metrics=metrics)
        assert follower.lag.ms is None
        assert metrics.snapshot()["last-applied-record-lag-ms"] == -1
        async with running_task(follower.run()):
            image = await follower.wait_current()
            assert image.next_offset == quorum.end
            await until(lambda: follower.lag.ms is not None and follower.lag.ms < 1_000, "a lag below a second")
            leader.member.is_deaf = True
            clock = asyncio.get_running_loop().time
            committed_s = clock()
            quorum.topic("unseen")
            asked_s, lag_ms = await until(
                lambda: (found := (clock(), follower.lag.ms or 0))[1] > 900 and found, "the lag to grow"
            )
            # The image is older than the topic, and does not report a smaller age.
            assert (asked_s - committed_s) * 1_000 <= lag_ms + 5
            assert metrics.snapshot()["last-applied-record-lag-ms"] > 900
            leader.member.is_deaf = False
            leader.member.catch_up()
            assert (await follower.wait_current()).topic("unseen") is not None
            assert follower.lag.records == 0
            assert metrics.snapshot()["last-applied-record-offset"] == quorum.end - 1
            assert metrics.snapshot()["last-applied-record-epoch"] == 1


@in_loop
async def test_what_is_confirmed_and_not_applied_makes_nothing_younger() -> None:
    """A broker that is busy with a change has learned that the log has grown. The broker's image nevertheless does not
    have the new records."""
    quorum = Quorum()
    busy = asyncio.Event()
    busy.set()

    async def act(image: MetadataImage, delta: MetadataDelta) -> None:
        await busy.wait()

    async with serving([Member(quorum, 1)]) as (leader,):
        follower = MetadataFollower([leader.member.address], FOLLOWED_CLUSTER, on_change=act)
        async with running_task(follower.run()):
            await follower.wait_current()
            busy.clear()
            begun_s = asyncio.get_running_loop().time()
            quorum.topic("a")
            await until(lambda: follower.lag.records == 1, "a barrier to confirm the new record")
            await until(lambda: (follower.lag.ms or 0) > 600, "the lag to grow while barriers succeed")
            assert follower.lag.records == 1
            assert (asyncio.get_running_loop().time() - begun_s) * 1_000 <= (follower.lag.ms or 0) + 5
            busy.set()
            assert (await follower.wait_current()).topic("a") is not None


@in_loop
async def test_the_own_snapshot_spares_the_next_start_the_history(store: ImageStore) -> None:
    events: list[Event] = []
    emitter = Emitter()
    emitter.subscribe(events.append)
    quorum = Quorum()
    for number in range(50):
        quorum.commit(note("retries", str(number)))
    async with serving([Member(quorum, 1)]) as (controller,):
        first = MetadataFollower([controller.member.address], FOLLOWED_CLUSTER, events=emitter)
        await first.load(store)
        first.keep(store)
        async with running_task(first.run()):
            await first.wait_applied(quorum.end)
        assert first.records_read == 51
        await first.save()
        (saved,) = events
        assert isinstance(saved, MetadataImageSaved)
        assert saved.next_offset == 51
        quorum.topic("later")
        second = MetadataFollower([controller.member.address], FOLLOWED_CLUSTER, events=emitter)
        await second.load(store)
        loaded = events[-1]
        assert isinstance(loaded, MetadataImageLoaded)
        assert (loaded.source, loaded.next_offset, loaded.epoch) == (saved.path, 51, 1)
        async with running_task(second.run()):
            await second.wait_applied(quorum.end)
        assert second.records_read == 1
        assert second.image == quorum.image


def test_snapshots_are_written_after_so_many_bytes_and_never_of_what_was_not_acted_upon(store: ImageStore) -> None:
    async def work() -> None:
        quorum = Quorum()
        acted = 0

        async def act(image: MetadataImage, delta: MetadataDelta) -> None:
            nonlocal acted
            on_disk = store.load()
            assert on_disk is None or on_disk.image.next_offset <= acted
            acted = image.next_offset

        async with serving([Member(quorum, 1)]) as (controller,):
            follower = MetadataFollower([controller.member.address], FOLLOWED_CLUSTER, on_change=act)
            follower.keep(store, after_bytes=500, after_ms=0)
            async with running_task(follower.run()):
                for number in range(30):
                    await follower.wait_applied(quorum.commit(note("retries", str(number))))
                await until(lambda: (found := store.load()) and found.image.next_offset > 20, "snapshots")

    asyncio.run(work())


@in_loop
async def test_behind_the_logs_start_the_image_is_replaced_and_the_change_names_what_differs(store: ImageStore) -> None:
    """A topic that was deleted and created again with the same name is a different topic."""
    quorum = Quorum()
    quorum.topic("kept")
    quorum.topic("again")
    image = quorum.image
    quorum.commit(RemoveTopicRecord(b"again".ljust(16, b".")))
    quorum.commit(TopicRecord("again", b"2" * 16))
    for number in range(100):
        quorum.commit(note("retries", str(number)))
    start = quorum.end
    quorum.topic("after")
    changes: list[MetadataDelta] = []

    async def act(image: MetadataImage, delta: MetadataDelta) -> None:
        changes.append(delta)

    async with serving([Member(quorum, 1, log_start=start)]) as (controller,):
        follower = MetadataFollower([controller.member.address], FOLLOWED_CLUSTER, image=image, on_change=act)
        async with running_task(follower.run()):
            await follower.wait_applied(quorum.end)
        assert follower.image == quorum.image
        assert follower.records_read == 1
    assert set(changes[0].removed_topics) == {b"again".ljust(16, b".")}
    assert changes[0].created_topics == {b"2" * 16}
    assert len(changes[0].configs) == 1
    assert (changes[0].from_offset, changes[0].next_offset) == (image.next_offset, start)
    assert changes[1].created_topics == {b"after".ljust(16, b".")}


@in_loop
async def test_an_image_of_another_history_is_refused_for_good() -> None:
    quorum = Quorum()
    for name in "abc":
        quorum.topic(name)
    other = Quorum()
    other.term = 5
    for name in "xyz":
        other.topic(name)
    async with serving([Member(quorum, 1)]) as (controller,):
        address = [controller.member.address]
        with pytest.raises(DivergingMetadataError, match="epoch 1, but the follower has epoch 5"):
            await MetadataFollower(address, FOLLOWED_CLUSTER, image=other.image).run()
        other.term = 1
        for name in "defg":
            other.topic(name)
        with pytest.raises(DivergingMetadataError, match="committed up to 4, but the follower has applied 8"):
            await MetadataFollower(address, FOLLOWED_CLUSTER, image=other.image).run()
        with pytest.raises(InconsistentClusterIdError):
            await MetadataFollower(address, "another").run()


@in_loop
async def test_a_controller_that_is_behind_its_follower_is_waited_for_and_not_taken_for_another_history() -> None:
    quorum = Quorum()
    leader, late = Member(quorum, 1), Member(quorum, 2)
    late.is_deaf = True
    for name in "abc":
        quorum.topic(name)
    assert late.image.next_offset < quorum.end
    async with serving([leader, late]) as (_, second):
        follower = MetadataFollower([late.address], FOLLOWED_CLUSTER, image=quorum.image)
        async with running_task(follower.run()) as task:
            await until(lambda: second.follows, "the late one to be asked")
            offset = quorum.topic("d")
            late.is_deaf = False
            late.catch_up()
            await follower.wait_applied(offset, 10)
            assert not task.done()


def test_an_image_loaded_first_is_the_start_and_nothing_else() -> None:
    follower = MetadataFollower(["127.0.0.1:1"], FOLLOWED_CLUSTER)
    assert follower.image is EMPTY_IMAGE
    assert follower.lag == (0, None)
