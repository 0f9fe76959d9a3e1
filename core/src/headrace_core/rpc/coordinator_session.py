"""A coordinator's standing with the controllers: it registers, heartbeats while it lives, and takes its leave.

    session = CoordinatorSession(controllers, registration, heartbeat_interval_ms=2_000)
    registered = await session.register()            # the coordinator's id and epoch
    task = asyncio.create_task(session.run())        # heartbeats; raises when this life of the coordinator is over
    ...
    await session.shut_down(timeout_s=10)            # its shards are given to others; then it may stop

As a broker's (broker_session.py), but nothing of a coordinator outlives its process: it is never fenced, only gone.
What it owns stands in the metadata log.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc, common_pb2

from ..errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    HeadraceError,
    NetworkError,
    StaleBrokerEpochError,
)
from .backoff import Backoff
from .channel import ChannelPurpose, open_channel
from .controllers import Controllers
from .heartbeats import HeartbeatsGoTo, HeartbeatStream, LeadMovedError, SilentControllerError, wait_for_event
from .outage import Outage
from .pursuit import Pursuit
from .status import error_from_rpc

logger = logging.getLogger("headrace.coordinator.session")

#: How often a coordinator that wants to stop asks whether it may.
_SHUTDOWN_INTERVAL_S = 0.05
#: How long one registration may take before it is sent again.
_REGISTER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRegistration:
    """Who the coordinator is. ``incarnation_id``: 16 bytes, new at each start. Endpoints: name, host, port."""

    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[tuple[str, str, int], ...]
    rack: str | None = None
    wanted_id: int = -1


@dataclass(frozen=True, slots=True)
class RegisteredCoordinator:
    """What the controller answered. Apply the metadata log up to ``metadata_offset`` before serving."""

    coordinator_id: int
    coordinator_epoch: int
    metadata_offset: int


class CoordinatorSession:
    """One life of a coordinator. Not thread-safe; lives in one event loop."""

    def __init__(
        self,
        controllers: Controllers | Sequence[str],
        registration: CoordinatorRegistration,
        *,
        heartbeat_interval_ms: float,
        answer_timeout_ms: float = 4_500,
    ) -> None:
        """``controllers``: or ``host:port`` of some controllers' internal listeners. ``answer_timeout_ms``: a heartbeat
        unanswered for so long is sent again on a new connection."""
        self._controllers = controllers if isinstance(controllers, Controllers) else Controllers(controllers)
        self._registration = registration
        self._interval_s = heartbeat_interval_ms / 1_000
        self._answer_timeout_s = answer_timeout_ms / 1_000
        self._registered: RegisteredCoordinator | None = None
        self._want_shutdown = False
        self._heard_s = float("-inf")
        self._may_stop = asyncio.Event()
        self._nudge = asyncio.Event()
        self._correlation = itertools.count(1)

    @property
    def registered(self) -> RegisteredCoordinator:
        assert self._registered is not None, "register() comes first"
        return self._registered

    def heard_within(self, session_timeout_ms: float) -> bool:
        """May the controllers still believe that this life goes on? Not when the last heartbeat that was answered was
        sent so long ago: then the shards may have been given to others, whoever was frozen, or cut off."""
        return asyncio.get_running_loop().time() - self._heard_s < session_timeout_ms / 1_000

    async def register(self) -> RegisteredCoordinator:
        """Register, trying again until a controller answers. An earlier life that still counts as alive is waited for.

        Raises what trying again cannot cure: InconsistentClusterIdError, InvalidRequestError, UnsupportedVersionError.
        """
        pursuit, told, outage = Pursuit(self._controllers), False, Outage(logger, "registering")
        backoff = Backoff()
        while True:
            address = pursuit.address
            try:
                sent_s = asyncio.get_running_loop().time()
                self._registered = await self._register_at(address)
                self._heard_s = sent_s
                outage.over()
                return self._registered
            except DuplicateBrokerRegistrationError as error:
                if not told:
                    logger.warning("%s", error)
                    told = True
                pursuit.worked()
                await asyncio.sleep(backoff.next_s())
            except HeadraceError as error:
                if not error.retriable:
                    raise
                outage.failed(address, error)
                await pursuit.pause(pursuit.failed(error))

    async def run(self) -> None:
        """Heartbeat until cancelled, or until the controllers say that the coordinator may stop.

        Raises StaleBrokerEpochError (another process has registered under this id) and BrokerIdNotRegisteredError (it
        was silent for too long): this life of the coordinator is over, and its shards are others'.
        """
        pursuit, outage = Pursuit(self._controllers), Outage(logger, "heartbeats")
        while True:
            address = pursuit.address
            channel = open_channel(address, ChannelPurpose.HEARTBEAT)
            try:
                await self._heartbeats(channel, pursuit, outage)
                return
            except (StaleBrokerEpochError, BrokerIdNotRegisteredError):
                raise
            except LeadMovedError:
                pursuit.follow()
                continue
            except HeadraceError as failed:
                error = failed
            finally:
                await channel.close()
            if error.retriable:
                outage.failed(address, error)
            else:
                logger.warning("heartbeats: %s", error)
            await pursuit.pause(pursuit.failed(error))

    async def shut_down(self, timeout_s: float) -> bool:
        """Ask for the shards to be given to others, wait until the coordinator may stop. False after ``timeout_s``:
        stop anyway; the controllers will notice. ``run`` must be going on; it returns once this is done."""
        self._want_shutdown = True
        self._nudge.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._may_stop.wait()
        except TimeoutError:
            return False
        return True

    # -- one registration, one stream of heartbeats -------------------------------------------------------------------

    async def _register_at(self, address: str) -> RegisteredCoordinator:
        who = self._registration
        request = cluster_pb2.RegisterCoordinatorRequest(
            cluster_id=who.cluster_id,
            incarnation_id=who.incarnation_id,
            endpoints=[
                common_pb2.Endpoint(listener=listener, host=host, port=port) for listener, host, port in who.endpoints
            ],
            rack=who.rack or "",
            wanted_coordinator_id=who.wanted_id,
        )
        channel = open_channel(address, ChannelPurpose.HEARTBEAT)
        try:
            stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.RegisterCoordinator(request, timeout=_REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, address) from None
        finally:
            await channel.close()
        return RegisteredCoordinator(answer.coordinator_id, answer.coordinator_epoch, answer.metadata_offset)

    async def _heartbeats(self, channel: grpc.aio.Channel, pursuit: Pursuit, outage: Outage) -> None:
        """Heartbeats over one stream. Returns when the coordinator may stop; raises a HeadraceError when the stream
        ends, or LeadMovedError when another controller is known to lead."""
        stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        stream = HeartbeatStream(stub.CoordinatorHeartbeat(), on_end=self._nudge.set)
        at = HeartbeatsGoTo(self._controllers, pursuit.address)

        def changed() -> None:
            if at.has_been_left():
                self._nudge.set()
                stream.leave()  # a heartbeat under way may wait for a process that stands still

        unsubscribe = self._controllers.subscribe(changed)
        try:
            while True:
                self._nudge.clear()
                sent_s = asyncio.get_running_loop().time()
                answer = await self._beat(stream)
                self._heard_s = sent_s
                if answer.should_shutdown:
                    self._may_stop.set()
                    await stream.done_writing()
                    return
                at.answered()
                pursuit.worked()
                outage.over()
                interval_s = _SHUTDOWN_INTERVAL_S if self._want_shutdown else self._interval_s
                await wait_for_event(self._nudge, interval_s)
                if at.has_been_left():
                    raise LeadMovedError
        except grpc.aio.AioRpcError as failure:
            if at.has_been_left():
                raise LeadMovedError from None
            raise error_from_rpc(failure, "the controller") from None
        except NetworkError as lost:
            if at.has_been_left():
                raise LeadMovedError from None
            if isinstance(lost, SilentControllerError):
                pursuit.is_silent()
            raise
        finally:
            unsubscribe()
            stream.leave()

    async def _beat(self, stream: HeartbeatStream) -> Any:
        request = cluster_pb2.CoordinatorHeartbeatRequest(
            correlation_id=next(self._correlation),
            coordinator_id=self.registered.coordinator_id,
            coordinator_epoch=self.registered.coordinator_epoch,
            want_shutdown=self._want_shutdown,
        )
        exchange = stream.exchange(request)
        done, _ = await asyncio.wait({exchange}, timeout=self._answer_timeout_s)
        if not done:
            stream.leave()
            await asyncio.wait({exchange})
            raise SilentControllerError(f"a heartbeat was not answered within {self._answer_timeout_s:.1f} s")
        if exchange.cancelled():
            raise NetworkError("the stream of heartbeats was left")
        answer = exchange.result()
        if answer is grpc.aio.EOF:
            raise NetworkError("the controller ended the stream of heartbeats")
        return answer
