"""The clients against real processes: the first steps of a user, and a broker's crash."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from headrace import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ConfigResource,
    Consumer,
    NewTopic,
    OffsetRange,
    PriorityPartitioner,
    Producer,
    RangeReader,
    TopicPartition,
)
from headrace.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import check_in_time, until

_names = itertools.count()


@pytest.fixture
def bootstrap(headrace: Any) -> str:
    return str(headrace.bootstrap_servers)


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A new topic of three partitions."""
    name = f"client-{os.getpid()}-{next(_names)}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        # Some records have old timestamps, so retention would delete them at its next check.
        admin.create_topics([NewTopic(name, partitions=3, config={"retention.ms": "-1"})])
    return name


def read_all(bootstrap: str, topic: str, partitions: int = 3) -> list[Any]:
    """Return all records that exist now, by partition."""
    everywhere = [TopicPartition(topic, number) for number in range(partitions)]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as inp:
        inp.assign(everywhere)
        out = read_to_end(inp)
    return sorted(out, key=lambda record: (record.partition, record.offset))


# --- admin -----------------------------------------------------------------------------------------------------------


def test_topics_are_created_described_grown_and_deleted(bootstrap: str) -> None:
    name = f"admin-{os.getpid()}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        (made,) = admin.create_topics([NewTopic(name, partitions=2, config={"retention.ms": "-1"})])
        assert (made.name, made.partitions, made.replication_factor) == (name, 2, 1)
        assert name in admin.list_topics()  # at once: read your writes
        (described,) = admin.describe_topics([name])
        assert [part.partition for part in described.partitions] == [0, 1]
        assert described.topic_id == made.topic_id
        with pytest.raises(TopicAlreadyExistsError, match=name):
            admin.create_topics([NewTopic(name)])
        admin.create_partitions({name: 5})
        assert len(admin.describe_topics([name])[0].partitions) == 5
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({name: 4})
        resource = ConfigResource("topic", name)
        assert admin.describe_configs([resource])[resource]["retention.ms"].value == "-1"
        admin.alter_configs({resource: {"retention.ms": "1000", "max.message.bytes": "2000"}})
        assert admin.describe_configs([resource])[resource]["retention.ms"].source == "dynamic_topic"
        admin.alter_configs({resource: {"retention.ms": None}})
        entries = admin.describe_configs([resource])[resource]
        assert (entries["retention.ms"].source, entries["max.message.bytes"].value) == ("default", "2000")
        with pytest.raises(InvalidConfigError):
            admin.alter_configs({resource: {"no.such.key": "1"}})
        admin.delete_topics([name])
        assert name not in admin.list_topics()
        with pytest.raises(UnknownTopicOrPartitionError, match=name):
            admin.describe_topics([name])
        cluster = admin.describe_cluster()
        assert cluster.cluster_id
        assert cluster.brokers[0].address == bootstrap
        assert cluster.controller_id in [each.controller_id for each in cluster.controllers]
        assert cluster.metadata_lag_ms is not None
        assert cluster.metadata_lag_ms < 30_000


