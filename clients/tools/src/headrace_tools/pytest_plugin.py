"""pytest fixtures with a real cluster; installed with the package, imported at first use.

    def test_orders(headrace, headrace_topic):
        with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
            producer.send(headrace_topic, b"one crate").result(timeout=10)

    @pytest.mark.headrace_cluster(brokers=3, controllers=3)
    def test_a_broker_dies(headrace_cluster):
        with headrace_cluster.killed("broker", 1): ...

``headrace``: one cluster for the whole test run (one per pytest-xdist worker). The cluster of the fixture ``headrace``
runs within the test process, so that it is fast. ``headrace_cluster``: a cluster of real processes for one test, which
may kill, pause and restart nodes. By default the clusters of both fixtures have one broker, one controller and one
coordinator. ``headrace_topic``: a topic in the cluster ``headrace`` that no other test uses.

In pytest's configuration:

    headrace_mode = inprocess | process         of `headrace`; processes where tests fork, freeze clocks, fake files
    headrace_nodes = 3 brokers, 3 controllers   of `headrace`, and of `headrace_cluster` unless its mark says otherwise
    headrace_config = key=value                 one line per key for all nodes of both; a mark's keys override them

The clusters have production defaults, retention included. A topic with old timestamps needs ``retention.ms=-1``.
Without ``retention.ms=-1``, retention deletes old records half a minute after the start, or at a later check (every
five minutes).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .local import LocalCluster

_MARK = "headrace_cluster"
_ROLES = ("brokers", "controllers", "coordinators")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the keys of pytest's configuration; ``pytest -o headrace_mode=process`` sets a key for one run."""
    parser.addini("headrace_mode", "how the fixture `headrace` runs: inprocess or process", default="inprocess")
    parser.addini(
        "headrace_nodes", "the nodes of its cluster, such as: 3 brokers, 3 controllers, 1 coordinators", default=""
    )
    parser.addini(
        "headrace_config", "configuration keys of all its nodes, one key=value a line", type="linelist", default=[]
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark ``headrace_cluster``, so that --strict-markers accepts it."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(brokers, controllers, coordinators, mode, config): the arguments of LocalCluster "
        "for the fixture of this name",
    )


@pytest.fixture(scope="session")
def headrace(pytestconfig: pytest.Config) -> Iterator[LocalCluster]:
    """A running LocalCluster that all tests of this process share."""
    from .local import LocalCluster

    with LocalCluster(mode=pytestconfig.getini("headrace_mode"), **_shape(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture
def headrace_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A running LocalCluster for one test only; the mark takes the arguments of LocalCluster."""
    from .local import LocalCluster

    arguments = _own_shape(request.config, request.node.get_closest_marker(_MARK))
    with LocalCluster(**arguments) as cluster:
        yield cluster


@pytest.fixture
def headrace_topic(request: pytest.FixtureRequest, headrace: LocalCluster) -> Iterator[str]:
    """A new topic in the cluster ``headrace``, with production defaults (one partition); it is deleted after the
    test."""
    import re
    import secrets

    from headrace import Admin
    from headrace.errors import UnknownTopicOrPartitionError

    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:80].strip("-")
    name = f"{readable}-{secrets.token_hex(4)}"
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.create_topics([name])
    yield name  # close the client before the test, because a test may fork
    with (
        contextlib.suppress(UnknownTopicOrPartitionError),  # the test has deleted the topic
        Admin(bootstrap_servers=headrace.bootstrap_servers) as admin,
    ):
        admin.delete_topics([name])


def _own_shape(config: pytest.Config, mark: pytest.Mark | None) -> dict[str, Any]:
    """The arguments of LocalCluster for one test: pytest's configuration, overridden by the test's mark."""
    shape = _shape(config)
    if mark is None:
        return shape
    if mark.args:
        raise pytest.UsageError(f"@pytest.mark.{_MARK}{mark.args}: pass keyword arguments, such as brokers=3")
    return {**shape, **mark.kwargs, "config": shape["config"] | dict(mark.kwargs.get("config") or {})}


def _shape(config: pytest.Config) -> dict[str, Any]:
    """The arguments of LocalCluster in pytest's configuration."""
    shape: dict[str, Any] = dict.fromkeys(_ROLES, 1)
    said: set[str] = set()
    for part in filter(None, (part.strip() for part in config.getini("headrace_nodes").split(","))):
        count, _, role = part.partition(" ")
        role = role.strip() if role.strip().endswith("s") else role.strip() + "s"
        if not count.isdecimal() or role not in _ROLES:
            raise pytest.UsageError(
                f"headrace_nodes: {part!r} must be a number and a role, such as '3 brokers'; the roles are "
                f"{', '.join(_ROLES)}"
            )
        if role in said:
            raise pytest.UsageError(f"headrace_nodes: {role} is given twice; name each role once")
        said.add(role)
        shape[role] = int(count)
    lines = [line.partition("=") for line in config.getini("headrace_config")]
    wrong = [line for line, equals, _ in lines if not equals]
    if wrong:
        raise pytest.UsageError(f"headrace_config: {wrong[0]!r} must be key=value")
    shape["config"] = {key.strip(): value.strip() for key, _, value in lines}
    return shape
