"""The simulator captures the process's log; each test restores it."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The simulator captures the process's log, which later tests need again."""
    root = logging.root
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
