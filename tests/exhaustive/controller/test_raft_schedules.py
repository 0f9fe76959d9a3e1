"""Seeded schedules over Raft nodes: lost, duplicated and reordered messages, partitions, crashes at each step of a
Ready, changes of the voters, snapshots, transfers, wiped disks. Safety is checked after every step (raft_world), and
liveness when the faults are over. A failure prints its seed. ``HEADRACE_RAFT_SEED=seed`` runs only that schedule.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.unit.controller.raft_schedule import Schedule

SCHEDULES = int(os.environ.get("HEADRACE_RAFT_SCHEDULES", "150"))
ONE = os.environ.get("HEADRACE_RAFT_SEED")


@pytest.mark.parametrize("part", range(1 if ONE else 5))
def test_no_schedule_of_faults_breaks_what_raft_promises(part: int) -> None:
    seeds = [int(ONE)] if ONE else range(part * SCHEDULES // 5, (part + 1) * SCHEDULES // 5)
    counts: Counter[str] = Counter()
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            schedule.run()
        except Exception as error:
            raise AssertionError(f"HEADRACE_RAFT_SEED={seed}: {type(error).__name__}: {error}") from error
        counts += schedule.counts
        counts["terms"] += max(schedule.world.leaders, default=0)
        counts["committed"] += len(schedule.world.history)
    print(dict(counts))
    if not ONE:
        for fault in (
            "lost",
            "crash",
            "kill",
            "lost the leader",
            "cut",
            "cut one way",
            "transfer",
            "compact",
            "read served",
            "add_voter",
        ):
            assert counts[fault] >= len(seeds) // 30, f"{fault}: {counts[fault]} times, which proves little"
        assert counts["committed"] >= 40 * len(seeds)
