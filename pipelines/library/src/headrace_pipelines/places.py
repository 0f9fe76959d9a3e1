"""The paths of a run's files, and the cluster that the run uses."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace import LocalCluster
from headrace_tools.local import ClusterDirectory

from .access import Access
from .access import add_arguments as add_access
from .checkpoints import remove_unbegun
from .runs import find
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

    def begin(self, show: Show, *more: str) -> int:
        """Keep the files of the last run if this run continues it (runs.py); otherwise remove them, and the files and
        directories ``more``.

        Returns how many times the run was continued, 0 for a new run.
        """
        run = find(self.root)
        if run is not None and run.continued:
            show.step("continuing the last run from its checkpoints; --restart begins again")
            remove_unbegun(self.root / "checkpoints")
            return run.continued
        self.clear(*more)
        return 0

    def clear(self, *more: str) -> None:
        """Remove the files of an earlier run, the files ``more``, and the cluster of a run that was killed."""
        cluster = ClusterDirectory(self.cluster)
        if cluster.exists():
            cluster.delete()
        paths = [self.root / name for name in ("checkpoints", "summary.json", "details.json", *more)]
        for path in (self.cluster, *paths, *self.root.glob("*.png")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.root.mkdir(parents=True, exist_ok=True)


@contextmanager
def cluster_of(given: Access | None, places: Places, show: Show) -> Iterator[Access]:
    """The given cluster, or a local cluster without TLS and logins that is started for the run."""
    if given is not None:
        yield given
        return
    show.step("starting a cluster: real processes, three brokers, three controllers and a coordinator")
    earlier = ClusterDirectory(places.cluster)
    if earlier.exists():  # the cluster of a killed run may still be stopping
        earlier.down()
    with LocalCluster(brokers=3, controllers=3, mode="process", data=places.cluster) as cluster:
        show.note(f"serving on {cluster.bootstrap_servers}")
        yield Access(cluster.bootstrap_servers)


def add_cluster_flags(parser: argparse.ArgumentParser, topics: str) -> None:
    """Add the flags of a run that replaces ``topics``: the flags that name the cluster, and ``--restart``."""
    add_access(
        parser, f"the command starts a cluster in DIR; in a cluster that a flag names, the run replaces topics {topics}"
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="begin again, even if the last run in DIR is not done; default: continue it",
    )


def add_run_flags(parser: argparse.ArgumentParser, topics: str) -> None:
    """Add the flags of a run with Spark that replaces ``topics``: the flags of ``add_cluster_flags``, and
    ``--master``."""
    add_cluster_flags(parser, topics)
    parser.add_argument(
        "--master", type=local_master, default="local[2]", metavar="URL",
        help="Spark's master on this machine: local[N], or local-cluster[N,CORES,MB] with N executors "
        "(default %(default)s)",
    )  # fmt: skip


_COUNT = r"[1-9]\d{0,3}"
_LOCAL = re.compile(rf"local(\[(\*|{_COUNT})(,{_COUNT})?\])?|local-cluster\[{_COUNT},{_COUNT},[1-9]\d{{0,6}}\]")


def local_master(text: str) -> str:
    """Check the value of ``--master``: a Spark master on this machine, where the checkpoints are."""
    if not _LOCAL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text}: a Spark cluster cannot use the checkpoints in DIR; give local[N] or local-cluster[N,CORES,MB]"
        )
    return text


def positive(text: str) -> float:
    """Convert the value of a flag to a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0")
    return value


def whole(text: str) -> int:
    """Convert the value of a flag to a whole number, 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 0 or more")
    return value
