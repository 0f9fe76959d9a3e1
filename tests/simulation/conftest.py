"""Lets the tests in this directory import the simulator under importlib mode."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "mutants"), str(HERE.parent / "unit" / "controller")]


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The simulator takes the process's log for itself; the tests that come after want it back."""
    root = logging.root
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
