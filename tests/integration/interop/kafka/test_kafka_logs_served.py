"""Headrace serves a log that a real Kafka broker wrote, byte for byte, and Kafka serves a log of Headrace.

Kafka's own producers write the log: every codec, idempotent, transactional with commit and abort markers, headers,
nulls, rolled segments, one topic that Kafka compacts. The test copies the files into the partition's directory of a
stopped Headrace broker. The test copies once the files of a running Kafka (active indexes preallocated and padded with
zeros), and once the files after Kafka's clean stop. The broker's recovery checks the copied files at the start.

Marked `kafka`: needs Java, and Maven for Kafka's jars.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace import Admin, Consumer, Producer, TopicPartition
from headrace_core.log.dump import Problem, dump
from headrace_core.log.txn_index import read_entries
from headrace_core.records import Record, iterate_headers
from headrace_protos.v1 import fetch_pb2_grpc
from tests.integration.interop.kafka_peer import Consumed, KafkaBroker
from tests.worlds.broker_world import Cluster, Stream, Topic, fetch_partition, fetch_request
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEDGER = {"segment.bytes": "1048576", "index.interval.bytes": "1024"}
TABLE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
    "segment.ms": "300",
    "segment.bytes": "1048576",
}
#: (topic, when its files were copied)
COPIES = [(topic, moment) for topic in ("ledger", "table") for moment in ("running", "stopped")]
TIMES_ASKED = 40


@dataclass
class Written:
    """Kafka's files of a topic, and Kafka's answers about the topic."""

    consumed: list[Consumed]
    committed: list[Consumed]
    answers: dict[int, int]
    max_timestamp_offset: int
    files: dict[str, Path] = field(default_factory=dict)

    def log_bytes(self, moment: str) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.files[moment].glob("*.log")))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Kafka, which runs until the fixture ``written`` stops it."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def written(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    started = time.monotonic()

    def said(what: str) -> None:
        print(f"{what}: {time.monotonic() - started:.1f} s")

    kafka.create_topics({"ledger": LEDGER, "table": TABLE, "ours": {}})
    _write_ledger(kafka)
    said("ledger written")
    _write_table(kafka)
    said("table written and compacted")
    found = {}
    for name in ("ledger", "table"):
        consumed = kafka.consume(name)
        times = sorted({record.timestamp_ms for record in consumed})
        asked = times[:: max(len(times) // TIMES_ASKED, 1)]
        asked += [times[0] - 1, times[-1], times[-1] + 1, times[-1] + 10**9, *(ms + 1 for ms in asked[:10])]
        found[name] = Written(
            consumed,
            kafka.consume(name, isolation="read_committed"),
            kafka.offset_answers(name, asked),
            kafka.offset_of_max_timestamp(name),
        )
    for moment in ("running", "stopped"):
        if moment == "stopped":
            kafka.stop()
        for name, topic in found.items():
            topic.files[moment] = tmp_path_factory.mktemp(moment) / f"{name}-0"
            source, target = kafka.partition(name), topic.files[moment]
            until(functools.partial(_copied, source, target), "files that stay")
    return found


def _copied(source: Path, target: Path) -> bool:
    """Copy a partition's files, except the ones that are being deleted. Return False if Kafka renamed a file
    during the copy."""
    shutil.rmtree(target, ignore_errors=True)
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.deleted"))
    except shutil.Error:
        return False
    return not [path for path in target.iterdir() if not (source / path.name).exists()]


def _write_ledger(kafka: KafkaBroker) -> None:
    for number, codec in enumerate(CODECS):
        kafka.produce(
            "ledger",
            [
                (
                    {"trace": f"{number}-{index}", "empty": None} if index % 3 == 0 else {},
                    f"key-{index}" if index % 4 else None,
                    None if index % 11 == 0 else f"{codec}-{index}" * (index % 7 + 1),
                )
                for index in range(60)
            ],
            codec=codec,
            enable_idempotence="false" if codec == "gzip" else "true",
        )
        kafka.produce_load("ledger", 3_000, 200, transactional=codec in ("none", "lz4"), compression_type=codec)
    _transactions(kafka, "ledger")


def _transactions(kafka: KafkaBroker, topic: str) -> None:
    """Write interleaved transactions of two producers: committed, aborted, and one that begins again."""
    import confluent_kafka as ck

    settings = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0}
    producers = [ck.Producer({**settings, "transactional.id": f"{topic}-{number}"}) for number in range(2)]
    for producer in producers:
        producer.init_transactions(30)
    for round_ in range(4):
        for producer in producers:
            producer.begin_transaction()
        for index in range(6):
            for number, producer in enumerate(producers):
                text = f"txn-{round_}-{number}-{index}"
                producer.produce(topic, key=f"key-{index}", value=text, headers=[("round", f"{round_}".encode())])
                assert producer.flush(30) == 0
        producers[0].commit_transaction(30) if round_ % 2 else producers[0].abort_transaction(30)
        producers[1].abort_transaction(30) if round_ == 3 else producers[1].commit_transaction(30)


def _write_table(kafka: KafkaBroker) -> None:
    """Write the same keys in rounds, each into a separate segment, until Kafka's cleaner has cleaned the segments."""
    for round_ in range(2):
        for codec in CODECS:
            records = [
                ({}, f"{codec}-{index % 40}", None if index % 10 == round_ else f"{codec}-{round_}-{index}")
                for index in range(100)
            ]
            kafka.produce("table", records, codec=codec)
        _transactions(kafka, "table")
        written = time.monotonic()
        until(lambda since=written: time.monotonic() > since + 0.35, "segment.ms: what comes after it rolls")  # type: ignore[misc]
    kafka.produce("table", [({}, "last", "one")])
    directory = kafka.partition("table")

    def compacted() -> bool:
        """Everything but the newest segments went through the cleaner."""
        checkpoint = kafka.data / "cleaner-offset-checkpoint"
        cleaned = [line.split() for line in checkpoint.read_text().splitlines()] if checkpoint.exists() else []
        logs = sorted(directory.glob("*.log"))
        return any(line[:1] == ["table"] and int(line[2]) >= int(logs[-1].stem) for line in cleaned)

    until(compacted, "Kafka's cleaner", 60)
    until(lambda: not [*directory.glob("*.swap"), *directory.glob("*.cleaned")], "the swap to be over")


