"""Limits on the connections of one address: max.connections.per.ip and max.connections.per.ip.overrides (KIP-308).

A listener counts an address while its connections are open, and refuses a connection above the limit. gRPC accepts
connections before Headrace's code runs, so its listeners count the connections that have a call in progress
(``rpc.server``).
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .config.definition import INT_MAX
from .errors import InvalidConfigError
from .security.acl_types import plain_address

PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"


@dataclass(frozen=True, slots=True)
class AddressLimits:
    """How many connections an address may have. ``overrides``: the limits of single addresses."""

    per_ip: int = INT_MAX
    overrides: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> AddressLimits:
        """Read the limits from a node's configuration. Raises InvalidConfigError, also for a host name without an
        address: Kafka looks the names up once, at the start."""
        per_ip, overrides = values[PER_IP], _overrides(values[OVERRIDES])
        if not per_ip and not overrides:
            raise InvalidConfigError(
                f"{PER_IP}=0 refuses every connection: set {OVERRIDES} for the addresses that may connect, or a limit"
            )
        return cls(per_ip, overrides)

    def most(self, host: str) -> int:
        """The limit of connections of ``host``."""
        return self.overrides.get(host, self.per_ip) if self.overrides else self.per_ip

    @property
    def are_set(self) -> bool:
        return self.per_ip < INT_MAX or bool(self.overrides)


class AddressCounts:
    """The open connections of each address."""

    def __init__(self, limits: AddressLimits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    def begin(self, host: str) -> bool:
        """Count a connection of ``host``; False if it is above the limit of its address, and is not counted."""
        host = plain(host)
        if self._open[host] >= self._limits.most(host):
            if not self._open[host]:
                del self._open[host]
            return False
        self._open[host] += 1
        return True

    def end(self, host: str) -> None:
        """Forget a connection that ``begin`` has counted."""
        host = plain(host)
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]


def plain(host: str) -> str:
    """The address as the limits name it: 10.0.0.1 for ::ffff:10.0.0.1. A text that is no address stays as it is."""
    if ":" not in host:
        return host
    try:
        return str(plain_address(host))
    except ValueError:
        return host


def _overrides(text: str) -> dict[str, int]:
    """Parse ``host:count`` items, separated by commas. An IPv6 address may be in brackets."""
    found: dict[str, int] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        host, _, count = item.rpartition(":")
        if not host or not count.isascii() or not count.isdigit():
            raise InvalidConfigError(f"{OVERRIDES}={item}: write host:count, such as 10.0.0.1:100")
        for address in _addresses(host.strip().strip("[]"), item):
            found[address] = int(count)
    return found


def _addresses(host: str, item: str) -> list[str]:
    try:
        return [str(plain_address(host))]
    except ValueError:
        pass
    try:
        return [plain(str(each[4][0])) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        raise InvalidConfigError(f"{OVERRIDES}={item}: {host} is no address, and has none; correct the name") from None
