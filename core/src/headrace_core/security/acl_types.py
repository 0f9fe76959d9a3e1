"""The terms of access control: operations, types of resources, patterns and hosts, with Kafka's names and numbers.

A pattern is *literal* (one name, or ``*`` for every name) or *prefixed* (every name that begins with it; KIP-290). A
host is an IP address, a network such as 10.0.0.0/8, or ``*``. Clients use this module too, so it does not import the
package ``metadata``.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote

from ..errors import InvalidRequestError


class Operation(enum.IntEnum):
    """Kafka's AclOperation. ANY occurs in filters only; ALL contains every operation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(enum.IntEnum):
    """Kafka's ResourceType. ANY occurs in filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """Kafka's PatternType. ANY and MATCH occur in filters only; MATCH finds all patterns that apply to a name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(enum.IntEnum):
    """Kafka's AclPermissionType. ANY occurs in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD = "*"  #: Stands for every name in a literal pattern, and for every host.
EVERYBODY = "User:*"  #: The principal of ACL entries that apply to all principals.
CLUSTER_NAME = "kafka-cluster"  #: The only resource of type CLUSTER.
#: Maximum lengths of a resource's name and of a host, in characters. Kafka has only its protocol's maximum length of a
#: string.
RESOURCE_CHARS_MAX, HOST_CHARS_MAX = 1_024, 64
#: Maximum number of entries of a cluster: every node keeps all of them in memory, at about 600 bytes each.
ACLS_MAX = 100_000

#: The operations that exist for each type of resource (Kafka's AclEntry.supportedOperations).
OPERATIONS_OF: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}

#: Maps an operation to the operation that it implies, as in Kafka: a permission for READ includes DESCRIBE.
IMPLIED: Mapping[Operation, Operation] = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_host(host: str) -> Address | Network | None:
    """Parse the host of an entry; None for ``*``. Raises InvalidRequestError for a host name: an entry with a host name
    would never match, so a DENY entry with it would deny nothing."""
    if host == WILDCARD:
        return None
    try:
        if "/" in host:
            return _parse_network(host)
        return plain_address(host)
    except ValueError:
        raise InvalidRequestError(
            f"host {host[:HOST_CHARS_MAX]!r}: write an IP address, a network such as 10.0.0.0/8, or * for all"
        ) from None


def _parse_network(text: str) -> Network:
    """Parse a network by the rules of KIP-1276: after the slash is a length, not a mask, and 10.0.0.1/8 means
    10.0.0.0/8. As for addresses, a zone is lost, and an IPv4 network in IPv6 form becomes the IPv4 network, because
    clients' addresses do too. Raises ValueError."""
    address, _, length = text.partition("/")
    if not (length.isascii() and length.isdigit()):
        raise ValueError(text)
    parsed = plain_address(address)
    is_mapped = parsed.version == 4 and ":" in address
    return ipaddress.ip_network((parsed, int(length) - 96 * is_mapped), strict=False)


def plain_address(text: str) -> Address:
    """Parse an IP address. An IPv4 address in IPv6 form (::ffff:10.0.0.1) becomes the IPv4 address. A link-local
    address loses its zone (fe80::1%eth0): the zone names an interface of this node, so no entry can name it for all
    nodes. Raises ValueError."""
    address = ipaddress.ip_address(text)
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address.scope_id is not None:
        address = ipaddress.IPv6Address(int(address))
    mapped = address.ipv4_mapped
    return address if mapped is None else mapped


def network_of(host: str) -> str:
    """The part of a client's address by which clients without a login are limited: for IPv6 the /64 network, because
    one machine may use all of its addresses. A text that is no address stays as it is."""
    try:
        address = plain_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def host_of(peer: str) -> str:
    """The IP address in gRPC's name of a connection: ``ipv4:127.0.0.1:4711``, ``ipv6:[::1]:4711``."""
    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return canonical_host(address.rpartition(":")[0].strip("[]"))


def canonical_host(host: str) -> str:
    """The address as ACLs name it; "" for a text that is no address."""
    try:
        return str(plain_address(host.partition("%")[0]))
    except ValueError:
        return ""
