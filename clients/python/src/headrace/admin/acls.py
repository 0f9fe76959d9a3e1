"""Create, describe and delete access control entries. The code runs on the I/O thread, except the ``wanted_*``
functions, which check arguments in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.rpc.limits import limit_of, pages
from headrace_core.rpc.status import raise_proto_error
from headrace_protos.v1 import security_pb2

from .. import arguments
from ..acl_models import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from .calls import AdminCalls, raise_failures

_ENTRIES, _FILTERS = limit_of("Security/CreateAcls", "entries"), limit_of("Security/DeleteAcls", "filters")


def wanted_bindings(bindings: Iterable[AclBinding]) -> list[AclBinding]:
    """Check the argument of ``create_acls``. Raises InvalidArgumentError."""
    found = arguments.items("acls", bindings, "AclBinding")
    for each in found:
        if not isinstance(each, AclBinding):
            raise InvalidArgumentError(f"acls: {each!r:.80} must be an AclBinding")
        _check_enums(each)
        for what in ("resource_name", "principal", "host"):
            arguments.text(what, getattr(each, what))
    return found


def _check_enums(given: AclBinding | AclBindingFilter) -> None:
    for what, kind in (
        ("resource_type", ResourceType),
        ("pattern_type", ResourcePatternType),
        ("operation", AclOperation),
        ("permission", AclPermissionType),
    ):
        if not isinstance(value := getattr(given, what), kind):
            raise InvalidArgumentError(f"{what}={value!r:.80}: must be a {kind.__name__}")


def wanted_filters(filters: Iterable[AclBindingFilter]) -> list[AclBindingFilter]:
    """Check the argument of ``delete_acls``. Raises InvalidArgumentError."""
    found = arguments.items("filters", filters, "AclBindingFilter")
    for each in found:
        _check_filter(each)
    return found


def wanted_filter(given: AclBindingFilter | None) -> AclBindingFilter:
    """Check the argument of ``describe_acls``; None selects all entries. Raises InvalidArgumentError."""
    return AclBindingFilter() if given is None else _check_filter(given)


def _check_filter(given: AclBindingFilter) -> AclBindingFilter:
    if not isinstance(given, AclBindingFilter):
        raise InvalidArgumentError(f"filter {given!r:.80}: must be an AclBindingFilter")
    _check_enums(given)
    for what in ("resource_name", "principal", "host"):
        if (value := getattr(given, what)) is not None:
            arguments.text(what, value)
    return given


async def create_acls(calls: AdminCalls, bindings: list[AclBinding], timeout: float | None) -> None:
    results: list[tuple[str, Any]] = []
    for page in pages(bindings, _ENTRIES):
        request = security_pb2.CreateAclsRequest()
        for binding in page:
            request.entries.add(
                resource_type=int(binding.resource_type),
                resource_name=binding.resource_name,
                pattern_type=int(binding.pattern_type),
                principal=binding.principal,
                host=binding.host,
                operation=int(binding.operation),
                permission=int(binding.permission),
            )
        answer = await calls.change("CreateAcls", request, timeout, service="security")
        results += [(str(binding), error) for binding, error in zip(page, answer.results, strict=True)]
    raise_failures(results)


async def describe_acls(calls: AdminCalls, wanted: AclBindingFilter, timeout: float | None) -> list[AclBinding]:
    request = security_pb2.DescribeAclsRequest(filter=_filter(wanted))
    answer = await calls.call("DescribeAcls", request, timeout, sees_own_writes=True, service="security")
    return [_binding(entry) for entry in answer.entries]


async def delete_acls(calls: AdminCalls, filters: list[AclBindingFilter], timeout: float | None) -> list[AclBinding]:
    removed: dict[AclBinding, None] = {}
    for page in pages(filters, _FILTERS):
        request = security_pb2.DeleteAclsRequest(filters=[_filter(each) for each in page])
        answer = await calls.change("DeleteAcls", request, timeout, service="security")
        for result in answer.results:
            raise_proto_error(result.error)
            removed.update(dict.fromkeys(map(_binding, result.removed)))
    return list(removed)


def _filter(wanted: AclBindingFilter) -> security_pb2.AclFilter:
    return security_pb2.AclFilter(
        resource_type=int(wanted.resource_type),  # type: ignore[arg-type]
        resource_name=wanted.resource_name,
        pattern_type=int(wanted.pattern_type),  # type: ignore[arg-type]
        principal=wanted.principal,
        host=wanted.host,
        operation=int(wanted.operation),  # type: ignore[arg-type]
        permission=int(wanted.permission),  # type: ignore[arg-type]
    )


def _binding(entry: Any) -> AclBinding:
    return AclBinding(
        resource_type=ResourceType(entry.resource_type),
        resource_name=entry.resource_name,
        pattern_type=ResourcePatternType(entry.pattern_type),
        principal=entry.principal,
        host=entry.host,
        operation=AclOperation(entry.operation),
        permission=AclPermissionType(entry.permission),
    )
