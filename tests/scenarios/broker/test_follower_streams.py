"""Streams to leaders on real connections: dialed, left, broken, dialed again; the leader is a stub in the test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from headrace_broker.partition.push_stream import CATCH_UP, LIVE
from headrace_broker.replication.follower_streams import FollowerStreams, LeaveConfirmation
from headrace_broker.settings import BrokerIdentity
from headrace_core.metadata import EMPTY_IMAGE, MetadataImage
from headrace_core.metadata.records import BrokerEndpoint, RegisterBrokerRecord
from headrace_core.rpc.server import Listener
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.telemetry import Emitter, Metrics
from headrace_protos.v1 import replication_pb2_grpc
from headrace_protos.v1.replication_pb2 import (
    FollowAck,
    FollowEnded,
    FollowHello,
    FollowJoin,
    FollowJoined,
    FollowOffsetsUpdate,
    FollowPush,
    FollowRequest,
    FollowResponse,
    ReplicationLane,
)
from tests.worlds.replication_messages import a_join, a_push, an_ack, an_answer, an_end, follows
from tests.worlds.this_process import free_port
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

LEADER = 2


class Leader(replication_pb2_grpc.ReplicationServicer):
    """Records requests, and accepts every follower."""

    def __init__(self) -> None:
        self.hellos: list[FollowHello] = []
        self.joins: list[FollowJoin] = []
        self.leaves: list[int] = []
        self.acks: list[FollowAck] = []
        self.streams: list[ServerStream[Any, Any]] = []
        self.port = free_port()
        self._listener: Listener | None = None

    async def start(self) -> None:
        self._listener = Listener("internal", port=self.port)
        self._listener.add(replication_pb2_grpc.add_ReplicationServicer_to_server, self, "headrace.v1.Replication")
        self.port = await self._listener.start()

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop(0)
            self._listener = None

    async def Follow(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        self.streams.append(stream)
        try:
            await stream.run(_Notes(self, stream))
        finally:
            self.streams.remove(stream)

    def said(self, stream: ServerStream[Any, Any], request: FollowRequest) -> None:
        self.joins += request.joins
        self.leaves += request.leaves
        self.acks += request.acks
        if request.joins:
            stream.send(FollowResponse(joined=[an_answer(each.handle) for each in request.joins]))

    def push(self, push: FollowPush) -> None:
        self.streams[-1].send(FollowResponse(pushes=[push]))


class _Notes(StreamHandler[Any]):
    def __init__(self, leader: Leader, stream: ServerStream[Any, Any]) -> None:
        self._leader, self._stream, self._is_greeted = leader, stream, False

    def on_request(self, request: Any) -> None:
        if self._is_greeted:
            self._leader.said(self._stream, request)
        else:
            self._is_greeted = True
            self._leader.hellos.append(request.hello)


class Replica:
    """A follower without a log: pushes count as written at once."""

    leader_id, leader_epoch, topic_id, number = LEADER, 1, b"t" * 16, 0

    def __init__(self, streams: FollowerStreams, kind: ReplicationLane = LIVE) -> None:
        self.kind = kind
        self.can_join = True
        self.streams = streams
        self.handle = -1
        self.is_following = False
        self.pushes: list[bytes] = []
        self.losses = 0
        self.stumbles: list[Exception] = []
        self._ack: FollowAck | None = None

    def join(self, handle: int) -> FollowJoin:
        self.handle = handle
        end = len(self.pushes)
        return a_join(handle, self.topic_id, self.number, self.leader_epoch, 0, end, -1, end, 1_000)

    def next_ack(self) -> FollowAck | None:
        ack, self._ack = self._ack, None
        return ack

    def joined(self, answer: FollowJoined) -> None:
        self.is_following = follows(answer)

    def pushed(self, push: FollowPush, records: bytes) -> None:
        self.pushes.append(records)
        self._ack = an_ack(self.handle, len(self.pushes), len(self.pushes), 0)
        self.streams.ack_due(self)  # type: ignore[arg-type]

    def updated(self, update: FollowOffsetsUpdate) -> None:
        pass

    def ended(self, message: FollowEnded) -> None:
        pass

    def stumbled(self, error: Exception) -> None:
        self.stumbles.append(error)

    def lost(self) -> None:
        self.losses += 1
        self.is_following = False


def at(*ports: int) -> MetadataImage:
    """Register the leader with each of these ports, one after another."""
    image = EMPTY_IMAGE
    for epoch, port in enumerate(ports, 1):
        endpoint = BrokerEndpoint("internal", "127.0.0.1", port)
        record = RegisterBrokerRecord(LEADER, epoch, b"i" * 16, (b"d" * 16,), (endpoint,))
        image = image.apply([record], image.next_offset + 1)
    return image


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[tuple[Leader, FollowerStreams]]:
    leader = Leader()
    streams = FollowerStreams(BrokerIdentity("tests", 1, 11), events=Emitter(), metrics=Metrics())
    await leader.start()
    try:
        yield leader, streams
    finally:
        await streams.close()
        await leader.stop()


@in_loop
async def test_records_come_and_are_acknowledged_on_one_stream_for_each_lane() -> None:
    async with world() as (leader, streams):
        near, far = Replica(streams), Replica(streams, CATCH_UP)
        streams.join(near)
        streams.join(far)
        assert leader.hellos == []  # no leader address is known
        streams.metadata_changed(at(leader.port))
        await until(lambda: near.is_following and far.is_following)
        assert {hello.lane for hello in leader.hellos} == {LIVE, CATCH_UP}
        assert {(each.cluster_id, each.broker_id, each.broker_epoch, each.leader_id) for each in leader.hellos} == {
            ("tests", 1, 11, LEADER)
        }
        assert len(leader.streams) == 2
        streams.leave(far)
        await until(lambda: len(leader.streams) == 1)  # its stream had no other partition
        leader.push(a_push(near.handle, b"records", 0, 0))
        await until(lambda: leader.acks)
        assert near.pushes == [b"records"]
        assert leader.acks == [an_ack(near.handle, 1, 1, 0)]
        leader.push(a_push(near.handle + 1, b"for nobody", 0, 0))
        leader.push(a_push(near.handle, b"more", 0, 0))
        await until(lambda: len(near.pushes) == 2)
        assert near.pushes[1] == b"more"
        assert streams.bytes_in.value == len(b"recordsfor nobodymore")


@in_loop
async def test_a_leader_that_comes_back_is_joined_again_and_one_that_moved_is_found() -> None:
    async with world() as (leader, streams):
        streams.metadata_changed(at(leader.port))
        replica = Replica(streams)
        streams.join(replica)
        await until(lambda: replica.is_following)
        first = replica.handle
        leader.push(a_push(first, b"one", 0, 0))
        await until(lambda: replica.pushes)
        await leader.stop()
        await until(lambda: replica.losses)
        assert not replica.is_following
        await leader.start()
        await until(lambda: replica.is_following)
        assert leader.joins[-1].log_end == 1
        assert replica.handle > first
        elsewhere = Leader()
        await elsewhere.start()
        streams.metadata_changed(at(leader.port, elsewhere.port))
        await until(lambda: elsewhere.joins)
        await until(lambda: not leader.streams)
        await streams.close()
        await elsewhere.stop()


@in_loop
async def test_a_bug_that_one_partition_meets_takes_that_one_out_and_the_others_go_on() -> None:
    async with world() as (leader, streams):
        streams.metadata_changed(at(leader.port))
        sound, unsound = Replica(streams), Replica(streams)
        for each in (unsound, sound):
            streams.join(each)
        await until(lambda: sound.is_following and unsound.is_following)

        def stumble(push: FollowPush, records: bytes) -> None:
            raise AssertionError("an unforeseen error")

        unsound.pushed = stumble  # type: ignore[method-assign]
        broken = a_push(unsound.handle, b"for one", 0, 0)
        whole = a_push(sound.handle, b"for the other", 0, 0)
        leader.streams[-1].send(FollowResponse(pushes=[broken, whole, broken]))
        await until(lambda: sound.pushes)
        await until(lambda: leader.leaves == [unsound.handle])
        assert [str(error) for error in unsound.stumbles] == ["an unforeseen error"]
        assert sound.losses == 0
        assert len(leader.hellos) == 1
        del unsound.pushed
        unsound.is_following = False  # of the first join
        streams.join(unsound)  # as it does after a pause
        await until(lambda: unsound.is_following)
        leader.push(a_push(unsound.handle, b"for one", 0, 0))
        await until(lambda: unsound.pushes)


@in_loop
async def test_a_bug_in_the_writer_ends_the_stream_and_the_next_one_carries_on() -> None:
    """A stream that the follower no longer writes to must not look alive."""
    async with world() as (leader, streams):
        streams.metadata_changed(at(leader.port))
        replica = Replica(streams)
        streams.join(replica)
        await until(lambda: replica.is_following)

        def stumble() -> FollowAck | None:
            del replica.next_ack
            raise AssertionError("a bug")

        replica.next_ack = stumble  # type: ignore[method-assign]
        leader.push(a_push(replica.handle, b"one", 0, 0))
        await until(lambda: replica.losses == 1 and replica.is_following)
        leader.push(a_push(replica.handle, b"two", 0, 0))
        await until(lambda: leader.acks)
        assert replica.pushes == [b"one", b"two"]
        assert len(leader.hellos) == 2


@in_loop
async def test_a_leave_whose_listener_fails_is_confirmed_again() -> None:
    async with world() as (leader, streams):
        streams.metadata_changed(at(leader.port))
        reported: list[int] = []

        def fails_once() -> None:
            reported.append(len(reported))
            assert len(reported) > 1, "the error is reported"

        streams.confirm_leave(Replica(streams), fails_once)  # type: ignore[arg-type]
        await until(lambda: len(reported) == 2)
        await until(lambda: not leader.streams)


@in_loop
async def test_whoever_is_let_go_of_is_let_go_of_at_the_leader() -> None:
    async with world() as (leader, streams):
        streams.metadata_changed(at(leader.port))
        stays, goes = Replica(streams), Replica(streams)
        streams.join(stays)
        streams.join(goes)
        await until(lambda: stays.is_following and goes.is_following)
        streams.leave(goes)
        await until(lambda: leader.leaves)
        assert leader.leaves == [goes.handle]
        assert len(leader.streams) == 1


@in_loop
async def test_a_leave_is_confirmed_behind_the_last_word() -> None:
    async with world() as (leader, streams):
        streams.metadata_changed(at(leader.port))
        stays, goes = Replica(streams), Replica(streams)
        streams.join(stays)
        streams.join(goes)
        await until(lambda: stays.is_following and goes.is_following)
        confirmed: list[bool] = []
        streams.leave(goes)
        streams.confirm_leave(goes, lambda: confirmed.append(goes.handle in leader.leaves))  # type: ignore[arg-type]
        await until(lambda: confirmed)
        assert confirmed == [True]
        await until(lambda: len(leader.leaves) == 2)  # and the follower ends the join with that handle
        assert isinstance(LeaveConfirmation(goes, streams, lambda: None).join(9), FollowJoin)


@in_loop
async def test_a_stream_whose_last_partition_the_leader_let_go_of_ends_when_that_one_goes_elsewhere() -> None:
    async with world() as (leader, streams):
        streams.metadata_changed(at(leader.port))
        near, far = Replica(streams), Replica(streams, CATCH_UP)
        streams.join(near)
        streams.join(far)
        await until(lambda: near.is_following and far.is_following)
        # each follower has its own handle, and both lanes number their handles from one
        for stream in leader.streams:
            stream.send(FollowResponse(ended=[an_end(far.handle, None, other_lane=True)]))
        await until(lambda: not any(count for _, _, count, _ in streams.describe()))
        far.kind = LIVE
        streams.join(far)  # it has caught up
        await until(lambda: len(leader.streams) == 1)
        assert [(kind, count) for _, kind, count, _ in streams.describe()] == [(LIVE, 1)]
        streams.leave(far)
        streams.leave(near)
        await until(lambda: not leader.streams)
