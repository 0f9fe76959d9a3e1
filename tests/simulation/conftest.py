"""Lets the tests in this directory import the simulator under importlib mode."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "mutants")]
