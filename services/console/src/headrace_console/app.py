"""The parts of a console's process: this module builds, starts and stops them.

The console serves as soon as its ports are bound. The console starts even if the cluster does not answer; the pages
then say that the cluster does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from aiohttp import web

from headrace_core.clock import SystemClock
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.config import NodeConfig
from headrace_core.node.http_bodies import SERVER, server_logger
from headrace_core.node.http_connections import HttpConnections, Listener
from headrace_core.node.listeners import ListenerAddress
from headrace_core.node.state_file import RuntimeState, remove_state, write_state
from headrace_core.sockets import bound_socket
from headrace_core.telemetry import Emitter, NodeStarted, NodeStopped

from .console import Site
from .gate import FORM_BYTES_MAX
from .pages import add_routes
from .settings import ConsoleSettings
from .signing_in import Users

logger = logging.getLogger("headrace.console")

BACKLOG = 128  #: Maximum number of connections that wait in the kernel until the console accepts them.
KEEPALIVE_S = 30.0  #: Seconds that a connection may be idle between two requests.
DRAIN_S = 1.0  #: Seconds that a stopping console has to answer requests in progress; live views end at once.


class ConsoleNode:
    """A console that runs in one event loop. Call ``start``, then ``run`` until the console should stop, then ``stop``.
    ``config``: the configuration of a console node, with a state file and metrics; None for `headrace console`."""

    def __init__(
        self, settings: ConsoleSettings, config: NodeConfig | None = None, *, events: Emitter | None = None
    ) -> None:
        self.settings = settings
        self.node_id = 1 if config is None else config.node_id
        self.state_file = "" if config is None else config.state_file
        self.events = events or Emitter()
        self._metrics = (
            None if config is None else NodeMetrics("console", lambda: self.node_id, config.values, events=self.events)
        )
        self.users: Users | None = None
        self.url = ""
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self._sockets: list[socket.socket] = []
        self._runner: web.AppRunner | None = None
        self._listeners: list[Listener] = []
        self._connections: HttpConnections | None = None

    async def start(self) -> None:
        """Start the console; returns when it serves. Raises HeadraceError or OSError; call ``stop`` after an error
        too."""
        begun_ms = self._clock.monotonic_ms()
        self._sockets = [
            await bound_socket(each.host, each.port, key="console.listeners") for each in self.settings.listeners
        ]
        self.url = self.settings.url(self._sockets[0].getsockname()[1])
        site = Site(self.settings)
        users = self.users = Users(site)
        users.start()
        runner = self._runner = web.AppRunner(
            _application(site, users),
            handle_signals=False,
            access_log=None,
            logger=server_logger("headrace.console.http"),
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=DRAIN_S,
            **SERVER,
        )
        await runner.setup()
        context, server = self._tls_context(), runner.server
        assert server is not None
        self._listeners = [
            Listener(
                bound,
                server,
                lambda: len(server.connections),
                site.connections,
                context,
                backlog=BACKLOG,
                logger=logger,
            )
            for bound in self._sockets
        ]
        self._connections = site.connections
        if self._metrics is not None:
            if self.settings.guard.tls is not None:
                self._metrics.add_tls(self.settings.guard.tls)
            await self._metrics.start()
        if self.state_file:
            listeners = tuple(
                ListenerAddress(f"http{number}", each.host, bound.getsockname()[1])
                for number, (each, bound) in enumerate(zip(self.settings.listeners, self._sockets, strict=True), 1)
            )
            write_state(self.state_file, RuntimeState.of("console", self.node_id, self._started_ms, listeners))
        self.events.emit(
            NodeStarted(
                role="console",
                node_id=self.node_id,
                address=self.url,
                seconds=(self._clock.monotonic_ms() - begun_ms) / 1000,
            )
        )

    def _tls_context(self) -> ssl.SSLContext | None:
        """The TLS context of the listeners; None: the listeners do not encrypt. Users who sign in need no
        certificate."""
        guard = self.settings.guard
        if self.settings.has_sign_in and guard.tls is not None:
            return guard.tls.server_context(wants_client=False)
        return guard.ssl_context()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set."""
        await stop.wait()

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the console, even if its start is not complete or has failed. Idempotent."""
        for listener in self._listeners:
            await listener.stop()
        self._listeners = []
        if self._runner is not None:
            await self._runner.cleanup()
        if self._connections is not None:
            self._connections.close()
        if self.users is not None:
            await self.users.close()
        for bound in self._sockets:
            bound.close()
        if self._metrics is not None:
            await self._metrics.stop()
        if self.state_file:
            remove_state(self.state_file)
        self.events.emit(NodeStopped(role="console", node_id=self.node_id, clean=not at_once))


def _application(site: Site, users: Users) -> web.Application:
    root = web.Application(middlewares=[site.gate.middleware], client_max_size=FORM_BYTES_MAX)
    prefix = site.settings.path_prefix
    if not prefix:
        add_routes(root, users)
        return root
    pages = web.Application(client_max_size=FORM_BYTES_MAX)
    add_routes(pages, users)
    root.add_subapp(prefix, pages)
    root.router.add_get(prefix, partial(_redirected, site))
    root.router.add_get("/", partial(_outside, site))
    return root


async def _redirected(site: Site, _: web.Request) -> web.StreamResponse:
    return web.Response(status=308, headers={"Location": site.url()})


async def _outside(site: Site, _: web.Request) -> web.StreamResponse:
    """Serve the path ``/`` of a console with a prefix, for health checks."""
    return web.Response(text=f"The console of Headrace is at {site.url()}\n")


async def serve(config: NodeConfig, stop: asyncio.Event) -> None:
    """Run a console until ``stop`` is set, as ``python -m headrace_console`` does. If the call of ``serve`` is
    cancelled, the console stops at once."""
    await serve_settings(ConsoleSettings.of(config), stop, config)


async def serve_settings(
    settings: ConsoleSettings,
    stop: asyncio.Event,
    config: NodeConfig | None = None,
    *,
    on_started: Callable[[str], None] | None = None,
) -> None:
    """Run a console with the given settings until ``stop`` is set. ``on_started`` is called with the console's URL."""
    from headrace_core.node.run import serve_until
    from headrace_core.telemetry import log_events

    events = Emitter()
    events.subscribe(log_events(logger))
    if on_started is not None:
        events.subscribe(lambda event: on_started(event.address) if isinstance(event, NodeStarted) else None)
    await serve_until(ConsoleNode(settings, config, events=events), stop)
