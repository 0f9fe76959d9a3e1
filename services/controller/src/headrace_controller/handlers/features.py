"""The calls of headrace.v1.Admin about feature levels (KIP-584)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_core.errors import InvalidRequestError
from headrace_core.metadata import METADATA_VERSION_FEATURE, FeatureRange
from headrace_core.metadata.features import SUPPORTED_FEATURES
from headrace_core.rpc.status import error_to_proto
from headrace_protos.v1 import admin_pb2, cluster_pb2

from ..cluster.ledger_requests import FeatureUpdate, UpdateFeatures, UpgradeType
from ..driver import ControllerDriver

_UPDATES_MAX = 1_000


class FeatureCalls:
    """A part of AdminHandler."""

    _driver: ControllerDriver

    async def DescribeFeatures(self, request: admin_pb2.DescribeFeaturesRequest, context: Any) -> Any:
        finalized = {METADATA_VERSION_FEATURE: self._driver.image.metadata_version}
        return admin_pb2.DescribeFeaturesResponse(
            features=[
                admin_pb2.FeatureDescription(
                    name=each.name,
                    finalized_level=finalized.get(each.name, 0),
                    min_level=each.min_level,
                    max_level=each.max_level,
                )
                for each in SUPPORTED_FEATURES
            ]
        )

    async def UpdateFeatures(self, request: admin_pb2.UpdateFeaturesRequest, context: Any) -> Any:
        if len(request.updates) > _UPDATES_MAX:
            raise InvalidRequestError(f"{len(request.updates)} updates in one request, at most {_UPDATES_MAX}")
        updates = tuple(
            FeatureUpdate(item.name, item.level, _upgrade_type(item.upgrade_type)) for item in request.updates
        )
        answer = await self._driver.ask(UpdateFeatures(updates, request.validate_only))
        return admin_pb2.UpdateFeaturesResponse(
            results=[
                admin_pb2.UpdateFeatureResult(name=result.name, error=error_to_proto(result.error))
                for result in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )


def feature_ranges(items: Iterable[cluster_pb2.FeatureRange]) -> tuple[FeatureRange, ...]:
    """What a node said of itself at its registration."""
    return tuple(FeatureRange(item.name, item.min_level, item.max_level) for item in items)


def _upgrade_type(number: int) -> UpgradeType:
    try:
        return UpgradeType(number or UpgradeType.UPGRADE)
    except ValueError:
        raise InvalidRequestError(f"upgrade type {number}: 1 (upgrade), 2 or 3 (downgrade, safe or unsafe)") from None
