"""The broker as a whole: ``Broker.__init__`` creates all parts, in one pass from top to bottom.

``start`` reads the formatted directories and binds the listeners, so that the ports are known before the broker serves.
The broker loads the last metadata snapshot, follows the metadata log, registers itself, and catches up with every
committed entry. The starting broker then opens and recovers the logs with their topics' settings, while heartbeats keep
it fenced. As its last steps, the starting broker applies the metadata to its partitions, asks to be unfenced, and
serves.

A clean stop asks the controller to move leaderships away, refuses new requests and finishes the requests in progress.
The stopping broker then ends the streams, flushes and closes the logs, and marks the logs as cleanly closed. A stop
with ``at_once`` cuts the connections, finishes no request, and leaves the logs as a crash would.

A broker that cannot reach the controllers continues to serve. Serving without a controller is safe: the broker
acknowledges appends only under the topic's flush policy, and commits no record without the in-sync replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace_core.clock import SystemClock
from headrace_core.config import LONG_MAX
from headrace_core.config.broker_keys import RACK_AWARE_SELECTORS
from headrace_core.errors import FencedBrokerError, ServerShuttingDownError
from headrace_core.log import DEFAULT_FLUSH_INTERVAL_MS
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.files import FileSystem, RealFileSystem
from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession, CannotLead
from headrace_core.membership.controllers import Controllers
from headrace_core.membership.image_store import ImageStore
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.node_description import NodeService
from headrace_core.membership.producer_ids import ProducerIds
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.freshness import Freshness
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.config import NodeConfig
from headrace_core.node.descriptors import DescriptorWatch, connections_with_room, descriptor_limit
from headrace_core.node.ids import random_id
from headrace_core.node.listeners import CLIENT, INTERNAL, ListenerAddress, advertised, speaks_kafka
from headrace_core.node.meta_properties import MetaProperties
from headrace_core.node.security import NodeSecurity
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.node.tasks import NodeTasks
from headrace_core.quotas import QuotaManager
from headrace_core.rpc.channel import MAX_MESSAGE_BYTES
from headrace_core.rpc.server import (
    OVERHEAD_BYTES,
    STREAMS_PER_CLIENT_CONNECTION_MAX,
    STREAMS_PER_CONNECTION_MAX,
    Listener,
)
from headrace_core.telemetry import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    DescriptorsShort,
    Emitter,
    Metrics,
    NodeStarted,
    NodeStopped,
)
from headrace_protos.v1 import (
    admin_pb2_grpc,
    fetch_pb2_grpc,
    metadata_pb2_grpc,
    offsets_pb2_grpc,
    produce_pb2_grpc,
    replication_pb2_grpc,
    security_pb2_grpc,
    transactions_pb2_grpc,
)

from .assignments import DirectoryAssignments
from .collector import BrokerCollector
from .context import BrokerContext, BrokerLimits, BrokerMetrics
from .controller_link import ControllerLink
from .flow import Flow
from .handlers.admin import AdminService
from .handlers.fetch import FetchService
from .handlers.log_dirs import LogDirs
from .handlers.metadata import MetadataService
from .handlers.offsets import OffsetsService
from .handlers.produce import ProduceService, Writers
from .handlers.replication import ReplicationService
from .handlers.security import SecurityService
from .handlers.transactions import ProducersService, TransactionMarkersService
from .partition_table import PartitionTable
from .replication.follower_streams import FollowerStreams
from .replication.isr_keeper import IsrKeeper
from .replication.pushes import PendingPushes
from .roles import Roles
from .schema_registry import SchemaRegistry
from .settings import BrokerIdentity, LiveSettings, LogSettings
from .storage import Storage
from .tracing import BrokerTraces
from .upkeep.upkeep import Upkeep
from .verifier import Verifier

if TYPE_CHECKING:
    from .kafka.door import KafkaDoor

logger = logging.getLogger("headrace.broker")

#: Seconds between two checkpoints of recovery points and high watermarks; recent checkpoints shorten the broker's next
#: start.
CHECKPOINT_INTERVAL_S = 5.0
#: Seconds that a controlled shutdown may take. After a controlled shutdown, the broker waits at most the same number of
#: seconds for the requests in progress.
CONTROLLED_SHUTDOWN_S = 10.0
DESCRIPTORS_CHECK_S = 0.25
DRAIN_S = 10.0
#: Seconds that a stopping broker waits for running calls to end, and for clients to read why it stops. After
#: STREAMS_GRACE_S the broker closes the remaining streams, such as health watches.
STREAMS_GRACE_S = 2.0


class Broker:
    """A broker that runs in one event loop. Call ``start``, then ``run`` until the broker should stop, then
    ``stop``."""

    def __init__(self, config: NodeConfig, *, fs: FileSystem | None = None, events: Emitter | None = None) -> None:
        self.config = config
        self.clock = SystemClock()
        self.events = events or Emitter()
        self._started_ms = self.clock.now_ms()
        self._started_monotonic_ms = self.clock.monotonic_ms()
        loop = asyncio.get_running_loop()
        values = config.values
        limits = BrokerLimits(
            request_bytes_max=values["socket.request.max.bytes"],
            fetch_bytes_max=values["fetch.max.bytes"],
            request_timeout_ms=values["request.timeout.ms"],
        )
        metrics = Metrics()
        lag_time_max_ms = values["replica.lag.time.max.ms"]

        # The broker's identity, its settings, its partitions and the cluster's metadata, which every component of the
        # broker uses.
        self.identity = BrokerIdentity()
        self.settings = LiveSettings(config.given, self.events)
        pushes = PendingPushes()
        self.partitions = PartitionTable(self.identity, pushes)
        self._security = NodeSecurity(config)
        self._security.follow(lambda: self.metadata.image)
        self._controllers = Controllers(config.controller_addresses, self._security.channels)
        self._freshness = Freshness()
        self.metadata = MetadataState(self._controllers, lag=lambda: self._freshness.lag(self.clock.monotonic_ms()))

        self._schemas = SchemaRegistry(
            self.clock,
            lambda: self.settings.current.schema_registry_urls,
            cache_size_max=self.settings.current.schema_cache_size_max,
            missing_ttl_s=self.settings.current.missing_schema_ttl_s,
            user_info=values["confluent.basic.auth.user.info"],
        )

        # The disks.
        self._fs = DescriptorCache(fs or RealFileSystem(), self.settings.current.open_files_max)
        self.storage = Storage(
            self._fs,
            config.log_dirs,
            clock=self.clock,
            rng=random.Random(),
            loop=loop,
            events=self.events,
            on_advanced=self.partitions.logs_advanced,
            assigned=self.partitions.assigned_directory,
            reserve_bytes=self.settings.current.dir_reserve_bytes,
            recovery_threads=self.settings.current.recovery_threads_per_dir,
            schemas=self._schemas,
        )
        self.storage.set_moves_rate(self.settings.current.moves_bytes_per_second)

        # The broker's connection to the controllers.
        self._controller = ControllerLink(
            self._controllers, self.clock, self.identity, timeout_ms=limits.request_timeout_ms
        )
        self._producer_ids = ProducerIds(self._controller.allocate_producer_ids)
        self._verifier = Verifier(self.metadata, self.clock)
        self._assignments = DirectoryAssignments(
            self.identity, self.storage.directory_of, self._controller.assign_directories
        )
        self._isr_keeper = IsrKeeper(
            lambda changes: self._controller.alter_partitions(changes, self.metadata.applied_offset),
            lambda broker_id: self.metadata.image.active_epoch(broker_id),
            clock=self.clock,
            events=self.events,
            lag_time_max_ms=lag_time_max_ms,
            failures=metrics.counter("isr-updates-failed"),
        )

        # The broker's partitions, and the tasks that work on them.
        self._traces = BrokerTraces.of(values)
        self.streams = FollowerStreams(
            self.identity,
            events=self.events,
            metrics=metrics,
            channels=self._security.channels,
            traces=self._traces,
            on_lacking=self._cannot_lead_changed,
        )
        self.roles = Roles(
            self.partitions,
            self.storage,
            LogSettings(static=config.topic_defaults(), flush_interval_ms=_flush_interval_ms(values)),
            streams=self.streams,
            report_fresh=self._assignments.report_fresh,
            isr_due=self._isr_keeper.due,
            events=self.events,
            lag_time_max_ms=lag_time_max_ms,
        )
        self.upkeep = Upkeep(
            self.storage.writers,
            self.partitions,
            clock=self.clock,
            settings=self.settings,
            events=self.events,
            metrics=metrics,
            loop=loop,
            on_damage=self.storage.damaged,
        )
        self.context = BrokerContext(
            identity=self.identity,
            clock=self.clock,
            limits=limits,
            flow=Flow(self.clock, loop, limits.in_flight_bytes_max),
            metrics=BrokerMetrics(metrics),
            events=self.events,
            metadata=self.metadata,
            partitions=self.partitions,
            pushes=pushes,
            producer_ids=self._producer_ids,
            verifier=self._verifier,
            reads_by_rack=values["replica.selector.class"] in RACK_AWARE_SELECTORS,
            traces=self._traces,
            quotas=QuotaManager(
                window_s=values["quota.window.size.seconds"],
                windows=values["quota.window.num"],
                defaults=self.settings.current.quota_defaults,
            ),
        )

        # Subscriptions.
        self.settings.subscribe(lambda _, new: self._fs.resize(new.open_files_max))
        self.settings.subscribe(lambda _, new: self.storage.set_reserve(new.dir_reserve_bytes))
        self.settings.subscribe(
            lambda _, new: self._schemas.resize(new.schema_cache_size_max, new.missing_schema_ttl_s)
        )
        self.settings.subscribe(lambda _, new: self.storage.set_recovery_threads(new.recovery_threads_per_dir))
        self.settings.subscribe(lambda _, new: self.storage.set_moves_rate(new.moves_bytes_per_second))
        self.storage.full.subscribe(lambda _: self.upkeep.retention.disk_is_full())
        self.storage.short.subscribe(self._cannot_lead_changed)
        self.storage.directory_changed.subscribe(self._assignments.replicas_changed)
        # Report the directories of failed partitions again, because the controllers may not know these directories yet.
        self.storage.failed.subscribe(lambda partitions, _: self._assignments.replicas_changed(partitions))
        self.storage.failed.subscribe(lambda *_: self._report_offline_directories())

        self._listeners: dict[str, Listener] = {}
        self._kafka: KafkaDoor | None = None  # the listeners for Kafka's clients, if there are any
        self._addresses: tuple[ListenerAddress, ...] = ()
        self._session: BrokerSession | None = None
        self._follower: MetadataFollower | None = None
        self._exporter = NodeMetrics(
            "broker", lambda: self.identity.broker_id, values, events=self.events, metrics=metrics
        )
        self._exporter.add(BrokerCollector(self.context, self.storage, self._exporter, values).collect)
        self._tasks = NodeTasks("broker")
        #: Stable codes of the reasons why this broker must not lead any partition now.
        self._cannot_lead: set[str] = set()
        self._descriptors = DescriptorWatch(self._descriptors_changed)
        self._stopping = False
        self._acting = False  # True once the logs are open: from then on every change is applied, in its turn
        self._in_force = asyncio.Event()  # set when the broker has applied its first image
        self._replication: ReplicationService | None = None  # known when the listeners are bound
        self._ready = False

    async def start(self) -> None:
        """Start the broker; returns when it serves. Raises HeadraceError or OSError; call ``stop`` after an error
        too."""
        metas = self.storage.identify(node_id=self.config.node_id)
        self.identity.cluster_id = metas[0].cluster_id
        await self._bind()
        store = ImageStore(self._fs, self.config.log_dirs[0], metas[0].cluster_id, self.clock)
        follower = await self._follow(metas[0].cluster_id, store)
        former = follower.image
        session = await self._register(metas)
        registered = session.registered
        session.hold_fenced(True)
        if self._traces is not None:
            self._traces.node.start(registered.broker_id)
        self._tasks.start(session.run(), "heartbeats")
        await self._tasks.unless_failed(follower.wait_applied(registered.metadata_offset))
        image = await self._tasks.unless_failed(follower.wait_current())
        self.settings.apply(image, registered.broker_id)
        await self.storage.open(
            lambda topic: self.roles.settings_of(topic, image), broker_epoch=registered.broker_epoch
        )
        self.storage.begin_threads()
        self._acting = True
        self._report_offline_directories()
        image = follower.image
        self.streams.metadata_changed(image)
        await self.roles.apply_all(image, former)
        self._assignments.all_changed(image)
        self._tasks.start(self._assignments.run(), "directory assignments")
        self._tasks.start(self._isr_keeper.run(), "in-sync sets")
        self.settings.apply(image, registered.broker_id)
        self.context.quotas.apply(image.security.quotas, self.settings.current.quota_defaults)
        self._ready = True
        self.metadata.advance(image, MetadataDelta(0, image.next_offset))
        self._in_force.set()
        values = self.config.values
        follower.keep(
            store,
            after_bytes=values["metadata.log.max.record.bytes.between.snapshots"],
            after_ms=values["metadata.log.max.snapshot.interval.ms"],
        )
        image = await self._tasks.unless_failed(follower.wait_current())
        session.hold_fenced(False)
        session.applied(image.next_offset)
        await self._tasks.unless_failed(session.wait_unfenced())
        await self._tasks.unless_failed(self._applied_unfenced())
        self._serve_or_not()
        if self._kafka is not None:
            await self._kafka.open(self._tasks)
        for listener in self._listeners.values():
            await listener.serving(True)
        self._tasks.start(self._housekeeping(), "housekeeping")
        self._tasks.start(self._watch_descriptors(), "descriptors")
        self.upkeep.start()
        self._tasks.start(self.storage.until_all_failed(), "directories")
        await self._exporter.start()
        node_id = registered.broker_id
        state = RuntimeState.of("broker", node_id, self._started_ms, self._addresses, self._exporter.url)
        write_state(self.config.state_file, state)
        self.events.emit(
            NodeStarted(
                role="broker",
                node_id=node_id,
                address=self.address(CLIENT),
                seconds=(self.clock.monotonic_ms() - self._started_monotonic_ms) / 1000,
            )
        )

    def address(self, listener: str) -> str:
        """host:port of a bound listener."""
        return self._listeners[listener].address

    async def _bind(self) -> None:
        context, config = self.context, self.config
        replication = ReplicationService(context)
        self._replication = replication
        replication.set_throttle(self.settings.current.leader_throttle_bytes_per_second)
        self.settings.subscribe(lambda _, new: replication.set_throttle(new.leader_throttle_bytes_per_second))
        admin = AdminService(
            context,
            self._controller,
            given=config.given,
            log_dirs=LogDirs(self.storage.describe, self.storage.move),
        )
        for_clients: list[tuple[Any, Any, str]] = [
            (produce_pb2_grpc.add_ProduceServicer_to_server, ProduceService(context), "headrace.v1.Produce"),
            (fetch_pb2_grpc.add_FetchServicer_to_server, FetchService(context), "headrace.v1.Fetch"),
            (offsets_pb2_grpc.add_OffsetsServicer_to_server, OffsetsService(context), "headrace.v1.Offsets"),
            (admin_pb2_grpc.add_AdminServicer_to_server, admin, "headrace.v1.Admin"),
            (
                security_pb2_grpc.add_SecurityServicer_to_server,
                SecurityService(context, self._controller),
                "headrace.v1.Security",
            ),
            (
                transactions_pb2_grpc.add_ProducersServicer_to_server,
                ProducersService(context),
                "headrace.v1.Producers",
            ),
        ]

        def metadata(listener: str) -> tuple[Any, Any, str]:
            service = MetadataService(
                context,
                self._controller,
                auto_create=bool(config.values["auto.create.topics.enable"]),
                topic_defaults=config.topic_defaults(),
                listener=listener,
            )
            return metadata_pb2_grpc.add_MetadataServicer_to_server, service, "headrace.v1.Metadata"

        served: dict[str, list[tuple[Any, Any, str]]] = {
            **{each.name: [*for_clients, metadata(each.name)] for each in config.listeners if each.name != INTERNAL},
            INTERNAL: [
                (
                    replication_pb2_grpc.add_ReplicationServicer_to_server,
                    replication,
                    "headrace.v1.Replication",
                ),
                (
                    produce_pb2_grpc.add_ProduceServicer_to_server,
                    ProduceService(context, Writers.COORDINATORS),
                    "headrace.v1.Produce",
                ),
                (
                    transactions_pb2_grpc.add_TransactionMarkersServicer_to_server,
                    TransactionMarkersService(context),
                    "headrace.v1.TransactionMarkers",
                ),
                # for coordinators, which read their shards and the high watermarks here when listeners are secured
                (
                    fetch_pb2_grpc.add_FetchServicer_to_server,
                    FetchService(context, is_internal=True),
                    "headrace.v1.Fetch",
                ),
                (offsets_pb2_grpc.add_OffsetsServicer_to_server, OffsetsService(context), "headrace.v1.Offsets"),
            ],
        }
        node = NodeService("broker", lambda: context.broker_id, lambda: self.identity.cluster_id, self.clock)
        bound = []
        for wanted in config.listeners:
            if speaks_kafka(wanted.name):
                continue
            most = self.context.limits.request_bytes_max + OVERHEAD_BYTES
            listener = Listener(
                wanted.name,
                wanted.host or "[::]",
                wanted.port,
                message_bytes_max=MAX_MESSAGE_BYTES if wanted.name == INTERNAL else most,
                connections_max=connections_with_room(
                    config.values["max.connections"], self.settings.current.open_files_max
                ),
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
        if any(speaks_kafka(each.name) for each in config.listeners):
            from .kafka.door import KafkaDoor

            services = _by_stub([*for_clients, metadata(CLIENT)])
            self._kafka = KafkaDoor(config, context, self._security, services, self._exporter)
            bound += await self._kafka.bind()
        self._addresses = tuple(bound)

    async def _register(self, metas: list[MetaProperties]) -> BrokerSession:
        config = self.config
        addresses = advertised(self._addresses, config.advertised)
        session = self._session = BrokerSession(
            self._controllers,
            BrokerRegistration(
                cluster_id=metas[0].cluster_id,
                incarnation_id=random_id(),
                directory_ids=tuple(meta.directory_id for meta in metas),
                endpoints=tuple((listener.name, listener.host, listener.port) for listener in addresses),
                rack=config.values["broker.rack"],
                wanted_broker_id=config.node_id,
                previous_broker_epoch=self.storage.clean_shutdown_epoch(),
                default_log_flush=str(config.values["log.flush"]),
                directory_epochs=tuple(self.storage.directory_epochs()),
            ),
            heartbeat_interval_ms=config.values["broker.heartbeat.interval.ms"],
            answer_timeout_ms=config.values["broker.session.timeout.ms"] / 2,
            on_fenced=self._serve_or_not,
            lag_ms=lambda: self.metadata.lag.ms,
            cannot_lead=self._where_it_cannot_lead,
            lacking_leaders=self.streams.lacking_leaders,
        )
        registered = await self._tasks.unless_failed(session.register())
        self.identity.broker_id, self.identity.broker_epoch = registered.broker_id, registered.broker_epoch
        self.events.emit(BrokerRegistered(broker_id=registered.broker_id, broker_epoch=registered.broker_epoch))
        return session

    async def _follow(self, cluster_id: str, store: ImageStore) -> MetadataFollower:
        follower = self._follower = MetadataFollower(
            self._controllers,
            cluster_id,
            node_id=self.config.node_id,
            on_change=self._metadata_changed,
            freshness=self._freshness,
            clock=self.clock,
            events=self.events,
            metrics=self.context.metrics.metrics,
        )
        await follower.load(store)
        self._tasks.start(follower.run(), "metadata")
        return follower

    async def _applied_unfenced(self) -> None:
        """Wait until this broker has applied the metadata that unfences it and makes it a leader. If the broker is
        unregistered during the wait, its session raises an error."""
        assert self._follower is not None
        follower, broker_id = self._follower, self.identity.broker_id
        while (known := follower.image.brokers.get(broker_id)) is None or known.fenced:
            await follower.wait_applied(follower.image.next_offset + 1)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; raises an error if another cause ends the broker, such as another broker with
        the same id."""
        await self._tasks.run_until(stop)

    async def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if not self._acting:
            return  # the first image that the broker applies will contain the change
        await self._in_force.wait()
        self.streams.metadata_changed(image, delta)
        if self._replication is not None:
            # Before the roles: a replica that the change adds may join, and copy, while the roles wait for the disk.
            coming = self.settings.after(image, self.identity.broker_id, delta)
            self._replication.set_throttle(coming.leader_throttle_bytes_per_second)
        await self.roles.apply(image, delta)
        self._assignments.metadata_changed(image, delta)
        self.settings.apply(image, self.identity.broker_id, delta)
        self.context.quotas.apply(image.security.quotas, self.settings.current.quota_defaults)
        self.upkeep.metadata_changed(delta)
        assert self._session is not None
        self.metadata.advance(image, delta)
        self._session.applied(image.next_offset)
        if any(broker.in_controlled_shutdown and not broker.fenced for broker in image.brokers.values()):
            self._session.hurry()  # hurry: the broker may stop once all brokers know that it leads no partition
        self._isr_keeper.metadata_changed(self.partitions.leaders_of(image, delta))
        self._serve_or_not()

    def _serve_or_not(self) -> None:
        """Serve only while the controllers do not fence this broker, and the broker has applied the metadata that
        unfences it. The metadata that unfences the broker also contains the leaderships and epochs that are valid
        now."""
        assert self._session is not None
        if not self._ready or self._stopping:
            return
        broker_id, serving = self.identity.broker_id, self.partitions.refusal is None
        broker = self.metadata.image.brokers.get(broker_id)
        if self._session.fenced or broker is None or broker.fenced:
            self.partitions.refusal = FencedBrokerError("this broker is fenced by the controller; refresh the metadata")
            if serving:
                self.events.emit(BrokerFenced(broker_id=broker_id, reason="the controller says so"))
        elif not serving:
            self.partitions.refusal = None
            self.events.emit(BrokerUnfenced(broker_id=broker_id))

    def _report_offline_directories(self) -> None:
        if self._session is not None and (offline := self.storage.offline_directory_ids()):
            self._session.directories_failed(each.bytes for each in offline)

    def cannot_lead(self, reason: str, lasts: bool = True) -> None:
        """Lead no partition while ``reason`` (a stable code, such as NO_DESCRIPTORS) lasts.

        The controllers receive ``reason`` within milliseconds, and elect other in-sync replicas where they can.
        Idempotent. Directories that are short of space are reported without a call of ``cannot_lead``.
        """
        (self._cannot_lead.add if lasts else self._cannot_lead.discard)(reason)
        self._cannot_lead_changed()

    def _descriptors_changed(self, is_short: bool) -> None:
        self.events.emit(DescriptorsShort(short=is_short, limit=descriptor_limit()))
        self.cannot_lead("NO_DESCRIPTORS", is_short)

    async def _watch_descriptors(self) -> None:
        try:
            while True:
                self._descriptors.check()
                await asyncio.sleep(DESCRIPTORS_CHECK_S)
        finally:
            self._descriptors.close()

    def _cannot_lead_changed(self) -> None:
        if self._session is not None:
            self._session.hurry()

    def _where_it_cannot_lead(self) -> list[CannotLead]:
        short = [CannotLead("DISK_FULL", each.bytes) for each in self.storage.short_directory_ids()]
        return [*short, *(CannotLead(reason) for reason in sorted(self._cannot_lead))]

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            await self.storage.checkpoint(self.partitions.high_watermarks())
            self._assignments.replicas_changed(await self.roles.retry_full())

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the broker cleanly, even if its start is not complete or has failed. ``at_once`` stops without finishing
        requests, as close to a crash as possible. Idempotent."""
        for listener in self._listeners.values():
            await listener.serving(False)
        if at_once:
            self._stopping = True
            if self._kafka is not None:
                await self._kafka.close(at_once=True)
            await asyncio.gather(*(listener.stop(0) for listener in self._listeners.values()))
        else:
            await self._leave_cluster()
        self._stopping = True
        self.partitions.refusal = ServerShuttingDownError("the broker is shutting down; refresh the metadata")
        if not at_once:
            await self._drain()
        if self._kafka is not None:
            await self._kafka.drain()
            await self._kafka.close(at_once=at_once)
        ending = ServerShuttingDownError("the broker is shutting down; connect again")
        self.context.end_streams(ending)
        high_watermarks = self.partitions.high_watermarks()
        self.roles.resign_all(lambda partition: ending)
        await self.streams.close()
        for listener in self._listeners.values():
            await listener.stop(STREAMS_GRACE_S)
        try:
            await self.upkeep.stop()
        except Exception:  # close the logs after any error
            logger.exception("the background tasks of the logs failed while they stopped; closing the logs anyway")
        await self._tasks.cancel()
        self.context.flow.deadlines.close()
        await self._producer_ids.close()
        await self._verifier.close()
        await self._schemas.close()
        await self._controller.close()
        if self._follower is not None and not at_once:
            await self._follower.save()
        epoch = self._session.registered.broker_epoch if self._ready and self._session is not None else -1
        clean = await self.storage.close(high_watermarks, broker_epoch=epoch, clean=not at_once)
        remove_state(self.config.state_file)
        await self._exporter.stop()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.node.close)
        self.events.emit(NodeStopped(role="broker", node_id=self.identity.broker_id, clean=clean))

    async def _leave_cluster(self) -> None:
        if self._session is None or not self._ready or self._tasks.has_failed:
            return
        if self.config.values["controlled.shutdown.enable"] and not await self._session.shut_down(
            CONTROLLED_SHUTDOWN_S
        ):
            logger.warning(
                "the controllers did not move this broker's leaderships to other brokers within %.0f s; stopping "
                "anyway: the partitions that this broker leads have no leader until the next election",
                CONTROLLED_SHUTDOWN_S,
            )

    async def _drain(self) -> None:
        """Wait until every request in progress has ended, for at most DRAIN_S."""
        flow, drained = self.context.flow, asyncio.Event()
        if not flow.kept:
            return
        flow.drained = drained.set
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await drained.wait()


def _by_stub(services: list[tuple[Any, Any, str]]) -> dict[Any, Any]:
    """The servicers by the class of their stubs."""
    modules = (
        admin_pb2_grpc,
        metadata_pb2_grpc,
        offsets_pb2_grpc,
        produce_pb2_grpc,
        security_pb2_grpc,
        transactions_pb2_grpc,
    )
    found = {name.rpartition(".")[2]: servicer for _, servicer, name in services}
    return {
        stub: servicer
        for name, servicer in found.items()
        for module in modules
        if (stub := getattr(module, f"{name}Stub", None)) is not None
    }


def _flush_interval_ms(values: Mapping[str, Any]) -> int:
    """The flush interval in milliseconds of topics with log.flush=interval and no flush.ms."""
    interval_ms: int = values["log.flush.interval.ms"]
    return DEFAULT_FLUSH_INTERVAL_MS if interval_ms == LONG_MAX else interval_ms


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a broker until ``stop`` is set, as ``python -m headrace_broker`` does. If the call of ``serve`` is cancelled,
    the broker stops at once."""
    from headrace_core.node.run import serve_until
    from headrace_core.telemetry import log_events

    events = Emitter()
    events.subscribe(log_events(logger))
    await serve_until(Broker(config, events=events), stop)
