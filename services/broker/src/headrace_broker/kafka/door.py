"""The listeners of a broker that speak Kafka's protocol: their ports, connections and security.

The ports are bound before the broker registers, because the registration names them, and take connections only when the
broker serves: a client that comes earlier is refused and tries another broker.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.config import NodeConfig
from headrace_core.node.listeners import ListenerAddress
from headrace_core.node.security import NodeSecurity
from headrace_core.node.tasks import NodeTasks
from headrace_core.security.sasl.mechanisms import Mechanisms
from headrace_core.sockets import bound_socket
from headrace_kafka.cluster import Cluster
from headrace_kafka.collector import KafkaCollector
from headrace_kafka.connection import Connection
from headrace_kafka.connections import OPEN, SWEEP_S, Connections, ListenerSecurity
from headrace_kafka.handlers.table import FAST, HANDLERS
from headrace_kafka.secured import listener_security
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.tls import TlsTransport
from headrace_kafka.upstream import Upstream

from ..context import BrokerContext
from .calls import OwnServices, access_of
from .joining import Joiner
from .streams import FetchWay, ProduceWay

DRAIN_S = 1.0  #: Seconds that a stopping broker has to answer its Kafka clients' requests in progress.
BACKLOG = 1_024  #: Maximum number of connections that the kernel queues until the broker accepts them.


class KafkaDoor:
    """``services``: the broker's own servicers, by the class of their stubs."""

    def __init__(
        self,
        config: NodeConfig,
        broker: BrokerContext,
        security: NodeSecurity,
        services: Mapping[Callable[..., Any], Any],
        exporter: NodeMetrics,
    ) -> None:
        settings = self._settings = KafkaSettings.of(config)
        authorization = security.authorization
        self._cluster = Cluster(broker.metadata, authorization)
        self._upstream = Upstream(
            self._cluster,
            security.channels,
            own=OwnServices(services, authorization).call,
            open_produce=lambda client: ProduceWay(broker, client, access_of(client, authorization, "Produce")),
            open_fetch=lambda client: FetchWay(broker, client, access_of(client, authorization, "Fetch")),
            has_traces=broker.traces is not None,
        )
        times = broker.metrics.kafka_times
        self.connections = Connections(settings, self._cluster, self._upstream, HANDLERS, FAST, broker.quotas, times)
        self.connections.audit = security.audit
        self.connections.join = Joiner(broker).add
        self._broker = broker
        self._offers: dict[str, Mechanisms] = {}
        self._security = listener_security(config, settings, self._offer)
        self._bound: list[tuple[ListenerAddress, socket.socket]] = []
        self._servers: list[asyncio.Server] = []
        exporter.add_calls(times)
        exporter.add(KafkaCollector(self.connections).collect)

    def _offer(self, listener: str, values: Mapping[str, Any]) -> Mechanisms:
        """The SASL mechanisms of a listener."""
        broker = self._broker
        offer = Mechanisms(values, lambda: broker.metadata.image.security, broker.clock.now_ms)
        self._offers[listener] = offer
        return offer

    async def bind(self) -> list[ListenerAddress]:
        """Reserve the ports; returns the addresses with the real ports. Raises OSError."""
        for listener in self._settings.listeners:
            host = listener.host.strip("[]")
            bound = await bound_socket("" if host == "::" else host, listener.port, key="listeners")
            address = ListenerAddress(listener.name, listener.host, int(bound.getsockname()[1]))
            self._bound.append((address, bound))
        return [address for address, _ in self._bound]

    async def open(self, tasks: NodeTasks) -> None:
        """Take connections."""
        self._cluster.broker_id = self._broker.broker_id
        loop = asyncio.get_running_loop()
        for address, bound in self._bound:
            accepted = self._accepting(address.name, self._security.get(address.name, OPEN))
            self._servers.append(await loop.create_server(accepted, sock=bound, backlog=BACKLOG))
        for listener, offer in self._offers.items():
            tasks.start(offer.run(), f"keys of SASL on {listener}")
        tasks.start(self._sweep(), "sweep of Kafka's connections")

    def _accepting(self, name: str, security: ListenerSecurity) -> Callable[[], asyncio.Protocol]:
        connections = self.connections

        def accepted() -> asyncio.Protocol:
            connection = Connection(connections, name, security)
            return connection if security.tls is None else TlsTransport(connection, security.tls.context)

        return accepted

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.connections.sweep()

    async def drain(self) -> None:
        """Take no further connection, and end each connection after the answers to its requests in progress."""
        self._close_ports()
        await self.connections.drain(DRAIN_S)

    async def close(self, *, at_once: bool) -> None:
        """End what is left. Idempotent."""
        self._close_ports()
        self.connections.close(at_once=at_once)
        await self._upstream.close()

    def _close_ports(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        bound, self._bound = self._bound, []
        for _, each in bound:
            each.close()
