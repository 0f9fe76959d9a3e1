"""The terms of quotas: entities, keys, values and filters, with the checks of Kafka's controller (KIP-546)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import InvalidRequestError
from ..metadata.security import QuotaEntity
from ..security.acl_types import plain_address

USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (CLIENT_ID, IP, USER)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
#: The quotas of users and client ids, and of IP addresses.
CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
IP_KEYS = (CONNECTION_CREATION_RATE,)
QUOTA_KEYS = (*CLIENT_KEYS, *IP_KEYS)
#: Quotas whose values Kafka stores as whole numbers.
WHOLE_KEYS = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE})
_WHOLE_MAX = {CONNECTION_CREATION_RATE: 2**31 - 1}
_NEARLY = 1e-6

NAME_CHARS_MAX = 1_024
#: Metadata key of a call of a node, which has no quotas, on a listener without security.
COUNTED_KEY = "headrace-counted"


def shown_entity(entity: QuotaEntity) -> str:
    """An entity as text, such as ``user=alice, client-id=<default>``."""
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity)


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity with its parts sorted by type. Raises InvalidRequestError for an invalid entity: without parts,
    with an unknown type, a type twice, an empty name, an invalid address, or an ip together with another type."""
    named: dict[str, str | None] = {}
    for kind, name in parts:
        _check_type(kind)
        if kind in named:
            raise InvalidRequestError(f"the quota entity has two parts of the type {kind}")
        named[kind] = None if name is None else _checked_name(kind, name)
    if not named:
        raise InvalidRequestError("the quota entity has no parts; name a user, a client-id, both, or an ip")
    if IP in named and len(named) > 1:
        raise InvalidRequestError("a quota entity with an ip cannot also have a user or a client-id")
    return tuple(sorted(named.items()))


def checked_value(entity: QuotaEntity, key: str, value: float) -> float:
    """Return the value of a quota as it is stored. Raises InvalidRequestError for a key that the entity cannot have,
    and for a value that is not above 0, or has a fraction where Kafka has whole numbers."""
    check_key(entity, key)
    if not math.isfinite(value) or value <= 0:
        raise InvalidRequestError(
            f"{shown_entity(entity)}: {key}={value:g} must be above 0; remove the quota for no limit"
        )
    if key not in WHOLE_KEYS:
        return float(value)
    whole = math.floor(value + _NEARLY)
    if abs(whole - value) > _NEARLY or whole < 1:
        raise InvalidRequestError(f"{shown_entity(entity)}: {key}={value!r} must be a whole number")
    most = _WHOLE_MAX.get(key, 2**63 - 1)
    if whole > most:
        raise InvalidRequestError(f"{shown_entity(entity)}: {key}={value:g} is above {most}")
    return float(whole)


def check_key(entity: QuotaEntity, key: str) -> None:
    """Raise InvalidRequestError unless the entity can have a quota of this key."""
    keys = IP_KEYS if entity[0][0] == IP else CLIENT_KEYS
    if key not in keys:
        raise InvalidRequestError(f"{shown_entity(entity)}: quota key {key[:100]!r} is not one of {', '.join(keys)}")


def _check_type(kind: str) -> None:
    if kind not in TYPES:
        raise InvalidRequestError(f"quota entity type {kind[:100]!r} is not one of {USER}, {CLIENT_ID}, {IP}")


def _checked_name(kind: str, name: str) -> str:
    if not name:
        raise InvalidRequestError(
            f"the quota entity has an empty {kind}; leave the name out for the default of {kind}s"
        )
    if len(name) > NAME_CHARS_MAX:
        raise InvalidRequestError(f"the quota entity's {kind} has {len(name)} characters, at most {NAME_CHARS_MAX}")
    if kind != IP:
        return name
    address = canonical_ip(name)
    if address is None:
        raise InvalidRequestError(f"{name[:100]!r} is not an IP address; quotas of connections need an address")
    return address


def canonical_ip(text: str) -> str | None:
    """Return an address in the notation of ``plain_address``. None if ``text`` is no address."""
    try:
        return str(plain_address(text))
    except ValueError:
        return None


# -- filters -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilterPart:
    """The part of a filter for one type of entity, such as user. The part matches only ``name``, only the type's
    default (``is_default``), or, without both, any name."""

    kind: str
    name: str | None = None
    is_default: bool = False

    def matches(self, name: str | None) -> bool:
        if self.is_default:
            return name is None
        return self.name is None or name == self.name


def checked_filter(parts: Sequence[FilterPart]) -> tuple[FilterPart, ...]:
    """Return the parts of a filter. Raises InvalidRequestError for an unknown type, a type twice, an empty name, and an
    ip together with another type."""
    kinds = [part.kind for part in parts]
    for kind in kinds:
        _check_type(kind)
        if kinds.count(kind) > 1:
            raise InvalidRequestError(f"the filter of quotas has two parts of the type {kind}")
    if IP in kinds and len(kinds) > 1:
        raise InvalidRequestError("a filter of quotas with an ip cannot also have a user or a client-id")
    return tuple(
        part if part.name is None else FilterPart(part.kind, _checked_name(part.kind, part.name)) for part in parts
    )


def matches(entity: QuotaEntity, parts: Sequence[FilterPart], *, strict: bool) -> bool:
    """Whether a filter selects an entity: each part of the filter matches a part of the entity. With ``strict`` the
    entity has no further parts."""
    named = dict(entity)
    if strict and len(named) != len(parts):
        return False
    return all(part.kind in named and part.matches(named[part.kind]) for part in parts)
