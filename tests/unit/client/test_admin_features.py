"""describe_features, update_features, and `headrace features`: requests to the controller, and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from headrace import Admin, FeatureInfo
from headrace.errors import InvalidArgumentError, InvalidUpdateVersionError
from headrace_core.item_errors import error_to_proto
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, metadata_pb2, metadata_pb2_grpc
from headrace_tools.cli.app import run

NAME = "metadata.version"


class Controller(admin_pb2_grpc.AdminServicer, metadata_pb2_grpc.MetadataServicer):
    """A cluster at level 1 that supports levels 1 and 2. ``refusal`` is the answer to updates."""

    def __init__(self) -> None:
        self.level = 1
        self.refusal: InvalidUpdateVersionError | None = None
        self.asked: list[Any] = []
        self.address = ""

    def GetMetadata(self, request: Any, context: Any) -> Any:
        return metadata_pb2.MetadataResponse(cluster_id="c", controller_id=1, metadata_offset=7)

    def DescribeFeatures(self, request: Any, context: Any) -> Any:
        feature = admin_pb2.FeatureDescription(name=NAME, finalized_level=self.level, min_level=1, max_level=2)
        return admin_pb2.DescribeFeaturesResponse(features=[feature])

    def UpdateFeatures(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        if self.refusal is None and not request.validate_only:
            self.level = request.updates[0].level
        results = [admin_pb2.UpdateFeatureResult(name=NAME, error=error_to_proto(self.refusal))]
        return admin_pb2.UpdateFeaturesResponse(results=results, metadata_offset=7)


@pytest.fixture
def controller() -> Iterator[Controller]:
    server, servicer = grpc.server(ThreadPoolExecutor(2)), Controller()
    admin_pb2_grpc.add_AdminServicer_to_server(servicer, server)
    metadata_pb2_grpc.add_MetadataServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(None)


def request_of(controller: Controller) -> tuple[dict[str, int], int, bool]:
    """The content of the last update request."""
    request = controller.asked[-1]
    (how,) = {each.upgrade_type for each in request.updates}
    return {each.name: each.level for each in request.updates}, how, request.validate_only


def test_levels_are_described_raised_and_lowered(controller: Controller) -> None:
    with Admin(bootstrap_servers=controller.address) as admin:
        assert admin.describe_features() == {NAME: FeatureInfo(NAME, 1, 1, 2)}
        admin.update_features({NAME: 2})
        assert request_of(controller) == ({NAME: 2}, admin_pb2.FEATURE_UPGRADE_TYPE_UPGRADE, False)
        admin.update_features({NAME: 1}, downgrade=True, validate_only=True)
        assert request_of(controller) == ({NAME: 1}, admin_pb2.FEATURE_UPGRADE_TYPE_SAFE_DOWNGRADE, True)
        assert admin.describe_features()[NAME].finalized_level == 2


def test_what_stands_in_the_way_is_raised(controller: Controller) -> None:
    controller.refusal = InvalidUpdateVersionError("broker 1 does not support it")
    with Admin(bootstrap_servers=controller.address) as admin:
        with pytest.raises(InvalidUpdateVersionError, match="broker 1 does not support"):
            admin.update_features({NAME: 2})
        for wrong in ({}, {NAME: -1}, {NAME: True}, {NAME: "2"}):
            with pytest.raises(InvalidArgumentError):
                admin.update_features(wrong)  # type: ignore[arg-type]
    assert len(controller.asked) == 1


def test_the_command_line_raises_all_that_is_understood(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["-b", controller.address]
    assert run(["features", "upgrade", "--dry-run", *at]) == 0
    assert request_of(controller) == ({NAME: 2}, admin_pb2.FEATURE_UPGRADE_TYPE_UPGRADE, True)
    capsys.readouterr()
    assert run(["features", "upgrade", "-o", "json", *at]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == [{"name": NAME, "finalized_level": 2, "min_level": 1, "max_level": 2}]
    assert run(["features", "downgrade", "--feature", f"{NAME}=1", *at]) == 0
    assert request_of(controller)[:2] == ({NAME: 1}, admin_pb2.FEATURE_UPGRADE_TYPE_SAFE_DOWNGRADE)
    assert run(["features", "describe", *at]) == 0
    assert "1 to 2" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["metadata.version", "metadata.version=two", "=2"])
def test_a_level_that_is_none_is_wrong_usage(controller: Controller, wrong: str) -> None:
    assert run(["features", "upgrade", "--feature", wrong, "-b", controller.address]) == 2
    assert not controller.asked
