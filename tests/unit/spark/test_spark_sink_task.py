"""A task of the sink: collects, sends, waits for every acknowledgement, and reports the written rows when it fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from headrace.models import ManyMetadata, RecordRange
from headrace_core.errors import HeadraceError, RecordTooLargeError, RequestTimedOutError, UnknownOutcomeError
from headrace_spark.errors import NullTopicError, SaveModeError, SinkWriteError
from headrace_spark.retries import ATTEMPTS, attempts_text
from headrace_spark.sink import HeadraceBatchWriter, HeadraceStreamWriter
from headrace_spark.sink_columns import SinkColumns
from headrace_spark.sink_task import PartitionWritten, SinkCommit, gathered, write_rows, written_text
from headrace_spark.sink_topics import TopicCreated
from tests.unit.spark.spark_fakes import options
from tests.worlds.this_process import logged

VALUE = SinkColumns(("value",), by_row=False, ignored=())
BY_ROW = SinkColumns(("value",), by_row=True, ignored=())
SCHEMA = StructType([StructField("value", StringType())])


class FakeOutcome:
    def __init__(self, producer: FakeProducer, topic: str, ranges: list[RecordRange]) -> None:
        self._producer, self._topic, self._ranges = producer, topic, ranges
        self.error: HeadraceError | None = None
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def result(self, timeout: float | None = None) -> ManyMetadata:
        if not self.is_done:
            raise TimeoutError("not yet")
        if self.error is not None:
            raise self.error
        return ManyMetadata(self._topic, sum(item.count for item in self._ranges), tuple(self._ranges))


class FakeProducer:
    """Acknowledges on ``flush`` or at once, and fails where a test sets a failure."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.sent: list[tuple[str, list[Any]]] = []
        self.outcomes: list[FakeOutcome] = []
        self.ends: dict[str, int] = {}
        self.at_once = at_once
        self.closed = False
        self.fail_send: HeadraceError | None = None
        self.fail_outcome: tuple[int, HeadraceError] | None = None

    def partitions_for(self, topic: str) -> list[int]:
        return [0]

    def send_arrow(self, topic: str, table: pa.Table) -> FakeOutcome:
        if self.fail_send is not None:
            raise self.fail_send
        self.sent.append((topic, table.column("value").to_pylist()))
        offset = self.ends.get(topic, 10)
        self.ends[topic] = offset + table.num_rows
        outcome = FakeOutcome(self, topic, [RecordRange(topic, 0, offset, table.num_rows)])
        if self.fail_outcome is not None and self.fail_outcome[0] == len(self.outcomes):
            outcome.error = self.fail_outcome[1]
        outcome.is_done = self.at_once
        self.outcomes.append(outcome)
        return outcome

    def flush(self) -> None:
        for outcome in self.outcomes:
            outcome.is_done = True

    def close(self) -> None:
        self.closed = True


def batches(*values: list[str], topics: list[list[str | None]] | None = None) -> Iterator[pa.RecordBatch]:
    for number, some in enumerate(values):
        columns: dict[str, Any] = {"value": pa.array(some, pa.string())}
        if topics is not None:
            columns["topic"] = pa.array(topics[number], pa.string())
        yield pa.RecordBatch.from_pydict(columns)


def write(
    producer: FakeProducer,
    rows: Iterator[pa.RecordBatch],
    columns: SinkColumns = VALUE,
    created: dict[str, TopicCreated] | None = None,
) -> SinkCommit:
    """``created`` is the topic that the first use creates."""
    topic, missing = None if columns.by_row else "out", created or {}
    return write_rows(
        rows,
        columns,
        topic,
        producer=lambda: producer,
        ensure=lambda name, _: missing.pop(name, None),
        give_up=producer.close,
    )


def test_the_commit_says_where_every_row_went() -> None:
    producer = FakeProducer()
    rows = batches(["a", "b"], ["c"], topics=[["x", "y"], ["x"]])
    commit = write(producer, rows, BY_ROW)
    assert commit.written == (PartitionWritten("x", 0, 10, 11, 2), PartitionWritten("y", 0, 10, 10, 1))
    assert commit.records == 3
    assert not producer.closed, "it is kept for the next task"
    assert cloudpickle.loads(cloudpickle.dumps(commit)) == commit


def test_the_task_reads_its_first_rows_before_it_waits_for_the_producer() -> None:
    producer, events = FakeProducer(), []

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches(["a"], ["b"]):
            events.append("read")
            yield batch

    def opened() -> FakeProducer:
        events.append("opened")
        return producer

    commit = write_rows(rows(), VALUE, "out", producer=opened, ensure=lambda *_: None, give_up=producer.close)
    assert events[:3] == ["read", "read", "opened"]
    assert commit.records == 2


