"""headrace.v1.Admin and headrace.v1.Security on the client listener of every controller: both forward to the leader the
calls that only the leader can answer.

Because controllers forward Admin calls to the leader, a client may use the address of any controller. The internal
listener forwards no calls, because its callers find the leader themselves. Two controllers that take each other for the
leader therefore cannot forward a call in a loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    NetworkError,
    NotControllerError,
    ServerShuttingDownError,
    UnsupportedVersionError,
)
from headrace_core.membership.leader_calls import ask_while_it_leads, is_repeatable, outcome_unknown
from headrace_core.membership.mutation_quota import LIMITED, limited
from headrace_core.quotas import QuotaManager
from headrace_core.quotas.callers import limits_of
from headrace_core.rpc import PLAINTEXT, ChannelPool, ChannelPurpose, Channels
from headrace_core.rpc.server import Listener
from headrace_core.security import token_calls
from headrace_protos.v1 import admin_pb2_grpc, security_pb2_grpc

from ..driver import ControllerDriver
from ..raft import NO_LEADER
from .admin import AdminHandler
from .security import SecurityHandler

#: Calls that every controller answers, whether it leads or not, without forwarding them to the leader.
LOCAL = frozenset({"DescribeConfigs", "DescribeLogDirs", "AlterReplicaLogDirs"})
_WAIT_S_MAX = 30.0  #: Longest wait in seconds for a leader of the controllers, if the request has no deadline.
_RETRY_S = 0.05


class LeaderLink:
    """Channels to the present leader, and to earlier leaders, which may still answer calls."""

    def __init__(self, driver: ControllerDriver, channels: Channels = PLAINTEXT) -> None:
        self._driver = driver
        self._channels = ChannelPool(channels, ChannelPurpose.CONTROL)
        self._waiting: set[Callable[[], None]] = set()
        self._seen = NO_LEADER
        driver.on_turn(self._look)

    async def call(
        self, method: str, request: Any, timeout_s: float, stub_of: Callable[[Any], Any] = admin_pb2_grpc.AdminStub
    ) -> Any:
        """Return the leader's answer to a call of Admin, or of the service of ``stub_of``. Raises NotControllerError
        (retriable) if no leader is known, or if the leader is unreachable or did not answer a read. Raises
        RequestTimedOutError if it is unknown whether a change was made (core/membership/leader_calls.py). Errors other
        than NotControllerError and RequestTimedOutError come from the leader's answer."""
        address = self._address()
        if address is None:
            raise self._driver.controller.not_controller()
        stub = stub_of(self._channels.get(address))
        try:
            return await ask_while_it_leads(
                getattr(stub, method),
                request,
                address,
                timeout_s,
                leader_address=self._address,
                subscribe=self._subscribe,
            )
        except NetworkError as lost:
            if not lost.was_sent:
                raise NotControllerError(f"cannot reach the leading controller at {address}; retry") from None
            if is_repeatable(method, request):
                raise NotControllerError(f"the leading controller did not answer ({lost}); retry") from None
            raise outcome_unknown(method, lost) from None

    async def close(self) -> None:
        await self._channels.close()

    def _address(self) -> str | None:
        driver = self._driver
        return driver.controller.addresses.get(driver.leader_id)

    def _subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._waiting.add(changed)
        return lambda: self._waiting.discard(changed)

    def _look(self) -> None:
        """Check for a new leader; the driver calls this method after each turn."""
        if self._driver.leader_id != self._seen:
            self._seen = self._driver.leader_id
            for changed in tuple(self._waiting):
                changed()


class _ThroughAnyController:
    """Answers on this node if it leads, and otherwise gets the answer from the leader."""

    def __init__(self, driver: ControllerDriver, handler: Any, link: LeaderLink, stub_of: Callable[[Any], Any]) -> None:
        """``handler`` answers on the leader. ``stub_of`` makes the stub of the same service."""
        self._driver = driver
        self._handler = handler
        self._link = link
        self._stub_of = stub_of

    async def local(self, method: str, request: Any, context: Any) -> Any:
        return await getattr(self._handler, method)(request, context)

    async def led(self, method: str, request: Any, context: Any) -> Any:
        """Get the answer from the leader, on this node or on another; waits while there is no leader."""
        loop = asyncio.get_running_loop()
        left_s = context.time_remaining()
        deadline = loop.time() + (_WAIT_S_MAX if left_s is None else min(left_s, _WAIT_S_MAX))
        while True:
            failure: HeadraceError
            try:
                if self._driver.is_leader:
                    return await self.local(method, request, context)
                return await self._link.call(method, request, max(deadline - loop.time(), 0.001), self._stub_of)
            except NotImplementedError:
                raise UnsupportedVersionError(f"{method} is not implemented") from None
            except (NotControllerError, ServerShuttingDownError) as error:  # nothing was changed
                failure = error
            if loop.time() + _RETRY_S >= deadline:
                raise failure
            await asyncio.sleep(_RETRY_S)


