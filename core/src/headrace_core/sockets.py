"""Sockets of TCP servers, bound before an event loop serves them."""

from __future__ import annotations

import asyncio
import socket


async def bound_socket(host: str, port: int, *, key: str) -> socket.socket:
    """A socket that is bound to ``host``:``port`` and does not listen yet. An empty host: all addresses. Raises
    OSError, which names the address and ``key``, the configuration key that sets the address.

    The function does not resolve the address through the event loop, because uvloop would start libuv's threads for
    that. A forked child would crash when it joins these threads at its exit.
    """
    name = host.strip("[]") or None
    try:
        found = await asyncio.to_thread(
            socket.getaddrinfo, name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # For all addresses: an IPv6 socket, which accepts IPv4 connections too, or an IPv4 socket on a system without
        # IPv6.
        preferred = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        family, kind, protocol, _, address = max(found, key=lambda each: name is None and each[0] == preferred)
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(name is not None))
            bound.bind(address)
        except (OSError, OverflowError):  # OverflowError: no such port
            bound.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port} ({key}): {error.strerror or error}") from error
    return bound
