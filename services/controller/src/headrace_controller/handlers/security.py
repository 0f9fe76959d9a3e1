"""headrace.v1.Security on the active controller: on the internal listener, and on the listener for clients
(forwarding.py forwards the calls of other controllers' clients)."""

from __future__ import annotations

from typing import Any

from headrace_core.rpc.server import Listener
from headrace_core.security.token_calls import check_caller_is_node
from headrace_protos.v1 import security_pb2_grpc

from ..cluster.acls import check_enabled
from ..driver import ControllerDriver
from .acls import create_acls, delete_acls, describe_acls
from .quotas import alter_client_quotas, describe_client_quotas
from .tokens import Tokens
from .users import alter_users, describe_users


class SecurityHandler(security_pb2_grpc.SecurityServicer):
    """``tokens`` answers the calls about delegation tokens."""

    def __init__(self, driver: ControllerDriver, tokens: Tokens, *, has_authorizer: bool = False) -> None:
        self._driver = driver
        self._tokens = tokens
        self._has_authorizer = has_authorizer

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; call this before the listener starts."""
        listener.add(security_pb2_grpc.add_SecurityServicer_to_server, self, "headrace.v1.Security")

    async def DescribeAcls(self, request: Any, context: Any) -> Any:
        check_enabled(self._has_authorizer)
        self._check_leads()
        return describe_acls(self._driver.image, request)

    async def CreateAcls(self, request: Any, context: Any) -> Any:
        check_enabled(self._has_authorizer)
        return await create_acls(self._driver, request)

    async def DeleteAcls(self, request: Any, context: Any) -> Any:
        check_enabled(self._has_authorizer)
        return await delete_acls(self._driver, request)

    async def DescribeClientQuotas(self, request: Any, context: Any) -> Any:
        self._check_leads()
        return describe_client_quotas(self._driver.image, request)

    async def AlterClientQuotas(self, request: Any, context: Any) -> Any:
        return await alter_client_quotas(self._driver, request)

    async def DescribeUserScramCredentials(self, request: Any, context: Any) -> Any:
        self._check_leads()
        return await describe_users(self._driver.image, request)

    async def AlterUserScramCredentials(self, request: Any, context: Any) -> Any:
        return await alter_users(self._driver, request)

    async def CreateDelegationToken(self, request: Any, context: Any) -> Any:
        check_caller_is_node()
        return await self._tokens.create(request)

    async def RenewDelegationToken(self, request: Any, context: Any) -> Any:
        check_caller_is_node()
        return await self._tokens.renew(request)

    async def ExpireDelegationToken(self, request: Any, context: Any) -> Any:
        check_caller_is_node()
        return await self._tokens.expire(request)

    async def DescribeDelegationTokens(self, request: Any, context: Any) -> Any:
        check_caller_is_node()
        return await self._tokens.describe(request)

    def _check_leads(self) -> None:
        if not self._driver.is_leader:
            raise self._driver.controller.not_controller()
