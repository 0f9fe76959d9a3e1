"""A disk that a scenario fills: one broker's data directory is a tmpfs of its own (only root may mount it).

The disk is large, so that no load fills it by chance: a fast machine once wrote 256 MiB in two minutes. A scenario
fills it by shrinking it to what it has.
"""

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
_BYTES = 8 << 30  # tmpfs takes memory only for what is written
_TRIES = 100


class SmallDisks:
    """The mounted file systems, one for each cluster."""

    def __init__(self) -> None:
        self._mounted: list[Path] = []

    def mount(self, cluster_directory: Path, name: str = NAME) -> str | None:
        """Mount a small disk for a broker of a cluster that is about to start in the directory; returns the broker's
        name, or None if this process may not mount."""
        path = cluster_directory / name
        path.mkdir(parents=True)
        if os.geteuid() != 0 or not _mounted("-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(path)):
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
    path = str(cluster.data(broker_of(cluster)))
    for _ in range(_TRIES):  # the kernel refuses a size below what the disk has, and the broker writes
        disk = os.statvfs(path)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        if _mounted("-o", f"remount,size={used}", path):
            break
    else:
        raise AssertionError(f"{path}: cannot be shrunk to {used} bytes in {_TRIES} tries")
    try:
        yield
    finally:
        assert _mounted("-o", f"remount,size={_BYTES}", path), path


def _mounted(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
