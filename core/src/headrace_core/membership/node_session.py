"""A node's standing with the controllers, whichever its role: it registers, heartbeats while it lives, takes its leave.

``BrokerSession`` and ``CoordinatorSession`` say what is sent and what an answer means. Heartbeats are a stream
(rpc/duplex.py) with a connection of its own, so that nothing large can delay them. The session reads while no answer is
due, too: a connection that breaks between two heartbeats is noticed at once, and the controllers wait for a node whose
connection broke for a quarter of an interval only (broker.session.disconnect.grace.ms).

Only the leading controller answers. Who leads is in ``Controllers``, which the metadata stream keeps: when another one
is elected, the heartbeats move over at once, also from a controller that stands still or does not know yet.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from headrace_protos.v1 import cluster_pb2_grpc

from ..clock import boottime_s
from ..errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    HeadraceError,
    NetworkError,
    StaleBrokerEpochError,
)
from ..rpc.channel import ChannelPurpose, open_channel
from ..rpc.duplex import Duplex
from ..rpc.outage import Backoff, Outage
from ..rpc.status import error_from_rpc
from .controllers import Controllers
from .leader_discovery import LeaderDiscovery

#: How often a node that wants to stop asks whether it may.
_SHUTDOWN_INTERVAL_S = 0.05
#: How long one registration may take before it is sent again.
_REGISTER_TIMEOUT_S = 5.0

Registered = TypeVar("Registered")


class _SilentControllerError(NetworkError):
    """The connection stands, and no answer comes: the controller's process may be frozen."""


