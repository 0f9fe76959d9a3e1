"""Three controllers as they run, without processes: which of them serve and answer, and the cost of a stop."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_controller.raft import RaftNode
from headrace_controller.storage import MetadataStorage
from headrace_core.errors import HeadraceError, NotControllerError
from headrace_core.log.files import RealFile
from headrace_core.rpc import ChannelPurpose, open_channel
from headrace_protos.v1 import admin_pb2
from tests.worlds.controllers_world import Controller, with_controllers

SERVING = health_pb2.HealthCheckResponse.SERVING


async def health(controller: Controller) -> int:
    async with open_channel(controller.client, ChannelPurpose.CONTROL) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60, wait_for_ready=True)
        return int(answer.status)


async def health_is(controller: Controller, wanted: bool) -> None:
    async with asyncio.timeout(60):
        while (await health(controller) == SERVING) is not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def setting(value: int) -> admin_pb2.AlterConfigsRequest:
    """A metadata write that needs no broker."""
    resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, name="")
    op = admin_pb2.AlterConfigOp(kind=admin_pb2.AlterConfigOp.KIND_SET, name="message.max.bytes", value=str(value))
    return admin_pb2.AlterConfigsRequest(resources=[admin_pb2.AlterConfigsResource(resource=resource, ops=[op])])


async def set_to(controller: Controller, value: int, *, listener: str = "client") -> int:
    answer = await controller.call("AlterConfigs", setting(value), listener=listener)
    assert not answer.results[0].error.code, answer
    return int(answer.metadata_offset)


async def set_at_last(controller: Controller, value: int) -> None:
    """The call must also succeed if there is no leader for a moment, as on a busy machine."""
    async with asyncio.timeout(60):
        while True:
            try:
                await set_to(controller, value)
                return
            except HeadraceError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(0.02)


async def leader_of(*controllers: Controller) -> Controller:
    found = await controllers[0].describe_once(lambda quorum: quorum.leader_id > 0)
    return next(each for each in controllers if each.node_id == found.leader_id)


async def shown_by(controller: Controller) -> list[str]:
    resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, name="")
    answer = await controller.call("DescribeConfigs", admin_pb2.DescribeConfigsRequest(resources=[resource]))
    return [entry.value for entry in answer.results[0].entries if entry.name == "message.max.bytes"]


def test_any_controller_passes_an_admin_call_to_the_leader_and_shows_what_was_done(tmp_path: Path) -> None:
    async def test(*controllers: Controller) -> None:
        for value, each in enumerate(controllers, start=2_000):
            await set_at_last(each, value)
        for each in controllers:
            async with asyncio.timeout(60):
                while await shown_by(each) != ["2002"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    with_controllers(tmp_path, 3, 0, test)


def test_on_the_internal_listener_nothing_is_passed_on_and_the_leader_is_named(tmp_path: Path) -> None:
    async def test(*controllers: Controller) -> None:
        leader = await leader_of(*controllers)
        other = next(each for each in controllers if each is not leader)
        await health_is(other, True)
        with pytest.raises(NotControllerError) as refused:
            await set_to(other, 3_000, listener="internal")
        assert refused.value.leader is not None
        assert refused.value.leader[0] == leader.node_id
        assert refused.value.leader[2] == leader.internal
        await set_to(leader, 3_000, listener="internal")

    with_controllers(tmp_path, 3, 0, test)


def test_an_observer_serves_and_passes_on(tmp_path: Path) -> None:
    async def test(one: Controller, two: Controller) -> None:
        await health_is(two, True)
        await set_at_last(two, 4_000)
        assert await shown_by(one) == ["4000"]

    with_controllers(tmp_path, 1, 1, test)


def test_a_controller_serves_as_long_as_it_knows_a_leader(tmp_path: Path) -> None:
    async def test(*controllers: Controller) -> None:
        for each in controllers:
            await health_is(each, True)
        leader = await leader_of(*controllers)
        follower, last = (each for each in controllers if each is not leader)
        await follower.stop()
        await health_is(last, True)
        await leader.stop()
        await health_is(last, False)

    with_controllers(tmp_path, 3, 0, test)


def test_a_leader_that_stops_hands_over_and_writes_go_on_without_an_election_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader stands for election because the old leader asked it to (Raft 3.10): nobody stands because of a
    time-out here, however long the machine stalls."""
    told: list[int] = []
    prospective, candidate = RaftNode._become_prospective, RaftNode._become_candidate
    time_outs_count = True

    def become_prospective(node: RaftNode) -> None:
        if time_outs_count:
            prospective(node)

    def become_candidate(node: RaftNode, *, is_transfer: bool = False) -> None:
        if is_transfer:
            told.append(node.key.node_id)
        candidate(node, is_transfer=is_transfer)

    monkeypatch.setattr(RaftNode, "_become_prospective", become_prospective)
    monkeypatch.setattr(RaftNode, "_become_candidate", become_candidate)

    async def test(*controllers: Controller) -> None:
        nonlocal time_outs_count
        leader = await leader_of(*controllers)
        others = [each for each in controllers if each is not leader]
        for each in others:
            await health_is(each, True)
        await leader.describe_once(lambda quorum: all(each.lag == 0 for each in quorum.voters))
        time_outs_count = False
        stopping = asyncio.create_task(leader.stop())
        found = await others[0].describe_once(lambda quorum: quorum.leader_id not in (-1, leader.node_id))
        assert found.leader_id in told
        time_outs_count = True
        await set_at_last(others[0], 5_000)
        await stopping

    with_controllers(tmp_path, 3, 0, test)


