"""The simulated cluster: controllers, brokers, administrators and operators on one scheduler, and the connections
between them.

``ControllersWorld(plan)`` depends on nothing except its plan, so the same plan gives the same run, event by event.
``run`` executes the schedule, repairs all damage, and asserts that the cluster is healthy again. The checks run after
every event, for the nodes that the event concerned; a broken promise raises ``Violation``.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import Request
from headrace_controller.quorum_controller import QuorumSettings
from headrace_controller.raft import (
    EntryKind,
    HeartbeatRequest,
    Message,
    RaftSettings,
    ReplicaKey,
    Role,
    SnapshotRequest,
    TimeoutNow,
    VoteResponse,
    VoterSet,
)
from headrace_core.testing.crashing_fs import Loss
from headrace_core.testing.network import SimulatedNetwork
from headrace_core.testing.scheduler import Scheduler
from tests.simulation.sim_brokers import SimulatedBroker
from tests.simulation.sim_checks import SafetyChecks, Violation
from tests.simulation.sim_clients import AdminClient, Read, marks_of
from tests.simulation.sim_cluster import ClusterWatch
from tests.simulation.sim_controllers import ControllerHost, disk_identity
from tests.simulation.sim_movers import Movers
from tests.simulation.sim_operators import Operator
from tests.simulation.sim_plan import Fault, Plan
from tests.simulation.sim_stories import StoryTeller
from tests.simulation.sim_story import Story

#: Network addresses: controllers use their node ids, brokers and clients use larger numbers.
BROKER_ADDRESS, CLIENT_ADDRESS = 100, 200
#: A schedule has about 6,000 events; a schedule with this many events makes no progress.
EVENTS_MAX = 150_000


class _Stumbles(logging.Handler):
    """Collects errors that the product only logs, so that the cluster keeps its controller: an exception in a rule."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            self.found.append(f"{record.getMessage()}: {record.exc_info[0].__name__}: {record.exc_info[1]}")


_STUMBLES = _Stumbles()


def listen_to_the_log() -> None:
    """Install the handler once per process. Without the handler, errors that the product only logs are not found."""
    logging.root.handlers[:] = [_STUMBLES]
    logging.root.setLevel(logging.ERROR)


def take_what_was_logged() -> list[str]:
    """The exceptions that the product has only logged since the last call."""
    found, _STUMBLES.found = _STUMBLES.found, []
    return found


class Call(NamedTuple):
    """A request in transit to a controller. ``answered(result)`` is called when the reply arrives."""

    request: Request
    answered: Callable[[Any], None]


