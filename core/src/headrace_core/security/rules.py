"""Access rules of calls, from the option ``access`` of each method in the protos."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from google.protobuf import descriptor_pool

from headrace_protos.v1 import access_pb2

from .acl_types import CLUSTER_NAME, Operation, ResourceType


@dataclass(frozen=True, slots=True)
class Rule:
    """One requirement of a call, with the fields of AccessRule in access.proto; ``path`` is AccessRule's ``field``,
    split at the dots."""

    operation: Operation
    resource: ResourceType
    path: tuple[str, ...]
    each: bool
    alternative: bool

    @property
    def is_any(self) -> bool:
        """Whether the right on any resource of the type is enough (authorizeByResourceType)."""
        return not self.path and self.resource is not ResourceType.CLUSTER

    def names(self, request: Any) -> Iterator[str]:
        """The names of the resources in ``request``."""
        if not self.path:
            return iter((CLUSTER_NAME,))
        return values_at(request, self.path)


@dataclass(frozen=True, slots=True)
class MethodAccess:
    """The callers that one method allows; see Access in access.proto. ``method`` is "Service/Method"."""

    method: str
    rules: tuple[Rule, ...]
    is_open: bool
    is_authenticated: bool
    roles: frozenset[str]
    #: The rules for the call as a whole: if one of these rules refuses the caller, the call fails.
    of_call: tuple[Rule, ...] = field(init=False)
    alternatives: tuple[Rule, ...] = field(init=False)

    def __post_init__(self) -> None:
        of_call = tuple(rule for rule in self.rules if not rule.each and not rule.alternative)
        object.__setattr__(self, "of_call", of_call)
        object.__setattr__(self, "alternatives", tuple(rule for rule in self.rules if rule.alternative))


def values_at(message: Any, path: tuple[str, ...]) -> Iterator[str]:
    """The texts at a dotted path of a message; a repeated field stands for all of its elements."""
    value = getattr(message, path[0])
    found = (value,) if isinstance(value, str) or hasattr(value, "DESCRIPTOR") else value
    for each in found:
        if len(path) == 1:
            yield each
        else:
            yield from values_at(each, path[1:])


@cache
def access_of(path: str) -> MethodAccess | None:
    """Return the access rules of the method "/headrace.v1.Admin/CreateTopics"; None for a method without rules, which
    must not be served, and for services of libraries."""
    service, _, method = path.removeprefix("/").partition("/")
    try:
        found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
    except KeyError:
        return None
    options: Any = found.GetOptions()
    if not options.HasExtension(access_pb2.access):
        return None
    access = options.Extensions[access_pb2.access]
    rules = tuple(
        Rule(
            Operation(rule.operation),
            ResourceType(rule.resource),
            tuple(rule.field.split(".")) if rule.field else (),
            rule.each,
            rule.alternative,
        )
        for rule in access.rules
    )
    name = f"{service.rpartition('.')[2]}/{method}"
    return MethodAccess(name, rules, access.open, access.authenticated, frozenset(access.roles))
