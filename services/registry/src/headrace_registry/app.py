"""The parts of a registry's process: this module builds, starts and stops them.

The HTTP ports are bound first, because the replica announces its URL with the real port. Requests are accepted when the
replica has read the topic to its end. In a new registry the first requests also wait for the first writer.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from aiohttp import web

from headrace_core.clock import SystemClock
from headrace_core.metrics.calls import CallTimes
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.config import NodeConfig
from headrace_core.node.http_bodies import SERVER, server_logger
from headrace_core.node.http_connections import Listener
from headrace_core.node.listeners import ListenerAddress
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.sockets import bound_socket
from headrace_core.telemetry import Emitter, NodeStarted, NodeStopped

from .api import CONNECTIONS, application
from .collector import rows_of
from .registry import Registry
from .settings import RegistrySettings

logger = logging.getLogger("headrace.registry")

BACKLOG = 128  #: Maximum number of connections that wait in the kernel until the registry accepts them.
#: Seconds that the first requests wait for a writer. If no writer is elected in this time, the registry answers only
#: reads.
FIRST_WRITER_S = 10.0
KEEPALIVE_S = 75.0  #: Seconds that a connection may be idle between two requests.
DRAIN_S = 2.0  #: Seconds that a stopping registry has to answer requests in progress.


class RegistryNode:
    """A registry that runs in one event loop. Call ``start``, then ``run`` until the registry should stop, then
    ``stop``."""

    def __init__(self, config: NodeConfig, *, events: Emitter | None = None) -> None:
        self.config = config
        self.settings = RegistrySettings.of(config)
        self.events = events or Emitter()
        self.registry: Registry | None = None
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._started_monotonic_ms = self._clock.monotonic_ms()
        self._sockets: list[socket.socket] = []
        self._runner: web.AppRunner | None = None
        self._listeners: list[Listener] = []
        self._exporter = NodeMetrics("registry", lambda: config.node_id, config.values, events=self.events)
        self._calls = CallTimes("http")
        self._exporter.add_calls(self._calls)
        self._exporter.add(lambda: rows_of(self.registry))

    async def start(self) -> None:
        """Start the registry; returns when it serves. Raises HeadraceError or OSError; call ``stop`` after
        an error too."""
        self._sockets = [
            await bound_socket(each.host, each.port, key="registry.listeners") for each in self.settings.listeners
        ]
        url = self.settings.url(self._sockets[0].getsockname()[1])
        registry = self.registry = Registry(self.settings, url, events=self.events)
        await registry.start()
        if not await registry.wait_for_writer(FIRST_WRITER_S):
            logger.warning(
                "no replica of the registry was elected as the writer within %g s, so the registry answers reads and "
                "refuses writes; check that the cluster has a coordinator, and that a replica has "
                "leader.eligibility=true",
                FIRST_WRITER_S,
            )
        app = application(registry, self.settings, self._calls)
        runner = self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=server_logger("headrace.registry.http"),
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=DRAIN_S,
            **SERVER,
        )
        await runner.setup()
        context, server = self.settings.guard.ssl_context(), runner.server
        assert server is not None
        self._listeners = [
            Listener(
                bound,
                server,
                lambda: len(server.connections),
                app[CONNECTIONS],
                context,
                backlog=BACKLOG,
                logger=logger,
            )
            for bound in self._sockets
        ]
        await self._exporter.start()
        if self.config.state_file:
            listeners = tuple(
                ListenerAddress(f"http{number}", each.host, bound.getsockname()[1])
                for number, (each, bound) in enumerate(zip(self.settings.listeners, self._sockets, strict=True), 1)
            )
            write_state(
                self.config.state_file,
                RuntimeState.of("registry", self.config.node_id, self._started_ms, listeners, self._exporter.url),
            )
        self.events.emit(
            NodeStarted(
                role="registry",
                node_id=self.config.node_id,
                address=url,
                seconds=(self._clock.monotonic_ms() - self._started_monotonic_ms) / 1000,
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; raises an error if another cause ends the registry."""
        assert self.registry is not None
        await self.registry.run(stop)

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the registry, even if its start is not complete or has failed. ``at_once`` stops without notice, as
        close to a crash as possible. Idempotent."""
        for listener in self._listeners:
            await listener.stop()
        self._listeners = []
        if self.registry is not None:
            await self.registry.stop(at_once=at_once)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner.app[CONNECTIONS].close()
        for bound in self._sockets:
            bound.close()
        await self._exporter.stop()
        if self.config.state_file:
            remove_state(self.config.state_file)
        self.events.emit(NodeStopped(role="registry", node_id=self.config.node_id, clean=not at_once))


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a registry until ``stop`` is set, as ``python -m headrace_registry`` does. If the call of ``serve`` is
    cancelled, the registry stops at once."""
    from headrace_core.node.run import serve_until
    from headrace_core.telemetry import log_events

    events = Emitter()
    events.subscribe(log_events(logger))
    await serve_until(RegistryNode(config, events=events), stop)
