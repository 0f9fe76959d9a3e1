"""gRPC over TLS: who gets in, who does not and why, and certificates that change under open connections."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import grpc.experimental.session_cache
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_core.rpc import ChannelPool, ChannelPurpose, Channels
from headrace_core.rpc.event_loop import new_event_loop
from headrace_core.rpc.server import Listener
from headrace_core.security.certificates import read_certificates
from headrace_core.security.gate import Gate
from headrace_core.security.mapping import PrincipalMapper, user_principal
from headrace_core.security.tls import CONTEXT_S_MAX, TlsSettings, TlsSource
from headrace_core.security.trouble import why_refused
from tests.worlds.security import TestAuthority
from tests.worlds.waiting import in_loop, until_async


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("strangers"), "another authority")


def source(own: Path | None, ca: Path | None, **more: Any) -> TlsSource:
    named = {"ssl.keystore.location": own, "ssl.truststore.location": ca}
    keys = {key: str(value) for key, value in named.items() if value is not None}
    return TlsSource(TlsSettings.of(keys), **more)


@asynccontextmanager
async def serving(tls: TlsSource | None, *, requires: bool = True) -> AsyncIterator[str]:
    credentials = None if tls is None else tls.server_credentials(requires_client=requires)
    listener = Listener("client", credentials=credentials)
    await listener.start()
    await listener.serving(True)
    try:
        yield listener.address
    finally:
        await listener.stop(0)


async def check(address: str, tls: TlsSource | None) -> None:
    """Make one call on a connection of its own. Raises AioRpcError."""
    async with Channels(tls).open(address, ChannelPurpose.RAFT) as channel:
        await ask(channel)


async def ask(channel: grpc.aio.Channel) -> None:
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)  # type: ignore[no-untyped-call]


def has_expired(path: Path) -> bool:
    ends = read_certificates(path.read_bytes())[0].not_after
    return ends + timedelta(seconds=1) < datetime.now(UTC)  # OpenSSL compares whole seconds


async def refusal(address: str, tls: TlsSource | None) -> str:
    """Why a client is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(address, tls)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return await why_refused(address, tls) or ""


@in_loop
async def test_only_clients_of_the_authority_get_in(authority: TestAuthority, strangers: TestAuthority) -> None:
    server = authority.issue("server.pem")
    user = authority.issue("user.pem", hosts=(), only_client=True)
    expired = authority.issue("expired.pem", begins_in=timedelta(days=-2), ends_in=timedelta(seconds=1.5))
    late = source(expired, authority.ca)
    async with serving(source(server, authority.ca)) as address:
        await check(address, source(user, authority.ca))
        assert "requires a certificate" in await refusal(address, source(None, authority.ca))
        assert "does not trust" in await refusal(address, source(user, strangers.ca))
        assert "does not accept the certificate" in await refusal(
            address, source(strangers.issue("u.pem", hosts=()), authority.ca)
        )
        assert "the server encrypts" in await refusal(address, None)
        await until_async(lambda: has_expired(expired))
        said = await refusal(address, late)
        assert "does not accept the certificate" in said
        assert "because it expired on" in said
        early = source(authority.issue("early.pem", hosts=(), begins_in=timedelta(hours=1)), authority.ca)
        assert "because it is not valid before" in await refusal(address, early)
    async with serving(source(server, None), requires=False) as address:
        await check(address, source(None, authority.ca))
    async with serving(None) as address:
        assert "does not encrypt" in await refusal(address, source(user, authority.ca))


@in_loop
async def test_a_port_can_take_both_protocols(authority: TestAuthority) -> None:
    """For the way from an open to a secured cluster (internal.tls.mode)."""
    tls = source(authority.issue("both.pem"), authority.ca)
    listener = Listener("internal", credentials=tls.server_credentials(requires_client=True), takes_plaintext=True)
    await listener.start()
    try:
        await listener.serving(True)
        for _ in range(3):
            await check(listener.address, tls)
            await check(listener.address, None)
        # a certificate is still needed with TLS; silence and noise do no harm
        assert "requires a certificate" in await refusal(listener.address, source(None, authority.ca))
        host, port = listener.address.split(":")
        for noise in (b"", b"\x16", b"GET / HTTP/1.1\r\n\r\n"):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(noise)
            writer.close()
        await check(listener.address, tls)
    finally:
        await listener.stop(0)
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(host, int(port))


