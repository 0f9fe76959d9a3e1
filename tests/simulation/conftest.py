"""Lets the tests in this directory import the simulator under importlib mode."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "mutants"), str(HERE.parent / "unit" / "controller")]
