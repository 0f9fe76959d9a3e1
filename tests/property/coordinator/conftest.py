"""Lets the tests in this directory import the worlds of the unit tests under importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "coordinator"))
