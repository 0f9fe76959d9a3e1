"""FollowMetadata and ReadIndex as a controller serves them, message by message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from headrace_controller.handlers import follow, read_index
from headrace_core.clock import SystemClock
from headrace_core.errors import NotControllerError
from headrace_core.metadata import EMPTY_IMAGE
from headrace_core.metadata.codec import decode_batches
from headrace_core.metadata.snapshot import decode_snapshot
from headrace_core.rpc.status import error_from_rpc
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc
from tests.worlds.controllers_world import FOLLOWED_CLUSTER, Member, Quorum, Served, note, serving
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until


@contextlib.asynccontextmanager
async def stub_of(served: Served) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(served.member.address) as channel:
        yield cluster_pb2_grpc.ClusterStub(channel)


def follow_from(stub: Any, offset: int, epoch: int | None = None) -> Any:
    return stub.FollowMetadata(
        cluster_pb2.FollowMetadataRequest(cluster_id=FOLLOWED_CLUSTER, from_offset=offset, from_epoch=epoch)
    )


def index_request(**fields: Any) -> cluster_pb2.ReadIndexRequest:
    return cluster_pb2.ReadIndexRequest(cluster_id=FOLLOWED_CLUSTER, **fields)


def test_records_come_first_then_keep_alives_that_say_who_leads_and_how_old_the_sender_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "KEEP_ALIVE_S", 0.05)

    async def work() -> None:
        quorum = Quorum()
        quorum.topic("a")
        async with serving([Member(quorum, 1), Member(quorum, 2)]) as (_, second), stub_of(second) as stub:
            call = follow_from(stub, 0)
            first = await call.read()
            assert [batch.next_offset for batch in decode_batches(first.records)] == [1, 2]
            assert {(each.controller_id, each.host) for each in first.controllers} == {
                (1, "127.0.0.1"),
                (2, "127.0.0.1"),
            }
            assert (first.sender_id, first.leader_id, first.leader_epoch, first.committed_offset) == (2, 1, 1, 2)
            kept = [await call.read() for _ in range(5)]
            while not kept[-1].HasField("sender_lag_ms"):  # the sender's first barrier takes its time
                kept.append(await call.read())
            assert not any(each.records or each.controllers for each in kept)
            assert kept[-1].sender_lag_ms < 5_000
            quorum.topic("b")
            after = await call.read()
            while not after.records:  # a keep-alive may be under way
                after = await call.read()
            assert [batch.base_offset for batch in decode_batches(after.records)] == [2]
            quorum.elect(2)
            message = await call.read()
            while message.leader_epoch == 1:
                message = await call.read()
            assert message.leader_id == 2
            call.cancel()

    asyncio.run(work())


@in_loop
async def test_a_snapshot_comes_in_parts_and_the_log_behind_it() -> None:
    quorum = Quorum()
    for number in range(30):
        quorum.commit(note("retries", str(number)))
    start = quorum.end
    quorum.topic("after")
    async with serving([Member(quorum, 1, log_start=start)]) as (served,), stub_of(served) as stub:
        call = follow_from(stub, 5, 1)
        data = b""
        while True:
            part = (await call.read()).snapshot
            assert (part.offset, part.epoch, part.position) == (start, 1, len(data))
            data += part.data
            if part.is_last:
                break
        image, _ = decode_snapshot(data)
        assert image.next_offset == start
        message = await call.read()
        assert [batch.base_offset for batch in decode_batches(message.records)] == [start]
        call.cancel()


def test_while_a_received_snapshot_takes_the_logs_place_followers_wait_and_then_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log begins after the applied offset of this controller, and neither the log nor the snapshot can be read yet.
    A follower gets heartbeats, and its stream is not ended."""
    monkeypatch.setattr(follow, "KEEP_ALIVE_S", 0.02)

    async def work() -> None:
        quorum = Quorum()
        for number in range(30):
            quorum.commit(note("retries", str(number)))
        member = Member(quorum, 1)
        member.image = quorum.images[10]
        real, member.snapshot_chunk = member.snapshot_chunk, lambda *_: None  # type: ignore[method-assign]
        async with serving([member]) as (served,), stub_of(served) as stub:
            known = [follow_from(stub, offset, 1) for offset in (3, member.image.next_offset, 15)]
            for call in known[:2]:
                await call.read()
            member.log_start_offset = 20
            others = [follow_from(stub, offset, 1) for offset in (3, member.image.next_offset)]
            for call in (*known, *others):
                for _ in range(3):
                    message = await call.read()
                    assert not message.HasField("snapshot")
            member.snapshot_chunk = real  # type: ignore[method-assign]
            member.image = next(image for image in quorum.images if image.next_offset == 20)
            for call in (*known, *others):
                while not message.HasField("snapshot"):
                    message = await call.read()
                assert message.snapshot.offset == 20
                message.Clear()
                call.cancel()

    asyncio.run(work())


