"""Headrace serves a log with transactions that a real Kafka broker wrote, with the answers that Kafka gives. The
answers are the last stable offset, the aborted transactions, and the bytes of the transaction indexes. Kafka's
DumpLogSegments reads Headrace's transaction indexes.

Marked `kafka`: needs Java, and Maven for Kafka's jars.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace_core.clock import SystemClock
from headrace_core.log import LogConfig, PartitionLog, RealFileSystem
from headrace_core.log.dump import AbortedLine, Problem, dump
from headrace_core.log.verify import verify
from headrace_core.types import TopicPartition
from tests.integration.interop.kafka_peer import KafkaBroker
from tests.worlds.log_world import committed_values

pytestmark = pytest.mark.timeout(600)

TOPIC = "payments"
ROUNDS = 14
RECORDS, RECORD_BYTES = 60, 2_000


@dataclass
class Written:
    """Kafka's files of the topic, and Kafka's answers about the topic."""

    files: Path
    stable_offset: int
    end_offset: int
    committed: list[tuple[int, str]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def written(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Written:
    import confluent_kafka as ck

    kafka.create_topics({TOPIC: {"segment.bytes": "1048576", "index.interval.bytes": "1024"}})
    settings = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "transaction.timeout.ms": 600_000}
    producers = [ck.Producer({**settings, "transactional.id": f"p{number}"}) for number in range(3)]
    for producer in producers:
        producer.init_transactions(30)

    def produce(number: int, round_: int, records: int) -> None:
        for index in range(records):
            producers[number].produce(TOPIC, key=f"{index}", value=f"{round_}-{number}-{index}".ljust(RECORD_BYTES))
        assert producers[number].flush(30) == 0

    for round_ in range(ROUNDS):
        for number in (0, 1):
            producers[number].begin_transaction()
            produce(number, round_, RECORDS)
        producers[0].abort_transaction(30) if round_ % 3 else producers[0].commit_transaction(30)
        produce(1, round_, 2)
        producers[1].abort_transaction(30) if round_ % 2 else producers[1].commit_transaction(30)
    producers[2].begin_transaction()  # stays open
    produce(2, ROUNDS, 3)
    producers[0].begin_transaction()
    produce(0, ROUNDS, 2)
    producers[0].abort_transaction(30)
    files = tmp_path_factory.mktemp("files") / f"{TOPIC}-0"
    offsets = {}
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "isolation.level": isolation})
        offsets[isolation] = consumer.get_watermark_offsets(ck.TopicPartition(TOPIC, 0), timeout=30)[1]
        consumer.close()
    committed = _committed(kafka.bootstrap)
    shutil.copytree(kafka.partition(TOPIC), files)
    kafka.stop(cleanly=False)
    return Written(files, offsets["read_committed"], offsets["read_uncommitted"], committed)


def _committed(bootstrap: str) -> list[tuple[int, str]]:
    """(offset, value) of all records that Kafka's read_committed consumer gets."""
    import confluent_kafka as ck

    settings = {"group.id": "g", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([ck.TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[int, str]] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "Kafka gave no record within 60 s"
            if message.error():
                assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
                return found
            found.append((message.offset(), (message.value() or b"").decode()))
    finally:
        consumer.close()


def _opened(directory: Path) -> PartitionLog:
    """The log of the copied files, opened as after an unclean stop."""
    return PartitionLog.open(
        RealFileSystem(),
        str(directory),
        TopicPartition(TOPIC, 0),
        LogConfig(segment_bytes=1 << 20),
        clock=SystemClock(),
        high_watermark=0,
    )


def _txn_indexes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.txnindex"))}


@pytest.fixture
def copied(written: Written, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written.files, tmp_path / written.files.name))


def test_the_log_has_what_the_test_is_about(written: Written) -> None:
    assert len(list(written.files.glob("*.log"))) > 3
    assert len(_txn_indexes(written.files)) > 2
    assert written.stable_offset < written.end_offset


@pytest.mark.parametrize("lost", [False, True], ids=["with its indexes", "without them"])
def test_rebuilt_transaction_indexes_are_kafkas_byte_for_byte(written: Written, copied: Path, lost: bool) -> None:
    if lost:
        for path in [*copied.glob("*.txnindex"), *copied.glob("*.snapshot")]:
            path.unlink()
    log = _opened(copied)
    assert _txn_indexes(copied) == _txn_indexes(written.files)
    assert log.last_stable_offset(written.end_offset) == written.stable_offset
    log.close()
    assert not [line for line in verify(str(copied)) if isinstance(line, Problem) and "txnindex" in line.path]


@pytest.mark.parametrize("max_bytes", [20_000, 300_000])
def test_read_committed_records_are_those_of_kafkas_consumer(written: Written, copied: Path, max_bytes: int) -> None:
    log = _opened(copied)
    found: list[tuple[int, str]] = []
    offset = 0
    while offset < written.stable_offset:
        result = log.read(offset, max_bytes, written.stable_offset)
        assert result is not None
        listed = log.aborted_transactions(offset, result.next_offset)
        aborted = [(each.producer_id, each.first_offset) for each in listed]
        found += [(at, value.decode()) for at, value in committed_values(result.records, offset, aborted)]
        offset = result.next_offset
    log.close()
    assert found == written.committed
    committed = [RECORDS * (round_ % 3 == 0) + (RECORDS + 2) * (round_ % 2 == 0) for round_ in range(ROUNDS)]
    assert len(found) == sum(committed)


def test_kafka_reads_our_transaction_indexes(written: Written, copied: Path, kafka: KafkaBroker) -> None:
    _opened(copied).close()
    for path in sorted(copied.glob("*.txnindex")):
        ours = [
            f"version: {line.version} producerId: {line.producer_id} firstOffset: {line.first_offset} lastOffset: "
            f"{line.last_offset} lastStableOffset: {line.last_stable_offset}"
            for line in dump(str(path))
            if isinstance(line, AbortedLine)
        ]
        assert ours
        output = kafka.dump("--files", str(path))
        assert [line for line in output.splitlines() if line.startswith("version:")] == ours
