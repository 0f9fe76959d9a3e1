"""A node's port, served by a separate thread, with or without TLS, for programs that connect to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace_core.rpc.server import Listener
from headrace_core.security.tls import TlsSettings, TlsSource


@contextmanager
def listening(own: Path | None, ca: Path | None = None) -> Iterator[str]:
    """Serve the health check; yields the address. ``own``: the file of the port's certificate and key; None: the port
    does not encrypt. With ``ca`` the port requires certificates of clients."""
    made = None
    if own is not None:
        keys = {"ssl.keystore.location": str(own)} | ({} if ca is None else {"ssl.truststore.location": str(ca)})
        made = TlsSource(TlsSettings.of(keys)).server_credentials(requires_client=ca is not None)
    served = Listener("client", credentials=made)
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        await served.start()
        await served.serving(True)
        ready.set()
        await over.wait()
        await served.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield served.address
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()
