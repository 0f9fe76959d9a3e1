"""ApiVersions (KIP-35, KIP-511, KIP-584): the request types that the broker serves, and the cluster's features.

Kafka's clients derive their behaviour from Kafka's feature levels. The broker returns the levels of Kafka 4.3, because
Headrace's own ``metadata.version`` has other levels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..call import Call
from ..errors import INVALID_REQUEST, NONE
from ..wire.apis import VERSIONS, Api
from ..wire.schema import Message


class Feature(NamedTuple):
    """A feature of Kafka with its supported levels; ``high`` is also the finalized level."""

    name: str
    low: int
    high: int


#: Feature levels of Kafka 4.3: MetadataVersion (IBP_4_3_IV0), GroupVersion, TransactionVersion.
FEATURES = (Feature("group.version", 0, 1), Feature("metadata.version", 7, 30), Feature("transaction.version", 0, 2))

#: Request types for which the answer lists a lower version than the broker serves, as in Kafka 4.3, each with this
#: version. librdkafka 2.8 compresses with gzip, snappy and lz4 only if the server lists version 0 of Produce
#: (KAFKA-18659); it then sends version 3 or later.
_LISTED_LOW = {Api.PRODUCE: 0}

#: First version of ApiVersions whose clients accept features with the lowest level 0 (KIP-1022).
_LEVEL_ZERO_VERSION = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


async def api_versions(call: Call, request: Message, served: Iterable[Api]) -> dict[str, Any]:
    """Answer with the supported versions of the request types in ``served``."""
    if call.version >= 3 and not (
        _SOFTWARE.match(request.client_software_name) and _SOFTWARE.match(request.client_software_version)
    ):
        return {"error_code": INVALID_REQUEST}
    return {
        "error_code": NONE,
        "api_keys": [
            {
                "api_key": int(api),
                "min_version": _LISTED_LOW.get(api, VERSIONS[api].low),
                "max_version": VERSIONS[api].high,
            }
            for api in sorted(served)
        ],
        "supported_features": [
            {
                "name": feature.name,
                "min_version": max(feature.low, 0 if call.version >= _LEVEL_ZERO_VERSION else 1),
                "max_version": feature.high,
            }
            for feature in FEATURES
        ],
        "finalized_features_epoch": call.cluster.image.next_offset,
        "finalized_features": [
            {"name": feature.name, "max_version_level": feature.high, "min_version_level": feature.high}
            for feature in FEATURES
        ],
    }
