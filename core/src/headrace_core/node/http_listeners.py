"""The listeners of nodes that serve HTTP: ``http://127.0.0.1:8081``, or https."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import InvalidConfigError
from .listeners import ListenerAddress, check_port

_LISTENER = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:.]*\]|[^\[\]:/]*):(?P<port>\d{1,5})/?\Z")


def parse_http_listeners(items: Sequence[str], *, key: str, example_port: int) -> tuple[ListenerAddress, ...]:
    """Parse the HTTP listeners in the value of ``key``. Raises InvalidConfigError, which names the item and the legal
    form, with ``example_port`` in its example."""
    example = f"http://127.0.0.1:{example_port}"
    found: list[ListenerAddress] = []
    for item in items:
        match = _LISTENER.match(item)
        if match is None:
            raise InvalidConfigError(f"{key}={item}: write http://host:port or https://host:port, such as {example}")
        address = ListenerAddress(match["scheme"], match["host"], check_port(key, item, match["port"]))
        if address.port and address in found:
            raise InvalidConfigError(f"{key}={item}: the address is given twice")
        found.append(address)
    if len({each.name for each in found}) > 1:
        raise InvalidConfigError(f"{key}: all listeners must be http, or all must be https")
    if not found:
        raise InvalidConfigError(f"{key} is empty; name one, such as {example}")
    return tuple(found)
