"""The largest requests of administrators and brokers: other work of the controller's loop runs in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_controller.cluster.requests import AlterConfigs, AssignDirectories, CreateTopics
from headrace_controller.handlers.admin import AdminHandler
from headrace_controller.handlers.cluster import ClusterHandler
from headrace_controller.handlers.security import SecurityHandler
from headrace_core.errors import HeadraceError, InvalidRequestError
from headrace_core.item_errors import error_to_proto
from headrace_core.metadata import EMPTY_IMAGE
from headrace_core.rpc import turns
from headrace_protos.v1 import admin_pb2, cluster_pb2, security_pb2

ERROR = InvalidRequestError("no")


class Driver:
    """Refuses every item; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ask(self, request: Any) -> Any:
        self.asked.append(request)
        items = next(getattr(request, name) for name in ("topics", "resources", "partitions", "placements")
                     if hasattr(request, name))  # fmt: skip
        reply = [
            SimpleNamespace(name="t", topic_id=bytes(16), partitions=1, replication_factor=1, partition=number,
                            leader=1, leader_epoch=0, partition_epoch=0, isr=(), recovering=False, placement=each,
                            error=ERROR)
            for number, each in enumerate(items)
        ]  # fmt: skip
        return SimpleNamespace(reply=reply, metadata_offset=7)


TOPICS = [{"name": f"t{n}", "assignments": [{"partition": 0, "broker_ids": [1, 2]}]} for n in range(2_000)]
LARGE: dict[str, Any] = {
    "CreateTopics": admin_pb2.CreateTopicsRequest(topics=TOPICS),
    "CreatePartitions": admin_pb2.CreatePartitionsRequest(topics=[{"topic": f"t{n}"} for n in range(2_000)]),
    "AlterConfigs": admin_pb2.AlterConfigsRequest(
        resources=[
            {"resource": {"type": 2, "name": f"t{n}"}, "ops": [{"kind": 1, "name": "retention.ms", "value": "1"}]}
            for n in range(2_000)
        ]
    ),
    "AlterPartition": cluster_pb2.AlterPartitionRequest(
        topics=[{"topic_id": bytes(16), "partitions": [{"partition": n} for n in range(2_000)]}]
    ),
    "AssignReplicasToDirs": cluster_pb2.AssignReplicasToDirsRequest(
        directories=[{"directory_id": bytes(16), "topics": [{"topic_id": bytes(16), "partitions": range(2_000)}]}]
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_request_is_one_decision_and_read_and_answered_in_turns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every turn is over at once, so the number of turns is the number of pieces of work."""
    monkeypatch.setattr(turns, "TURN_S", -1.0)
    monkeypatch.setattr(turns, "PAUSE_S", 0.0)
    driver, ran = Driver(), 0

    async def main() -> Any:
        nonlocal ran

        async def others() -> None:
            nonlocal ran
            while True:
                ran += 1
                await asyncio.sleep(0)

        handler: Any = SimpleNamespace(_driver=driver)
        kind = AdminHandler if name.startswith(("Create", "AlterC")) else ClusterHandler
        beside = asyncio.create_task(others())
        answer = await getattr(kind, name)(handler, LARGE[name], None)
        beside.cancel()
        return answer

    answer = asyncio.run(main())
    assert len(driver.asked) == 1
    assert answer.metadata_offset == 7
    found = answer.refused if name == "AssignReplicasToDirs" else answer.results
    assert len(found) == 2_000
    assert {each.error.SerializeToString() for each in found} == {error_to_proto(ERROR).SerializeToString()}
    assert ran > 3_000, "2,000 items were read and 2,000 answered"


def test_what_is_asked_has_the_order_of_the_request() -> None:
    driver = Driver()
    handler: Any = SimpleNamespace(_driver=driver)
    for name, kind in (("CreateTopics", AdminHandler), ("AlterConfigs", AdminHandler)):
        asyncio.run(getattr(kind, name)(handler, LARGE[name], None))
    asyncio.run(ClusterHandler.AssignReplicasToDirs(handler, LARGE["AssignReplicasToDirs"], None))
    created, altered, assigned = driver.asked
    assert isinstance(created, CreateTopics)
    assert [each.name for each in created.topics] == [f"t{n}" for n in range(2_000)]
    assert isinstance(altered, AlterConfigs)
    assert [each.resource[1] for each in altered.resources] == [f"t{n}" for n in range(2_000)]
    assert isinstance(assigned, AssignDirectories)
    assert [each.partition for each in assigned.placements] == list(range(2_000))


def test_a_wrong_item_refuses_the_whole_request_before_the_decision() -> None:
    driver = Driver()
    handler: Any = SimpleNamespace(_driver=driver)
    twice = [{"partition": 0, "broker_ids": [1]}] * 2
    request = admin_pb2.CreateTopicsRequest(topics=[*TOPICS, {"name": "last", "assignments": twice}])
    with pytest.raises(HeadraceError, match="a partition is named twice"):
        asyncio.run(AdminHandler.CreateTopics(handler, request, None))
    assert driver.asked == []


def test_a_description_of_many_users_is_written_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", -1.0)
    monkeypatch.setattr(turns, "PAUSE_S", 0.0)
    request = security_pb2.DescribeUserScramCredentialsRequest(users=[f"u{number}" for number in range(2_000)])
    ran = 0

    async def main() -> Any:
        async def others() -> None:
            nonlocal ran
            while True:
                ran += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        handler: Any = SimpleNamespace(_check_leads=lambda: None, _driver=SimpleNamespace(image=EMPTY_IMAGE))
        answer = await SecurityHandler.DescribeUserScramCredentials(handler, request, None)
        beside.cancel()
        return answer

    answer = asyncio.run(main())
    assert [each.user for each in answer.users] == list(request.users)
    assert ran > 1_500
