"""Admin calls about the controllers' quorum (KIP-595, KIP-836, KIP-853). Answered by the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from headrace_core.clock import Clock
from headrace_core.errors import (
    DuplicateVoterError,
    HeadraceError,
    InconsistentClusterIdError,
    InvalidRequestError,
    ReplicaNotCaughtUpError,
    RequestTimedOutError,
    VoterChangeInProgressError,
    VoterNotFoundError,
)
from headrace_protos.v1 import admin_pb2

from ..driver import ControllerDriver
from ..raft import QuorumStatus, ReplicaKey, ReplicaStatus, quorum_status
from ..transport.wire import check_address
from .cluster import BrokerSeen

_DIRECTORY_BYTES = 16
_TIMEOUT_MS_DEFAULT = 30_000  #: Kafka's request.timeout.ms, for requests without one.
_LOOK_AGAIN_S = 0.05  #: Interval of checks whether a replica has caught up, or an earlier change is committed.

T = TypeVar("T")


class QuorumCalls:
    """A part of AdminHandler. ``_address_of``: a replica's reported address; ``_brokers_seen``: the brokers' last
    heartbeats."""

    _driver: ControllerDriver
    _clock: Clock
    _address_of: Callable[[ReplicaKey], str]
    _brokers_seen: Callable[[], Iterable[BrokerSeen]]

    async def DescribeQuorum(self, request: admin_pb2.DescribeQuorumRequest, context: Any) -> Any:
        status = self._led_status()
        now_ms = self._clock.now_ms()  # one reading for all: times of the same tick are equal
        return admin_pb2.DescribeQuorumResponse(
            leader_id=status.leader,
            leader_epoch=status.term,
            high_watermark=status.committed,
            voters=[self._quorum_replica(each, status, now_ms) for each in status.voters],
            observers=[self._quorum_replica(each, status, now_ms) for each in status.observers],
            brokers=[self._quorum_broker(each) for each in self._brokers_seen()],
        )

    async def AddRaftVoter(self, request: admin_pb2.AddRaftVoterRequest, context: Any) -> Any:
        self._check_cluster(request.cluster_id)
        address = check_address(request.address) if request.address else ""

        async def add() -> Any:
            key = self._newcomer(request.voter_id, request.voter_directory_id)
            answer = await self._driver.add_voter(key, address or self._address_of(key))
            return admin_pb2.AddRaftVoterResponse(metadata_offset=answer.metadata_offset)

        return await _again_until(add, _deadline_s(request.timeout_ms), f"adding controller {request.voter_id}")

    async def RemoveRaftVoter(self, request: admin_pb2.RemoveRaftVoterRequest, context: Any) -> Any:
        self._check_cluster(request.cluster_id)

        async def remove() -> Any:
            answer = await self._driver.remove_voter(self._voter(request.voter_id, request.voter_directory_id))
            return admin_pb2.RemoveRaftVoterResponse(metadata_offset=answer.metadata_offset)

        return await _again_until(remove, _deadline_s(request.timeout_ms), f"removing controller {request.voter_id}")

    async def TransferLeadership(self, request: admin_pb2.TransferLeadershipRequest, context: Any) -> Any:
        self._led_status()
        driver = self._driver

        async def transfer() -> Any:
            if request.voter_id < 0:
                best = driver.controller.best_successor()
                if best is None and len(driver.controller.voters) == 1:
                    raise VoterNotFoundError(f"controller {driver.node_id} is the only voter: nobody else can lead")
                if best is None:  # it no longer leads, or has just been elected
                    self._led_status()
                    raise ReplicaNotCaughtUpError("none of the other voters follows the log at present; try again")
                await driver.transfer(best)
            elif request.voter_id != driver.node_id:
                await driver.transfer(self._voter(request.voter_id, b""))
            return admin_pb2.TransferLeadershipResponse(leader_id=driver.leader_id, leader_epoch=driver.term)

        return await _again_until(transfer, _deadline_s(request.timeout_ms), "handing over the lead")

    def _led_status(self) -> QuorumStatus:
        """NotControllerError unless this node leads."""
        if not self._driver.is_leader:
            raise self._driver.controller.not_controller()
        return quorum_status(self._driver.controller.raft)

    def _check_cluster(self, cluster_id: str) -> None:
        own = self._driver.image.cluster_id
        if cluster_id and cluster_id != own:
            raise InconsistentClusterIdError(f"this is cluster {own}, not {cluster_id}")

    def _newcomer(self, node_id: int, directory_id: bytes) -> ReplicaKey:
        """The replica to be added. Without a directory: the observer with that id."""
        status = self._led_status()
        if directory_id:
            return _key(node_id, directory_id)
        present = status.voter_set.find(node_id)
        if present is not None:
            raise DuplicateVoterError(f"controller {node_id} is a voter already, as {present}")
        found = [each.key for each in status.observers if each.key.node_id == node_id]
        if not found:
            raise ReplicaNotCaughtUpError(
                f"no controller {node_id} follows the metadata log: is it running, with controller.quorum.bootstrap."
                "servers naming these controllers?"
            )
        if len(found) > 1:
            named = ", ".join(key.directory_id.hex() for key in found)
            raise InvalidRequestError(f"controller {node_id} follows with several directories ({named}): name one")
        return found[0]

    def _voter(self, node_id: int, directory_id: bytes) -> ReplicaKey:
        if directory_id:
            return _key(node_id, directory_id)
        voters = self._led_status().voter_set
        found = voters.find(node_id)
        if found is None:
            raise VoterNotFoundError(f"{node_id} is no voter; the voters are {voters}")
        return found

    def _quorum_replica(self, each: ReplicaStatus, status: QuorumStatus, now_ms: int) -> admin_pb2.QuorumReplica:
        return admin_pb2.QuorumReplica(
            replica_id=each.key.node_id,
            directory_id=each.key.directory_id,
            address=self._where(each),
            log_end_offset=each.match,
            lag=-1 if each.match < 0 else status.log_end_offset - each.match,
            last_fetch_timestamp_ms=self._time_of(each.last_contact_ticks_ago, now_ms),
            last_caught_up_timestamp_ms=self._time_of(each.caught_up_ticks_ago, now_ms),
        )

    def _quorum_broker(self, seen: BrokerSeen) -> admin_pb2.QuorumBroker:
        """An age grows with the time since its report."""
        ago_ms = self._clock.monotonic_ms() - seen.at_ms
        shown = admin_pb2.QuorumBroker(
            broker_id=seen.broker_id,
            metadata_offset=seen.metadata_offset,
            lag=seen.lag_records,
            last_heartbeat_timestamp_ms=int(self._clock.now_ms() - ago_ms),
        )
        if seen.lag_ms is not None:
            shown.metadata_lag_ms = int(seen.lag_ms + ago_ms) + 1
        return shown

    def _where(self, each: ReplicaStatus) -> str:
        said = self._address_of(each.key) or each.address
        return said or self._driver.controller.addresses.get(each.key.node_id, "")

    def _time_of(self, ticks_ago: int | None, now_ms: int) -> int:
        if ticks_ago is None:
            return -1
        return int(now_ms - ticks_ago * self._driver.controller.settings.tick_ms)


def _key(node_id: int, directory_id: bytes) -> ReplicaKey:
    if len(directory_id) != _DIRECTORY_BYTES:
        raise InvalidRequestError(f"voter_directory_id: {len(directory_id)} bytes, must be {_DIRECTORY_BYTES} or none")
    return ReplicaKey(node_id, directory_id)


def _deadline_s(timeout_ms: int) -> float:
    if timeout_ms < 0:
        raise InvalidRequestError(f"timeout_ms={timeout_ms}: must not be negative")
    return asyncio.get_running_loop().time() + (timeout_ms or _TIMEOUT_MS_DEFAULT) / 1_000


async def _again_until(attempt: Callable[[], Awaitable[T]], deadline_s: float, what: str) -> T:
    """Repeat ``attempt`` until it succeeds or fails finally: a replica may catch up, or an earlier change be committed,
    a moment later. RequestTimedOutError."""
    waited_for: HeadraceError | None = None
    try:
        async with asyncio.timeout_at(deadline_s):
            while True:
                try:
                    waited_for = None
                    return await attempt()
                except (ReplicaNotCaughtUpError, VoterChangeInProgressError) as error:
                    waited_for = error
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError:
        why = "it may yet be done" if waited_for is None else waited_for.message
        raise RequestTimedOutError(f"{what}: not done in time: {why}") from None
