"""The calls that Kafka's clients cause: of this broker's own services in the process, and of coordinators by gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError, RequestTimedOutError
from headrace_core.rpc.channel import Channels
from headrace_core.security.access import EVERYTHING, Access, Authorization, set_access
from headrace_core.security.caller import set_caller
from headrace_core.security.gate import Gate
from headrace_core.unexpected import answer_to
from headrace_kafka.client import Client
from headrace_kafka.cluster import ClientsRequest, Cluster, Node
from headrace_kafka.tracing import GatewayTraces
from headrace_kafka.upstream import TIMEOUT_MS_MAX, Upstream, check

from ..context import BrokerContext
from .streams import FetchWay, ProduceWay


class BrokerCluster(Cluster):
    """The brokers' own addresses, ids and racks, on the listener that a client uses."""

    def _nodes_of(self, call: ClientsRequest) -> dict[int, Node]:
        brokers, listener = self.state.image.brokers, call.client.listener
        if self._of[0] is not brokers:
            self._of = (brokers, None)
            self._nodes.clear()
        key = (listener, "", "")
        nodes = self._nodes.get(key)
        if nodes is None:
            nodes = self._nodes[key] = {
                broker_id: Node(broker_id, endpoint.host.strip("[]"), endpoint.port, brokers[broker_id].rack)
                for broker_id in sorted(brokers)
                if (endpoint := brokers[broker_id].endpoint(listener)) is not None
            }
        return nodes


class LocalUpstream(Upstream):
    """``services``: for each class of stubs the servicer of this broker. A servicer's method gets the client's caller
    and rights, and checks them as for a client of gRPC."""

    def __init__(
        self,
        broker: BrokerContext,
        cluster: Cluster,
        channels: Channels,
        services: Mapping[Callable[..., Any], Any],
        authorization: Authorization,
        traces: GatewayTraces | None,
    ) -> None:
        super().__init__(cluster, None, channels, traces)
        self._broker = broker
        self._services = services
        self._authorization = authorization
        self._gate = Gate("kafka", authorization=authorization)
        self._methods: dict[tuple[Callable[..., Any], str], Any] = {}

    def open_produce(self, client: Client) -> ProduceWay:
        return ProduceWay(self._broker, client, self._access(client, "Produce"))

    def open_fetch(self, client: Client, address: str) -> FetchWay:
        return FetchWay(self._broker, client, self._access(client, "Fetch"), address)

    async def any_broker(
        self, client: Client, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float
    ) -> Any:
        """Call this broker's servicer in the process."""
        check(method, stub, request)
        behaviour = self._methods.get((stub, method))
        if behaviour is None:
            path = f"/headrace.v1.{stub.__name__.removesuffix('Stub')}/{method}"
            servicer = self._services[stub]
            behaviour = self._gate.guarded(getattr(servicer, method), path, has_request=True)
            self._methods[stub, method] = behaviour
        set_caller(client.caller)
        set_access(self._access(client, method))
        try:
            async with asyncio.timeout(min(max(timeout_ms, 1), TIMEOUT_MS_MAX) / 1_000):
                return await behaviour(request, None)
        except TimeoutError:
            raise RequestTimedOutError(f"{method}: the broker did not answer within {timeout_ms:.0f} ms") from None
        except HeadraceError:
            raise
        except Exception as error:
            raise answer_to(error, method) from error

    async def broker(
        self, client: Client, broker_id: int, stub: Callable[..., Any], method: str, request: Any, timeout_ms: float
    ) -> Any:
        """Call this broker's servicer: a client sends what concerns one broker to this broker itself."""
        if broker_id != self._broker.broker_id:
            raise InvalidRequestError(
                f"{method}: this is broker {self._broker.broker_id}; send the request to broker {broker_id}"
            )
        return await self.any_broker(client, stub, method, request, timeout_ms)

    def _access(self, client: Client, method: str) -> Access:
        if self._authorization.authorizer is None:
            return EVERYTHING
        return Access(client.caller, self._authorization, method)
