"""A broker's standing with the controllers: it registers, heartbeats while it lives, and takes its leave.

    session = BrokerSession(addresses, registration, heartbeat_interval_ms=2_000)
    registered = await session.register()            # the broker's id and epoch
    task = asyncio.create_task(session.run())        # heartbeats; raises when this life of the broker is over
    session.applied(follower.image.next_offset)      # after each change; asks to be unfenced as soon as it may be
    await session.wait_unfenced()
    ...
    await session.shut_down(timeout_s=30)            # leaderships are handed over; then it may stop

Heartbeats have a connection of their own, so that nothing large can delay them. Between two of them ``applied`` may
send one at once: a broker is unfenced milliseconds after it has caught up, not at the next interval.

Only the leading controller answers. Who leads is in ``Controllers``, which the metadata stream keeps: when another one
is elected, the heartbeats move over at once, also from a controller that stands still or does not know yet.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
from ..metadata.features import SUPPORTED_FEATURES
from .backoff import Backoff
from .channel import ChannelPurpose, open_channel
from .controllers import Controllers
from .heartbeats import HeartbeatsGoTo, HeartbeatStream, LeadMovedError, SilentControllerError, wait_for_event
from .outage import Outage
from .pursuit import Pursuit
from .status import error_from_rpc

logger = logging.getLogger("headrace.broker.session")

#: How often a broker that wants to stop asks whether it may.
_SHUTDOWN_INTERVAL_S = 0.05
#: How long one registration may take before it is sent again.
_REGISTER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """Who the broker is. Ids have 16 bytes, ``incarnation_id`` is new at each start. Endpoints: name, host, port.

    ``previous_broker_epoch``: that of the life that stopped cleanly, None if the last one did not (KIP-966);
    ``default_log_flush``: the log.flush of its properties file."""

    cluster_id: str
    incarnation_id: bytes
    directory_ids: tuple[bytes, ...]
    endpoints: tuple[tuple[str, str, int], ...]
    rack: str | None = None
    wanted_broker_id: int = -1
    previous_broker_epoch: int | None = None
    default_log_flush: str = ""


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """What the controller answered. Apply the metadata log up to ``metadata_offset`` before serving."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int