@pytest.fixture(scope="module")
def ours(written: dict[str, Written], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Headrace broker with a topic for each copy. Kafka's files were put in place while the broker was stopped."""
    # The cleaner is off: Headrace's cleaner would clean the compacted topic again at once.
    with Cluster(tmp_path_factory.mktemp("headrace"), **{"log.cleaner.enable": "false"}) as cluster:
        for name, moment in COPIES:
            config = TABLE if name == "table" else LEDGER
            cluster.topic(f"{name}-{moment}", **{key.replace(".", "_"): text for key, text in config.items()})
        assert cluster.broker.terminate() == 0
        for name, moment in COPIES:
            directory = _directory(cluster, f"{name}-{moment}")
            left_out = {"partition.metadata"}  # the topic has Headrace's id
            if moment == "stopped":  # as in docs/operations/kafka-logs.md; Kafka's file without a checksum works too
                left_out.add("leader-epoch-checkpoint")
            for path in directory.iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            for path in written[name].files[moment].iterdir():
                if path.name not in left_out:
                    shutil.copyfile(path, directory / path.name)
        cluster.restart()
        yield cluster


def _directory(cluster: Cluster, topic: str) -> Path:
    return cluster.broker.data / f"{topic}-0"


def _raw(cluster: Cluster, name: str) -> bytes:
    """The bytes of the whole partition, read by fetches."""
    topic = Topic(cluster, name, b"")
    end = until(lambda: topic.end(), "the partition to be led", 20)
    found, offset = b"", 0
    with Stream(fetch_pb2_grpc.FetchStub(cluster.channel).Fetch) as stream:
        request = fetch_request(1, fetch_partition(name, offset))
        while offset < end:
            stream.send(request)
            for result in stream.receive().results:
                assert not result.error.code, result.error
                found += result.records
                offset = result.next_offset
            request = fetch_request(1)
    return found


def _consumed(bootstrap: str, name: str, end: int, isolation: str = "read_uncommitted") -> list[Consumed]:
    """The records that Headrace's consumer reads, in the form of Kafka's output."""
    partition = TopicPartition(name, 0)
    found: list[Consumed] = []
    with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        while consumer.position(partition) < end:
            found += [_as_text(record) for record in consumer.poll(timeout=5)]
    return found


def _as_text(record: Record) -> Consumed:
    return Consumed(
        record.offset,
        record.timestamp_ms,
        tuple((name, None if content is None else content.decode()) for name, content in record.headers),
        None if record.key is None else record.key.decode(),
        None if record.value is None else record.value.decode(),
    )


def test_the_logs_have_what_the_test_is_about(written: dict[str, Written]) -> None:
    """The copied logs contain every codec, producer ids, transactions, markers, rolled segments, gaps, tombstones with
    delete horizons, and padding."""
    for name, topic in written.items():
        headers = [header for _, header in iterate_headers(topic.log_bytes("stopped"))]
        assert {header.compression.name.lower() for header in headers} == set(CODECS)
        assert any(header.is_control for header in headers)
        assert any(header.is_transactional and not header.is_control for header in headers)
        assert any(header.producer_id >= 0 and not header.is_transactional for header in headers)
        assert topic.committed != topic.consumed or name == "table"
        running = topic.files["running"]
        active = max(running.glob("*.log")).with_suffix(".index")
        assert active.stat().st_size > 1 << 20, "the test wants an index that Kafka preallocated"
        assert list(running.glob("*.txnindex"))
        assert list(running.glob("*.snapshot"))
    ledger = written["ledger"]
    assert len(list(ledger.files["stopped"].glob("*.log"))) > 2
    assert {record.key is None for record in ledger.consumed} == {True, False}
    assert any(record.value is None for record in ledger.consumed)
    assert any(record.headers for record in ledger.consumed)
    table = written["table"]
    offsets = [record.offset for record in table.consumed]
    assert len(offsets) < offsets[-1] // 2, "the test wants a compacted log"
    assert any(header.attributes & 0x40 for _, header in iterate_headers(table.log_bytes("stopped")))


@pytest.mark.parametrize(("name", "moment"), COPIES)
def test_fetched_bytes_are_the_files_bytes(ours: Cluster, written: dict[str, Written], name: str, moment: str) -> None:
    assert _raw(ours, f"{name}-{moment}") == written[name].log_bytes(moment)


@pytest.mark.parametrize(("name", "moment"), COPIES)
def test_records_are_those_of_kafkas_consumer(
    ours: Cluster, written: dict[str, Written], name: str, moment: str
) -> None:
    end = until(lambda: Topic(ours, f"{name}-{moment}", b"").end(), "the partition to be led")
    assert _consumed(ours.broker.address(), f"{name}-{moment}", end) == written[name].consumed


@pytest.mark.parametrize(("name", "moment"), COPIES)
def test_committed_records_are_those_of_kafkas_consumer(
    ours: Cluster, written: dict[str, Written], name: str, moment: str
) -> None:
    end = until(lambda: Topic(ours, f"{name}-{moment}", b"").end(), "the partition to be led")
    found = _consumed(ours.broker.address(), f"{name}-{moment}", end, "read_committed")
    assert found == written[name].committed


@pytest.mark.parametrize(("name", "moment"), COPIES)
def test_offsets_by_time_are_kafkas(ours: Cluster, written: dict[str, Written], name: str, moment: str) -> None:
    topic, found = Topic(ours, f"{name}-{moment}", b""), written[name]
    assert {ms: topic.offset_of(ms).offset for ms in found.answers} == found.answers
    assert topic.offset_of(-3).offset == found.max_timestamp_offset


@pytest.mark.parametrize(("name", "moment"), COPIES)
def test_recovery_judges_and_repairs_what_kafka_left(
    ours: Cluster, written: dict[str, Written], name: str, moment: str
) -> None:
    """Padded indexes are rebuilt; so are transaction indexes, which then have Kafka's bytes. Kafka's snapshots stay
    unchanged."""
    directory = _directory(ours, f"{name}-{moment}")
    source = written[name].files[moment]
    for path in source.iterdir():
        if path.suffix in (".log", ".snapshot") or (path.suffix == ".txnindex" and name == "ledger"):
            assert (directory / path.name).read_bytes() == path.read_bytes(), path.name
        elif path.suffix == ".txnindex" and (directory / path.name).exists():
            # Kafka's cleaner keeps entries of transactions whose records it removed. A rebuild begins an entry at the
            # first remaining record, and makes none where no record remains.
            rebuilt, kafkas = (read_entries((where / path.name).read_bytes()) for where in (directory, source))
            begun = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in kafkas}
            assert all(begun[each.producer_id, each.last_offset] <= each.first_offset for each in rebuilt), path.name
    assert all(path.stat().st_size < 1 << 20 for path in directory.glob("*.index"))
    assert (directory / "leader-epoch-checkpoint").exists()
    # The indexes of the active segment are complete when the segment is closed.
    problems = [line for line in dump(str(directory), deep=True) if isinstance(line, Problem)]
    assert [str(line) for line in problems if "begins with offset" not in line.what] == []


