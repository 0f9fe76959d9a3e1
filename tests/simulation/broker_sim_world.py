"""The brokers' half of the simulator: brokers with the product's code, the cluster's rules, producers and consumers.

    world = BrokerWorld(make_broker_plan(4711)); world.run()        raises Violation

A world has one or two partitions and three or four brokers. The real ``ClusterCore`` stands for the controllers (the
other half, ``sim_world``, simulates what happens among them). Connections break, calls are lost or late, disks lose
data that was not fsynced.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headrace_broker import storage as storage_module
from headrace_broker.replication import follower_replica, follower_streams
from headrace_broker.upkeep import cleaners, retention
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import (
    AlterPartition,
    AssignDirectories,
    Bootstrap,
    CreateTopics,
    NewTopic,
    Request,
)
from headrace_core.config import LONG_MAX
from headrace_core.errors import HeadraceError, NetworkError
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.rpc.outage import Backoff
from headrace_core.testing.crashing_fs import Loss
from headrace_core.testing.network import GOOD
from tests.simulation import wrong_clocks
from tests.simulation.broker_checks import BrokerChecks
from tests.simulation.broker_clients import ConsumerModel, ProducerModel
from tests.simulation.broker_liveness import prove_while_a_disk_is_full
from tests.simulation.broker_loop import SimWriter
from tests.simulation.broker_node import CLUSTER, Broker, BrokerHost, LeaderEnd, converse, heartbeats_ended
from tests.simulation.broker_plan import BrokerPlan
from tests.simulation.broker_upkeep import TICK_S, Aside, Deleter, observing_starts
from tests.simulation.nodes_world import NodesWorld
from tests.simulation.sim_checks import Violation

TOPIC = "orders"
#: The address of the controllers in the names of links.
CONTROLLER = -1
#: The cluster must be healthy within this virtual time after the repair.
HEAL_MS = 20_000.0


class Connection:
    """The stream between a follower and its leader: messages arrive in order and completely, until the stream
    breaks."""

    def __init__(self, world: BrokerWorld, follower: BrokerHost, leader: BrokerHost) -> None:
        assert follower.loop is not None
        assert leader.broker is not None
        assert leader.loop is not None
        self.world = world
        self.follower = follower
        self.leader = leader
        self._follower_loop = follower.loop
        self._leader_loop = leader.loop
        self.is_closed = False
        #: The senders whose messages no longer arrive: no message may arrive after a lost one.
        self._stuck: list[BrokerHost] = []
        self._end = LeaderEnd(leader.broker, self)
        self._inbox: deque[Any] = deque()
        self._reading: Any = None
        world.connections.append(self)

    def to_leader(self, message: Any) -> None:
        self._send(self.follower, self.leader, message, lambda: self._leader_loop.run(self._end.received, message))

    def to_follower(self, message: Any) -> None:
        self._send(self.leader, self.follower, message, lambda: self._follower_loop.run(self._arrived, message))

    def _send(self, sender: BrokerHost, to: BrokerHost, message: Any, deliver: Callable[[], None]) -> None:
        if self.is_closed or sender in self._stuck:
            return
        delay_ms = self.world.message_delay_ms((sender.number, to.number))
        if delay_ms is None or any(trap(sender, to, message) for trap in self.world.traps):
            # TCP sends a lost packet again; a packet that never arrives breaks the connection.
            self._stuck.append(sender)
            self.world.scheduler.after(self.world.rng.uniform(20.0, 200.0), self.close)
            return

        def arrive() -> None:
            if not self.is_closed:
                deliver()

        self.world.in_order(("stream", id_of(self), sender.number), delay_ms, arrive)

    def _arrived(self, message: Any) -> None:
        self._inbox.append(message)
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    async def read(self) -> Any:
        while not self._inbox:
            if self.is_closed:
                return None
            self._reading = self._follower_loop.create_future()
            await self._reading
        return self._inbox.popleft()

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.world.connections.remove(self)
        self._leader_loop.run(self._end.closed)
        self._follower_loop.run(self._wake)

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)


def id_of(connection: Connection) -> int:
    number: int = connection.__dict__.setdefault("number", next(connection.world.numbers))
    return number


class BrokerWorld(NodesWorld):
    """See the module."""

    EVENTS_MAX = 120_000
    METADATA_LATE_MS = 500.0
    #: The timeout of a node's session with the controllers, and the grace period after a broken connection.
    SESSION_MS, GRACE_MS = 600, 100

    def __init__(self, plan: BrokerPlan, *, with_story: bool = False) -> None:
        settings = ClusterSettings(
            broker_session_timeout_ms=self.SESSION_MS,
            broker_session_disconnect_grace_ms=self.GRACE_MS,
            default_replication_factor=3,
            min_insync_replicas=plan.min_insync,
            unclean_leader_election_enable=plan.unclean,
            unclean_leader_election_interval_ms=400,
            leader_imbalance_check_interval_seconds=1,
            auto_rebalance_enable=False,
        )
        super().__init__(plan, "brokers", settings, with_story=with_story)
        self.plan = plan
        self.coverage["half", "brokers"] = 1
        self.coverage.update(wrong_clocks.events(plan.seed, wrong_clocks.BROKERS))
        self.numbers = iter(range(1 << 60))
        #: Functions of a story that decide which messages on followers' streams are lost.
        self.traps: list[Callable[[BrokerHost, BrokerHost, Any], bool]] = []
        self.connections: list[Connection] = []
        #: Until this time, calls to the controllers are late or lose their answers.
        self.lost_answers_until_ms = 0.0
        self.late_requests_until_ms = 0.0
        #: If set, a story holds every AlterPartition that is sent, and breaks its connection, so that it arrives later.
        self.held_requests: list[Request] | None = None
        self.past: list[tuple[BrokerHost, Request]] = []
        #: The steps of the metadata, each with the offset at which it begins.
        self.steps: list[tuple[int, MetadataImage, MetadataDelta]] = []
        self._known: dict[int, int] = {}
        self._waiting: dict[int, Any] = {}
        self.hosts = [BrokerHost(self, number) for number in range(1, plan.brokers + 1)]
        for host in self.hosts:
            host.clock.jump(wrong_clocks.off_ms(plan.seed, wrong_clocks.BROKERS, host.number))
        self.checks = self._new_checks()
        self.producers = [ProducerModel(self, number) for number in range(plan.producers)]
        self.consumers = [ConsumerModel(self, number) for number in range(plan.consumers)]
        self.deleters = [Deleter(self)] if plan.deletes else []
        #: Simulated threads that are working.
        self.asides: list[Aside] = []

    def _new_checks(self) -> BrokerChecks:
        return BrokerChecks(self)

    @property
    def is_well(self) -> bool:
        """Whether nothing is broken yet; all findings after the first failure are its consequences."""
        return self._failure is None

    # -- the network -------------------------------------------------------------------------------------------------

    def dial(self, follower: BrokerHost, leader_id: int) -> Connection | None:
        leader = self.host_of(leader_id)
        if leader is None or leader.broker is None or leader.is_paused or not leader.broker.acting:
            return None
        if {(follower.number, leader.number), (leader.number, follower.number)} & self.cuts:
            return None
        return Connection(self, follower, leader)

    def host_of(self, broker_id: int) -> BrokerHost | None:
        return next((host for host in self.hosts if host.number == broker_id), None)

    def node_gone(self, host: BrokerHost, broker: Broker) -> None:
        """Break the connections of a broker whose process has ended; the other brokers notice that soon."""
        for connection in [each for each in self.connections if host in (each.follower, each.leader)]:
            connection.close()
        ended = heartbeats_ended(host, broker)
        if ended is not None and (host.number, CONTROLLER) not in self.cuts:
            self.scheduler.after(self.rng.uniform(1.0, 30.0), self.decide, ended)
        for client in (*self.producers, *self.consumers):
            client.connection_lost(host)

    def power_lost(self, host: BrokerHost) -> None:
        loss = host.is_losing_power
        assert loss is not None
        host.power_loss(loss)
        host.down_until_ms = self.scheduler.now_ms + 100.0
        self.scheduler.after(100.0 + 200.0 * self.rng.random(), self.restart, host)

    def process_died(self, host: BrokerHost, life: int) -> None:
        """End a process whose disk has failed or whose registration was superseded, and start it again."""
        if host.life == life and host.is_up:
            self.count("state", "process ended by itself")
            host.kill()
            self.scheduler.after(150.0, self.restart, host)

    def restart(self, host: BrokerHost) -> None:
        if not host.is_up and self.scheduler.now_ms >= host.down_until_ms - 1e-6:
            host.start()

    # -- the controllers ---------------------------------------------------------------------------------------------

    def append(
        self,
        host: BrokerHost,
        replica: Any,
        data: bytes,
        acks: int,
        now_ms: int,
        reply: Callable[[Any], None],
        transaction: Any = None,
    ) -> None:
        """Append as the Produce service does."""

        def done(result: Any) -> None:
            self.checks.answered(host, replica, result)
            reply(result)

        replica.append(data, now_ms, done, committed=acks < 0, transaction=transaction)

    def ask(self, host: BrokerHost, request: Request, answered: Callable[[Any], None]) -> None:
        """A broker's call to the controllers, in order on its connection; the request may be late, and the request or
        the answer may be lost. An AlterPartition that is late or lost belongs to an abandoned connection: it arrives
        once, perhaps after later requests, and no broker receives its answer."""
        is_isr = isinstance(request, AlterPartition)
        delay_ms = self.message_delay_ms((host.number, CONTROLLER))
        if is_isr and self.held_requests is not None:
            self.held_requests.append(request)
            broke = NetworkError("the connection broke")
            self.scheduler.after(self.rng.uniform(1.0, 20.0), answered, broke)
            return
        is_late = is_isr and self.scheduler.now_ms < self.late_requests_until_ms and self.rng.random() < 0.5
        if is_isr and (is_late or delay_ms is None):
            self.count("state", "AlterPartition arrives late")
            self.scheduler.after(self.rng.uniform(50.0, 900.0), self.decide, request)
            return
        if delay_ms is None:
            return
        life = host.life

        def arrive() -> None:
            reply = self.decide(request)
            if isinstance(request, AlterPartition):
                self._remember(host, request, reply)
            elif isinstance(request, AssignDirectories) and not isinstance(reply, HeadraceError):
                reply = reply, self.image.next_offset
            back_ms = self.message_delay_ms((CONTROLLER, host.number))
            if back_ms is None or (is_isr and self.scheduler.now_ms < self.lost_answers_until_ms):
                self.count("state", "answer of the controllers lost")
                return
            self.in_order(("answer", host.number, life), back_ms, lambda: answered(reply))

        self.in_order(("call", host.number), delay_ms, arrive)

    def _remember(self, host: BrokerHost, request: AlterPartition, reply: Any) -> None:
        """Remember a request, so that it can be replayed later. A request that was refused because a member was fenced
        may be granted later, at the same partition epoch. No connection delivers a request twice, so a refused request
        is not replayed (docs/simulation.md)."""
        if isinstance(reply, HeadraceError):
            return
        fenced = {
            (each.topic_id, each.partition)
            for each in reply
            if each.error is not None and each.error.code == "INELIGIBLE_REPLICA"
        }
        for proposal in request.partitions:
            if (proposal.topic_id, proposal.partition) in fenced:
                self.checks.isr_refused(host, proposal)
        if not fenced:
            self.past = [*self.past[-30:], (host, request)]

    def replay(self, count: int) -> int:
        for _ in range(count if self.past else 0):
            _, request = self.past[self.rng.randrange(len(self.past))]
            self.scheduler.after(self.rng.uniform(0.0, 50.0), self.decide, request)
        return count if self.past else 0

    def _accept(self, decision: Any) -> None:
        self._log_end += len(decision.records)
        self.core.accept(decision, self._log_end, epoch=1)
        before = self.image
        for image, delta in self.core.commit(self._log_end):
            self.steps.append((before.next_offset, image, delta))
            self.checks.metadata_changed(before, image, delta)
            before = image
            for host in self.nodes:
                self._publish(host)

    def _metadata_arrives(self, host: BrokerHost, index: int) -> None:
        if (CONTROLLER, host.number) in self.cuts:
            self.scheduler.after(30.0, self._metadata_arrives, host, index)
            return
        self._known[host.number] = max(self._known.get(host.number, 0), index)
        waiting = self._waiting.pop(host.number, None)
        if waiting is not None and host.loop is waiting.get_loop():
            host.loop.run(lambda: waiting.done() or waiting.set_result(None))

    def known_to(self, host: BrokerHost) -> MetadataImage:
        known = self._known.get(host.number, 0)
        return self.steps[known - 1][1] if known else MetadataImage()

    def next_step(self, host: BrokerHost, applied: int) -> tuple[MetadataImage, MetadataDelta] | None:
        for before, image, delta in self.steps[: self._known.get(host.number, 0)][-400:]:
            if before == applied:
                return image, delta
        return None

    def more_metadata(self, host: BrokerHost) -> Any:
        assert host.loop is not None
        waiting = self._waiting[host.number] = host.loop.create_future()
        return waiting

    def backoff(self, first_ms: float, most_ms: float) -> Backoff:
        return Backoff(first_ms=first_ms, most_ms=most_ms, rng=random.Random(self.rng.random()))

    # -- the run -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        super()._end()
        for aside in self.asides:
            aside.end()

    def _patches(self) -> list[tuple[Any, str, Any]]:
        return [
            (storage_module, "DirectoryWriter", SimWriter),
            (follower_replica, "Backoff", self._backoff),
            (follower_streams, "Backoff", self._backoff),
            (follower_streams._Stream, "_converse", converse),
            (retention, "TICK_S", TICK_S),
            (cleaners, "time", SimpleNamespace(perf_counter=lambda: self.scheduler.now_ms / 1_000)),
            *observing_starts(self),
        ]

    def _run(self) -> None:
        from tests.simulation.broker_faults import BrokerFaults

        faults = BrokerFaults(self)
        for period in self.plan.periods:
            if period.is_quiet:
                self.scheduler.at(period.from_ms, faults.mend)
        for fault in self.plan.faults:
            self.scheduler.at(fault.at_ms + 150.0, faults.strike, fault)
        self.core.lead(0.0)
        self.decide(Bootstrap(CLUSTER))
        for host in self.hosts:
            host.start()
        self._upkeep()
        self.pass_until(100.0)
        self._create_topic()
        self.pass_until(150.0)
        for client in (*self.producers, *self.consumers, *self.deleters):
            client.begin()
        self.pass_until(self.plan.length_ms + 150.0)
        faults.mend()
        self._prove()

    def _create_topic(self) -> None:
        while sum(not broker.fenced for broker in self.image.brokers.values()) < 3:
            self.pass_until(self.scheduler.now_ms + 50.0)
            if self.scheduler.now_ms > 5_000.0:
                raise Violation("liveness", "no three brokers after five seconds without a fault")
        configs = {
            "min.insync.replicas": str(self.plan.min_insync),
            # Brokers' clocks are set back by hours, so producers' timestamps would be refused as too far in the future.
            "message.timestamp.after.max.ms": str(LONG_MAX),
            "segment.bytes": str(self.plan.segment_bytes),
            "index.interval.bytes": "200",
        }
        if self.plan.retention_bytes is not None:
            configs["retention.bytes"] = str(self.plan.retention_bytes)
        configs["retention.ms"] = "-1"
        configs["file.delete.delay.ms"] = "300"
        if self.plan.compacts:
            configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
        if self.plan.unclean:
            configs["unclean.leader.election.enable"] = "true"
        topic = NewTopic(name=TOPIC, partitions=self.plan.partitions, replication_factor=3, configs=configs)
        (result,) = self.decide(CreateTopics((topic,)))
        if result.error is not None:
            raise result.error

    def _prove(self) -> None:
        """After the repair: within HEAL_MS every ISR must be full, all logs must be equal, and writes must succeed. The
        same conditions must hold while a disk is full, and after that."""
        self.quality = GOOD
        self._heal()
        prove_while_a_disk_is_full(self)
        self._heal()
        self._prove_equal()

    def _heal(self) -> None:
        until_ms = self.scheduler.now_ms + HEAL_MS
        marks = [producer.acknowledged for producer in self.producers]
        while True:
            self.pass_until(self.scheduler.now_ms + 50.0)
            why = self.checks.why_not_well()
            if why is None and all(
                producer.acknowledged > mark or producer.kind == "acks=0"
                for producer, mark in zip(self.producers, marks, strict=True)
            ):
                break
            if self.scheduler.now_ms > until_ms:
                raise Violation(
                    "liveness", f"{HEAL_MS:.0f} ms after the end of all faults: {why or 'no write succeeds'}"
                )

    def _prove_equal(self) -> None:
        for producer in self.producers:
            producer.stop()
        until_ms = self.scheduler.now_ms + HEAL_MS
        while (why := self.checks.why_not_equal()) is not None:
            self.pass_until(self.scheduler.now_ms + 50.0)
            if self.scheduler.now_ms > until_ms:
                raise Violation("liveness", f"the logs do not become equal: {why}")
        self.checks.final()

    @property
    def digest(self) -> str:
        """A digest of the committed records and of the counted events: equal for equal histories."""
        covered = repr((sorted(self.coverage.items()), [sorted(truth.batches) for truth in self.checks.truths]))
        return f"{zlib.crc32(covered.encode()):08x}"

    @property
    def acknowledged(self) -> int:
        return sum(producer.acknowledged for producer in self.producers)


__all__ = ["BrokerWorld", "Loss"]
