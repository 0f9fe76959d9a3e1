"""Links between controllers, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from headrace_controller.raft import (
    AppendRequest,
    Entry,
    EntryKind,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    Place,
    ReplicaKey,
    SnapshotId,
    SnapshotRequest,
    VoteRequest,
    VoterSet,
)
from headrace_controller.raft.types import Body
from headrace_controller.transport import links, wire
from headrace_controller.transport.links import PeerLinks
from headrace_controller.transport.peers import BULK_BYTES_MAX, Peers
from headrace_core.records import encode_batch
from headrace_core.rpc import ChannelPurpose, open_channel
from headrace_core.rpc.server import Listener
from headrace_core.rpc.status import error_from_rpc
from headrace_protos.v1 import raft_pb2, raft_pb2_grpc
from tests.worlds.this_process import free_port, logged
from tests.worlds.waiting import check_took
from tests.worlds.waiting import until_async as until

CLUSTER = "q1Sh-9_ISia_zwGINzRvyQ"


def key(node_id: int, disk: int = 1) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([disk]) * 16)


class End:
    """The links of one controller, and the messages that they received."""

    def __init__(self, own: ReplicaKey, port: int, cluster_id: str = CLUSTER) -> None:
        self.key = own
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.received: list[Message] = []
        self.lost: list[ReplicaKey] = []
        self.seen: list[ReplicaKey] = []
        self.gone: list[ReplicaKey] = []
        self.on_message: Callable[[Message], None] = self.received.append
        self.links = PeerLinks(
            own,
            cluster_id,
            Peers(),
            receive=lambda message: self.on_message(message),
            peer_lost=self.lost.append,
            observe=self.seen.append,
            forget=self.gone.append,
        )
        self.listener = Listener("internal", port=port)
        self.links.register(self.listener)

    async def start(self) -> None:
        await self.listener.start()
        self.links.start(self.address)

    async def stop(self) -> None:
        await self.links.close()
        await self.listener.stop(0)

    def send(self, to: ReplicaKey, *bodies: Body) -> None:
        self.links.peers.send([Message(self.key, to, body) for body in bodies])

    @property
    def bodies(self) -> list[Body]:
        return [message.body for message in self.received]


def voters_of(ends: Sequence[End]) -> VoterSet:
    return VoterSet.of((end.key for end in ends), {end.key.node_id: end.address for end in ends})


def _streams(end: End, others: Sequence[ReplicaKey]) -> set[int]:
    peers = [end.links.peers.by_key.get(other) for other in others]
    return {0 if peer is None else peer.streams for peer in peers} or {2}


@asynccontextmanager
async def quorum(size: int) -> AsyncIterator[list[End]]:
    """Make ``count`` voters, each connected with all others."""
    ends = [End(key(node_id), free_port()) for node_id in range(1, size + 1)]
    members = voters_of(ends)
    for end in ends:
        end.links.set_voters(members)
        await end.start()
    try:
        for end in ends:
            others = [other.key for other in ends if other is not end]
            await until(lambda end=end, others=others: _streams(end, others) == {2}, f"{end.key} is connected")
        yield ends
    finally:
        for end in ends:
            await end.stop()


MIB = 1 << 20


def beat(round_: int) -> HeartbeatRequest:
    return HeartbeatRequest(1, 0, round_)


def chunk(position: int, size: int = MIB) -> SnapshotRequest:
    snapshot = SnapshotId(Place(1, 1), VoterSet.of([key(1)]))
    return SnapshotRequest(1, snapshot, position, bytes(size), is_last=False)


def run(test) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(test())


def test_everybody_hears_everybody() -> None:
    async def test() -> None:
        async with quorum(3) as ends:
            for end in ends:
                for other in ends:
                    if other is not end:
                        end.send(other.key, beat(10 * end.key.node_id + other.key.node_id))
            for end in ends:
                others = [each.key.node_id for each in ends if each is not end]
                await until(lambda end=end: len(end.received) == 2, "both others were heard")
                assert sorted((m.sender.node_id, m.to, m.body.round) for m in end.received) == [  # type: ignore[union-attr]
                    (other, end.key, 10 * other + end.key.node_id) for other in others
                ]
            assert all(not end.lost for end in ends)
            assert all(end.links.peers.dropped == 0 for end in ends)

    run(test)


def test_entries_arrive_in_order_and_whole() -> None:
    async def test() -> None:
        async with quorum(2) as (one, two):
            sent = []
            for offset in range(300):
                data = encode_batch([(1, None, bytes(offset * 10), ())], base_offset=offset, leader_epoch=1)
                entry = Entry(EntryKind.DATA, 1, offset, 1, data)
                sent.append(AppendRequest(1, Place(offset, 1 if offset else 0), (entry,), 0))
            for body in sent:
                one.send(two.key, body)
            await until(lambda: len(two.received) == 300, "all of them")
            assert two.bodies == sent

    run(test)


def test_a_peer_whose_process_ends_is_lost_at_once_and_found_again() -> None:
    async def test() -> None:
        async with quorum(3) as ends:
            one, _, three = ends
            loop = asyncio.get_running_loop()
            began = loop.time()
            await three.stop()
            await until(lambda: all(end.lost == [three.key] for end in ends[:2]), "both others know")
            assert loop.time() - began < 10
            assert one.gone == [three.key]
            one.send(three.key, beat(1), beat(2))
            assert one.links.peers.connected == {key(2)}
            again = End(three.key, three.port)
            again.links.set_voters(voters_of(ends))
            await again.start()
            ends[2] = again
            await until(lambda: again.links.peers.connected == {key(1), key(2)}, "it is back")
            await until(lambda: again.bodies == [beat(2)], "the last of what was small came when it was there again")
            assert all(end.lost == [three.key] for end in ends[:2])

    run(test)


def streams(end: End, other: End) -> int:
    peer = end.links.peers.by_key.get(other.key)
    return 0 if peer is None else peer.streams


def test_while_one_of_two_streams_lives_nobody_is_lost() -> None:
    async def test() -> None:
        async with quorum(2) as (one, two):
            one.links.set_voters(VoterSet.of([one.key]))  # it does not dial any more
            await until(lambda: streams(one, two) == streams(two, one) == 1, "one is left")
            one.send(two.key, beat(1))
            two.send(one.key, beat(2))
            await until(lambda: one.received and two.received, "the other one's stream carries both ways")
            assert one.lost == two.lost == []

    run(test)


def test_a_stranger_of_another_cluster_is_refused_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        ours, theirs = End(key(1), free_port()), End(key(2), free_port(), "another")
        members = voters_of([ours, theirs])
        for end in (ours, theirs):
            end.links.set_voters(members)
            await end.start()
        await until(lambda: len(logged(caplog)) >= 2, "both say so")
        code, text = await refusal(ours, hello("another", key(2)))
        assert code == "INCONSISTENT_CLUSTER_ID"
        assert "another" in text
        assert CLUSTER in text
        assert ours.links.peers.connected == theirs.links.peers.connected == frozenset()
        await ours.stop()
        await theirs.stop()

    with caplog.at_level(logging.WARNING, "headrace.controller"):
        run(test)
    texts = [record.getMessage() for record in logged(caplog)]
    assert len(texts) == len(set(texts)) <= 4


def hello(cluster_id: str, sender, expected=None) -> raft_pb2.RaftEnvelope:  # type: ignore[no-untyped-def]
    envelope = raft_pb2.RaftEnvelope()
    envelope.hello.cluster_id = cluster_id
    wire.write_key(sender, envelope.hello.sender)
    if expected is not None:
        wire.write_key(expected, envelope.hello.expected)
    return envelope


async def refusal(end: End, *envelopes: raft_pb2.RaftEnvelope) -> tuple[str, str]:
    """Return the code and the text with which the stream ends after the given first message."""
    async with open_channel(end.address, ChannelPurpose.RAFT) as channel:
        call = raft_pb2_grpc.RaftStub(channel).Exchange()  # type: ignore[no-untyped-call]
        with contextlib.suppress(grpc.aio.AioRpcError):
            for envelope in envelopes:
                await call.write(envelope)
        return await ending(call)


async def ending(call: Any) -> tuple[str, str]:
    """Return the code and the text with which a stream ended, both empty for a normal end. Messages before the end are
    skipped."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as failure:
        error = error_from_rpc(failure, "the other one")
        return error.code, error.message
    return "", ""


