"""After load, a real process has as many threads as after its start. One more thread in a soak test is therefore a
leak. (The number of gRPC's native threads varies: docs/soak.md.)"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from headrace import Admin, LocalCluster, NewTopic, TopicPartition
from headrace_core.rpc.event_loop import BLOCKING_THREADS, StartedThreads, new_event_loop
from tests.system.soak.soak_samples import GRPC_THREADS, thread_names
from tests.worlds.waiting import until

PARTITIONS = 8
#: A program with every kind of client, which prints its number of threads after the first calls and after the load.
CLIENT = """
import json, os, sys
from headrace import Admin, Consumer, Producer
from tests.integration.broker.test_thread_counts import own_threads

def count():
    return own_threads(os.getpid())

bootstrap, partitions = {"bootstrap.servers": sys.argv[1]}, int(sys.argv[2])
batches = {"compression.type": "zstd", "linger.ms": 50, "batch.size": 1_000_000}
group = {"group.id": "threads", "auto.offset.reset": "earliest"}
with Admin(bootstrap) as admin, Producer(bootstrap | batches) as producer, Consumer(bootstrap | group) as consumer:
    consumer.subscribe(["orders"])
    producer.send("orders", b"first").result()
    while not consumer.poll(1.0):
        pass
    started = count()
    value = bytes(range(256)) * 40
    for _ in range(3):
        for partition in range(partitions):
            for _ in range(100):
                producer.send("orders", value, partition=partition)
        producer.flush()
        admin.list_topics()
    read = 0
    while read < 3 * 100 * partitions:
        read += len(consumer.poll(10.0))
        consumer.commit()
    print(json.dumps([started, count()]))
"""


def own_threads(pid: int) -> int:
    """The number of threads that are not gRPC's. A new thread of gRPC has the name of the thread that started it for a
    moment, so the number counts when it is the same twice."""
    counts = [-1]

    def is_same() -> bool:
        counts.append(sum(not name.startswith(GRPC_THREADS) for name in thread_names(pid)))
        return counts[-1] == counts[-2]

    until(is_same, lambda: f"the number of threads stays the same: {counts}", pause_s=0.05)
    return counts[-1]


def new_threads(before: set[threading.Thread], name: str) -> set[threading.Thread]:
    """The threads of this name that were not there before. (Clients of earlier tests may start other threads.)"""
    return {thread for thread in set(threading.enumerate()) - before if thread.name.startswith(name)}


def test_a_pool_has_all_its_threads_before_its_first_work_and_no_more_later() -> None:
    before = set(threading.enumerate())
    pool = StartedThreads(3, "counted")
    started = new_threads(before, "counted")
    assert len(started) == 3
    together = threading.Barrier(3)
    assert sorted(pool.map(lambda number: (together.wait(30), number)[1], range(3))) == [0, 1, 2]
    assert new_threads(before, "counted") == started
    pool.shutdown()
    assert not any(thread.is_alive() for thread in started)


def test_a_loop_of_ours_has_its_blocking_threads_from_the_start() -> None:
    before = set(threading.enumerate())
    loop = new_event_loop()
    started = new_threads(before, "blocking")
    assert len(started) == BLOCKING_THREADS
    assert loop.run_until_complete(loop.run_in_executor(None, threading.current_thread)) in started
    assert new_threads(before, "blocking") == started
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert not any(thread.is_alive() for thread in started)


def test_every_process_has_as_many_threads_after_load_as_after_its_start(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = {
        "metadata.log.max.record.bytes.between.snapshots": "2000",
        "producer.id.expiration.check.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
    }
    with LocalCluster(brokers=1, controllers=1, coordinators=1, data=tmp_path, config=config) as cluster:
        pids = {node["role"]: node["pid"] for node in cluster.ps()}
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", PARTITIONS)])
            started = {role: own_threads(pid) for role, pid in pids.items()}
            client = subprocess.run(
                [sys.executable, "-c", CLIENT, cluster.bootstrap_servers, str(PARTITIONS)],
                capture_output=True,
                timeout=120,
                check=True,
            )
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda number: admin.create_topics([NewTopic(f"topic-{number}", 2)]), range(40)))
                times = {TopicPartition("orders", partition): 0 for partition in range(PARTITIONS)}
                list(pool.map(lambda _: admin.list_offsets(times), range(40)))
            ended = {role: own_threads(pid) for role, pid in pids.items()}
            assert ended == started
        first, last = json.loads(client.stdout)
        assert last == first
