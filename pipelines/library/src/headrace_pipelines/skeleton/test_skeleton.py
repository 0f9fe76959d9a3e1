"""Tests of the pipeline skeleton: its rows on a small frame, and the job on a cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from headrace_pipelines.replays import DeadLetter
from headrace_pipelines.testing import Harness, TimedRecord

from .job import CLEAN, start
from .rows import judged

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_row_is_good_or_has_a_reason(pipeline_spark: Any) -> None:
    values = ['{"user":"ann","amount":1}', '{"user":"bob","amount":-1}', '{"user":"eve"}']
    frame = pipeline_spark.createDataFrame([(value,) for value in values], "value STRING")
    assert {row["value"]: row["reason"] for row in judged(frame).collect()} == {
        '{"user":"ann","amount":1}': None,
        '{"user":"bob","amount":-1}': "expectation: amount is positive",
        '{"user":"eve"}': "amount: missing",
    }


def test_a_killed_driver_writes_each_row_once(pipeline_harness: Harness) -> None:
    pipeline_harness.topic("skeleton", partitions=2)
    good = [b'{"user":"u%d","amount":1.0}' % number for number in range(100)]
    pipeline_harness.feed("skeleton", [TimedRecord(value, at=NOON) for value in [*good, b"no JSON"]])
    pipeline_harness.crash(start, at="decided", batch=0)  # the batch is written, and Spark has not recorded the batch
    pipeline_harness.run(start)
    rows = pipeline_harness.rows(CLEAN)
    assert sorted(json.loads(row.value or b"")["user"] for row in rows) == sorted(f"u{number}" for number in range(100))
    (letter,) = [DeadLetter.of(record) for record in pipeline_harness.rows("skeleton.dead-letters")]
    assert letter is not None
    assert (letter.value, letter.reason) == (b"no JSON", "value: malformed JSON")
