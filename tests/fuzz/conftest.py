"""Lets the tests in this directory import the fuzz targets, and helpers of other rooms' tests, under importlib mode."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for directory in ("fuzz", "property/log_compaction", "scenarios/broker"):
    sys.path.insert(0, str(TESTS / directory))
