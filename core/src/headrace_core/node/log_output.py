"""A node's log output: lines on stderr, which the process that started the node stores.

2026-01-02 03:04:05,678 INFO  headrace.controller  broker 1 unfenced
"""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"


def log_to_stderr(level: str) -> None:
    """Send the lines of all loggers with ``level`` ("debug", "info", ...) or higher to stderr. Replaces earlier
    handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
