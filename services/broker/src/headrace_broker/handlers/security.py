"""headrace.v1.Security on a broker: it forwards each call to the active controller, and answers a change when this
broker has applied it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_core.security import token_calls
from headrace_protos.v1 import security_pb2, security_pb2_grpc

from ..context import BrokerContext
from ..controller_link import ControllerLink
from .admin import forward


class SecurityService(security_pb2_grpc.SecurityServicer):
    """This module generates the methods of the calls that go to the active controller."""

    def __init__(self, broker: BrokerContext, controller: ControllerLink) -> None:
        self._broker = broker
        self._controller = controller


def _forwarded(name: str) -> Callable[[SecurityService, Any, Any], Any]:
    async def forwarded(self: SecurityService, request: Any, context: Any) -> Any:
        async def send(asked: Any) -> Any:
            return await forward(self._broker, self._controller, name, asked, security_pb2_grpc.SecurityStub)

        return await token_calls.call(name, request, send)

    return forwarded


for _each in security_pb2.DESCRIPTOR.services_by_name["Security"].methods:
    if _each.name not in vars(SecurityService):
        setattr(SecurityService, _each.name, _forwarded(_each.name))
