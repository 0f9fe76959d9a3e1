"""Groups under any order of events (groups_machine.py lists the events and the checks)."""

from __future__ import annotations

from hypothesis import settings

from tests.worlds.group_world import GroupsMachine
from tests.worlds.this_process import examples

TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=examples(100), stateful_step_count=50)
