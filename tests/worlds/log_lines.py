"""The log records of a test, without those of other tests."""

from __future__ import annotations

import logging

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records that the test has caused so far, except those of clients' background work: a client that an earlier
    test did not close may log at any time, on the I/O thread that all clients of a process share."""
    return [record for record in caplog.records if record.threadName != "headrace-io"]
