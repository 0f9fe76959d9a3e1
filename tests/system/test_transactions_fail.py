"""Run transactions on real processes, while nodes and clients die, freeze and lose connections: a bank, and a group
that transforms records. See docs/faults-transactions.md.

HEADRACE_FAULTS      what runs, and for how long
(not set)            two faults in one of the two tests (a part of ``make test``)
rotate               the other test for a minute (a part of CI, which so runs both tests)
full                 both tests, ten minutes each (``make verify``)
name,name...         these faults, for a minute

HEADRACE_TEST_SEED determines the order of the faults; HEADRACE_TRANSACTIONS_SECONDS sets the duration.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_core.metadata.shards import SHARD_TOPICS
from headrace_core.testing import verdicts
from tests.system.bank_load import Bank
from tests.system.faulty_cluster import FaultyCluster, check_silence, eventually
from tests.system.transactional_load import PARTITIONS, TRANSACTION_TIMEOUT_S, WAIT_S, TransactionalLoad
from tests.system.transactional_process import TransactionalProcess
from tests.system.transform_load import Transform

WHICH = os.environ.get("HEADRACE_FAULTS", "")
SECONDS = float(os.environ.get("HEADRACE_TRANSACTIONS_SECONDS", {"": 0, "full": 600}.get(WHICH, 60)))
KEPT = Path(__file__).resolve().parents[2] / "build" / "kept"
SHARDS = 8
FAULTS_MIN = 2

CONFIG = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "broker.session.timeout.ms": "6000",
    "broker.session.disconnect.grace.ms": "1000",
    "replica.lag.time.max.ms": "5000",
    "transaction.state.log.num.partitions": str(SHARDS),
    "offsets.topic.num.partitions": str(SHARDS),
    "transaction.state.log.segment.bytes": str(1 << 20),
    "auto.create.topics.enable": "false",
}


class Faults:
    """The faults. Each method causes a fault, waits until the producers that must continue have committed, and repairs
    the fault."""

    def __init__(self, cluster: FaultyCluster, load: TransactionalLoad, rng: random.Random) -> None:
        self.cluster, self.load, self.rng = cluster, load, rng

    def writer(self) -> TransactionalProcess:
        return self.rng.choice(self.load.living)

    def leader(self) -> str:
        return self.cluster.leader(self.load.topics[0], self.rng.randrange(PARTITIONS))

    def controllers(self) -> list[str]:
        return [f"controller-{each}" for each in self.cluster.controller_ids]

    def brokers(self) -> list[str]:
        return [f"broker-{each}" for each in self.cluster.broker_ids]

    def heals(self) -> None:
        self.cluster.network.heal()
        if dead := self.cluster.dead():
            self.cluster.start(*dead)
        for topic in (*self.load.topics, *self.load.internal_topics):
            self.cluster.until_in_sync(topic)
        self.load.goes_on("after healing")
        self.load.until_read("after healing")

    def lasts(self) -> None:
        """Let a fault last for a random time that is shorter than the transaction timeout."""
        until_s = time.monotonic() + self.rng.uniform(0.5, 5.0)
        eventually(lambda: self.load.check() or time.monotonic() > until_s)

    # --- brokers

    def a_broker_is_killed(self) -> None:
        victim = self.leader()
        self.cluster.kill(victim)
        self.load.goes_on(f"with {victim} dead")

    def a_broker_is_frozen(self) -> None:
        victim = self.leader()
        self.cluster.pause(victim)
        self.load.goes_on(f"with {victim} frozen")
        self.cluster.resume(victim)

    def a_broker_loses_power(self) -> None:
        victim = self.leader()
        self.cluster.lose_power(victim)
        self.load.goes_on(f"with {victim} without power")

    def a_broker_is_cut_off_from_all_nodes(self) -> None:
        victim = self.leader()
        for other in [*self.brokers(), *self.controllers()]:
            if other != victim:
                self.cluster.network.cut(victim, other)
        for number in self.cluster.coordinator_ids:
            self.cluster.network.cut(f"coordinator-{number}", victim)
        self.load.goes_on(f"with {victim} cut off")

    def two_brokers_are_cut_off_from_each_other(self) -> None:
        one, other = self.rng.sample(self.brokers(), 2)
        self.cluster.network.cut(one, other)
        self.load.goes_on(f"with {one} and {other} cut off from each other")

    # --- coordinators

    def a_coordinator_is_killed(self) -> None:
        victim = self.load.coordinator_of(self.writer())
        self.cluster.kill(victim)
        self.load.goes_on(f"with {victim} dead")

    def a_coordinator_is_frozen_until_its_shards_have_moved(self) -> None:
        writer = self.writer()
        victim = self.load.coordinator_of(writer)
        self.cluster.pause(victim)
        eventually(lambda: self.load.coordinator_of(writer) != victim, f"{victim} keeps its shards")
        self.load.goes_on(f"with {victim} frozen")
        self.cluster.resume(victim)

    def a_coordinator_and_its_shards_leader_are_killed(self) -> None:
        writer = self.writer()
        victims = self.load.coordinator_of(writer), self.load.shard_leader_of(writer)
        self.cluster.kill(*victims)
        self.load.goes_on(f"with {' and '.join(victims)} dead")

    def a_coordinator_is_cut_off_from_the_controllers(self) -> None:
        victim = self.load.coordinator_of(self.writer())
        for controller in self.controllers():
            self.cluster.network.cut(victim, controller)
        self.load.goes_on(f"with {victim} cut off from the controllers")

    def a_coordinator_is_cut_off_from_a_broker_for_a_moment(self) -> None:
        writer = self.writer()
        victim = self.load.coordinator_of(writer)
        broker = self.rng.choice([self.load.shard_leader_of(writer), self.leader()])
        self.cluster.network.cut(victim, broker)
        self.lasts()

    # --- controllers

    def the_controllers_leader_is_killed(self) -> None:
        victim = self.cluster.controller_leader()
        self.cluster.kill(victim)
        self.load.goes_on(f"with {victim} dead")

    def the_controllers_leader_is_frozen(self) -> None:
        victim = self.cluster.controller_leader()
        self.cluster.pause(victim)
        self.load.goes_on(f"with {victim} frozen")
        self.cluster.resume(victim)

    # --- clients

    def a_writer_is_killed_and_has_a_successor(self) -> None:
        victim = self.writer()
        self.load.kill(victim)
        self.load.goes_on("by a successor", [self.load.open(victim.transactional_id)])

    def a_writer_is_killed_and_its_transaction_times_out(self) -> None:
        victim = self.writer()
        self.load.kill(victim)
        self.load.open()
        self.load.goes_on("without a writer")

    def a_writer_is_frozen_until_its_transaction_has_timed_out(self) -> None:
        victim = self.writer()
        victim.send_signal(signal.SIGSTOP)
        until_s = time.monotonic() + TRANSACTION_TIMEOUT_S + 2
        others = [each for each in self.load.living if each is not victim]
        eventually(lambda: time.monotonic() > until_s)
        self.load.goes_on("with a writer frozen", others)
        victim.send_signal(signal.SIGCONT)

    def a_writer_is_frozen_until_it_is_a_zombie(self) -> None:
        victim = self.writer()
        victim.send_signal(signal.SIGSTOP)
        successor = self.load.open(victim.transactional_id)
        self.load.living.remove(victim)
        self.load.goes_on("by a successor", [successor])
        victim.send_signal(signal.SIGCONT)
        eventually(lambda: victim.process.poll() is not None, f"{victim.name} does not see that it is fenced")
        victim.stop()
        if not victim.is_fenced:
            raise verdicts.SafetyViolation(f"{victim.name} is a zombie, but none of its calls was refused")

    def a_writer_is_cut_off_from_the_coordinators(self) -> None:
        victim = self.writer()
        for number in self.cluster.coordinator_ids:
            self.cluster.network.cut(victim.name, f"coordinator-{number}")
        self.lasts()

    def a_writer_is_cut_off_from_a_broker(self) -> None:
        self.cluster.network.cut(self.writer().name, self.leader())
        self.lasts()

    def connections_of_a_node_break(self) -> None:
        victim = self.rng.choice([self.leader(), self.load.coordinator_of(self.writer())])
        self.cluster.network.reset(victim)
        self.cluster.network.reset(target=victim)


def chosen(faults: Faults, rng: random.Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the faults in random order; each occurs once before any is repeated."""
    names = [name for name in vars(Faults) if name.startswith(("a_", "two_", "the_", "connections_"))]
    if WHICH not in ("", "rotate", "full"):
        names = [name for name in WHICH.split(",") if name in names]  # (others are those of test_faults.py)
    began = time.monotonic()
    number = 0
    while names:
        rng.shuffle(names)
        for name in names:
            if number >= FAULTS_MIN and time.monotonic() - began >= SECONDS:
                return
            yield name, getattr(faults, name)
            number += 1


