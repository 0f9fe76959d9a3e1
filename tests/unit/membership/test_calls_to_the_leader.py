"""A broker's heartbeats and its clients' changes, while leadership moves from controller to controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from headrace_broker.controller_link import ControllerLink, IsrAnswer, IsrRequest
from headrace_broker.settings import BrokerIdentity
from headrace_core.clock import SystemClock
from headrace_core.errors import (
    HeadraceError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    ServerShuttingDownError,
    TopicAlreadyExistsError,
)
from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession
from headrace_core.membership.controllers import Controllers
from headrace_core.rpc.server import Listener
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from tests.worlds.controllers_world import running_task
from tests.worlds.this_process import free_port
from tests.worlds.waiting import until_async as until

REGISTRATION = BrokerRegistration(
    cluster_id="c", incarnation_id=bytes(16), directory_ids=(bytes(16),), endpoints=(("client", "127.0.0.1", 1),)
)


class Controller(cluster_pb2_grpc.ClusterServicer, admin_pb2_grpc.AdminServicer):
    """Answers calls according to ``mood``: "leads", "follows" (names ``leader``), "stands still" (hangs), "takes its
    time" (waits for ``goes_on``), "breaks" (executes the call, then breaks the connection), "stops", "refuses"."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.mood = "leads"
        self.leader: tuple[int, int, str] | None = None
        self.address = ""
        self.registrations = self.beats = self.streams = 0
        self.created: list[str] = []
        self.described = self.stuck = self.altered = 0
        self.goes_on = asyncio.Event()
        self._listener: Listener | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._listener = Listener("internal", port=free_port())  # (dead controllers are dialed)
        self._listener.add(cluster_pb2_grpc.add_ClusterServicer_to_server, self, "headrace.v1.Cluster")
        self._listener.add(admin_pb2_grpc.add_AdminServicer_to_server, self, "headrace.v1.Admin")
        await self._listener.start()
        self.address = self._listener.address

    async def stop(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.stop(0)
        if self._ending is not None and self._ending is not asyncio.current_task():
            await self._ending

    async def end(self) -> None:
        """The controller stops during a call, and its answer is never sent. A separate task stops the controller,
        because the stop cancels the present task."""
        self._ending = asyncio.create_task(self.stop())
        await asyncio.get_running_loop().create_future()

    def check(self) -> None:
        if self.mood == "follows":
            raise NotControllerError(f"controller {self.node_id} follows", leader=self.leader)
        if self.mood == "stops":
            raise ServerShuttingDownError("stopping")

    async def RegisterBroker(self, request: Any, context: Any) -> Any:
        self.registrations += 1
        self.check()
        return cluster_pb2.RegisterBrokerResponse(broker_id=1, broker_epoch=5, metadata_offset=6)

    async def BrokerHeartbeat(self, request: Any, context: Any) -> None:
        self.streams += 1
        stream: ServerStream[Any, Any] = ServerStream(context)
        await stream.run(_Beats(self, stream))

    async def CreateTopics(self, request: Any, context: Any) -> Any:
        self.check()
        if self.mood == "stands still":
            self.stuck += 1
            await asyncio.get_running_loop().create_future()
        if self.mood == "takes its time":
            self.stuck += 1
            await self.goes_on.wait()
        if self.mood == "refuses":
            raise TopicAlreadyExistsError("it exists")
        self.created += [topic.name for topic in request.topics]
        if self.mood == "breaks":
            await self.end()
        return admin_pb2.CreateTopicsResponse(metadata_offset=9)

    async def AlterPartition(self, request: Any, context: Any) -> Any:
        self.altered += 1
        self.check()
        if self.mood == "stands still":
            await asyncio.get_running_loop().create_future()
        if self.mood == "breaks":
            await self.end()
        (topic,) = request.topics
        (asked,) = topic.partitions
        result = cluster_pb2.AlterPartitionResult(
            topic_id=topic.topic_id,
            partition=asked.partition,
            leader_id=1,
            leader_epoch=asked.leader_epoch,
            partition_epoch=asked.partition_epoch + 1,
            isr=[member.broker_id for member in asked.isr],
        )
        return cluster_pb2.AlterPartitionResponse(results=[result])

    async def DescribeQuorum(self, request: Any, context: Any) -> Any:
        self.check()
        self.described += 1
        if self.mood == "breaks":
            await self.end()
        return admin_pb2.DescribeQuorumResponse(leader_id=self.node_id)


class _Beats(StreamHandler[Any]):
    def __init__(self, controller: Controller, stream: ServerStream[Any, Any]) -> None:
        self._controller, self._stream = controller, stream

    def on_request(self, request: Any) -> None:
        if self._controller.mood == "stands still":
            return
        self._controller.beats += 1
        self._controller.check()
        self._stream.send(cluster_pb2.BrokerHeartbeatResponse(correlation_id=request.correlation_id, fenced=False))


@contextlib.asynccontextmanager
async def three() -> AsyncIterator[tuple[list[Controller], Controllers]]:
    """Controllers 1 to 3; 1 leads in epoch 1."""
    found = [Controller(node_id) for node_id in (1, 2, 3)]
    for each in found:
        await each.start()
    known = Controllers([each.address for each in found])
    known.named({each.node_id: each.address for each in found})
    lead(found, known, 1, 1)
    try:
        yield found, known
    finally:
        for each in found:
            await each.stop()


def lead(found: list[Controller], known: Controllers | None, node_id: int, epoch: int) -> None:
    """Let ``node_id`` lead. Every other controller names controller 1. With ``known``, this node also knows the new
    leader."""
    address = next(each.address for each in found if each.node_id == node_id)
    for each in found:
        each.mood = "leads" if each.node_id == node_id else "follows"
        each.leader = (node_id, epoch, address)
    if known is not None:
        known.led_by(node_id, epoch)


def _session(known: Controllers) -> BrokerSession:
    return BrokerSession(known, REGISTRATION, heartbeat_interval_ms=60_000, answer_timeout_ms=30_000)


def _run(work: Callable[[list[Controller], Controllers], Any]) -> None:
    async def live() -> None:
        async with three() as (found, known):
            await work(found, known)

    asyncio.run(live())


# ---------------------------------------------------------------------------------------------- heartbeats


def test_a_registration_goes_where_a_refusal_points() -> None:
    async def work(found: list[Controller], known: Controllers) -> None:
        lead(found, None, 3, 2)
        registered = await _session(known).register()
        assert registered.broker_epoch == 5
        assert [each.registrations for each in found] == [1, 0, 1]

    _run(work)


def test_heartbeats_move_at_once_when_another_leader_is_known_and_not_again() -> None:
    """The old leader hangs. No connection breaks, so the broker would wait for the old leader's answer. The interval is
    a minute."""

    async def work(found: list[Controller], known: Controllers) -> None:
        first, second, _ = found
        session = _session(known)
        await session.register()
        async with running_task(session.run()):
            await session.wait_unfenced()
            first.mood = "stands still"
            session.directories_failed([bytes(16)])  # a heartbeat that is not answered
            lead(found, None, 2, 2)
            first.mood = "stands still"
            known.led_by(2, 2)
            await until(lambda: second.beats, "a heartbeat at the new leader")
            known.led_by(2, 2)
            known.led_by(1, 1)  # a late message
            session.directories_failed([b"1" * 16])
            await until(lambda: second.beats >= 2, "the next one")
            assert (first.streams, second.streams) == (1, 1)
            assert not session.fenced

    _run(work)


def test_a_leader_that_dies_is_replaced_without_a_burst() -> None:
    """Until the next leader is elected, the other controllers still name the dead leader."""

    async def work(found: list[Controller], known: Controllers) -> None:
        first, second, third = found
        session = _session(known)
        await session.register()
        async with running_task(session.run()):
            await session.wait_unfenced()
            await first.stop()
            session.directories_failed([bytes(16)])  # a heartbeat is due
            await until(lambda: second.beats + third.beats >= 6, "others to be asked")
            begun = asyncio.get_running_loop().time()
            asked = second.beats + third.beats
            await until(lambda: second.beats + third.beats >= asked + 4, "more attempts")
            assert asyncio.get_running_loop().time() - begun > 0.1
            lead([second, third], known, 3, 2)
            elected = asyncio.get_running_loop().time()
            beats = third.beats
            await until(lambda: third.beats > beats and third.streams, "a heartbeat at the new leader")
            assert asyncio.get_running_loop().time() - elected < 10

    _run(work)


@contextlib.asynccontextmanager
async def _silence() -> AsyncIterator[tuple[str, list[Any]]]:
    """An address that accepts connections and never answers, like a machine that is gone. The object keeps the accepted
    connections."""
    taken: list[Any] = []

    def took(_: Any, writer: Any) -> None:
        taken.append(writer)

    server = await asyncio.start_server(took, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}", taken
    finally:
        server.close()
        for writer in taken:
            writer.close()
        await server.wait_closed()


@pytest.mark.parametrize("elected", [True, False], ids=["another one is elected", "it does not answer in time"])
def test_heartbeats_that_wait_for_a_connection_are_left_when(elected: bool) -> None:
    """If a call is cancelled before it has a connection, a pending write of the call waits for ever (grpc.aio 1.85).
    For this reason, a broker stopped sending heartbeats."""

    async def work(found: list[Controller], known: Controllers) -> None:
        second = found[1]
        session = BrokerSession(
            known, REGISTRATION, heartbeat_interval_ms=60_000, answer_timeout_ms=600_000 if elected else 100
        )
        await session.register()
        lead(found, None, 2, 2)
        async with _silence() as (address, taken):
            known.named({1: address, 2: second.address})
            async with running_task(session.run()):
                await until(lambda: taken, "a connection")
                if elected:
                    known.led_by(2, 2)
                await until(lambda: second.beats, "a heartbeat at the next one")
                await session.wait_unfenced()

    _run(work)


def test_heartbeats_say_how_old_the_brokers_metadata_may_be() -> None:
    async def work(found: list[Controller], known: Controllers) -> None:
        seen: list[Any] = []
        real = _Beats.on_request
        patch = pytest.MonkeyPatch()
        patch.setattr(_Beats, "on_request", lambda self, request: (seen.append(request), real(self, request))[1])
        session = BrokerSession(known, REGISTRATION, heartbeat_interval_ms=60_000, lag_ms=lambda: 12.3)
        await session.register()
        async with running_task(session.run()):
            await session.wait_unfenced()
        patch.undo()
        assert seen[0].metadata_lag_ms == 13

    _run(work)


# ---------------------------------------------------------------------------------------------- admin calls


def _create(name: str) -> Any:
    return admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(name=name)])


