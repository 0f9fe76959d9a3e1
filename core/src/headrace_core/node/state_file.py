"""The runtime state file: a serving node's pid, id and real ports, for the process that started it.

    {"role": "controller", "node_id": 1, "pid": 4711, "started_at_ms": 1700000000000,
     "listeners": {"client": "127.0.0.1:9094", "internal": "127.0.0.1:19094"},
     "metrics": "http://127.0.0.1:9400/metrics"}

A node writes the file when it begins to serve, and removes the file in a clean stop. After a kill the state file stays,
so readers must compare the pid. The state file is a convenience: no decision of a node depends on the file.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..file_modes import opener
from .listeners import ListenerAddress

logger = logging.getLogger("headrace.node")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeState:
    """``metrics``: the URL of the node's metrics; empty if the node serves none."""

    role: str
    node_id: int
    pid: int
    started_at_ms: int
    listeners: dict[str, str]
    metrics: str = ""

    @classmethod
    def of(
        cls, role: str, node_id: int, started_at_ms: int, listeners: Sequence[ListenerAddress], metrics: str = ""
    ) -> RuntimeState:
        addresses = {listener.name: listener.address for listener in listeners}
        return cls(
            role=role,
            node_id=node_id,
            pid=os.getpid(),
            started_at_ms=started_at_ms,
            listeners=addresses,
            metrics=metrics,
        )


def write_state(path: str, state: RuntimeState) -> None:
    """Write the state file atomically (by rename). An fsync would be useless: after a power loss the process no longer
    exists, so the file would be wrong. A failed write is only logged: a full disk or a directory that is offline must
    not stop the node."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", opener=opener) as file:
            file.write(json.dumps(asdict(state)) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("runtime.state.file=%s could not be written: %s", path, error)


def read_state(path: str) -> RuntimeState | None:
    """Read the state file; None when the file is missing or incomplete."""
    try:
        return RuntimeState(**json.loads(Path(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove_state(path: str) -> None:
    """Remove the state file; a failure is only logged."""
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("runtime.state.file=%s could not be removed: %s", path, error)
