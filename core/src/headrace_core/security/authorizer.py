"""The authorizer: what a caller may do, by Kafka's rules (StandardAuthorizer). Pure.

1. A super user may do everything.
2. Entries that concern the resource: the literal pattern with its name, the literal ``*``, and prefixed patterns of
   which its name begins. Of these, the entries for the caller's principal or ``User:*``, and for the caller's host.
3. One of them denies the operation, or ALL: refused. A denied operation denies no other one.
4. One of them allows the operation, ALL, or an operation that implies it (READ, WRITE, DELETE and ALTER imply
   DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS): allowed.
5. No entry concerns the resource, for any principal: ``allow.everyone.if.no.acl.found`` decides. Otherwise refused.

Index: patterns by name, in each pattern the principals, in each principal the hosts; the leaves are bit masks of
operations. A check visits only the patterns of one name. The outcome for a caller and a resource (all
operations at once) is kept, so that a repeated check is one look-up. An authorizer never changes: a changed ACL makes
another one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..metadata.records import AclRecord
from .acl_types import (
    EVERYBODY,
    IMPLIED,
    OPERATIONS_OF,
    WILDCARD,
    Address,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_host,
    plain_address,
)
from .caller import Caller

#: Maximum number of kept outcomes. When it is reached, all are dropped: names are a caller's choice.
KEPT_MAX = 10_000
#: Longest name, in characters, of which the outcome is kept. A name in a request may have 32,767 bytes, and 10,000
#: outcomes of such names would use 320 MiB.
KEPT_CHARS_MAX = 255

_EVERYTHING = 0
for _each in Operation:
    if _each not in (Operation.UNKNOWN, Operation.ANY):
        _EVERYTHING |= 1 << _each


def _mask(operation: int, *, allowed: bool) -> int:
    if operation == Operation.ALL:
        return _EVERYTHING
    implied = IMPLIED.get(Operation(operation)) if allowed else None
    return 1 << operation | (0 if implied is None else 1 << implied)


class _Masks:
    """Denied and allowed operations of one principal, by host."""

    __slots__ = ("all_hosts", "hosts", "networks")

    def __init__(self) -> None:
        self.all_hosts = [0, 0]
        self.hosts: dict[Address, list[int]] = {}
        #: By (IP version, length of the prefix): masks by the network's address shifted right.
        self.networks: dict[tuple[int, int], dict[int, list[int]]] = {}

    def add(self, host: str, index: int, mask: int) -> None:
        parsed = parse_host(host)
        if parsed is None:
            masks = self.all_hosts
        elif isinstance(parsed, ipaddress.IPv4Network | ipaddress.IPv6Network):
            key = parsed.version, parsed.max_prefixlen - parsed.prefixlen
            masks = self.networks.setdefault(key, {}).setdefault(int(parsed.network_address) >> key[1], [0, 0])
        else:
            masks = self.hosts.setdefault(parsed, [0, 0])
        masks[index] |= mask

    def of(self, address: Address | None) -> tuple[int, int]:
        denied, allowed = self.all_hosts
        if address is None:  # an unknown address may be any address that is denied
            for masks in (*self.hosts.values(), *(each for table in self.networks.values() for each in table.values())):
                denied |= masks[0]
        elif self.hosts or self.networks:
            found = self.hosts.get(address)
            if found is not None:
                denied, allowed = denied | found[0], allowed | found[1]
            for (version, shift), networks in self.networks.items():
                if version == address.version and (found := networks.get(int(address) >> shift)) is not None:
                    denied, allowed = denied | found[0], allowed | found[1]
        return denied, allowed


_Pattern = dict[str, _Masks]  # by principal


@dataclass(slots=True)
class _Patterns:
    """The patterns of one type of resource. ``lengths``: the lengths of the prefixed ones, ascending."""

    literal: dict[str, _Pattern] = field(default_factory=dict)
    prefixed: dict[str, _Pattern] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()

    def concerning(self, name: str) -> list[_Pattern]:
        found = []
        if (pattern := self.literal.get(name)) is not None:
            found.append(pattern)
        if name != WILDCARD and (pattern := self.literal.get(WILDCARD)) is not None:
            found.append(pattern)
        size = len(name)
        for length in self.lengths:
            if length > size:
                break
            if (pattern := self.prefixed.get(name[:length])) is not None:
                found.append(pattern)
        return found


class Authorizer:
    """Decides by a set of entries. ``super_users``: principals such as ``User:admin``. ``allow_everyone``: whether
    resources without any entry are open to all (allow.everyone.if.no.acl.found)."""

    def __init__(
        self, entries: Iterable[AclRecord] = (), super_users: Iterable[str] = (), *, allow_everyone: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self.names_hosts = False
        self._types: dict[int, _Patterns] = {}
        for entry in entries:
            patterns = self._types.setdefault(entry.resource_type, _Patterns())
            table = patterns.prefixed if entry.pattern_type == PatternType.PREFIXED else patterns.literal
            masks = table.setdefault(entry.resource_name, {}).setdefault(entry.principal, _Masks())
            allowed = entry.permission == Permission.ALLOW
            self.names_hosts = self.names_hosts or entry.host != "*"
            masks.add(entry.host, int(allowed), _mask(entry.operation, allowed=allowed))
        for patterns in self._types.values():
            patterns.lengths = tuple(sorted({len(name) for name in patterns.prefixed}))
        self._kept: dict[tuple[str, str, str, int, str], int] = {}

    def allows(self, caller: Caller, operation: int, resource_type: int, name: str) -> bool:
        """Whether ``caller`` may do ``operation`` on the resource."""
        principal = caller.principal
        key = principal.kind, principal.name, caller.host, resource_type, name
        mask = self._kept.get(key)
        if mask is None:
            mask = self._decided(key)
        return bool(mask >> operation & 1)

    def allows_any(self, caller: Caller, operation: int, resource_type: int) -> bool:
        """Whether some name exists for which ``caller`` may do ``operation`` (Kafka's authorizeByResourceType)."""
        principal = str(caller.principal)
        if principal in self._super_users:
            return True
        patterns = self._types.get(resource_type, _Patterns())
        address = _address_of(caller.host)
        bit = 1 << operation

        def having(table: Mapping[str, _Pattern], index: int) -> set[str]:
            return {name for name, pattern in table.items() if _masks_of(pattern, principal, address)[index] & bit}

        denied_names, denied_prefixes = having(patterns.literal, 0), having(patterns.prefixed, 0)
        if WILDCARD in denied_names:
            return False
        allowed_names, allowed_prefixes = having(patterns.literal, 1), having(patterns.prefixed, 1)
        if WILDCARD in allowed_names or (self._allow_everyone and WILDCARD not in patterns.literal):
            return True  # entries are finite: some name has none that denies it, or none at all

        def is_denied(text: str) -> bool:
            return any(text[:length] in denied_prefixes for length in range(1, len(text) + 1))

        return any(name not in denied_names and not is_denied(name) for name in allowed_names) or any(
            not is_denied(prefix) for prefix in allowed_prefixes
        )

    def authorized_operations(self, caller: Caller, resource_type: int, name: str) -> frozenset[Operation]:
        """All operations on the resource that ``caller`` may do (KIP-430)."""
        return frozenset(
            operation
            for operation in OPERATIONS_OF[ResourceType(resource_type)]
            if self.allows(caller, operation, resource_type, name)
        )

    def _decided(self, key: tuple[str, str, str, int, str]) -> int:
        kind, principal, host, resource_type, name = key
        mask = self._decide(f"{kind}:{principal}", host, resource_type, name)
        if len(name) > KEPT_CHARS_MAX:
            return mask
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[key] = mask
        return mask

    def _decide(self, principal: str, host: str, resource_type: int, name: str) -> int:
        """The mask of the operations that are allowed."""
        if principal in self._super_users:
            return _EVERYTHING
        patterns = self._types.get(resource_type)
        concerning = patterns.concerning(name) if patterns is not None else []
        if not concerning:
            return _EVERYTHING if self._allow_everyone else 0
        address = _address_of(host)
        denied = allowed = 0
        for pattern in concerning:
            more_denied, more_allowed = _masks_of(pattern, principal, address)
            denied, allowed = denied | more_denied, allowed | more_allowed
        return allowed & ~denied


def _masks_of(pattern: _Pattern, principal: str, address: Address | None) -> tuple[int, int]:
    denied = allowed = 0
    for key in (principal, EVERYBODY):
        if (masks := pattern.get(key)) is not None:
            more_denied, more_allowed = masks.of(address)
            denied, allowed = denied | more_denied, allowed | more_allowed
    return denied, allowed


def _address_of(host: str) -> Address | None:
    """The caller's address; None when it is unknown. Only entries for all hosts allow then, and entries for any host
    deny."""
    try:
        return plain_address(host)
    except ValueError:
        return None