def test_a_producer_that_does_not_open_ends_the_task_and_names_no_topic() -> None:
    given_up: list[bool] = []

    def opened() -> FakeProducer:
        raise RequestTimedOutError("no coordinator answered InitProducer")

    with pytest.raises(SinkWriteError, match="no coordinator answered InitProducer") as caught:
        write_rows(
            batches(["a"]), VALUE, "out", producer=opened, ensure=lambda *_: None,
            give_up=lambda: given_up.append(True), in_transaction=True,
        )  # fmt: skip
    assert str(caught.value).startswith("no coordinator")
    assert "No row of the task is visible" in str(caught.value)
    assert given_up == [True]


def test_a_task_without_rows_commits_nothing() -> None:
    assert write(FakeProducer(), batches([])) == SinkCommit(())


def test_small_batches_are_gathered_and_none_is_held_back() -> None:
    tables = list(gathered(batches(*[["x" * 100] * 10] * 25), size=10 * 1_000))
    assert [table.num_rows for table in tables] == [100, 100, 50]


def test_acknowledged_outcomes_are_let_go_while_rows_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_spark.sink_task.gathered", lambda rows: (pa.Table.from_batches([b]) for b in rows))
    producer = FakeProducer(at_once=True)
    seen = []

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(["a"], ["b"], ["c"])):
            producer.fail_send = RecordTooLargeError("too large") if number == 2 else None
            seen.append(number)
            yield batch

    with pytest.raises(SinkWriteError, match=r"2 rows were acknowledged and stay in the log \(out-0: 2 \(offsets 10 t"):
        write(producer, rows())
    assert seen == [0, 1, 2]


def test_a_failed_write_says_the_cause_and_what_is_written_and_sends_no_more() -> None:
    producer = FakeProducer(at_once=True)
    producer.fail_outcome = (1, UnknownOutcomeError("out-1: 7 records were sent but not acknowledged"))
    rows = batches(["a"], ["b"], topics=[["other"], ["out"]])
    with pytest.raises(SinkWriteError) as caught:
        write(producer, rows, BY_ROW)
    message = caught.value.message
    assert message.startswith("out-1: 7 records were sent but not acknowledged [OUTCOME_UNKNOWN]. ")
    assert "1 rows were acknowledged and stay in the log (other-0: 1 (offsets 10 to 10))" in message
    assert isinstance(caught.value.__cause__, UnknownOutcomeError)
    assert producer.closed


def test_the_first_sign_of_failure_ends_the_task_before_more_rows_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_spark.sink_task.gathered", lambda rows: (pa.Table.from_batches([b]) for b in rows))
    producer = FakeProducer(at_once=True)
    producer.fail_outcome = (0, UnknownOutcomeError("out-0: gone"))
    rows = batches(["a"], ["b"], ["c"])
    with pytest.raises(SinkWriteError, match="out-0: gone"):
        write(producer, rows)
    assert len(producer.sent) == 1
    assert next(rows).to_pylist() == [{"value": "b"}]


def test_a_null_topic_gives_up_the_producer_and_names_the_row() -> None:
    producer = FakeProducer()
    rows = batches(["a", "b"], topics=[["x", None]])
    with pytest.raises(NullTopicError, match=r"row 1 of this task \(value='b'\).*No row was acknowledged"):
        write(producer, rows, BY_ROW)
    assert producer.closed


def test_a_task_that_spark_ends_sends_nothing_more() -> None:
    producer = FakeProducer()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(["a"])
        raise EOFError

    with pytest.raises(EOFError):
        write(producer, rows())
    assert producer.closed


def test_what_was_written_is_reported_by_partition_over_all_tasks() -> None:
    first = SinkCommit((PartitionWritten("t", 0, 5, 9, 5), PartitionWritten("t", 1, 0, 0, 1)))
    second = SinkCommit((PartitionWritten("t", 0, 2, 12, 4),))
    assert written_text([first, None, second]) == (
        "10 rows were acknowledged and stay in the log (t-0: 9 (offsets 2 to 12), t-1: 1 (offsets 0 to 0)); others may "
        "be there too"
    )
    assert written_text([None]) == "No row was acknowledged, but some may be in the log"
    many = SinkCommit(tuple(PartitionWritten("t", p, 0, 0, 1) for p in range(20)))
    assert "and 12 more partitions" in written_text([many])


def test_writers_travel_with_their_options_and_columns() -> None:
    given = options(topic="out")
    for writer in (HeadraceBatchWriter(given, SCHEMA, overwrite=False), HeadraceStreamWriter(given, SCHEMA)):
        arrived = cloudpickle.loads(cloudpickle.dumps(writer))
        assert type(arrived) is type(writer)
        assert (arrived.options, arrived.columns) == (writer.options, writer.columns)


