"""Access control entries, with the names of Kafka's admin client: AclBinding, AclBindingFilter and their enums."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.security.acl_types import CLUSTER_NAME, ResourceType
from headrace_core.security.acl_types import Operation as AclOperation
from headrace_core.security.acl_types import PatternType as ResourcePatternType
from headrace_core.security.acl_types import Permission as AclPermissionType

__all__ = [
    "CLUSTER_NAME",
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "ResourcePatternType",
    "ResourceType",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBinding:
    """One access control entry: it allows or denies ``operation`` on a resource pattern. ``principal`` is "User:alice",
    or "User:*" for all principals. ``host`` is an IP address, a network such as 10.0.0.0/8, or "*"."""

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    pattern_type: ResourcePatternType = ResourcePatternType.LITERAL
    permission: AclPermissionType = AclPermissionType.ALLOW
    host: str = "*"

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host} {self.operation.name} on "
            f"{self.pattern_type.name} {self.resource_type.name} {self.resource_name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBindingFilter:
    """Selects access control entries. A field that is None or ANY matches every entry. The pattern type MATCH selects
    all entries that apply to the resource ``resource_name``: entries with this name, with a prefix of this name, and
    with the name "*"."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: ResourcePatternType = ResourcePatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY
