"""Apache Kafka's tools read our transactions: ``__transaction_state`` in every state, markers, producer snapshots and
transaction indexes. Kafka reads the same records from a Headrace log with transactions. Headrace reads Kafka's
``__transaction_state``.

Marked `kafka`: needs Java, and Maven for Kafka's jars. When these tests are selected and Java or a jar is missing, they
fail; they are not skipped.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_coordinator.state_machine import Decision, RecordKind, ShardRecord, kind_of
from headrace_coordinator.transaction.codec import decode_key, decode_value
from headrace_coordinator.transaction.messages import (
    AbortSinkBatch,
    AddPartitions,
    CommitSinkBatch,
    CompleteTransaction,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    PrepareTransaction,
    WriteMarkers,
)
from headrace_coordinator.transaction.state import NO_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState
from headrace_coordinator.transaction.transactions import TransactionSettings, TransactionsStateMachine
from headrace_core.clock import SystemClock
from headrace_core.log import LogConfig, PartitionLog, RealFileSystem
from headrace_core.log.dump import AbortedLine, ProducerLine, RecordLine, dump
from headrace_core.records import encode_batch
from headrace_core.sinks import SinkTransaction, sink_id
from tests.integration.interop.kafka_peer import KafkaBroker
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)

NOW_MS = 1_700_000_000_000
SHARD_EPOCH = 7
TOPIC = "payments"
ROUNDS = 12
EXPIRATION_MS = 60_000
P = TransactionState

#: A record in the output of DumpLogSegments with a decoder.
LINE = re.compile(r"^\| offset: (\d+) .*? key: (.*?)(?: payload: (.*))?$", re.MULTILINE)


class Line(NamedTuple):
    offset: int
    key: str
    value: str


def decoded(kafka: KafkaBroker, *segments: Path) -> list[Line]:
    """Return the records of ``__transaction_state`` that Kafka's decoder prints."""
    output = kafka.dump("--transaction-log-decoder", "--files", ",".join(map(str, segments)))
    assert "isvalid: false" not in output.lower(), output
    return [Line(int(offset), key, value) for offset, key, value in LINE.findall(output)]


def as_kafka_prints(transactional_id: str, transaction: Transaction | None) -> tuple[Any, Any]:
    """Return the key and value that Kafka's decoder prints for a Headrace record."""
    key = {"type": "0", "data": {"transactionalId": transactional_id}}
    if transaction is None:
        return key, "<DELETE>"
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        partitions.setdefault(topic, []).append(partition)
    data: dict[str, object] = {
        "producerId": transaction.producer_id,
        "producerEpoch": transaction.producer_epoch,
        "transactionTimeoutMs": transaction.timeout_ms,
        "transactionStatus": int(transaction.state),
        "transactionPartitions": None
        if transaction.state is P.EMPTY
        else [{"topic": topic, "partitionIds": ids} for topic, ids in partitions.items()],
        "transactionLastUpdateTimestampMs": transaction.updated_ms,
        "transactionStartTimestampMs": transaction.started_ms,
    }
    tagged = {
        "previousProducerId": (transaction.previous_producer_id, NO_PRODUCER_ID),
        "nextProducerId": (transaction.next_producer_id, NO_PRODUCER_ID),
        "clientTransactionVersion": (transaction.version, 0),
        "nextProducerEpoch": (transaction.next_producer_epoch, NO_EPOCH),
    }
    data |= {name: value for name, (value, default) in tagged.items() if value != default}
    return key, {"version": "1", "data": data}


class _Shard:
    """A transaction shard that keeps its records for the test. The largest producer epoch is 6."""

    def __init__(self) -> None:
        ids = itertools.count(1_000)
        settings = TransactionSettings(
            epoch_max=6, expiration_ms=EXPIRATION_MS, expiration_interval_ms=1, may_have_no_timeout=True
        )
        self.machine = TransactionsStateMachine(lambda: next(ids), settings)
        self.machine.loaded(NOW_MS)
        self.records: list[ShardRecord] = []
        self.now_ms = NOW_MS

    def ask(self, request: Any, *, are_markers_written: bool = True) -> Any:
        self.now_ms += 1
        return self.decide(self.machine.handle(request, self.now_ms), are_markers_written=are_markers_written)

    def decide(self, decision: Decision, *, are_markers_written: bool = True) -> Any:
        self.records += decision.records
        for push in decision.pushes:
            if isinstance(push, WriteMarkers) and are_markers_written:
                self.ask(MarkersWritten(push.transactional_id, push.identity, push.partitions))
        return decision.reply


def _every_state() -> list[ShardRecord]:
    """Write records of every state: empty, ongoing, prepared, decided and complete, with ids of each kind."""
    shard = _Shard()
    one = frozenset({TopicPartition("orders", 0)})
    many = frozenset(TopicPartition(topic, number) for topic in ("orders", "p" * 249) for number in range(30))
    for name, version in (("new", 2), ("old", 1), ("grüße 世界", 2)):
        for commit in (True, False):
            identity = shard.ask(InitProducerId(name, 60_000)).identity
            shard.ask(AddPartitions(name, identity, one, version))
            shard.ask(AddPartitions(name, identity, many, version))
            shard.ask(EndTransaction(name, identity, commit, version))
    identity = shard.ask(InitProducerId("exhausted", 2_147_483_647, has_no_timeout=True)).identity
    for number in range(9):  # the epochs run out in the middle
        shard.ask(AddPartitions("exhausted", identity, one))
        identity = shard.ask(EndTransaction("exhausted", identity, commit=number % 2 == 0))
    for name in ("kept", "kept-by-another"):
        identity = shard.ask(InitProducerId(name, 60_000)).identity
        shard.ask(AddPartitions(name, identity, one))
        token = shard.ask(PrepareTransaction(name, identity))
        shard.ask(InitProducerId(name, 60_000, keep_prepared=True))
        shard.ask(CompleteTransaction(name, token, commit=name == "kept"))
    shard.decide(shard.machine.tick(shard.now_ms + 2 * EXPIRATION_MS))  # tombstones
    shard.now_ms += 2 * EXPIRATION_MS
    identity = shard.ask(InitProducerId("held-back", 60_000)).identity
    shard.ask(AddPartitions("held-back", identity, many))
    shard.ask(EndTransaction("held-back", identity, commit=True), are_markers_written=False)
    identity = shard.ask(InitProducerId("open", 60_000)).identity
    shard.ask(AddPartitions("open", identity, one))
    return shard.records


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Tests that need a running broker start it. Kafka's tools work without a broker."""
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.stop(cleanly=False)


def decoded_shard(kafka: KafkaBroker, directory: Path, records: list[ShardRecord]) -> list[Line]:
    """Write the records to a Headrace partition, and return what Kafka's decoder reads."""
    directory = directory / "__transaction_state-0"
    directory.mkdir()
    partition = TopicPartition("__transaction_state", 0)
    log = PartitionLog.open(RealFileSystem(), str(directory), partition, LogConfig(), clock=SystemClock(), clean=True)
    for start in range(0, len(records), 4):
        batch = [(NOW_MS, key, value, []) for key, value in records[start : start + 4]]
        log.append(encode_batch(batch, base_sequence=SHARD_EPOCH), leader_epoch=0)
    log.close()
    return decoded(kafka, *directory.glob("*.log"))


def test_kafka_steps_over_the_decisions_of_sinks(kafka: KafkaBroker, tmp_path: Path) -> None:
    shard, sink = _Shard(), sink_id("query", "orders")
    for batch in range(3):
        transaction = SinkTransaction(sink, batch, 0, 0, "a1")
        identity = shard.ask(InitProducerId(str(transaction), 60_000)).identity
        shard.ask(AddPartitions(str(transaction), identity, frozenset({TopicPartition("orders", 0)})))
        shard.ask(PrepareTransaction(str(transaction), identity))
        shard.ask(CommitSinkBatch(sink, batch, ((transaction, identity),)))
    shard.ask(AbortSinkBatch(sink, 3, 0))
    lines = decoded_shard(kafka, tmp_path, shard.records)
    assert [line.offset for line in lines] == list(range(len(shard.records)))
    decisions = 0
    for line, record in zip(lines, shard.records, strict=True):
        if kind_of(record.key) == RecordKind.SINK:
            decisions += 1
            assert f"Unknown record type {int(RecordKind.SINK)} at offset {line.offset}, skipping" in line.key
        else:
            transaction = None if record.value is None else decode_value(record.value)
            key, value = as_kafka_prints(decode_key(record.key), transaction)
            assert json.loads(line.key) == key
            assert (line.value if transaction is None else json.loads(line.value)) == value
    assert decisions == 4


def test_kafka_decodes_every_state_of_a_transaction(kafka: KafkaBroker, tmp_path: Path) -> None:
    records = _every_state()
    lines = decoded_shard(kafka, tmp_path, records)
    ours = [(decode_key(key), None if value is None else decode_value(value)) for key, value in records]
    assert [line.offset for line in lines] == list(range(len(records)))
    for line, (name, transaction) in zip(lines, ours, strict=True):
        key, value = as_kafka_prints(name, transaction)
        assert json.loads(line.key) == key
        assert (line.value if transaction is None else json.loads(line.value)) == value
    states = {None if each is None else each.state for _, each in ours}
    assert states == {None, *TransactionState}
    transactions = [each for _, each in ours if each is not None]
    assert any(each.is_prepared for each in transactions)
    assert any(each.next_producer_id != NO_PRODUCER_ID for each in transactions), "no epochs ran out"
    assert any(each.next_producer_epoch > 0 for each in transactions), "no prepared transaction changed its owner"


