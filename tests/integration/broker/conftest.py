"""Fixtures: one real controller and broker for all tests of a process, and functions that start separate clusters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worlds.broker_world import Cluster, Topic

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running controller and broker, shared by the tests. Each test creates its own topics."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start a separate cluster: ``make_cluster(**{"log.flush": "os"})``; keywords are the broker's keys."""
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
    """Create a topic with a unique name on the shared cluster."""

    def make(partitions: int = 1, **configs: str) -> Topic:
        return cluster.topic(f"topic-{next(_numbers)}", partitions, **configs)

    return make
