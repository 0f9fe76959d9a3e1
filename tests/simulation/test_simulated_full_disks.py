"""Full disks and small segments in the controllers' half: logs roll, and each check of a refused append finds a planted
violation."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from headrace_controller.quorum_controller import QuorumController
from headrace_controller.raft import Entry, HardState
from headrace_controller.storage import SEGMENT_BYTES
from headrace_core.errors import CorruptLogError, DiskFullError
from headrace_core.log.epochs import LEADER_EPOCH_FILE
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.simulation import run
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_checks import SafetyChecks, Violation
from tests.simulation.sim_disk import DiskRecord, ObservedStorage
from tests.simulation.sim_plan import Fault, Plan, make_plan
from tests.simulation.sim_stories import _wait_for
from tests.simulation.sim_world import ControllersWorld
from tests.worlds.cluster_world import CLUSTER
from tests.worlds.storage_world import KEYS, ROOT, formatted, leader_change, setting

#: An entry that needs a new segment, and a smaller entry after it that would fit into the old segment.
BEHIND = [setting(1, at, size) for at, size in enumerate((200, 600, 10), 1)]


class Lab:
    """The disk of one controller, with segments of 700 bytes."""

    def __init__(self, tell: Callable[[str, Any], None] = lambda what, value: None) -> None:
        self.fs = formatted()
        self.record = DiskRecord()
        self.storage = self.opened(self.fs, tell)
        self.storage.save_hard_state(HardState(1))
        self.storage.append([leader_change(1, 0)])

    def opened(self, fs: CrashingFileSystem, tell: Callable[[str, Any], None]) -> ObservedStorage:
        storage = ObservedStorage.open(fs, ROOT, clock=ManualClock(), cluster_id=CLUSTER, node_id=1, segment_bytes=700)
        storage.watch(KEYS[0], self.record, SafetyChecks(), tell)
        storage.recovered()
        return storage

    def refuse(self, entries: list[Entry], operation: str = "create", path_contains: str = "") -> None:
        self.fs.fail(operation, errno.ENOSPC, times=1_000, path_contains=path_contains)
        with pytest.raises(DiskFullError):
            self.storage.append(entries)
        self.fs.faults.clear()


def killed(what: str, value: object) -> None:
    if what == "refuses":
        raise SimulatedCrash("killed before the entries of a refused append are removed")


def test_a_refused_append_leaves_nothing_and_passes() -> None:
    lab = Lab()
    lab.refuse(BEHIND)
    lab.refuse([leader_change(2, 1)], "write", ".log")
    lab.storage.append(BEHIND)
    assert lab.record.pending_entries == ()


def test_a_kept_entry_of_a_refused_append_is_found() -> None:
    with MUTANTS["KeepsRefusedEntries"].applied(), pytest.raises(Violation, match=r"^refusal: .* has 1/1, which its"):
        Lab().refuse(BEHIND)


def test_a_kept_term_of_a_refused_append_is_found() -> None:
    with (
        MUTANTS["KeepsRefusedEntries"].applied(),
        pytest.raises(Violation, match=r"^refusal: .* has term 2, whose entries"),
    ):
        Lab().refuse([leader_change(2, 1)], "write", ".log")


def test_a_refused_term_is_out_of_its_file_before_the_next_entry() -> None:
    """The disk has room for the file with the new term, but neither for the entry nor for the file without the term."""
    lab = Lab()
    lab.fs.fail("create", errno.ENOSPC, nth=2, times=1_000, path_contains=LEADER_EPOCH_FILE)
    lab.refuse([leader_change(2, 1)], "write", ".log")
    lab.storage.append(BEHIND)
    again = lab.opened(lab.fs.crash_clone(random.Random(1), Loss.ALL), lambda what, value: None)
    assert again.log_end_offset == BEHIND[-1].next_offset


def test_a_kill_that_leaves_entries_of_a_refused_append_passes() -> None:
    lab = Lab(killed)
    with pytest.raises(SimulatedCrash):
        lab.refuse(BEHIND)
    storage = lab.opened(lab.fs.crash_clone(loss=Loss.NONE), killed)
    assert storage.log_end_offset == BEHIND[0].next_offset


def test_an_entry_without_the_one_before_it_is_found() -> None:
    lab = Lab(killed)
    with MUTANTS["AppendsBehindARefusedEntry"].applied(), pytest.raises(SimulatedCrash):
        lab.refuse(BEHIND)
    with pytest.raises((Violation, CorruptLogError)):
        lab.opened(lab.fs.crash_clone(loss=Loss.NONE), killed)


def test_a_controller_that_ends_of_a_full_disk_is_found() -> None:
    host = ControllersWorld(make_plan(1)).hosts[1]

    def full() -> None:
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(Violation, match=r"^full disk: controller 1 ends"):
        host.guarded(full)


def test_most_logs_roll() -> None:
    sizes = [make_plan(seed).segment_bytes for seed in range(200)]
    assert sizes.count(SEGMENT_BYTES) > 10
    assert sum(size < 11_000 for size in sizes) > 150
    for seed in (1, 2, 3):
        plan = replace(make_plan(seed), segment_bytes=700)
        outcome = run.outcome_of(plan, ("world",))
        assert outcome.coverage["state", "log rolled"] > 20
        outcome = run.outcome_of(replace(plan, segment_bytes=SEGMENT_BYTES), ("world",))
        assert not outcome.coverage["state", "log rolled"]


def test_a_mutant_that_names_faults_has_schedules_of_nothing_else() -> None:
    plan = run.plan_of(7, "controllers", MUTANTS["KeepsRefusedEntries"])
    assert isinstance(plan, Plan)
    assert {fault.kind for fault in plan.faults} == {"refused_term"}
    assert plan != make_plan(7)
    assert plan.seed == 7


def full_leader(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """The leader's disk has only its reserve left, which is enough for everything but growth: another controller has to
    lead soon, and the old leader must not lead again while its disk is full."""
    yield from _wait_for(lambda: world.leader() is not None and len(world.up()) == 3, 2_000.0)
    old = world.leader()
    assert old is not None
    fs = old.fs
    filler = fs.open("/somebody-elses-file", write=True, create=True)
    filler.pwritev([bytes(2_000_000)], 0)
    filler.close()
    fs.capacity_bytes = int(1.03 * sum(map(len, fs.files().values())))
    moved = yield from _wait_for(lambda: (host := world.leader()) is not None and host is not old, 3_000.0)
    if not moved:
        raise Violation("full disk", f"{old} keeps the lead, though its disk is full and the others are not")
    world.count("state", "a leader with a full disk made way")
    for _ in range(30):
        yield 100.0
        if world.leader() is old:
            raise Violation("full disk", f"{old} leads again, though its disk is full")
    fs.capacity_bytes = None


def run_with_a_full_leader(seed: int) -> ControllersWorld:
    plan = make_plan(seed, hard_on=("transfer",)).keeping(())
    world = ControllersWorld(replace(plan, message_bytes_max=1 << 20, in_flight_messages_max=64))
    world.reserve_bytes = 1 << 30  # (of which the disk takes at most a twentieth of its size)
    fault = Fault(0, 1_500.0, "full_leader", 0.0, 0.0, seed)
    world.scheduler.at(fault.at_ms, world.story_teller.begin, fault, full_leader, random.Random(seed))
    world.run()
    return world


@pytest.mark.parametrize("seed", [3, 5])
def test_a_leader_with_a_full_disk_makes_way(seed: int) -> None:
    assert run_with_a_full_leader(seed).coverage["state", "a leader with a full disk made way"] == 1


def test_a_leader_that_stays_with_a_full_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumController, "_leave_the_lead", lambda *_: None)
    with pytest.raises(Violation, match=r"^full disk: controller \d keeps the lead"):
        run_with_a_full_leader(3)