@in_loop
async def test_a_snapshot_that_is_removed_while_it_is_sent_gives_way_to_the_next() -> None:
    quorum = Quorum()
    for number in range(30):
        quorum.commit(note("retries", str(number)))
    member = Member(quorum, 1, log_start=20)
    real = member.snapshot_chunk

    def chunk(snapshot: Any, position: int, max_bytes: int) -> Any:
        if position > 100 and member.log_start_offset == 20:
            member.log_start_offset = 25
        return real(snapshot, position, max_bytes)

    member.snapshot_chunk = chunk  # type: ignore[method-assign]
    async with serving([member]) as (served,), stub_of(served) as stub:
        call = follow_from(stub, 0)
        seen = []
        message = await call.read()
        while message.HasField("snapshot"):
            seen.append((message.snapshot.offset, message.snapshot.position))
            message = await call.read()
        assert seen[0] == (20, 0)
        assert (25, 0) in seen
        assert seen[-1][0] == 25
        assert next(decode_batches(message.records)).base_offset == 25
        call.cancel()


async def _refusal(call: Any) -> str:
    """The error with which the call ends."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return str(await call.details())


@in_loop
async def test_another_history_is_refused_by_its_epoch_and_by_its_length() -> None:
    quorum = Quorum()
    quorum.topic("a")
    quorum.term = 3
    quorum.topic("b")
    async with serving([Member(quorum, 1)]) as (served,), stub_of(served) as stub:
        assert "has epoch 3, but the follower has epoch 2" in await _refusal(follow_from(stub, 3, 2))
        assert "has epoch 1, but the follower has epoch 3" in await _refusal(follow_from(stub, 2, 3))
        assert (await _refusal(follow_from(stub, 9, 3))).startswith("DIVERGING_METADATA: the metadata log is comm")
        assert (await _refusal(follow_from(stub, -1))).startswith("OFFSET_OUT_OF_RANGE")
        call = follow_from(stub, 3, 3)
        assert (await call.read()).committed_offset == 3
        call.cancel()


@in_loop
async def test_a_stopping_controller_ends_its_streams_and_lets_go_of_dropped_ones() -> None:
    quorum = Quorum()
    async with serving([Member(quorum, 1)]) as (served,), stub_of(served) as stub:
        dropped = follow_from(stub, 0)
        await dropped.read()
        dropped.cancel()
        await until(lambda: not served.service._streams, "the dropped stream to be let go of")
        assert len(served.member._subscribers) == 1  # the barrier's own
        call = follow_from(stub, 0)
        await call.read()
        served.service.close()
        assert (await _refusal(call)).startswith("SERVER_SHUTTING_DOWN")


@in_loop
async def test_a_barrier_is_the_leaders_word_whoever_is_asked() -> None:
    quorum = Quorum()
    late = Member(quorum, 2)
    async with serving([Member(quorum, 1), late]) as (first, second), stub_of(second) as stub:
        await until(lambda: second.service.lag.ms is not None, "a first barrier")
        late.is_deaf = True
        quorum.topic("unheard")
        answer = await stub.ReadIndex(index_request())
        assert (answer.committed_offset, answer.leader_id, answer.leader_epoch) == (2, 1, 1)
        assert late.image.next_offset == 1
        # The controller's own image lacks committed records, so the barrier does not make its age smaller.
        barriers = first.member.barriers
        await until(lambda: first.member.barriers > barriers + 2, "it to be asked again and again")
        assert second.service.lag.records == 1
        assert (second.service.lag.ms or 0) > 300
        late.is_deaf = False
        late.catch_up()
        await until(lambda: (second.service.lag.ms or 1e9) < 200, "the late one to be confirmed again")


@pytest.mark.parametrize("former", [(1,), (2,)], ids=["the leader", "the one that is asked"])
@in_loop
async def test_a_barrier_is_forwarded_between_controllers_of_two_releases(former: tuple[int, ...]) -> None:
    quorum = Quorum()
    members = [Member(quorum, 1), Member(quorum, 2)]
    async with serving(members, former=former) as (_, second), stub_of(second) as stub:
        ask = stub.VouchMetadata if 2 in former else stub.ReadIndex
        answer = await ask(index_request())
        assert (answer.committed_offset, answer.leader_id, answer.leader_epoch) == (quorum.end, 1, 1)


@in_loop
async def test_no_barrier_ends_without_a_leader_and_a_forwarded_question_goes_no_further() -> None:
    quorum = Quorum()
    async with serving([Member(quorum, 1), Member(quorum, 2)]) as (first, second), stub_of(second) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReadIndex(index_request(is_forwarded=True))
        error = error_from_rpc(refused.value, "there")
        assert isinstance(error, NotControllerError)
        assert error.leader == (1, 1, first.member.address)
        # Each of the two controllers takes the other for the leader.
        first.member.leader_id = 2
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReadIndex(index_request())
        assert str(refused.value.details()).startswith("NOT_CONTROLLER")
        second.member.leader_id = -1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReadIndex(index_request())
        assert "no controller is leader now" in str(refused.value.details())


@in_loop
async def test_a_leader_that_no_majority_answers_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum = Quorum()
    async with serving([Member(quorum, 1)]) as (served,), stub_of(served) as stub:
        await stub.ReadIndex(index_request())
        monkeypatch.setattr(read_index, "BARRIER_TIMEOUT_S", 0.2)
        served.member.is_deaf = True
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReadIndex(index_request())
        assert str(refused.value.details()).startswith("REQUEST_TIMED_OUT")
        await until(lambda: (served.service.lag.ms or 0) > 300, "the lag to grow")


@in_loop
async def test_those_who_ask_while_a_barrier_is_under_way_share_the_next_one() -> None:
    """The barrier may have begun before the commit of the records that the callers must see."""
    quorum = Quorum()
    async with serving([Member(quorum, 1)]) as (served,), stub_of(served) as stub:
        member = served.member
        member.is_deaf = True
        earlier = asyncio.ensure_future(_confirm(stub))
        await until(lambda: member.hurried == 1, "a barrier that does not end")
        asked = [asyncio.ensure_future(_confirm(stub)) for _ in range(20)]
        await until(lambda: served.service._barriers._queues[False].next is not None, "somebody to wait")
        await until(lambda: served.asked_for == 21, "all of them to wait")
        assert member.hurried == 1
        assert not any(each.done() for each in asked)
        member.is_deaf = False
        quorum.topic("a")
        await earlier
        answers = await asyncio.gather(*asked)
        assert {answer.committed_offset for answer in answers} == {quorum.end}
        assert member.hurried == 2


@in_loop
async def test_who_hurries_does_not_wait_for_the_deferred() -> None:
    """A deferred barrier lasts until the leader's next heartbeats; a starting broker asks for a barrier that does not
    wait."""
    quorum = Quorum()
    leader = Member(quorum, 1)
    leader.heartbeat.clear()
    async with serving([leader]) as (served,), stub_of(served) as stub:
        deferred = asyncio.ensure_future(_confirm(stub, is_deferred=True, is_forwarded=True))
        await until(lambda: served.asked_for == 1, "a deferred one to wait")
        topic_end = quorum.topic("a")
        answer = await _confirm(stub)
        assert answer.committed_offset == topic_end
        assert leader.hurried == 1
        assert not deferred.done()
        leader.heartbeat.set()
        assert (await deferred).committed_offset == topic_end


@in_loop
async def test_a_read_that_may_be_stale_gets_what_is_known_and_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age costs the quorum no request, and is never newer than the data that the controller itself has received."""
    quorum = Quorum()
    leader, second = Member(quorum, 1), Member(quorum, 2)
    async with serving([leader, second]) as (_, served), stub_of(served) as stub:
        await until(lambda: served.service.lag.ms is not None, "a first barrier")
        known = quorum.end
        leader.heartbeat.clear()
        barriers = leader.barriers
        await until(lambda: leader.barriers > barriers, "the next one to wait for heartbeats")
        quorum.topic("a")  # not confirmed so far
        committed_s = asyncio.get_running_loop().time()
        monkeypatch.setattr(read_index, "RECENT_MS", 1e9)  # (on a slow machine the request may be late)
        await until(lambda: (served.service.lag.ms or 0) > 100, "some time to pass")
        answer = await _confirm(stub, is_deferred=True)
        passed_ms = (asyncio.get_running_loop().time() - committed_s) * 1_000
        assert answer.committed_offset == known
        assert answer.age_ms > 100
        assert answer.age_ms <= passed_ms + 2_000
        assert leader.hurried == 0
        # A barrier that is older than half a second is not used. The next round of heartbeats brings a new barrier.
        monkeypatch.setattr(read_index, "RECENT_MS", 0)
        deferred = asyncio.ensure_future(_confirm(stub, is_deferred=True))
        await until(lambda: served.asked_for == 2, "it to be asked")
        leader.heartbeat.set()
        answer = await deferred
        assert (answer.committed_offset, answer.age_ms, leader.hurried) == (quorum.end, 0, 0)
        leader.heartbeat.clear()
        second.leader_id = -1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _confirm(stub, is_deferred=True)
        assert "no controller is leader now" in str(refused.value.details())
        second.leader_id = 1
        # If no heartbeats bring a new barrier, there is a fault, and the controller requests a barrier.
        await until(lambda: (served.service.lag.ms or 0) > read_index.OVERDUE_MS, "the barrier to be overdue")
        answer = await _confirm(stub, is_deferred=True)
        assert (answer.committed_offset, answer.age_ms, leader.hurried) == (quorum.end, 0, 1)


