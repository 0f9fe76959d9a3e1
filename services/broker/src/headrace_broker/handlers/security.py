"""headrace.v1.Security on a broker: it forwards each call to the active controller, and answers a change when this
broker has applied it."""

from __future__ import annotations

from typing import Any

from headrace_core.security import token_calls
from headrace_protos.v1 import security_pb2_grpc

from ..context import BrokerContext
from ..controller_link import ControllerLink
from .admin import forward


def _forwarded(name: str) -> Any:
    """The method of a call that goes to the active controller."""

    async def forwarded(self: SecurityService, request: Any, context: Any) -> Any:
        async def send(asked: Any) -> Any:
            return await forward(self._broker, self._controller, name, asked, security_pb2_grpc.SecurityStub)

        return await token_calls.call(name, request, send)

    return forwarded


class SecurityService(security_pb2_grpc.SecurityServicer):
    """headrace.v1.Security."""

    def __init__(self, broker: BrokerContext, controller: ControllerLink) -> None:
        self._broker = broker
        self._controller = controller

    DescribeAcls = _forwarded("DescribeAcls")
    CreateAcls = _forwarded("CreateAcls")
    DeleteAcls = _forwarded("DeleteAcls")
    DescribeUserScramCredentials = _forwarded("DescribeUserScramCredentials")
    AlterUserScramCredentials = _forwarded("AlterUserScramCredentials")
    DescribeClientQuotas = _forwarded("DescribeClientQuotas")
    AlterClientQuotas = _forwarded("AlterClientQuotas")
    CreateDelegationToken = _forwarded("CreateDelegationToken")
    RenewDelegationToken = _forwarded("RenewDelegationToken")
    ExpireDelegationToken = _forwarded("ExpireDelegationToken")
    DescribeDelegationTokens = _forwarded("DescribeDelegationTokens")
