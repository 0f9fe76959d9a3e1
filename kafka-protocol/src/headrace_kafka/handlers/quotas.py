"""Quotas (KIP-546): DescribeClientQuotas, AlterClientQuotas."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError, UnsupportedVersionError
from headrace_core.quotas.entities import CLIENT_ID, IP, USER
from headrace_protos.v1 import security_pb2, security_pb2_grpc

from ..call import Call
from ..errors import NONE, kafkas, number
from ..wire.schema import Message
from .topics import change

Fields = dict[str, Any]

_TYPES = (USER, CLIENT_ID, IP)
_EXACT, _DEFAULT, _ANY = range(3)  #: Kafka's numbers of match types.


async def describe_client_quotas(call: Call, request: Message) -> Fields:
    call.require_cluster()
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.DescribeClientQuotasRequest(strict=request.strict, timeout_ms=timeout_ms)
    for component in request.components:
        if component.entity_type not in _TYPES:
            raise UnsupportedVersionError(
                f"quota entity type {component.entity_type!r} is not one of {', '.join(_TYPES)}"
            )
        if component.match_type in (_DEFAULT, _ANY) and component.match is not None:
            raise InvalidRequestError(
                f"match type {component.match_type} of {component.entity_type} is without a name, but the request "
                f"names {component.match!r}"
            )
        part = asked.parts.add(type=component.entity_type)
        if component.match_type == _EXACT:
            part.exact = component.match or ""
        elif component.match_type == _DEFAULT:
            part.default = True
        elif component.match_type != _ANY:
            raise InvalidRequestError(f"match type {component.match_type}: must be 0 (exact), 1 (default) or 2 (any)")
    answer = await call.own(security_pb2_grpc.SecurityStub, "DescribeClientQuotas", asked, timeout_ms)
    return {
        "error_code": NONE,
        "entries": [
            {
                "entity": [_part(each) for each in entry.entity],
                "values": [{"key": each.key, "value": each.value} for each in entry.values],
            }
            for entry in answer.entries
        ],
    }


def _part(part: Any) -> Fields:
    return {"entity_type": part.type, "entity_name": part.name if part.HasField("name") else None}


async def alter_client_quotas(call: Call, request: Message) -> Fields:
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.AlterClientQuotasRequest(validate_only=request.validate_only, timeout_ms=timeout_ms)
    for entry in request.entries:
        alteration = asked.alterations.add()
        for part in entry.entity:
            alteration.entity.add(type=part.entity_type, name=part.entity_name)
        for operation in entry.ops:
            alteration.operations.add(key=operation.key, value=None if operation.remove else operation.value)
    errors: list[Fields]
    try:
        call.require_cluster()
        answer = await change(call, "AlterClientQuotas", asked, timeout_ms, security_pb2_grpc.SecurityStub)
    except HeadraceError as error:
        errors = [{"error_code": number(error), "error_message": str(error)} for _ in request.entries]
    else:
        errors = [
            {"error_code": kafkas(each.code), "error_message": each.message if each.code else None}
            for each in answer.results
        ]
    return {
        "entries": [
            {
                **error,
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
            }
            for entry, error in zip(request.entries, errors, strict=True)
        ]
    }
