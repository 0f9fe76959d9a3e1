"""The gRPC service Node: facts about a process that only the process itself knows. `headrace doctor` asks every node,
in any role."""

from __future__ import annotations

import importlib.metadata
import math
import os
import resource
from collections.abc import Callable
from functools import cache
from typing import Any

from headrace_protos.v1 import node_pb2, node_pb2_grpc

from ..clock import Clock
from ..metadata import METADATA_VERSION_FEATURE
from ..metadata.features import SUPPORTED_FEATURES
from ..rpc.server import Listener

_DESCRIPTORS = "/proc/self/fd"  #: Linux's directory with the open file descriptors of this process.
DESCRIPTORS_KEPT_MS = 1_000.0  #: Milliseconds for which the descriptor count is cached.


class NodeService(node_pb2_grpc.NodeServicer):
    """The service headrace.v1.Node of one process. The Node service responds even while the process is not ready to
    serve clients."""

    def __init__(
        self,
        role: str,
        node_id: Callable[[], int],
        cluster_id: Callable[[], str],
        clock: Clock,
        metadata_age_ms: Callable[[], float | None] = lambda: None,
        *,
        directory: str = "",
    ) -> None:
        """``node_id`` returns -1 before the registration; ``cluster_id`` returns "" while the cluster's id is unknown.
        ``metadata_age_ms`` returns the age of the node's metadata; None: unknown. ``directory``: the log directory of
        a coordinator, whose disk is described; brokers and controllers describe their disks elsewhere."""
        self._role = role
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._clock = clock
        self._metadata_age_ms = metadata_age_ms
        self._directory = directory
        self._started_at_ms = clock.now_ms()
        self._descriptors = 0
        self._descriptors_until_ms = -math.inf

    def register(self, listener: Listener) -> None:
        """Add the Node service to ``listener``. Call ``register`` before the listener starts."""
        listener.add(node_pb2_grpc.add_NodeServicer_to_server, self, "headrace.v1.Node")

    async def DescribeNode(self, request: node_pb2.DescribeNodeRequest, context: Any) -> node_pb2.DescribeNodeResponse:
        age_ms = self._metadata_age_ms()
        levels = next(each for each in SUPPORTED_FEATURES if each.name == METADATA_VERSION_FEATURE)
        return node_pb2.DescribeNodeResponse(
            role=self._role,
            node_id=self._node_id(),
            cluster_id=self._cluster_id(),
            software_version=software_version(),
            metadata_version_min=levels.min_level,
            metadata_version_max=levels.max_level,
            open_descriptors=self._open_descriptors(),
            descriptors_max=descriptors_max(),
            started_at_ms=self._started_at_ms,
            disk=disk_of(self._directory) if self._directory else None,
            metadata_age_ms=None if age_ms is None else int(age_ms) + 1,  # round up, because it is an upper limit
            time_ms=self._clock.now_ms(),  # read the clock last, so that the time is as late as possible
        )

    def _open_descriptors(self) -> int:
        """Return the descriptor count, cached for DESCRIPTORS_KEPT_MS: counting 50,000 descriptors blocks the event
        loop for tens of milliseconds."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._descriptors_until_ms:
            self._descriptors, self._descriptors_until_ms = open_descriptors(), now_ms + DESCRIPTORS_KEPT_MS
        return self._descriptors


@cache
def software_version() -> str:
    """Version of the installed core, which all services share; "unknown" without an installed package."""
    try:
        return importlib.metadata.version("headrace-core")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def disk_of(directory: str) -> node_pb2.NodeDisk | None:
    """Describe the disk of ``directory``; None where the system does not report it."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return node_pb2.NodeDisk(
        path=directory, free_bytes=found.f_bavail * found.f_frsize, total_bytes=found.f_blocks * found.f_frsize
    )


def open_descriptors() -> int:
    """Count the open descriptors of this process; -1 where the system does not report them."""
    try:
        return len(os.listdir(_DESCRIPTORS)) - 1  # the listing of the descriptors itself opens one descriptor
    except OSError:
        return -1


def descriptors_max() -> int:
    """Return the soft limit of this process's file descriptors; -1 without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else soft
