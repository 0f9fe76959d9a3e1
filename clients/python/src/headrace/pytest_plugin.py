"""pytest fixtures with a real cluster behind them; installed with the package, nothing imported until one is used.

    def test_orders(headrace):
        with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer: ...

``headrace``: one cluster for the whole run (one for each worker under pytest-xdist); give topics names of their own.
``headrace_cluster``: a cluster for one test alone, to kill and restart nodes of.

Their topics keep records of any age (``log.retention.ms=-1``): a test whose records bear times of long ago would lose
them to retention some day, at the check that happens to fall into it. A topic's own ``retention.ms`` holds as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .local import LocalCluster

_CONFIG = {"log.retention.ms": "-1"}


@pytest.fixture(scope="session")
def headrace() -> Iterator[LocalCluster]:
    """A running LocalCluster (one broker, one controller), shared by all tests of this process."""
    from .local import LocalCluster

    with LocalCluster(config=_CONFIG) as cluster:
        yield cluster


@pytest.fixture
def headrace_cluster() -> Iterator[LocalCluster]:
    """A running LocalCluster of the test's own."""
    from .local import LocalCluster

    with LocalCluster(config=_CONFIG) as cluster:
        yield cluster
