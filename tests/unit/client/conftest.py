"""Lets the tests in this directory import what stands in for a cluster, under importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
