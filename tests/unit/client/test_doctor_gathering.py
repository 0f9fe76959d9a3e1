"""What the doctor makes of questions that nobody answers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.admin import Admin
from headrace.doctor.diagnosis import diagnose, is_healthy
from headrace.doctor.facts import Facts, NotAsked
from headrace.doctor.gathering import Gathering
from headrace.errors import RequestTimedOutError
from headrace.models import ClusterDescription, QuorumInfo


class Cluster:
    """As an Admin sees one without nodes, which answers all but ``mute``."""

    def __init__(self, mute: str = "") -> None:
        self._mute = mute

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "describe_cluster": ClusterDescription("ours", 1, ()),
            "describe_quorum": QuorumInfo(1, 1, 0, (), ()),
        }

        def ask(*_: Any, **__: Any) -> Any:
            if name == self._mute:
                raise RequestTimedOutError(f"{name}: not done in time")
            return answers.get(name, {} if name.endswith(("features", "configs", "reassignments")) else [])

        return ask


def look(mute: str = "") -> Facts:
    return Gathering(cast(Admin, Cluster(mute)), timeout_s=0.1, look_s=0).facts([])


def test_a_cluster_that_answers_everything_is_healthy() -> None:
    facts = look()
    assert (is_healthy(facts), facts.not_asked) == (True, ())


@pytest.mark.parametrize(
    "mute", ["describe_topics", "describe_features", "list_partition_reassignments", "list_groups"]
)
def test_a_cluster_that_does_not_say_what_it_has_is_not_called_healthy(mute: str) -> None:
    facts = look(mute)
    assert diagnose(facts) == []
    assert not is_healthy(facts)
    assert [each.why for each in facts.not_asked] == [f"{mute}: not done in time [REQUEST_TIMED_OUT]"]


def test_controllers_out_of_a_clients_reach_are_no_fault() -> None:
    unreached = NotAsked(what="controller 1 about itself", why="no route", is_no_fault=True)
    assert is_healthy(
        Facts(now_ms=0, bootstrap=(), cluster=look().cluster, quorum=look().quorum, not_asked=(unreached,))
    )
