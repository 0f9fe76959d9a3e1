"""Try an address from this machine: resolve its name, connect, send the health check. Many addresses are tried at once,
each with a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from headrace_core.security.tls import TlsSource
from headrace_core.security.trouble import tls_trouble
from headrace_core.types import split_address

from ..local.health import answers, is_serving
from .facts import Refusal, Tried, Trouble

T = TypeVar("T")
R = TypeVar("R")


def at_once(work: Callable[[T], R], items: Iterable[T], *, timeout_s: float, late: Callable[[T], R]) -> list[R]:
    """Run ``work`` for each item, each in its own thread; ``late`` gives the result of an item that is not done in
    time. If a name server does not answer, the thread of the item blocks for a long time. The function does not wait
    for the blocked thread, which is a daemon thread."""
    wanted = list(items)
    found: dict[int, R] = {}

    def run(number: int) -> None:
        found[number] = work(wanted[number])

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(wanted))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    done = dict(found)
    return [done[number] if number in done else late(item) for number, item in enumerate(wanted)]


def try_addresses(addresses: Iterable[str], *, timeout_s: float, tls: TlsSource | None = None) -> list[Tried]:
    """Try all addresses at once, for at most about 3 * ``timeout_s``; the results have the order of ``addresses``.
    ``tls``: the client's keys and certificates; None: the client does not encrypt."""

    def late(address: str) -> Tried:
        return Tried(address=address, trouble=Trouble.NAME, detail=f"no answer from DNS within {3 * timeout_s:g} s")

    return at_once(
        lambda each: try_address(each, timeout_s=timeout_s, tls=tls), addresses, timeout_s=3 * timeout_s, late=late
    )


def try_address(address: str, *, timeout_s: float, tls: TlsSource | None = None) -> Tried:
    """Resolve the name, connect, and send the health check. ``try_address`` blocks. A fault of the address is part of
    the result; the function raises no error. If a name has several addresses, the first address that accepts a
    connection is used, as clients do."""
    try:
        host, port = split_address(address)
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        return Tried(address=address, trouble=Trouble.NAME, detail=_words(error))
    ips = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
    tried = Tried(address=address, ips=ips)
    refusals = at_once(
        lambda ip: _refusal(ip, port, timeout_s), ips, timeout_s=timeout_s, late=lambda _: _late(timeout_s)
    )
    reached = next((ip for ip, refusal in zip(ips, refusals, strict=True) if refusal is None), None)
    if reached is None:
        trouble, detail = next(refusal for refusal in refusals if refusal is not None)
        return dataclasses.replace(tried, trouble=trouble, detail=detail)
    with contextlib.suppress(OSError):
        context = None if tls is None else tls.client_context()
        if context is not None:
            context.set_alpn_protocols(["h2"])
        if is_serving(reached, port, timeout_s=timeout_s, tls=context, name=host):
            return tried
        if answers(reached, port, timeout_s=timeout_s, tls=context, name=host):
            return dataclasses.replace(tried, trouble=Trouble.NOT_SERVING)
    found = asyncio.run(tls_trouble(address, tls, timeout_s))
    if found is not None:
        refusal = Refusal(str(found.cause), found.what, found.cure)
        return dataclasses.replace(tried, trouble=Trouble.TLS, detail=str(found), refusal=refusal)
    detail = f"it accepts a connection but does not answer the health check within {timeout_s:g} s"
    return dataclasses.replace(tried, trouble=Trouble.SILENT, detail=detail)


def _refusal(ip: str, port: int, timeout_s: float) -> tuple[Trouble, str] | None:
    """Why a connection cannot be opened; None if the connection can be opened."""
    try:
        socket.create_connection((ip, port), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return Trouble.REFUSED, "connection refused (nothing listens there)"
    except TimeoutError:
        return _late(timeout_s)
    except OSError as error:
        return Trouble.UNREACHABLE, _words(error)
    return None


def _late(timeout_s: float) -> tuple[Trouble, str]:
    return Trouble.UNREACHABLE, f"no answer to a connection attempt within {timeout_s:g} s"


def _words(error: Exception) -> str:
    return (getattr(error, "strerror", None) if isinstance(error, OSError) else None) or str(error)