def test_overwrite_is_refused_in_a_batch() -> None:
    with pytest.raises(SaveModeError, match=r'Use mode\("append"\)'):
        HeadraceBatchWriter(options(topic="out"), SCHEMA, overwrite=True)


def test_an_aborted_batch_is_reported_with_what_may_be_written(caplog: pytest.LogCaptureFixture) -> None:
    writer = HeadraceStreamWriter(options(topic="out"), SCHEMA)
    writer.abort([SinkCommit((PartitionWritten("out", 0, 5, 9, 5),)), None], 7)
    assert "batch 7 of the stream failed. 5 rows were acknowledged" in caplog.text


def test_a_querys_notes_are_reported_with_its_first_batch_only(caplog: pytest.LogCaptureFixture) -> None:
    writer = HeadraceStreamWriter(options(topic="out", topik="x"), SCHEMA)
    assert not logged(caplog), "a writer is made for every batch"
    writer.commit([], 1)
    assert not logged(caplog)
    writer.commit([], 0)
    assert "did you mean topic" in caplog.text


CREATED = "topic 'x' did not exist; the cluster created it (auto.create.topics.enable), partitions: 6, replication "


def test_topics_that_tasks_created_are_logged_once_by_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    rows = batches(["a", "b"], ["c"], topics=[["x", "y"], ["x"]])
    commit = write(FakeProducer(), rows, BY_ROW, {"x": TopicCreated("x", 6, 3)})
    assert commit.created == (TopicCreated("x", 6, 3),)
    assert cloudpickle.loads(cloudpickle.dumps(commit)) == commit
    given = options(topic="out")
    for call in (
        lambda: HeadraceBatchWriter(given, SCHEMA, overwrite=False).commit([commit, commit]),
        lambda: HeadraceStreamWriter(given, SCHEMA).commit([commit, commit], 3),
        lambda: HeadraceStreamWriter(given, SCHEMA).abort([commit, None], 3),
    ):
        caplog.clear()
        call()
        assert caplog.text.count(CREATED + "factor: 3") == 1


def test_a_failed_task_says_what_it_created() -> None:
    producer = FakeProducer()
    producer.fail_send = RecordTooLargeError("too large")
    with pytest.raises(SinkWriteError, match=r"too large.*" + re.escape(CREATED) + r"factor: 3\. No row was ack"):
        write(producer, batches(["a"], topics=[["x"]]), BY_ROW, {"x": TopicCreated("x", 6, 3)})


@pytest.mark.parametrize(
    ("master", "max_failures", "says"),
    [
        ("local", None, r"one attempt per task on local \(a master local\[N,F\] makes F attempts\): the query fails"),
        ("local[*]", "8", r"one attempt per task on local\[\*\] \(a master"),
        ("local[2, 3]", None, r"writes the task's rows again .*; 3 attempts on local\[2, 3\]\)"),
        (
            "local-cluster[1,1,1024]",
            None,
            r"writes the task's rows again .*; 4 attempts on local-cluster\[1,1,1024\]\)",
        ),
        ("spark://h:7077", "7", r"writes the task's rows again .*; 7 attempts on spark://h:7077\)"),
        ("yarn", "1", r"one attempt per task on yarn \(spark\.task\.maxFailures=1\): the query fails"),
    ],
)
def test_a_failed_task_promises_another_attempt_only_where_spark_makes_one(
    monkeypatch: pytest.MonkeyPatch, master: str, max_failures: str | None, says: str
) -> None:
    monkeypatch.setenv(ATTEMPTS, attempts_text(master, max_failures))
    producer = FakeProducer()
    producer.fail_send = RecordTooLargeError("too large")
    with pytest.raises(SinkWriteError, match=says):
        write(producer, batches(["a"]))
    monkeypatch.delenv(ATTEMPTS)  # a session whose driver has no SparkContext: Spark Connect
    with pytest.raises(SinkWriteError, match=r"rows again if it tries the task again \(spark\.task\.maxFailures\)"):
        write(producer, batches(["a"]))


def test_the_processes_that_make_and_commit_writers_freeze_their_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark collects garbage after each request to the processes that create and commit writers: twice in each batch of
    a stream."""
    frozen: list[str] = []
    monkeypatch.setattr("headrace_spark.sink.settle", lambda: frozen.append("frozen"))
    writer = HeadraceStreamWriter(options(topic="out"), SCHEMA)
    assert len(frozen) == 1
    writer.commit([], 1)
    assert len(frozen) == 2