@in_loop
async def test_a_server_must_have_a_certificate_of_a_server_for_its_name(authority: TestAuthority) -> None:
    me = source(authority.issue("me.pem", hosts=()), authority.ca)
    async with serving(source(authority.issue("name.pem", hosts=["broker-7.example"]), authority.ca)) as address:
        assert "is not for 127.0.0.1, but for broker-7.example" in await refusal(address, me)
    # a user's certificate, even with the server's address in it, does not make a server
    async with serving(source(authority.issue("posing.pem", only_client=True), authority.ca)) as address:
        assert "is not accepted" in await refusal(address, me)
    old = authority.issue("aging.pem", ends_in=timedelta(seconds=2), begins_in=timedelta(days=-2))
    async with serving(source(old, authority.ca)) as address:
        await until_async(lambda: has_expired(old))
        said = await refusal(address, me)
        assert "expired on" in said
        assert "this machine's clock" in said
    future = authority.issue("future.pem", begins_in=timedelta(hours=1))
    async with serving(source(future, authority.ca)) as address:
        assert "is not valid before" in await refusal(address, me)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(
    ("flags", "served"),
    [
        (["-tls1"], False),
        (["-tls1_1"], False),
        (["-tls1_2"], True),
        (["-tls1_3"], True),
        (["-tls1_2", "-cipher", "AES128-SHA:AES256-SHA:DES-CBC3-SHA:ECDHE-RSA-AES128-SHA"], False),
    ],
)
def test_openssl_sees_tls_12_and_13_only(authority: TestAuthority, flags: list[str], served: bool) -> None:
    own, ca = authority.issue("openssl.pem"), authority.ca

    async def work() -> subprocess.CompletedProcess[bytes]:
        async with serving(source(own, ca)) as address:
            command = ["openssl", "s_client", "-connect", address, "-CAfile", ca, "-cert", own, "-key", own, "-brief"]
            seclevel = [] if "-cipher" in flags else ["-cipher", "ALL:@SECLEVEL=0"]
            return await asyncio.to_thread(
                subprocess.run, [*map(str, command), *seclevel, *flags], input=b"", capture_output=True, timeout=20
            )

    done = asyncio.run(work())
    assert (b"Verification: OK" in done.stderr) == served, done.stderr.decode()


def test_certificates_that_change_under_load_fail_no_call(authority: TestAuthority, tmp_path: Path) -> None:
    """Both sides get new keys several times, while calls run over a pool and over new connections. The former
    certificates expire meanwhile."""
    server, client = tmp_path / "server.pem", tmp_path / "client.pem"
    turn = [0]

    def renew() -> None:
        turn[0] += 1
        for path in (server, client):
            # the first certificates are worthless before the test ends
            life = timedelta(seconds=2.5) if turn[0] == 1 else timedelta(days=1)
            made = authority.issue(f"{turn[0]}-{path.name}", ends_in=life, begins_in=timedelta(hours=-1))
            if turn[0] == 1:
                shutil.copy(made, tmp_path / "first.pem")
            made.replace(path)

    renew()
    clock = [0.0]
    both = [source(path, authority.ca, clock=lambda: clock[0]) for path in (server, client)]

    async def work() -> None:
        async with serving(both[0]) as address:
            pool = ChannelPool(Channels(both[1]), ChannelPurpose.CONTROL)
            done = [0]
            stop = asyncio.Event()

            async def calls() -> None:
                while not stop.is_set():
                    await ask(pool.get(address))
                    done[0] += 1

            async def connections() -> None:
                while not stop.is_set():
                    await check(address, both[1])
                    done[0] += 1

            async with asyncio.TaskGroup() as group:
                for each in (calls, calls, connections):
                    group.create_task(each())
                for turn_number in range(5):
                    if turn_number == 3:
                        await until_async(lambda: has_expired(tmp_path / "first.pem"))
                    if turn_number:
                        renew()
                        clock[0] += 10
                    before = done[0]
                    await until_async(lambda before=before: done[0] > before + 50, "calls with these certificates")
                stop.set()
            await pool.close()
            assert [each.generation for each in both] == [5, 5]
            assert done[0] > 250

    asyncio.run(work())


