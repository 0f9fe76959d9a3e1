"""The pure functions of the pipeline logs, on small static frames."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

RAW = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
NOON = datetime(2015, 5, 17, 12, 0, 0)
LINE = '10.0.0.7 - - [17/May/2015:{time} +0000] "GET /about/?q=1 HTTP/1.1" {status} 54 "-" "Firefox"'
PATH = b"/srv/hosts/web-07/access.log"


def line(time: str = "12:00:00", status: int = 200) -> bytes:
    return LINE.format(time=time, status=status).encode()


def shipped(spark: Any, *values: bytes | None, path: bytes = PATH) -> Any:
    """Records as `headrace ship` sends them, at noon."""
    rows = [(None, value, "logs.lines", 0, at, NOON, [("path", path)]) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW)


def test_a_line_becomes_a_request_of_its_host(spark: Any) -> None:
    from headrace_pipelines.logs.lines import parsed

    (row,) = parsed(shipped(spark, line())).collect()
    assert (row.reason, row.host, row.time, row.address) == (None, "web-07", NOON, "10.0.0.7")
    assert (row.method, row.path, row.status, row.bytes, row.referrer, row.agent) == (
        "GET", "/about/", 200, 54, "-", "Firefox",
    )  # fmt: skip
    assert row.text == line().decode()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the line is empty"),
        (b"x" * 65_537, "the line is longer than 65536 bytes"),
        (b"no log", "not a line of Apache's combined format: needs address, time, request and status"),
        (line("12:00:61"), "the time is not like 17/May/2015:10:05:03 +0000"),
        (line("13:00:01"), "the time is more than an hour after the time of the record"),
        (line("13:00:00"), None),
        (line("00:00:00"), None),
    ],
)
def test_a_bad_line_has_a_reason(spark: Any, value: bytes, reason: str | None) -> None:
    from headrace_pipelines.logs.lines import parsed

    (row,) = parsed(shipped(spark, value)).collect()
    assert row.reason == reason


def test_a_tick_is_a_request_without_a_host(spark: Any) -> None:
    from headrace_pipelines.logs.lines import parsed

    (row,) = parsed(shipped(spark, None)).collect()
    assert (row.reason, row.host, row.time, row.status) == (None, None, NOON, None)


def test_good_lines_go_to_the_requests_and_bad_ones_to_the_dead_letters(spark: Any) -> None:
    from headrace_pipelines.logs.lines import parsed, records

    good, bad = records(parsed(shipped(spark, line(), b"no log"))).orderBy("topic").collect()[::-1]
    assert (good.topic, bytes(good.key), json.loads(good.value)["host"]) == ("logs.requests", b"web-07", "web-07")
    assert (bad.topic, bytes(bad.value)) == ("logs.lines.dead-letters", b"no log")


def requests(spark: Any, *rows: tuple[str | None, float, int | None]) -> Any:
    """Requests: (host, hours after noon, status)."""
    made = [(host, NOON + timedelta(hours=hours), status) for host, hours, status in rows]
    return spark.createDataFrame(made, "host STRING, time TIMESTAMP, status INT")


def test_rates_count_requests_errors_and_failures_of_a_host_in_three_hours(spark: Any) -> None:
    from headrace_pipelines.logs.rates import rates

    given = [("a", 0, 200), ("a", 2.9, 404), ("a", 3.0, 503), ("b", 0, 500), (None, 900, None)]
    found = {tuple(row) for row in rates(requests(spark, *given)).where("host IS NOT NULL").collect()}
    assert found == {
        (NOON, "a", 2, 1, 0),
        (NOON + timedelta(hours=3), "a", 1, 1, 1),
        (NOON, "b", 1, 1, 1),
    }


@pytest.mark.parametrize(
    ("statuses", "is_alert"),
    [((503, 503), True), ((503,), False), ((503, 500, 200, 200), True), ((503, 500, 200, 200, 404), False)],
)
def test_an_alert_is_half_of_the_requests_and_two_failures(
    spark: Any, statuses: tuple[int, ...], is_alert: bool
) -> None:
    from headrace_pipelines.logs.rates import rates, records

    found = records(rates(requests(spark, *(("a", 0, status) for status in statuses), (None, 900, None)))).collect()
    assert sorted(row.topic for row in found) == (["logs.alerts"] if is_alert else []) + ["logs.rates"]
    assert {json.loads(row.value)["failures"] for row in found} == {sum(status >= 500 for status in statuses)}