def test_whoever_is_not_the_one_who_was_meant_says_so() -> None:
    """Refused connections: a voter whose disk was replaced (KIP-853), two nodes with the same id, invalid messages."""

    async def test() -> None:
        end = End(key(1, disk=2), free_port())
        end.links.set_voters(VoterSet.of([end.key]))
        await end.start()
        good = hello(CLUSTER, key(2))
        nowhere = hello(CLUSTER, key(2))
        nowhere.hello.address = "controller-2"
        for envelopes, code, says in (
            ([hello(CLUSTER, key(2), key(1))], "INVALID_VOTER_KEY", "1@AQEBAQ at this address, this is 1@AgICAg"),
            ([hello(CLUSTER, key(1))], "INVALID_VOTER_KEY", "two controllers have node.id=1"),
            ([raft_pb2.RaftEnvelope()], "INVALID_REQUEST", "must begin with a hello"),
            ([wire.envelope_of([beat(1)])], "INVALID_REQUEST", "must begin with a hello"),
            ([nowhere], "INVALID_REQUEST", "controller-2: write host:port"),
            ([good, good], "INVALID_REQUEST", "a second hello"),
            ([good, wire.envelope_of([HeartbeatRequest(1, 0, -1)])], "INVALID_REQUEST", "negative"),
        ):
            assert (found := await refusal(end, *envelopes))[0] == code, found
            assert says in found[1]
        assert end.received == []
        await end.stop()

    run(test)


