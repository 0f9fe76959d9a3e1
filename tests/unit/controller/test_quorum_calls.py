"""DescribeQuorum, AddRaftVoter, RemoveRaftVoter, TransferLeadership: real controllers in one process, real sockets."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_controller.handlers.admin import AdminHandler
from headrace_controller.quorum_controller import QuorumController
from headrace_controller.raft import RaftNode, ReplicaKey
from headrace_core.errors import (
    DuplicateVoterError,
    HeadraceError,
    InconsistentClusterIdError,
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    VoterNotFoundError,
)
from headrace_protos.v1 import admin_pb2
from tests.unit.controller.test_raft_traps import world_of
from tests.worlds.controllers_world import CLUSTER_ID, Controller, ids, with_controllers


async def refused(kind: type[HeadraceError], says: str, call: Awaitable[Any]) -> None:
    with pytest.raises(kind, match=says):
        await call


def test_one_voter_grows_to_three_and_back(tmp_path: Path) -> None:
    async def test(one: Controller, two: Controller, three: Controller) -> None:
        before_ms = int(time.time() * 1_000)
        found = await one.describe_once(lambda quorum: ids(quorum.observers) == [2, 3])
        assert (ids(found.voters), found.leader_id) == ([1], 1)
        assert [each.address for each in (*found.voters, *found.observers)] == [
            one.internal,
            two.internal,
            three.internal,
        ], "who does not vote has said where it is"
        added = await one.call("AddRaftVoter", admin_pb2.AddRaftVoterRequest(voter_id=2, cluster_id=CLUSTER_ID))
        assert added.metadata_offset > 0
        three_and_its_disk = admin_pb2.AddRaftVoterRequest(voter_id=3, voter_directory_id=three.directory_id)
        await one.call("AddRaftVoter", three_and_its_disk)
        found = await two.describe_once(lambda quorum: all(each.lag == 0 for each in quorum.voters))
        assert (ids(found.voters), ids(found.observers)) == ([1, 2, 3], [])
        assert [each.address for each in found.voters] == [one.internal, two.internal, three.internal]
        assert [each.directory_id for each in found.voters] == [one.directory_id, two.directory_id, three.directory_id]
        for each in found.voters:
            assert each.log_end_offset >= found.high_watermark
            assert before_ms - 1_000 < each.last_caught_up_timestamp_ms <= each.last_fetch_timestamp_ms
            assert each.last_fetch_timestamp_ms <= time.time() * 1_000
        await refused(DuplicateVoterError, "voter already", one.call("AddRaftVoter", three_and_its_disk))
        for node_id in (3, 2):
            await one.call("RemoveRaftVoter", admin_pb2.RemoveRaftVoterRequest(voter_id=node_id))
        found = await one.describe_once(lambda quorum: ids(quorum.observers) == [2, 3])
        assert ids(found.voters) == [1]
        last = admin_pb2.RemoveRaftVoterRequest(voter_id=1)
        await refused(InvalidRequestError, "is the only voter and cannot be removed", one.call("RemoveRaftVoter", last))

    with_controllers(tmp_path, 1, 2, test)


@pytest.fixture
def stood(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The controllers that stood for election because the old leader asked them to, not after a time-out."""
    found: list[int] = []
    become_candidate = RaftNode._become_candidate

    def noted(node: RaftNode, *, is_transfer: bool = False) -> None:
        if is_transfer:
            found.append(node.key.node_id)
        become_candidate(node, is_transfer=is_transfer)

    monkeypatch.setattr(RaftNode, "_become_candidate", noted)
    return found


def test_the_lead_goes_where_it_is_sent_and_every_controller_passes_the_call_on(
    tmp_path: Path, stood: list[int]
) -> None:
    async def test(*all_three: Controller) -> None:
        leader = (await all_three[0].describe()).leader_id
        for asked, wanted in ((0, leader % 3 + 1), (1, (leader + 1) % 3 + 1), (2, leader)):
            request = admin_pb2.TransferLeadershipRequest(voter_id=wanted)
            stood.clear()
            answer = await all_three[asked].call("TransferLeadership", request)
            assert answer.leader_id == wanted
            assert stood == [wanted], "no time-out was waited for"
            assert (await all_three[asked].describe()).leader_id == wanted
        same = await all_three[0].call("TransferLeadership", admin_pb2.TransferLeadershipRequest(voter_id=leader))
        assert same.leader_id == leader, "it leads already"
        other = await all_three[0].call("TransferLeadership", admin_pb2.TransferLeadershipRequest(voter_id=-1))
        assert other.leader_id != leader, "whoever is furthest"
        stranger = admin_pb2.TransferLeadershipRequest(voter_id=9)
        await refused(VoterNotFoundError, "9 is not a voter", all_three[0].call("TransferLeadership", stranger))
        follower = next(each for each in all_three if each.node_id != other.leader_id)
        inside = follower.call("DescribeQuorum", admin_pb2.DescribeQuorumRequest(), listener="internal")
        await refused(NotControllerError, "is not the leader", inside)

    with_controllers(tmp_path, 3, 0, test)


