"""A broker of the simulation: the product's storage, replicas, streams and upkeep tasks, on a simulated event loop,
disk and network. This module connects the parts without gRPC which ``app.py`` connects with gRPC."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace_broker.assignments import DirectoryAssignments
from headrace_broker.controller_link import DirectoriesAssigned, IsrAnswer, IsrRequest, ReplicaKey
from headrace_broker.flow import Flow
from headrace_broker.handlers.replication import ReplicationService
from headrace_broker.partition_table import PartitionTable
from headrace_broker.replication.follower_streams import FollowerStreams
from headrace_broker.replication.isr_keeper import IsrKeeper
from headrace_broker.replication.pushes import PendingPushes
from headrace_broker.roles import Roles
from headrace_broker.settings import BrokerIdentity, LiveSettings, LogSettings
from headrace_broker.storage import Storage
from headrace_broker.upkeep.producers import ProducerExpiry
from headrace_broker.verifier import Verifier
from headrace_controller.cluster.leadership import CannotLead
from headrace_controller.cluster.requests import (
    AlteredPartition,
    AlterPartition,
    AssignDirectories,
    Heartbeat,
    HeartbeatsEnded,
    Placement,
    RegisterBroker,
    Registered,
)
from headrace_core.errors import (
    FencedBrokerError,
    HeadraceError,
    NetworkError,
    RequestTimedOutError,
    ServerShuttingDownError,
    StorageError,
)
from headrace_core.log import PartitionLog
from headrace_core.log.directory import format_directory
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import BrokerEndpoint, MetadataDelta, MetadataImage
from headrace_core.telemetry import CorruptionFound, Emitter, Metrics
from headrace_core.testing.clock import NodeClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from headrace_protos.v1.replication_pb2 import FollowHello, FollowRequest
from tests.simulation.broker_clients import PRODUCER_EXPIRATION_MS
from tests.simulation.broker_loop import SimLoop
from tests.simulation.broker_upkeep import begin_upkeep
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.broker_sim_world import BrokerWorld, Connection

ROOT = "/data"
CLUSTER = "cluster-one"
HEARTBEAT_MS = 150.0
CHECKPOINT_MS = 400.0
CALL_TIMEOUT_MS = 500.0
EXPIRY_MS = 120.0
SHORTAGE_MS = 300.0
MARKER_TIMEOUT_MS = 400


class BrokerHost:
    """A machine: its disk outlives its processes (called lives)."""

    def __init__(self, world: BrokerWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.rng = random.Random(f"{world.plan.seed} host {number}")
        self.clock = NodeClock(world.scheduler, started_ms=number * 1_000.0)
        self.life = 0
        self.disks = 0
        #: How often a replica of this host started empty.
        self.begun_anew = 0
        #: How often a log was found damaged: such a log is set aside, and a crash may come before the replica starts
        #: empty.
        self.damaged = 0
        self.broker_id = -1
        self.broker: Broker | None = None
        self.loop: SimLoop | None = None
        self.is_paused = False
        self.slow_until_ms = 0.0
        self.down_until_ms = 0.0
        self.is_losing_power: Loss | None = None
        #: A byte of this disk was flipped, so a damaged log is no fault of the product.
        self.is_rotten = False
        #: The first life with a copy of its disk in the present broker epoch: only followers recognize it, even in a
        #: later life.
        self.copied_life = -1
        self.fs = CrashingFileSystem(keep_trace=False)
        self.new_disk()

    def __str__(self) -> str:
        return f"broker {self.broker_id if self.broker_id >= 0 else f'#{self.number}'}"

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    def new_disk(self) -> None:
        """Lose all data on the disk."""
        self.disks += 1
        self.is_rotten = False
        self.fs = CrashingFileSystem(keep_trace=False)
        self.fs.clock = self.clock
        self.directory = uuid.UUID(int=(1 << 100) + self.number * 1_000 + self.disks)
        format_directory(self.fs, ROOT, cluster_id=CLUSTER, node_id=self.number, directory_id=self.directory)
        self.fs.sync_directory("/")
        self.fs.sync_directory(ROOT)

    def restore(self, copy: CrashingFileSystem, *, is_older: bool) -> None:
        """Replace the disk by an earlier copy of it. ``is_older``: the broker has served in a later epoch since."""
        self.disks += 1
        self.fs = copy
        self.copied_life = -1 if is_older else self.life + 1

    @property
    def is_copy(self) -> bool:
        return 0 <= self.copied_life <= self.life

    def loop_delay_ms(self) -> float:
        low, high = self.world.plan.loop_ms
        return low + (high - low) * self.rng.random()  # (as ``uniform``, which a turn could not afford)

    def disk_delay_ms(self) -> float:
        low, high = self.world.plan.disk_ms
        return self.rng.uniform(low, high) * (40.0 if self.world.scheduler.now_ms < self.slow_until_ms else 1.0)

    # -- lives -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.broker is not None:
            return
        self.life += 1
        self.is_paused = False
        self.world.tell(self, "starts")
        self.loop = SimLoop(self)
        self.broker = Broker(self, self.loop)
        self.loop.run(self.broker.begin)

    def kill(self) -> None:
        """kill -9: written data stays, even if it was not fsynced."""
        broker, loop = self.broker, self.loop
        if broker is None or loop is None:
            return
        self.world.tell(self, "is killed")
        loop.die()
        self.broker = self.loop = None
        self.is_paused = False
        self.world.node_gone(self, broker)
        # The old process releases its files and its lock.
        self.fs._locks.clear()
        self.fs._generation += 1

    def power_loss(self, loss: Loss) -> None:
        self.kill()
        self.is_losing_power = None
        self.fs.on_operation = None
        self.fs.crash(self.rng, loss)

    def pause(self) -> None:
        if self.loop is not None:
            self.is_paused = self.loop.is_paused = True

    def resume(self) -> None:
        if self.loop is not None and self.is_paused:
            self.is_paused = False
            self.loop.resume()

    def stop_cleanly(self) -> None:
        """Controlled shutdown: the controllers first move the broker's leaderships to other brokers."""
        if self.broker is not None:
            self.broker.wants_shutdown = True

    def turned(self) -> None:
        """Called after each turn of the broker's event loop."""
        if self.is_losing_power is not None:
            self.world.power_lost(self)
        elif self.broker is not None and self.world.is_well:
            self.world.checks.look(self, self.broker)

    def task_failed(self, error: BaseException) -> None:
        if isinstance(error, StorageError | OSError):
            self.world.scheduler.after(0.0, self.world.process_died, self, self.life)
        else:
            self.world.stumbled(self, error)


