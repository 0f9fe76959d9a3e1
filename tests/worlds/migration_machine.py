"""Groups that change their type under any order of events: consumers of both protocols join, leave, die and lag, and
coordinators change. No two consumers may ever read the same partition, and at the end every partition must have a
reader."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.group_types import GroupsOfBothTypes
from tests.worlds.group_world import topics
from tests.worlds.migration_world import COOPERATIVE, EAGER, GROUP, ClassicConsumer, MigrationWorld, NewConsumer

CONSUMERS_MAX = 5


class MigrationMachine(RuleBasedStateMachine):
    @initialize(
        protocol=st.sampled_from([COOPERATIVE, EAGER]),
        version=st.sampled_from([1, 3]),
        static=st.booleans(),
        interval_ms=st.sampled_from([0, 3_000]),
    )
    def begin(self, protocol: str, version: int, static: bool, interval_ms: int) -> None:
        self.world = MigrationWorld(GroupSettings(assignment_interval_ms=interval_ms), orders=5, audit=2)
        self.protocol = protocol
        self.version = version
        self.static = static
        self.lives = 0

    def alive(self) -> list[ClassicConsumer | NewConsumer]:
        return self.world.alive() if hasattr(self, "world") else []

    def one(self, number: int) -> ClassicConsumer | NewConsumer:
        alive = self.alive()
        return alive[number % len(alive)]

    @precondition(lambda self: len(self.alive()) < CONSUMERS_MAX)
    @rule(is_classic=st.booleans())
    def start(self, is_classic: bool) -> None:
        self.lives += 1
        used = {each.instance_id for each in self.alive()}
        host = next(host for host in (f"host-{number}" for number in range(CONSUMERS_MAX)) if host not in used)
        about: dict[str, Any] = {"instance_id": host if self.static else None}
        if is_classic:
            about |= {"protocol": self.protocol, "version": self.version}
            self.world.classic_consumer(f"c{self.lives}", **about).step()
        else:
            self.world.new_consumer(f"n{self.lives}", **about).step()

    @precondition(lambda self: self.alive())
    @rule(number=st.integers(0, 10), times=st.integers(1, 3))
    def step(self, number: int, times: int) -> None:
        consumer = self.one(number)
        for _ in range(times):
            if consumer.is_alive:
                consumer.step()

    @precondition(lambda self: self.alive())
    @rule(rounds=st.integers(1, 4))
    def steps(self, rounds: int) -> None:
        for _ in range(rounds):
            for consumer in self.alive():
                consumer.step()

    @precondition(lambda self: self.alive())
    @rule(number=st.integers(0, 10), dies=st.booleans())
    def end(self, number: int, dies: bool) -> None:
        consumer = self.one(number)
        if dies:
            consumer.die()
        else:
            consumer.leave()

    @rule(seconds=st.sampled_from([1, 5, 46, 61]))
    def sleep(self, seconds: int) -> None:
        """Advance the time; consumers send heartbeats in time."""
        for _ in range(seconds):
            self.world.sleep(1_000)
            if seconds > 5:
                for consumer in self.alive():
                    consumer.step()

    @rule(orders=st.integers(5, 8))
    def topics_change(self, orders: int) -> None:
        more = max(orders, self.world.topics["orders"].partitions)
        self.world.set_topics(topics(orders=more, audit=2))

    @rule()
    def take_over(self) -> None:
        """Another coordinator takes over the shard and replays the log; requests that wait for an answer get none."""
        self.world.take_over()

    # -- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        if hasattr(self, "world"):
            self.world.check_readers()

    @invariant()
    def the_log_says_what_the_coordinator_knows(self) -> None:
        if not hasattr(self, "world"):
            return
        copy = GroupsOfBothTypes(self.world.settings, self.world.classic)
        for key, value in self.world.log:
            copy.replay(key, value, 0)
        assert _seen(self.world.groups) == _seen(copy)

    def teardown(self) -> None:
        """At the end all live consumers continue, and every partition must have a reader."""
        if self.alive():
            self.world.settle()


def _seen(groups: GroupsOfBothTypes) -> object:
    """The group's state as far as the log contains it: for a classic group, without its members' sessions and a running
    rebalance."""
    group, classic = groups._groups._state.groups.get(GROUP), groups._classic.get(GROUP)
    if group is None:
        is_kept = classic is not None and classic.has_record
        return "classic" if is_kept else None
    members = {each.member_id: (each.value, each.target, each.current) for each in group.members.values()}
    return group.value, group.owners, group.classics, members, classic is not None and classic.has_record
