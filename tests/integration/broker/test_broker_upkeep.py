"""Effects of retention and compaction that a user of the SDK sees, on real processes."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace import Admin, ConfigResource, Consumer, NewTopic, Producer, Record, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.broker_world import Cluster
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import check_in_time, until

#: Intervals of upkeep that are so short that the tests need not wait.
QUICK = {
    "log.initial.task.delay.ms": "50",
    "log.retention.check.interval.ms": "100",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.dedupe.buffer.size": "4194304",
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("upkeep"), **QUICK) as running:
        yield running


def create(cluster: Cluster, name: str, **config: str) -> TopicPartition:
    with Admin(bootstrap_servers=cluster.broker.address()) as admin:
        admin.create_topics(
            [NewTopic(name, partitions=1, config={key.replace("_", "."): value for key, value in config.items()})]
        )
    return TopicPartition(name, 0)


def records_of(cluster: Cluster, partition: TopicPartition) -> list[Record]:
    """Read all records of the partition from start to end, as a new consumer does. Offsets must ascend."""
    with Consumer(bootstrap_servers=cluster.broker.address(), auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        found = read_to_end(consumer)
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    return found


def table_of(records: list[Record]) -> dict[bytes, bytes | None]:
    return {record.key: record.value for record in records if record.key is not None}


def files_of(cluster: Cluster, partition: TopicPartition, suffix: str = ".log") -> list[str]:
    directory = cluster.broker.data / f"{partition.topic}-{partition.partition}"
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffix))


def produce(cluster: Cluster, topic: str, pairs: list[tuple[bytes, bytes | None]]) -> None:
    with Producer(bootstrap_servers=cluster.broker.address(), batch_size=2048) as producer:
        for key, value in pairs:
            producer.send(topic, value, key=key, partition=0)


def test_a_compacted_topic_keeps_the_last_value_of_each_key(quick: Cluster) -> None:
    partition = create(
        quick,
        "table",
        cleanup_policy="compact",
        segment_bytes="4096",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="100",
    )
    rng = random.Random(7)
    wanted: dict[bytes, bytes | None] = {}

    def write(count: int) -> None:
        pairs: list[tuple[bytes, bytes | None]] = []
        for number in range(count):
            key = b"key-%02d" % rng.randrange(20)
            pairs.append((key, None if rng.random() < 0.1 else b"value %d " % number + b"." * 80))
        wanted.update(dict(pairs))
        produce(quick, "table", pairs)

    write(600)
    for key in (b"key-03", b"key-11"):
        produce(quick, "table", [(key, None)])
        wanted[key] = None
    produce(quick, "table", [(b"last", b"fills a segment " + b"." * 4000), (b"active", b"stays")])
    wanted |= {b"last": b"fills a segment " + b"." * 4000, b"active": b"stays"}
    values = {key: value for key, value in wanted.items() if value is not None}

    def cleaned() -> bool:
        found = records_of(quick, partition)
        table = table_of(found)
        assert {key: value for key, value in table.items() if value is not None} == values
        return len(found) <= len(wanted)

    until(cleaned, "the topic to be compacted")

    def buried() -> bool:
        produce(quick, "table", [(b"last", b"another " + b"." * 4000), (b"active", b"stays")])
        return not any(record.value is None for record in records_of(quick, partition))

    until(buried, "the tombstones to go")
    values[b"last"] = b"another " + b"." * 4000
    assert table_of(records_of(quick, partition)) == values
    # The log line is written after the swap, and readers see the swap at once.
    until(lambda: quick.broker.log().count("LogCleaned partition=table-0") > 1, "the second cleaning to be told")
    assert "LogUncleanable" not in quick.broker.log()
    quick.broker.terminate()
    quick.restart()
    assert table_of(records_of(quick, partition)) == values


def test_old_records_go_by_time_and_the_idle_log_goes_on_at_its_end(quick: Cluster) -> None:
    partition = create(quick, "by-time", retention_ms="1500", segment_bytes="4096", file_delete_delay_ms="0")
    produce(quick, "by-time", [(b"k", b"v" * 500)] * 50)
    until(lambda: records_of(quick, partition) == [], "every record to be too old")
    assert files_of(quick, partition) == [f"{50:020d}.log"]
    until(lambda: files_of(quick, partition, ".deleted") == [], "the files to be removed")
    # From here on retention may not delete the record before the consumer has read it, however slow the machine is.
    with Admin(bootstrap_servers=quick.broker.address()) as admin:
        admin.alter_configs({ConfigResource("topic", "by-time"): {"retention.ms": "-1"}})
    produce(quick, "by-time", [(b"k", b"again")])
    assert [(record.offset, record.value) for record in records_of(quick, partition)] == [(50, b"again")]
    until(lambda: "why=retention.ms" in quick.broker.log(), "it to be told")


def test_old_records_go_by_size_also_when_the_limit_is_altered(quick: Cluster) -> None:
    partition = create(quick, "by-size", retention_bytes="20000", segment_bytes="4096", file_delete_delay_ms="60000")
    produce(quick, "by-size", [(b"k", b"%03d" % number + b"v" * 500) for number in range(200)])

    def bytes_left() -> int:
        return sum(record.value is not None and len(record.value) for record in records_of(quick, partition))

    until(lambda: bytes_left() < 25_000, "the log to shrink")
    left = records_of(quick, partition)
    assert [record.offset for record in left] == list(range(left[0].offset, 200))
    assert bytes_left() > 15_000
    assert files_of(quick, partition, ".log.deleted"), "they stay for file.delete.delay.ms"
    with Admin(bootstrap_servers=quick.broker.address()) as admin:
        admin.alter_configs({ConfigResource("topic", "by-size"): {"retention.bytes": "5000"}})
    until(lambda: bytes_left() < 9_000, "the new limit to hold")
    start = records_of(quick, partition)[0].offset
    assert start > left[0].offset
    with Consumer(bootstrap_servers=quick.broker.address()) as consumer:
        assert consumer.beginning_offsets([partition]) == {partition: start}


def test_the_cleaner_obeys_its_broker_keys_without_a_restart(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(**{**QUICK, "log.cleaner.threads": "1", "log.cleaner.dedupe.buffer.size": "4194304"})
    partition = create(cluster, "t", cleanup_policy="compact", segment_bytes="100000", min_cleanable_dirty_ratio="0.01")

    def alter(**keys: str) -> None:
        with Admin(bootstrap_servers=cluster.broker.address()) as admin:
            admin.alter_configs(
                {ConfigResource("broker", ""): {key.replace("_", "."): value for key, value in keys.items()}}
            )

    alter(log_cleaner_threads="2", log_cleaner_io_max_bytes_per_second="1000")
    produce(cluster, "t", [(b"k%d" % (number % 5), b"." * 900) for number in range(200)])
    assert "LogCleaned" not in cluster.broker.log(), "at 1000 bytes a second it cannot be done yet"
    alter(log_cleaner_io_max_bytes_per_second="1e9")
    until(lambda: len(records_of(cluster, partition)) < 120, "the throttle to be lifted")
    started = time.monotonic()
    assert cluster.broker.terminate() == 0
    check_in_time(started, 30, "the broker stopped")


def test_retention_obeys_its_broker_keys_without_a_restart(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(**{**QUICK, "log.retention.check.interval.ms": "3600000"})
    partition = create(cluster, "t")
    produce(cluster, "t", [(b"k", b"v")] * 10)
    with Admin(bootstrap_servers=cluster.broker.address()) as admin:
        admin.alter_configs({ConfigResource("broker", ""): {"log.retention.ms": "200"}})
        admin.alter_configs({ConfigResource("broker", ""): {"log.retention.check.interval.ms": "50"}})
    until(lambda: records_of(cluster, partition) == [], "the records to go")


class Reader(threading.Thread):
    """Reads a topic from start to end, repeatedly, and checks the records."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, last: dict[bytes, int], stop: threading.Event):
        super().__init__(daemon=True)
        self.address, self.partition, self.last, self.stop = cluster.broker.address(), partition, last, stop
        self.passes = self.jumps = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set() or self.passes < 2:
                self.read_all()
                self.passes += 1
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            self.failure = error

    def read_all(self) -> None:
        before = dict(self.last)  # acknowledged before the pass begins
        seen: dict[bytes, int] = {}
        with Consumer(bootstrap_servers=self.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([self.partition])
            position = -1
            deadline = time.monotonic() + 60
            while True:
                end = consumer.end_offsets([self.partition])[self.partition]
                is_at_end = consumer.position(self.partition) >= end
                while consumer.position(self.partition) < end:
                    if time.monotonic() >= deadline:
                        raise NotInTimeError("a consumer stands still")
                    for record in consumer.poll(0.2, max_records=10_000):
                        assert record.offset > position, f"{record.offset} after {position}"
                        self.jumps += record.offset > position + 1
                        position = record.offset
                        assert record.key is not None
                        assert record.value is not None
                        number = json.loads(record.value)["n"]
                        assert number > seen.get(record.key, -1), "an older value after a newer one"
                        seen[record.key] = number
                missing = {key: (seen.get(key), number) for key, number in before.items() if seen.get(key, -1) < number}
                # Compaction may remove an unread value because a newer value exists beyond ``end``. The reader
                # therefore continues until it finds the newer value.
                if not missing or is_at_end:
                    break
        assert not missing, f"lost the last value of {missing}"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("open_files", ["1000", "16"])
def test_consumers_read_while_compaction_and_deletion_run(
    make_cluster: Callable[..., Cluster], open_files: str, seed: int
) -> None:
    """Readers get no record twice or out of order, lose no last value of a key, and meet no closed file, even with few
    descriptors."""
    cluster = make_cluster(**{**QUICK, "log.retention.check.interval.ms": "20", "log.open.files.max": open_files})
    partition = create(
        cluster,
        "busy",
        cleanup_policy="compact,delete",
        retention_ms="600000",
        segment_bytes="3000",
        min_cleanable_dirty_ratio="0.01",
        file_delete_delay_ms="0",
    )
    rng = random.Random(seed)
    last: dict[bytes, int] = {}
    stop = threading.Event()
    readers = [Reader(cluster, partition, last, stop) for _ in range(2)]
    for reader in readers:
        reader.start()
    number = 0
    deadline = time.monotonic() + 3
    with Producer(bootstrap_servers=cluster.broker.address(), batch_size=1024) as producer:
        while not any(reader.failure for reader in readers):
            has_met_it = all(reader.passes >= 2 and reader.jumps for reader in readers)
            if time.monotonic() > (deadline if has_met_it else deadline + 60):
                break
            sent = {}
            for _ in range(rng.randrange(1, 200)):
                key = b"key-%d" % rng.randrange(30)
                producer.send("busy", json.dumps({"n": number, "pad": "." * 50}).encode(), key=key, partition=0)
                sent[key] = number
                number += 1
            producer.flush()
            last.update(sent)
    stop.set()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
        if reader.failure is not None:
            raise reader.failure
        assert reader.passes >= 2
        assert reader.jumps > 0, "nothing was compacted while it read"
    until(lambda: "LogCleaned partition=busy-0" in cluster.broker.log(), "a cleaning to be told")
    log = cluster.broker.log()
    assert "LogUncleanable" not in log
    assert "Traceback" not in log


@pytest.mark.timeout(180)
def test_a_consumer_that_retention_overtakes_goes_on_at_the_start_and_misses_nothing_else(
    make_cluster: Callable[..., Cluster], seed: int
) -> None:
    """Offsets jump only if the log start has moved above them. The test also uses DeleteRecords."""
    cluster = make_cluster(**{**QUICK, "log.retention.check.interval.ms": "20"})
    partition = create(
        cluster, "short", retention_bytes="30000", segment_bytes="4000", file_delete_delay_ms="0", segment_ms="100"
    )
    address, rng = cluster.broker.address(), random.Random(seed)
    stop, failures, jumps, read = threading.Event(), [], [], [0]

    def follow() -> None:
        try:
            with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
                while not stop.is_set():
                    consumer.assign([partition])
                    consumer.seek_to_beginning([partition])
                    expected = None
                    for _ in range(rng.randrange(5, 60)):
                        for record in consumer.poll(0.05, max_records=rng.choice([1, 20, 500])):
                            if expected is not None and record.offset != expected:
                                assert record.offset > expected, f"{record.offset} after {expected - 1}"
                                start = consumer.beginning_offsets([partition])[partition]
                                assert start > expected, f"{record.offset} after {expected - 1}, start {start}"
                                jumps.append(record.offset)
                            assert record.value is not None
                            assert record.value.startswith(b"%d " % record.offset)
                            expected = record.offset + 1
                            read[0] += 1
                        stop.wait(rng.random() / 50)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    number, deadline = 0, time.monotonic() + 3
    with (
        Producer(bootstrap_servers=address, batch_size=1024) as producer,
        Admin(bootstrap_servers=address) as admin,
    ):
        while not failures and (time.monotonic() < deadline or not jumps) and time.monotonic() < deadline + 30:
            for _ in range(200):
                producer.send("short", b"%d " % number + b"." * 60, partition=0)
                number += 1
            producer.flush()
            if rng.random() < 0.2:
                admin.delete_records({partition: number - rng.randrange(200)})
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]
    assert jumps, "retention never overtook the reader"
    assert read[0] > 100
    assert "Traceback" not in cluster.broker.log()


