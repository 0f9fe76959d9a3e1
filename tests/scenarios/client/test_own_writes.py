"""An Admin call sees the changes that the same client made before, although brokers lag (read your writes), and ends
within its timeout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Admin, ConfigResource, TopicPartition
from headrace.cluster_models import TopicPartitionReplica
from headrace.engine.client import Engine
from headrace.errors import HeadraceError

T = TopicPartition("t", 0)
S = 2.125  # timeout of a call, unlike every other timeout

#: The calls that read topics or brokers from a broker's metadata.
READS: dict[str, Callable[[Admin], Any]] = {
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {T: 1}, timeout=S),
    "alter_replica_log_dirs": lambda admin: admin.alter_replica_log_dirs(
        {TopicPartitionReplica("t", 0, 0): "/disk"}, timeout=S
    ),
    "delete_records": lambda admin: admin.delete_records({T: -1}, timeout=S),
    "describe_cluster": lambda admin: admin.describe_cluster(timeout=S),
    "describe_configs": lambda admin: admin.describe_configs([ConfigResource("topic", "t")], timeout=S),
    "describe_log_dirs": lambda admin: admin.describe_log_dirs(topics=["t"], timeout=S),
    "describe_topics": lambda admin: admin.describe_topics(["t"], timeout=S),
    "list_groups": lambda admin: admin.list_groups(timeout=S),
    "list_offsets": lambda admin: admin.list_offsets({T: "latest"}, timeout=S),
    "list_transactions": lambda admin: admin.list_transactions(timeout=S),
    "describe_producers": lambda admin: admin.describe_producers([T], timeout=S),
    "abort_hanging_transaction": lambda admin: admin.abort_hanging_transaction(
        T, producer_id=5, start_offset=0, timeout=S
    ),
    "list_topics": lambda admin: admin.list_topics(timeout=S),
}
#: The calls that a controller, a coordinator or the node at an address answers.
ELSEWHERE = {
    "alter_user_scram_credentials",
    "create_acls",
    "delete_acls",
    "describe_acls",
    "describe_user_scram_credentials",
    "create_delegation_token",
    "describe_delegation_token",
    "expire_delegation_token",
    "renew_delegation_token",
    "abort_sink_batch",
    "abort_transaction",
    "add_voter",
    "alter_client_quotas",
    "alter_configs",
    "alter_partition_reassignments",
    "commit_sink_batch",
    "complete_transaction",
    "create_partitions",
    "create_topics",
    "delete_group_offsets",
    "delete_groups",
    "delete_topics",
    "describe_client_quotas",
    "describe_features",
    "describe_groups",
    "describe_lag",
    "describe_node",
    "describe_quorum",
    "describe_sink",
    "describe_transactions",
    "drain_broker",
    "elect_leaders",
    "explain_group",
    "list_group_offsets",
    "list_partition_reassignments",
    "remove_group_members",
    "remove_voter",
    "transfer_leadership",
    "unregister_broker",
    "update_features",
}


def test_every_call_is_in_a_table() -> None:
    calls = {name for name, value in vars(Admin).items() if callable(value) and name[0] != "_"} - {"start", "close"}
    missing = calls - READS.keys() - ELSEWHERE
    assert not missing, f"{missing}: add a call to READS, or a name to ELSEWHERE"


@pytest.mark.parametrize("name", READS)
def test_a_call_after_a_change_waits_for_the_change(fake: Any, name: str) -> None:
    with Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
        admin.list_offsets({T: "latest"})  # the client now has the metadata of the topic from before the change
        admin.create_topics(["new"])
        fake.metadata_asked.clear()
        with contextlib.suppress(HeadraceError):  # the fake cluster does not serve every call
            READS[name](admin)
    asked = [request.min_metadata_offset for request in fake.metadata_asked]
    assert set(asked) == {fake.metadata_offset}


@pytest.mark.parametrize("name", READS)
def test_a_call_makes_one_deadline_of_its_timeout(fake: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float | None] = []
    deadline = Engine.deadline

    def counted(engine: Engine, timeout_s: float | None = None) -> float:
        made.append(timeout_s)
        return deadline(engine, timeout_s)

    monkeypatch.setattr(Engine, "deadline", counted)
    with Admin(bootstrap_servers=fake.bootstrap_servers) as admin, contextlib.suppress(HeadraceError):
        READS[name](admin)
    assert made.count(S) == 1


def test_a_new_partition_has_offsets_although_the_broker_lags(fake: Any) -> None:
    new = TopicPartition("t", 2)
    with Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
        admin.list_offsets({T: "latest"})
        admin.create_partitions({"t": 3})
        assert admin.list_offsets({new: "latest"})[new].offset == 0


def test_configurations_include_the_own_change_whichever_broker_answers(fake_cluster: Callable[..., Any]) -> None:
    resource = ConfigResource("topic", "t")
    cluster = fake_cluster(3)
    cluster.create("t")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for number in range(12):  # a request goes to a random broker
            admin.alter_configs({resource: {"retention.ms": str(number)}})
            assert admin.describe_configs([resource])[resource]["retention.ms"].value == "new"
