"""Lets the tests in this directory import their helpers, and the clusters of the brokers' and the coordinators' tests,
under importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))
sys.path.insert(0, str(Path(__file__).parents[1] / "coordinator"))
