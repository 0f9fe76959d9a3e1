"""Members of KIP-848 groups without a stream: heartbeats as Kafka's clients send them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace_coordinator.group.messages import Part
from headrace_coordinator.group.timing import NO_STREAM
from headrace_coordinator.handlers import classic, messages
from headrace_coordinator.handlers.classic import ClassicWaits
from headrace_coordinator.handlers.unary_members import UnaryMembers
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_core.errors import GroupIdNotFoundError
from headrace_core.security.access import Access, Authorization
from headrace_core.security.authorizer import Authorizer
from headrace_core.security.caller import NO_CALLER, Caller, set_caller
from headrace_core.security.principal import ANONYMOUS, USER, Principal
from headrace_protos.v1 import groups_pb2
from tests.worlds.group_world import GROUP, GroupShardWorld, topic_id


class Member:
    """A client that sends its subscription with each heartbeat that names partitions, as franz-go does."""

    def __init__(self, shard: GroupShardWorld, coordinator: UnaryMembers, name: str) -> None:
        self._shard, self._coordinator, self._name = shard, coordinator, name
        self.epoch = 0
        self.assigned: set[int] = set()

    async def ask(self, request: object, *, is_fenced: bool = False) -> Any:
        """Stand in for the shard's runner."""
        return self._shard.ask(request)

    def heartbeat(self, *, full: bool, moves_to: UnaryMembers | None = None) -> bool:
        """Returns whether the answer has an assignment. ``moves_to``: the members of another coordinator process."""
        self._coordinator = moves_to or self._coordinator
        message = groups_pb2.MemberHeartbeat(group_id=GROUP, member_id=self._name, member_epoch=self.epoch)
        if full:
            message.topics.names.append("orders")
            message.rebalance_timeout_ms = 60_000
        if full and self.epoch:
            message.owned.SetInParent()
            message.owned.topics.add(topic_id=topic_id("orders"), partitions=sorted(self.assigned))
        request = groups_pb2.HeartbeatRequest(heartbeat=message, client_host="/127.0.0.1")
        answer = asyncio.run(self._coordinator.heartbeat(cast(ShardRunner, self), request))
        assert not answer.error.code, answer.error.message
        self.epoch = answer.member_epoch
        if answer.HasField("assignment"):
            self.assigned = {number for topic in answer.assignment.topics for number in topic.partitions}
        return bool(answer.HasField("assignment"))


def two_members() -> tuple[GroupShardWorld, Member, Member]:
    """The first member has learned that it must release two of its four partitions."""
    shard, coordinator = GroupShardWorld(orders=4), UnaryMembers()
    first, second = (Member(shard, coordinator, name) for name in "ab")
    first.heartbeat(full=True)
    assert first.assigned == {0, 1, 2, 3}
    second.heartbeat(full=True)
    assert second.assigned == set()
    assert first.heartbeat(full=False)
    assert len(first.assigned) == 2
    return shard, first, second


def owned(shard: GroupShardWorld) -> dict[str, frozenset[Part]]:
    return {each.member_id: each.assigned | each.revoking for each in shard.described().members}


def test_a_full_heartbeat_releases_the_partitions_that_it_does_not_name() -> None:
    shard, first, second = two_members()
    assert first.heartbeat(full=True), "the answer to a full one has the whole assignment"
    assert len(owned(shard)["a"]) == 2
    assert second.heartbeat(full=False)
    assert first.assigned | second.assigned == {0, 1, 2, 3}
    assert first.epoch == second.epoch


def test_a_full_heartbeat_to_a_new_coordinator_releases_them_too() -> None:
    shard, first, second = two_members()
    shard.groups = shard.take_over()
    after = UnaryMembers()
    assert first.heartbeat(full=True, moves_to=after)
    assert second.heartbeat(full=False, moves_to=after)
    assert first.assigned | second.assigned == {0, 1, 2, 3}


def test_a_full_heartbeat_releases_nothing_whose_revocation_the_member_has_not_learned() -> None:
    shard, coordinator = GroupShardWorld(orders=4), UnaryMembers()
    first, second = (Member(shard, coordinator, name) for name in "ab")
    first.heartbeat(full=True)
    late = Member(shard, coordinator, "a")  # a heartbeat of the first member, sent before it got its partitions
    late.epoch = first.epoch
    second.heartbeat(full=True)
    late.heartbeat(full=True)
    assert len(owned(shard)["a"]) == 4
    second.heartbeat(full=False)
    assert second.assigned == set()


@pytest.mark.parametrize("is_limited", [True, False])
def test_a_member_cannot_name_its_own_host(is_limited: bool) -> None:
    """A pattern is judged by the address from which the caller has authenticated, which the request cannot say."""
    caller = Caller(Principal(USER, "eve"), "10.0.0.9")
    access = Access(caller, Authorization(Authorizer()) if is_limited else None)
    message = groups_pb2.MemberHeartbeat(group_id=GROUP, member_id="m", topic_regex=".*")
    asked = messages.heartbeat(message, NO_STREAM, "/10.0.0.1", access)
    assert asked.client_host == "/10.0.0.1"
    assert (asked.principal, asked.principal_host) == (("User:eve", "10.0.0.9") if is_limited else ("", ""))


@pytest.mark.parametrize(
    ("caller", "seen"),
    [
        (Caller(Principal(USER, "eve"), "10.0.0.9"), "/10.0.0.9"),  # of its own, or through a broker
        (Caller(ANONYMOUS, "10.0.0.9"), "/10.0.0.1"),  # a broker of an open cluster, which names its client's host
        (NO_CALLER, "/10.0.0.1"),
    ],
)
def test_descriptions_show_the_host_from_which_a_member_has_authenticated(caller: Caller, seen: str) -> None:
    asked: list[Any] = []

    class Runner:
        async def ask(self, request: Any, *, is_fenced: bool = False) -> Any:
            asked.append(request)
            raise GroupIdNotFoundError("there is no group")

    async def both() -> None:
        set_caller(caller)
        runner = cast(ShardRunner, Runner())
        message = groups_pb2.MemberHeartbeat(group_id=GROUP, member_id="m")
        await UnaryMembers().heartbeat(runner, groups_pb2.HeartbeatRequest(heartbeat=message, client_host="/10.0.0.1"))
        joining = groups_pb2.JoinGroupRequest(group_id=GROUP, client_host="/10.0.0.1")
        await classic.join(ClassicWaits(), runner, joining)

    asyncio.run(both())
    assert [each.client_host for each in asked] == [seen, seen]