async def _confirm(stub: Any, **fields: Any) -> Any:
    return await stub.ReadIndex(index_request(**fields))


class _Leader(cluster_pb2_grpc.ClusterServicer):  # type: ignore[misc]
    """Answers forwarded requests, or (``hangs``) keeps them waiting."""

    def __init__(self, *, hangs: bool) -> None:
        self.asked = asyncio.Event()
        self._hangs = hangs

    async def VouchMetadata(self, request: Any, context: Any) -> Any:  # ReadIndex, as controllers call it
        self.asked.set()
        if self._hangs:
            await asyncio.Event().wait()
        return cluster_pb2.ReadIndexResponse(committed_offset=7, leader_id=3, leader_epoch=2)


@in_loop
async def test_a_leader_that_hangs_and_is_replaced_does_not_end_a_controllers_own_barriers() -> None:
    """Deferred and other requests are in flight at once: a request that moves on to the next leader must not cancel the
    other kind of request."""
    deaf, heir = _Leader(hangs=True), _Leader(hangs=False)
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for leader in (deaf, heir):
            server = grpc.aio.server()
            cluster_pb2_grpc.add_ClusterServicer_to_server(leader, server)  # type: ignore[no-untyped-call]
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            await server.start()
            stack.push_async_callback(server.stop, 0)
        quorum = SimpleNamespace(
            node_id=1,
            cluster_id=FOLLOWED_CLUSTER,
            image=EMPTY_IMAGE,
            leader_id=2,
            term=1,
            controller_addresses=lambda: {2: f"127.0.0.1:{ports[0]}", 3: f"127.0.0.1:{ports[1]}"},
            subscribe=lambda subscriber: lambda: None,
        )
        barriers = read_index.ReadIndexBarriers(cast(Any, quorum), SystemClock())
        barriers.start()
        stack.push_async_callback(barriers.close)
        await asyncio.wait_for(deaf.asked.wait(), 60)  # its own deferred request waits there
        quorum.leader_id, quorum.term = 3, 2
        assert (await barriers.read()).offset == 7
        began_ms = barriers.now_ms
        await until(lambda: barriers.confirmed_since(began_ms) is not None, "a barrier of its own after that")