class Resuming:
    """A client on Python's sockets that resumes its first session at each further connection, as Java's clients do."""

    def __init__(self, own: Path, ca: Path, version: ssl.TLSVersion) -> None:
        self._context = ssl.create_default_context(cafile=str(ca))
        self._context.minimum_version = self._context.maximum_version = version
        self._context.load_cert_chain(own)
        self._session: ssl.SSLSession | None = None

    def connect(self, port: int) -> str:
        """Return what the server answers. Raises OSError if the server refuses the client."""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as raw,
            self._context.wrap_socket(raw, server_hostname="localhost", session=self._session) as tls,
        ):
            tls.sendall(b"?")
            answer = tls.recv(100).decode()
            if not answer:
                raise ConnectionError("the server closed the connection")
            self._session = self._session or tls.session
        return answer


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("mode", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
def test_a_session_cannot_be_resumed_when_its_authority_is_no_longer_trusted(
    authority: TestAuthority, strangers: TestAuthority, tmp_path: Path, version: ssl.TLSVersion, mode: ssl.VerifyMode
) -> None:
    """The listeners of Kafka's protocol, of the registry, of the console and of metrics."""
    trusted, clock = tmp_path / "trusted.pem", [0.0]
    shutil.copy(authority.ca, trusted)
    tls = source(authority.issue("server.pem"), trusted, clock=lambda: clock[0])
    context = tls.server_context(wants_client=True)
    context.verify_mode = mode

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        connection = writer.get_extra_info("ssl_object")
        has_certificate = bool(writer.get_extra_info("peercert"))
        writer.write(f"{'known' if has_certificate else 'unknown'} {connection.session_reused}".encode())
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        client = Resuming(authority.issue("user.pem", hosts=(), only_client=True), authority.ca, version)
        assert await asyncio.to_thread(client.connect, port) == "known False"
        assert await asyncio.to_thread(client.connect, port) == "known True"
        clock[0] += CONTEXT_S_MAX  # the certificate is verified again now and then: it may have expired
        assert await asyncio.to_thread(client.connect, port) == "known False"
        shutil.copy(strangers.ca, trusted)
        clock[0] += 2
        with pytest.raises(OSError, match=r"SSL|reset|closed"):
            await asyncio.to_thread(client.connect, port)
        server.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work())


def test_a_resumed_session_opens_nothing_after_the_end_of_its_certificate(authority: TestAuthority) -> None:
    """gRPC resumes sessions without a look at the certificate, which a handshake would refuse."""
    mapper = PrincipalMapper("DEFAULT")
    user = authority.issue("ending.pem", hosts=(), only_client=True, ends_in=timedelta(seconds=3))
    named = TlsSettings.of({"ssl.keystore.location": str(user), "ssl.truststore.location": str(authority.ca)})
    material = TlsSource(named).material
    credentials = grpc.ssl_channel_credentials(material.roots, material.key, material.chain)
    cache = grpc.experimental.session_cache.ssl_session_cache_lru(10)
    seen: list[bytes] = []

    class Watched(Gate):
        def admit(self, path: str, context: Any) -> Any:
            seen.append(context.auth_context()["ssl_session_reused"][0])
            if path.startswith("/grpc.health"):
                self.identify(context)  # as for a call that needs a user
            return super().admit(path, context)

    async def call(address: str) -> None:
        options = [("grpc.ssl_session_cache", cache), ("grpc.use_local_subchannel_pool", 1)]
        target = address.replace("127.0.0.1", "localhost")  # gRPC keeps sessions of names only, not of addresses
        async with grpc.aio.secure_channel(target, credentials, options) as channel:
            await ask(channel)

    async def work() -> None:
        tls = source(authority.issue("node.pem"), authority.ca)
        gate = Watched("client", "SSL", principal_of=lambda pem: user_principal(pem, mapper))
        listener = Listener("client", credentials=tls.server_credentials(requires_client=True), gate=gate)
        await listener.start()
        await listener.serving(True)
        try:
            await call(listener.address)
            await call(listener.address)
            assert seen == [b"false", b"true"]
            await until_async(lambda: has_expired(user))
            with pytest.raises(grpc.aio.AioRpcError, match="expired on") as caught:
                await call(listener.address)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert seen[-1] == b"true"
        finally:
            await listener.stop(0)

    asyncio.run(work())
