"""Topics and rows of the pipeline ``logs``.

    logs.lines             one line of a file for each record, from `headrace ship`
      `-> logs.requests        a request for each good line, as JSON
      |     `-> logs.rates         requests and errors by window and host
      |     `-> logs.alerts        windows in which a host has too many server errors
      |     `-> the archive        Parquet by day
      `-> logs.lines.dead-letters  bad lines, with the reason

A **tick** is a record without a value that only moves the event time. Without a tick, the last windows of a log would
never close, because no later line follows.
"""

from __future__ import annotations

LINES, REQUESTS, RATES, ALERTS = "logs.lines", "logs.requests", "logs.rates", "logs.alerts"
TOPICS = (LINES, REQUESTS, RATES, ALERTS)

#: ``host`` is null in a tick. ``text`` is the line.
REQUEST = (
    "host STRING, time TIMESTAMP, address STRING, method STRING, path STRING, status INT, bytes BIGINT, "
    "referrer STRING, agent STRING, text STRING"
)
#: ``errors``: number of requests with a status of 400 or more. ``failures``: number of requests with a status of 500 or
#: more.
RATE = "window TIMESTAMP, host STRING, requests BIGINT, errors BIGINT, failures BIGINT"