def test_a_wiped_voter_is_refused_as_itself_and_taken_as_who_it_is() -> None:
    async def test() -> None:
        async with quorum(3) as ends:
            one, two, three = ends
            await three.stop()
            fresh = End(key(3, disk=2), three.port)
            fresh.links.set_voters(VoterSet(()), bootstrap=[one.address, two.address, fresh.address])
            await fresh.start()
            ends[2] = fresh
            await until(lambda: fresh.key in one.seen and fresh.key in two.seen, "it follows, as somebody new")
            one.send(three.key, beat(1))
            one.send(fresh.key, beat(2))
            await until(lambda: fresh.received, "it hears the leader")
            assert fresh.bodies == [beat(2)], "and nothing that was meant for the disk that is gone"
            assert one.links.peers.address_of(fresh.key) == fresh.address
            assert three.key not in one.links.peers.connected

    run(test)


def test_who_does_not_vote_finds_the_voters_by_one_of_them() -> None:
    async def test() -> None:
        async with quorum(2) as ends:
            one, two = ends
            observer = End(key(9), free_port())
            observer.links.set_voters(VoterSet(()), bootstrap=[one.address])
            await observer.start()
            await until(lambda: observer.links.peers.connected == {one.key}, "it knows one address")
            observer.links.set_voters(voters_of(ends), bootstrap=[one.address])  # as in the metadata log
            await until(lambda: observer.links.peers.connected == {one.key, two.key}, "and the others by the log")
            assert observer.lost == []
            await observer.stop()
            await until(lambda: one.gone == [observer.key] and two.gone == [observer.key], "it is forgotten")

    run(test)


def test_a_voter_that_has_moved_tells_where_it_is() -> None:
    """The voter's address in the log is outdated. The voter dials the other voters, and sends its present address."""

    async def test() -> None:
        async with quorum(2) as ends:
            one, two = ends
            await two.stop()
            moved = End(two.key, free_port())
            moved.links.set_voters(voters_of([one, two]))
            await moved.start()
            ends[1] = moved
            await until(lambda: one.links.peers.connected == {two.key}, "it has come")
            assert one.links.peers.address_of(two.key) == moved.address
            one.send(two.key, beat(7))
            await until(lambda: moved.bodies == [beat(7)], "it hears")

    run(test)


