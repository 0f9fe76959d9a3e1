"""Listeners: ``client://127.0.0.1:9095,internal://127.0.0.1:19095``.

The listener *client* is for clients, and the listener *internal* is only for other nodes. The listener *external* is
for clients that reach the nodes by other addresses, for example from outside a network of containers. Metadata
responses on the external listener have the external addresses. Further listeners for clients have names that begin with
client or external, such as *clientsasl*: these listeners serve the same clients with another security protocol. A
listener whose name begins with *kafka* speaks Kafka's protocol, and only brokers have it. Controllers have only the
listeners client and internal. Port 0 means any free port, which the node then advertises.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import InvalidConfigError

CLIENT = "client"
INTERNAL = "internal"
EXTERNAL = "external"
KAFKA = "kafka"

_ADDRESS = re.compile(r"(?P<name>[A-Za-z0-9_-]+)://(?P<host>\[[0-9a-fA-F:.]*\]|[^\[\]:/]*):(?P<port>\d{1,5})\Z")
_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:/@\s]+):(?P<port>\d{1,5})\Z")
_VOTER = re.compile(r"(?P<id>\d+)@(?P<address>.+)\Z")
_WILDCARDS = ("", "0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """Name, host and port of one listener; ``host`` keeps the brackets of an IPv6 address."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.host}:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of the metadata quorum, written as ``1@127.0.0.1:19093``."""

    node_id: int
    address: str


def serves_clients(name: str) -> bool:
    """Whether the listener of this name is for clients that connect to the node itself."""
    return name.startswith((CLIENT, EXTERNAL))


def speaks_kafka(name: str) -> bool:
    """Whether the listener of this name is for Kafka's clients, in Kafka's protocol. Only brokers have such
    listeners."""
    return name.startswith(KAFKA)


def parse_listeners(
    items: Iterable[str], *, key: str = "listeners", any_name: bool = False
) -> tuple[ListenerAddress, ...]:
    """Parse the listeners of a configuration value; InvalidConfigError names the item and the legal form. ``any_name``:
    take any name, which is in upper case in the result, as in Kafka; otherwise names are in lower case."""
    found: list[ListenerAddress] = []
    for item in items:
        match = _ADDRESS.match(item)
        if match is None:
            example = "PLAINTEXT://127.0.0.1:9092" if any_name else "client://127.0.0.1:9095"
            raise InvalidConfigError(f"{key}={item}: write name://host:port, such as {example}")
        name = match["name"].upper() if any_name else match["name"].lower()
        if not any_name and not _is_known(name):
            raise InvalidConfigError(
                f"{key}={item}: unknown listener name {match['name']}; must be client (for clients), external (for "
                "clients outside of the nodes' network), kafka (for Kafka's clients), a longer name that begins like "
                "these, such as clientsasl, or internal (for nodes)"
            )
        if any(other.name == name for other in found):
            raise InvalidConfigError(f"{key}={item}: listener {name} is given twice")
        found.append(ListenerAddress(name, match["host"], check_port(key, item, match["port"])))
    ports = [listener.address for listener in found if listener.port]
    if len(set(ports)) != len(ports):
        raise InvalidConfigError(f"{key}={','.join(map(str, found))}: two listeners have the same address")
    return tuple(found)


def _is_known(name: str) -> bool:
    return serves_clients(name) or speaks_kafka(name) or name == INTERNAL


def check_port(key: str, item: str, text: str) -> int:
    port = int(text)
    if port > 65535:
        raise InvalidConfigError(f"{key}={item}: port {port} is above 65535")
    return port


def parse_addresses(items: Iterable[str], *, key: str) -> tuple[str, ...]:
    """Check that items have the form ``host:port``."""
    found = []
    for item in items:
        match = _HOST_PORT.match(item)
        if match is None or check_port(key, item, match["port"]) == 0:
            raise InvalidConfigError(f"{key}={item}: write host:port, such as 127.0.0.1:19093")
        found.append(item)
    return tuple(found)


def parse_voters(items: Iterable[str]) -> tuple[Voter, ...]:
    """Parse the ``id@host:port`` items of controller.quorum.voters; ids must be distinct."""
    key = "controller.quorum.voters"
    voters: list[Voter] = []
    for item in items:
        match = _VOTER.match(item)
        if match is None:
            raise InvalidConfigError(f"{key}={item}: write id@host:port, such as 1@127.0.0.1:19093")
        (address,) = parse_addresses([match["address"]], key=key)
        if any(voter.node_id == int(match["id"]) for voter in voters):
            raise InvalidConfigError(f"{key}={item}: voter {match['id']} is given twice")
        voters.append(Voter(int(match["id"]), address))
    return tuple(voters)


def advertised(bound: Sequence[ListenerAddress], wanted: Sequence[ListenerAddress]) -> tuple[ListenerAddress, ...]:
    """Return the addresses that a node publishes, from its bound addresses (with real ports) and
    ``advertised.listeners``.

    Without an entry in ``advertised.listeners``, a node publishes the address to which the listener is bound. For a
    listener bound to all addresses, the node publishes the machine's host name. An advertised port 0 means the bound
    port.
    """
    by_name = {listener.name: listener for listener in wanted}
    addresses = []
    for listener in bound:
        want = by_name.get(listener.name)
        if want is not None:
            addresses.append(ListenerAddress(listener.name, want.host, want.port or listener.port))
        elif listener.host in _WILDCARDS:
            addresses.append(ListenerAddress(listener.name, socket.gethostname(), listener.port))
        else:
            addresses.append(listener)
    return tuple(addresses)


def check_advertised(
    listeners: Sequence[ListenerAddress], wanted: Sequence[ListenerAddress], *, prefix: str = ""
) -> None:
    """Raise InvalidConfigError unless each advertised listener exists and can be connected to. ``prefix``: the text
    before "listeners" and "advertised.listeners" in the names of the keys."""
    names = {listener.name for listener in listeners}
    for listener in wanted:
        if listener.name not in names:
            raise InvalidConfigError(
                f"{prefix}advertised.listeners={listener}: {prefix}listeners does not have this listener"
            )
        if listener.host in _WILDCARDS:
            raise InvalidConfigError(
                f"{prefix}advertised.listeners={listener}: clients cannot connect to "
                f"{listener.host or 'an empty host'}; name a host that they can reach"
            )
