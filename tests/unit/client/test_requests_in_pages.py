"""A caller may ask for any number of items at once: the SDK splits requests at the servers' limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import ConfigResource, NewTopic, OffsetAndMetadata, TopicPartition
from headrace.admin import configs, groups, replicas
from headrace.admin.calls import AdminCalls
from headrace.group.commits import Commits
from headrace.settings import ADMIN, resolve
from headrace_core.rpc.limits import RequestCheck
from headrace_protos.v1 import admin_pb2

MANY = 25_000
PARTS = [TopicPartition("t", number) for number in range(MANY)]
PAGES_OF_OFFSETS = [*[2_000] * 12, 1_000]  #: Numbers of items in the requests for committed offsets.


class Servers:
    """Checks each request against the servers' limits, and answers with an empty response. ``items`` is the number of
    items of each request."""

    def __init__(self) -> None:
        self.items: list[int] = []

    async def admin(self, method: str, request: Any, timeout: float | None, **_: Any) -> Any:
        return self._taken(f"Admin/{method}", request)

    async def coordinator(self, group_id: str, method: str, request: Any, *_: Any, **__: Any) -> Any:
        return self._taken(f"Groups/{method}", request)

    def _taken(self, method: str, request: Any) -> Any:
        data = request.SerializeToString()
        refused = RequestCheck(method, request.DESCRIPTOR)(data)
        assert refused is None, refused
        (field,) = [f for f, _ in request.ListFields() if f.is_repeated]
        items = getattr(request, field.name)
        if method in ("Admin/ElectLeaders", "Admin/ListPartitionReassignments"):
            items = items[0].partitions
        if method == "Groups/FetchOffsets":
            items = items[0].partitions.partitions
        self.items.append(len(items))
        return SimpleNamespace(
            results=[], reassignments=[], metadata_offset=1, groups=[SimpleNamespace(offsets=[])]
        )  # fmt: skip


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def calls(servers: Servers) -> AdminCalls:
    made = AdminCalls(resolve(ADMIN, {"bootstrap.servers": "127.0.0.1:1"}, {}))
    made.change = made.call = servers.admin  # type: ignore[assignment,method-assign]
    made.coordinators = SimpleNamespace(call=servers.coordinator)  # type: ignore[assignment]
    return made


MANY_CALLS: dict[str, Callable[[AdminCalls], Awaitable[Any]]] = {
    "create": lambda calls: calls.create_topics([NewTopic(f"t{n}") for n in range(MANY)], 5, False),
    "delete": lambda calls: calls.delete_topics([f"t{n}" for n in range(MANY)], 5),
    "grow": lambda calls: calls.create_partitions({f"t{n}": 2 for n in range(MANY)}, 5, False),
    "configs": lambda calls: configs.alter_configs(
        calls, {ConfigResource("topic", f"t{n}"): {"retention.ms": 5} for n in range(MANY)}, 5, False
    ),
    "elections": lambda calls: replicas.elect_leaders(calls, admin_pb2.ELECTION_TYPE_PREFERRED, PARTS, 5),
    "moves": lambda calls: replicas.alter_partition_reassignments(
        calls, {part: [1, 2] for part in PARTS}, None, True, 5
    ),
    "moving": lambda calls: replicas.list_partition_reassignments(calls, PARTS, 5),
    "offsets": lambda calls: groups.list_group_offsets(calls, "g", PARTS, False, 5),
    "forget": lambda calls: groups.delete_group_offsets(calls, "g", PARTS, 5),
    "remove": lambda calls: groups.remove_group_members(calls, "g", [f"m{n}" for n in range(MANY)], 5),
}


@pytest.mark.parametrize("name", MANY_CALLS)
def test_admin_asks_in_pages(name: str, calls: AdminCalls, servers: Servers) -> None:
    asyncio.run(MANY_CALLS[name](calls))  # type: ignore[arg-type]
    assert servers.items == (PAGES_OF_OFFSETS if name in ("offsets", "forget") else [10_000, 10_000, 5_000])


def test_commits_and_committed_offsets_go_in_pages(calls: AdminCalls, servers: Servers) -> None:
    async def scenario() -> None:
        who = SimpleNamespace(member_id="m", epoch=3, instance_id=None)
        commits = Commits(calls.engine, calls.coordinators, "g", lambda: who, lambda tp: b"")  # type: ignore[arg-type,return-value]
        await commits.commit(dict.fromkeys(PARTS, OffsetAndMetadata(5)), 5)
        await commits.fetch(PARTS, 5)

    asyncio.run(scenario())
    assert servers.items == PAGES_OF_OFFSETS * 2
