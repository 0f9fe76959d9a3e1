"""Describe and alter client quotas (KIP-546). The code runs on the I/O thread, except the ``wanted_*`` functions, which
check arguments in the caller's thread and raise InvalidArgumentError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.rpc.limits import limit_of, pages
from headrace_protos.v1 import security_pb2

from .. import arguments
from ..quota_models import QuotaEntity, QuotaName
from .calls import AdminCalls, raise_failures

_PAGE = limit_of("Security/AlterClientQuotas", "alterations")


def wanted_filter(
    user: str | QuotaName | None, client_id: str | QuotaName | None, ip: str | QuotaName | None
) -> QuotaEntity:
    return _checked(QuotaEntity(user=user, client_id=client_id, ip=ip), "filter")


def wanted_changes(
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
) -> dict[QuotaEntity, dict[str, float | None]]:
    found: dict[QuotaEntity, dict[str, float | None]] = {}
    for entity, values in arguments.mapping("changes", changes, "QuotaEntity: {key: number or None}").items():
        if not isinstance(entity, QuotaEntity) or not any(entity.parts()):
            raise InvalidArgumentError(
                f"quota entity {entity!r:.80}: must be a QuotaEntity with a user, client_id or ip"
            )
        _checked(entity, "entity")
        if any(name is QuotaName.ANY for _, name in entity.parts()):
            raise InvalidArgumentError(
                f"quota entity {entity}: QuotaName.ANY is only for filters; use a name, or QuotaName.DEFAULT"
            )
        of_one = found[entity] = dict(arguments.mapping(f"quotas of {entity}", values, "key: number or None"))
        for key, value in of_one.items():
            arguments.text("quota key", key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise InvalidArgumentError(
                    f"{entity}: {key}={value!r:.80} must be a number, or None to remove the quota"
                )
    return found


def _checked(entity: QuotaEntity, what: str) -> QuotaEntity:
    for kind, name in entity.parts():
        if not isinstance(name, QuotaName):
            arguments.text(f"{kind} of the quota {what}", name, empty=False)
    return entity


async def describe_client_quotas(
    calls: AdminCalls, wanted: QuotaEntity, strict: bool, timeout: float | None
) -> dict[QuotaEntity, dict[str, float]]:
    request = security_pb2.DescribeClientQuotasRequest(strict=strict)
    for kind, name in wanted.parts():
        part = request.parts.add(type=kind)
        if isinstance(name, str):
            part.exact = name
        elif name is QuotaName.DEFAULT:
            part.default = True
    answer = await calls.call("DescribeClientQuotas", request, timeout, sees_own_writes=True, service="security")
    return {_entity(entry.entity): {each.key: each.value for each in entry.values} for entry in answer.entries}


def _entity(parts: Any) -> QuotaEntity:
    named: dict[str, Any] = {
        part.type.replace("-", "_"): part.name if part.HasField("name") else QuotaName.DEFAULT for part in parts
    }
    return QuotaEntity(**named)


async def alter_client_quotas(
    calls: AdminCalls,
    changes: dict[QuotaEntity, dict[str, float | None]],
    validate_only: bool,
    timeout: float | None,
) -> None:
    results: list[tuple[str, Any]] = []
    for page in pages(list(changes.items()), _PAGE):
        request = security_pb2.AlterClientQuotasRequest(validate_only=validate_only)
        for entity, values in page:
            item = request.alterations.add()
            for kind, name in entity.parts():
                item.entity.add(type=kind, name=name if isinstance(name, str) else None)
            for key, value in values.items():
                item.operations.add(key=key, value=value)
        answer = await calls.change("AlterClientQuotas", request, timeout, service="security")
        results += [(str(entity), error) for (entity, _), error in zip(page, answer.results, strict=True)]
    raise_failures(results)
