"""The authorizer: what a caller may do, by Kafka's rules (StandardAuthorizer). Pure.

1. A super user may do everything.
2. The following rules use the entries that apply to the resource: its literal pattern, the literal ``*``, and the
   prefixed patterns with which its name begins. Of these entries, only those for the caller's principal or ``User:*``,
   and for the caller's host, count.
3. If one of these entries denies the operation or ALL, the operation is refused. A DENY entry for one operation does
   not deny other operations.
4. If one of these entries allows the operation, ALL, or an operation that implies the operation, the operation is
   allowed. READ, WRITE, DELETE and ALTER imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS.
5. If no entry applies to the resource, for any principal, ``allow.everyone.if.no.acl.found`` decides. In all other
   cases the operation is refused.

The index maps a name to its pattern, and in each pattern a principal and a host to bit masks of operations. A check
visits only the patterns that apply to one name. The outcome for a caller and a resource (all operations at once) is
cached. Sets of the names on which a caller may do an operation are cached too (``granted``). For a request with many
topics, a repeated check is one look-up in such a set.

An authorizer never changes: changed ACLs need a new authorizer. The new authorizer shares the unchanged patterns with
the old one (``changed``), so a change of 1 of 10,000 entries does not read the 9,999 others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

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

#: Maximum number of cached outcomes, and of names in sets. At the maximum the whole cache is emptied. Without a
#: maximum, callers could fill the memory, because they choose the names.
KEPT_MAX = 10_000
#: Longest name, in characters, whose outcome is cached. A name in a request may have 32,767 bytes, and 10,000
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
    """Denied and allowed operations of one principal on one pattern, by host. ``entries``: the ACLs from which the
    masks are made."""

    __slots__ = ("all_hosts", "entries", "hosts", "networks")

    def __init__(self, entries: list[AclRecord]) -> None:
        self.entries = entries
        self.all_hosts = [0, 0]
        self.hosts: dict[Address, list[int]] = {}
        #: The permissions of networks. Key: (IP version, prefix length). Value: maps a network's address, shifted
        #: right, to the network's masks.
        self.networks: dict[tuple[int, int], dict[int, list[int]]] = {}
        for entry in entries:
            allowed = entry.permission == Permission.ALLOW
            self._add(entry.host, int(allowed), _mask(entry.operation, allowed=allowed))

    def _add(self, host: str, index: int, mask: int) -> None:
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


class _Place(NamedTuple):
    """The position of an ACL entry in the authorizer's index."""

    resource_type: int
    is_prefixed: bool
    name: str
    principal: str

    @classmethod
    def of(cls, entry: AclRecord) -> _Place:
        is_prefixed = entry.pattern_type == PatternType.PREFIXED
        return cls(entry.resource_type, is_prefixed, entry.resource_name, entry.principal)


