"""A node's session with the controllers, in any role: registration, heartbeats, shutdown.

``BrokerSession`` and ``CoordinatorSession`` define the messages. Heartbeats have a separate stream and connection
(rpc/duplex.py), so that no large message can delay a heartbeat. A session reads from the stream between two heartbeats,
so it notices a broken connection at once. Reconnecting fast matters: the controllers wait only
broker.session.disconnect.grace.ms (by default a quarter of the heartbeat interval) for a node whose connection broke.

Only the leading controller responds to heartbeats. ``Controllers`` gets the leader from the metadata stream. After an
election the heartbeats switch to the new leader at once, even from a controller that is frozen or does not know about
the election.
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
from ..rpc.channel import ChannelPurpose
from ..rpc.duplex import Duplex
from ..rpc.outage import Backoff, Outage
from ..rpc.status import error_from_rpc
from .controllers import Controllers
from .leader_discovery import LeaderDiscovery

#: Heartbeat interval of a stopping node in seconds; each heartbeat asks the controller whether the node may stop.
_SHUTDOWN_INTERVAL_S = 0.05
#: Timeout of one registration attempt in seconds; the node repeats an attempt that timed out.
_REGISTER_TIMEOUT_S = 5.0

Registered = TypeVar("Registered")


class _SilentControllerError(NetworkError):
    """The connection is open, but the controller does not respond: its process may be frozen."""


class NodeSession(abc.ABC, Generic[Registered]):
    """One registration of a node. A NodeSession is not thread-safe; use it in one event loop."""

    def __init__(
        self,
        controllers: Controllers | Sequence[str],
        logger: logging.Logger,
        *,
        heartbeat_interval_ms: float,
        answer_timeout_ms: float,
    ) -> None:
        """``controllers``: a Controllers object, or ``host:port`` of some controllers' internal listeners.
        ``answer_timeout_ms``: a heartbeat without a response within this time is sent again on a new connection."""
        self._controllers = controllers if isinstance(controllers, Controllers) else Controllers(controllers)
        self._logger = logger
        self._interval_s = heartbeat_interval_ms / 1_000
        self._answer_timeout_s = answer_timeout_ms / 1_000
        self._registered: Registered | None = None
        self._want_shutdown = False
        #: Time (boottime_s()) at which the node sent the last request that got a response.
        self._last_contact_s = float("-inf")
        self._may_stop = asyncio.Event()
        self._nudge = asyncio.Event()
        self._correlation = itertools.count(1)

    @abc.abstractmethod
    async def _ask_to_register(self, stub: cluster_pb2_grpc.ClusterStub, timeout_s: float) -> Registered:
        """Make one registration attempt; the caller translates gRPC's errors."""

    @abc.abstractmethod
    def _open_heartbeats(self, stub: cluster_pb2_grpc.ClusterStub) -> Any:
        """Open the heartbeat stream of the node's role; returns the gRPC call."""

    @abc.abstractmethod
    def _heartbeat(self, correlation_id: int) -> Any:
        """Build the next heartbeat message."""

    def _answered(self, answer: Any) -> None:
        """Handle the controller's response to a heartbeat."""
        if answer.should_shutdown:
            self._may_stop.set()

    @property
    def registered(self) -> Registered:
        """The controller's response to ``register``."""
        assert self._registered is not None, "register() comes first"
        return self._registered

    def has_contact_within(self, session_timeout_ms: float) -> bool:
        """Whether the controllers may still consider the registration alive: the last heartbeat with a response was
        sent less than ``session_timeout_ms`` ago. After a freeze, a suspension or a lost connection, other nodes may
        have taken over the node's partitions or shards."""
        return boottime_s() - self._last_contact_s < session_timeout_ms / 1_000

    async def register(self) -> Registered:
        """Register, and retry until a controller accepts the registration. ``register`` waits while an earlier
        registration of the node may still be alive.

        Raises errors that a retry cannot cure: InconsistentClusterIdError, InvalidRequestError (the directories belong
        to several brokers, or to a broker with another id), UnsupportedVersionError.
        """
        discovery, is_logged, outage = LeaderDiscovery(self._controllers), False, Outage(self._logger, "registering")
        backoff = Backoff()
        while True:
            address = discovery.address
            try:
                sent_s = boottime_s()
                self._registered = await self._register_at(address)
                self._last_contact_s = sent_s
                outage.over()
                return self._registered
            except DuplicateBrokerRegistrationError as error:
                if not is_logged:
                    self._logger.warning("%s", error)
                    is_logged = True
                discovery.worked()
                await asyncio.sleep(backoff.next_s())
            except HeadraceError as error:
                if not error.retriable:
                    raise
                outage.failed(address, error)
                await discovery.pause(discovery.failed(error))

    async def run(self) -> None:
        """Send heartbeats until cancelled, or until the controllers allow the node to stop.

        Two errors end the registration: StaleBrokerEpochError (another process has registered with the same id) and
        BrokerIdNotRegisteredError (the node was silent for too long, or was unregistered).
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
        """Ask the controllers to move the node's leaderships or shards to other nodes, and wait until the node may
        stop. Returns False after ``timeout_s``. After ``timeout_s`` the node stops without an answer, and the
        controllers notice the end of its session. ``run`` must be running during ``shut_down``, and returns after
        ``shut_down``."""
        self._want_shutdown = True
        self._nudge.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._may_stop.wait()
        except TimeoutError:
            return False
        return True

    async def _register_at(self, address: str) -> Registered:
        channel = self._controllers.channels.open(address, ChannelPurpose.HEARTBEAT)
        try:
            stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
            return await self._ask_to_register(stub, _REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, address) from None
        finally:
            await channel.close()

    async def _heartbeats(self, target: _Target, discovery: LeaderDiscovery, outage: Outage) -> None:
        """Send heartbeats over one stream. Returns when the node may stop; raises a HeadraceError when the stream
        ends."""
        stream: Duplex[Any, Any] = Duplex(
            target.address,
            ChannelPurpose.HEARTBEAT,
            lambda channel: self._open_heartbeats(cluster_pb2_grpc.ClusterStub(channel)),  # type: ignore[no-untyped-call]
            self._controllers.channels,
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
                stream.cancel()  # end the stream, because a heartbeat on it may wait for a frozen process

        unsubscribe = self._controllers.subscribe(leader_changed)
        try:
            await stream.run(read(), self._beat(stream, answers, answered))
        finally:
            unsubscribe()

    async def _beat(
        self, stream: Duplex[Any, Any], answers: asyncio.Queue[Any], answered: Callable[[Any], None]
    ) -> None:
        """Send one heartbeat after another; returns when the node may stop."""
        limit = self._limit(stream)
        try:
            await stream.connected()
            while True:
                self._nudge.clear()
                number, sent_s = next(self._correlation), boottime_s()
                await stream.write(self._heartbeat(number))
                while (answer := await answers.get()).correlation_id != number:
                    pass  # a repeated answer does not answer this heartbeat
                limit.cancel()
                self._last_contact_s = sent_s
                answered(answer)
                if self._may_stop.is_set():
                    await stream.done_writing()
                    return
                await wait_for_event(self._nudge, _SHUTDOWN_INTERVAL_S if self._want_shutdown else self._interval_s)
                limit = self._limit(stream)
        finally:
            limit.cancel()

    def _limit(self, stream: Duplex[Any, Any]) -> asyncio.TimerHandle:
        """Start a timer that ends the stream if a heartbeat gets no response in time; the time includes the wait for a
        connection."""

        def give_up() -> None:
            limit_s = self._answer_timeout_s
            stream.cancel(
                _SilentControllerError(
                    f"{stream.address}: the controller did not answer a heartbeat within {limit_s:.1f} s"
                )
            )

        return asyncio.get_running_loop().call_later(self._answer_timeout_s, give_up)


class _Target:
    """The controller that receives a heartbeat stream, and the rule for its replacement. Before the target's first
    response, any leader that becomes known after the stream began replaces the target. (A leader that was known earlier
    is the target itself, or has not responded.) After the target's first response, which only a leader gives, a leader
    of a later epoch replaces the target. Other replacements would only break the connection, which looks like a dead
    broker to the controllers."""

    def __init__(self, controllers: Controllers, address: str) -> None:
        self.address = address
        self._controllers = controllers
        self._known = controllers.leader_epoch, controllers.leader_id
        #: The controller's epoch as leader; None before the controller's first response.
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
    """Wait until ``event`` is set, at most for ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