def test_a_leader_that_nobody_follows_yet_hands_over_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was just elected must not report that it is alone."""
    looked: list[bool] = []
    real = QuorumController.best_successor

    def best_successor(controller: QuorumController) -> ReplicaKey | None:
        looked.append(len(looked) >= 3)
        return real(controller) if looked[-1] else None

    monkeypatch.setattr(QuorumController, "best_successor", best_successor)

    async def test(*all_three: Controller) -> None:
        found = await all_three[0].describe_once(lambda quorum: quorum.leader_id > 0)
        request = admin_pb2.TransferLeadershipRequest(voter_id=-1)
        assert (await all_three[0].call("TransferLeadership", request)).leader_id != found.leader_id
        assert looked[:4] == [False, False, False, True]

    with_controllers(tmp_path, 3, 0, test)


def test_a_leader_that_is_removed_answers_and_another_one_leads(
    tmp_path: Path, stood: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(*all_three: Controller) -> None:
        leader = (await all_three[0].describe()).leader_id
        # (on a busy machine the others may notice a silent leader before its message comes)
        monkeypatch.setattr(RaftNode, "_become_prospective", lambda node: None)
        others = [each for each in all_three if each.node_id != leader]
        await others[0].call("RemoveRaftVoter", admin_pb2.RemoveRaftVoterRequest(voter_id=leader))
        found = await others[0].describe_once(lambda quorum: quorum.leader_id not in (-1, leader))
        assert stood == [found.leader_id], "the one who goes tells another to stand"
        assert ids(found.voters) == [each.node_id for each in others]

    with_controllers(tmp_path, 3, 0, test)


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    async def test(one: Controller) -> None:
        add, remove = admin_pb2.AddRaftVoterRequest, admin_pb2.RemoveRaftVoterRequest
        for request, kind, says in (
            (add(voter_id=2, timeout_ms=200), RequestTimedOutError, "controller 2 does not follow"),
            (add(voter_id=2, voter_directory_id=bytes(16), timeout_ms=200), RequestTimedOutError, "retry when"),
            (add(voter_id=1), DuplicateVoterError, "controller 1 is a voter already"),
            (add(voter_id=2, cluster_id="another"), InconsistentClusterIdError, "not another"),
            (add(voter_id=2, voter_directory_id=b"short"), InvalidRequestError, "5 bytes"),
            (add(voter_id=2, timeout_ms=-1), InvalidRequestError, "timeout_ms=-1"),
            # (every metadata response has the voters' addresses: an invalid one would break them all)
            (add(voter_id=2, address="controller-2"), InvalidRequestError, "controller-2: write host:port"),
            (remove(voter_id=2), VoterNotFoundError, "2 is not a voter"),
            (remove(voter_id=1, voter_directory_id=bytes(16)), VoterNotFoundError, "is not a voter"),
            (remove(voter_id=1, cluster_id="another"), InconsistentClusterIdError, "not another"),
            (admin_pb2.TransferLeadershipRequest(voter_id=-1), VoterNotFoundError, "only voter"),
        ):
            method = type(request).__name__.removesuffix("Request")
            await refused(kind, says, one.call(method, request))
        assert ids((await one.describe()).voters) == [1]

    with_controllers(tmp_path, 1, 0, test)


def test_times_of_one_description_come_from_one_look_at_the_clock() -> None:
    """An earlier version reported a voter that answered and caught up at the same tick as caught up a millisecond
    later."""
    times = itertools.count(1_700_000_000_000)
    raft = world_of(1, 2, 3).elect(1)
    controller = SimpleNamespace(raft=raft, addresses={}, settings=SimpleNamespace(tick_ms=100.0))
    calls = AdminHandler(
        cast(Any, SimpleNamespace(is_leader=True, controller=controller)),
        {},
        address_of=lambda key: "",
        brokers_seen=lambda: (),
        clock=cast(Any, SimpleNamespace(now_ms=lambda: next(times))),
    )
    found = asyncio.run(calls.DescribeQuorum(admin_pb2.DescribeQuorumRequest(), None))
    shown = {(each.last_fetch_timestamp_ms, each.last_caught_up_timestamp_ms) for each in found.voters}
    assert shown == {(1_700_000_000_000, 1_700_000_000_000)}
