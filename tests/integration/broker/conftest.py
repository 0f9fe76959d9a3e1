"""Fixtures: one real controller and broker for all tests of a process, and makers of clusters of one's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worlds.broker_world import Cluster, Topic

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running controller and broker, shared; make topics of your own."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters of one's own: ``make_cluster(**{"log.flush": "os"})``; keywords are the broker's keys."""
    made: list[Cluster] = []

    def make(**keys: str) -> Cluster:
        running = Cluster(tmp_path / f"cluster-{len(made)}", **keys)
        made.append(running)
        running.start()
        return running

    yield make
    for running in made:
        running.close()


@pytest.fixture
def topic(cluster: Cluster) -> Callable[..., Topic]:
    """Makes a topic with a name of its own on the shared cluster."""

    def make(partitions: int = 1, **configs: str) -> Topic:
        return cluster.topic(f"topic-{next(_numbers)}", partitions, **configs)

    return make
