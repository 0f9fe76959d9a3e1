"""The number of nodes that clusters get from pytest's configuration. The tests of the fixtures are in
integration/cli."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace_tools.pytest_plugin import _own_shape, _shape


class _Config:
    """The part of pytest's Config that the plugin uses."""

    def __init__(self, nodes: str = "", lines: list[str] | None = None) -> None:
        self._keys = {"headrace_nodes": nodes, "headrace_config": lines or []}

    def getini(self, name: str) -> Any:
        return self._keys[name]


def shape(nodes: str = "", lines: list[str] | None = None) -> dict[str, Any]:
    return _shape(cast(pytest.Config, _Config(nodes, lines)))


def test_one_node_of_each_role_when_nothing_is_said() -> None:
    assert shape() == {"brokers": 1, "controllers": 1, "coordinators": 1, "config": {}}


def test_roles_are_counted_in_words() -> None:
    assert shape("3 brokers, 1 controller,0 coordinators")["brokers"] == 3
    assert shape("3 brokers, 1 controller,0 coordinators")["coordinators"] == 0
    assert shape(" 2  controllers ")["controllers"] == 2


def test_a_value_may_have_an_equals_sign() -> None:
    assert shape(lines=["num.partitions = 6", "a.b=c=d"])["config"] == {"num.partitions": "6", "a.b": "c=d"}


@pytest.mark.parametrize("nodes", ["three brokers", "3", "3 kings", "-1 brokers", "brokers 3"])
def test_what_is_no_count_of_a_role_is_refused_by_name(nodes: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"headrace_nodes: '{nodes}' must be a number and a role"):
        shape(nodes)


def test_a_role_that_is_named_twice_is_a_mistake() -> None:
    with pytest.raises(pytest.UsageError, match="brokers is given twice"):
        shape("3 brokers, 2 broker")


def test_a_line_without_a_value_is_refused_by_name() -> None:
    with pytest.raises(pytest.UsageError, match=r"headrace_config: 'num.partitions' must be key=value"):
        shape(lines=["num.partitions"])


def test_a_mark_says_what_is_different_and_leaves_the_rest() -> None:
    def own(**said: Any) -> dict[str, Any]:
        config = _Config("2 controllers", ["num.partitions=6", "log.flush=os"])
        mark = pytest.mark.headrace_cluster(**said).mark if said else None
        return _own_shape(cast(pytest.Config, config), mark)

    everybodys = {"num.partitions": "6", "log.flush": "os"}
    assert own() == {"brokers": 1, "controllers": 2, "coordinators": 1, "config": everybodys}
    assert own(brokers=3) == {"brokers": 3, "controllers": 2, "coordinators": 1, "config": everybodys}
    assert own(config={"log.flush": "commit"})["config"] == {"num.partitions": "6", "log.flush": "commit"}


def test_a_mark_without_names_is_refused() -> None:
    mark = pytest.mark.headrace_cluster(3).mark
    with pytest.raises(pytest.UsageError, match="pass keyword arguments, such as brokers=3"):
        _own_shape(cast(pytest.Config, _Config()), mark)
