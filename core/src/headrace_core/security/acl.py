"""Access control entries (ACLs) and filters of them, with Kafka's rules.

An entry allows or denies one operation on a resource pattern to one principal from one host. ``AclRecord`` of the
metadata log is the entry; this module checks entries and matches filters.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidRequestError
from ..metadata.records import AclRecord
from .acl_types import (
    CLUSTER_NAME,
    HOST_CHARS_MAX,
    RESOURCE_CHARS_MAX,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_host,
)
from .principal import PRINCIPAL_CHARS_MAX, parse_principal


def check_entry(entry: AclRecord) -> AclRecord:
    """Return the entry with its host in canonical form. Raises InvalidRequestError, which names the field."""
    if entry.resource_type not in set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}:
        raise InvalidRequestError(f"resource type {entry.resource_type}: an entry needs a type, such as TOPIC")
    if entry.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequestError(f"pattern type {entry.pattern_type}: an entry is LITERAL or PREFIXED")
    if entry.operation not in set(Operation) - {Operation.UNKNOWN, Operation.ANY}:
        raise InvalidRequestError(f"operation {entry.operation}: an entry needs an operation, such as READ or ALL")
    if entry.permission not in (Permission.ALLOW, Permission.DENY):
        raise InvalidRequestError(f"permission {entry.permission}: an entry is ALLOW or DENY")
    if not entry.resource_name:
        raise InvalidRequestError("the resource name is empty; name the resource, or write * for all")
    _check_length("resource name", entry.resource_name, RESOURCE_CHARS_MAX)
    if entry.resource_type == ResourceType.CLUSTER and entry.resource_name != CLUSTER_NAME:
        raise InvalidRequestError(
            f"resource name {entry.resource_name[:60]!r}: the only resource of type CLUSTER is {CLUSTER_NAME}"
        )
    parse_principal(entry.principal)
    _check_length("host", entry.host, HOST_CHARS_MAX)
    host = parse_host(entry.host)
    return AclRecord(
        entry.acl_id,
        entry.resource_type,
        entry.resource_name,
        entry.pattern_type,
        entry.principal,
        WILDCARD if host is None else str(host),
        entry.operation,
        entry.permission,
    )


def _check_length(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidRequestError(f"{what} {text[:40]!r}… has {len(text)} characters, at most {most} are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Kafka's AclBindingFilter. A field that is None, or the member ANY of its enum, matches everything."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def check(self) -> None:
        """Raise InvalidRequestError for an unknown type, or a text that is too long."""
        for what, kind, value in (
            ("resource type", ResourceType, self.resource_type),
            ("pattern type", PatternType, self.pattern_type),
            ("operation", Operation, self.operation),
            ("permission", Permission, self.permission),
        ):
            if value == 0 or value not in set(kind):
                raise InvalidRequestError(f"{what} {value} of the filter is unknown; ANY matches every value")
        for what, text, most in (
            ("resource name", self.resource_name, RESOURCE_CHARS_MAX),
            ("principal", self.principal, PRINCIPAL_CHARS_MAX),
            ("host", self.host, HOST_CHARS_MAX),
        ):
            if text is not None:
                _check_length(what, text, most)

    def matches(self, entry: AclRecord) -> bool:
        """Whether the filter matches ``entry`` (Kafka's ResourcePatternFilter and AccessControlEntryFilter)."""
        return (
            self.resource_type in (ResourceType.ANY, entry.resource_type)
            and self._matches_pattern(entry)
            and (self.principal is None or self.principal == entry.principal)
            and (self.host is None or _same_host(self.host, entry.host))
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def _matches_pattern(self, entry: AclRecord) -> bool:
        name, wanted = self.resource_name, self.pattern_type
        if wanted not in (PatternType.ANY, PatternType.MATCH, entry.pattern_type):
            return False
        if name is None:
            return True
        if wanted != PatternType.MATCH:
            return name == entry.resource_name
        if entry.pattern_type == PatternType.PREFIXED:
            return name.startswith(entry.resource_name)
        return entry.resource_name in (name, WILDCARD)


def _same_host(wanted: str, host: str) -> bool:
    if wanted == host:
        return True
    try:
        parsed = parse_host(wanted)
    except InvalidRequestError:
        return False
    return parsed is not None and str(parsed) == host


def shown(entry: AclRecord) -> str:
    """The entry in words, such as ``ALLOW User:alice from * READ on PREFIXED topic orders``."""
    return (
        f"{Permission(entry.permission).name} {entry.principal} from {entry.host} {Operation(entry.operation).name} "
        f"on {PatternType(entry.pattern_type).name} {ResourceType(entry.resource_type).name.lower()} "
        f"{entry.resource_name}"
    )