class NodeSession(abc.ABC, Generic[Registered]):
    """One life of a node. Not thread-safe; lives in one event loop."""

    def __init__(
        self,
        controllers: Controllers | Sequence[str],
        logger: logging.Logger,
        *,
        heartbeat_interval_ms: float,
        answer_timeout_ms: float,
    ) -> None:
        """``controllers``: or ``host:port`` of some controllers' internal listeners. ``answer_timeout_ms``: a heartbeat
        unanswered for so long is sent again on a new connection."""
        self._controllers = controllers if isinstance(controllers, Controllers) else Controllers(controllers)
        self._logger = logger
        self._interval_s = heartbeat_interval_ms / 1_000
        self._answer_timeout_s = answer_timeout_ms / 1_000
        self._registered: Registered | None = None
        self._want_shutdown = False
        #: When the last request that the controllers answered was sent (boottime_s()).
        self._heard_s = float("-inf")
        self._may_stop = asyncio.Event()
        self._nudge = asyncio.Event()
        self._correlation = itertools.count(1)

    # -- what a role says of itself

    @abc.abstractmethod
    async def _ask_to_register(self, stub: cluster_pb2_grpc.ClusterStub, timeout_s: float) -> Registered:
        """One attempt; grpc's own errors are translated by who calls."""

    @abc.abstractmethod
    def _open_heartbeats(self, stub: cluster_pb2_grpc.ClusterStub) -> Any:
        """The call of the role's stream of heartbeats."""

    @abc.abstractmethod
    def _heartbeat(self, correlation_id: int) -> Any:
        """The next heartbeat."""

    def _answered(self, answer: Any) -> None:
        """A heartbeat was answered."""
        if answer.should_shutdown:
            self._may_stop.set()

    # -- a life

    @property
    def registered(self) -> Registered:
        """What the controller answered; ``register`` comes first."""
        assert self._registered is not None, "register() comes first"
        return self._registered

    def heard_within(self, session_timeout_ms: float) -> bool:
        """May the controllers still believe that this life goes on? Not when the last heartbeat that was answered was
        sent so long ago: then what it had may have been given to others, whoever was frozen, suspended, or cut off."""
        return boottime_s() - self._heard_s < session_timeout_ms / 1_000

    async def register(self) -> Registered:
        """Register, trying again until a controller answers. An earlier life that still counts as alive is waited for.

        Raises what trying again cannot cure: InconsistentClusterIdError, InvalidRequestError (a broker's directories of
        several brokers, or another id wanted), UnsupportedVersionError.
        """
        discovery, told, outage = LeaderDiscovery(self._controllers), False, Outage(self._logger, "registering")
        backoff = Backoff()
        while True:
            address = discovery.address
            try:
                sent_s = boottime_s()
                self._registered = await self._register_at(address)
                self._heard_s = sent_s
                outage.over()
                return self._registered
            except DuplicateBrokerRegistrationError as error:
                if not told:
                    self._logger.warning("%s", error)
                    told = True
                discovery.worked()
                await asyncio.sleep(backoff.next_s())
            except HeadraceError as error:
                if not error.retriable:
                    raise
                outage.failed(address, error)
                await discovery.pause(discovery.failed(error))

    async def run(self) -> None:
        """Heartbeat until cancelled, or until the controllers say that the node may stop.

        Raises StaleBrokerEpochError (another process has registered under this id) and BrokerIdNotRegisteredError (it
        was silent for too long, or was unregistered): this life of the node is over.
        """
        discovery, outage = LeaderDiscovery(self._controllers), Outage(self._logger, "heartbeats")
        while not self._may_stop.is_set():
            target = _Target(self._controllers, discovery.address)
            try:
                await self._heartbeats(target, discovery, outage)
                continue
            except HeadraceError as error:
                if target.has_lost_the_lead():
                    discovery.follow()
                    continue
                if isinstance(error, StaleBrokerEpochError | BrokerIdNotRegisteredError):
                    raise
                if isinstance(error, _SilentControllerError):
                    discovery.is_silent()
                if error.retriable:
                    outage.failed(target.address, error)
                else:
                    self._logger.warning("heartbeat failed, retrying: %s", error)
                pause_s = discovery.failed(error)
            await discovery.pause(pause_s)

    async def shut_down(self, timeout_s: float) -> bool:
        """Ask for what the node leads or owns to be given to others, wait until it may stop. False after ``timeout_s``:
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

    async def _register_at(self, address: str) -> Registered:
        channel = open_channel(address, ChannelPurpose.HEARTBEAT)
        try:
            stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            return await self._ask_to_register(stub, _REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, address) from None
        finally:
            await channel.close()

    async def _heartbeats(self, target: _Target, discovery: LeaderDiscovery, outage: Outage) -> None:
        """Heartbeats over one stream. Returns when the node may stop; raises a HeadraceError when the stream ends."""
        stream: Duplex[Any, Any] = Duplex(
            target.address,
            ChannelPurpose.HEARTBEAT,
            lambda channel: self._open_heartbeats(cluster_pb2_grpc.ClusterStub(channel)),  # type: ignore[no-untyped-call]
        )
        answers: asyncio.Queue[Any] = asyncio.Queue()

        async def read() -> None:
            while True:
                answers.put_nowait(await stream.read())

        def answered(answer: Any) -> None:
            self._answered(answer)
            target.answered()
            discovery.worked()
            outage.over()

        def leader_changed() -> None:
            if target.has_lost_the_lead():
                stream.cancel()  # a heartbeat under way may wait for a process that stands still

        unsubscribe = self._controllers.subscribe(leader_changed)
        try:
            await stream.run(read(), self._beat(stream, answers, answered))
        finally:
            unsubscribe()

    async def _beat(
        self, stream: Duplex[Any, Any], answers: asyncio.Queue[Any], answered: Callable[[Any], None]
    ) -> None:
        """One heartbeat after the other; returns when the node may stop."""
        limit = self._limit(stream)
        try:
            await stream.connected()
            while True:
                self._nudge.clear()
                number, sent_s = next(self._correlation), boottime_s()
                await stream.write(self._heartbeat(number))
                while (answer := await answers.get()).correlation_id != number:
                    pass  # an answer that came twice says nothing of this heartbeat
                limit.cancel()
                self._heard_s = sent_s
                answered(answer)
                if self._may_stop.is_set():
                    await stream.done_writing()
                    return
                await wait_for_event(self._nudge, _SHUTDOWN_INTERVAL_S if self._want_shutdown else self._interval_s)
                limit = self._limit(stream)
        finally:
            limit.cancel()

    def _limit(self, stream: Duplex[Any, Any]) -> asyncio.TimerHandle:
        """End the stream unless the heartbeat is answered in time, also while it waits for a connection."""

        def give_up() -> None:
            limit_s = self._answer_timeout_s
            stream.cancel(
                _SilentControllerError(f"{stream.address}: a heartbeat was not answered within {limit_s:.1f} s")
            )

        return asyncio.get_running_loop().call_later(self._answer_timeout_s, give_up)


class _Target:
    """The controller that a stream of heartbeats goes to. Until it answers, any leader that becomes known during the
    stream takes its place (the leader known before did not answer, so it is not asked again). A controller that has
    answered led then; only a leader of a later epoch takes its place, for a connection that is broken needlessly looks
    like a broker that died."""

    def __init__(self, controllers: Controllers, address: str) -> None:
        self.address = address
        self._controllers = controllers
        self._known = controllers.leader_epoch, controllers.leader_id
        #: In which it led.
        self._epoch: int | None = None

    def answered(self) -> None:
        if self._epoch is None:
            self._epoch = self._controllers.leader_epoch

    def has_lost_the_lead(self) -> bool:
        leader, epoch = self._controllers.leader_address, self._controllers.leader_epoch
        if leader in (None, self.address):
            return False
        return (epoch, self._controllers.leader_id) != self._known if self._epoch is None else epoch > self._epoch


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> None:
    """Until the event is set, or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
