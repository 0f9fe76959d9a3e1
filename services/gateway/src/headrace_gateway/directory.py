"""The list of living gateways, which this gateway learns from the leading controller.

A gateway always has one announcement (``Cluster.AnnounceGateway``) waiting at the leading controller. The controller
answers when the list of gateways changes, at the latest after 0.3 seconds. When a gateway is killed, its connection to
the controller breaks, and all other gateways learn of the loss at once. If a gateway hangs, the controller removes the
gateway after three seconds without an announcement. While no controller answers, a gateway keeps the last known list,
because unreachable controllers say nothing about other gateways.
"""

from __future__ import annotations

import asyncio
import logging

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.membership.controller_calls import ControllerCalls, Sending
from headrace_core.membership.controllers import Controllers
from headrace_core.rpc.outage import Outage
from headrace_kafka.cluster import GatewayEntry, ListenerPorts
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

logger = logging.getLogger("headrace.gateway")

RETRY_S = 0.3  #: Seconds between a failed announcement and the next announcement.
ANSWER_MS = 2_000  #: Timeout of an announcement in milliseconds.
#: Milliseconds for which the list of gateways keeps a gateway that a new leading controller does not name.
FORGET_MS = 3_000.0
LEAVE_MS = 300  #: Timeout in milliseconds of the call with which a stopping gateway deregisters at the controllers.


class GatewayList:
    """This gateway, and the other gateways that the controllers name. ``entries`` stays the same object until the list
    changes."""

    def __init__(self, gateway_id: bytes) -> None:
        self._own = gateway_id
        # when a controller last named the gateway, in monotonic ms
        self._others: dict[bytes, tuple[float, GatewayEntry]] = {}
        self.entries: tuple[GatewayEntry, ...] = ()

    def serves(self, entry: GatewayEntry) -> None:
        """Set this gateway's own addresses."""
        self._set(entry, self._others)

    def apply(self, answer: cluster_pb2.AnnounceGatewayResponse, now_ms: float) -> None:
        """Apply an answer of the leading controller. A new leader's answers are incomplete at first: they remove a
        gateway only if no answer has named it for FORGET_MS."""
        named = {each.gateway_id: (now_ms, entry_of(each)) for each in answer.gateways}
        named.pop(self._own, None)
        if not answer.is_complete:
            kept = {key: each for key, each in self._others.items() if now_ms - each[0] <= FORGET_MS}
            named = {**kept, **named}
        own = next(each for each in self.entries if each.gateway_id == self._own)
        self._set(own, named)

    def _set(self, own: GatewayEntry, others: dict[bytes, tuple[float, GatewayEntry]]) -> None:
        self._others = others
        entries = tuple(sorted((own, *(entry for _, entry in others.values())), key=lambda each: each.gateway_id))
        if entries != self.entries:
            self.entries = entries


class Announcer:
    """Announces this gateway to the controllers, and keeps ``gateways`` up to date."""

    def __init__(self, controllers: Controllers, gateway_id: bytes, clock: Clock) -> None:
        self.gateways = GatewayList(gateway_id)
        self._id = gateway_id
        self._clock = clock
        self._controllers = controllers
        self._calls = ControllerCalls(controllers, clock)
        self._cluster_id = ""
        self._is_leaving = False
        self._version = 0
        self._outage = Outage(logger, "announcing this gateway to the other gateways")

    def serves(self, entry: GatewayEntry) -> None:
        """Set this gateway's own addresses."""
        self.gateways.serves(entry)

    async def run(self, cluster_id: str) -> None:
        """Announce this gateway to the controllers until the task is cancelled."""
        self._cluster_id = cluster_id
        while True:
            try:
                answer = await self._announce(ANSWER_MS)
            except HeadraceError as error:
                self._outage.failed(self._controllers.leader_address or "any address", error)
                await asyncio.sleep(RETRY_S)
                continue
            self._outage.over()
            self._version = answer.version
            self.gateways.apply(answer, self._clock.monotonic_ms())

    async def leave(self) -> None:
        """Report to the controllers that this gateway stops. The clients of this gateway then learn new broker
        addresses from other gateways."""
        self._is_leaving = True
        if self._cluster_id:
            try:
                await self._announce(LEAVE_MS)
            except HeadraceError as error:
                logger.info(
                    "cannot report to the controllers that this gateway stops; they notice the end later: %s", error
                )

    async def close(self) -> None:
        await self._calls.close()

    async def _announce(self, timeout_ms: int) -> cluster_pb2.AnnounceGatewayResponse:
        own = next(each for each in self.gateways.entries if each.gateway_id == self._id)
        request = cluster_pb2.AnnounceGatewayRequest(
            cluster_id=self._cluster_id,
            gateway=announced(own),
            is_leaving=self._is_leaving,
            known_version=self._version,
        )
        answer: cluster_pb2.AnnounceGatewayResponse = await self._calls.call(
            cluster_pb2_grpc.ClusterStub, "AnnounceGateway", request, timeout_ms, Sending.UNTIL_ANSWERED
        )
        return answer


def announced(entry: GatewayEntry) -> cluster_pb2.AnnouncedGateway:
    return cluster_pb2.AnnouncedGateway(
        gateway_id=entry.gateway_id,
        rack=entry.rack or "",
        listeners=[
            cluster_pb2.GatewayListener(
                name=name,
                host=ports.host,
                bootstrap_port=ports.bootstrap_port,
                broker_ports=[
                    cluster_pb2.BrokerPort(broker_id=broker_id, port=port)
                    for broker_id, port in sorted(ports.broker_ports.items())
                ],
            )
            for name, ports in sorted(entry.listeners.items())
        ],
    )


def entry_of(gateway: cluster_pb2.AnnouncedGateway) -> GatewayEntry:
    return GatewayEntry(
        gateway.gateway_id,
        {
            each.name: ListenerPorts(
                each.host, each.bootstrap_port, {port.broker_id: port.port for port in each.broker_ports}
            )
            for each in gateway.listeners
        },
        gateway.rack or None,
    )
