"""The ports of a gateway: for each Kafka listener a bootstrap port, and a port for each registered broker id.

From the port, the gateway knows to which broker a client sends its request. Kafka's tools need a port for each broker,
because they send some requests to one broker: about the broker's log directories, and about its configuration. A port
opens when its broker registers and closes when the broker is unregistered; a fenced broker keeps its port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from headrace_core.node.listeners import ListenerAddress, advertised
from headrace_core.sockets import bound_socket
from headrace_kafka.client import BOOTSTRAP
from headrace_kafka.cluster import ListenerPorts
from headrace_kafka.connection import OPEN, Connection, Connections, ListenerSecurity
from headrace_kafka.settings import GatewaySettings
from headrace_kafka.tls import TlsTransport

logger = logging.getLogger("headrace.gateway")

BACKLOG = 1_024  #: Maximum number of connections that the kernel queues until the gateway accepts them.


class Listeners:
    """All listening sockets of a gateway. ``addresses``: the advertised bootstrap addresses."""

    def __init__(
        self,
        settings: GatewaySettings,
        connections: Connections,
        security: Mapping[str, ListenerSecurity] | None = None,
    ) -> None:
        """``security``: the security of each listener by name; a listener without an entry is open."""
        self._settings = settings
        self._security = security or {}
        self._connections = connections
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._ports: dict[str, dict[int, int]] = {}
        self._changing = asyncio.Lock()
        self.addresses: tuple[ListenerAddress, ...] = ()

    async def start(self, broker_ids: Collection[int]) -> None:
        """Open the bootstrap ports and the ports of ``broker_ids``. Raises OSError."""
        bound = []
        for listener in self._settings.listeners:
            port = await self._open(listener, BOOTSTRAP, listener.port)
            bound.append(ListenerAddress(listener.name, listener.host, port))
            self._ports[listener.name] = {}
        self.addresses = advertised(bound, self._settings.advertised)
        await self.follow(broker_ids)

    async def follow(self, broker_ids: Collection[int]) -> bool:
        """Open and close ports so that exactly the brokers ``broker_ids`` have ports; returns whether a port has
        changed. If a port cannot be opened, the method logs an error, and tries again at the next call."""
        async with self._changing:
            return await self._follow(broker_ids)

    async def _follow(self, broker_ids: Collection[int]) -> bool:
        has_changed = False
        for listener in self._settings.listeners:
            ports = self._ports[listener.name]
            for broker_id in [each for each in ports if each not in broker_ids]:
                del ports[broker_id]
                self._servers.pop((listener.name, broker_id)).close()
                has_changed = True
            for broker_id in sorted(set(broker_ids) - ports.keys()):
                base = self._settings.broker_ports.get(listener.name)
                wanted = 0 if base is None else base + broker_id
                try:
                    ports[broker_id] = await self._open(listener, broker_id, wanted)
                    has_changed = True
                except (OSError, OverflowError) as error:
                    logger.error(
                        "cannot open the port for broker %d on listener %s: %s", broker_id, listener.name, error
                    )
        return has_changed

    def ports(self) -> Mapping[str, ListenerPorts]:
        """The addresses of each listener that clients receive."""
        return {
            address.name: ListenerPorts(address.host.strip("[]"), address.port, dict(self._ports[address.name]))
            for address in self.addresses
        }

    def close(self) -> None:
        """Close all listening sockets, so that clients cannot connect any more."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()

    async def _open(self, listener: ListenerAddress, broker_id: int, port: int) -> int:
        connections, name = self._connections, listener.name
        loop, host = asyncio.get_running_loop(), listener.host.strip("[]")

        security = self._security.get(name, OPEN)

        def accepted() -> asyncio.Protocol:
            connection = Connection(connections, name, broker_id, security)
            return connection if security.tls is None else TlsTransport(connection, security.tls.context)

        bound = await bound_socket("" if host == "::" else host, port, key="kafka.listeners")
        server = await loop.create_server(accepted, sock=bound, backlog=BACKLOG)
        self._servers[(name, broker_id)] = server
        return int(server.sockets[0].getsockname()[1])
