"""The simulator takes the process's log for itself: each test gives it back."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The simulator takes the process's log for itself; the tests that come after want it back."""
    root = logging.root
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
