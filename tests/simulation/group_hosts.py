"""A coordinator's machine and its process: the product's shards, members and handlers on an event loop of virtual time.

The simulation replaces the code around these parts (``headrace_coordinator.app``): registration, heartbeats, the
arrival of metadata, and the streams of members, without gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace_controller.cluster.requests import (
    CoordinatorHeartbeat,
    CoordinatorRegistered,
    RegisterCoordinator,
)
from headrace_coordinator.handlers.classic import ClassicWaits
from headrace_coordinator.handlers.groups import GroupsService
from headrace_coordinator.handlers.membership import Members, MembershipStream
from headrace_coordinator.runtime.claims import Claim
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import Shard, ShardState
from headrace_coordinator.runtime.shards import Shards
from headrace_coordinator.state_machine import StateMachine
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    CoordinatorLoadInProgressError,
    HeadraceError,
    NotCoordinatorError,
    ServerShuttingDownError,
    StaleBrokerEpochError,
)
from headrace_core.metadata import BrokerEndpoint, MetadataDelta, MetadataImage
from headrace_core.metadata.shards import OFFSETS_TOPIC
from headrace_core.records import Compression
from headrace_core.security.access import Authorization
from headrace_core.testing.clock import NodeClock
from headrace_core.types import TopicPartition
from tests.simulation import wrong_clocks
from tests.simulation.broker_loop import SimLoop
from tests.simulation.group_log import SimBrokers, SimShardLog
from tests.simulation.group_transactions import TransactionCalls

if TYPE_CHECKING:
    from tests.simulation.group_connections import MemberConnection

CLUSTER = "simulated-cluster-0001"
#: Intervals of a coordinator's session with the controllers, in ms.
SESSION_MS, HEARTBEAT_MS, GRACE_MS = 900.0, 150.0, 200.0
APPEND_TIMEOUT_S = 0.8
#: Interval at which a coordinator asks for the age of its metadata.
READ_INDEX_MS = 120.0
REPLAYS_MAX = 2


class HowFar:
    """A request to the controllers: return the offset up to which the metadata log is committed at this moment."""


class Ordered(dict[Any, None]):
    """A set in the order of arrival: the product iterates over sets of objects. With ordinary sets the order would
    depend on memory addresses, and a seed would give a different history on each machine."""

    def add(self, each: Any) -> None:
        self[each] = None

    def discard(self, each: Any) -> None:
        self.pop(each, None)


class CoordinatorHost:
    """A machine on which coordinator processes run, one after the other."""

    def __init__(self, world: Any, number: int) -> None:
        self.world = world
        self.number = number
        self.name = f"coordinator {number}"
        self.clock = NodeClock(world.scheduler, started_ms=world.rng.uniform(1e3, 1e6))
        self.off_ms = wrong_clocks.off_ms(world.plan.seed, wrong_clocks.COORDINATORS, self.name)
        self.clock.jump(self.off_ms)
        self.life = 0
        self.loop: SimLoop | None = None
        self.process: Coordinator | None = None
        self.is_paused = False
        #: The leader of each shard's log, as this host knows it; None if there is no leader.
        self.leaders: dict[int, int | None] = {}
        #: Number of metadata steps that this host has received.
        self.known = 0

    def __str__(self) -> str:
        return self.name

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        assert self.process is None
        self.life += 1
        self.is_paused = False
        self.loop = SimLoop(self)  # type: ignore[arg-type]
        self.process = self.new_process(self.loop)
        self.world.tell(self, f"starts (life {self.life})")
        process = self.process
        self.loop.run(lambda: process.spawn(process.run()))

    def new_process(self, loop: SimLoop) -> Coordinator:
        process = Coordinator(self, loop)
        process.transactions = TransactionCalls(process)
        return process

    def kill(self) -> None:
        if self.process is None or self.loop is None:
            return
        process, self.process = self.process, None
        self.loop.die()
        self.is_paused = False
        self.world.coordinator_gone(self, process)

    def pause(self) -> None:
        if self.loop is not None and not self.is_paused:
            self.is_paused = self.loop.is_paused = True

    def resume(self) -> None:
        if self.loop is not None and self.is_paused and not self.loop.is_dead:
            self.is_paused = False
            self.loop.resume()

    def learns_of_leader(self, shard: int, leader: int | None) -> None:
        self.leaders[shard] = leader
        if self.process is not None and self.loop is not None:
            self.loop.run(self.process.brokers.news)

    # -- what SimLoop asks -------------------------------------------------------------------------------------------

    def loop_delay_ms(self) -> float:
        return self.world.rng.uniform(*self.world.plan.loop_ms)

    def turned(self) -> None:
        pass

    def task_failed(self, error: BaseException) -> None:
        if not isinstance(error, HeadraceError):
            self.world.stumbled(self, error)


class Coordinator:
    """One process."""

    cluster_id = CLUSTER
    listeners: tuple[str, ...] = ("client",)

    def __init__(self, host: CoordinatorHost, loop: SimLoop) -> None:
        self.host = host
        self.world = host.world
        self.loop = loop
        self.incarnation = host.world.rng.randbytes(16)
        self.brokers = SimBrokers(host)
        self.members = Members(lambda group_id: self.current_shards().of_group(group_id), self._metadata_age_ms)
        self.members._streams = Ordered()  # type: ignore[assignment]
        self.service = GroupsService(self.current_shards, self.members, ClassicWaits())
        #: Calls that only the groups' part of the simulator makes.
        self.transactions: Any = None
        self.shards: Shards | None = None
        self.registered: CoordinatorRegistered | None = None
        self.image = MetadataImage()
        self.stream = 0
        self.wants_shutdown = False
        self.is_stopping = False
        self._applied = 0
        self._in_force = False
        self._is_current = asyncio.Event()
        #: The applied metadata includes all records that were committed at this time (time of the loop).
        self._as_of_s: float | None = None
        self._last_contact_s = float("-inf")
        self._replays = asyncio.Semaphore(REPLAYS_MAX)

    def __str__(self) -> str:
        return self.host.name

    def _new_state_machine(self) -> StateMachine:
        state_machine: StateMachine = self.world.new_state_machine()
        return state_machine

    def _metadata_age_ms(self) -> float | None:
        return None if self._as_of_s is None else (self.loop.time() - self._as_of_s) * 1_000

    async def _wait_current(self) -> None:
        """Wait like the metadata follower does, until the applied metadata includes all records that were committed at
        the time of the call."""
        while True:
            asked_s = self.loop.time()
            try:
                async with asyncio.timeout(SESSION_MS / 2_000):
                    steps = await self._call(HowFar())
            except (HeadraceError, TimeoutError):
                await asyncio.sleep(0.03)
                continue
            while self._applied < steps:
                self._is_current.clear()
                await self._is_current.wait()
            self._as_of_s = asked_s
            return

    async def _confirm(self) -> None:
        while True:
            await self._wait_current()
            await asyncio.sleep(READ_INDEX_MS / 1_000)

    async def _is_ours(self, runner: ShardRunner) -> bool:
        await self._wait_current()
        return self.shards is not None and self.shards.has(runner)

    def spawn(self, work: Any) -> None:
        self.loop.create_task(work)

    def current_shards(self) -> Shards:
        if self.is_stopping:
            raise ServerShuttingDownError("this coordinator is shutting down")
        if self.shards is None or not self._in_force:
            raise CoordinatorLoadInProgressError("this coordinator is starting")
        return self.shards

    # -- one life after the other ------------------------------------------------------------------------------------

    async def run(self) -> None:
        await self._begin_life()
        assert self.registered is not None
        while self.image.next_offset <= self.registered.coordinator_epoch:
            await self._is_current.wait()
            self._is_current.clear()
        self._in_force = True
        self.spawn(self._confirm())
        assert self.shards is not None
        self.shards.begin(self.image)
        while True:
            try:
                await self._heartbeats()
                await self._stop()
                return
            except (BrokerIdNotRegisteredError, StaleBrokerEpochError) as error:
                self.world.count("coordinator", "life ended by the controllers")
                self.world.tell(self, f"{error.code}: another life begins")
            shards, self.shards = self.shards, None
            assert shards is not None
            await shards.close()
            self.members.end_all(NotCoordinatorError("the coordinator lost its registration"))
            await self._begin_life()

    async def _begin_life(self) -> None:
        self.incarnation = self.world.rng.randbytes(16)
        port = 1_000 * self.host.number + self.host.life
        while True:
            sent_s = self.loop.time()
            try:
                reply = await self._call(
                    RegisterCoordinator(
                        cluster_id=self.cluster_id,
                        incarnation_id=self.incarnation,
                        endpoints=tuple(BrokerEndpoint(name, "host", port) for name in self.listeners),
                        wanted_id=self.host.number,
                    )
                )
                break
            except HeadraceError:
                await asyncio.sleep(0.05)
        assert isinstance(reply, CoordinatorRegistered)
        registered = self.registered = reply
        self._last_contact_s = sent_s
        self.world.tell(self, f"is registered, epoch {registered.coordinator_epoch}")
        self.shards = Shards(
            registered.coordinator_id,
            registered.coordinator_epoch,
            self._new_runner,
            Authorization(),
        )
        if self._in_force:
            self.shards.begin(self.image)

    def has_contact_within(self, session_ms: float) -> bool:
        return self.loop.time() - self._last_contact_s < session_ms / 1_000

    def _new_runner(self, partition: TopicPartition, topic_id: bytes, shard_epoch: int) -> ShardRunner:
        assert self.registered is not None
        self.world.logs[partition.partition].owners[shard_epoch] = self.host
        claim = Claim(shard_epoch, self.registered.coordinator_id, self.registered.coordinator_epoch)
        log = SimShardLog(
            self.host,
            self.brokers,
            partition,
            topic_id,
            shard_epoch,
            clock=self.host.clock,
            append_timeout_s=APPEND_TIMEOUT_S,
            load_bytes=5 * 1024 * 1024,
            compression=Compression.NONE,
        )
        runner = ShardRunner(
            Shard(str(partition), claim, self._new_state_machine, gathered_bytes_max=self.world.plan.gathered_bytes),
            log,
            clock=self.host.clock,
            replays=self._replays,
            tell=lambda pushes: self._tell(runner, pushes),
            became=self._became,
            is_ours=self._is_ours if partition.topic == OFFSETS_TOPIC else None,
            is_believed=lambda: self.has_contact_within(SESSION_MS),
        )
        runner._tasks = Ordered()  # type: ignore[assignment]
        runner._timers = Ordered()  # type: ignore[assignment]
        return runner

    def _tell(self, runner: ShardRunner, pushes: Sequence[Any]) -> None:
        self.members.tell(pushes)

    def _became(self, runner: ShardRunner, state: ShardState, error: Exception | None) -> None:
        self.world.count("shard", state.value)
        self.world.tell(self, f"{runner.shard.name} (epoch {runner.shard.claim.shard_epoch}) is {state.value}"
                        + (f": {type(error).__name__}: {error}" if error else ""))  # fmt: skip
        if error is not None and not isinstance(error, HeadraceError):
            self.world.stumbled(self.host, error)
        if state in (ShardState.FENCED, ShardState.RESIGNED):
            self.members.shard_left(runner)
        elif self.shards is not None:
            self.shards.began(runner, state)

    async def _call(self, request: Any) -> Any:
        """Call the controllers; raises NetworkError, or the error with which they refuse the request."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        self.world.ask_controllers(self.host, request, answer)
        return await answer

    async def _heartbeats(self) -> None:
        assert self.registered is not None
        self.stream = next(self.world.numbers)
        while True:
            sent_s = self.loop.time()
            beat = CoordinatorHeartbeat(
                self.registered.coordinator_id,
                self.registered.coordinator_epoch,
                want_shutdown=self.wants_shutdown,
                stream=self.stream,
            )
            try:
                async with asyncio.timeout(SESSION_MS / 2_000):
                    reply = await self._call(beat)
            except (BrokerIdNotRegisteredError, StaleBrokerEpochError):
                raise
            except (HeadraceError, TimeoutError):
                self.world.stream_left(self)
                self.stream = next(self.world.numbers)
                await asyncio.sleep(0.03)
                continue
            self._last_contact_s = sent_s
            if reply.should_shutdown:
                return
            await asyncio.sleep(0.05 if self.wants_shutdown else HEARTBEAT_MS / 1_000)

    async def _stop(self) -> None:
        self.world.count("coordinator", "stopped cleanly")
        self.is_stopping = True
        self.members.end_all(ServerShuttingDownError("the coordinator is shutting down; look up the coordinator again"))
        assert self.shards is not None
        await self.shards.close()
        self.world.scheduler.after(0.0, self.host.kill)

    # -- the metadata ------------------------------------------------------------------------------------------------

    def metadata_arrived(self) -> None:
        for image, delta in self.world.steps[self._applied : self.host.known]:
            self._applied += 1
            self._act(image, delta)
        self._is_current.set()

    def _act(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.image = image
        if self._in_force and self.shards is not None:
            self.shards.metadata_changed(image, delta)

    # -- members' streams --------------------------------------------------------------------------------------------

    def accept(self, connection: MemberConnection) -> None:
        """A member connects: this does what ``GroupsService.Membership`` and ``Members.serve`` do, without gRPC."""
        stream = SimServerStream(connection)
        try:
            self.current_shards()
        except HeadraceError as error:
            stream.finish(error)
            return
        members = self.members
        handler = MembershipStream(members, stream, next(members._connections), "host")  # type: ignore[arg-type]
        members._streams.add(handler)
        connection.serve(handler, stream)


class SimServerStream:
    """ServerStream, without gRPC."""

    queued_bytes = 0
    paused = False

    def __init__(self, connection: MemberConnection) -> None:
        self._connection = connection
        self.is_ending = False

    def send(self, response: Any, size: int = 0) -> None:
        if not self.is_ending:
            self._connection.to_member(response)

    def finish(self, error: HeadraceError | None = None) -> None:
        if not self.is_ending:
            self.is_ending = True
            self._connection.ended_by_coordinator(error)

    def pause(self) -> None:
        raise AssertionError("no client sends so many requests")

    def resume(self) -> None:
        pass