class _Context:
    """The part of a broker that ReplicationService needs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.clock = broker.host.clock
        self.metadata = broker.metadata
        self.partitions = broker.partitions
        self.pushes = broker.pushes
        self.events = broker.events
        self.flow = Flow(self.clock, broker.loop, 1 << 30, broker.loop.time)
        self.limits = SimpleNamespace(request_timeout_ms=MARKER_TIMEOUT_MS)
        self.streams: set[Any] = set()
        self.metrics = SimpleNamespace(replication_bytes=SimpleNamespace(value=0))
        self.traces = None

    @property
    def broker_id(self) -> int:
        return self._broker.identity.broker_id


class LeaderEnd:
    """The leader's end of a connection; ``ReplicationService`` uses it like one of its streams."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._pushes: Any = None
        self._key: tuple[int, Any] = (-1, None)
        self._is_scheduled = False
        self._closed = False
        self._timer: Any = None

    @property
    def broker_id(self) -> int:
        return self._key[0]

    @property
    def broker_epoch(self) -> int:
        return -1 if self._pushes is None else int(self._pushes.broker_epoch)

    def received(self, message: FollowHello | FollowRequest) -> None:
        if self._closed:
            return
        try:
            if isinstance(message, FollowHello):
                self._pushes = self._broker.replication.push_stream(message, self)  # type: ignore[arg-type]
                self._key = (message.broker_id, message.lane)
            else:
                self._pushes.received(message)
        except HeadraceError as error:
            self.end(error)

    def wake(self) -> None:
        if not self._is_scheduled and not self._closed:
            self._is_scheduled = True
            self._broker.pushes.awake[self] = None
            self._broker.loop.call_soon(self._turn)

    def replaced(self) -> None:
        self.end(None)

    def end(self, error: HeadraceError | None) -> None:
        self.closed()
        self._connection.close()

    def closed(self) -> None:
        """End the connection."""
        if self._closed:
            return
        self._closed = True
        self._broker.pushes.end(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._pushes is not None:
            self._broker.replication.closed(self, self._key)  # type: ignore[arg-type]
            self._pushes.close()

    def _turn(self) -> None:
        self._is_scheduled = False
        pushes = self._pushes
        if pushes is None or self._closed or pushes.is_closed:
            self._broker.pushes.end(self)
            return
        while (outgoing := pushes.next()) is not None:
            self._connection.to_follower(outgoing.response)
        self._broker.pushes.end(self)
        reads, pushes.cold_reads = pushes.cold_reads, []
        for read in reads:
            reading = read.source.read_appended_cold(read.offset, read.max_bytes)
            reading.add_done_callback(lambda done, read=read: self._was_read(read, done))

    def wake_at(self, due_ms: int) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(due_ms - self._broker.replication.now_ms(), 0)
        self._timer = self._broker.loop.call_later(delay_ms / 1_000, self._turn)

    def _was_read(self, read: Any, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, HeadraceError):
            raise error
        self._pushes.was_read(read, done.result() if error is None else error)


class Broker:
    """A process."""

    def __init__(self, host: BrokerHost, loop: SimLoop) -> None:
        self.host = host
        self.world = host.world
        self.loop = loop
        self.identity = BrokerIdentity(CLUSTER)
        self.pushes = PendingPushes()
        self.partitions = PartitionTable(self.identity, self.pushes)
        self.metadata = MetadataState()
        self.events = Emitter()
        self.incarnation = host.rng.randbytes(16)
        self.wants_shutdown = False
        self.is_stopping = False
        self.is_serving = False
        self.acting = False
        self.applied = 0
        self._fenced = True

    @property
    def epoch(self) -> int:
        """-1 until the controllers have accepted the registration."""
        return self.identity.broker_epoch

    def begin(self) -> None:
        host, loop = self.host, self.loop
        self.events.subscribe(self._happened)
        self.storage = Storage(
            host.fs,
            [ROOT],
            clock=host.clock,
            rng=random.Random(host.rng.random()),
            loop=loop,
            events=self.events,
            on_advanced=self.partitions.logs_advanced,
            assigned=self.partitions.assigned_directory,
            reserve_bytes=0,
            shortage_first_ms=SHORTAGE_MS,
        )
        self.context = _Context(self)
        self.verifier = Verifier(self.metadata, host.clock)
        self.replication = ReplicationService(self.context)  # type: ignore[arg-type]
        self.assignments = DirectoryAssignments(
            self.identity, self.storage.directory_of, self._assign, backoff=self.world.backoff(20, 200)
        )
        self.keeper = IsrKeeper(
            self._alter,
            lambda broker_id: self.metadata.image.active_epoch(broker_id),
            clock=host.clock,
            events=self.events,
            lag_time_max_ms=self.world.plan.lag_ms,
        )
        self.streams = FollowerStreams(self.identity, events=self.events, metrics=Metrics())
        self.streams.host = host  # type: ignore[attr-defined]
        self.roles = Roles(
            self.partitions,
            self.storage,
            LogSettings(static={}, flush_interval_ms=1_000),
            streams=self.streams,
            report_fresh=self.assignments.report_fresh,
            isr_due=self.keeper.due,
            events=self.events,
            lag_time_max_ms=self.world.plan.lag_ms,
        )
        loop.create_task(self._run())

    def _happened(self, event: object) -> None:
        self.world.count("event", type(event).__name__)
        self.host.begun_anew += type(event).__name__ == "ReplicaBeginsAnew"
        self.host.damaged += type(event).__name__ == "PartitionFailed"
        self.world.tell(self.host, str(event))
        if isinstance(event, CorruptionFound):
            self._damage_found(f"{event.path}, position {event.position}: {event.what}")

    def _damage_found(self, what: str) -> None:
        if not self.host.is_rotten:
            self.world.stumbled(
                self.host, Violation("durability", f"{self.host} finds damage that no fault caused: {what}")
            )

    async def _run(self) -> None:
        host, world = self.host, self.world
        self.storage.identify(node_id=host.number)
        clean = self.storage.clean_shutdown_epoch()
        registered = await self._register(-1 if clean is None else clean)
        host.broker_id = self.identity.broker_id = registered.broker_id
        self.identity.broker_epoch = registered.broker_epoch
        heartbeats = self.loop.create_task(self._heartbeats())
        while world.known_to(host).next_offset <= registered.broker_epoch:
            await world.more_metadata(host)
        image = world.known_to(host)
        await self.storage.open(lambda topic: self.roles.settings_of(topic, image), broker_epoch=self.epoch)
        for writer in self.storage.writers():
            for error in writer.directory.quarantined.values():
                self._damage_found(error.message)
        image = world.known_to(host)
        self.streams.metadata_changed(image)
        await self.roles.apply_all(image)
        self.assignments.all_changed(image)
        self.loop.create_task(self.assignments.run())
        self.loop.create_task(self.keeper.run())
        self.metadata.advance(image, MetadataDelta(0, image.next_offset))
        self.acting = True
        self.applied = image.next_offset
        self.loop.create_task(self._follow())
        self.loop.create_task(self._checkpoints())
        self.loop.create_task(self._expiries())
        self.loop.create_task(self.storage.until_all_failed())
        begin_upkeep(self)
        await heartbeats

    async def _register(self, previous: int) -> Registered:
        while True:
            try:
                reply = await self._call(
                    RegisterBroker(
                        cluster_id=CLUSTER,
                        incarnation_id=self.incarnation,
                        directory_ids=(self.host.directory.bytes,),
                        endpoints=(BrokerEndpoint("internal", "host", 9_000 + self.host.number),),
                        wanted_broker_id=self.host.number,
                        previous_broker_epoch=previous,
                        default_log_flush="commit",
                        directory_epochs=tuple(self.storage.directory_epochs()),
                    )
                )
            except HeadraceError:
                await asyncio.sleep(0.1)
                continue
            assert isinstance(reply, Registered)
            return reply

    async def _heartbeats(self) -> None:
        while True:
            try:
                reply = await self._call(
                    Heartbeat(
                        broker_id=self.host.broker_id,
                        broker_epoch=self.epoch,
                        metadata_offset=self.applied,
                        want_fence=not self.acting,
                        want_shutdown=self.wants_shutdown,
                        offline_directories=tuple(each.bytes for each in self.storage.offline_directory_ids()),
                        stream=self.host.life,
                        cannot_lead=tuple(
                            CannotLead(each.bytes, "DISK_FULL") for each in self.storage.short_directory_ids()
                        ),
                        lacking_leaders=tuple(self.streams.lacking_leaders()),
                    )
                )
                self._fenced = reply.fenced
                if reply.should_shutdown:
                    await self._stop()
                    return
            except HeadraceError as error:
                if error.code in ("STALE_BROKER_EPOCH", "BROKER_ID_NOT_REGISTERED"):
                    self.world.scheduler.after(0.0, self.world.process_died, self.host, self.host.life)
                    return
            self._serve_or_not()
            await asyncio.sleep(HEARTBEAT_MS / 1_000)

    def _serve_or_not(self) -> None:
        mine = self.metadata.image.brokers.get(self.host.broker_id)
        serves = self.acting and not self._fenced and mine is not None and not mine.fenced
        serves = serves and mine is not None and mine.broker_epoch == self.epoch and not self.is_stopping
        self.is_serving = serves
        self.partitions.refusal = None if serves else FencedBrokerError(f"broker {self.host.broker_id} is fenced")

    async def _stop(self) -> None:
        self.is_stopping = True
        self._serve_or_not()
        watermarks = self.partitions.high_watermarks()
        self.roles.resign_all(lambda partition: ServerShuttingDownError(f"{partition}: shutting down"))
        await self.streams.close()
        await self.storage.close(watermarks, broker_epoch=self.epoch)
        self.world.count("state", "stopped cleanly")
        self.world.scheduler.after(0.0, self.host.kill)

    async def _follow(self) -> None:
        """Apply the metadata, delta by delta."""
        while not self.is_stopping:
            step = self.world.next_step(self.host, self.metadata.image.next_offset)
            if step is None:
                await self.world.more_metadata(self.host)
                continue
            image, delta = step
            self.streams.metadata_changed(image, delta)
            await self.roles.apply(image, delta)
            self.assignments.metadata_changed(image, delta)
            self.metadata.advance(image, delta)
            self.applied = image.next_offset
            self._serve_or_not()
            self.keeper.metadata_changed(self.partitions.leaders_of(image, delta))

    async def _checkpoints(self) -> None:
        while not self.is_stopping:
            await asyncio.sleep(CHECKPOINT_MS / 1_000)
            await self.storage.checkpoint(self.partitions.high_watermarks())
            await self.roles.retry_full()
            await self.roles.heal()

    async def _expiries(self) -> None:
        """The upkeep's turns. No producer is silent for the expiration time: a broker that forgets a producer does so
        too soon, and the producer's retry would be a duplicate."""
        settings = LiveSettings({"producer.id.expiration.ms": PRODUCER_EXPIRATION_MS}, self.events)
        expiry = ProducerExpiry(self.storage.writers, clock=self.host.clock, settings=settings, loop=self.loop)
        while not self.is_stopping:
            await asyncio.sleep(EXPIRY_MS / 1_000)
            await expiry.check()

    # -- what it asks the controllers --------------------------------------------------------------------------------

    async def _call(self, request: Any) -> Any:
        future = self.loop.create_future()

        def answered(result: Any) -> None:
            if not future.done():
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

        late = RequestTimedOutError("the controllers did not answer")
        timer = self.loop.call_later(CALL_TIMEOUT_MS / 1_000, answered, late)
        self.world.ask(self.host, request, lambda result: self.loop.run(answered, result))
        try:
            return await future
        finally:
            timer.cancel()

    async def _alter(self, changes: list[IsrRequest]) -> Mapping[ReplicaKey, IsrAnswer | HeadraceError]:
        items = tuple(
            AlteredPartition(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=each.isr,
                recovering=each.recovering,
                uncertain=each.uncertain,
            )
            for each in changes
        )
        results = await self._call(
            AlterPartition(
                broker_id=self.host.broker_id,
                broker_epoch=self.epoch,
                metadata_offset=self.applied,
                partitions=items,
            )
        )
        return {
            (each.topic_id, each.partition): each.error
            or IsrAnswer(each.leader, each.leader_epoch, each.partition_epoch, each.isr, each.recovering)
            for each in results
        }

    async def _assign(self, where: Mapping[ReplicaKey, bytes], fresh: Collection[ReplicaKey]) -> DirectoriesAssigned:
        placements = tuple(Placement(*key, directory, fresh=key in fresh) for key, directory in where.items())
        refused, offset = await self._call(
            AssignDirectories(broker_id=self.host.broker_id, broker_epoch=self.epoch, placements=placements)
        )
        errors = {(each.placement.topic_id, each.placement.partition): each.error for each in refused}
        return DirectoriesAssigned(errors, offset)


def heartbeats_ended(host: BrokerHost, broker: Broker) -> HeartbeatsEnded | None:
    """The event that the controllers notice when the process has ended."""
    return None if broker.epoch < 0 else HeartbeatsEnded(host.broker_id, broker.epoch, host.life)


async def converse(stream: Any, address: str, outage: Any, backoff: Any) -> None:
    """Stands for ``follower_streams._Stream._converse``: the same exchange of messages without gRPC."""
    host: BrokerHost = stream._streams.host
    world, loop = host.world, host.loop
    connection = world.dial(host, stream.leader_id)
    if connection is None:
        await asyncio.sleep(0.001)
        raise NetworkError(f"{address}: connection refused")
    stream._address, stream._call = address, connection
    connection.to_leader(stream.hello())

    async def write() -> None:
        while not connection.is_closed:
            request = stream.joins.next()
            if request is None:
                stream.waiting = loop.create_future()
                await stream.waiting
                stream.waiting = None
                continue
            connection.to_leader(request)
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    try:
        while (response := await connection.read()) is not None:
            if not stream.is_connected:
                stream.is_connected = True
                backoff.reset()
            stream._received(response)
        if not stream._is_ending:
            raise NetworkError(f"{address}: broker {stream.leader_id} ended the stream")
    finally:
        stream.is_connected = False
        stream._call = None
        connection.close()
        stream.wake()
        await asyncio.wait([writing])


__all__ = ["Broker", "BrokerHost", "LeaderEnd", "MetadataImage", "PartitionLog", "converse", "heartbeats_ended"]
