"""A broker's session with the controllers: registration, heartbeats, controlled shutdown.

    session = BrokerSession(addresses, registration, heartbeat_interval_ms=2_000)
    registered = await session.register()            # the broker's id and epoch
    task = asyncio.create_task(session.run())        # heartbeats; raises when this registration is over
    session.applied(follower.image.next_offset)      # after each change; asks to be unfenced as soon as possible
    await session.wait_unfenced()
    ...
    await session.shut_down(timeout_s=30)            # leaderships move away; then the broker may stop

``applied`` may send a heartbeat before the interval is over, so the controllers unfence a broker milliseconds after it
has caught up. The module node_session.py has the code shared with coordinators.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc, common_pb2

from ..metadata.entities import FoundEpochs
from ..metadata.features import SUPPORTED_FEATURES
from .controllers import Controllers
from .node_session import NodeSession

logger = logging.getLogger("headrace.broker.session")

LACKING_LEADERS_MAX = 1_000  #: Maximum number in one heartbeat; the next heartbeats have the others.


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """The broker's identity. Ids have 16 bytes; ``incarnation_id`` is new at each start. An endpoint is (name, host,
    port).

    ``previous_broker_epoch``: the broker epoch of the last clean stop; None if the last stop was not clean (KIP-966).
    ``default_log_flush``: the value of log.flush in the broker's properties file. ``directory_epochs``: of each
    directory; the broker then writes its epoch into each of them before it appends.
    """

    cluster_id: str
    incarnation_id: bytes
    directory_ids: tuple[bytes, ...]
    endpoints: tuple[tuple[str, str, int], ...]
    rack: str | None = None
    wanted_broker_id: int = -1
    previous_broker_epoch: int | None = None
    default_log_flush: str = ""
    directory_epochs: tuple[FoundEpochs, ...] = ()


@dataclass(frozen=True, slots=True)
class CannotLead:
    """The broker's replicas in one log directory (by its 16-byte id; b"": in all directories) must not lead now.

    ``reason`` is a stable code such as DISK_FULL or NO_DESCRIPTORS.
    """

    reason: str
    directory_id: bytes = b""


class LackingLeader(NamedTuple):
    """A leader that lacks committed records, which the reporting broker's replica has."""

    topic_id: bytes
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """The controller's response to the registration. The broker must apply the metadata log up to ``metadata_offset``
    before it serves clients."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int


class BrokerSession(NodeSession[RegisteredBroker]):
    """One registration of a broker. A BrokerSession is not thread-safe; use it in one event loop."""

    def __init__(
        self,
        controllers: Controllers | Sequence[str],
        registration: BrokerRegistration,
        *,
        heartbeat_interval_ms: float,
        answer_timeout_ms: float = 4_500,
        on_fenced: Callable[[], None] = lambda: None,
        lag_ms: Callable[[], float | None] = lambda: None,
        cannot_lead: Callable[[], Iterable[CannotLead]] = tuple,
        lacking_leaders: Callable[[], Sequence[LackingLeader]] = tuple,
    ) -> None:
        """``on_fenced`` is called each time the controllers fence or unfence the broker. Every heartbeat contains
        ``lag_ms``, the age of the broker's metadata, ``cannot_lead``, the directories whose replicas must not lead, and
        ``lacking_leaders``. Call ``hurry`` when one of the last two changes. The docstring of NodeSession documents the
        other arguments."""
        super().__init__(
            controllers, logger, heartbeat_interval_ms=heartbeat_interval_ms, answer_timeout_ms=answer_timeout_ms
        )
        self.fenced = True
        self._lag_ms = lag_ms
        self._cannot_lead = cannot_lead
        self._lacking_leaders = lacking_leaders
        self._lacking_from = 0  #: Index of the first lacking leader that the next heartbeat names.
        self._registration = registration
        self._on_fenced = on_fenced
        self._applied = 0
        self._want_fence = False
        self._offline_directories: tuple[bytes, ...] = ()
        self._unfenced = asyncio.Event()

    def applied(self, metadata_offset: int) -> None:
        """Record that the broker has applied the metadata log below ``metadata_offset``."""
        self._applied = max(self._applied, metadata_offset)
        if self.fenced and self._registered is not None and self._applied >= self.registered.metadata_offset:
            self._nudge.set()

    def hurry(self) -> None:
        """Send the next heartbeat at once, because the controllers wait for the broker's state."""
        self._nudge.set()

    def hold_fenced(self, hold: bool) -> None:
        """Keep the broker registered but fenced while ``hold`` is True, because logs are being recovered."""
        self._want_fence = hold
        self._nudge.set()

    def directories_failed(self, directory_ids: Iterable[bytes]) -> None:
        """Report failed log directories (ids of 16 bytes) in every heartbeat from now on; the next heartbeat is sent at
        once. The controllers move leadership away from the replicas in failed log directories."""
        self._offline_directories = tuple(dict.fromkeys((*self._offline_directories, *directory_ids)))
        self._nudge.set()

    async def wait_unfenced(self) -> None:
        """Return once the controllers have unfenced the broker."""
        await self._unfenced.wait()

    async def _ask_to_register(self, stub: cluster_pb2_grpc.ClusterStub, timeout_s: float) -> RegisteredBroker:
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
            directory_epochs=[
                cluster_pb2.DirectoryEpochs(
                    directory_id=each.directory_id, started_epoch=each.started_epoch, stopped_epoch=each.stopped_epoch
                )
                for each in who.directory_epochs
            ],
            features=[
                cluster_pb2.FeatureRange(name=each.name, min_level=each.min_level, max_level=each.max_level)
                for each in SUPPORTED_FEATURES
            ],
        )
        answer = await stub.RegisterBroker(request, timeout=timeout_s)
        self.fenced = True
        return RegisteredBroker(answer.broker_id, answer.broker_epoch, answer.metadata_offset)

    def _open_heartbeats(self, stub: cluster_pb2_grpc.ClusterStub) -> Any:
        return stub.BrokerHeartbeat()

    def _heartbeat(self, correlation_id: int) -> cluster_pb2.BrokerHeartbeatRequest:
        registered = self.registered
        request = cluster_pb2.BrokerHeartbeatRequest(
            correlation_id=correlation_id,
            broker_id=registered.broker_id,
            broker_epoch=registered.broker_epoch,
            metadata_offset=self._applied,
            want_shutdown=self._want_shutdown,
            want_fence=self._want_fence,
            offline_log_dirs=self._offline_directories,
            cannot_lead=[
                cluster_pb2.CannotLead(directory_id=each.directory_id, reason=each.reason)
                for each in self._cannot_lead()
            ],
            lacking_leaders=[
                cluster_pb2.LackingLeader(
                    topic_id=each.topic_id, partition=each.partition, leader_epoch=each.leader_epoch
                )
                for each in self._next_lacking_leaders()
            ],
        )
        lag_ms = self._lag_ms()
        if lag_ms is not None:
            request.metadata_lag_ms = int(lag_ms) + 1
        return request

    def _next_lacking_leaders(self) -> Sequence[LackingLeader]:
        """At most LACKING_LEADERS_MAX; the next heartbeat names those after them. (The controllers may leave the first
        ones in office for good.)"""
        found = self._lacking_leaders()
        first = self._lacking_from if self._lacking_from < len(found) else 0
        self._lacking_from = first + LACKING_LEADERS_MAX
        return found[first : self._lacking_from]

    def _answered(self, answer: cluster_pb2.BrokerHeartbeatResponse) -> None:
        if answer.fenced != self.fenced:
            self.fenced = answer.fenced
            self._on_fenced()
        if self.fenced:
            self._unfenced.clear()
        else:
            self._unfenced.set()
        super()._answered(answer)
