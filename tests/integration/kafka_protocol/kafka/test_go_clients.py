"""franz-go and sarama, unchanged, against our brokers: groups with a killed member, and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

from headrace import LocalCluster
from tests.integration.kafka_protocol.go_programs import go_programs
from tests.integration.kafka_protocol.group_of_three import CONFIG, GroupRun, judge_copy, judge_group, run_group

pytestmark = pytest.mark.timeout(400)
GROUPS = [("franz", "classic"), ("franz", "consumer"), ("sarama", "classic")]


@pytest.fixture(scope="session")
def programs() -> Path:
    return go_programs()


@pytest.fixture(scope="module")
def cluster(programs: Path) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True, config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def groups(
    cluster: LocalCluster, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[GroupRun]]]:
    """All groups run at the same time, because each waits for seconds until its killed member is missed."""
    directory = tmp_path_factory.mktemp("groups")
    with ThreadPoolExecutor(len(GROUPS)) as pool:
        yield {
            (name, protocol): pool.submit(
                run_group, cluster, directory, f"{name}-{protocol}", [str(programs / name)], protocol, victim
            )
            for victim, (name, protocol) in enumerate(GROUPS)
        }


@pytest.mark.usefixtures("groups")  # they go on meanwhile
@pytest.mark.parametrize(("name", "protocol"), GROUPS)
def test_a_copy_in_transactions_shows_no_record_of_the_aborted_one(
    cluster: LocalCluster, programs: Path, tmp_path: Path, name: str, protocol: str
) -> None:
    judge_copy(cluster, tmp_path, f"{name}-{protocol}-source", [str(programs / name)], protocol)


@pytest.mark.parametrize(("name", "protocol"), GROUPS)
def test_a_group_of_three_goes_on_when_one_is_killed(
    cluster: LocalCluster, groups: dict[tuple[str, str], Future[GroupRun]], name: str, protocol: str
) -> None:
    judge_group(groups[name, protocol].result())
    admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap_servers})
    listed = {each.group_id: each.type for each in admin.list_consumer_groups().result(60).valid}
    wanted = ConsumerGroupType.CONSUMER if protocol == "consumer" else ConsumerGroupType.CLASSIC
    assert listed[f"{name}-{protocol}-group"] == wanted
