"""Where a run keeps its files, and the cluster that it uses."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace import LocalCluster
from headrace_tools.local import ClusterDirectory

from .show import Show


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of a run, all under one directory."""

    root: Path

    @property
    def cluster(self) -> Path:
        return self.root / "cluster"

    def checkpoint(self, query: str) -> Path:
        return self.root / "checkpoints" / query

    def clear(self) -> None:
        """Remove the files of an earlier run, and stop the cluster of a run that was killed."""
        cluster = ClusterDirectory(self.cluster)
        if cluster.exists():
            cluster.delete()
        for path in (self.cluster, self.root / "checkpoints"):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.root / "summary.json", self.root / "details.json", *self.root.glob("*.png")):
            path.unlink(missing_ok=True)
        self.root.mkdir(parents=True, exist_ok=True)


@contextmanager
def cluster_of(servers: str | None, places: Places, show: Show) -> Iterator[str]:
    """The address of the given cluster, or of a local cluster that is started for the run."""
    if servers is not None:
        yield servers
        return
    show.step("starting a cluster: real processes, three brokers, three controllers and a coordinator")
    with LocalCluster(brokers=3, controllers=3, mode="process", data=places.cluster) as cluster:
        show.note(f"serving on {cluster.bootstrap_servers}")
        yield cluster.bootstrap_servers


def add_bootstrap_servers(parser: argparse.ArgumentParser, topics: str) -> None:
    """Add the flag ``--bootstrap-servers``, whose help says that the run replaces ``topics``."""
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,...",
        help=f"use this cluster and replace its topics {topics}; without it the command starts a cluster in DIR",
    )  # fmt: skip


def positive(text: str) -> float:
    """A flag's number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value


def whole(text: str) -> int:
    """A flag's whole number, 0 or more."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: must be 0 or more")
    return value