def test_a_voter_with_another_name_than_the_log_has_is_dialed_by_its_own_without_an_alarm() -> None:
    """The log has the address 127.0.0.1, but the voter sends localhost. From the hello on, localhost is the voter's
    address, and no voter is lost."""

    async def test() -> None:
        one, two = End(key(1), free_port()), End(key(2), free_port())
        members = voters_of([one, two])
        two.address = f"localhost:{two.port}"
        for end in (one, two):
            end.links.set_voters(members)
            await end.start()
        await until(lambda: one.links.peers.address_of(two.key) == two.address, "it has said so")
        await until(
            lambda: (peer := one.links.peers.by_key.get(two.key)) and peer.streams == 2, "both streams are there"
        )
        assert one.lost == two.lost == []
        await one.stop()
        await two.stop()

    run(test)


def test_heartbeats_pass_the_chunks_of_a_large_snapshot() -> None:
    async def test() -> None:
        async with quorum(2) as (one, two):
            received: list[object] = []
            two.on_message = lambda message: received.append(message.body)
            for position in range(12):
                one.send(two.key, chunk(position))
            one.send(two.key, beat(1))
            await until(lambda: beat(1) in received, "the heartbeat")
            assert received.index(beat(1)) <= 2, "it waits for one at most, beside the one that was being written"
            await until(lambda: len(received) == 13, "and the chunks come, too")
            assert [body.position for body in received if isinstance(body, SnapshotRequest)] == list(range(12))

    run(test)


def test_what_waits_for_a_peer_that_stands_still_is_bounded() -> None:
    """A process that was stopped (SIGSTOP) keeps its sockets and reads nothing."""

    async def test() -> None:
        end = End(key(1), free_port())
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, limit=1)
        port = silent.sockets[0].getsockname()[1]
        members = VoterSet.of([key(1), key(2)], {2: f"127.0.0.1:{port}"})
        end.links.set_voters(members)
        await end.start()
        async with open_channel(end.address, ChannelPurpose.RAFT) as channel:
            call = raft_pb2_grpc.RaftStub(channel).Exchange()  # type: ignore[no-untyped-call]
            await call.write(hello(CLUSTER, key(2)))
            await call.read()  # from here on the process reads nothing
            for position in range(200):
                end.send(key(2), chunk(position), beat(position))
                await asyncio.sleep(0)
            peer = end.links.peers.by_key.get(key(2))
            assert peer is not None
            assert peer.outbox.dropped >= 200 - 2 * BULK_BYTES_MAX // MIB
            assert len(peer.outbox) <= BULK_BYTES_MAX // MIB + 1
            first = wire.read_envelope(await call.read())
            assert chunk(0) in first, "what came first is what comes first"
            call.cancel()
        silent.close()
        await end.stop()

    run(test)


class _Broken(raft_pb2_grpc.RaftServicer):
    """The controller's streams end like a connection that breaks during a message."""

    def __init__(self) -> None:
        self.streams = 0

    async def Exchange(self, request: Any, context: Any) -> None:
        self.streams += 1
        await context.abort(grpc.StatusCode.INTERNAL, "Internal error from Core")


def test_a_stream_that_breaks_inside_grpc_is_no_refusal_and_is_dialed_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "_REFUSED_MS", 600_000)  # a refused peer would not be dialed again in this test

    async def test() -> None:
        broken, listener = _Broken(), Listener("internal")
        listener.add(raft_pb2_grpc.add_RaftServicer_to_server, broken, "headrace.v1.Raft")
        await listener.start()
        end = End(key(1), free_port())
        end.links.set_voters(VoterSet.of([key(1), key(2)], {2: listener.address}))
        await end.start()
        await until(lambda: broken.streams >= 3, "it is dialed again and again")
        await end.stop()
        await listener.stop(0)

    run(test)


