"""The parts of a coordinator: this module builds, starts and stops them.

``start`` reads the formatted directory, which has only the cluster's id and the last metadata snapshot: a coordinator's
state is in its shards' partitions. The starting coordinator then binds both listeners, loads the snapshot, and follows
the metadata log. As its last steps, the starting coordinator registers, applies the metadata up to the registration,
claims its shards, and serves.

A clean stop asks the controllers to assign the shards to other coordinators; the members learn the new assignment. A
coordinator that stops cleanly then ends the streams and unregisters. A stop with ``at_once`` cuts the connections
without notice.

The process of a coordinator may run longer than its registration: a coordinator that is frozen or disconnected for
longer than its session is removed. The shards of the removed coordinator resign, and the process registers again, as a
new coordinator with the same name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any, cast

from headrace_core.clock import SystemClock
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    CoordinatorLoadInProgressError,
    HeadraceError,
    NotCoordinatorError,
    ServerShuttingDownError,
    StaleBrokerEpochError,
)
from headrace_core.log.files import RealFileSystem
from headrace_core.membership.controller_calls import ControllerCalls, Sending
from headrace_core.membership.controllers import Controllers
from headrace_core.membership.coordinator_session import CoordinatorRegistration, CoordinatorSession
from headrace_core.membership.image_store import ImageStore
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.node_description import NodeService
from headrace_core.membership.producer_ids import ProducerIdBlock, ProducerIds
from headrace_core.membership.transaction_partitions import TransactionPartitions
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.freshness import Freshness
from headrace_core.metadata.shards import OFFSETS_TOPIC
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.config import NodeConfig
from headrace_core.node.ids import random_id
from headrace_core.node.listeners import CLIENT, INTERNAL, ListenerAddress, advertised
from headrace_core.node.meta_properties import read_all_meta
from headrace_core.node.security import NodeSecurity
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.node.tasks import NodeTasks
from headrace_core.records import Compression
from headrace_core.rpc.limits import REQUEST_BYTES_MAX
from headrace_core.rpc.server import (
    OVERHEAD_BYTES,
    STREAMS_PER_CLIENT_CONNECTION_MAX,
    STREAMS_PER_CONNECTION_MAX,
    Listener,
)
from headrace_core.telemetry import Emitter, Metrics, NodeStarted, NodeStopped
from headrace_core.tracing.node import NodeTraces
from headrace_core.types import TopicPartition
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc, groups_pb2_grpc, metadata_pb2_grpc, transactions_pb2_grpc

from .classic.messages import Answered
from .collector import CoordinatorCollector
from .group_types import GroupsOfBothTypes
from .handlers.classic import ClassicWaits
from .handlers.groups import GroupsService
from .handlers.membership import Members
from .handlers.metadata import MetadataService
from .handlers.transactions import TransactionMarkersService, TransactionPartitionsService, TransactionsService
from .runtime.claims import Claim
from .runtime.runner import ShardRunner
from .runtime.shard import Shard, ShardState
from .runtime.shards import Shards
from .runtime.transaction_offsets import TransactionOffsets
from .runtime.transactions import Transactions
from .settings import REPLAYS_MAX, WATERMARKS_INTERVAL_S, CoordinatorSettings
from .shard_state_machine import ShardStateMachine, state_machines
from .state_machine import Push, StateMachine
from .transaction.transactions import TransactionsStateMachine
from .transport.brokers import Brokers
from .transport.markers import MarkerSender
from .transport.shard_log import ShardLog
from .transport.watermarks import Watched, Watermarks

logger = logging.getLogger("headrace.coordinator")

LEAVE_S = 10.0  #: Seconds that a stopping coordinator has to transfer its shards to other coordinators.
#: Seconds that a stopping coordinator waits for streams that do not end by themselves, such as health watches.
STREAMS_GRACE_S = 0.5


class Coordinator:
    """A coordinator that runs in one event loop. Call ``start``, then ``run`` until the coordinator should stop, then
    ``stop``."""

    def __init__(self, config: NodeConfig, *, events: Emitter | None = None) -> None:
        self.config = config
        self.settings = CoordinatorSettings.of(config.values)
        self.clock = SystemClock()
        self.events = events or Emitter()
        self.metrics = Metrics()
        self._fs = RealFileSystem()
        self._started_ms = self.clock.now_ms()
        self._started_monotonic_ms = self.clock.monotonic_ms()
        self._security = NodeSecurity(config)
        self._security.follow(lambda: self.metadata.image)
        self._controllers = Controllers(config.controller_addresses, self._security.channels)
        self._freshness = Freshness()
        self.metadata = MetadataState(self._controllers, lag=lambda: self._freshness.lag(self.clock.monotonic_ms()))
        self.brokers = Brokers(self.metadata)
        self.members = Members(lambda group_id: self.current_shards().of_group(group_id), lambda: self.metadata.lag.ms)
        self.waits = ClassicWaits()
        self._calls = ControllerCalls(self._controllers, self.clock)
        self._producer_ids = ProducerIds(self._allocate_producer_ids)
        self._markers = MarkerSender(
            self.brokers, self._wait_current, lambda runner, report: self.transactions.markers_written(runner, report)
        )
        self.transactions = Transactions(self.current_shards, self._markers.send)
        self._partitions = TransactionPartitions(self.metadata, self.clock)
        self._offsets = TransactionOffsets(self.current_shards, self._partitions.verify)
        self._watermarks = Watermarks(self.brokers, self._watched, interval_s=WATERMARKS_INTERVAL_S)
        self._replays = asyncio.Semaphore(REPLAYS_MAX)
        self._listeners: dict[str, Listener] = {}
        self._addresses: tuple[ListenerAddress, ...] = ()
        self._follower: MetadataFollower | None = None
        self._session: CoordinatorSession | None = None
        self._shards: Shards | None = None
        self._cluster_id = ""
        self._exporter = NodeMetrics(
            "coordinator", lambda: self.coordinator_id, config.values, events=self.events, metrics=self.metrics
        )
        partitions_max = self._exporter.settings.partitions_max
        self._exporter.add(CoordinatorCollector(lambda: self._shards, self.clock, partitions_max).collect)
        #: Makes the spans of this coordinator; None if the coordinator exports no traces.
        self._traces = NodeTraces.of("coordinator", config.values)
        self._tasks = NodeTasks("coordinator")
        self._in_force = False  # True once the metadata is current: from then on every change is applied
        self._stopping = False

    @property
    def coordinator_id(self) -> int:
        """The coordinator's id; -1 until it has registered."""
        return -1 if self._session is None else self._session.registered.coordinator_id

    async def start(self) -> None:
        """Start the coordinator; returns when it serves. Raises HeadraceError or OSError; call ``stop`` after an error
        too."""
        config = self.config
        metas = read_all_meta(config.log_dirs, node_id=config.node_id, fs=self._fs)
        self._cluster_id = metas[0].cluster_id
        await self._bind()
        store = ImageStore(self._fs, config.log_dirs[0], self._cluster_id, self.clock)
        follower = self._follower = MetadataFollower(
            self._controllers,
            self._cluster_id,
            node_id=self.config.node_id,
            on_change=self._metadata_changed,
            freshness=self._freshness,
            clock=self.clock,
            events=self.events,
            metrics=self.metrics,
        )
        await follower.load(store)
        self._tasks.start(follower.run(), "metadata")
        await self._tasks.unless_failed(self._begin_life())
        self._tasks.start(self._live(), "heartbeats")
        image = await self._tasks.unless_failed(follower.wait_current())
        self._in_force = True
        self._act(follower.image, MetadataDelta(0, image.next_offset))
        values = config.values
        follower.keep(
            store,
            after_bytes=values["metadata.log.max.record.bytes.between.snapshots"],
            after_ms=values["metadata.log.max.snapshot.interval.ms"],
        )
        self._tasks.start(self._watermarks.run(), "high watermarks")
        for listener in self._listeners.values():
            await listener.serving(True)
        await self._exporter.start()
        state = RuntimeState.of(
            "coordinator", self.coordinator_id, self._started_ms, self._addresses, self._exporter.url
        )
        write_state(config.state_file, state)
        self.events.emit(
            NodeStarted(
                role="coordinator",
                node_id=self.coordinator_id,
                address=self.address(CLIENT),
                seconds=(self.clock.monotonic_ms() - self._started_monotonic_ms) / 1000,
            )
        )

    def address(self, listener: str) -> str:
        """host:port of a bound listener."""
        return self._listeners[listener].address

    async def _bind(self) -> None:
        groups = GroupsService(self.current_shards, self.members, self.waits, self._traces)
        transactions = TransactionsService(
            self.current_shards, self.transactions, self._offsets, self._producer_ids, self._traces
        )
        timeout_ms = self.config.values["request.timeout.ms"]
        for_clients = [
            (groups_pb2_grpc.add_GroupsServicer_to_server, groups, "headrace.v1.Groups"),
            (transactions_pb2_grpc.add_TransactionsServicer_to_server, transactions, "headrace.v1.Transactions"),
        ]
        served: dict[str, list[tuple[Any, Any, str]]] = {
            INTERNAL: [
                (
                    transactions_pb2_grpc.add_TransactionPartitionsServicer_to_server,
                    TransactionPartitionsService(self.transactions),
                    "headrace.v1.TransactionPartitions",
                ),
                (
                    transactions_pb2_grpc.add_TransactionMarkersServicer_to_server,
                    TransactionMarkersService(self.current_shards),
                    "headrace.v1.TransactionMarkers",
                ),
                *for_clients,  # for brokers, which call for Kafka's clients
            ]
        }
        for name in (each.name for each in self.config.listeners if each.name != INTERNAL):
            metadata = MetadataService(self.metadata, timeout_ms=timeout_ms, listener=name)
            served[name] = [
                *for_clients,
                (metadata_pb2_grpc.add_MetadataServicer_to_server, metadata, "headrace.v1.Metadata"),
            ]
        node = NodeService(
            "coordinator",
            lambda: self.coordinator_id,
            lambda: self._cluster_id,
            self.clock,
            directory=self.config.log_dirs[0],
        )
        bound = []
        for wanted in self.config.listeners:
            listener = Listener(
                wanted.name,
                wanted.host or "[::]",
                wanted.port,
                message_bytes_max=REQUEST_BYTES_MAX + OVERHEAD_BYTES,
                connections_max=self.config.values["max.connections"],
                streams_max=STREAMS_PER_CONNECTION_MAX
                if wanted.name == INTERNAL
                else STREAMS_PER_CLIENT_CONNECTION_MAX,
                **self._security.port_options(wanted.name),
            )
            node.register(listener)
            for registrar, servicer, name in served[wanted.name]:
                listener.add(registrar, servicer, name)
            port = await listener.start()
            self._exporter.add_calls(listener.calls)
            self._listeners[wanted.name] = listener
            bound.append(ListenerAddress(wanted.name, wanted.host, port))
        self._addresses = tuple(bound)

    async def _begin_life(self) -> None:
        """Register as a new incarnation, and apply the metadata up to the registration."""
        addresses = advertised(self._addresses, self.config.advertised)
        session = CoordinatorSession(
            self._controllers,
            CoordinatorRegistration(
                cluster_id=self._cluster_id,
                incarnation_id=random_id(),
                endpoints=tuple((listener.name, listener.host, listener.port) for listener in addresses),
                rack=self.settings.rack,
                wanted_id=self.config.node_id,
            ),
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            answer_timeout_ms=self.settings.session_timeout_ms / 2,
        )
        registered = await session.register()
        self._session = session
        logger.info("registered as coordinator %d, epoch %d", registered.coordinator_id, registered.coordinator_epoch)
        if self._traces is not None:
            self._traces.start(registered.coordinator_id)
        self._shards = Shards(
            registered.coordinator_id,
            registered.coordinator_epoch,
            lambda partition, topic_id, epoch: self._new_runner(session, partition, topic_id, epoch),
            self._security.authorization,
        )
        assert self._follower is not None
        if self._in_force:
            self._shards.begin(self._follower.image)

    def _new_runner(
        self, session: CoordinatorSession, partition: TopicPartition, topic_id: bytes, shard_epoch: int
    ) -> ShardRunner:
        settings = self.settings
        is_groups = partition.topic == OFFSETS_TOPIC
        claim = Claim(shard_epoch, session.registered.coordinator_id, session.registered.coordinator_epoch)
        log = ShardLog(
            self.brokers,
            partition,
            topic_id,
            shard_epoch,
            clock=self.clock,
            append_timeout_s=settings.append_timeout_s,
            load_bytes=settings.load_bytes if is_groups else settings.transactions_load_bytes,
            compression=settings.compression if is_groups else Compression.NONE,
        )

        new_group_shard = state_machines(
            lambda: GroupsOfBothTypes(settings.groups, settings.classic, awaits_proof=True), settings.offsets
        )

        def new_transaction_shard() -> StateMachine:
            return TransactionsStateMachine(self._producer_ids.take, settings.transactions)

        runner = ShardRunner(
            Shard(str(partition), claim, new_group_shard if is_groups else new_transaction_shard),
            log,
            clock=self.clock,
            replays=self._replays,
            tell=self._tell_members if is_groups else lambda pushes: self.transactions.tell(runner, pushes),
            became=self._shard_became,
            is_ours=self._is_ours if is_groups else None,
            is_believed=lambda: session.has_contact_within(settings.session_timeout_ms),
        )
        return runner

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        if self._session is None:
            raise CoordinatorLoadInProgressError("this coordinator is starting; retry")
        registered = self._session.registered
        request = cluster_pb2.AllocateProducerIdsRequest(
            broker_id=-1,
            broker_epoch=-1,
            coordinator_id=registered.coordinator_id,
            coordinator_epoch=registered.coordinator_epoch,
        )
        answer = await self._calls.call(
            cluster_pb2_grpc.ClusterStub,
            "AllocateProducerIds",
            request,
            self.config.values["request.timeout.ms"],
            Sending.UNTIL_ANSWERED,
        )
        return ProducerIdBlock(answer.first, answer.length)

    async def _is_ours(self, runner: ShardRunner) -> bool:
        """Whether this coordinator owns the runner's shard. The check first waits until the metadata contains
        everything that was committed before the call."""
        await self._wait_current()
        return self._shards is not None and self._shards.has(runner)

    async def _wait_current(self) -> None:
        """Wait until the metadata contains everything that was committed before the call."""
        assert self._follower is not None
        await self._follower.wait_current()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; raises an error if another cause ends the coordinator."""
        await self._tasks.run_until(stop)

    def current_shards(self) -> Shards:
        """The shards of the current registration. Raises CoordinatorLoadInProgressError, ServerShuttingDownError."""
        if self._stopping:
            raise ServerShuttingDownError("this coordinator is shutting down; look up the coordinator again")
        if self._shards is None or not self._in_force:
            raise CoordinatorLoadInProgressError("this coordinator is starting; retry")
        return self._shards

    async def _live(self) -> None:
        """Run one registration after another, until the process stops."""
        while True:
            assert self._session is not None
            over: HeadraceError
            try:
                await self._session.run()
                return
            except BrokerIdNotRegisteredError as error:
                over = error
            except StaleBrokerEpochError as error:
                if self.config.node_id >= 0:  # another process was started with the id that the operator configured
                    raise
                over = error
            logger.warning("the coordinator lost its registration and registers again: %s", over)
            shards, self._shards = self._shards, None
            if shards is not None:
                await shards.close()
            self.members.end_all(
                NotCoordinatorError("the coordinator lost its registration; look up the coordinator again")
            )
            await self._begin_life()

    async def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if self._in_force:
            self._act(image, delta)

    def _act(self, image: MetadataImage, delta: MetadataDelta) -> None:
        is_first = self.metadata.applied_offset == 0
        # Advance the metadata first: the shards look up their leaders in the metadata.
        self.metadata.advance(image, delta)
        if self._shards is None:
            return
        if is_first:
            self._shards.begin(image)
        else:
            self._shards.metadata_changed(image, delta)

    def _tell_members(self, pushes: Sequence[Any]) -> None:
        self.waits.tell([push for push in pushes if isinstance(push, Answered)])
        self.members.tell([push for push in pushes if isinstance(push, Push)])

    def _shard_became(self, runner: ShardRunner, state: ShardState, error: Exception | None) -> None:
        logger.debug("%s: %s", runner.shard.name, state.value)
        if state is not ShardState.SERVING:
            self._markers.shard_left(runner)
            self.transactions.shard_left(runner)
            self.waits.shard_left(runner)
        if state in (ShardState.FENCED, ShardState.RESIGNED):
            self.members.shard_left(runner)
        elif self._shards is not None:
            self._shards.began(runner, state)

    def _watched(self) -> Iterator[Watched]:
        for runner in self._shards.of_topic(OFFSETS_TOPIC) if self._shards is not None else ():
            state_machine = cast("ShardStateMachine | None", runner.state_machine)
            if runner.is_serving and state_machine is not None:
                yield state_machine.watched_partitions(), runner.put

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the coordinator cleanly, even if its start is not complete or has failed. ``at_once`` stops without
        notice, as close to a crash as possible. Idempotent."""
        for listener in self._listeners.values():
            await listener.serving(False)
        if at_once:
            await asyncio.gather(*(listener.stop(0) for listener in self._listeners.values()))
        clean = not at_once and await self._leave_cluster()
        self._stopping = True
        self.members.end_all(ServerShuttingDownError("the coordinator is shutting down; look up the coordinator again"))
        if self._shards is not None:
            await self._shards.close()
        for listener in self._listeners.values():
            await listener.stop(STREAMS_GRACE_S)
        await self._tasks.cancel()
        await self._markers.close()
        await self._partitions.close()
        await self._producer_ids.close()
        await self._calls.close()
        await self.brokers.close()
        if self._follower is not None and not at_once:
            await self._follower.save()
        await self._exporter.stop()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)
        remove_state(self.config.state_file)
        self.events.emit(NodeStopped(role="coordinator", node_id=self.coordinator_id, clean=clean))

    async def _leave_cluster(self) -> bool:
        if self._session is None or not self._in_force or self._tasks.has_failed:
            return False
        if not await self._session.shut_down(LEAVE_S):
            logger.warning(
                "the controllers did not release this coordinator's shards within %.0f s; stopping anyway", LEAVE_S
            )
            return False
        return True


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a coordinator until ``stop`` is set, as ``python -m headrace_coordinator`` does. If the call of ``serve`` is
    cancelled, the coordinator stops at once."""
    from headrace_core.node.run import serve_until
    from headrace_core.telemetry import log_events

    events = Emitter()
    events.subscribe(log_events(logger))
    await serve_until(Coordinator(config, events=events), stop)
