"""The quorum of controllers: described, grown, shrunk, handed over (KIP-595, 836, 853). Runs on the I/O thread."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidArgumentError, InvalidConfigError
from headrace_protos.v1 import admin_pb2

from .. import arguments
from ..models import QuorumBroker, QuorumInfo, QuorumReplica
from .calls import AdminCalls

_DIRECTORY_BYTES = 16


def wanted_node(node_id: int) -> int:
    """Read in the caller's thread; InvalidArgumentError."""
    if isinstance(node_id, bool) or not isinstance(node_id, int) or not 0 <= node_id < 2**31:
        raise InvalidArgumentError(f"node_id={node_id!r}: must be the id of a controller, 0 or more")
    return node_id


def wanted_directory(directory_id: bytes | str | None) -> bytes:
    """Its 16 bytes, or none for None; read in the caller's thread; InvalidArgumentError."""
    if directory_id is None:
        return b""
    if isinstance(directory_id, str):
        from headrace_core.node.ids import id_from_text  # here: few need it, and its package reads much more

        try:
            return id_from_text(directory_id)
        except InvalidConfigError as error:
            raise InvalidArgumentError(f"directory_id: {error.message}") from None
    if not isinstance(directory_id, bytes):
        raise arguments.wrong("directory_id", directory_id, f"{_DIRECTORY_BYTES} bytes, or their 22 letters")
    if len(directory_id) != _DIRECTORY_BYTES:
        raise InvalidArgumentError(f"directory_id: {len(directory_id)} bytes, must be {_DIRECTORY_BYTES}")
    return bytes(directory_id)


async def describe_quorum(calls: AdminCalls, timeout: float | None) -> QuorumInfo:
    answer = await calls.call("DescribeQuorum", admin_pb2.DescribeQuorumRequest(), timeout)
    return QuorumInfo(
        leader_id=answer.leader_id,
        leader_epoch=answer.leader_epoch,
        high_watermark=answer.high_watermark,
        voters=tuple(map(_replica, answer.voters)),
        observers=tuple(map(_replica, answer.observers)),
        brokers=tuple(map(_broker, answer.brokers)),
    )


async def add_voter(calls: AdminCalls, node_id: int, directory_id: bytes, address: str, timeout: float | None) -> None:
    request = admin_pb2.AddRaftVoterRequest(voter_id=node_id, voter_directory_id=directory_id, address=address)
    await calls.change("AddRaftVoter", request, timeout)


async def remove_voter(calls: AdminCalls, node_id: int, directory_id: bytes, timeout: float | None) -> None:
    request = admin_pb2.RemoveRaftVoterRequest(voter_id=node_id, voter_directory_id=directory_id)
    await calls.change("RemoveRaftVoter", request, timeout)


async def transfer_leadership(calls: AdminCalls, node_id: int | None, timeout: float | None) -> int:
    request = admin_pb2.TransferLeadershipRequest(voter_id=-1 if node_id is None else node_id)
    answer = await calls.call("TransferLeadership", request, timeout, is_change=True)
    leader: int = answer.leader_id
    return leader


def _replica(item: Any) -> QuorumReplica:
    return QuorumReplica(
        replica_id=item.replica_id,
        directory_id=item.directory_id,
        address=item.address,
        log_end_offset=_known(item.log_end_offset),
        lag=_known(item.lag),
        last_fetch_timestamp_ms=_known(item.last_fetch_timestamp_ms),
        last_caught_up_timestamp_ms=_known(item.last_caught_up_timestamp_ms),
    )


def _broker(item: Any) -> QuorumBroker:
    return QuorumBroker(
        broker_id=item.broker_id,
        metadata_offset=item.metadata_offset,
        lag=item.lag,
        metadata_lag_ms=item.metadata_lag_ms if item.HasField("metadata_lag_ms") else None,
        last_heartbeat_timestamp_ms=item.last_heartbeat_timestamp_ms,
    )


def _known(value: int) -> int | None:
    return None if value < 0 else value
