"""The doctor's handling of requests without a response."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.admin import Admin
from headrace.cluster_models import ClusterDescription, ConfigResource, QuorumInfo
from headrace.errors import RequestTimedOutError, UnknownTopicOrPartitionError
from headrace_tools.doctor.diagnosis import diagnose, is_healthy
from headrace_tools.doctor.facts import Facts, NotAsked
from headrace_tools.doctor.gathering import Gathering


class Cluster:
    """An Admin of a cluster without nodes, which answers all requests except ``mute``."""

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


class Busy(Cluster):
    """A cluster whose topic "gone" was deleted after the list of topics was read. The brokers of the cluster answer
    only after all of them have been asked."""

    def __init__(self) -> None:
        super().__init__()
        self.all_asked = threading.Barrier(3)
        self.asked: list[int] = []

    def describe_configs(self, resources: list[ConfigResource], *, timeout: float) -> dict[ConfigResource, Any]:
        self.asked.append(len(resources))
        if any(each.name == "gone" for each in resources):
            raise UnknownTopicOrPartitionError("topic 'gone' does not exist")
        return {each: {"min.insync.replicas": SimpleNamespace(value="2")} for each in resources}

    def describe_log_dirs(self, brokers: list[int], *, timeout: float) -> dict[int, list[Any]]:
        self.all_asked.wait(60)  # one after the other would wait for ever
        if brokers == [2]:
            raise RequestTimedOutError("silent")
        return {brokers[0]: []}


def test_a_topic_that_is_deleted_meanwhile_is_no_loss_and_hides_no_other() -> None:
    cluster = Busy()
    gathering = Gathering(cast(Admin, cluster), timeout_s=0.1)
    names = [*(f"t{number}" for number in range(9)), "gone"]
    assert set(gathering._configs(names)) == {f"t{number}" for number in range(9)}
    assert gathering._not_asked == []
    assert len(cluster.asked) <= 9, "halves, and not each topic by itself"


def test_silent_brokers_cost_their_time_once_and_not_one_after_the_other() -> None:
    gathering = Gathering(cast(Admin, Busy()), timeout_s=0.1)
    assert gathering._log_dirs([1, 2, 3]) == {1: (), 3: ()}
    assert [each.what for each in gathering._not_asked] == ["log directories of broker 2"]


def test_controllers_out_of_a_clients_reach_are_no_fault() -> None:
    unreached = NotAsked(what="controller 1 about itself", why="no route", is_no_fault=True)
    assert is_healthy(
        Facts(now_ms=0, bootstrap=(), cluster=look().cluster, quorum=look().quorum, not_asked=(unreached,))
    )