def test_a_failed_disk_ends_that_controller_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(*controllers: Controller) -> None:
        leader = await leader_of(*controllers)
        others = [each for each in controllers if each is not leader]
        sync = RealFile.sync

        def failing(self: Any) -> None:
            if str(leader.root) in self.path:
                raise OSError(errno.EIO, "Input/output error", self.path)
            sync(self)

        monkeypatch.setattr(RealFile, "sync", failing)
        (lost,) = await asyncio.gather(set_to(others[0], 6_000), return_exceptions=True)
        # The entry was about to be written to the log whose disk fails. (On a busy machine another controller may lead
        # by now, and accept the entry; in this case the disk of a follower fails, which tests the same property.)
        assert isinstance(lost, int) or (isinstance(lost, HeadraceError) and lost.retriable)
        with pytest.raises(OSError, match="Input/output"):
            await leader.ended()
        await set_at_last(others[0], 7_000)
        await others[0].describe_once(lambda quorum: quorum.leader_id not in (-1, leader.node_id))

    with_controllers(tmp_path, 3, 0, test)


def test_a_controller_that_is_cut_short_lets_go_of_its_directory_when_the_last_write_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock must not be released before the last write ends, because the next owner of the directory would find
    another process that writes to its log."""
    happened: list[str] = []
    writing, release = threading.Event(), threading.Event()
    append, close = MetadataStorage.append, MetadataStorage.close

    def slow_append(self: MetadataStorage, entries: Any) -> int:
        if threading.current_thread() is not threading.main_thread():
            writing.set()
            assert release.wait(60)
            happened.append("written")
        return append(self, entries)

    def noted_close(self: MetadataStorage, *, clean: bool = True) -> None:
        happened.append("closed")
        close(self, clean=clean)

    async def test(one: Controller) -> None:
        await health_is(one, True)
        monkeypatch.setattr(MetadataStorage, "append", slow_append)
        monkeypatch.setattr(MetadataStorage, "close", noted_close)
        asked = asyncio.create_task(set_to(one, 8_000))
        async with asyncio.timeout(60):
            while not writing.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.wait([asked])
        asyncio.get_running_loop().call_later(1.0, release.set)
        await one.cut_short()
        assert happened == ["written", "closed"]

    with_controllers(tmp_path, 1, 0, test)