def test_failures_of_several_topics_are_all_named(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        with pytest.raises((TopicAlreadyExistsError, InvalidTopicError)) as caught:
            admin.create_topics([NewTopic(topic), NewTopic("no good")])
        assert topic in caught.value.message
        assert "no good" in caught.value.message


def test_records_are_deleted_from_the_start(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap) as out:
        out.send_many(topic, [b"v"] * 10, partition=0).result(60)
    with Admin(bootstrap_servers=bootstrap) as admin, Consumer(bootstrap_servers=bootstrap) as inp:
        assert admin.delete_records({partition: 4}) == {partition: 4}
        assert inp.beginning_offsets([partition]) == {partition: 4}


# --- producer and consumer -------------------------------------------------------------------------------------------


def test_every_field_comes_back(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as out:
        first = out.send(topic, b"v", b"k", [("h", b"1"), ("h", None)], 1, 1_700_000_000_000).result(60)
        second = out.send(topic, None, key=b"", partition=1).result(60)
    assert (first.topic, first.partition, first.timestamp_ms) == (topic, 1, 1_700_000_000_000)
    assert second.offset == first.offset + 1
    one, two = read_all(bootstrap, topic)
    assert (one.key, one.value, one.headers, one.timestamp_ms) == (
        b"k",
        b"v",
        [("h", b"1"), ("h", None)],
        1_700_000_000_000,
    )
    assert (two.key, two.value, two.headers) == (b"", None, [])
    assert (one.offset, one.partition, one.leader_epoch) == (first.offset, 1, 0)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_come_back(bootstrap: str, topic: str, codec: str) -> None:
    values = [b"%d " % number * 20 for number in range(2_000)]
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, batch_size=16_384) as out:
        out.send_many(topic, values, partition=0).result(60)
        if codec != "none":
            assert out.metrics()["compression-rate-avg"] < 0.5
    assert [record.value for record in read_all(bootstrap, topic)] == values


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_acks_writes(bootstrap: str, topic: str, acks: str) -> None:
    with Producer(bootstrap_servers=bootstrap, acks=acks) as out:
        for number in range(100):
            out.send(topic, b"%d" % number, partition=0)
        out.flush(60)
    found = read_all(bootstrap, topic)
    if acks == "0":  # the broker may append them after the producer has ended
        found = until(lambda: records if len(records := read_all(bootstrap, topic)) >= 100 else None)
    assert [record.value for record in found] == [b"%d" % number for number in range(100)]


def test_keys_go_where_kafka_sends_them_and_null_keys_everywhere(bootstrap: str, topic: str) -> None:
    from aiokafka.partitioner import DefaultPartitioner

    keys = [b"key-%d" % number for number in range(200)]
    with Producer(bootstrap_servers=bootstrap) as out:
        futures = [out.send(topic, b"v", key=key) for key in keys]
        out.flush(60)
        for key, future in zip(keys, futures, strict=True):
            assert future.result().partition == DefaultPartitioner()(key, [0, 1, 2], [0, 1, 2])
        seen = {out.send(topic, b"x" * 10_000).result(60).partition for _ in range(60)}
    assert seen == {0, 1, 2}


def test_priority_partitioner(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, partitioner_class=PriorityPartitioner) as out:
        assert out.send(topic, b"v", key=b"PRIORITY_HIGH-1").result(60).partition == 0
        others = {out.send(topic, b"v", key=b"other-%d" % number).result(60).partition for number in range(30)}
    assert others == {1, 2}


def test_arrow_table_goes_out_and_comes_back(bootstrap: str, topic: str) -> None:
    import pyarrow as pa

    rows = 30_000
    table = pa.table(
        {
            "value": pa.array([b"value-%d" % number for number in range(rows)], pa.binary()),
            "key": pa.array([None if number % 3 == 0 else b"k%d" % (number % 50) for number in range(rows)]),
            "partition": pa.array([number % 3 if number % 10 == 0 else None for number in range(rows)], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}] if number % 100 == 0 else [] for number in range(rows)]),
        }
    )
    with Producer(bootstrap_servers=bootstrap, batch_size=50_000) as out:
        metadata = out.send_arrow(topic, table).result(60)
        assert metadata.record_count == rows
        assert out.send_arrow(topic, table.slice(0, 0)).result(1).record_count == 0
    records = read_all(bootstrap, topic)
    by_value = {record.value: record for record in records}
    assert len(records) == len(by_value) == rows
    from headrace.partitioners import key_partition

    for number in range(0, rows, 7):
        record = by_value[b"value-%d" % number]
        assert record.key == (None if number % 3 == 0 else b"k%d" % (number % 50))
        if number % 10 == 0:
            assert record.partition == number % 3
        elif record.key is not None:
            assert record.partition == key_partition(record.key, 3)
        assert record.headers == ([("h", b"1")] if number % 100 == 0 else [])
    for partition in range(3):  # keyed rows keep their order within a partition
        keyed = [int(r.value[6:]) for r in records if r.partition == partition and r.key is not None]
        assert keyed == sorted(keyed)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as inp:
        inp.assign([TopicPartition(topic, number) for number in range(3)])
        count = 0
        while count < rows:
            count += inp.fetch_arrow(5).num_rows
        assert count == rows


def test_times_are_found(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap) as out:
        for number in range(10):
            out.send(topic, b"v", partition=0, timestamp_ms=1_000 * (number + 1))
        out.flush(60)
    with Consumer(bootstrap_servers=bootstrap) as inp:
        found = inp.offsets_for_times({partition: 4_500})[partition]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (4, 5_000)
        assert inp.offsets_for_times({partition: 99_000}) == {partition: None}
        assert inp.partitions_for(topic) == [0, 1, 2]


