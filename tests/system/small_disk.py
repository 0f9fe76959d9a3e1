"""A disk that a scenario fills: one broker's data directory is a tmpfs of its own (only root may mount it)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.faulty_cluster import FaultyCluster

#: The broker with the small disk.
NAME = "broker-3"
_BYTES = 256 << 20


class SmallDisks:
    """The mounted file systems, one for each cluster."""

    def __init__(self) -> None:
        self._mounted: list[Path] = []

    def mount(self, cluster_directory: Path, name: str = NAME) -> str | None:
        """Mount a small disk for a broker of a cluster that is about to start in the directory; returns the broker's
        name, or None if this process may not mount."""
        path = cluster_directory / name
        path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(path)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        self._mounted.append(path)
        return name

    def unmount(self) -> None:
        while self._mounted:
            subprocess.run(["umount", "-l", str(self._mounted.pop())], capture_output=True, check=False)


def broker_of(cluster: FaultyCluster) -> str:
    """The broker with the small disk; skips the test without one."""
    if cluster.small_disk is None:
        pytest.skip("only root may mount a disk of its own")
    return cluster.small_disk


@contextmanager
def full(cluster: FaultyCluster) -> Iterator[None]:
    """The small disk is full to the last byte."""
    filler = cluster.data(broker_of(cluster)) / "filler"
    try:
        _fill(filler)
        yield
    finally:
        filler.unlink(missing_ok=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(64 * 1024)):
                pass
        except OSError:
            return