@dataclass(slots=True)
class _Patterns:
    """The patterns of one type of resource. ``lengths``: the lengths of the prefixed patterns, ascending."""

    literal: dict[str, _Pattern] = field(default_factory=dict)
    prefixed: dict[str, _Pattern] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()

    def copy(self) -> _Patterns:
        return _Patterns(dict(self.literal), dict(self.prefixed), self.lengths)

    def put(self, place: _Place, entries: list[AclRecord]) -> None:
        """Replace the entries at a position of the index. The pattern is copied before the change, because other
        indexes share it."""
        table = self.prefixed if place.is_prefixed else self.literal
        pattern = dict(table.get(place.name, {}))
        if entries:
            pattern[place.principal] = _Masks(entries)
        else:
            pattern.pop(place.principal, None)
        if pattern:
            table[place.name] = pattern
        else:
            table.pop(place.name, None)

    def entries(self, place: _Place) -> list[AclRecord]:
        table = self.prefixed if place.is_prefixed else self.literal
        masks = table.get(place.name, {}).get(place.principal)
        return [] if masks is None else list(masks.entries)

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
    """Decides access by a set of entries. ``super_users``: principals such as ``User:admin``. ``allow_everyone``:
    whether resources without any entry are open to all (allow.everyone.if.no.acl.found)."""

    def __init__(
        self, entries: Iterable[AclRecord] = (), super_users: Iterable[str] = (), *, allow_everyone: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self._with_hosts = 0  # entries for single hosts and networks
        self._types: dict[int, _Patterns] = {}
        by_place: dict[_Place, list[AclRecord]] = {}
        for entry in entries:
            by_place.setdefault(_Place.of(entry), []).append(entry)
            self._with_hosts += entry.host != WILDCARD
        for place, found in by_place.items():
            patterns = self._types.setdefault(place.resource_type, _Patterns())
            table = patterns.prefixed if place.is_prefixed else patterns.literal
            table.setdefault(place.name, {})[place.principal] = _Masks(found)
        self._forget()

    def _forget(self) -> None:
        for patterns in self._types.values():
            patterns.lengths = tuple(sorted({len(name) for name in patterns.prefixed}))
        self._kept: dict[tuple[str, str, str, int, str], int] = {}
        self._granted: dict[tuple[str, str, str, int, int], set[str]] = {}
        self._granted_names = 0
        self._any: dict[tuple[str, str, str, int, int], bool] = {}

    def changed(self, removed: Iterable[AclRecord], added: Iterable[AclRecord]) -> Authorizer:
        """Return the authorizer of these entries without ``removed`` and with ``added``. Raises ValueError if an entry
        in ``removed`` is missing."""
        found: dict[_Place, list[AclRecord]] = {}
        with_hosts = self._with_hosts

        def at(entry: AclRecord) -> list[AclRecord]:
            place = _Place.of(entry)
            entries = found.get(place)
            if entries is None:
                entries = found[place] = self._types.get(place.resource_type, _Patterns()).entries(place)
            return entries

        for entry in removed:
            at(entry).remove(entry)
            with_hosts -= entry.host != WILDCARD
        for entry in added:
            at(entry).append(entry)
            with_hosts += entry.host != WILDCARD
        changed = Authorizer((), self._super_users, allow_everyone=self._allow_everyone)
        changed._with_hosts = with_hosts
        touched = {place.resource_type for place in found}
        changed._types = {kind: each.copy() if kind in touched else each for kind, each in self._types.items()}
        for place, entries in found.items():
            changed._types.setdefault(place.resource_type, _Patterns()).put(place, entries)
        changed._forget()
        return changed

    @property
    def names_hosts(self) -> bool:
        """Whether a decision can depend on the caller's host."""
        return self._with_hosts > 0

    def granted(self, caller: Caller, operation: int, resource_type: int) -> Set[str]:
        """Names of resources on which earlier calls of ``allows`` have allowed ``caller`` to do ``operation``; the set
        may lack further allowed names. The set grows with each decision, and is emptied when it gets too large."""
        principal = caller.principal
        key = principal.kind, principal.name, caller.host, operation, resource_type
        found = self._granted.get(key)
        return self._grants(key) if found is None else found

    def _grants(self, key: tuple[str, str, str, int, int]) -> set[str]:
        if len(self._granted) >= KEPT_MAX:
            self._granted.clear()
        found = self._granted[key] = set()
        return found

    def allows(self, caller: Caller, operation: int, resource_type: int, name: str) -> bool:
        """Whether ``caller`` may do ``operation`` on the resource."""
        principal = caller.principal
        key = principal.kind, principal.name, caller.host, operation, resource_type
        granted = self._granted.get(key)
        if granted is not None and name in granted:
            return True
        return self._allowed(key, name)

    def _allowed(self, key: tuple[str, str, str, int, int], name: str) -> bool:
        kind, principal, host, operation, resource_type = key
        of_resource = kind, principal, host, resource_type, name
        mask = self._kept.get(of_resource)
        if mask is None:
            mask = self._decided(of_resource)
        is_allowed = bool(mask >> operation & 1)
        if is_allowed and len(name) <= KEPT_CHARS_MAX:
            self._grant(key, name)
        return is_allowed

    def _grant(self, key: tuple[str, str, str, int, int], name: str) -> None:
        if self._granted_names >= KEPT_MAX:
            self._granted_names = 0
            for names in self._granted.values():
                names.clear()
        self._granted_names += 1
        found = self._granted.get(key)
        (self._grants(key) if found is None else found).add(name)

    def allows_any(self, caller: Caller, operation: int, resource_type: int) -> bool:
        """Whether some name exists for which ``caller`` may do ``operation`` (Kafka's authorizeByResourceType). The
        first answer takes 0.5 µs for each pattern of the type, so the answers are kept."""
        host = caller.host if self._with_hosts else ""
        key = caller.principal.kind, caller.principal.name, host, operation, resource_type
        found = self._any.get(key)
        if found is None:
            if len(self._any) >= KEPT_MAX:
                self._any.clear()
            found = self._any[key] = self._allows_any(caller, operation, resource_type)
        return found

    def _allows_any(self, caller: Caller, operation: int, resource_type: int) -> bool:
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
            return True  # the number of entries is finite, so some name has no DENY entry, or no entry at all

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
    """The caller's address; None if it is unknown: then only entries for all hosts (``*``) can allow an operation, and
    a denying entry with any host denies the operation."""
    try:
        return plain_address(host)
    except ValueError:
        return None
