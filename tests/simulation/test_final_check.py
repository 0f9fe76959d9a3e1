"""Tests of the final check of brokers, which reads the logs: missing, changed or differing records are violations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace_core.errors import HeadraceError
from headrace_core.log import Append, PartitionLog
from headrace_core.records import BatchBuilder, iterate_headers
from tests.simulation.broker_checks import batches_of
from tests.simulation.broker_plan import make_broker_plan
from tests.simulation.broker_sim_world import BrokerWorld
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_plan import Period

Damage = Callable[[list[PartitionLog]], None]


def world_at_its_end() -> BrokerWorld:
    """A quiet schedule that has ended well, with three equal logs of its one partition."""
    plan = make_broker_plan(2)
    world = BrokerWorld(
        replace(plan, partitions=1, brokers=3, unclean=False, periods=(Period(0.0, 400.0, True),), faults=())
    )
    world.run()
    return world


def logs_of(world: BrokerWorld) -> list[PartitionLog]:
    return [log for _, log in world.checks._logs(0)]


def written_again(log: PartitionLog, kept: int, batches: list[bytes]) -> None:
    """Keep the log's first ``kept`` batches, and append the given batches as a follower would."""
    cut = list(batches_of(log))[kept]
    log.truncate_to(cut)
    for batch in batches:
        headers = [header for _, header in iterate_headers(batch)]
        (outcome,) = log.append_many(
            [Append(data=batch, leader_epoch=headers[0].leader_epoch, headers=headers, replicated=True)]
        )
        assert not isinstance(outcome, HeadraceError), outcome


def cut_all(logs: list[PartitionLog]) -> None:
    for log in logs:
        log.truncate_to(list(batches_of(log))[1])


def cut_one(logs: list[PartitionLog]) -> None:
    logs[1].truncate_to(list(batches_of(logs[1]))[-1])


def swap_in_all(logs: list[PartitionLog]) -> None:
    """Replace the last but one batch in every replica: the replicas are equal, but do not have the committed batch."""
    for log in logs:
        swap(log)


def swap_in_one(logs: list[PartitionLog]) -> None:
    swap(logs[2])


def swap(log: PartitionLog) -> None:
    batches = list(batches_of(log).values())
    ((_, header),) = iterate_headers(batches[-2])
    builder = BatchBuilder(10_000)
    for number in range(header.next_offset - header.base_offset):
        builder.append(1_700_000_000_000, None, b"9/%d" % number)
    other = builder.build(base_offset=header.base_offset, leader_epoch=header.leader_epoch)
    written_again(log, len(batches) - 2, [other, batches[-1]])


def hole_in_all(logs: list[PartitionLog]) -> None:
    for log in logs:
        batches = list(batches_of(log).values())
        written_again(log, len(batches) - 2, [batches[-1]])


def start_moved(logs: list[PartitionLog]) -> None:
    for log in logs:
        log.delete_records(2)


def test_logs_that_hold_what_was_promised_pass() -> None:
    world = world_at_its_end()
    assert len(world.checks.truths[0].batches) > 5
    world.checks.final()


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (cut_all, "lost"),
        (cut_one, "lost"),
        (swap_in_all, "prefix"),
        (swap_in_one, "prefix"),
        (hole_in_all, "hole"),
        (start_moved, "log start"),
    ],
)
def test_a_log_that_lacks_or_changes_what_was_promised_fails(damage: Damage, check: str) -> None:
    world = world_at_its_end()
    damage(logs_of(world))
    with pytest.raises(Violation, match=check):
        world.checks.final()


def test_replicas_that_differ_after_an_unclean_election_fail() -> None:
    """After an unclean election, the check only compares the replicas with each other."""
    world = world_at_its_end()
    world.checks.truths[0].is_tainted = True
    cut_all(logs_of(world))
    world.checks.final()
    logs_of(world)[1].truncate_to(0)
    with pytest.raises(Violation, match="equal"):
        world.checks.final()