@contextlib.asynccontextmanager
async def _link(known: Controllers) -> AsyncIterator[ControllerLink]:
    link = ControllerLink(known, SystemClock(), BrokerIdentity("tests", 1, 11), timeout_ms=20_000)
    try:
        yield link
    finally:
        await link.close()


def test_a_change_waits_for_a_leader_within_its_time() -> None:
    async def work(found: list[Controller], known: Controllers) -> None:
        for each in found:
            each.mood, each.leader = "follows", None
        async with _link(known) as link:
            asked = asyncio.ensure_future(link.call("CreateTopics", _create("t"), 20_000))
            await asyncio.sleep(0)
            lead(found, known, 2, 2)
            assert (await asked).metadata_offset == 9
            assert [each.created for each in found] == [[], ["t"], []]
            for each in found:
                each.mood, each.leader = "follows", None
            with pytest.raises(NotControllerError):
                await link.call("CreateTopics", _create("u"), 2_000)  # (the last answers must come in time)

    _run(work)


def test_who_is_stopping_or_was_never_reached_has_done_nothing() -> None:
    async def work(found: list[Controller], known: Controllers) -> None:
        first, second, _ = found
        async with _link(known) as link:
            lead(found, None, 2, 2)
            first.mood = "stops"
            await link.call("CreateTopics", _create("t"), 20_000)
            assert second.created == ["t"]
            await first.stop()
            await second.stop()
            lead(found, known, 3, 3)
            known.led_by(1, 4)  # wrong, and dead
            await link.call("CreateTopics", _create("u"), 20_000)
            assert found[2].created == ["u"]

    _run(work)


