"""The gateway node: builds, starts and stops the parts of a gateway.

``start`` reads the formatted directory, which has only the cluster's id and the last metadata snapshot; a gateway keeps
no other data. The gateway follows the metadata log, and opens the ports for Kafka's clients when the metadata is
current.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from headrace_core.clock import SystemClock
from headrace_core.log.files import RealFileSystem
from headrace_core.membership.controllers import Controllers
from headrace_core.membership.image_store import ImageStore
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.node_description import NodeService
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.freshness import Freshness
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.config import NodeConfig
from headrace_core.node.ids import random_id
from headrace_core.node.listeners import CLIENT, GATEWAY, INTERNAL, ListenerAddress
from headrace_core.node.meta_properties import read_all_meta
from headrace_core.node.security import NodeSecurity
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.node.tasks import NodeTasks
from headrace_core.rpc.server import Listener
from headrace_core.security.sasl.mechanisms import Mechanisms
from headrace_core.telemetry import Emitter, Metrics, NodeStarted, NodeStopped
from headrace_kafka.cluster import Cluster, GatewayEntry
from headrace_kafka.collector import KafkaCollector
from headrace_kafka.connection import SWEEP_S, Connections
from headrace_kafka.handlers.table import FAST, HANDLERS
from headrace_kafka.produce_path import shared_links
from headrace_kafka.quotas import Quotas
from headrace_kafka.secured import listener_security
from headrace_kafka.settings import GatewaySettings
from headrace_kafka.tracing import GatewayTraces
from headrace_kafka.upstream import Upstream
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import prepare

from .directory import Announcer
from .listeners import Listeners

logger = logging.getLogger("headrace.gateway")

#: Request types whose codecs the gateway prepares before clients can connect; it prepares the other types in the
#: background.
FIRST_APIS = (Api.API_VERSIONS, Api.METADATA, Api.PRODUCE, Api.FETCH)
DRAIN_S = 1.0  #: Seconds that a stopping gateway has to answer requests in progress.


class Gateway:
    """A gateway that runs in one event loop. Call ``start``, then ``run`` until the gateway should stop, then
    ``stop``."""

    def __init__(self, config: NodeConfig, *, events: Emitter | None = None) -> None:
        self.config = config
        self.settings = GatewaySettings.of(config)
        self.clock = SystemClock()
        self.events = events or Emitter()
        self.metrics = Metrics()
        self.gateway_id = random_id()
        self._fs = RealFileSystem()
        self._started_ms = self.clock.now_ms()
        self._started_monotonic_ms = self.clock.monotonic_ms()
        self._security = NodeSecurity(config)
        self._controllers = Controllers(config.controller_addresses, self._security.channels)
        self._freshness = Freshness()
        self.metadata = MetadataState(self._controllers, lag=lambda: self._freshness.lag(self.clock.monotonic_ms()))
        self._announcer = Announcer(self._controllers, self.gateway_id, self.clock)
        self._security.follow(lambda: self.metadata.image)
        channels = self._security.channels
        self.cluster = Cluster(
            self.metadata,
            self.living_gateways,
            self._security.authorization,
            node_listener=CLIENT if channels.credentials is None else GATEWAY,
        )
        self._traces = GatewayTraces.of(config.values)
        self.upstream = Upstream(self.cluster, shared_links(channels), channels, self._traces)
        quotas = Quotas.of(lambda: self.cluster.image.security, config.values)
        self.connections = Connections(self.settings, self.cluster, self.upstream, HANDLERS, FAST, quotas)
        self.connections.audit = self._security.audit
        self._offers: dict[str, Mechanisms] = {}
        self.listeners = Listeners(
            self.settings, self.connections, listener_security(config, self.settings, self._offer)
        )
        self._internal: Listener | None = None
        self._addresses: tuple[ListenerAddress, ...] = ()
        self._follower: MetadataFollower | None = None
        self._cluster_id = ""
        self._exporter = NodeMetrics(
            "gateway", lambda: config.node_id, config.values, events=self.events, metrics=self.metrics
        )
        self._exporter.add_calls(self.connections.calls)
        self._exporter.add(KafkaCollector(self.connections).collect)
        self._tasks = NodeTasks("gateway")
        self._is_current = False  # True once the metadata is current: from then on every change is applied
        self._is_listening = False
        self._preparing: asyncio.Task[None] | None = None

    def living_gateways(self) -> tuple[GatewayEntry, ...]:
        """The living gateways, including this gateway."""
        return self._announcer.gateways.entries

    def _offer(self, listener: str, values: Mapping[str, Any]) -> Mechanisms:
        """The SASL mechanisms of a Kafka listener."""
        offer = Mechanisms(values, lambda: self.metadata.image.security, self.clock.now_ms)
        self._offers[listener] = offer
        return offer

    async def start(self) -> None:
        """Start the gateway; returns when the gateway serves clients. Raises HeadraceError or OSError; call ``stop``
        after an error too."""
        config = self.config
        self._cluster_id = read_all_meta(config.log_dirs, node_id=config.node_id, fs=self._fs)[0].cluster_id
        internal = await self._bind()
        store = ImageStore(self._fs, config.log_dirs[0], self._cluster_id, self.clock)
        follower = self._follower = MetadataFollower(
            self._controllers,
            self._cluster_id,
            node_id=config.node_id,
            on_change=self._metadata_changed,
            freshness=self._freshness,
            clock=self.clock,
            events=self.events,
            metrics=self.metrics,
        )
        await follower.load(store)
        self._tasks.start(follower.run(), "metadata")
        await self._tasks.unless_failed(follower.wait_current())
        self._is_current = True
        self.metadata.advance(follower.image, MetadataDelta(0, follower.image.next_offset))
        if self._traces is not None:
            self._traces.node.start(config.node_id)
        await asyncio.to_thread(prepare, FIRST_APIS)
        await self.listeners.start(self.metadata.image.brokers)
        self._own_changed()
        self._is_listening = True
        if await self.listeners.follow(self.metadata.image.brokers):  # the metadata changed while the ports opened
            self._own_changed()
        self._tasks.start(self._sweep(), "sweep of connections")
        for listener, offer in self._offers.items():
            self._tasks.start(offer.run(), f"keys of SASL on {listener}")
        self._tasks.start(self._announcer.run(self._cluster_id), "announcements")
        self._preparing = asyncio.create_task(self._prepare_others())
        follower.keep(
            store,
            after_bytes=config.values["metadata.log.max.record.bytes.between.snapshots"],
            after_ms=config.values["metadata.log.max.snapshot.interval.ms"],
        )
        await internal.serving(True)
        self._addresses = (*self.listeners.addresses, ListenerAddress(INTERNAL, internal.host, internal.port))
        await self._exporter.start()
        state = RuntimeState.of("gateway", config.node_id, self._started_ms, self._addresses, self._exporter.url)
        write_state(config.state_file, state)
        self.events.emit(
            NodeStarted(
                role="gateway",
                node_id=config.node_id,
                address=self.bootstrap_servers,
                seconds=(self.clock.monotonic_ms() - self._started_monotonic_ms) / 1000,
            )
        )

    @property
    def bootstrap_servers(self) -> str:
        """host:port of the first Kafka listener, as clients get it."""
        return self.listeners.addresses[0].address

    @property
    def internal_address(self) -> str:
        """host:port of the gRPC listener."""
        assert self._internal is not None
        return self._internal.address

    async def _bind(self) -> Listener:
        wanted = self.config.listener(INTERNAL)
        assert wanted is not None  # NodeConfig checks it
        internal = self._internal = Listener(
            INTERNAL,
            wanted.host or "[::]",
            wanted.port,
            takes_bulk=False,
            **self._security.port_options(INTERNAL),
        )
        NodeService(
            "gateway",
            lambda: self.config.node_id,
            lambda: self._cluster_id,
            self.clock,
            lambda: self.metadata.lag.ms,
            directory=self.config.log_dirs[0],
        ).register(internal)
        await internal.start()
        return internal

    async def run(self, stop: asyncio.Event) -> None:
        """Serve clients until ``stop`` is set; raises an error if another cause ends the gateway."""
        await self._tasks.run_until(stop)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.connections.sweep()

    async def _prepare_others(self) -> None:
        """Compile the codecs of all request types in a thread. Without this preparation, the first request of a type
        would block the event loop while its codec is compiled."""
        for api in HANDLERS:
            await asyncio.to_thread(prepare, [api])

    async def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if self._is_listening and delta.brokers and await self.listeners.follow(image.brokers):
            self._own_changed()
        if self._is_current:
            self.metadata.advance(image, delta)

    def _own_changed(self) -> None:
        self._announcer.serves(GatewayEntry(self.gateway_id, self.listeners.ports(), self.settings.rack))

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the gateway, also if its start has failed or is not complete. ``at_once`` stops like a crash, without
        answers to requests in progress. Idempotent."""
        if self._internal is not None:
            await self._internal.serving(False)
        if not at_once:
            await self._announcer.leave()
        self.listeners.close()
        if not at_once:
            await self.connections.drain(DRAIN_S)
        self.connections.close(at_once=at_once)
        await self._tasks.cancel()
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        await self._announcer.close()
        await self.upstream.close()
        if self._internal is not None:
            await self._internal.stop(0)
        if self._follower is not None and not at_once:
            await self._follower.save()
        await self._exporter.stop()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.node.close)
        remove_state(self.config.state_file)
        self.events.emit(NodeStopped(role="gateway", node_id=self.config.node_id, clean=not at_once))


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a gateway until ``stop`` is set, as ``python -m headrace_gateway`` does. If the call of ``serve`` is
    cancelled, the gateway stops at once."""
    from headrace_core.node.run import serve_until
    from headrace_core.telemetry import log_events

    events = Emitter()
    events.subscribe(log_events(logger))
    await serve_until(Gateway(config, events=events), stop)
