"""The harness: jobs that run to the end, and drivers that die at each crash point."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines.crash_points import crash_point
from headrace_pipelines.errors import JobFailedError
from headrace_pipelines.sites import Site
from headrace_pipelines.testing import Harness, TimedRecord

pytestmark = pytest.mark.timeout(400)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def count_by_minute(spark: Any, site: Site) -> Any:
    options = site.read("clicks", query="counts")
    clicks = spark.readStream.format("headrace").options(**options).option("maxOffsetsPerTrigger", 4).load()
    counts = (
        clicks.withWatermark("timestamp", "0 seconds")
        .groupBy(F.window("timestamp", "1 minute").alias("minute"))
        .count()
        .select(F.concat_ws(" ", F.date_format("minute.start", "HH:mm"), "count").alias("value"))
    )
    writer = counts.writeStream.format("headrace").options(**site.write("counts", query="counts"))
    return writer.trigger(**site.trigger).start()


def write_within_foreach_batch(spark: Any, site: Site) -> Any:
    options = site.read("clicks", query="copies")
    clicks = spark.readStream.format("headrace").options(**options).option("maxOffsetsPerTrigger", 4).load()

    def write(batch: Any, batch_id: int) -> None:
        crash_point("before the write", batch_id)
        (
            batch.select("value")
            .write.format("headrace")
            .option("headrace.bootstrap.servers", site.bootstrap_servers)
            .option("headrace.txn.app.id", site.topic("copies"))
            .option("headrace.txn.version", batch_id)
            .option("topic", site.topic("copies"))
            .mode("append")
            .save()
        )
        crash_point("after the write", batch_id)

    checkpoint = site.write("copies", query="copies")["checkpointLocation"]
    return (
        clicks.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(**site.trigger).start()
    )


def fail(spark: Any, site: Site) -> None:
    raise RuntimeError("this job fails")


def clicks(harness: Harness) -> None:
    harness.topic("clicks")
    at = [NOON + timedelta(seconds=20 * number) for number in range(12)]
    harness.feed("clicks", [TimedRecord(b"%d" % number, at=each) for number, each in enumerate(at)])


def values(harness: Harness, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in harness.rows(topic))


@pytest.mark.long
@pytest.mark.parametrize("at", ["task", "prepared", "decided"])
def test_a_driver_that_dies_at_a_crash_point_changes_no_result(pipeline_harness: Harness, at: str) -> None:
    clicks(pipeline_harness)
    pipeline_harness.topic("counts")
    pipeline_harness.crash(count_by_minute, at=at, batch=1)
    pipeline_harness.run(count_by_minute)
    assert values(pipeline_harness, "counts") == ["12:00 3", "12:01 3", "12:02 3"], "12:03 is open"


@pytest.mark.long
def test_crash_points_of_the_job_itself(pipeline_harness: Harness) -> None:
    clicks(pipeline_harness)
    pipeline_harness.topic("copies")
    pipeline_harness.crash(write_within_foreach_batch, at="before the write", batch=0)
    assert values(pipeline_harness, "copies") == []
    pipeline_harness.crash(write_within_foreach_batch, at="after the write", batch=1)
    assert len(values(pipeline_harness, "copies")) == 8
    pipeline_harness.run(write_within_foreach_batch)
    assert values(pipeline_harness, "copies") == sorted(str(number) for number in range(12))
    with pytest.raises(JobFailedError, match="ended before the crash point 'decided' of batch 99"):
        pipeline_harness.crash(write_within_foreach_batch, at="decided", batch=99)


def test_a_job_runs_to_its_end_again_and_again(pipeline_harness: Harness) -> None:
    clicks(pipeline_harness)
    pipeline_harness.topic("copies")
    pipeline_harness.run(write_within_foreach_batch)
    assert len(values(pipeline_harness, "copies")) == 12
    pipeline_harness.feed("clicks", [TimedRecord(b"12", at=NOON, key=b"k", headers=[("h", b"v")])])
    pipeline_harness.run(write_within_foreach_batch)
    assert len(values(pipeline_harness, "copies")) == 13
    last = pipeline_harness.rows("clicks")[-1]
    assert (last.timestamp_ms, last.key, list(last.headers)) == (1_767_268_800_000, b"k", [("h", b"v")])


@pytest.mark.long
def test_a_job_that_fails_or_cannot_be_imported_says_so(pipeline_harness: Harness) -> None:
    with pytest.raises(JobFailedError, match=r"ended before the crash point 'task'(.|\n)*this job fails"):
        pipeline_harness.crash(fail, at="task")
    with pytest.raises(RuntimeError, match="this job fails"):
        pipeline_harness.run(fail)
    with pytest.raises(InvalidArgumentError, match="define it in a module"):
        pipeline_harness.crash(lambda spark, site: None, at="task")
    with pytest.raises(InvalidArgumentError, match="has no time zone"):
        pipeline_harness.feed("clicks", [TimedRecord(b"x", at=datetime(2026, 1, 1))])
