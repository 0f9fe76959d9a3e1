"""Client quotas over gRPC: DescribeClientQuotas and AlterClientQuotas of headrace.v1.Security (KIP-546).

SecurityHandler (security.py) has the methods of all calls.
"""

from __future__ import annotations

from typing import Any

from headrace_core.item_errors import error_to_proto
from headrace_core.metadata import MetadataImage
from headrace_core.quotas import FilterPart
from headrace_protos.v1 import common_pb2, security_pb2

from ..cluster import quotas
from ..cluster.requests import AlterClientQuotas, QuotaAlteration
from ..driver import ControllerDriver


def describe_client_quotas(image: MetadataImage, request: Any) -> Any:
    """Answer DescribeClientQuotas from an image. Raises InvalidRequestError."""
    found = quotas.described(image, [_filter_part(part) for part in request.parts], strict=request.strict)
    return security_pb2.DescribeClientQuotasResponse(
        entries=[
            security_pb2.QuotaEntry(
                entity=[security_pb2.QuotaEntityPart(type=kind, name=name) for kind, name in entity],
                values=[security_pb2.QuotaValue(key=key, value=value) for key, value in sorted(values.items())],
            )
            for entity, values in found
        ]
    )


async def alter_client_quotas(driver: ControllerDriver, request: Any) -> Any:
    """Answer AlterClientQuotas on the active controller. Raises the errors of ``ControllerDriver.ask``."""
    answer = await driver.ask(
        AlterClientQuotas(tuple(_alteration(item) for item in request.alterations), request.validate_only)
    )
    return security_pb2.AlterClientQuotasResponse(
        results=[error_to_proto(result.error) or common_pb2.Error() for result in answer.reply],
        metadata_offset=answer.metadata_offset,
    )


def _filter_part(part: Any) -> FilterPart:
    which = part.WhichOneof("match")
    if which == "exact":
        return FilterPart(part.type, part.exact)
    return FilterPart(part.type, is_default=which == "default" and part.default)


def _alteration(item: Any) -> QuotaAlteration:
    return QuotaAlteration(
        tuple((part.type, part.name if part.HasField("name") else None) for part in item.entity),
        tuple((each.key, each.value if each.HasField("value") else None) for each in item.operations),
    )
