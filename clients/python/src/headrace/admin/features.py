"""Feature levels (KIP-584): described and changed. Runs on the I/O thread."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.errors import InvalidArgumentError
from headrace_protos.v1 import admin_pb2

from .. import arguments
from ..models import FeatureInfo
from .calls import AdminCalls, raise_failures

_LEVEL_MAX = 2**15 - 1


def wanted_levels(levels: Mapping[str, int]) -> dict[str, int]:
    """Read in the caller's thread; InvalidArgumentError."""
    arguments.mapping("levels", levels, "feature: level")
    if not levels:
        raise InvalidArgumentError("levels: no feature is named")
    for name, level in levels.items():
        arguments.text("feature", name)
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= _LEVEL_MAX:
            raise InvalidArgumentError(f"{name}={level!r}: a level is a number from 0 to {_LEVEL_MAX}")
    return dict(levels)


async def describe_features(calls: AdminCalls, timeout: float | None) -> dict[str, FeatureInfo]:
    answer = await calls.call("DescribeFeatures", admin_pb2.DescribeFeaturesRequest(), timeout)
    return {
        each.name: FeatureInfo(each.name, each.finalized_level, each.min_level, each.max_level)
        for each in answer.features
    }


async def update_features(
    calls: AdminCalls, levels: Mapping[str, int], downgrade: bool, validate_only: bool, timeout: float | None
) -> None:
    how = admin_pb2.FEATURE_UPGRADE_TYPE_SAFE_DOWNGRADE if downgrade else admin_pb2.FEATURE_UPGRADE_TYPE_UPGRADE
    request = admin_pb2.UpdateFeaturesRequest(
        updates=[admin_pb2.FeatureUpdate(name=name, level=level, upgrade_type=how) for name, level in levels.items()],
        validate_only=validate_only,
    )
    answer = await calls.change("UpdateFeatures", request, timeout)
    raise_failures((item.name, item.error) for item in answer.results)
