"""How an exactly-once writer determines its sink and batch, and which properties a task needs from Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from headrace.models import SinkState
from headrace_core.errors import InvalidConfigError, UnsupportedVersionError
from headrace_spark import exactly_once
from headrace_spark.errors import SinkWriteError
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


def test_a_task_beyond_those_of_one_decision_fails_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver could not commit the batch after all its tasks have written, and each restart would repeat it."""
    task = Task(**{QUERY_ID: "q", BATCH_ID: "12"})
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    monkeypatch.setattr(
        exactly_once, "worker_admin", lambda client: SimpleNamespace(describe_sink=lambda sink: SinkState(11, 0))
    )
    monkeypatch.setattr("headrace.Producer", lambda config: pytest.fail("the task begins a transaction"))
    writer = HeadraceStreamWriter({**options(topic="out"), **ONCE}, SCHEMA)
    rows = pa.RecordBatch.from_pydict({"value": ["a"]})
    task.partition = 10_000
    with pytest.raises(SinkWriteError, match=r"batch 12 has more than 10000 tasks .this is task 10000.*coalesce"):
        writer.write(iter([rows]))
    written = writer.write(iter([rows.slice(0, 0)]))
    assert isinstance(written, SinkCommit)
    assert written.token == "", "a task without rows needs no transaction"
