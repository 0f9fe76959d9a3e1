"""How an exactly-once writer determines its sink and batch, and which properties a task needs from Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from headrace.admin import blocking
from headrace.models import SinkState, TransactionToken
from headrace.producer.futures import ManyFuture
from headrace_core.errors import InvalidArgumentError, InvalidConfigError, UnsupportedVersionError
from headrace_core.sinks import TASKS_MAX, SinkTransaction, parse_sink_transaction, sink_id
from headrace_spark import exactly_once
from headrace_spark.exactly_once import BATCH_ID, QUERY_ID, SinkBatch, batch_of_stream
from headrace_spark.sink import HeadraceBatchWriter, HeadraceStreamWriter
from headrace_spark.sink_task import SinkCommit
from tests.unit.spark.spark_fakes import options

SCHEMA = StructType([StructField("value", StringType())])
ONCE = {"headrace.delivery": "exactly-once"}
APPLICATION = {"headrace.txn.app.id": "totals/1", "headrace.txn.version": "7"}


class Task:
    partition = 0

    def __init__(self, **properties: str | None) -> None:
        self.properties = properties

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


def test_a_stream_is_known_by_its_query_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Task(**{QUERY_ID: "0b1d-7", BATCH_ID: "12"}))
    writer = HeadraceStreamWriter({**options(topic="out"), **ONCE}, SCHEMA)
    assert writer.batch() == SinkBatch("__headrace_sink/0b1d-7/out", 12)
    assert HeadraceStreamWriter(
        {**options(), **ONCE}, StructType([*SCHEMA, StructField("topic", StringType())])
    ).batch() == (SinkBatch("__headrace_sink/0b1d-7/*", 12))


@pytest.mark.parametrize(
    "context", [None, Task(), Task(**{QUERY_ID: "q"}), Task(**{BATCH_ID: "1"}), Task(**{QUERY_ID: "q", BATCH_ID: "x"})]
)
def test_a_task_without_sparks_local_properties_fails_with_the_reason(
    context: Task | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    with pytest.raises(UnsupportedVersionError, match=r"sql\.streaming\.queryId and streaming\.sql\.batchId.*at-least"):
        batch_of_stream("out")


def test_each_write_of_a_frame_is_a_sink_of_its_own_and_its_tasks_agree() -> None:
    first, second = (HeadraceBatchWriter({**options(topic="out"), **ONCE}, SCHEMA, overwrite=False) for _ in range(2))
    assert first.batch() != second.batch()
    assert first.batch().is_final
    assert cloudpickle.loads(cloudpickle.dumps(first)).batch() == first.batch()


def test_an_applications_version_is_the_batch() -> None:
    writer = HeadraceBatchWriter({**options(topic="out"), **APPLICATION}, SCHEMA, overwrite=False)
    assert writer.batch() == SinkBatch("__headrace_sink/totals%2F1/out", 7)


def test_a_stream_takes_no_application() -> None:
    with pytest.raises(InvalidConfigError, match=r"for a df\.write within foreachBatch"):
        HeadraceStreamWriter({**options(topic="out"), **APPLICATION}, SCHEMA)


class TaskProducer:
    """Records the tokens that it prepares."""

    prepared: ClassVar[list[TransactionToken]] = []

    def __init__(self, config: dict[str, str]) -> None:
        self.token = TransactionToken(config["transactional.id"], len(self.prepared), 0)

    def begin_transaction(self) -> None: ...

    def partitions_for(self, topic: str) -> list[int]:
        return [0]

    def send_arrow(self, topic: str, table: pa.Table) -> ManyFuture:
        return ManyFuture(topic, [])

    def flush(self) -> None: ...

    def prepare(self) -> TransactionToken:
        self.prepared.append(self.token)
        return self.token

    def close(self, timeout: float) -> None: ...


def test_only_tasks_with_rows_count_for_the_limit_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """spark.sql.shuffle.partitions may be above the limit. The task numbers of a query with many partitions are above
    the limit, but only few tasks have rows."""
    task = Task(**{QUERY_ID: "q", BATCH_ID: "12"})
    state = SinkState(11, 3)
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    monkeypatch.setattr(exactly_once, "worker_admin", lambda _: SimpleNamespace(describe_sink=lambda sink: state))
    seen = SimpleNamespace(ensure=lambda topic, producer: None)
    monkeypatch.setattr(exactly_once, "worker_topics", lambda client, timeout_s: seen)
    monkeypatch.setattr(TaskProducer, "prepared", [])
    monkeypatch.setattr("headrace.Producer", TaskProducer)
    decided: list[Any] = []
    monkeypatch.setattr(blocking, "commit_sink_batch", recorder(decided, state))
    writer = HeadraceStreamWriter({**options(topic="out"), **ONCE}, SCHEMA)
    rows = pa.RecordBatch.from_pydict({"value": ["a"]})
    commits = []
    for task.partition in (7, 9_999, 10_000, 15_000, 19_999):
        commits.append(writer.write(iter([rows])))
        commits.append(writer.write(iter([rows.slice(0, 0)])))
    writer.commit(commits, 12)
    (tokens,) = decided[0][2:]
    parts = [parse_sink_transaction(token.transactional_id) for token in tokens]
    assert [part.partition for part in parts if part] == [7, 9_999, 10_000, 15_000, 19_999]
    assert tokens == TaskProducer.prepared, "a task without rows needs no transaction"


@pytest.mark.parametrize(("decided", "is_written"), [(11, True), (12, False), (13, False)])
def test_a_task_of_a_batch_that_is_decided_reads_its_rows_and_writes_none(
    decided: int, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SinkState(decided, 3)
    monkeypatch.setattr(TaskContext, "get", lambda: Task(**{QUERY_ID: "q", BATCH_ID: "12"}))
    monkeypatch.setattr(exactly_once, "worker_admin", lambda _: SimpleNamespace(describe_sink=lambda sink: state))
    seen = SimpleNamespace(ensure=lambda topic, producer: None)
    monkeypatch.setattr(exactly_once, "worker_topics", lambda client, timeout_s: seen)
    monkeypatch.setattr(TaskProducer, "prepared", [])
    monkeypatch.setattr("headrace.Producer", TaskProducer)
    rows = iter([pa.RecordBatch.from_pydict({"value": ["a"]})] * 2)
    commit = HeadraceStreamWriter({**options(topic="out"), **ONCE}, SCHEMA).write(rows)
    assert next(rows, None) is None, "Spark computes all rows of a task"
    assert len(TaskProducer.prepared) == is_written
    assert isinstance(commit, SinkCommit)
    assert (bool(commit.token), commit.generation) == (is_written, 3)


def test_a_batch_is_committed_in_the_oldest_generation_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort between two tasks ends the transaction of the first: the commit must fail, and not lack its rows."""
    decided: list[Any] = []

    async def commit_sink_batch(*arguments: Any, **more: Any) -> SinkState:
        decided.append(more["generation"])
        return SinkState(12, 4)

    monkeypatch.setattr(blocking, "commit_sink_batch", commit_sink_batch)
    writer = HeadraceStreamWriter({**options(topic="out"), **ONCE}, SCHEMA)
    sink = sink_id("q", "out")
    tasks = [
        SinkCommit(
            (), sink, generation, str(TransactionToken(str(SinkTransaction(sink, 12, generation, task, "a")), 1, 0))
        )
        for task, generation in enumerate((4, 3, 4))
    ]
    monkeypatch.setattr(TaskContext, "get", lambda: Task(**{QUERY_ID: "q", BATCH_ID: "12"}))
    writer.commit(tasks, 12)
    assert decided == [3]