class ControllersWorld:
    """See the module."""

    def __init__(self, plan: Plan, *, with_story: bool = False) -> None:
        self.plan = plan
        self.spread = plan.spread
        self.scheduler = Scheduler()
        self.rng = random.Random(f"world {plan.seed}")
        self.story = Story(with_story)
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.checks = SafetyChecks()
        self.checks.marks_of = marks_of
        self.cluster_id = "simulated-cluster-0001"
        self.reserve_bytes = 0
        self.cluster_settings = cluster_settings()
        self.quorum_settings = QuorumSettings(
            election_timeout_ms=1_000.0,
            snapshot_bytes=plan.snapshot_bytes,
            snapshot_interval_ms=0.0,
            raft=RaftSettings(
                heartbeat_ticks=QuorumSettings().raft.heartbeat_ticks,
                message_bytes_max=plan.message_bytes_max,
                in_flight_messages_max=plan.in_flight_messages_max,
                snapshot_chunk_bytes=plan.snapshot_chunk_bytes,
                learner_lag_max=200,
                recall_ticks=QuorumSettings().raft.recall_ticks,
            ),
        )
        self.net: SimulatedNetwork[int, Message] = SimulatedNetwork(
            self.scheduler, random.Random(f"net {plan.seed}"), self._message_arrives, self._count_fault
        )
        self.net.quality = plan.quality
        self.calls: SimulatedNetwork[int, Any] = SimulatedNetwork(
            self.scheduler, random.Random(f"calls {plan.seed}"), self._call_arrives
        )
        self.is_quiet = False
        self.is_healing = False
        #: The time since when no node may stand for election.
        self.calm_since_ms: float | None = None
        #: For a mutant: an exception of the product ends only its node; the first exception is the failure of the run.
        self.goes_past_exceptions = False
        self.exception: BaseException | None = None
        #: A connection was broken in a calm time: its end may start pre-votes, but depose no leader.
        self.has_flapped = False
        self.mend_all: list[Callable[[], None]] = []
        self.story_teller = StoryTeller(self)
        self.disk_ms_range = plan.disk_ms
        self._answers: deque[Callable[[], None]] = deque()
        self._connected: set[tuple[int, int]] = set()
        self.traps: list[Callable[[ControllerHost, Message], bool]] = []
        self._modes: dict[tuple[ReplicaKey, int, ReplicaKey], str] = {}
        self.past_calls: deque[tuple[int, Request]] = deque(maxlen=60)
        self.happened: Counter[str] = Counter()
        self._digest = hashlib.blake2b(digest_size=16)

        self.hosts: dict[int, ControllerHost] = {}
        first = [self._new_host() for _ in range(plan.voters)]
        identities = [disk_identity(host.node_id, 1) for host in first]
        voters = VoterSet.of(identities, {key.node_id: f"c{key.node_id}:1" for key in identities})
        for host in first:
            host.format(voters)
        self.brokers = [SimulatedBroker(self, number) for number in range(plan.brokers)]
        self.clients = [AdminClient(self, number) for number in range(plan.clients)]
        self.operator = Operator(self)
        self.movers = Movers(self)
        self.watch = ClusterWatch(self)

    # -- who there is -------------------------------------------------------------------------------------------------

    def _new_host(self) -> ControllerHost:
        host = ControllerHost(self, len(self.hosts) + 1)
        self.hosts[host.node_id] = host
        return host

    def add_host(self) -> ControllerHost:
        """Add a machine with an empty disk, which waits to be made a voter."""
        host = self._new_host()
        host.format(None)
        host.start()
        return host

    @property
    def now_ms(self) -> float:
        return self.scheduler.now_ms

    def up(self) -> list[ControllerHost]:
        return [host for host in self.hosts.values() if host.controller is not None]

    def leader(self) -> ControllerHost | None:
        """The controller that leads in the highest term, as an outside observer sees it."""
        found = [host for host in self.hosts.values() if host.leads]
        return max(found, key=lambda host: host.controller.term if host.controller else -1, default=None)

    # -- telling, counting --------------------------------------------------------------------------------------------

    def tell(self, who: object, what: str) -> None:
        self._digest.update(f"{self.scheduler.now_ms:.3f} {who} {what}\n".encode())
        if self.story.is_wanted:
            self.story.tell(self.now_ms, str(who), what)

    def count(self, category: str, name: str, times: int = 1) -> None:
        self.coverage[category, name] += times

    def _count_fault(self, kind: str) -> None:
        self.coverage["message", kind] += 1
        self.happened[kind] += 1

    @property
    def digest(self) -> str:
        """A digest of all printed events, which is equal for two runs of one plan."""
        return self._digest.hexdigest()

    # -- delays -------------------------------------------------------------------------------------------------------

    def loop_ms(self, rng: random.Random) -> float:
        low, high = self.plan.loop_ms
        return low + rng.random() * (high - low)

    def disk_ms(self, rng: random.Random, *, is_slow: bool = False) -> float:
        low, high = self.disk_ms_range
        return (low + rng.random() * (high - low)) * (40.0 if is_slow else 1.0)

    def draw_loss(self, rng: random.Random) -> Loss:
        return rng.choice([Loss.ALL, Loss.ALL, Loss.PREFIX, Loss.BLOCKS])

    # -- controllers talk ---------------------------------------------------------------------------------------------

    def controller_says(self, host: ControllerHost, message: Message) -> None:
        body = message.body
        kind = type(body)
        if kind is HeartbeatRequest:
            self._note_mode(host, message.to)
        elif kind is SnapshotRequest:
            self.count("state", "snapshot chunk sent")
        elif kind is VoteResponse:
            if body.is_granted and not body.is_pre_vote:
                self.count("state", "vote granted")
                self.tell(host, f"votes for {message.to.node_id} in term {body.asked_term}")
            elif not body.is_granted:
                self.count("state", "pre-vote refused" if body.is_pre_vote else "vote refused")
        elif kind is TimeoutNow:
            self.count("state", "lead handed over")
        if self.traps:
            for trap in self.traps:
                if trap(host, message):
                    return
        self.net.send(host.node_id, message.to.node_id, message)

    def _note_mode(self, host: ControllerHost, to: ReplicaKey) -> None:
        assert host.controller is not None
        progress = host.controller.raft.progress_of(to)
        if progress is not None:
            key, mode = (host.key, host.controller.term, to), progress.mode.value
            before = self._modes.get(key, "none")
            if before != mode:
                self._modes[key] = mode
                self.coverage["progress", f"{before} -> {mode}"] += 1

    def _message_arrives(self, sender: int, to: int, message: Message) -> None:
        host = self.hosts.get(to)
        if host is not None and host.controller is not None:
            host.receive(message)

    def role_changed(
        self, host: ControllerHost, before: tuple[Role, int, int] | None, now: tuple[Role, int, int]
    ) -> None:
        role, term, leader = now
        was = before[0] if before is not None else Role.FOLLOWER
        if was is not role:
            self.count("role", f"{was.value} -> {role.value}")
            self.tell(host, f"is {role.value} in term {term}, and was {was.value}")
        elif role is Role.FOLLOWER and leader >= 0 and (before is None or before[2] != leader):
            self.tell(host, f"follows {leader} in term {term}")
        if role is Role.LEADER and was is not Role.LEADER:
            self.operator.leader_came(host)
            self.scheduler.after(0.0, self._ask_a_new_leader, host)
        stands = Role.CANDIDATE if self.has_flapped else Role.PROSPECTIVE
        if self.is_quiet and self.calm_since_ms is not None and role is stands:
            raise Violation(
                "calm",
                f"{host} stands for election, {self.now_ms - self.calm_since_ms:.0f} ms after all was calm",
            )

    def _ask_a_new_leader(self, host: ControllerHost) -> None:
        """Request a read whenever a new leader does not know yet what is committed."""
        if host.leads and host.controller is not None and not host.is_paused:
            Read(self, lambda result: None, CLIENT_ADDRESS).act(host, host.controller)
            host.wake()

    def disk_says(self, host: ControllerHost, what: str, value: Any) -> None:
        if what == "appends":
            for entry in value:
                if entry.kind is EntryKind.VOTERS:
                    self.count("state", "voters changed in a log")
                    self.tell(host, f"has voters {entry.voters} in its log, at {entry.base_offset}/{entry.term}")
        elif what == "rolls":
            self.count("state", "log rolled")
        elif what == "refuses":
            self.count("state", "append refused")
        elif what == "cuts":
            self.count("state", "log truncated")
            self.tell(host, f"cuts its log at {value}")
        elif what == "installs":
            self.count("state", "snapshot installed")
            self.tell(host, f"installs the snapshot up to {value.place}")

    def history_grew(self) -> None:
        """Called when the checks find a commit that no node had reported: leaders of later terms must have it."""
        last = self.checks.history[-1]
        if last.kind is EntryKind.VOTERS:
            self.count("state", "voters changed")
        for host in self.hosts.values():
            controller = host.controller
            if controller is not None and controller.role is Role.LEADER and controller.term > last.term:
                log = controller.raft.log
                self.checks.complete(
                    host.key, controller.term, lambda offset, term, log=log: log.term_below(offset) == term
                )

    # -- connections between controllers ------------------------------------------------------------------------------

    def controller_came(self, host: ControllerHost) -> None:
        for other in self.hosts.values():
            if other is not host:
                self.scheduler.after(1.0 + 20.0 * self.rng.random(), self.connect, host, other)

    def controller_went(self, host: ControllerHost) -> None:
        for other in self.hosts.values():
            if other is not host:
                self.net.reset(host.node_id, other.node_id)
                self.net.reset(other.node_id, host.node_id)
                if not self.net.is_cut(host.node_id, other.node_id):
                    self.scheduler.after(0.3 + self.rng.random(), self.lose, other, host.key)

    def connect(self, one: ControllerHost, other: ControllerHost) -> None:
        """Open the streams between two controllers: each controller knows that the other controller is connected."""
        if one.controller is None or other.controller is None:
            return
        if self.net.is_cut(one.node_id, other.node_id) or self.net.is_cut(other.node_id, one.node_id):
            return
        for who, whom in ((one, other), (other, one)):
            if not who.is_paused:
                controller = who.controller
                who.guarded(lambda controller=controller, whom=whom: controller.observe(whom.key))
                who.wake()

    def lose(self, host: ControllerHost, key: ReplicaKey) -> None:
        """Break the connection to another controller."""
        controller = host.controller
        if controller is not None and not host.is_paused:
            self.count("state", "connection lost")

            def lost() -> None:
                controller.peer_lost(key)
                controller.forget(key)

            host.guarded(lost)
            host.wake()

    def cut(self, links: Sequence[tuple[int, int]]) -> None:
        self.net.cut(links)
        for sender, to in links:
            self.scheduler.after(300.0 + 500.0 * self.rng.random(), self._cut_noticed, sender, to)

    def _cut_noticed(self, sender: int, to: int) -> None:
        """Close a connection at both ends, because keep-alives were not answered."""
        if self.net.is_cut(sender, to):
            for one, other in ((sender, to), (to, sender)):
                self.lose(self.hosts[one], self.hosts[other].key)

    def mend(self, links: Sequence[tuple[int, int]]) -> None:
        self.net.mend(links)
        for sender, to in links:
            self.scheduler.after(50.0 * self.rng.random(), self.connect, self.hosts[sender], self.hosts[to])

    # -- faults that several things cause -----------------------------------------------------------------------------

    def crash_now(self, host: ControllerHost, loss: Loss, *, down_ms: float = 200.0) -> None:
        host.power_loss(loss)
        host.down_until_ms = self.now_ms + down_ms
        self.restart_later(host, down_ms)

    def restart_later(self, host: ControllerHost, delay_ms: float) -> None:
        self.scheduler.after(delay_ms, self.restart, host)

    def restart(self, host: ControllerHost) -> None:
        if host.controller is None and not host.is_broken and self.now_ms >= host.down_until_ms - 1e-6:
            host.start()

    # -- calls of clients and brokers ---------------------------------------------------------------------------------

    def call(self, address: int, node_id: int, request: Request, answered: Callable[[Any], None]) -> None:
        """Send a request to a controller; ``answered`` is called with an Answer or a HeadraceError if a reply
        arrives."""
        self.calls.send(address, node_id, Call(request, answered))

    def _call_arrives(self, sender: int, to: int, message: Any) -> None:
        if callable(message):  # a reply
            message()
            return
        host = self.hosts[to]
        controller = host.controller
        if controller is None:
            self.calls.send(to, sender, lambda: message.answered(None))  # refused: no listener
            return
        if host.is_paused:
            self.scheduler.after(30.0, self._call_arrives, sender, to, message)
            return
        if isinstance(message, Call):
            request, answered = message

            def done(result: Any) -> None:
                self.calls.send(to, sender, lambda: answered(result))

            host.guarded(lambda: controller.submit(request, done))
        else:
            message.act(host, controller)
        host.wake()

    def when_checked(self, action: Callable[[], None]) -> None:
        """Run ``action`` when the history has the commits of this event: a controller answers before the checks could
        run."""
        self._answers.append(action)

    @property
    def has_to_settle(self) -> bool:
        """Whether ``settle_answers`` has work to do."""
        return bool(self._answers or _STUMBLES.found)

    def settle_answers(self) -> None:
        if _STUMBLES.found:
            raise Violation("rules", _STUMBLES.found.pop())
        while self._answers:
            self._answers.popleft()()

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the schedule, then the recovery, then the final proof. Raises Violation."""
        from tests.simulation.sim_faults import Faults
        from tests.simulation.sim_recovery import Recovery

        faults = Faults(self)
        recovery = Recovery(self)
        for period in self.plan.periods:
            if period.is_quiet:
                self.scheduler.at(period.from_ms, recovery.begin_quiet)
                self.scheduler.at(period.to_ms, recovery.end_quiet)
        for fault in self.plan.faults:
            self.scheduler.at(fault.at_ms, faults.strike, fault)
        for host in list(self.hosts.values()):
            host.start()
        for actor in (*self.brokers, *self.clients, self.operator, self.movers):
            actor.begin()
        self.pass_until(self.plan.length_ms)
        recovery.prove()
        if self.exception is not None:
            raise self.exception

    def pass_until(self, at_ms: float) -> None:
        """Run events until a time; raises Violation if the nodes are so busy that time does not pass."""
        scheduler = self.scheduler
        if not scheduler.run(at_ms, events_max=EVENTS_MAX):
            raise Violation("liveness", f"{EVENTS_MAX} events, and only {scheduler.now_ms:.0f} ms have passed")

    def fault_happened(self, fault: Fault, what: str) -> None:
        """Count a fault that has found a victim."""
        self.coverage["fault", fault.kind] += 1
        self.tell("fault", f"#{fault.number} {fault.kind}: {what}")


def cluster_settings() -> ClusterSettings:
    """The default settings, except for times that would make every schedule long."""
    return ClusterSettings(
        num_partitions=2,
        default_replication_factor=2,
        broker_session_timeout_ms=2_000,
        broker_heartbeat_interval_ms=400,
    )