def test_a_log_of_kafkas_goes_on_under_our_producer(ours: Cluster, written: dict[str, Written]) -> None:
    """The test of appends is the last test that uses the copies, because it appends to the copies."""
    name, before = "ledger-stopped", written["ledger"]
    end = until(lambda: Topic(ours, name, b"").end(), "the partition to be led")
    with Producer(bootstrap_servers=ours.broker.address()) as producer:
        metadata = producer.send(name, value=b"ours", key=b"k").result(timeout=60)
    assert metadata.offset == end
    assert _raw(ours, name).startswith(before.log_bytes("stopped"))
    assert _consumed(ours.broker.address(), name, end + 1)[:-1] == before.consumed


def test_a_log_of_ours_is_served_by_kafka(kafka: KafkaBroker, written: dict[str, Written], tmp_path: Path) -> None:
    """The opposite direction: Kafka's recovery opens a partition's directory of Headrace, and Kafka's consumer returns
    the records."""
    assert "ours" not in written  # Kafka is stopped by now
    with Cluster(tmp_path) as cluster:
        bootstrap = cluster.broker.address()
        with Admin(bootstrap_servers=bootstrap):
            topic = cluster.topic("ours", segment_bytes="20000", index_interval_bytes="1024")
        for codec in CODECS:
            with Producer(
                bootstrap_servers=bootstrap, compression_type=codec, linger_ms=0, batch_size=1000
            ) as producer:
                for index in range(500):
                    producer.send(
                        "ours",
                        value=None if index % 50 == 0 else b"%s-%d" % (codec.encode(), index) * 5,
                        key=b"key-%d" % index if index % 3 else None,
                        headers=[("n", b"%d" % index)] if index % 5 == 0 else None,
                    )
        end = topic.end()
        expected = _consumed(bootstrap, "ours", end)
        assert cluster.broker.terminate() == 0
        source = _directory(cluster, "ours")
        assert len(list(source.glob("*.log"))) > 2
        directory = kafka.partition("ours")
        for path in directory.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in source.iterdir():
            if path.name != "partition.metadata":
                shutil.copyfile(path, directory / path.name)
    (kafka.data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    kafka.start()
    try:
        assert kafka.consume("ours") == expected
        assert len(expected) == end == 500 * len(CODECS)
        assert b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))) == b"".join(
            path.read_bytes() for path in sorted(source.glob("*.log"))
        )
    finally:
        kafka.stop()
