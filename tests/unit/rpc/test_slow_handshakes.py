"""A client whose handshakes take long, because the network is slow or the node is busy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from headrace_core.rpc.channel import ChannelPurpose, open_channel
from headrace_core.testing.tcp_proxy import ANY, FaultyNetwork
from tests.worlds.security import TestAuthority

#: A handshake waits for a round trip of TLS 1.3, and for one of the settings of HTTP/2.
ONE_WAY_MS = 250
TIMEOUT_S = 20.0


class _Credentials:
    generation = 0

    def __init__(self, ca: bytes) -> None:
        self._ca = ca

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._ca)


def _server(pem: bytes | None) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()

    async def echo(request: bytes, context: object) -> bytes:
        return request

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    if pem is None:
        return server, server.add_insecure_port("127.0.0.1:0")
    return server, server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pem, pem)]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_encrypted", [True, False], ids=["tls", "plain"])
def test_a_connection_is_made_at_once_over_a_slow_network(tmp_path: Path, is_encrypted: bool) -> None:
    authority = TestAuthority(tmp_path)
    pem = authority.issue("server.pem").read_bytes() if is_encrypted else None
    credentials = _Credentials(authority.ca.read_bytes()) if is_encrypted else None
    attempts: list[int] = []
    network = FaultyNetwork(lambda port, to: attempts.append(port) or "client")  # type: ignore[func-returns-value]

    async def work() -> bytes:
        server, port = _server(pem)
        await server.start()
        outside = await asyncio.to_thread(network.listen, "server", port)
        await asyncio.to_thread(network.delay, ANY, ANY, ONE_WAY_MS)
        channel = open_channel(f"127.0.0.1:{outside}", ChannelPurpose.CONTROL, credentials)
        try:
            call = channel.unary_unary("/test.Echo/Echo")
            return bytes(await call(b"heard", timeout=TIMEOUT_S, wait_for_ready=True))
        finally:
            await channel.close()
            await server.stop(None)

    try:
        assert asyncio.run(work()) == b"heard"
        assert len(attempts) == 1
    finally:
        network.close()
