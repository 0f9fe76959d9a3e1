"""Kafka listeners with TLS: handshakes, principals, limits, back-pressure. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from headrace_core.errors import InvalidConfigError, SaslAuthenticationFailedError
from headrace_core.security.audit import AuditLog
from headrace_core.security.protocols import SecurityProtocol
from headrace_core.security.tls import LOOK_S, TlsSettings, TlsSource
from headrace_kafka import connection as module
from headrace_kafka import connections
from headrace_kafka.call import Call
from headrace_kafka.connection import Connection
from headrace_kafka.connections import Connections, ListenerSecurity
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.tls import ListenerTls, TlsTransport
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import Message
from tests.worlds.kafka_protocol import read_answer, request_frame
from tests.worlds.security import TestAuthority
from tests.worlds.waiting import until_async


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    made = TestAuthority(tmp_path_factory.mktemp("ca"))
    made.issue("server.pem", name="server")
    made.issue("alice.pem", name="alice")
    made.issue("node.pem", name="broker", uris=["headrace:broker:1"])
    return made


class Server:
    """A listener with one handler; ``seen``: the principal of each request."""

    def __init__(self, authority: TestAuthority, client_auth: str, now: list[float], **settings: Any) -> None:
        own = TlsSettings(
            keystore_location=str(authority.directory / "server.pem"),
            truststore_location=str(authority.ca),
            **settings,
        )
        self.seen: list[str] = []
        self.size = 1
        base = KafkaSettings()
        self.connections = Connections(base, cast("Any", None), cast("Any", None), {Api.METADATA: self._handle}, {})
        self.connections.prepared.update(Api)
        tls = ListenerTls(TlsSource(own, clock=lambda: now[0]), client_auth)
        self.security = ListenerSecurity(SecurityProtocol.SSL, tls)
        self.port = 0

    async def _handle(self, call: Call, request: Message) -> dict[str, Any] | None:
        self.seen.append(str(call.client.principal))
        return {"cluster_id": "c" * self.size}

    def accept(self) -> asyncio.Protocol:
        assert self.security.tls is not None
        connection = Connection(self.connections, "SSL", self.security)
        return TlsTransport(connection, self.security.tls.context)


@contextlib.asynccontextmanager
async def serving(
    authority: TestAuthority, client_auth: str = "none", now: list[float] | None = None, **settings: Any
) -> AsyncIterator[Server]:
    server = Server(authority, client_auth, now or [0.0], **settings)
    listening = await asyncio.get_running_loop().create_server(server.accept, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        server.connections.close(at_once=True)


def context(authority: TestAuthority, certificate: str | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.ca))
    if certificate is not None:
        made.load_cert_chain(authority.directory / certificate)
    return made


async def connect(server: Server, using: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=using, limit=64 * 1024 * 1024)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message:
    writer.write(bytes(request_frame(Api.METADATA, 12, topics=[])))
    size = int.from_bytes(await reader.readexactly(4), "big")
    return read_answer(Api.METADATA, 12, await reader.readexactly(size))[1]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_is_who_its_certificate_says(authority: TestAuthority, version: ssl.TLSVersion) -> None:
    async def scenario() -> None:
        rules = "RULE:^CN=(.*)$/$1@ca/U"
        async with serving(authority, "required", mapping_rules=rules) as server:
            using = context(authority, "alice.pem")
            using.minimum_version = using.maximum_version = version
            reader, writer = await connect(server, using)
            assert (await ask(reader, writer)).cluster_id == "c"
            assert server.seen == ["User:ALICE@CA"]
            assert not server.connections.entrance.active
            assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
            writer.close()

    asyncio.run(scenario())


def test_without_a_certificate_a_client_is_anonymous_or_refused(authority: TestAuthority) -> None:
    async def scenario() -> None:
        for client_auth in ("none", "requested"):
            async with serving(authority, client_auth) as server:
                reader, writer = await connect(server, context(authority))
                await ask(reader, writer)
                assert server.seen == ["User:ANONYMOUS"]
                writer.close()
        async with serving(authority, "required") as server:
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await ask(*await connect(server, context(authority)))
            assert server.seen == []
            await until_async(lambda: not server.connections.open)

    asyncio.run(scenario())


def test_a_certificate_of_another_authority_is_refused(authority: TestAuthority, tmp_path: Path) -> None:
    async def scenario() -> None:
        other = TestAuthority(tmp_path)
        other.issue("alice.pem", name="alice")
        async with serving(authority, "requested") as server:
            using = context(authority)
            using.load_cert_chain(other.directory / "alice.pem")
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await ask(*await connect(server, using))
            assert server.seen == []

    asyncio.run(scenario())


def test_every_failed_handshake_leaves_a_line_in_the_audit_log(authority: TestAuthority, tmp_path: Path) -> None:
    """And no line for a client that only connects, as a health check does."""
    other = TestAuthority(tmp_path)
    other.issue("alice.pem", name="alice")
    stranger = context(authority)
    stranger.load_cert_chain(other.directory / "alice.pem")
    lines: list[str] = []

    async def refused(server: Server, using: ssl.SSLContext) -> None:
        with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
            await ask(*await connect(server, using))

    async def scenario() -> None:
        async with serving(authority, "required") as server:
            server.connections.audit = AuditLog(lines.append)
            for expected, using in enumerate(
                (context(authority), stranger, context(other), context(authority, "node.pem")), 1
            ):
                await refused(server, using)
                await until_async(lambda wanted=expected: server.connections.failed_authentications == wanted)
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await until_async(lambda: server.connections.failed_authentications == 5)
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.close()
            await ask(*await connect(server, context(authority, "alice.pem")))
            assert server.connections.failed_authentications == 5

    asyncio.run(scenario())
    found = [json.loads(line) for line in lines]
    assert {(each["call"], each["host"], each["listener"], each["principal"], each["decision"]) for each in found} == {
        ("TLS handshake", "127.0.0.1", "SSL", None, "DENIED")
    }
    whys = [each["why"] for each in found]
    parts = (
        "the client has no certificate",
        "certificate verify failed",
        "may not trust this certificate",
        "broker",
        "speaks HTTP",
    )
    assert [part in why for part, why in zip(parts, whys, strict=True)] == [True] * 5, whys


def test_a_nodes_certificate_and_a_name_without_rule_are_refused(
    authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(authority, "required", mapping_rules="RULE:^CN=bob$/bob/") as server:
            for certificate in ("node.pem", "alice.pem"):
                with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                    await ask(*await connect(server, context(authority, certificate)))
            assert server.seen == []

    asyncio.run(scenario())
    assert "the certificate of CN=broker is a node's" in caplog.text
    assert "no rule matches the certificate of CN=alice" in caplog.text


def test_a_client_without_tls_loses_its_connection(authority: TestAuthority, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(authority) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(bytes(request_frame(Api.METADATA, 12, topics=[])))
            assert len(await reader.read()) < 16  # an alert
            assert server.seen == []
            writer.close()

    asyncio.run(scenario())
    assert "the client does not speak TLS" in caplog.text


def test_unfinished_handshakes_have_a_limit_and_a_timeout(
    authority: TestAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_MAX", 3)
    monkeypatch.setattr(connections, "ROUND_S", 0.01)

    async def scenario() -> None:
        async with serving(authority) as server:
            idle = []
            for number in range(4):
                idle.append(await asyncio.open_connection("127.0.0.1", server.port))
                await until_async(lambda many=number + 1: len(server.connections.open) >= min(many, 3))  # type: ignore[misc]
            assert await idle[0][0].read() == b""  # the oldest was closed for the fourth
            await until_async(lambda: len(server.connections.open) == 3)
            using = context(authority)
            reader, writer = await connect(server, using)  # still, a client that shakes hands is served
            await ask(reader, writer)
            for _ in range(module.AUTHENTICATES_S):
                server.connections.sweep()
            await until_async(lambda: len(server.connections.open) == 1)
            await ask(reader, writer)
            for _, each in (*idle, (reader, writer)):
                each.close()

    asyncio.run(scenario())


def test_a_changed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        mine, now = TestAuthority(tmp_path), [0.0]
        mine.issue("server.pem", name="before")
        async with serving(mine, now=now) as server:

            async def subject() -> Any:
                _, writer = await connect(server, context(mine))
                found = writer.get_extra_info("peercert")["subject"]
                writer.close()
                return found[0][0][1]

            assert await subject() == "before"
            mine.issue("server.pem", name="after")
            now[0] += LOOK_S
            assert await subject() == "after"

    asyncio.run(scenario())


def test_long_answers_count_as_unread_and_stop_the_connection(authority: TestAuthority) -> None:
    async def scenario() -> None:
        async with serving(authority) as server:
            server.size = 30_000
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=context(authority), limit=1_024
            )
            await ask(reader, writer)
            writer.write(bytes(request_frame(Api.METADATA, 12, topics=[])) * 500)  # 15 MB of answers
            (connection,) = server.connections.open
            await until_async(lambda: connection._is_stalled)
            assert len(server.seen) < 400
            assert server.connections.answers.unread >= module.WRITE_BYTES
            for _ in range(500):
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
            assert len(server.seen) == 501
            assert server.connections.answers.unread == 0
            writer.close()

    asyncio.run(scenario())


def test_requests_in_any_pieces_and_the_end_of_a_client(authority: TestAuthority) -> None:
    async def scenario() -> None:
        async with serving(authority) as server:
            reader, writer = await connect(server, context(authority))
            frame = bytes(request_frame(Api.METADATA, 12, topics=[]))
            for at in range(0, len(frame), 3):
                writer.write(frame[at : at + 3])
                await writer.drain()
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
            writer.close()
            await until_async(lambda: not server.connections.open)

    asyncio.run(scenario())


def test_an_expired_certificate_keeps_the_listener_closed(authority: TestAuthority) -> None:
    path = authority.issue("expired.pem", ends_in=timedelta(hours=-1))
    with pytest.raises(InvalidConfigError, match="expired on"):
        TlsSource(TlsSettings(keystore_location=str(path)))


def test_the_principal_of_no_certificate_is_anonymous(authority: TestAuthority) -> None:
    source = TlsSource(TlsSettings(keystore_location=str(authority.directory / "server.pem")))
    tls = ListenerTls(source, "none")
    assert str(tls.principal_of(None)) == "User:ANONYMOUS"
    with pytest.raises(SaslAuthenticationFailedError):
        tls.principal_of(b"no certificate")
