"""describe_quorum, add_voter, remove_voter, transfer_leadership: requests to the controller, and results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from headrace import Admin, AsyncAdmin, QuorumBroker, QuorumReplica
from headrace.errors import DuplicateVoterError, InvalidArgumentError, VoterNotFoundError
from headrace_core.node.ids import id_to_text
from headrace_core.rpc.status import status_of
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, metadata_pb2, metadata_pb2_grpc

DIRECTORY = bytes(range(16))


class Controller(admin_pb2_grpc.AdminServicer, metadata_pb2_grpc.MetadataServicer):
    """Returns scripted responses, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.address = ""

    def GetMetadata(self, request: Any, context: Any) -> Any:
        return metadata_pb2.MetadataResponse(cluster_id="c", controller_id=1)

    def _answer(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.asked.append(request)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            status, text, trailing = status_of(answer)  # type: ignore[arg-type]
            context.set_trailing_metadata(trailing)
            context.abort(status, text)
        return answer

    def DescribeQuorum(self, request: Any, context: Any) -> Any:
        return self._answer("DescribeQuorum", request, context)

    def AddRaftVoter(self, request: Any, context: Any) -> Any:
        return self._answer("AddRaftVoter", request, context)

    def RemoveRaftVoter(self, request: Any, context: Any) -> Any:
        return self._answer("RemoveRaftVoter", request, context)

    def TransferLeadership(self, request: Any, context: Any) -> Any:
        return self._answer("TransferLeadership", request, context)


@pytest.fixture
def controller() -> Iterator[Controller]:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = Controller()
    admin_pb2_grpc.add_AdminServicer_to_server(servicer, server)
    metadata_pb2_grpc.add_MetadataServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(None)


@pytest.fixture
def admin(controller: Controller) -> Iterator[Admin]:
    with Admin(bootstrap_servers=controller.address) as client:
        yield client


def test_the_quorum_as_its_leader_sees_it(controller: Controller, admin: Admin) -> None:
    voter = admin_pb2.QuorumReplica(
        replica_id=1,
        directory_id=DIRECTORY,
        address="h:1",
        log_end_offset=9,
        lag=0,
        last_fetch_timestamp_ms=7,
        last_caught_up_timestamp_ms=6,
        usable_bytes=0,
        total_bytes=5,
        is_outdated=True,
    )
    observer = admin_pb2.QuorumReplica(
        replica_id=4,
        directory_id=DIRECTORY,
        log_end_offset=-1,
        lag=-1,
        last_fetch_timestamp_ms=-1,
        last_caught_up_timestamp_ms=-1,
    )
    controller.answers["DescribeQuorum"] = admin_pb2.DescribeQuorumResponse(
        leader_id=1, leader_epoch=3, high_watermark=8, voters=[voter], observers=[observer]
    )
    controller.answers["DescribeQuorum"].brokers.add(
        broker_id=2, metadata_offset=7, lag=1, metadata_lag_ms=40, last_heartbeat_timestamp_ms=99
    )
    controller.answers["DescribeQuorum"].brokers.add(broker_id=3, metadata_offset=8, last_heartbeat_timestamp_ms=98)
    quorum = admin.describe_quorum()
    assert (quorum.leader_id, quorum.leader_epoch, quorum.high_watermark) == (1, 3, 8)
    expected = QuorumReplica(1, DIRECTORY, "h:1", 9, 0, 7, 6, usable_bytes=0, total_bytes=5, is_outdated=True)
    assert quorum.voters == (expected,)
    assert quorum.observers == (QuorumReplica(4, DIRECTORY, "", None, None, None, None),)
    assert quorum.voters[0].directory_id_text == id_to_text(DIRECTORY)
    assert quorum.brokers == (QuorumBroker(2, 7, 1, 40, 99), QuorumBroker(3, 8, 0, None, 98))


@pytest.mark.parametrize("directory", [DIRECTORY, id_to_text(DIRECTORY), None])
def test_a_voter_is_named_by_its_id_and_perhaps_its_directory(
    controller: Controller, admin: Admin, directory: bytes | str | None
) -> None:
    controller.answers["AddRaftVoter"] = admin_pb2.AddRaftVoterResponse(metadata_offset=5)
    controller.answers["RemoveRaftVoter"] = admin_pb2.RemoveRaftVoterResponse(metadata_offset=6)
    admin.add_voter(4, directory, address="h:4", timeout=20)
    admin.remove_voter(4, directory)
    added, removed = controller.asked
    assert (added.voter_id, added.voter_directory_id, added.address) == (4, DIRECTORY if directory else b"", "h:4")
    assert 19_000 < added.timeout_ms <= 20_000, "the leader waits as long as the caller does"
    assert (removed.voter_id, removed.voter_directory_id) == (4, DIRECTORY if directory else b"")


@pytest.mark.parametrize(("node_id", "sent"), [(3, 3), (None, -1)])
def test_leadership_is_handed_over_to_one_or_to_whoever_is_best(
    controller: Controller, admin: Admin, node_id: int | None, sent: int
) -> None:
    controller.answers["TransferLeadership"] = admin_pb2.TransferLeadershipResponse(leader_id=3, leader_epoch=9)
    assert admin.transfer_leadership(node_id) == 3
    assert controller.asked[0].voter_id == sent


def test_refusals_are_typed(controller: Controller, admin: Admin) -> None:
    controller.answers["AddRaftVoter"] = DuplicateVoterError("node 4 is a voter already")
    controller.answers["RemoveRaftVoter"] = VoterNotFoundError("9 is not a voter")
    with pytest.raises(DuplicateVoterError, match="node 4"):
        admin.add_voter(4)
    with pytest.raises(VoterNotFoundError, match="9 is not a voter"):
        admin.remove_voter(9)


def test_nonsense_is_refused_before_anybody_is_asked(controller: Controller, admin: Admin) -> None:
    for node_id in (-1, 2**31, True, "4"):
        with pytest.raises(InvalidArgumentError, match="node_id"):
            admin.add_voter(node_id)  # type: ignore[arg-type]
    for directory in (b"short", "short"):
        with pytest.raises(InvalidArgumentError, match="directory_id"):
            admin.remove_voter(4, directory)
    assert controller.asked == []


def test_the_asyncio_twin_asks_the_same(controller: Controller) -> None:
    controller.answers["TransferLeadership"] = admin_pb2.TransferLeadershipResponse(leader_id=2)
    controller.answers["AddRaftVoter"] = admin_pb2.AddRaftVoterResponse()
    controller.answers["RemoveRaftVoter"] = admin_pb2.RemoveRaftVoterResponse()
    controller.answers["DescribeQuorum"] = admin_pb2.DescribeQuorumResponse(leader_id=2)

    async def all_of_it() -> tuple[int, int]:
        async with AsyncAdmin(bootstrap_servers=controller.address) as client:
            await client.add_voter(4)
            await client.remove_voter(4)
            return await client.transfer_leadership(2), (await client.describe_quorum()).leader_id

    assert asyncio.run(all_of_it()) == (2, 2)
    assert [type(request).__name__ for request in controller.asked] == [
        "AddRaftVoterRequest",
        "RemoveRaftVoterRequest",
        "TransferLeadershipRequest",
        "DescribeQuorumRequest",
    ]