def test_a_change_whose_answer_was_lost_is_not_repeated_and_the_error_says_so() -> None:
    """Kafka's brokers send the request again, and the creator gets the error that the topic exists."""

    async def work(found: list[Controller], known: Controllers) -> None:
        first, second, _ = found
        async with _link(known) as link:
            first.mood = "breaks"
            second.mood = "refuses"
            with pytest.raises(RequestTimedOutError, match="carried out the request is unknown") as failed:
                await link.call("CreateTopics", _create("t"), 20_000)
            assert failed.value.retriable
            assert first.created == ["t"]
            with pytest.raises(TopicAlreadyExistsError):
                await link.call("CreateTopics", _create("t"), 20_000)

    _run(work)


def test_a_leader_that_stands_still_with_a_change_is_not_waited_for_once_another_leads() -> None:
    async def work(found: list[Controller], known: Controllers) -> None:
        found[0].mood = "stands still"
        async with _link(known) as link:
            asked = asyncio.ensure_future(link.call("CreateTopics", _create("t"), 600_000))
            await until(lambda: found[0].stuck, "the first one to be asked")
            lead(found[1:], known, 2, 2)
            with pytest.raises(
                RequestTimedOutError,
                match=r"another controller is leader now.*whether the controller carried out the request is unknown",
            ):
                await asked
            await link.call("CreateTopics", _create("u"), 600_000)
            assert found[1].created == ["u"]

    _run(work)


