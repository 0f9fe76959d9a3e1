"""Admin calls about the cluster: controller quorum (KIP-595, 836, 853), feature levels (KIP-584), single nodes. The
code runs on the I/O thread, except the ``wanted_*`` functions, which check arguments in the caller's thread and raise
InvalidArgumentError."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace_core.errors import InvalidArgumentError, InvalidConfigError
from headrace_core.types import split_address
from headrace_protos.v1 import admin_pb2, node_pb2

from .. import arguments
from ..cluster_models import FeatureInfo, NodeDescription, NodeDisk, QuorumBroker, QuorumInfo, QuorumReplica
from ..engine.connections import call
from .calls import AdminCalls, raise_failures

_DIRECTORY_BYTES = 16


def wanted_node(node_id: int) -> int:
    if isinstance(node_id, bool) or not isinstance(node_id, int) or not 0 <= node_id < 2**31:
        raise InvalidArgumentError(f"node_id={node_id!r}: must be the id of a controller, 0 or more")
    return node_id


def wanted_directory(directory_id: bytes | str | None) -> bytes:
    """The 16 bytes of a directory id; empty if ``directory_id`` is None."""
    if directory_id is None:
        return b""
    if isinstance(directory_id, str):
        # Import late, because this function is rarely called, and the imported package imports many other modules.
        from headrace_core.node.ids import id_from_text

        try:
            return id_from_text(directory_id)
        except InvalidConfigError as error:
            raise InvalidArgumentError(f"directory_id: {error.message}") from None
    if not isinstance(directory_id, bytes):
        raise arguments.wrong(
            "directory_id", directory_id, f"must be {_DIRECTORY_BYTES} bytes, or a string of 22 base64 characters"
        )
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
        usable_bytes=item.usable_bytes if item.HasField("usable_bytes") else None,
        total_bytes=item.total_bytes if item.HasField("total_bytes") else None,
        is_outdated=item.is_outdated,
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


# -- feature levels ----------------------------------------------------------------------------------------------------

_LEVEL_MAX = 2**15 - 1


def wanted_levels(levels: Mapping[str, int]) -> dict[str, int]:
    arguments.mapping("levels", levels, "feature: level")
    if not levels:
        raise InvalidArgumentError("levels is empty: name at least one feature")
    for name, level in levels.items():
        arguments.text("feature", name)
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= _LEVEL_MAX:
            raise InvalidArgumentError(f"{name}={level!r}: must be a whole number from 0 to {_LEVEL_MAX}")
    return dict(levels)


async def describe_features(calls: AdminCalls, timeout: float | None) -> dict[str, FeatureInfo]:
    answer = await calls.call("DescribeFeatures", admin_pb2.DescribeFeaturesRequest(), timeout)
    return {
        each.name: FeatureInfo(each.name, each.finalized_level, each.min_level, each.max_level)
        for each in answer.features
    }


async def update_features(
    calls: AdminCalls, levels: Mapping[str, int], downgrade: bool, validate_only: bool, timeout: float | None
) -> None:
    how = admin_pb2.FEATURE_UPGRADE_TYPE_SAFE_DOWNGRADE if downgrade else admin_pb2.FEATURE_UPGRADE_TYPE_UPGRADE
    request = admin_pb2.UpdateFeaturesRequest(
        updates=[admin_pb2.FeatureUpdate(name=name, level=level, upgrade_type=how) for name, level in levels.items()],
        validate_only=validate_only,
    )
    answer = await calls.change("UpdateFeatures", request, timeout)
    raise_failures((item.name, item.error) for item in answer.results)


# -- one node ---------------------------------------------------------------------------------------------------


def wanted_address(address: str) -> str:
    arguments.text("address", address)
    try:
        split_address(address)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgumentError(f"address {address!r}: must be HOST:PORT") from None
    return address


async def describe_node(calls: AdminCalls, address: str, timeout: float | None) -> NodeDescription:
    """Ask a node to describe itself, twice; the second answer shows how far the node's clock is ahead. The round trip
    of the first request may be too long to compare clocks, because it may include the time to connect."""
    engine = calls.engine
    method = engine.connections.node(address).DescribeNode
    deadline = engine.deadline(timeout)
    await call(method, node_pb2.DescribeNodeRequest(), address, deadline - time.monotonic())
    asked_ms, begun = time.time() * 1_000, time.monotonic()
    answer = await call(method, node_pb2.DescribeNodeRequest(), address, deadline - time.monotonic())
    round_trip_ms = (time.monotonic() - begun) * 1_000
    return _description(answer, answer.time_ms - (asked_ms + round_trip_ms / 2), round_trip_ms)


def _description(answer: Any, clock_ahead_ms: float, round_trip_ms: float) -> NodeDescription:
    return NodeDescription(
        role=answer.role,
        node_id=answer.node_id,
        cluster_id=answer.cluster_id,
        software_version=answer.software_version,
        metadata_version_min=answer.metadata_version_min,
        metadata_version_max=answer.metadata_version_max,
        started_at_ms=answer.started_at_ms,
        clock_ahead_ms=clock_ahead_ms,
        round_trip_ms=round_trip_ms,
        open_descriptors=None if answer.open_descriptors < 0 else answer.open_descriptors,
        descriptors_max=None if answer.descriptors_max < 0 else answer.descriptors_max,
        disk=NodeDisk(answer.disk.path, answer.disk.free_bytes, answer.disk.total_bytes)
        if answer.HasField("disk")
        else None,
    )
