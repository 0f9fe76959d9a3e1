"""The groups' part of the simulator: coordinators with the product's code, members with the SDK's code, the cluster's
rules.

    world = GroupWorld(make_group_plan(4711)); world.run()        raises Violation

A world has two or three coordinators, one to three shards, and one or two groups. The real ``ClusterCore`` stands for
the controllers, and its decisions reach each coordinator late, in order; ``group_log`` simulates the logs of the
shards.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from headrace.group import membership
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import (
    Bootstrap,
    CreateTopics,
    Heartbeat,
    NewTopic,
    RegisterBroker,
)
from headrace_coordinator.group import turn
from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_coordinator.offsets import logic
from headrace_coordinator.offsets.logic import OffsetSettings
from headrace_coordinator.offsets.retention import RetentionSettings
from headrace_coordinator.runtime import shard
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.transport import shard_log
from headrace_core.errors import CoordinatorNotAvailableError, NetworkError
from headrace_core.metadata import BrokerEndpoint, MetadataDelta, MetadataImage
from headrace_core.metadata.shards import OFFSETS_TOPIC, owner_of, shard_of, vacancy_of
from headrace_core.testing.network import GOOD
from headrace_core.types import TopicPartition
from tests.simulation import wrong_clocks
from tests.simulation.coordinators_side import CONTROLLERS, CoordinatorsSide
from tests.simulation.group_checks import GroupChecks
from tests.simulation.group_connections import CallPipe, MemberConnection
from tests.simulation.group_faults import GroupFaults
from tests.simulation.group_hosts import CLUSTER, GRACE_MS, SESSION_MS, Coordinator, CoordinatorHost
from tests.simulation.group_log import LogPartition
from tests.simulation.group_members import Caller, Committer, SimMember, host_of
from tests.simulation.group_plan import GroupPlan
from tests.simulation.group_transactions import PRODUCERS, Transactor
from tests.simulation.sim_checks import Violation

#: The groups must be healthy within this virtual time after the repair.
HEAL_MS = 12_000.0
#: Intervals of the groups, in ms.
GROUP_HEARTBEAT_MS = 300


class GroupWorld(CoordinatorsSide):
    """See the module."""

    EVENTS_MAX = 200_000
    METADATA_LATE_MS = 600.0

    def __init__(self, plan: GroupPlan, *, with_story: bool = False) -> None:
        settings = ClusterSettings(
            broker_session_timeout_ms=int(SESSION_MS),
            broker_session_disconnect_grace_ms=int(GRACE_MS),
            offsets_topic_num_partitions=plan.shards,
            offsets_topic_replication_factor=1,
            auto_rebalance_enable=False,
        )
        super().__init__(plan, "groups", settings, with_story=with_story)
        self.plan = plan
        self.coverage["part", "groups"] = 1
        self.coverage.update(wrong_clocks.events(plan.seed, wrong_clocks.BROKERS, wrong_clocks.COORDINATORS))
        self.numbers = iter(range(1, 1 << 60))
        self.connections: list[MemberConnection] = []
        #: Members that ask only a broker with old metadata: member -> (number of metadata steps that the broker knows,
        #: time at which this ends).
        self.behind: dict[str, tuple[int, float]] = {}
        #: No member makes auto-commits until this time.
        self.no_commits_until_ms = 0.0
        #: The controllers make no decisions without a request until this time.
        self.no_quorum_until_ms = 0.0
        self._pipes: dict[tuple[Caller, Coordinator], CallPipe] = {}
        #: True at the end of the schedule, when commits stop.
        self.commits_end = False
        self.steps: list[tuple[MetadataImage, MetadataDelta]] = []
        self.steps_ms: list[float] = []
        self.topic_names = ("t1", "t2")
        self.group_ids = [f"g{number}" for number in range(len(plan.members))]
        self._settings = GroupSettings(
            session_timeout_ms=plan.session_ms,
            heartbeat_interval_ms=GROUP_HEARTBEAT_MS,
            connection_grace_ms=plan.grace_ms,
            assignment_interval_ms=plan.assignment_interval_ms,
        )
        self._offset_settings = OffsetSettings(
            retention=RetentionSettings(retention_ms=plan.retention_ms, check_interval_ms=300)
        )
        self.logs = [LogPartition(self, TopicPartition(OFFSETS_TOPIC, number)) for number in range(plan.shards)]
        self.checks = GroupChecks(self)
        self.coordinators = self.hosts = [CoordinatorHost(self, number) for number in range(1, plan.coordinators + 1)]
        self.members = [
            SimMember(self, f"{group_id}{'abcdefgh'[place]}", number, f"host-{place}" if plan.static[number] else None)
            for number, group_id in enumerate(self.group_ids)
            for place in range(plan.members[number])
        ]
        self.committers = [Committer(self, number) for number in range(plan.committers)]
        self.transactors = [Transactor(self, number) for number in range(PRODUCERS if plan.committers > 1 else 0)]

    def new_state_machine(self) -> ShardStateMachine:
        return ShardStateMachine(GroupsOfBothTypes(self._settings, awaits_proof=True), self._offset_settings)

    def process_died(self, host: CoordinatorHost, life: int) -> None:
        if host.is_up and host.life == life:
            host.kill()
            self.scheduler.after(150.0, lambda: None if host.is_up else host.start())

    # -- the network -------------------------------------------------------------------------------------------------

    def dial(self, member: SimMember, found: tuple[int, int]) -> MemberConnection | None:
        process = host_of(found, self)
        if process is None or (member.name, process.host.name) in self.cuts:
            return None
        return MemberConnection(self, member, process)

    def call(
        self, caller: Caller, found: tuple[int, int], method: str, request: Any, answered: Callable[[Any], None]
    ) -> None:
        process = host_of(found, self)
        if process is None:
            self.scheduler.after(self.rng.uniform(0.5, 20.0), answered, NetworkError("connection refused"))
            return
        pipe = self._pipes.get((caller, process))
        if pipe is None or pipe.is_closed:
            pipe = self._pipes[caller, process] = CallPipe(self, caller, process)
        pipe.call(method, request, answered)

    def pipes_closed(self, caller: Caller) -> None:
        for key in [key for key in self._pipes if key[0] is caller]:
            self._pipes.pop(key).close(None)

    def coordinator_gone(self, host: CoordinatorHost, process: Coordinator) -> None:
        """Break the connections of a coordinator whose process has ended; the other ends notice this soon."""
        for connection in [each for each in self.connections if each.process is process]:
            connection.coordinator_died()
        for key in [key for key in self._pipes if key[1] is process]:
            self._pipes.pop(key).close(NetworkError("connection reset"))
        self.stream_left(process)

    # -- the controllers ---------------------------------------------------------------------------------------------

    def find_coordinator(self, who: Caller) -> tuple[int, int] | None:
        """The coordinator (host and life) of the caller's group, according to a broker whose metadata may be old."""
        return self._found_in(self._some_image(who)[0], who.group_id)

    def who_has(self, who: Caller) -> tuple[int, bool, float | None]:
        """The epoch of the shard of the caller's group, whether the shard has no coordinator, and the age of this
        metadata, according to a broker. The metadata may be old, but the reported age is correct."""
        group_id = who.group_id
        image, late_ms = self._some_image(who)
        topic = image.topic(OFFSETS_TOPIC)
        if topic is None:
            return 0, True, None
        shard = image.ledger.shards.get((topic.topic_id, shard_of(group_id, self.plan.shards)))
        age_ms = None if self.rng.random() < 0.05 else late_ms + self.rng.uniform(0.0, 400.0)
        vacancy = vacancy_of(image, OFFSETS_TOPIC, group_id)
        return 0 if shard is None else shard.shard_epoch, vacancy is not None, age_ms

    def owner(self, group_id: str) -> tuple[int, int] | None:
        """The coordinator of the group's shard according to the controllers: host and life."""
        return self._found_in(self.image, group_id)

    def last_vacant(self, group_id: str) -> int | None:
        """The number of metadata steps of a lagging broker to which the group's shard has no coordinator."""
        for steps in range(len(self.steps), 0, -1):
            if vacancy_of(self.steps[steps - 1][0], OFFSETS_TOPIC, group_id) is not None:
                return steps
        return None

    def falls_behind(self, who: Caller, for_ms: float, steps: int | None = None) -> None:
        """For this time, the caller gets all its answers from one broker, which receives no further metadata. The
        broker knows this number of metadata steps (None: all current ones)."""
        known = len(self.steps) if steps is None else steps
        self.behind[who.name] = known, self.scheduler.now_ms + for_ms

    def _some_image(self, who: Caller) -> tuple[MetadataImage, float]:
        """The metadata of the asked broker, and how long ago it was current."""
        steps, until_ms = self.behind.get(who.name, (0, 0.0))
        if self.scheduler.now_ms < until_ms:
            is_newest = steps == len(self.steps)
            return self.steps[steps - 1][0], 0.0 if is_newest else self.scheduler.now_ms - self.steps_ms[steps]
        late = self.rng.random() < (0.5 if self.scheduler.now_ms < self.late_metadata_until_ms else 0.15)
        at = max(len(self.steps) - 1 - (self.rng.choice([1, 2, 3, 5, 8]) if late else 0), 0)
        is_newest = at == len(self.steps) - 1
        return self.steps[at][0], 0.0 if is_newest else self.scheduler.now_ms - self.steps_ms[at + 1]

    def _found_in(self, image: MetadataImage, group_id: str) -> tuple[int, int] | None:
        try:
            owner = owner_of(image, OFFSETS_TOPIC, group_id)
        except CoordinatorNotAvailableError:
            return None
        return divmod(owner.coordinator.endpoints[0].port, 1_000)

    def _accept(self, decision: Any) -> None:
        self._log_end += len(decision.records)
        self.core.accept(decision, self._log_end, epoch=1)
        for step in self.core.commit(self._log_end):
            self.steps.append(step)
            self.steps_ms.append(self.scheduler.now_ms)
            for host in self.hosts:
                self._publish(host)

    def _metadata_arrives(self, host: CoordinatorHost, index: int) -> None:
        if (CONTROLLERS, host.name) in self.cuts:
            self.scheduler.after(30.0, self._metadata_arrives, host, index)
            return
        host.known = max(host.known, index)
        if host.process is not None and host.loop is not None:
            host.loop.run(host.process.metadata_arrived)

    def _upkeep(self) -> None:
        if self.scheduler.now_ms < self.no_quorum_until_ms:
            self.scheduler.after(25.0, self._upkeep)
            return
        self._broker_beats()
        super()._upkeep()

    # -- the run -----------------------------------------------------------------------------------------------------

    def _patches(self) -> list[tuple[Any, str, Any]]:
        return [
            (membership, "boottime_s", lambda: self.scheduler.now_ms / 1_000),
            (shard_log, "Backoff", self._backoff),
            (shard_log, "_MOVED_S", 0.15),
            (logic, "NAMESAKE_AGE_MS", 2_000),
            (turn, "ATOMIC_BYTES_MAX", self.plan.atomic_bytes),
            (shard, "BATCH_BYTES_MAX", self.plan.batch_bytes),
        ]

    def _run(self) -> None:
        faults = GroupFaults(self)
        for period in self.plan.periods:
            if period.is_quiet:
                self.scheduler.at(period.from_ms + 300.0, faults.mend)
        for fault in self.plan.faults:
            self.scheduler.at(fault.at_ms + 300.0, faults.strike, fault)
        self.core.lead(0.0)
        self._make_cluster()
        self._upkeep()
        for host in self.hosts:
            self.scheduler.after(self.rng.uniform(0.0, 60.0), host.start)
        self.pass_until(120.0)
        for client in (*self.members, *self.committers, *self.transactors):
            self.scheduler.after(self.rng.uniform(0.0, 200.0),
                                 client.start if isinstance(client, SimMember) else client.begin)  # fmt: skip
        self.pass_until(self.plan.length_ms + 300.0)
        faults.mend()
        self._prove()

    def _broker_beats(self) -> None:
        """The only broker of this part of the simulator never fails."""
        for broker in self.image.brokers.values():
            self.decide(
                Heartbeat(
                    broker_id=broker.broker_id,
                    broker_epoch=broker.broker_epoch,
                    metadata_offset=self.image.next_offset,
                    want_fence=False,
                    want_shutdown=False,
                    stream=1,
                )
            )

    def _make_cluster(self) -> None:
        self.decide(Bootstrap(CLUSTER))
        directory = self.rng.randbytes(16)
        self.decide(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=self.rng.randbytes(16),
                directory_ids=(directory,),
                endpoints=(BrokerEndpoint("internal", "host", 9_001),),
                default_log_flush="commit",
            )
        )
        self._broker_beats()
        own = CreateTopics((NewTopic(name=OFFSETS_TOPIC),), internal=True)
        topics = tuple(
            NewTopic(name=name, partitions=count, replication_factor=1)
            for name, count in zip(self.topic_names, self.plan.partitions, strict=True)
        )
        for result in (*self.decide(own), *self.decide(CreateTopics(topics))):
            if result.error is not None:
                raise result.error

    def member_ended(self, member: SimMember) -> None:
        """Start a member's process again that has ended by itself, if the plan still needs it."""
        if member.is_needed:
            self.scheduler.after(300.0, member.start)

    def _prove(self) -> None:
        """After the repair: within HEAL_MS every shard must serve, every group must be stable, and commits must
        succeed."""
        self.quality = GOOD
        until_ms = self.scheduler.now_ms + HEAL_MS
        marks = self.checks.acknowledgements
        while True:
            self.pass_until(self.scheduler.now_ms + 40.0)
            why = self.checks.why_not_well()
            if why is None and self.checks.acknowledgements > marks:
                break
            if self.scheduler.now_ms > until_ms:
                raise Violation(
                    "liveness", f"{HEAL_MS:.0f} ms after the end of all faults: {why or 'no commit succeeds'}"
                )

        self.commits_end = True
        until_ms = self.scheduler.now_ms + HEAL_MS
        while (why := self.checks.why_not_equal()) is not None:
            self.pass_until(self.scheduler.now_ms + 40.0)
            if self.scheduler.now_ms > until_ms:
                raise Violation("liveness", f"{HEAL_MS:.0f} ms after the last commit: {why}")

    @property
    def may_commit(self) -> bool:
        return not self.commits_end and self.scheduler.now_ms >= self.no_commits_until_ms

    @property
    def digest(self) -> str:
        """A digest of the committed records and of the counted events: equal for equal histories."""
        on_reply = repr((sorted(self.coverage.items()), [log.batches for log in self.logs], self.scheduler.events))
        return f"{zlib.crc32(on_reply.encode()):08x}"

    @property
    def acknowledged(self) -> int:
        return self.checks.acknowledgements