def test_topic_is_created_by_the_first_record(bootstrap: str) -> None:
    name = f"auto-{os.getpid()}"
    with Producer(bootstrap_servers=bootstrap) as out:
        assert out.send(name, b"v").result(60).topic == name
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert name in admin.list_topics()


def test_too_large_record_is_refused_by_client_or_broker(bootstrap: str, topic: str) -> None:
    resource = ConfigResource("topic", topic)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_configs({resource: {"max.message.bytes": "10000"}})
    noise = os.urandom(20_000)
    with (
        Producer(bootstrap_servers=bootstrap) as out,
        pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"),
    ):
        out.send(topic, noise)
    with Producer(bootstrap_servers=bootstrap, compression_type="lz4") as out:  # only the broker can know
        assert isinstance(out.send(topic, noise).exception(10), RecordTooLargeError)
        assert out.send(topic, b"small").result(60).offset == 0
    big = os.urandom(3_000_000)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.alter_configs({resource: {"max.message.bytes": "4000000"}})
    with Producer(bootstrap_servers=bootstrap, max_request_size=4_000_000) as out:
        metadata = out.send(topic, big).result(60)
    with Consumer(bootstrap_servers=bootstrap) as inp:
        inp.assign([TopicPartition(topic, metadata.partition)])
        inp.seek(TopicPartition(topic, metadata.partition), metadata.offset)
        assert inp.poll(60)[0].value == big


def test_compressed_record_above_the_brokers_limit_fails_at_once_and_holds_nothing(bootstrap: str, topic: str) -> None:
    """A broker does not read a message far above its limit, and ends the message's stream."""
    noise = os.urandom(18 * 1024 * 1024)
    settings = {"compression_type": "lz4", "max_request_size": 1 << 26, "buffer_memory": 1 << 26}
    with Producer(bootstrap_servers=bootstrap, **settings) as out:
        too_large = out.send(topic, noise, partition=0)
        behind, beside = out.send(topic, b"behind", partition=0), out.send(topic, b"beside", partition=1)
        error = too_large.exception(30)
        assert isinstance(error, RecordTooLargeError), error
        assert "socket.request.max.bytes" in str(error)
        assert (behind.result(30).offset, beside.result(30).offset) == (0, 0)
        assert out.metrics()["record-retry-total"] == 0


def test_batches_are_made_to_fit_into_small_segments(bootstrap: str) -> None:
    """Retention and compaction work on whole segments, so the test uses small segments. The producer's default batch
    would be larger than such a segment."""
    name = f"client-{os.getpid()}-{next(_names)}"
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_topics([NewTopic(name, partitions=1, config={"segment.bytes": "20000"})])
        futures = [producer.send(name, b"%06d" % number * 20) for number in range(2_000)]
        producer.flush(30)
        assert [future.result(60).offset for future in futures] == list(range(2_000))


def test_ranges_are_read_to_their_ends(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, batch_size=2_000) as out:
        for partition in range(3):
            out.send_many(topic, [b"%d" % number for number in range(1_000)], partition=partition)
        out.flush(60)
    ranges = [OffsetRange(topic, 0, 10, 990), OffsetRange(topic, 1, 0, 1_000), OffsetRange(topic, 2, 500, 501)]
    with RangeReader(ranges, bootstrap_servers=bootstrap) as reader:
        got: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for batch in reader.arrow_batches(columns=["partition", "offset"]):
            for row in batch.to_pylist():
                got[row["partition"]].append(row["offset"])
    assert got == {0: list(range(10, 990)), 1: list(range(1_000)), 2: [500]}


def test_asyncio_clients_side_by_side(bootstrap: str) -> None:
    async def main() -> None:
        name = f"aio-{os.getpid()}"
        async with (
            AsyncAdmin(bootstrap_servers=bootstrap) as admin,
            AsyncProducer(bootstrap_servers=bootstrap) as out,
            AsyncConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as inp,
        ):
            await admin.create_topics([NewTopic(name, partitions=1)])
            inp.assign([TopicPartition(name, 0)])

            async def write() -> None:
                futures = [await out.send(name, b"%d" % number) for number in range(20_000)]
                assert [item.offset for item in await asyncio.gather(*futures)] == list(range(20_000))
                assert (await (await out.send_many(name, [b"x"] * 10))).record_count == 10

            async def read() -> None:
                expected = 0
                async for record in inp:
                    assert record.offset == expected
                    expected += 1
                    if expected == 20_010:
                        return

            await asyncio.wait_for(asyncio.gather(write(), read()), 60)
            assert (await admin.describe_topics([name]))[0].name == name

    asyncio.run(main())


