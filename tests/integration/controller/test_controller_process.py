"""A controller as a real process: format, start, change, kill -9, start again. The tests call the controller only with
generated stubs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_core.errors import (
    DivergingMetadataError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    StaleBrokerEpochError,
)
from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.node.ids import random_id
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2, cluster_pb2_grpc, metadata_pb2, metadata_pb2_grpc
from tests.worlds.waiting import check_in_time, check_took, until
from tests.worlds.waiting import until_async as eventually

Make = Callable[..., Any]


class Calls:
    """The stubs on one address."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self.admin = admin_pb2_grpc.AdminStub(self.channel)
        self.metadata = metadata_pb2_grpc.MetadataStub(self.channel)
        self.cluster = cluster_pb2_grpc.ClusterStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def create(self, name: str, partitions: int = 1) -> admin_pb2.CreateTopicsResponse:
        topic = admin_pb2.NewTopic(name=name, partitions=partitions)
        return self.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[topic]), timeout=60)

    def all_topics(self, **more: Any) -> metadata_pb2.MetadataResponse:
        return self.metadata.GetMetadata(metadata_pb2.MetadataRequest(all_topics=True, **more), timeout=60)


class BrokerStandIn:
    """A broker that only follows the metadata, registers and sends heartbeats, with the code of real brokers."""

    def __init__(self, address: str, directory: bytes, cluster_id: str = "scenario", **session: float) -> None:
        #: The number of changes that the broker had seen when it was unfenced.
        self.unfenced_at = 0
        self.changes: list[tuple[MetadataImage, MetadataDelta]] = []
        self.follower = MetadataFollower([address], cluster_id, on_change=self._on_change)
        self.session = BrokerSession(
            [address],
            BrokerRegistration(
                cluster_id=cluster_id,
                incarnation_id=random_id(),
                directory_ids=(directory,),
                endpoints=(("client", "127.0.0.1", 9095),),
            ),
            heartbeat_interval_ms=100,
            **session,
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def _on_change(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.changes.append((image, delta))
        self.session.applied(image.next_offset)

    async def start(self) -> None:
        """Wait until the broker is unfenced."""
        self.tasks.append(asyncio.create_task(self.follower.run()))
        await self.session.register()
        self.session.applied(self.follower.image.next_offset)
        self.tasks.append(asyncio.create_task(self.session.run()))
        await asyncio.wait_for(self.session.wait_unfenced(), 60)
        await eventually(lambda: any(broker.active for broker in self.follower.image.brokers.values()))
        self.unfenced_at = len(self.changes)

    async def stop(self) -> None:
        """End the broker like a killed process, without a notice."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def test_a_topic_is_still_there_after_kill_9(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()

    async def live() -> None:
        directory = random_id()
        broker = BrokerStandIn(controller.internal, directory)
        await broker.start()
        with Calls(controller.client) as calls:
            created = await asyncio.to_thread(calls.create, "orders", 3)
            assert created.results[0].error.code == 0
            controller.kill()
        controller.start()
        with Calls(controller.client) as calls:
            response = await asyncio.to_thread(calls.all_topics, min_metadata_offset=created.metadata_offset)
            (topic,) = response.topics
            assert (topic.name, topic.topic_id) == ("orders", created.results[0].topic_id)
            assert [partition.leader_id for partition in topic.partitions] == [1, 1, 1]
            assert [broker.broker_id for broker in response.brokers] == [1]
            again = await asyncio.to_thread(calls.create, "orders")
            assert again.results[0].error.code == 36
            # The broker has continued by itself, with the same registration.
            more = await asyncio.to_thread(calls.create, "more")
            await asyncio.wait_for(broker.follower.wait_applied(more.metadata_offset), 60)
            assert broker.follower.image.topic("more") is not None
            assert not broker.session.fenced
        await broker.stop()

    asyncio.run(live())
    assert controller.stop() == 0


def test_start_is_quick_and_small(make_controller: Make) -> None:
    controller = make_controller()
    begun = time.monotonic()
    state = controller.start()
    seconds = time.monotonic() - begun
    with open(f"/proc/{state.pid}/status") as status:
        rss_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    print(f"start {seconds:.2f} s, RSS {rss_kib / 1024:.0f} MiB")
    check_took(seconds, 30)  # 0.2 s on an idle machine
    assert rss_kib < 90 * 1024


def is_serving(calls: Calls) -> bool:
    answer = calls.health.Check(health_pb2.HealthCheckRequest(), timeout=60)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_health_and_reflection_answer_on_both_listeners_and_internal_calls_on_one(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()
    for address in (controller.client, controller.internal):
        with Calls(address) as calls:
            until(lambda calls=calls: is_serving(calls), "healthy while it knows the leader")
    with Calls(controller.client) as calls, pytest.raises(grpc.RpcError) as failure:
        list(calls.cluster.FollowMetadata(cluster_request(), timeout=60))
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


def cluster_request() -> Any:
    return cluster_pb2.FollowMetadataRequest(cluster_id="scenario")


@pytest.mark.parametrize("name", ["ReadIndex", "VouchMetadata"])
def test_read_index_is_served_under_its_former_name_too(make_controller: Make, name: str) -> None:
    """Nodes of the previous release call /headrace.v1.Cluster/VouchMetadata; their is_patient is field 3, too."""
    controller = make_controller()
    controller.start()
    with Calls(controller.internal) as calls:
        call = calls.channel.unary_unary(f"/headrace.v1.Cluster/{name}")  # bytes in, bytes out
        answer = cluster_pb2.ReadIndexResponse.FromString(call(b"\x0a\x08scenario\x18\x01", timeout=60))
    assert (answer.leader_id >= 0, answer.leader_epoch >= 1, answer.committed_offset >= 1) == (True, True, True)


def test_admin_works_on_both_listeners_and_errors_are_per_item(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()
    for address in (controller.client, controller.internal):
        with Calls(address) as calls:
            (result,) = calls.create("t").results
            assert (result.error.code, "none is alive" in result.error.message) == (38, True)
            resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="nope")
            described = calls.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resources=[resource]), timeout=60)
            assert described.results[0].error.code == 3
            op = admin_pb2.AlterConfigOp(kind=admin_pb2.AlterConfigOp.KIND_SET, name="log.retention.ms", value="7")
            everyone = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, name="")
            altered = calls.admin.AlterConfigs(
                admin_pb2.AlterConfigsRequest(resources=[admin_pb2.AlterConfigsResource(resource=everyone, ops=[op])]),
                timeout=10,
            )
            assert altered.results[0].error.code == 0
            shown = calls.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resources=[everyone]), timeout=60)
            assert [(entry.name, entry.value) for entry in shown.results[0].entries] == [("log.retention.ms", "7")]


def test_a_watcher_is_notified_of_what_concerns_it_and_of_nothing_else(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()

    async def live() -> None:
        broker = BrokerStandIn(controller.internal, random_id())
        await broker.start()
        with Calls(controller.client) as calls:
            seen: list[metadata_pb2.MetadataResponse] = []
            watch = calls.metadata.WatchMetadata(metadata_pb2.MetadataRequest(topics=["mine"]), timeout=30)

            def read() -> None:
                with contextlib.suppress(grpc.RpcError):
                    seen.extend(watch)  # one by one, as they come

            reading = asyncio.create_task(asyncio.to_thread(read))
            await eventually(lambda: len(seen) == 1)
            assert seen[0].topics[0].error.code == 3
            await asyncio.to_thread(calls.create, "other")
            mine = await asyncio.to_thread(calls.create, "mine")
            await eventually(lambda: len(seen) == 2)
            assert seen[1].topics[0].topic_id == mine.results[0].topic_id
            assert seen[1].metadata_offset == mine.metadata_offset
            watch.cancel()
            await reading
        await broker.stop()

    asyncio.run(live())


def test_a_broker_is_unfenced_at_once_and_fenced_when_it_falls_silent(make_controller: Make) -> None:
    controller = make_controller(**{"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "100"})
    controller.start()

    async def live() -> None:
        watcher = MetadataFollower([controller.internal], "scenario")
        following = asyncio.create_task(watcher.run())
        begun = time.monotonic()
        broker = BrokerStandIn(controller.internal, random_id())
        await broker.start()
        print(f"registered and unfenced in {(time.monotonic() - begun) * 1000:.0f} ms")
        with Calls(controller.internal) as calls:
            created = await asyncio.to_thread(calls.create, "t")
        image = await watcher.wait_applied(created.metadata_offset, 10)
        assert image.brokers[1].active
        await broker.stop()
        await eventually(lambda: watcher.image.brokers[1].fenced)
        topic = watcher.image.topic("t")
        assert topic is not None
        assert (topic.partitions[0].leader, topic.partitions[0].elr) == (-1, (1,))
        following.cancel()

    asyncio.run(live())


def test_a_paused_controller_blames_nobody_for_its_own_silence(make_controller: Make) -> None:
    controller = make_controller(**{"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "100"})
    controller.start()

    async def live() -> None:
        broker = BrokerStandIn(controller.internal, random_id(), answer_timeout_ms=300)
        await broker.start()
        controller.signal(signal.SIGSTOP)
        resume_at = time.monotonic() + 4.5
        await eventually(lambda: time.monotonic() > resume_at)
        controller.signal(signal.SIGCONT)
        with Calls(controller.internal) as calls:
            created = await asyncio.to_thread(calls.create, "t")
        await broker.follower.wait_applied(created.metadata_offset, 10)
        beats = broker.session._correlation
        seen = next(beats)
        await eventually(lambda: next(beats) > seen + 20)  # heartbeats have gone on for a while
        assert not broker.session.fenced
        assert not any(
            image.brokers[1].fenced for image, delta in broker.changes[broker.unfenced_at :] if delta.brokers
        )
        await broker.stop()

    asyncio.run(live())


def test_a_reader_waits_for_its_own_write(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()

    async def live() -> None:
        broker = BrokerStandIn(controller.internal, random_id())
        await broker.start()
        with Calls(controller.client) as calls:
            now = (await asyncio.to_thread(calls.all_topics)).metadata_offset
            waiting = asyncio.create_task(asyncio.to_thread(calls.all_topics, min_metadata_offset=now + 2))
            await asyncio.to_thread(calls.create, "t")
            assert [topic.name for topic in (await waiting).topics] == ["t"]
            future = metadata_pb2.MetadataRequest(min_metadata_offset=now + 1_000)
            with pytest.raises(grpc.RpcError) as failure:
                await asyncio.to_thread(calls.metadata.GetMetadata, future, timeout=0.3)
            assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await broker.stop()

    asyncio.run(live())


def test_a_restarted_broker_gets_its_id_and_its_leaderships_back_at_once(make_controller: Make) -> None:
    controller = make_controller(broker_session_timeout_ms="90000")
    controller.start()

    async def live() -> None:
        directory = random_id()
        first = BrokerStandIn(controller.internal, directory)
        await first.start()
        with Calls(controller.internal) as calls:
            await asyncio.to_thread(calls.create, "t")
        rival = BrokerStandIn(controller.internal, directory)
        with pytest.raises(DuplicateBrokerRegistrationError):
            await rival.session._register_at(controller.internal)
        await first.stop()
        begun = time.monotonic()
        second = BrokerStandIn(controller.internal, directory)
        await second.start()
        seconds = time.monotonic() - begun
        assert second.session.registered.broker_id == first.session.registered.broker_id
        assert second.session.registered.broker_epoch > first.session.registered.broker_epoch
        check_took(seconds, 30, "it must not wait for the old session to end")
        await eventually(lambda: second.follower.image.topic("t") is not None)
        topic = second.follower.image.topic("t")
        assert topic is not None
        await eventually(lambda: second.follower.image.topics[topic.topic_id].partitions[0].leader == 1)
        with pytest.raises(StaleBrokerEpochError):
            await first.session.run()
        await second.stop()

    asyncio.run(live())


def test_a_broker_takes_its_leave_and_its_partitions_wait_for_it(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()

    async def live() -> None:
        directory = random_id()
        broker = BrokerStandIn(controller.internal, directory)
        await broker.start()
        with Calls(controller.internal) as calls:
            await asyncio.to_thread(calls.create, "t")
        begun = time.monotonic()
        assert await broker.session.shut_down(60)
        check_in_time(begun, 30)
        await asyncio.wait_for(broker.tasks[1], 60)  # the broker's heartbeats have ended without a call from the test
        await broker.stop()
        again = BrokerStandIn(controller.internal, directory)
        await again.start()
        assert again.session.registered.broker_id == 1
        await again.stop()

    asyncio.run(live())


def test_a_follower_of_another_cluster_or_another_history_is_refused(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()

    async def live() -> None:
        with pytest.raises(InconsistentClusterIdError):
            await MetadataFollower([controller.internal], "other").run()
        ahead = MetadataImage(next_offset=1_000, cluster_id="scenario")
        with pytest.raises(DivergingMetadataError, match="their logs diverge"):
            await MetadataFollower([controller.internal], "scenario", image=ahead).run()

    asyncio.run(live())


def test_sigterm_stops_cleanly_with_streams_open(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()

    async def live() -> None:
        broker = BrokerStandIn(controller.internal, random_id())
        await broker.start()
        begun = time.monotonic()
        assert await asyncio.to_thread(controller.stop) == 0
        print(f"stopped in {time.monotonic() - begun:.2f} s")
        check_in_time(begun, 30)
        controller.start()
        with Calls(controller.internal) as calls:
            created = await asyncio.to_thread(calls.create, "t")
            assert created.results[0].error.code == 0
        await asyncio.wait_for(broker.follower.wait_applied(created.metadata_offset), 60)
        await broker.stop()

    asyncio.run(live())
    assert "clean=True" in controller.log()


def test_what_is_wrong_with_a_start_is_said_in_one_line(make_controller: Make) -> None:
    controller = make_controller()
    again = controller.format()
    assert again.returncode == 1
    assert "is already formatted" in again.stderr
    ignored = controller.format("--ignore-formatted")
    assert ignored.returncode == 0
    assert json.loads(ignored.stdout)["formatted"] is False

    def refused(*overrides: str) -> str:
        arguments = [part for override in overrides for part in ("-o", override)]
        done = controller.run("--config", str(controller.properties), *arguments)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "did you mean 'num.partitions'" in refused("num.partitons=3")
    assert "not formatted" in refused(f"log.dirs={controller.directory}/elsewhere")
    assert "node.id" in refused("node.id=2")
    voters = "controller.quorum.voters=1@127.0.0.1:1,2@127.0.0.1:2"
    assert "was formatted for the sole voter 1" in refused(voters)
    others = "controller.quorum.bootstrap.servers=127.0.0.1:1,127.0.0.1:2"
    assert "names no voters and holds no metadata" in refused(others)
    controller.start()
    assert "another process" in refused("listeners=internal://127.0.0.1:0")


def test_a_controller_whose_metadata_log_was_removed_does_not_begin_anew(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()
    controller.stop()
    shutil.rmtree(f"{controller.config['log.dirs']}/__cluster_metadata-0")
    for _ in range(2):
        done = controller.run("--config", str(controller.properties))
        assert done.returncode == 1
        assert "__cluster_metadata-0 is missing" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_taken_port_is_named(make_controller: Make) -> None:
    first, second = make_controller(), make_controller()
    first.start()
    second.config["listeners"] = f"internal://{first.internal}"
    done = second.run("--config", str(second.properties))
    assert done.returncode == 1
    assert first.internal in done.stderr
    assert not os.path.exists(second.config["log.dirs"] + "/node.json")