def test_what_only_reads_is_repeated() -> None:
    async def work(found: list[Controller], known: Controllers) -> None:
        found[0].mood = "breaks"
        async with _link(known) as link:
            asked = asyncio.ensure_future(link.call("DescribeQuorum", admin_pb2.DescribeQuorumRequest(), 20_000))
            await until(lambda: found[0].described, "the first one to be asked")
            lead(found[1:], known, 2, 2)
            assert (await asked).leader_id == 2

    _run(work)


TOPIC_ID = b"t" * 16
CHANGE = IsrRequest(TOPIC_ID, 0, leader_epoch=3, partition_epoch=7, isr=((1, 11), (2, 12)))


async def _alter(link: ControllerLink) -> Any:
    return await link.alter_partitions([CHANGE], metadata_offset=5)


@pytest.mark.parametrize(
    ("mood", "error"),
    [
        ("breaks", NetworkError),
        ("stops", ServerShuttingDownError),
        ("follows", NotControllerError),
        ("stands still", NetworkError),
    ],
)
def test_alter_partition_is_sent_at_most_once_whatever_becomes_of_it(mood: str, error: type[HeadraceError]) -> None:
    """The ISR keeper counts the attempts that may still be executed. An AlterPartition call must not retry, because the
    ISR keeper would not count the second attempt."""

    async def work(found: list[Controller], known: Controllers) -> None:
        first = found[0]
        first.mood, first.leader = mood, (2, 2, found[1].address)
        async with _link(known) as link:
            asked = asyncio.ensure_future(_alter(link))
            await until(lambda: first.altered, "the first one to be asked")
            found[1].mood = "leads"
            if mood != "follows":  # that refusal names the leader itself
                known.led_by(2, 2)
            with pytest.raises(error):
                await asked
            assert [each.altered for each in found] == [1, 0, 0]
            answer = await _alter(link)  # the keeper's next attempt finds the leader
            assert answer == {(TOPIC_ID, 0): IsrAnswer(1, 3, 8, (1, 2), False)}
            assert [each.altered for each in found] == [1, 1, 0]

    _run(work)


def test_alter_partition_passes_over_a_controller_that_cannot_be_reached() -> None:
    async def work(found: list[Controller], known: Controllers) -> None:
        await found[0].stop()
        lead(found[1:], None, 2, 2)
        found[2].mood = "leads"  # either may be asked next, and no more than one
        async with _link(known) as link:
            assert await _alter(link)
            assert sum(each.altered for each in found) == 1

    _run(work)


def test_grpc_says_in_the_same_words_as_ever_that_nothing_was_sent() -> None:
    """``was_never_sent`` depends on the texts of gRPC's errors, which may change with grpcio."""
    from headrace_core.rpc.status import was_never_sent

    async def work(found: list[Controller], known: Controllers) -> None:
        address = found[0].address
        await found[0].stop()
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await admin_pb2_grpc.AdminStub(channel).CreateTopics(_create("t"), timeout=10)  # type: ignore[no-untyped-call]
            assert was_never_sent(failed.value)
        found[1].mood = "breaks"
        async with grpc.aio.insecure_channel(found[1].address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await admin_pb2_grpc.AdminStub(channel).CreateTopics(_create("t"), timeout=10)  # type: ignore[no-untyped-call]
            assert not was_never_sent(failed.value)
            assert found[1].created == ["t"]

    _run(work)
