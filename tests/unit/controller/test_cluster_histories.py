"""Random histories of registrations, crashes, AlterPartitions, elections and settings: every state and step satisfies
the rules, and no clean leader lacks a committed record."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace_controller.cluster.requests import CreateTopics, DeleteTopics, NewTopic
from headrace_core.types import NO_LEADER
from tests.simulation.cluster_histories import Histories

SEEDS = 60
STEPS = 400


@pytest.mark.parametrize("block", range(6))
def test_no_clean_leader_lacks_a_committed_record_whatever_happens(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        history = Histories(seed)
        try:
            history.run(STEPS)
        except AssertionError as broken:
            raise AssertionError(f"Histories({seed}).run({STEPS}): {broken}") from broken
        counts.update(history.counts)
    print(dict(counts))
    expected = ("commit", "ISR altered", "ISR refused", "clean election", "election from the ELR", "clean stop")
    assert all(counts[what] for what in (*expected, "lost a disk", "lost a tail", "older copy")), counts


def test_histories_whose_decisions_are_cut_to_pieces_end_the_same() -> None:
    """metadata.max.records.per.request limits the number of records when one broker joins or leaves."""
    for seed in range(1_000, 1_012):
        history = Histories(seed, metadata_max_records_per_request=4)
        try:
            history.run(STEPS)
        except AssertionError as broken:
            raise AssertionError(f"Histories({seed}, metadata_max_records_per_request=4): {broken}") from broken


def test_a_broker_with_a_new_disk_leads_nothing_that_was_on_the_old_one_however_its_calls_are_cut() -> None:
    """Found by make sim, seed 20261120848: a machine created its logs again, and reported them in one call. The machine
    had to split the call, and forgot between the two calls that the logs were new. After a topic was deleted, the
    remaining logs fitted into the next call. The empty logs were elected from the ELR."""
    history = Histories(0, machines=2, metadata_max_records_per_request=4)
    leader, follower = history.machines
    names = [f"t{number}" for number in range(5)]
    configs = {"min.insync.replicas": "1"}
    assignments = {0: (leader.broker_id, follower.broker_id)}
    for name in names:
        history.ask(CreateTopics((NewTopic(name=name, configs=configs, assignments=assignments),)))
    for machine in history.machines:
        history._follow(machine)
        history._beat(machine)
    for machine in history.machines:
        history._follow(machine)
    for key in history._led_by(leader):
        history._write(leader, key)
    assert history.counts["commit"] == len(names)
    for machine in (follower, leader):  # the follower leaves the in-sync sets first: only the leader is eligible
        history._gone(machine)
        history.world.now_ms += 60_000
        history._beat(leader)
        history.upkeep()
    assert history.world.image.topic("t1").partitions[0].elr == (leader.broker_id,)
    history._lose_disk(leader)
    history._start(leader)
    history.ask(DeleteTopics(("t0",)))
    for _ in range(2):
        history._follow(leader)
        history._beat(leader)
        for key in history._led_by(leader):
            history._write(leader, key)
    states = [topic.partitions[0] for topic in history.world.image.topics.values()]
    assert [(each.leader, each.elr) for each in states] == [(NO_LEADER, ())] * 4
    assert history.counts["directories told in parts"] == 1