@pytest.mark.timeout(180)
def test_a_broker_killed_while_it_compacts_and_deletes_loses_no_last_value(
    make_cluster: Callable[..., Cluster], seed: int
) -> None:
    cluster = make_cluster(**{**QUICK, "log.retention.check.interval.ms": "20", "log.cleaner.backoff.ms": "1"})
    partition = create(
        cluster,
        "table",
        cleanup_policy="compact,delete",  # or DeleteRecords is refused
        retention_ms="-1",
        segment_bytes="3000",
        min_cleanable_dirty_ratio="0.01",
        file_delete_delay_ms="0",
    )
    rng = random.Random(seed)
    wanted: dict[bytes, bytes] = {}
    for life in range(4):
        for number in range(rng.randrange(2, 5)):
            pairs = [(b"key-%d" % rng.randrange(25), b"%d %d %d" % (life, number, at) + b"." * 60) for at in range(300)]
            produce(cluster, "table", list(pairs))
            wanted.update(pairs)
            if number == 1:
                with Admin(bootstrap_servers=cluster.broker.address()) as admin:
                    start = records_of(cluster, partition)[0].offset
                    # moves files, and removes no record that is the last of its key
                    admin.delete_records({partition: start})
        cluster.broker.kill()
        cluster.restart()
        assert table_of(records_of(cluster, partition)) == wanted, f"life {life}"
    # Each run of the broker can be too short for a cleaning. The last run lasts until the cleaning is done.
    until(lambda: "LogCleaned partition=table-0" in cluster.broker.log(), "a cleaning")
    assert table_of(records_of(cluster, partition)) == wanted
    log = cluster.broker.log()
    assert "LogUncleanable" not in log
    assert "quarantined" not in log