def loads() -> list[type[Bank | Transform]]:
    """The seed chooses one of the two tests in each step of CI. With the same seed, a run of CI runs the other test in
    its second step."""
    every: list[type[Bank | Transform]] = [Bank, Transform]
    if WHICH not in ("", "rotate"):
        return every
    return [every[(int(os.environ["HEADRACE_TEST_SEED"]) + (WHICH == "rotate")) % 2]]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", loads(), ids=lambda kind: kind.__name__)
def test_transactions_hold_while_everything_fails(
    kind: type[Bank | Transform], tmp_path: Path, rng: random.Random
) -> None:
    """Bank: in every read, the amounts of each complete transfer sum to 0. Transform: each input has its output
    once."""
    with FaultyCluster(tmp_path / "cluster", coordinators=2, config=CONFIG, rng=rng, cut_clients=True) as cluster:
        try:
            with kind(cluster, rng) as load:
                faults = Faults(cluster, load, rng)
                for name, fault in chosen(faults, rng):
                    began = time.monotonic()
                    fault()
                    faults.heals()
                    took_s = time.monotonic() - began
                    print(f"{name}: {took_s:.1f} s; longest wait so far: {load.longest_wait_s:.2f} s", flush=True)
                    check_silence("a reader waited for a committed record", load.longest_wait_s, WAIT_S)
                load.judge()
                for topic in (*load.topics, *load.internal_topics):
                    cluster.until_identical(topic, range(SHARDS if topic in SHARD_TOPICS else PARTITIONS))
        except BaseException as error:
            print(cluster.tails())
            if verdicts.is_safety(error):
                name = f"{kind.__name__.lower()}-{os.environ['HEADRACE_TEST_SEED']}"
                print(f"the cluster's data and logs are kept in {verdicts.keep(cluster.directory, KEPT, name)}")
            raise