def test_a_batch_with_too_many_tokens_fails_before_the_decision_and_can_be_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: list[Any] = []
    aborted: list[Any] = []
    monkeypatch.setattr(blocking, "commit_sink_batch", recorder(decided, SinkState(12, 3)))
    monkeypatch.setattr(blocking, "abort_sink_batch", recorder(aborted, SinkState(11, 4)))
    writer = HeadraceStreamWriter({**options(topic="out"), **ONCE}, SCHEMA)
    sink = sink_id("q", "out")

    def commit_of(task: int) -> SinkCommit:
        token = TransactionToken(str(SinkTransaction(sink, 12, 3, task, "a")), task, 0)
        return SinkCommit((), sink, 3, str(token))

    commits = [commit_of(task) for task in range(TASKS_MAX)]
    writer.commit(commits, 12)
    assert len(decided.pop()[2]) == TASKS_MAX
    commits.append(commit_of(TASKS_MAX))
    with pytest.raises(
        InvalidArgumentError,
        match=r"cannot commit batch 12 of sink '__headrace_sink/q/out': it has 10001 tokens, one for each task with "
        r"rows, but a batch can have at most 10000; .*coalesce, or a lower spark\.sql\.shuffle\.partitions",
    ):
        writer.commit(commits, 12)
    assert not decided
    writer.abort(commits, 12)  # Spark calls it after a failed commit
    assert aborted == [(sink, 12, 3)]


def recorder(calls: list[Any], state: SinkState) -> Any:
    """A request to the coordinators that records its arguments and returns ``state``."""

    async def request(_coordinators: Any, *arguments: Any, **_: Any) -> SinkState:
        calls.append(arguments)
        return state

    return request