# --- when things go wrong --------------------------------------------------------------------------------------------


def test_broker_killed_in_mid_produce_loses_nothing_acknowledged(headrace_cluster: Any) -> None:
    bootstrap = headrace_cluster.bootstrap_servers
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("t", partitions=3)])
    stop = threading.Event()
    acknowledged: dict[tuple[int, int], bytes] = {}
    failures: list[BaseException] = []
    with Producer(bootstrap_servers=bootstrap, batch_size=4_000, delivery_timeout_ms=60_000) as out:
        futures: list[tuple[bytes, Any]] = []

        def produce() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                value = b"%d" % number
                futures.append((value, out.send("t", value)))
                if number % 500 == 0:
                    futures[-1][1].exception(60)  # the pace: 500 records ahead at most

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            for _ in range(2):
                _wait_for_sends(futures, 1_000)
                headrace_cluster.kill("broker", 1)
                headrace_cluster.restart("broker", 1)
                _wait_for_sends(futures, 1)  # it goes on
        finally:
            stop.set()
            thread.join()
        out.flush(60)
        for value, future in futures:
            if (error := future.exception(1)) is not None:
                failures.append(error)
            else:
                metadata = future.result()
                acknowledged[metadata.partition, metadata.offset] = value
    assert failures == []
    log = {(record.partition, record.offset): record.value for record in read_all(bootstrap, "t")}
    lost = {place: value for place, value in acknowledged.items() if log.get(place) != value}
    assert lost == {}
    assert len(acknowledged) == len(futures)


def test_consumer_goes_on_after_the_broker_was_killed(headrace_cluster: Any) -> None:
    bootstrap = headrace_cluster.bootstrap_servers
    with Producer(bootstrap_servers=bootstrap) as out, Consumer(bootstrap_servers=bootstrap) as inp:
        out.send("t", b"first").result(60)
        everywhere = [TopicPartition("t", number) for number in out.partitions_for("t")]
        inp.assign(everywhere)
        inp.seek_to_beginning()
        seen: list[bytes] = []
        until(lambda: seen.extend(record.value for record in inp.poll(0.5)) or seen == [b"first"])
        headrace_cluster.kill("broker", 1)
        assert inp.poll(0.3) == []
        headrace_cluster.restart("broker", 1)
        out.send("t", b"second").result(60)
        until(lambda: seen.extend(record.value for record in inp.poll(0.5)) or len(seen) == 2, within_s=40)
    assert seen == [b"first", b"second"]


def test_paused_broker_blocks_senders_and_nothing_fails(headrace_cluster: Any) -> None:
    with Producer(bootstrap_servers=headrace_cluster.bootstrap_servers, buffer_memory=200_000) as out:
        out.send("t", b"v").result(60)
        headrace_cluster.pause("broker", 1)
        futures: list[Any] = []
        thread = threading.Thread(target=lambda: futures.extend(out.send("t", b"x" * 1_000) for _ in range(500)))
        thread.start()
        try:
            until(lambda: out.metrics()["buffer-available-bytes"] == 0)
            thread.join(0.2)
            assert thread.is_alive()
        finally:
            headrace_cluster.resume("broker", 1)
        thread.join(60)
        out.flush(30)
        assert len(futures) == 500
        assert all(future.exception() is None for future in futures)


# --- processes -------------------------------------------------------------------------------------------------------