class BrokerSession:
    """One life of a broker. Not thread-safe; lives in one event loop."""

    def __init__(
        self,
        controllers: Controllers | Sequence[str],
        registration: BrokerRegistration,
        *,
        heartbeat_interval_ms: float,
        answer_timeout_ms: float = 4_500,
        on_fenced: Callable[[bool], None] | None = None,
        lag_ms: Callable[[], float | None] = lambda: None,
    ) -> None:
        """``controllers``: or ``host:port`` of some controllers' internal listeners. ``answer_timeout_ms``: a heartbeat
        unanswered for so long is sent again on a new connection. ``on_fenced`` is told each time the controllers' view
        changes. ``lag_ms``: how old this broker's metadata may be; every heartbeat says it."""
        self.fenced = True
        self._controllers = controllers if isinstance(controllers, Controllers) else Controllers(controllers)
        self._lag_ms = lag_ms
        self._registration = registration
        self._interval_s = heartbeat_interval_ms / 1_000
        self._answer_timeout_s = answer_timeout_ms / 1_000
        self._on_fenced = on_fenced
        self._registered: RegisteredBroker | None = None
        self._applied = 0
        self._want_fence = False
        self._want_shutdown = False
        self._offline_directories: tuple[bytes, ...] = ()
        self._may_stop = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._nudge = asyncio.Event()
        self._correlation = itertools.count(1)

    @property
    def registered(self) -> RegisteredBroker:
        assert self._registered is not None, "register() comes first"
        return self._registered

    async def register(self) -> RegisteredBroker:
        """Register, trying again until a controller answers. An earlier life that still counts as alive is waited for.

        Raises what trying again cannot cure: InconsistentClusterIdError, InvalidRequestError (directories of several
        brokers, or another id wanted), UnsupportedVersionError.
        """
        pursuit, told, outage = Pursuit(self._controllers), False, Outage(logger, "registering")
        backoff = Backoff()
        while True:
            address = pursuit.address
            try:
                self._registered = await self._register_at(address)
                self.fenced = True
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
        """Heartbeat until cancelled, or until the controllers say that the broker may stop.

        Raises StaleBrokerEpochError (another process has registered as this broker) and BrokerIdNotRegisteredError:
        this life of the broker is over.
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

    def applied(self, metadata_offset: int) -> None:
        """The broker has applied the metadata log up to here (exclusive)."""
        self._applied = max(self._applied, metadata_offset)
        if self.fenced and self._registered is not None and self._applied >= self.registered.metadata_offset:
            self._nudge.set()

    def hurry(self) -> None:
        """Somebody waits to hear how far this broker is: the next heartbeat goes at once."""
        self._nudge.set()

    def hold_fenced(self, hold: bool) -> None:
        """While True, stay registered and fenced however far the metadata is applied: logs are being recovered."""
        self._want_fence = hold
        self._nudge.set()

    def directories_failed(self, directory_ids: Iterable[bytes]) -> None:
        """Log directories (16 bytes each) have failed: every heartbeat says so from here on, the next one goes at once.
        The controllers move leadership away from the replicas in them."""
        self._offline_directories = tuple(dict.fromkeys((*self._offline_directories, *directory_ids)))
        self._nudge.set()

    async def wait_unfenced(self) -> None:
        """Return once the controllers consider the broker able to serve."""
        await self._unfenced.wait()

    async def shut_down(self, timeout_s: float) -> bool:
        """Controlled shutdown: ask for leaderships to be moved, wait until the broker may stop. False after
        ``timeout_s``: stop anyway, uncontrolled. ``run`` must be going on; it returns once this is done."""
        self._want_shutdown = True
        self._nudge.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._may_stop.wait()
        except TimeoutError:
            return False
        return True

    # -- one registration, one stream of heartbeats -------------------------------------------------------------------

    async def _register_at(self, address: str) -> RegisteredBroker:
        who = self._registration
        request = cluster_pb2.RegisterBrokerRequest(
            cluster_id=who.cluster_id,
            incarnation_id=who.incarnation_id,
            directory_ids=who.directory_ids,
            endpoints=[
                common_pb2.Endpoint(listener=listener, host=host, port=port) for listener, host, port in who.endpoints
            ],
            rack=who.rack or "",
            wanted_broker_id=who.wanted_broker_id,
            previous_broker_epoch=who.previous_broker_epoch,
            default_log_flush=who.default_log_flush,
            features=[
                cluster_pb2.FeatureRange(name=each.name, min_level=each.min_level, max_level=each.max_level)
                for each in SUPPORTED_FEATURES
            ],
        )
        channel = open_channel(address, ChannelPurpose.HEARTBEAT)
        try:
            stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.RegisterBroker(request, timeout=_REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, address) from None
        finally:
            await channel.close()
        return RegisteredBroker(answer.broker_id, answer.broker_epoch, answer.metadata_offset)

    async def _heartbeats(self, channel: grpc.aio.Channel, pursuit: Pursuit, outage: Outage) -> None:
        """Heartbeats over one stream. Returns when the broker may stop; raises a HeadraceError when the stream ends, or
        LeadMovedError when another controller is known to lead."""
        stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        stream = HeartbeatStream(stub.BrokerHeartbeat(), on_end=self._nudge.set)
        at = HeartbeatsGoTo(self._controllers, pursuit.address)

        def changed() -> None:
            if at.has_been_left():
                self._nudge.set()
                stream.leave()  # a heartbeat under way may wait for a process that stands still

        unsubscribe = self._controllers.subscribe(changed)
        try:
            while True:
                self._nudge.clear()
                self._answered(await self._beat(stream))
                at.answered()
                pursuit.worked()
                outage.over()
                if self._may_stop.is_set():
                    await stream.done_writing()
                    return
                interval_s = _SHUTDOWN_INTERVAL_S if self._want_shutdown else self._interval_s
                if not (self._want_shutdown and self._nudge.is_set()):
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

    async def _beat(self, stream: HeartbeatStream) -> cluster_pb2.BrokerHeartbeatResponse:
        registered = self.registered
        request = cluster_pb2.BrokerHeartbeatRequest(
            correlation_id=next(self._correlation),
            broker_id=registered.broker_id,
            broker_epoch=registered.broker_epoch,
            metadata_offset=self._applied,
            want_shutdown=self._want_shutdown,
            want_fence=self._want_fence,
            offline_log_dirs=self._offline_directories,
        )
        lag_ms = self._lag_ms()
        if lag_ms is not None:
            request.metadata_lag_ms = int(lag_ms) + 1
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
        assert isinstance(answer, cluster_pb2.BrokerHeartbeatResponse)
        return answer

    def _answered(self, answer: cluster_pb2.BrokerHeartbeatResponse) -> None:
        if answer.fenced != self.fenced:
            self.fenced = answer.fenced
            if self._on_fenced is not None:
                self._on_fenced(self.fenced)
        if self.fenced:
            self._unfenced.clear()
        else:
            self._unfenced.set()
        if answer.should_shutdown:
            self._may_stop.set()
