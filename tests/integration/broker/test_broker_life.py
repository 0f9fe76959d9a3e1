"""A broker's start, stop and crash, with real processes."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_core import errors
from headrace_core.log import checkpoints
from tests.worlds.broker_world import (
    WAIT_S,
    Cluster,
    Node,
    batch,
    fetch_partition,
    fetch_request,
    fetch_stream,
    produce_partition,
    produce_request,
    produce_stream,
)
from tests.worlds.this_process import free_port
from tests.worlds.waiting import until


def test_acknowledged_records_survive_kill_9_and_offsets_go_on(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders", 2)
    acknowledged = [0, 0]
    with produce_stream(cluster) as stream:
        for number in range(400):
            records = batch(*[b"%d" % number] * 10)
            stream.send(produce_request(number, produce_partition("orders", records, number % 2)))
        for _ in range(200):  # and 200 requests have no response yet when the broker dies
            (result,) = stream.receive().results
            acknowledged[result.partition] = max(acknowledged[result.partition], result.base_offset + 10)
        cluster.broker.kill()
    cluster.restart()
    assert sum(acknowledged) >= 2000
    for partition in (0, 1):
        stored = orders.read(partition=partition)
        sent = [b"%d" % number for number in range(partition, 400, 2) for _ in range(10)]
        assert len(stored) >= acknowledged[partition]
        assert stored == sent[: len(stored)]
        assert orders.produce(b"next", partition=partition).base_offset == len(stored)


def test_a_torn_tail_is_cut_and_the_rest_is_served(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    for value in (b"a", b"b"):
        orders.produce(value)
    cluster.broker.kill()
    (segment,) = (cluster.broker.data / "orders-0").glob("*.log")
    with segment.open("ab") as file:
        file.write(batch(b"torn")[:40])
    cluster.restart()
    assert orders.read() == [b"a", b"b"]
    assert orders.produce(b"c").base_offset == 2


def test_sigterm_stops_cleanly_and_the_next_start_trusts_it(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    orders.produce(b"a")
    assert cluster.broker.terminate() == 0
    assert (cluster.broker.data / checkpoints.CLEAN_SHUTDOWN).exists()
    assert "clean=True" in cluster.broker.log()
    assert not (cluster.broker.directory / "node.json").exists()
    cluster.restart()
    assert orders.read() == [b"a"]


def test_sigterm_finishes_what_is_under_way_and_tells_the_rest(make_cluster):
    """Every request gets its offset, a refusal, or the end of the stream with the reason that the broker shuts down."""
    cluster = make_cluster()
    orders = cluster.topic("orders")
    fetching = fetch_stream(cluster)
    fetching.send(fetch_request(1, fetch_partition("orders", 0), max_wait_ms=600_000, min_bytes=10**9))
    answers = []
    with produce_stream(cluster) as stream:
        stopping = threading.Event()

        def flood():
            number = 0
            while not stopping.is_set() and number < 20_000:
                stream.send(produce_request(number, produce_partition("orders", batch(b"x" * 2000))))
                number += 1

        sender = threading.Thread(target=flood)
        sender.start()
        answers += [stream.receive() for _ in range(20)]
        ended = threading.Thread(target=cluster.broker.terminate)
        ended.start()
        with pytest.raises(grpc.RpcError) as failed:
            answers.extend(iter(stream.receive, None))
        stopping.set()
        sender.join()
        ended.join()
    assert failed.value.details().startswith("SERVER_SHUTTING_DOWN: ")
    appended = [answer.results[0].base_offset for answer in answers if not answer.results[0].error.code]
    assert appended == list(range(len(appended)))
    assert fetching.receive().correlation_id == 1
    cluster.restart()
    assert orders.end() >= len(appended)


def test_two_brokers_cannot_share_a_directory(make_cluster):
    cluster = make_cluster()
    second = Node("broker", cluster.directory / "second", None, **cluster.broker.keys)
    second.keys["listeners"] = "client://127.0.0.1:0,internal://127.0.0.1:0"
    second.keys["runtime.state.file"] = str(cluster.directory / "second.json")
    second.launch()
    assert second.process is not None
    assert second.process.wait(WAIT_S) == 1
    assert "is in use" in second.log()
    assert not cluster.topic("orders").produce(b"a").error.code


def test_a_broker_does_not_start_on_a_directory_that_was_not_formatted(tmp_path):
    properties = tmp_path / "broker.properties"
    properties.write_text(f"log.dirs={tmp_path}/data\ncontroller.quorum.bootstrap.servers=127.0.0.1:1\n")
    command = [sys.executable, "-P", "-m", "headrace_broker", "--config", str(properties)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "not formatted" in done.stderr
    assert "goes on" not in done.stderr  # the message also appeared for a broker with only one directory

    cure = re.search("`headrace (format .*?)`", done.stderr)
    assert cure is not None
    arguments = shlex.split(cure[1].replace(" ID", " tests"))
    subprocess.run(
        [sys.executable, "-P", "-m", "headrace_tools", *arguments], capture_output=True, timeout=30, check=True
    )
    assert "cluster.id=tests" in (tmp_path / "data" / "meta.properties").read_text()


def test_a_broker_says_which_key_it_does_not_know(tmp_path):
    properties = tmp_path / "broker.properties"
    properties.write_text(f"log.dirs={tmp_path}/data\nlog.segment.byte=5\n")
    command = [sys.executable, "-P", "-m", "headrace_broker", "--config", str(properties)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "did you mean 'log.segment.bytes'" in done.stderr


def test_a_damaged_log_is_not_served_and_the_others_are(make_cluster):
    cluster = make_cluster()
    broken, sound = cluster.topic("broken"), cluster.topic("sound")
    for topic in (broken, sound):
        for number in range(3):
            topic.produce(b"%d" % number * 50)
    cluster.broker.terminate()
    (segment,) = (cluster.broker.data / "broken-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[100] ^= 0xFF  # damage inside of the first batch with sound batches after it, which is not a torn tail
    segment.write_bytes(content)
    (cluster.broker.data / checkpoints.CLEAN_SHUTDOWN).unlink()
    (cluster.broker.data / checkpoints.RECOVERY_POINTS).unlink()
    cluster.restart()
    assert sound.read() == [b"%d" % number * 50 for number in range(3)]
    result = broken.produce(b"x")
    assert result.error.code
    assert "PartitionFailed" in cluster.broker.log()


def test_logs_of_topics_deleted_while_the_broker_was_away_are_removed(make_cluster):
    cluster = make_cluster()
    cluster.topic("orders").produce(b"a")
    cluster.topic("kept").produce(b"a")
    away = cluster.broker.data
    cluster.broker.terminate()
    from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

    with grpc.insecure_channel(cluster.controller.address()) as channel:
        admin_pb2_grpc.AdminStub(channel).DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=["orders"]), timeout=60)
    cluster.restart()
    assert not (away / "orders-0").exists()
    assert (away / "kept-0").exists()


def test_the_broker_outlives_its_controller(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    cluster.controller.kill()
    assert not orders.produce(b"a").error.code
    cluster.controller.start()
    assert not cluster.topic("more").produce(b"b").error.code
    assert orders.read() == [b"a"]


def test_a_paused_broker_is_fenced_and_comes_back(tmp_path):
    """A broker is stopped (SIGSTOP) for longer than its session, so the controller fences it. When the broker resumes,
    it learns that it is fenced, and then serves again."""
    made = Cluster(tmp_path / "cluster", **{"broker.heartbeat.interval.ms": "100"})
    # (a slow machine may suspend the broker for a second, too)
    made.controller.keys["broker.session.timeout.ms"] = "3000"
    with made as cluster:
        orders = cluster.topic("orders")
        assert not orders.produce(b"before").error.code
        epoch = orders.leader_epoch()
        cluster.broker.process.send_signal(signal.SIGSTOP)
        until(lambda: "BrokerFenced" in cluster.controller.log(), "the controller to fence the broker")
        cluster.broker.process.send_signal(signal.SIGCONT)
        until(lambda: orders.leader_epoch() > epoch, "the broker to lead again, under a new epoch")
        until(lambda: not orders.produce(b"after").error.code, "the broker to serve again")
        assert orders.read() == [b"before", b"after"]
        with fetch_stream(cluster) as stream:
            stream.send(fetch_request(1, fetch_partition("orders", epoch=epoch), max_wait_ms=0))
            assert stream.receive().results[0].error.code == errors.FencedLeaderEpochError.number


def test_health_says_not_serving_before_the_broker_is_unfenced(tmp_path):
    """Without a controller the listeners answer that they do not serve."""
    broker = Node("broker", tmp_path / "broker", "tests", **{"controller.quorum.bootstrap.servers": "127.0.0.1:1"})
    port = free_port()
    broker.keys["listeners"] = f"client://127.0.0.1:{port},internal://127.0.0.1:0"
    broker.launch()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=WAIT_S, wait_for_ready=True
            )
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert broker.terminate() == 0
    finally:
        broker.close()
