"""Any order of events in groups that change their type."""

from __future__ import annotations

from hypothesis import settings

from tests.worlds.migration_world import MigrationMachine
from tests.worlds.this_process import examples

TestMigrations = MigrationMachine.TestCase
TestMigrations.settings = settings(max_examples=examples(60), stateful_step_count=40)
