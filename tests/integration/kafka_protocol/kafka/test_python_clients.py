"""aiokafka and kafka-python, unchanged, against our brokers: groups with a killed member, and transactions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace import LocalCluster
from tests.integration.kafka_protocol.group_of_three import CONFIG, GroupRun, judge_copy, judge_group, run_group

pytestmark = pytest.mark.timeout(400)
CLIENTS = ["aiokafka", "kafka_python"]


def program(name: str) -> list[str]:
    return [sys.executable, "-m", f"tests.integration.kafka_protocol.{name}_client"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True, config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def groups(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[GroupRun]]]:
    """Both groups run at the same time, because each waits for seconds until its killed member is missed."""
    directory = tmp_path_factory.mktemp("groups")
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        yield {
            name: pool.submit(run_group, cluster, directory, name, program(name), "classic", victim)
            for victim, name in enumerate(CLIENTS)
        }


@pytest.mark.usefixtures("groups")  # they go on meanwhile
@pytest.mark.parametrize("name", CLIENTS)
def test_a_copy_in_transactions_shows_no_record_of_the_aborted_one(
    cluster: LocalCluster, tmp_path: Path, name: str
) -> None:
    judge_copy(cluster, tmp_path, f"{name}-source", program(name), "classic")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_group_of_three_goes_on_when_one_is_killed(groups: dict[str, Future[GroupRun]], name: str) -> None:
    judge_group(groups[name].result())