def run(code: str, bootstrap: str, topic: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": bootstrap, "TOPIC": topic},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


FORK = """
import json, os, sys
from headrace import Producer, Consumer, TopicPartition
topic, out = os.environ["TOPIC"], {}
def in_child(work):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = work()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(w, str(answer).encode())
        os._exit(0)
    os.close(w)
    answer = os.read(r, 10_000).decode()
    os.waitpid(pid, 0)
    return answer
def fresh():
    with Producer() as own:
        return own.send(topic, b"child", partition=0).result(60).partition
out["before any client"] = in_child(fresh)
producer = Producer()
producer.send(topic, b"parent", partition=0).result(60)
out["inherited"] = in_child(lambda: producer.send(topic, b"x"))
out["beside an open one"] = in_child(fresh)
out["parent goes on"] = producer.send(topic, b"parent", partition=0).result(60).partition
producer.close()
out["after all are closed"] = in_child(fresh)
print(json.dumps(out))
"""


def test_fork_gives_a_fresh_start_or_a_clear_error_never_a_hang(bootstrap: str, topic: str) -> None:
    done = run(FORK, bootstrap, topic)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["before any client"] == "0"
    assert "IllegalStateError: this producer was opened before the process forked" in out["inherited"]
    assert "IllegalStateError: this process was forked" in out["beside an open one"]
    assert out["parent goes on"] == 0
    assert out["after all are closed"] == "0"
    assert len(read_all(bootstrap, topic)) == 4


BESIDE = """
import json, os, signal, subprocess
from headrace import Producer
with Producer() as producer:
    codes = []
    for _ in range(100):
        producer.send(os.environ["TOPIC"], b"x", partition=0).result(60)
        started = subprocess.run(["true"], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        codes.append(started.returncode)
print(json.dumps(codes))
"""


def test_programs_that_are_started_beside_an_open_client_start(bootstrap: str, topic: str) -> None:
    """With a preexec_fn, Python's and gRPC's fork handlers run. PySpark starts Java with a preexec_fn. With gRPC's own
    fork handlers, one child in ten died."""
    done = run(BESIDE, bootstrap, topic)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0] * 100
    assert done.stderr == ""


def test_records_sent_and_forgotten_are_flushed_at_exit(bootstrap: str, topic: str) -> None:
    code = (
        "import os\nfrom headrace import Producer\np = Producer(linger_ms=5000)\n"
        "for n in range(1000): p.send(os.environ['TOPIC'], b'%d' % n, partition=0)"
    )
    done = run(code, bootstrap, topic)
    assert (done.returncode, done.stderr) == (0, "")
    assert [record.value for record in read_all(bootstrap, topic)] == [b"%d" % number for number in range(1000)]


INTERRUPTED = """
import faulthandler, os, sys, threading, time
from tests.worlds.readers import read_to_end
from headrace import Producer, Consumer, TopicPartition
faulthandler.dump_traceback_later(60, exit=True)  # where it waits, if the signal did not end it
def tell_when_the_main_thread_waits():
    main = threading.main_thread().ident
    def sleeps():  # a signal before the thread sleeps wakes nothing, and Python looks at it when the wait is over
        with open(f"/proc/self/task/{threading.main_thread().native_id}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "S"
    def names():  # of the functions that the main thread is in, the innermost first
        frame, found = sys._current_frames()[main], []
        while frame is not None:
            found.append(frame.f_code.co_name)
            frame = frame.f_back
        return found
    while (at := names())[0] != "wait" or "start" in at or not sleeps():  # "start": of this thread
        time.sleep(0.01)
    print("waiting", flush=True)
with Producer() as producer, Consumer() as consumer:
    producer.send(os.environ["TOPIC"], b"sent before", partition=0)
    consumer.assign([TopicPartition(os.environ["TOPIC"], 1)])
    try:
        threading.Thread(target=tell_when_the_main_thread_waits, daemon=True).start()
        {wait}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("closed", flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    ["consumer.poll(60)", "next(consumer)", "producer.send('x', b'v', partition=0).result(60) and consumer.poll(60)"],
)
def test_ctrl_c_ends_a_wait_at_once_and_close_still_flushes(bootstrap: str, topic: str, wait: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.replace("{wait}", wait)],
        env={**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": bootstrap, "TOPIC": topic},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)  # (the process ends itself before that)
    ended = time.monotonic()
    assert (out, process.returncode) == ("interrupted\nclosed\n", 0), errors
    assert [record.value for record in read_all(bootstrap, topic)] == [b"sent before"]
    check_in_time(begun, 30, "Ctrl-C ended the program", ended)


def _wait_for_sends(futures: list[tuple[bytes, Any]], count: int) -> None:
    """Wait until ``count`` more sends have been made, and the last of them has its outcome."""
    last = len(futures) + count - 1
    until(lambda: len(futures) > last and futures[last][1].done(), within_s=60)
