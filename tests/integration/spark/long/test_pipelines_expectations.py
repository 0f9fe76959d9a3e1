"""Expectations on small frames, and their counts when Spark repeats tasks and stages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace_pipelines.errors import InvalidColumnsError, InvalidExpectationError
from headrace_pipelines.expectations import Counts, Expectation, Expectations, time_within
from tests.worlds.pipelines_world import SparkDriver

DRIVER = Path(__file__).parents[1] / "lost_shuffle_driver.py"

POSITIVE = Expectation("amount is positive", "amount > 0", "quarantine")
KNOWN = Expectation("currency is known", "currency IN ('EUR', 'USD')", "drop")
SMALL = Expectation("amount is small", "amount < 100", "warn")
ROWS = [("a", 5, "EUR"), ("b", -1, "EUR"), ("c", 5, "XYZ"), ("d", None, "XYZ"), ("e", 500, "USD")]


@pytest.fixture
def payments(spark: Any) -> DataFrame:
    return spark.createDataFrame(ROWS, "id string, amount int, currency string")


def test_a_row_is_kept_dropped_or_quarantined(payments: DataFrame) -> None:
    rules = Expectations(POSITIVE, KNOWN, SMALL)
    found = {row.id: row.reason for row in rules.apply(payments).collect()}
    assert found == {
        "a": None,
        "b": "expectation: amount is positive",
        "d": "expectation: amount is positive",  # null violates, and quarantine is stricter than drop
        "e": None,  # warn changes no row
    }
    assert rules.apply(payments).columns == ["id", "amount", "currency", "reason"]


def test_violations_are_counted_for_each_rule(payments: DataFrame) -> None:
    counts = Expectations(POSITIVE, KNOWN, SMALL).counts(payments)
    assert counts == Counts(
        rows=5,
        dropped=1,
        quarantined=2,
        violations={"amount is positive": 2, "currency is known": 2, "amount is small": 2},
    )
    assert counts.kept == 2


def test_a_reason_names_all_quarantine_rules_of_a_row(payments: DataFrame) -> None:
    rules = Expectations(POSITIVE, Expectation("currency is known", F.col("currency").isin("EUR"), "quarantine"))
    reasons = {row.id: row.reason for row in rules.apply(payments).collect()}
    assert reasons["d"] == "expectation: amount is positive; currency is known"


def test_rows_with_a_reason_are_not_checked(payments: DataFrame) -> None:
    parsed = payments.withColumn("reason", F.when(F.col("id") == "b", "value: malformed"))
    rules = Expectations(POSITIVE)
    reasons = {row.id: row.reason for row in rules.apply(parsed).collect()}
    assert reasons["b"] == "value: malformed"
    assert rules.counts(parsed) == Counts(4, 0, 1, {"amount is positive": 1})


def test_fail_names_the_rule_and_passes_when_all_rows_meet_it(payments: DataFrame) -> None:
    rules = Expectations(Expectation("has an id", "id IS NOT NULL", "fail"), POSITIVE)
    assert rules.apply(payments).count() == len(ROWS)
    strict = Expectations(Expectation("amount is positive", "amount > 0", "fail"))
    with pytest.raises(Exception, match=re.escape("[EXPECTATION_FAILED] a row violates: amount is positive")):
        strict.apply(payments).count()


def test_rule_sets_that_cannot_work_are_refused(spark: Any, payments: DataFrame) -> None:
    for arguments, message in [
        (("", "amount > 0"), "needs a name"),
        (("x" * 101, "amount > 0"), "needs a name"),
        (("x", "amount > 0", "ignore"), "action='ignore' must be one of warn, drop, quarantine, fail"),
        (("x", " "), "must be SQL text or a Column"),
        (("x", True), "must be SQL text or a Column"),
    ]:
        with pytest.raises(InvalidExpectationError, match=message):
            Expectation(*arguments)
    with pytest.raises(InvalidExpectationError, match="one or more"):
        Expectations()
    with pytest.raises(InvalidExpectationError, match="one or more"):
        Expectations(SMALL, "amount > 0")  # type: ignore[arg-type]
    with pytest.raises(InvalidExpectationError, match="two expectations are named 'amount is small'"):
        Expectations(SMALL, KNOWN, SMALL)
    for condition, message in [
        ("amout > 0", "'x'.*amout"),
        ("amount >", "'x'.*PARSE_SYNTAX_ERROR"),
        ("amount", "the condition is int, but must be boolean"),
        ("count(*) > 1", "'x'.*does not fit the frame"),
    ]:
        with pytest.raises(InvalidExpectationError, match=message):
            Expectations(Expectation("x", condition)).apply(payments)
    with pytest.raises(InvalidColumnsError, match="'reason' is int"):
        Expectations(SMALL).apply(payments.withColumn("reason", F.lit(1)))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidExpectationError, match="foreachBatch"):
        Expectations(Expectation("x", "value >= 0")).counts(stream)


def test_a_clock_fifty_years_off_is_quarantined(spark: Any) -> None:
    rules = Expectations(time_within("time is plausible", "at", past="7 days", future="1 hour"))
    frame = spark.sql(
        "SELECT id, current_timestamp() + make_interval(years, 0, 0, 0, 0, minutes) AS at FROM "
        "VALUES ('now', 0, 0), ('fast', 50, 0), ('slow', -50, 0), ('a little fast', 0, 59) AS t(id, years, minutes)"
    )
    reasons = {row.id: row.reason for row in rules.apply(frame).select("id", "reason").collect()}
    late = "expectation: time is plausible"
    assert reasons == {"now": None, "fast": late, "slow": late, "a little fast": None}


def test_counts_are_exact_when_a_stage_runs_twice(tmp_path: Path) -> None:
    """A reducer deletes the shuffle's files, so Spark runs the stage with the counts again."""
    driver = SparkDriver(DRIVER, tmp_path, str(tmp_path))
    try:
        driver.wait_ended()
    finally:
        driver.kill()
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "kept": 500,
        "tasks": 8,  # four tasks, and all of them again
        "counts": [1000, 500, 0],
        "violations": {"id is even": 500},
    }


def test_observed_counts_are_exact_when_a_batch_of_a_stream_is_repeated(spark: Any, tmp_path: Path) -> None:
    """A stream reports each batch's counts under its id; a repeated batch reports the same counts."""
    rules = Expectations(Expectation("value is even", "value % 2 = 0", "drop"))
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.csv").write_text("\n".join(str(number * 10 + n) for n in range(10)))

    def run() -> dict[int, Counts]:
        stream = spark.readStream.schema("value int").option("maxFilesPerTrigger", 1).csv(str(tmp_path / "in"))
        query = (
            rules.apply(stream, observe="quality")
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return {
            progress.batchId: rules.observed(progress.observedMetrics["quality"])
            for progress in query.recentProgress
            if "quality" in progress.observedMetrics
        }

    expected = Counts(10, 5, 0, {"value is even": 5})
    assert run() == {0: expected, 1: expected, 2: expected}
    (tmp_path / "checkpoint" / "commits" / "2").unlink()  # as if the driver had died before Spark recorded the batch
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    assert run() == {2: expected}