def test_a_stream_that_cannot_be_written_is_given_up_and_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the streams did not end, the connection would stay open, and no message would ever arrive."""

    async def test() -> None:
        async with quorum(2) as (one, two):
            two.links.set_voters(VoterSet.of([two.key]))  # it dials no other node
            await until(lambda: streams(one, two) == 1, "one is left")
            real = wire.envelope_of

            def stumbles(bodies: Any) -> raft_pb2.RaftEnvelope:
                monkeypatch.setattr(wire, "envelope_of", real)
                raise OverflowError("a number that fits nowhere")

            monkeypatch.setattr(wire, "envelope_of", stumbles)
            one.send(two.key, beat(1))
            await until(lambda: one.lost == [two.key], "it is given up")
            await until(lambda: one.links.peers.connected, "the connection was made again")
            one.send(two.key, beat(2))
            await until(lambda: two.bodies == [beat(2)], "and carries")

    run(test)


def test_a_vote_that_is_asked_for_before_the_connection_is_made_arrives() -> None:
    async def test() -> None:
        one, two = End(key(1), free_port()), End(key(2), free_port())
        members = voters_of([one, two])
        one.links.set_voters(members)
        two.links.set_voters(members)
        await one.start()
        one.send(two.key, VoteRequest(1, Place(0, 0), is_pre_vote=True))
        await two.start()
        await until(lambda: two.bodies == [VoteRequest(1, Place(0, 0), is_pre_vote=True)], "it is asked")
        await one.stop()
        await two.stop()

    run(test)


def test_a_message_to_a_replica_that_nobody_knows_is_counted_and_lost() -> None:
    async def test() -> None:
        async with quorum(2) as (one, two):
            one.send(key(2, disk=9), beat(1))
            one.send(key(7), beat(1))
            one.send(two.key, beat(2))
            await until(lambda: two.received, "the other one")
            assert two.bodies == [beat(2)]
            assert one.links.peers.dropped == 2

    run(test)


def test_a_round_trip_takes_few_turns() -> None:
    """No part of the link waits for a timer. The test sends a hundred requests one after the other. (The test ignores
    the slowest requests, which depend on the machine.)"""

    async def test() -> None:
        async with quorum(2) as (one, two):
            two.on_message = lambda message: two.send(one.key, HeartbeatResponse(1, message.body.round))  # type: ignore[union-attr]
            loop = asyncio.get_running_loop()
            took = []
            for round_ in range(100):
                began = loop.time()
                one.received.clear()
                one.send(two.key, beat(round_))
                await until(lambda: one.received, "the answer", pause_s=0)
                took.append(loop.time() - began)
            check_took(sorted(took)[10], 0.02)

    run(test)


def test_closing_leaves_no_task_behind() -> None:
    async def test() -> None:
        before = asyncio.all_tasks()
        async with quorum(3) as ends:
            ends[0].links.set_voters(VoterSet.of([ends[0].key]))
        await until(
            lambda: not [task for task in asyncio.all_tasks() - before if not task.done()],
            lambda: f"tasks left: {asyncio.all_tasks() - before}",
        )

    run(test)


def test_random_bytes_on_a_stream_harm_nobody(rng: random.Random) -> None:
    codes: set[str] = set()

    async def test() -> None:
        async with quorum(2) as (one, two):
            async with open_channel(one.address, ChannelPurpose.RAFT) as channel:
                for greeting in ([], [hello(CLUSTER, key(9)).SerializeToString()]):
                    for _ in range(20):
                        call = channel.stream_stream("/headrace.v1.Raft/Exchange")()
                        # refused by this time
                        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                            for data in (*greeting, rng.randbytes(rng.randrange(1, 200))):
                                await call.write(data)
                            await call.done_writing()
                        codes.add((await ending(call))[0])
            one.send(two.key, beat(1))
            await until(lambda: two.received, "they still talk to each other")
            assert one.received == []

    run(test)
    assert codes <= {"INVALID_REQUEST", "INVALID_VOTER_KEY", "INCONSISTENT_CLUSTER_ID", "CORRUPT_MESSAGE", ""}
    assert "INVALID_REQUEST" in codes


def test_a_peer_that_answers_nonsense_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The link tries again, but rarely."""
    asked = []

    async def nonsense(request: object, context: grpc.aio.ServicerContext) -> None:
        asked.append(await context.read())
        await context.write(b"\xff\xff\xff nonsense")

    async def test() -> None:
        handler = grpc.stream_stream_rpc_method_handler(nonsense)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("headrace.v1.Raft", {"Exchange": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        end = End(key(1), free_port())
        end.links.set_voters(VoterSet.of([key(1), key(2)], {2: f"127.0.0.1:{port}"}))
        await end.start()
        await until(lambda: logged(caplog), "it says so")
        assert len(asked) == 1
        await end.stop()
        await server.stop(0)

    with caplog.at_level(logging.WARNING, "headrace.controller"):
        run(test)
