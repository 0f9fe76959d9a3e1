"""Lets the tests in this directory import their worlds, and those of the unit tests, under importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2] / "unit" / "coordinator"))
