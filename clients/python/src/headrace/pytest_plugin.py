"""pytest fixtures with a real cluster behind them; installed with the package, nothing imported until one is used.

    def test_orders(headrace):
        with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer: ...

``headrace``: one cluster for the whole run (one for each worker under pytest-xdist); give topics names of their own.
``headrace_cluster``: a cluster for one test alone, to kill and restart nodes of.
Both have one broker, one controller and one coordinator (of consumer groups), which start in no time; where copies and
elections are the point, say ``with LocalCluster() as cluster`` (three brokers, three controllers).

They run with the defaults of production, retention included: a topic whose records bear times of long ago wants
``retention.ms=-1``, or they are deleted by the check that happens to come by (half a minute after the start, then every
five minutes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .local import LocalCluster


@pytest.fixture(scope="session")
def headrace() -> Iterator[LocalCluster]:
    """A running LocalCluster (one node of each role), shared by all tests of this process."""
    from .local import LocalCluster

    with LocalCluster(brokers=1, controllers=1) as cluster:
        yield cluster


@pytest.fixture
def headrace_cluster() -> Iterator[LocalCluster]:
    """A running LocalCluster of the test's own (one node of each role)."""
    from .local import LocalCluster

    with LocalCluster(brokers=1, controllers=1) as cluster:
        yield cluster
