"""The scenarios: faults while clients write and read. ``test_faults.py`` runs the scenarios; ``docs/faults.md``
describes them.

A scenario is a function with the parameter ``Run``. A scenario repeats rounds until its time is over. A round breaks a
part of the cluster, checks that the cluster continues to work (or refuses requests, where it must), and repairs the
part. ``Run.judge`` checks the result in the same way for all scenarios: no record is lost, repeated, reordered or
invented, and the replicas are equal in the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from headrace import Producer, TopicPartition
from headrace.errors import HeadraceError
from headrace_core.testing.kafka_history import Mark
from headrace_core.testing.power_loss import Loss
from tests.system import small_disk
from tests.system.faulty_cluster import TIMEOUT_S, FaultyCluster, check_silence, eventually
from tests.system.workload import Load, verdict

#: The number of records that must be acknowledged during a fault that the cluster must tolerate.
DURING_FAULT = 100
#: Bounds on the silence of a partition, in seconds (docs/faults.md).
LEADER_KILL_S, CONTROLLER_KILL_S, FULL_DISK_S, BROKEN_LINK_S = 3.0, 5.0, 5.0, 7.0
#: The session timeout of the cluster (test_faults.CONFIG), its grace for broken connections, and the duration of an
#: election.
SESSION_S, GRACE_S, ELECTION_S = 6.0, 2.0, 3.0
#: When a leader no longer answers, a producer sends to the new leader after this time (``producer.link.MOVED_S``, and
#: metadata from another node).
MOVED_S = 2.0
#: How much memory a leader may gain over a follower that does not keep up.
LEADER_GROWTH_BYTES_MAX = 256 << 20
MIB = 1 << 20
#: Bytes that a lagging follower lacks in the end, in records of this size. The leader's memory may grow only by what it
#: keeps for any follower and client.
LACKING_BYTES, LACKING_RECORD_BYTES, LACKING_GROWTH_BYTES_MAX = 96 * MIB, 16_000, 64 * MIB


@dataclass(slots=True)
class Run:
    """One execution of a scenario."""

    cluster: FaultyCluster
    topic: str
    partitions: int
    load: Load
    rng: random.Random
    seconds: float
    #: (from, to) of ``time.monotonic``: records that were sent within this time may be lost although they were
    #: acknowledged.
    lossy: list[tuple[float, float]] = field(default_factory=list)
    #: An unclean election was requested: records sent then may be lost although a consumer has read them.
    unclean: bool = False
    #: How long a partition may be without an acknowledgement; None: the fault stops a majority of its replicas.
    silence_s: float | None = None
    started: float = field(default_factory=time.monotonic)

    def rounds(self) -> Iterator[int]:
        """Count rounds from 0, at least one, until the scenario's time is over."""
        number = 0
        while number == 0 or time.monotonic() - self.started < self.seconds:
            yield number
            number += 1

    def goes_on(self, what: str, count: int = DURING_FAULT) -> None:
        """Check that the cluster tolerates the fault: ``count`` more records are acknowledged."""
        self.load.until_more(count, what=what)

    def heals(self) -> None:
        """Wait until every replica is in sync again, and more records are acknowledged."""
        self.cluster.until_in_sync(self.topic)
        self.goes_on("after healing")

    def leader(self, partition: int | None = None) -> str:
        """The name of the leader of a partition; None: of a random partition."""
        if partition is None:
            partition = self.rng.randrange(self.partitions)
        return self.cluster.leader(self.topic, partition)

    def brokers(self) -> list[str]:
        return [f"broker-{each}" for each in self.cluster.broker_ids]

    def controllers(self) -> list[str]:
        return [f"controller-{each}" for each in self.cluster.controller_ids]

    def judge(self) -> None:
        """Repair everything, read the log, and compare it with what clients have sent and read."""
        self.cluster.network.heal()
        if dead := self.cluster.dead():
            self.cluster.start(*dead)
        self.cluster.until_in_sync(self.topic)
        self.load.end_producing()
        self.cluster.until_identical(self.topic, range(self.partitions))
        self.load.read_the_log()
        print(f"the longest silence of a partition: {self.load.longest_silence_s:.2f} s, allowed: {self.silence_s}")
        if self.silence_s is not None:
            check_silence("a partition had no acknowledgement", self.load.longest_silence_s, self.silence_s)
        verdict(self.load, may_lose=self._may_lose, unclean=self.unclean)

    def _may_lose(self, mark: Mark) -> bool:
        return bool(self.lossy) and self.load.sent_between(mark, self.lossy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``everyday``: the scenario is part of ``make test``. ``config``: configuration keys that only this scenario's
    nodes have; such a scenario gets its own cluster."""

    name: str
    tell: Callable[[Run], None]
    everyday: bool = False
    partitions: int = 3
    copies: int = 3
    topic: Mapping[str, str] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    #: The bound of docs/faults.md on the silence of a partition.
    silence_s: float | None = None
    config: Mapping[str, str] = field(default_factory=dict)


SCENARIOS: dict[str, Scenario] = {}


def scenario(**how: Any) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    def register(tell: Callable[[Run], None]) -> Callable[[Run], None]:
        SCENARIOS[tell.__name__] = Scenario(name=tell.__name__, tell=tell, **how)
        return tell

    return register


# ---------------------------------------------------------------------------------------------- processes that die


@scenario(everyday=True, silence_s=LEADER_KILL_S)
def a_leader_is_killed_again_and_again(run: Run) -> None:
    for number in run.rounds():
        leader = run.leader(number % run.partitions)
        run.cluster.kill(leader)
        run.goes_on(f"with {leader} dead")
        run.cluster.start(leader)
        run.heals()


@scenario(silence_s=LEADER_KILL_S)
def a_follower_is_killed_again_and_again(run: Run) -> None:
    for number in run.rounds():
        follower = run.rng.choice(run.cluster.followers(run.topic, number % run.partitions))
        run.cluster.kill(follower)
        run.goes_on(f"with {follower} dead")
        run.cluster.start(follower)
        run.heals()


@scenario(everyday=True, silence_s=SESSION_S + ELECTION_S)
def all_brokers_and_controllers_lose_power_at_once(run: Run) -> None:
    for number in run.rounds():
        run.goes_on("between power losses")
        loss = (Loss.ALL, Loss.PREFIX, Loss.BLOCKS)[number % 3]
        with run.load.without_nodes():
            lost = run.cluster.lose_power(*run.brokers(), *run.controllers(), loss=loss)
            print(f"round {number}: {lost} unforced bytes are gone ({loss.value})")
            run.cluster.start()
        run.heals()


@scenario(silence_s=LEADER_KILL_S)
def a_leader_loses_power_and_the_tail_of_its_log_is_torn(run: Run) -> None:
    for number in run.rounds():
        partition = number % run.partitions
        leader = run.leader(partition)
        run.cluster.lose_power(leader, loss=run.rng.choice([Loss.PREFIX, Loss.BLOCKS]))
        tail = sorted(run.cluster.replica(leader, run.topic, partition).glob("*.log"))[-1]
        with tail.open("ab") as file:  # half of a batch, and random bytes
            file.write(tail.read_bytes()[:40] + run.rng.randbytes(run.rng.randrange(1, 200)))
        run.goes_on(f"with {leader} dead")
        run.cluster.start(leader)
        run.heals()


@scenario(silence_s=SESSION_S + ELECTION_S)
def a_leader_is_frozen_until_its_session_is_over_and_thaws(run: Run) -> None:
    for number in run.rounds():
        partition = number % run.partitions
        leader = run.leader(partition)
        run.cluster.pause(leader)
        run.goes_on(f"while {leader} is frozen")
        eventually(lambda p=partition, old=leader: run.leader(p) != old, f"{leader} is not replaced")
        run.goes_on("with a new leader")
        run.cluster.resume(leader)  # it still considers itself the leader
        run.heals()


@scenario(silence_s=CONTROLLER_KILL_S)
def the_controllers_leader_is_killed_and_no_send_fails(run: Run) -> None:
    for _ in run.rounds():
        leader = run.cluster.controller_leader()
        run.cluster.kill(leader)
        run.goes_on(f"with {leader} dead")
        run.cluster.start(leader)
        run.heals()
    assert not run.load.errors, run.load.errors


@scenario(silence_s=LEADER_KILL_S)
def brokers_are_restarted_one_after_the_other(run: Run) -> None:
    for number in run.rounds():
        name = run.brokers()[number % len(run.brokers())]
        run.cluster.stop(name)
        run.goes_on(f"with {name} stopped")
        run.cluster.start(name)
        run.heals()
    assert not run.load.errors, run.load.errors


@scenario(silence_s=LEADER_KILL_S)
def a_broker_comes_back_with_an_empty_disk(run: Run) -> None:
    for number in run.rounds():
        name = run.leader(number % run.partitions)
        run.cluster.kill(name)
        run.goes_on(f"with {name} dead")
        run.cluster.wipe(name)
        run.cluster.start(name)
        run.heals()


# ---------------------------------------------------------------------------------------------- the network


@scenario(silence_s=SESSION_S + ELECTION_S + MOVED_S)
def a_leader_is_cut_off_from_all_other_nodes_while_clients_reach_it(run: Run) -> None:
    for number in run.rounds():
        partition = number % run.partitions
        leader = run.leader(partition)
        for other in [*run.brokers(), *run.controllers()]:
            if other != leader:
                run.cluster.network.cut(leader, other)
        eventually(lambda p=partition, old=leader: run.leader(p) != old, f"{leader} is not replaced")
        run.goes_on(f"with {leader} cut off")
        run.cluster.network.heal()
        run.heals()


# Kafka's default: leaders do not wait for this replica
@scenario(silence_s=BROKEN_LINK_S, config={"replica.lag.time.max.ms": "30000"})
def a_leader_and_one_follower_are_cut_off_from_each_other(run: Run) -> None:
    for number in run.rounds():
        partition = number % run.partitions
        leader = run.leader(partition)
        follower = run.rng.choice(run.cluster.followers(run.topic, partition))
        run.cluster.network.cut(leader, follower)
        run.cluster.until_out_of_sync(run.topic, follower, partition)
        run.goes_on(f"without {follower}")
        run.cluster.network.heal()
        run.heals()


@scenario(silence_s=BROKEN_LINK_S, config={"replica.lag.time.max.ms": "30000"})
def what_a_leader_says_does_not_arrive_at_one_follower(run: Run) -> None:
    """The messages of the follower do arrive, so the leader knows that the follower is alive."""
    for number in run.rounds():
        partition = number % run.partitions
        leader = run.leader(partition)
        follower = run.rng.choice(run.cluster.followers(run.topic, partition))
        run.cluster.network.cut(leader, follower, one_way=True)
        run.cluster.until_out_of_sync(run.topic, follower, partition)
        run.goes_on(f"with {follower} deaf to {leader}")
        run.cluster.network.heal()
        run.heals()


@scenario(silence_s=BROKEN_LINK_S, config={"replica.lag.time.max.ms": "30000"})
def what_a_follower_says_does_not_arrive(run: Run) -> None:
    for number in run.rounds():
        partition = number % run.partitions
        leader = run.leader(partition)
        follower = run.rng.choice(run.cluster.followers(run.topic, partition))
        run.cluster.network.cut(follower, leader, one_way=True)
        run.cluster.until_out_of_sync(run.topic, follower, partition)
        run.goes_on(f"with {follower} deaf")
        run.cluster.network.heal()
        run.heals()


@scenario(silence_s=GRACE_S + ELECTION_S)
def connections_break_and_come_back_within_the_grace_and_nothing_moves(run: Run) -> None:
    run.goes_on("at first")
    before = run.cluster.describe(run.topic)
    for number in run.rounds():
        name = run.brokers()[number % len(run.brokers())]
        broken = run.cluster.network.reset(name) + run.cluster.network.reset(target=name)
        assert broken > 0, f"{name} has no connections"
        run.goes_on(f"after the connections of {name} broke", 3 * DURING_FAULT)
        eventually(lambda n=name: run.cluster.network.connections(n) > 0, f"{name} does not connect again")
    now = run.cluster.describe(run.topic)
    assert [(each.leader, each.leader_epoch) for each in now] == [(each.leader, each.leader_epoch) for each in before]
    assert all(set(each.isr) == set(each.replicas) for each in now)
    assert not run.load.errors, run.load.errors


@scenario(silence_s=BROKEN_LINK_S)
def the_network_between_brokers_is_slow_and_stumbles(run: Run) -> None:
    names = run.brokers()
    for number in run.rounds():
        run.cluster.network.delay(names[0], names[1], 30)
        run.cluster.network.throttle(names[1], names[2], 300_000)
        run.goes_on("over a slow network")
        run.cluster.network.stall(names[number % 3], names[(number + 1) % 3])
        run.goes_on("while a cable is out", 20)
        run.cluster.network.heal()
        run.heals()


# ---------------------------------------------------------------------------------------------- disks


@scenario(partitions=1, load={"producers": 4, "pause_s": 0.001, "value_bytes": 2000})
def a_follower_with_a_slow_disk_is_left_behind_and_comes_back(run: Run) -> None:
    for _ in run.rounds():
        run.goes_on("at first")
        leader = run.leader(0)
        (follower, *_) = run.cluster.followers(run.topic, 0)
        process = psutil.Process(run.cluster.pid(leader))
        before = process.memory_info().rss
        with run.cluster.slow_disk(follower, 200):
            # Clients that wait for their acknowledgements cannot be faster than the slow follower, which delays them
            # and stays in sync.
            run.goes_on(f"while {follower} takes 200 ms for a sync", 5 * DURING_FAULT)
        with run.cluster.slow_disk(follower, 8_000):
            run.cluster.until_out_of_sync(run.topic, follower)
            run.goes_on(f"without {follower}", 5 * DURING_FAULT)
            grown = process.memory_info().rss - before
        assert grown < LEADER_GROWTH_BYTES_MAX, f"{leader} has grown by {grown >> 20} MiB"
        run.heals()


@scenario(
    partitions=1,
    load={"producers": 4, "pause_s": 0.001, "value_bytes": LACKING_RECORD_BYTES},
    # (A fetch must not wait longer than the lag.)
    config={"replica.lag.time.max.ms": "100", "replica.fetch.wait.max.ms": "50"},
)
def a_follower_whose_disk_takes_longer_than_the_lag_that_is_allowed_leaves_and_comes_back(run: Run) -> None:
    for number in run.rounds():
        run.goes_on("at first", 3 * DURING_FAULT)
        leader = run.leader(0)
        (follower, *_) = run.cluster.followers(run.topic, 0)
        with run.cluster.slow_disk(follower, 200):
            run.cluster.until_out_of_sync(run.topic, follower)
            process = psutil.Process(run.cluster.pid(leader))
            before = process.memory_info().rss
            lacking = DURING_FAULT if number else LACKING_BYTES // LACKING_RECORD_BYTES
            run.goes_on(f"while {follower} takes 200 ms for a sync", lacking)
            if run.leader(0) == leader and process.is_running():
                grown = process.memory_info().rss - before
                print(f"round {number}: {leader} has grown by {grown >> 20} MiB over {lacking} records")
                assert grown < LACKING_GROWTH_BYTES_MAX, f"{leader} has grown by {grown >> 20} MiB"
        run.heals()


@scenario(silence_s=FULL_DISK_S)
def the_disk_of_one_replica_is_full(run: Run) -> None:
    name = small_disk.broker_of(run.cluster)
    broker = run.cluster.node(name).id
    led = TopicPartition(
        run.topic, next(each.partition for each in run.cluster.describe(run.topic) if broker == each.replicas[0])
    )
    for _ in run.rounds():
        run.cluster.preferred_leader(run.topic, led.partition)
        with small_disk.full(run.cluster):
            eventually(
                lambda: all(
                    each.leader != broker and broker not in each.isr for each in run.cluster.describe(run.topic)
                ),
                lambda: f"{name} leads, or is in sync: {run.cluster.describe(run.topic)}",
            )
            run.goes_on(f"with the disk of {name} full", 10 * DURING_FAULT)
            assert run.cluster.node(name).alive()
        run.heals()
        run.cluster.preferred_leader(run.topic, led.partition)
    assert not run.load.errors, run.load.errors


@scenario(everyday=True, partitions=1)
def a_byte_of_the_leaders_log_flips_below_the_high_watermark(run: Run) -> None:
    for _ in run.rounds():
        run.goes_on("at first", 300)
        # no consumer reads at a former leader, so it does not notice the damage
        leader = run.cluster.preferred_leader(run.topic, 0)
        start = sorted(run.cluster.replica(leader, run.topic, 0).glob("*.log"))[0]
        before = run.cluster.replica_bytes(leader, run.topic, 0)
        said = len(run.cluster.log(leader))
        _flip(start, position=start.stat().st_size // 3, rng=run.rng)
        # A new consumer reads the damaged part. The leader notices the damage, steps down, and copies the log from the
        # other replicas.
        run.cluster.until_logged(leader, "corrupt", since=said)
        run.goes_on(f"after the log of {leader} was damaged")
        run.heals()
        eventually(
            lambda n=leader, b=before: run.cluster.replica_bytes(n, run.topic, 0).startswith(b),
            f"{leader} does not hold again what it held",
        )
    # No client gets an error, because the undamaged replicas have all records.
    assert not run.load.errors, run.load.errors
    assert not run.load.reading_errors, run.load.reading_errors


@scenario(partitions=1)
def bytes_of_indexes_checkpoints_and_snapshots_flip_while_a_broker_is_down(run: Run) -> None:
    for number in run.rounds():
        run.goes_on("at first", 300)
        name = run.rng.choice(run.brokers())
        run.cluster.kill(name)
        replica = run.cluster.replica(name, run.topic, 0)
        files = [
            *replica.glob("*.index"),
            *replica.glob("*.timeindex"),
            *replica.glob("*.snapshot"),
            *replica.glob("leader-epoch-checkpoint"),
            *run.cluster.data(name).glob("*-checkpoint"),
        ]
        damaged = [file for file in files if file.stat().st_size]
        for file in damaged:
            _flip(file, position=run.rng.randrange(file.stat().st_size), rng=run.rng)
        print(f"round {number}: a byte of each of {[file.name for file in damaged]} of {name}")
        run.goes_on(f"with {name} dead")
        run.cluster.start(name)
        run.heals()


def _flip(path: Path, *, position: int, rng: random.Random) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ rng.randrange(1, 256)]))


# ---------------------------------------------------------------------------------------------- operators


@scenario(copies=2, topic={"min.insync.replicas": "1"})
def partitions_are_reassigned_under_load(run: Run) -> None:
    ids = run.cluster.broker_ids
    for number in run.rounds():
        wanted = {
            TopicPartition(run.topic, partition): [ids[(partition + number + step) % len(ids)] for step in (1, 2)]
            for partition in range(run.partitions)
        }
        run.cluster.begin_reassignment(wanted)
        run.goes_on("while partitions move")
        run.cluster.until_reassigned(wanted)
        run.heals()


# ---------------------------------------------------------------------------------------------- what every text tells


@scenario(partitions=1, topic={"min.insync.replicas": "1"})
def three_replicas_of_which_one_must_be_in_sync_survive_two_failures(run: Run) -> None:
    for _ in run.rounds():
        run.goes_on("at first")
        first = run.leader(0)
        run.cluster.kill(first)
        run.goes_on("after one failure")
        second = run.leader(0)
        others = [each for each in run.cluster.followers(run.topic, 0) if each != first]
        run.cluster.until_out_of_sync(run.topic, first)
        run.cluster.kill(*others)
        run.goes_on(f"after two failures, with {second} alone")
        run.cluster.start(first, *others)
        run.heals()


@scenario(partitions=1, topic={"min.insync.replicas": "2"})
def three_replicas_of_which_two_must_be_in_sync_refuse_writes_after_the_second_failure(run: Run) -> None:
    for _ in run.rounds():
        run.goes_on("at first")
        leader = run.leader(0)
        one, other = run.cluster.followers(run.topic, 0)
        run.cluster.kill(one)
        run.goes_on("after one failure")
        run.cluster.kill(other)
        run.cluster.until_out_of_sync(run.topic, other)
        before = run.load.acknowledged
        refused = _send_once(run)
        assert refused == "NOT_ENOUGH_REPLICAS", f"{leader} alone must refuse; it said {refused!r}"
        assert run.load.acknowledged <= before + 5, "what was on its way at the second failure, and no more"
        run.cluster.start(one, other)
        run.heals()


def _send_once(run: Run) -> str:
    """Send one record with acks=all, without a retry and outside of the history; return the code of the error, or "" if
    the record was written."""
    place = {**run.cluster.client, "bootstrap.servers": run.cluster.bootstrap}
    settings = {**place, "acks": "all", "enable.idempotence": False, "retries": 0}
    with Producer(settings) as producer:
        try:
            producer.send(run.topic, b"probe", partition=0).result(timeout=TIMEOUT_S)
        except HeadraceError as error:
            return error.code
    return ""


def _lossy_deaths(run: Run) -> None:
    """The leader loses power, and returns as a follower. Only records that were sent shortly before may be lost."""
    for _ in run.rounds():
        run.goes_on("between failures")
        leader = run.leader(0)
        before = time.monotonic()
        run.cluster.lose_power(leader)
        run.goes_on(f"with {leader} dead", 20)
        # Records of the second before the failure may be lost: they had not reached the followers, or not even the
        # leader.
        run.lossy.append((before - 1.0, time.monotonic()))
        run.cluster.start(leader)
        run.heals()


@scenario(partitions=1, load={"idempotent": False, "producer_settings": {"acks": "1"}})
def with_acks_1_only_what_a_dying_leader_had_not_copied_may_be_lost(run: Run) -> None:
    _lossy_deaths(run)


@scenario(partitions=1, load={"idempotent": False, "producer_settings": {"acks": "0"}})
def with_acks_0_only_what_was_on_its_way_to_a_dying_leader_may_be_lost(run: Run) -> None:
    _lossy_deaths(run)


@scenario(partitions=1, topic={"min.insync.replicas": "1"})
def an_unclean_leader_is_elected_only_when_asked_for(run: Run) -> None:
    for _ in run.rounds():
        run.goes_on("at first")
        last = run.leader(0)
        others = run.cluster.followers(run.topic, 0)
        before = time.monotonic()
        run.cluster.kill(*others)
        for other in others:
            run.cluster.until_out_of_sync(run.topic, other)
        run.goes_on(f"with {last} alone")
        run.cluster.kill(last)
        run.cluster.start(*others)
        eventually(
            lambda: run.cluster.describe(run.topic)[0].leader == -1,
            lambda: (
                "the only replica with all records is dead, but another replica leads: "
                f"{run.cluster.describe(run.topic)}"
            ),
        )
        for _ in range(20):  # no replica leads, although two of them are alive
            assert run.cluster.describe(run.topic)[0].leader == -1
            run.load.stopping.wait(0.1)
        partition = TopicPartition(run.topic, 0)
        eventually(
            lambda p=partition: run.cluster.ask(lambda admin: admin.elect_leaders("unclean", [p]) or True),
            "no election is held",
        )
        run.unclean = True
        run.leader(0)
        run.lossy.append((before - 1.0, time.monotonic()))
        run.goes_on("with an unclean leader")
        run.cluster.start(last)
        run.heals()
