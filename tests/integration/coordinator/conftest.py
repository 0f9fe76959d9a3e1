"""Lets the tests in this directory import their helpers, and the broker tests' cluster, under importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))
