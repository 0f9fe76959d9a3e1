"""Groups under any order of events (groups_machine.py says which, and what must hold)."""

from __future__ import annotations

from groups_machine import GroupsMachine
from hypothesis import settings

TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=100, stateful_step_count=50)