# ------------------------------------------------------------------------------------------------- a cluster of ours


@dataclass
class Written:
    """The files of a stopped Headrace cluster, and the records that its consumers read."""

    log: Path
    states: list[Path]
    stable_offset: int
    end_offset: int
    read: dict[str, list[tuple[int, str]]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Write concurrent transactions of three producers: committed, aborted, prepared, one timed out, one still open."""
    data = tmp_path_factory.mktemp("ours")
    with LocalCluster(brokers=1, controllers=1, coordinators=1, data=data) as cluster:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap_servers=bootstrap) as admin:
            config = {"segment.bytes": "12000", "index.interval.bytes": "1024"}
            admin.create_topics([NewTopic(TOPIC, partitions=1, replication_factor=1, config=config)])
        first, second, slow = (
            Producer(
                bootstrap_servers=bootstrap, transactional_id=f"p{number}", linger_ms=0, transaction_timeout_ms=timeout
            )
            for number, timeout in enumerate((60_000, 60_000, 1_000))
        )
        slow.begin_transaction()
        slow.send(TOPIC, b"too slow".ljust(200)).result(60)
        partition = TopicPartition(TOPIC, 0)
        for round_ in range(ROUNDS):
            for number, producer in enumerate((first, second)):
                producer.begin_transaction()
                for index in range(10):
                    producer.send(TOPIC, f"{round_}-{number}-{index}".ljust(200).encode(), key=b"%d" % index)
            first.flush(60)
            second.flush(60)
            first.abort_transaction() if round_ % 3 else first.commit_transaction()
            if round_ % 4 == 1:
                second.complete(second.prepare(), commit=round_ % 8 == 1)
            else:
                second.abort_transaction() if round_ % 2 else second.commit_transaction()
        with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
            until(lambda: consumer.end_offsets([partition])[partition] > 50, "the slow transaction to time out")
        first.begin_transaction()
        first.send(TOPIC, b"open").result(60)
        second.begin_transaction()
        second.send(TOPIC, b"behind it").result(60)
        second.commit_transaction()
        read, ends = {}, {}
        for isolation in ("read_committed", "read_uncommitted"):
            with Consumer(
                bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
            ) as consumer:
                if isolation == "read_committed":
                    until(lambda c=consumer: c.end_offsets([partition])[partition] > 0)
                consumer.assign([partition])
                ends[isolation] = consumer.end_offsets([partition])[partition]
                read[isolation] = found = []
                while consumer.position(partition) < ends[isolation]:
                    found += [(each.offset, (each.value or b"").decode()) for each in consumer.poll(1.0)]
    for producer in (first, second, slow):  # not earlier, because an open transaction would be aborted
        producer.close(0)
    (log,) = [path for path in data.rglob(f"{TOPIC}-0") if path.is_dir()]
    states = sorted(data.rglob("__transaction_state-*/*.log"))
    return Written(log, states, ends["read_committed"], ends["read_uncommitted"], read)


def test_kafka_decodes_the_states_that_a_cluster_of_ours_wrote(kafka: KafkaBroker, written: Written) -> None:
    states: dict[str, list[str]] = {}
    segments = [path for path in written.states if path.stat().st_size]
    for line in decoded(kafka, *segments):
        if not line.key.startswith("{"):
            assert re.fullmatch(r"Unknown record type 100\d at offset \d+, skipping\.?.*", line.key), line
            continue
        transactional_id = json.loads(line.key)["data"]["transactionalId"]
        states.setdefault(transactional_id, []).append(P(json.loads(line.value)["data"]["transactionStatus"]).name)
    assert set(states) == {"p0", "p1", "p2"}
    # An open transaction is written several times, with its age.
    changes = [state for state, _ in itertools.groupby(states["p2"])]
    assert changes == ["EMPTY", "ONGOING", "PREPARE_ABORT", "COMPLETE_ABORT"]
    for name in ("p0", "p1"):
        assert {"EMPTY", "PREPARE_COMMIT", "COMPLETE_COMMIT", "PREPARE_ABORT", "COMPLETE_ABORT"} < set(states[name])
    assert states["p0"][-1] == "ONGOING"
    assert states["p1"][-2:] == ["PREPARE_COMMIT", "COMPLETE_COMMIT"]


def test_kafka_reads_our_markers(kafka: KafkaBroker, written: Written) -> None:
    segments = sorted(written.log.glob("*.log"))
    assert len(segments) > 2
    output = kafka.dump("--deep-iteration", "--files", ",".join(map(str, segments)))
    assert "isvalid: false" not in output.lower()
    found = Counter(re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: \d+", output))
    commits = sum(round_ % 3 == 0 for round_ in range(ROUNDS))
    commits += sum((round_ % 8 == 1) if round_ % 4 == 1 else not round_ % 2 for round_ in range(ROUNDS)) + 1
    assert found == {"COMMIT": commits, "ABORT": 2 * ROUNDS + 2 - commits}


def test_kafka_reads_our_indexes_and_snapshots(kafka: KafkaBroker, written: Written) -> None:
    lines = list(dump(str(written.log)))
    aborted = [
        f"version: {line.version} producerId: {line.producer_id} firstOffset: {line.first_offset} lastOffset: "
        f"{line.last_offset} lastStableOffset: {line.last_stable_offset}"
        for line in lines
        if isinstance(line, AbortedLine)
    ]
    assert len(aborted) > ROUNDS
    indexes = sorted(path for path in written.log.glob("*.txnindex") if path.stat().st_size)
    output = kafka.dump("--files", ",".join(map(str, indexes)))
    assert [line for line in output.splitlines() if line.startswith("version:")] == aborted
    open_ones = 0
    for path in sorted(written.log.glob("*.snapshot")):
        ours = {
            (
                line.producer_id,
                line.producer_epoch,
                line.coordinator_epoch,
                "None" if line.transaction_first_offset < 0 else str(line.transaction_first_offset),
                line.last_sequence,
                line.last_offset,
            )
            for line in dump(str(path))
            if isinstance(line, ProducerLine)
        }
        output = kafka.dump("--files", str(path))
        found = re.findall(
            r"^producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+) "
            r"lastTimestamp: \d+(?: firstSequence: -?\d+ lastSequence: (-?\d+) lastOffset: (-?\d+))?",
            output,
            re.MULTILINE,
        )
        assert found, output
        kafkas = {
            (int(pid), int(epoch), int(by), re.sub(r"\D", "", first) or "None", int(sequence or -1), int(last or -1))
            for pid, epoch, by, first, sequence, last in found
        }
        assert kafkas == ours, output
        open_ones += sum(row[3] != "None" for row in ours)
    assert open_ones, "no snapshot has an open transaction"


def test_kafkas_consumers_get_our_committed_records(kafka: KafkaBroker, written: Written) -> None:
    assert 0 < written.stable_offset < written.end_offset
    kafka.start()
    kafka.create_topics({TOPIC: {"segment.bytes": "1048576"}})
    kafka.stop()
    directory = kafka.partition(TOPIC)
    for path in directory.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in written.log.iterdir():
        if path.name != "partition.metadata":
            shutil.copyfile(path, directory / path.name)
    (kafka.data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    kafka.start()
    try:
        for isolation, expected in written.read.items():
            found = [(each.offset, each.value) for each in kafka.consume(TOPIC, isolation=isolation)]
            assert found == expected, isolation
        assert len(written.read["read_committed"]) < len(written.read["read_uncommitted"])
    finally:
        kafka.stop()


def test_we_read_kafkas_states(kafka: KafkaBroker) -> None:
    """Kafka's coordinator writes the transactions. A Headrace shard replays the transactions of Kafka's coordinator,
    and a new producer continues."""
    import confluent_kafka as ck

    kafka.start()
    try:
        kafka.create_topics({"of-kafka": {}})
        settings = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0}
        producers = [ck.Producer({**settings, "transactional.id": f"k{number}"}) for number in range(3)]
        for producer in producers:
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("of-kafka", "record")
            assert producer.flush(60) == 0
        producers[0].commit_transaction(60)
        producers[1].abort_transaction(60)
        directory = kafka.partition("__transaction_state")
        expected = decoded(kafka, *directory.glob("*.log"))
    finally:
        kafka.stop(cleanly=False)
    machine = TransactionsStateMachine(lambda: 9_000)
    records = [line.record for line in dump(str(directory), deep=True) if isinstance(line, RecordLine)]
    for record in records:
        assert record.key is not None
        machine.replay(record.key, record.value, record.timestamp_ms)
    assert len(records) == len(expected)
    for line, record in zip(expected, records, strict=True):
        transaction = decode_value(record.value or b"")
        kafkas = json.loads(line.value)["data"]
        assert kafkas["transactionStatus"] == transaction.state
        assert kafkas["producerId"] == transaction.producer_id
        assert kafkas["producerEpoch"] == transaction.producer_epoch
        assert kafkas.get("clientTransactionVersion", 0) == transaction.version
    found = {name: each.state for name, each in machine.transactions.items()}
    assert found["k0"] in (P.PREPARE_COMMIT, P.COMPLETE_COMMIT)
    assert found["k1"] in (P.PREPARE_ABORT, P.COMPLETE_ABORT)
    assert found["k2"] is P.ONGOING
    assert TopicPartition("of-kafka", 0) in machine.transactions["k2"].partitions