def _method(name: str) -> Any:
    async def call(self: _ThroughAnyController, request: Any, context: Any) -> Any:
        if name in LOCAL:
            return await self.local(name, request, context)
        return await self.led(name, request, context)

    return call


class AdminThroughAnyController(_ThroughAnyController, admin_pb2_grpc.AdminServicer):
    """See the module."""

    CreateTopics = _method("CreateTopics")
    DeleteTopics = _method("DeleteTopics")
    CreatePartitions = _method("CreatePartitions")
    DescribeConfigs = _method("DescribeConfigs")
    AlterConfigs = _method("AlterConfigs")
    DescribeLogDirs = _method("DescribeLogDirs")
    AlterReplicaLogDirs = _method("AlterReplicaLogDirs")
    ElectLeaders = _method("ElectLeaders")
    DescribeQuorum = _method("DescribeQuorum")
    AddRaftVoter = _method("AddRaftVoter")
    RemoveRaftVoter = _method("RemoveRaftVoter")
    TransferLeadership = _method("TransferLeadership")
    AlterPartitionReassignments = _method("AlterPartitionReassignments")
    ListPartitionReassignments = _method("ListPartitionReassignments")
    DrainBroker = _method("DrainBroker")
    UnregisterBroker = _method("UnregisterBroker")
    DescribeFeatures = _method("DescribeFeatures")
    UpdateFeatures = _method("UpdateFeatures")

    def __init__(
        self,
        driver: ControllerDriver,
        admin: AdminHandler,
        link: LeaderLink,
        quotas: QuotaManager,
        *,
        partitions_default: int,
    ) -> None:
        """``quotas``: this node's quotas of mutations; ``partitions_default``: num.partitions."""
        super().__init__(driver, admin, link, admin_pb2_grpc.AdminStub)
        self._partitions_default = partitions_default
        self._quotas = quotas

    async def led(self, method: str, request: Any, context: Any) -> Any:
        """Get the answer from the leader, except for topics that the client's quota of mutations refuses."""
        image = self._driver.image
        self._quotas.apply(image.security.quotas)
        limits = limits_of(self._quotas, context) if method in LIMITED else None
        if limits is None:
            return await super().led(method, request, context)

        async def send(rest: Any) -> Any:
            return await super(AdminThroughAnyController, self).led(method, rest, context)

        return await limited(
            method, request, limits, image, time.monotonic(), send, partitions_default=self._partitions_default
        )

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; call this before the listener starts."""
        listener.add(admin_pb2_grpc.add_AdminServicer_to_server, self, "headrace.v1.Admin")


class SecurityThroughAnyController(_ThroughAnyController, security_pb2_grpc.SecurityServicer):
    """See the module."""

    DescribeAcls = _method("DescribeAcls")
    CreateAcls = _method("CreateAcls")
    DeleteAcls = _method("DeleteAcls")
    DescribeUserScramCredentials = _method("DescribeUserScramCredentials")
    AlterUserScramCredentials = _method("AlterUserScramCredentials")
    DescribeClientQuotas = _method("DescribeClientQuotas")
    AlterClientQuotas = _method("AlterClientQuotas")
    CreateDelegationToken = _method("CreateDelegationToken")
    RenewDelegationToken = _method("RenewDelegationToken")
    ExpireDelegationToken = _method("ExpireDelegationToken")
    DescribeDelegationTokens = _method("DescribeDelegationTokens")

    def __init__(self, driver: ControllerDriver, security: SecurityHandler, link: LeaderLink) -> None:
        super().__init__(driver, security, link, security_pb2_grpc.SecurityStub)

    async def led(self, method: str, request: Any, context: Any) -> Any:
        """Get the answer from the leader; for delegation tokens, add the client's principal."""

        async def send(asked: Any) -> Any:
            return await super(SecurityThroughAnyController, self).led(method, asked, context)

        return await token_calls.call(method, request, send)

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; call this before the listener starts."""
        listener.add(security_pb2_grpc.add_SecurityServicer_to_server, self, "headrace.v1.Security")
