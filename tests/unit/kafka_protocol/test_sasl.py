"""SASL on a Kafka connection: what a client may send when, who it is, and how failures end. The transport is in memory;
the mechanisms are the real ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace_core.errors import IllegalSaslStateError, SaslAuthenticationFailedError
from headrace_core.security.protocols import SecurityProtocol
from headrace_core.security.sasl.exchange import Identity, ServerExchange, Step
from headrace_core.security.sasl.plain import PlainServer, static_users
from headrace_core.security.sasl.scram import SHA_256, new_credential
from headrace_core.security.sasl.scram_exchange import ScramClient, ScramServer, Subject
from headrace_kafka import connection as module
from headrace_kafka import connections, sasl
from headrace_kafka.call import Call
from headrace_kafka.connection import Connection
from headrace_kafka.connections import Connections, ListenerSecurity
from headrace_kafka.handlers.sasl import sasl_authenticate, sasl_handshake
from headrace_kafka.sasl import Authentication, State
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import Message
from tests.worlds.kafka_protocol import MemoryTransport, read_answer, request_frame
from tests.worlds.this_process import logged
from tests.worlds.waiting import LoopClock, until_async

ILLEGAL_STATE, UNSUPPORTED_MECHANISM, FAILED = 34, 33, 58
DELAY_MS = 30
ALICE = b"\0alice\0secret"


class Lifetime:
    """A mechanism that trusts the client: its bytes are ``user:milliseconds`` until the credential expires."""

    def is_slow(self, data: bytes) -> bool:
        return data.startswith(b"slow")

    def step(self, data: bytes) -> Step:
        user, _, ms = data.decode().partition(":")
        if user == "more":
            return Step(b"go on")
        if user == "broken":
            raise ZeroDivisionError
        return Step(b"", Identity(user, "TEST", int(time.time() * 1_000) + int(ms) if ms else None))


class Slow:
    """A mechanism that takes long: its steps begin when they have a thread, and end when ``may_end`` is set."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.ended = 0
        self.at_once = 0  #: The largest number of steps that ran at the same time.
        self.may_end = threading.Event()

    def is_slow(self, data: bytes) -> bool:
        return True

    def step(self, data: bytes) -> Step:
        self.begun.append(data)
        self.at_once = max(self.at_once, len(self.begun) - self.ended)
        self.may_end.wait(30)
        self.ended += 1
        return Step(b"", Identity("alice", "TEST"))


class Offer:
    def __init__(self) -> None:
        self.names = ("PLAIN", "SCRAM-SHA-256", "TEST")
        self._credential = new_credential(SHA_256, "secret", 4_096)
        self.revoked: set[str] = set()

    def is_revoked(self, identity: Identity) -> bool:
        return identity.user in self.revoked

    def start(self, mechanism: str) -> ServerExchange:
        if mechanism == "PLAIN":
            return PlainServer(static_users({"alice": "secret", "bob": "secret"}), is_slow=True)
        if mechanism == "TEST":
            return Lifetime()
        return ScramServer(SHA_256, lambda name, is_token: Subject(self._credential, name))


class World:
    """Connections of a SASL_PLAINTEXT listener; ``seen``: the principal of each Metadata request."""

    def __init__(self, *, max_reauth_ms: int = 0, **settings: Any) -> None:
        self.seen: list[str] = []
        self.security = ListenerSecurity(
            SecurityProtocol.SASL_PLAINTEXT, None, Offer(), max_reauth_ms, failure_delay_ms=DELAY_MS
        )
        handlers = {
            Api.METADATA: self._metadata,
            Api.API_VERSIONS: self._versions,
            Api.SASL_HANDSHAKE: sasl_handshake,
            Api.SASL_AUTHENTICATE: sasl_authenticate,
        }
        self.connections = Connections(KafkaSettings(**settings), cast("Any", None), cast("Any", None), handlers, {})
        self.connections.prepared.update(Api)

    async def _metadata(self, call: Call, request: Message) -> dict[str, Any]:
        self.seen.append(str(call.client.principal))
        return {}

    async def _versions(self, call: Call, request: Message) -> dict[str, Any]:
        return {}

    def connect(self, host: str = "10.0.0.1") -> Peer:
        transport = MemoryTransport(host)
        connection = Connection(self.connections, "SASL_PLAINTEXT", self.security)
        transport.connect(connection)
        return Peer(transport, connection)


class Peer:
    """The client's side of a connection."""

    def __init__(self, transport: MemoryTransport, connection: Connection) -> None:
        self.transport, self.connection = transport, connection

    async def raw(self, frame: bytes) -> bytes:
        """Send a frame with its length; return the answer without its length."""
        self.connection.data_received(frame)
        await until_async(lambda: len(self.transport.written) >= 4 or self.transport.state != "open")
        return self.transport.client_reads()[4:]

    async def ask(self, api: Api, version: int, **fields: Any) -> Message:
        answer = await self.raw(bytes(request_frame(api, version, **fields)))
        assert answer, "the connection was closed"
        return read_answer(api, version, answer)[1]

    async def is_refused(self, api: Api, version: int, **fields: Any) -> bool:
        """Send a request; return whether the connection closes without an answer."""
        return not await self.raw(bytes(request_frame(api, version, **fields))) and self.transport.state != "open"

    async def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Message:
        return await self.ask(Api.SASL_HANDSHAKE, version, mechanism=mechanism)

    async def authenticate(self, data: bytes = ALICE, version: int = 2) -> Message:
        return await self.ask(Api.SASL_AUTHENTICATE, version, auth_bytes=data)


def in_loop(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


def test_a_client_authenticates_and_is_asked_about_by_its_name() -> None:
    async def scenario() -> None:
        world = World()
        peer = world.connect()
        assert list(world.connections.entrance.active) == [peer.connection]
        await peer.ask(Api.API_VERSIONS, 4, client_software_name="a", client_software_version="1")
        shaken = await peer.handshake()
        assert (shaken.error_code, shaken.mechanisms) == (0, ["PLAIN", "SCRAM-SHA-256", "TEST"])
        done = await peer.authenticate()
        assert (done.error_code, done.auth_bytes, done.session_lifetime) == (0, b"", 0)
        await peer.ask(Api.METADATA, 12, topics=[])
        assert world.seen == ["User:alice"]
        assert peer.connection.client.metadata[0] == ("headrace-principal", "User:alice")
        assert not world.connections.entrance.active
        again = await peer.authenticate()
        assert (again.error_code, again.error_message) == (
            ILLEGAL_STATE,
            "SaslAuthenticate request received after successful authentication",
        )

    in_loop(scenario)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_scram_in_each_version_of_sasl_authenticate(version: int) -> None:
    async def scenario() -> None:
        world = World()
        peer, client = world.connect(), _scram_client("secret")
        await peer.handshake("SCRAM-SHA-256")
        data: bytes | None = client.first()
        while data is not None:
            data = client.step((await peer.authenticate(data, version)).auth_bytes)
        assert client.is_complete
        await peer.ask(Api.METADATA, 12, topics=[])
        assert world.seen == ["User:alice"]

    in_loop(scenario)


def _scram_client(password: str) -> ScramClient:
    return ScramClient(SHA_256, "alice", password)


def test_handshake_version_0_is_followed_by_bare_tokens() -> None:
    async def scenario() -> None:
        world = World()
        peer = world.connect()
        assert (await peer.handshake(version=0)).error_code == 0
        peer.connection.data_received(len(ALICE).to_bytes(4, "big") + ALICE)
        await until_async(lambda: bytes(peer.transport.written) == bytes(4))
        peer.transport.client_reads()
        await peer.ask(Api.METADATA, 12, topics=[])
        assert world.seen == ["User:alice"]
        wrong = world.connect()
        await wrong.handshake(version=0)
        assert await wrong.raw(b"\0\0\0\x05\0a\0bc") == b""
        assert wrong.transport.state != "open"

    in_loop(scenario)


def test_wrong_credentials_are_answered_after_the_delay_and_close_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REFUSED_S", 600.0)

    async def scenario() -> None:
        clock, peers = LoopClock(), []
        for mechanism, data in (("PLAIN", b"\0alice\0wrong"), ("PLAIN", b"\0nobody\0secret"), ("PLAIN", b"no message")):
            peer = World().connect()
            await peer.handshake(mechanism)
            began = time.monotonic()
            failed = await peer.authenticate(data)
            assert time.monotonic() - began >= DELAY_MS / 1_000
            assert failed.error_code == FAILED
            assert failed.error_message.startswith("PLAIN: ")
            peers.append(peer)
        peer, client = World().connect(), _scram_client("wrong")
        await peer.handshake("SCRAM-SHA-256")
        proof = client.step((await peer.authenticate(client.first())).auth_bytes)
        assert (await peer.authenticate(cast("bytes", proof))).error_code == FAILED
        peers.append(peer)
        assert {each.transport.state for each in peers} == {"open"}, "the client can still read the answer"
        clock.forward(600)
        await until_async(lambda: {each.transport.state for each in peers} == {"closed"})

    in_loop(scenario)


def test_an_unknown_mechanism_is_answered_with_the_known_ones() -> None:
    async def scenario() -> None:
        peer = World().connect()
        shaken = await peer.handshake("GSSAPI")
        assert (shaken.error_code, shaken.mechanisms) == (UNSUPPORTED_MECHANISM, ["PLAIN", "SCRAM-SHA-256", "TEST"])
        await until_async(lambda: peer.transport.state == "closed")

    in_loop(scenario)


def test_other_requests_before_the_authentication_close_the_connection() -> None:
    async def scenario() -> None:
        world = World()
        assert await world.connect().is_refused(Api.METADATA, 12, topics=[])
        assert await world.connect().is_refused(Api.SASL_AUTHENTICATE, 2, auth_bytes=ALICE)
        peer = world.connect()
        await peer.handshake()
        assert await peer.is_refused(Api.METADATA, 12, topics=[])
        peer = world.connect()
        pipelined = request_frame(Api.SASL_HANDSHAKE, 1, mechanism="PLAIN") + request_frame(Api.METADATA, 12, topics=[])
        peer.connection.data_received(bytes(pipelined))
        await until_async(lambda: peer.transport.state != "open")
        assert world.seen == []

    in_loop(scenario)


def test_before_the_authentication_frames_are_short() -> None:
    async def scenario() -> None:
        world = World()
        peer = world.connect()
        peer.connection.data_received((world.security.receive_bytes_max + 1).to_bytes(4, "big"))
        assert peer.transport.state != "open"

    in_loop(scenario)


def test_clients_without_a_login_take_no_memory_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that have not authenticated send long frames and never finish them. A client that has authenticated still
    sends long requests, without waiting for any of them."""
    monkeypatch.setattr(connections, "STRANGERS_BYTES", 300_000)

    async def scenario() -> None:
        world = World(queued_bytes_max=1_000_000)
        shared = world.connections
        peer = world.connect()
        await peer.handshake()
        await peer.authenticate()
        assert shared.strangers.used == 0
        unfinished = bytes(request_frame(Api.SASL_AUTHENTICATE, 2, auth_bytes=bytes(400_000)))[:-1]
        strangers = [world.connect(f"10.0.1.{number}") for number in range(50)]
        for at in range(0, len(unfinished), 20_000):
            for each in strangers:
                if each.transport.is_reading_now:
                    each.connection.data_received(unfinished[at : at + 20_000])
        assert 300_000 <= shared.strangers.used <= 300_000 + len(unfinished) + 50 * 20_000
        request = bytes(request_frame(Api.METADATA, 12, topics=[{"name": "t" * 30_000}]))
        peer.connection.data_received(request[:20_000])
        assert peer.transport.is_reading_now
        await peer.raw(request[20_000:])
        assert world.seen == ["User:alice"]
        late = world.connect("10.0.2.1")  # a login with a short message waits for none of them, either
        await late.handshake()
        await late.authenticate()
        for each in (*strangers, late, peer):
            each.transport.lose()
        assert (shared.strangers.used, shared.budget.used) == (0, 0)

    in_loop(scenario)


def test_a_long_login_moves_to_the_memory_of_authenticated_clients() -> None:
    async def scenario() -> None:
        world = World()
        peer = world.connect()
        await peer.handshake("TEST")
        login = bytes(request_frame(Api.SASL_AUTHENTICATE, 2, auth_bytes=b"alice"))
        half = bytes(request_frame(Api.METADATA, 12, topics=[]))[:10]
        await peer.raw(login + half)
        assert (world.connections.strangers.used, world.connections.budget.used) == (0, len(half))
        peer.transport.lose()
        assert world.connections.budget.used == 0

    in_loop(scenario)


def test_a_client_that_does_not_authenticate_is_disconnected() -> None:
    async def scenario() -> None:
        world = World()
        peer = world.connect()
        for _ in range(module.AUTHENTICATES_S):
            world.connections.sweep()
        assert peer.transport.state == "aborted"

    in_loop(scenario)


def test_a_session_ends_and_is_renewed_by_the_same_client(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    for each in (sasl, module):
        monkeypatch.setattr(each, "now_ms", lambda: now[0])

    async def scenario() -> None:
        world = World(max_reauth_ms=10_000)
        peer = world.connect()
        await peer.handshake("TEST")
        assert (await peer.authenticate(b"alice:60000")).session_lifetime == 10_000
        now[0] = 5_000
        await peer.handshake("TEST")
        assert 0 < (await peer.authenticate(b"alice:9000")).session_lifetime <= 9_000
        now[0] = 13_000
        await peer.ask(Api.METADATA, 12, topics=[])
        now[0] = 20_000
        assert (await peer.handshake("TEST")).error_code == 0  # a session that has ended may still be renewed
        assert (await peer.authenticate(b"slow bob")).error_code == FAILED  # another user
        await until_async(lambda: peer.transport.state == "closed")
        peer = world.connect()
        await peer.handshake("TEST")
        await peer.authenticate(b"alice")
        now[0] = 30_000
        assert await peer.is_refused(Api.METADATA, 12, topics=[])
        assert world.seen == ["User:alice"]

    in_loop(scenario)


def test_a_session_is_renewed_by_the_same_mechanism_and_not_at_once() -> None:
    offer = Offer()
    authentication = Authentication(offer)
    authentication.handshake("PLAIN", 1, 0)
    assert not authentication.permits(Api.METADATA, 0)
    authentication.stepped(authentication.exchange.step(ALICE), 0, 0)
    assert authentication.permits(Api.PRODUCE, 10**12)
    for version, now_ms in ((1, 999), (0, 5_000)):
        with pytest.raises(IllegalSaslStateError):
            authentication.handshake("PLAIN", version, now_ms)
        assert authentication.state is State.DONE
    with pytest.raises(SaslAuthenticationFailedError, match="by PLAIN cannot authenticate again by TEST"):
        authentication.handshake("TEST", 1, 1_000)
    assert authentication.state is State.FAILED
    assert not authentication.permits(Api.SASL_HANDSHAKE, 0)


def test_a_credential_that_has_expired_opens_no_session() -> None:
    authentication = Authentication(Offer())
    authentication.handshake("TEST", 1, 0)
    with pytest.raises(SaslAuthenticationFailedError, match="expired"):
        authentication.stepped(Step(b"", Identity("alice", "TEST", 1_000)), 0, 1_000)
    assert authentication.state is State.FAILED


def test_an_exchange_has_an_end() -> None:
    async def scenario() -> None:
        peer = World().connect()
        await peer.handshake("TEST")
        for _ in range(sasl.STEPS_MAX - 1):
            assert (await peer.authenticate(b"more")).auth_bytes == b"go on"
        assert (await peer.authenticate(b"more")).error_code == FAILED
        await until_async(lambda: peer.transport.state == "closed")

    in_loop(scenario)


def test_a_mistake_in_a_mechanism_closes_the_connection() -> None:
    async def scenario() -> None:
        peer = World().connect()
        await peer.handshake("TEST")
        assert await peer.is_refused(Api.SASL_AUTHENTICATE, 2, auth_bytes=b"broken")

    in_loop(scenario)


def test_a_client_over_its_quota_waits_after_its_answer() -> None:
    async def scenario() -> None:
        world = World()

        async def throttled(call: Call, request: Message) -> dict[str, Any]:
            call.throttle_ms = 60_000
            return {}

        clock = LoopClock()
        world.connections.handlers = {Api.METADATA: throttled}
        world.security = connections.OPEN
        peer = world.connect()
        peer.connection.data_received(bytes(request_frame(Api.METADATA, 12, topics=[]) * 2))
        await until_async(lambda: bool(peer.transport.written))
        _, answer = read_answer(Api.METADATA, 12, peer.transport.client_reads()[4:])
        assert answer.throttle_time == 60_000
        clock.forward(30)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not peer.transport.written
        assert not peer.transport.is_reading_now
        clock.forward(30)
        await until_async(lambda: bool(peer.transport.written), "the second request is answered")
        clock.forward(60)
        await until_async(lambda: peer.transport.is_reading_now)

    in_loop(scenario)


@pytest.mark.parametrize("asks", [True, False], ids=["that asks", "that waits"])
def test_a_client_whose_token_is_removed_is_disconnected(asks: bool) -> None:
    async def scenario() -> None:
        world = World()
        peer, other = world.connect(), world.connect()
        for each, data in ((peer, ALICE), (other, b"\0bob\0secret")):
            await each.handshake()
            await each.authenticate(data)
        cast("Offer", world.security.sasl).revoked.add("alice")
        if asks:
            assert await peer.is_refused(Api.METADATA, 12)
        else:
            world.connections.sweep()
        assert peer.transport.state != "open"
        assert await other.ask(Api.METADATA, 12)

    in_loop(scenario)


@pytest.mark.parametrize("attacker", ["10.9.9.9", "2001:db8::{}"])
def test_passwords_are_checked_one_at_a_time_and_the_hosts_take_turns(
    attacker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that guesses passwords all the time delays another host's login by one check, and uses one core. All
    addresses of a /64 network may belong to one machine, so they count as one host."""

    async def scenario() -> None:
        world, slow = World(), Slow()
        monkeypatch.setattr(world.security.sasl, "start", lambda mechanism: slow)
        guesses = [f"guess-{number}".encode() for number in range(12)]
        attackers = [(world.connect(attacker.format(number)), guess) for number, guess in enumerate(guesses)]
        peers = [*attackers, (world.connect("10.0.0.1"), b"good")]
        for peer, _ in peers:
            await peer.handshake("TEST")
        logins = [asyncio.ensure_future(peer.authenticate(data)) for peer, data in peers]
        await until_async(lambda: slow.begun)
        slow.may_end.set()
        assert {(await login).error_code for login in logins} == {0}
        assert slow.at_once == 1
        assert slow.begun.index(b"good") <= 2

    in_loop(scenario)


def test_a_gateway_that_ends_drops_the_passwords_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World()
        peer = world.connect()
        await peer.handshake()
        world.connections.slow_steps.close()
        peer.connection.data_received(bytes(request_frame(Api.SASL_AUTHENTICATE, 2, auth_bytes=ALICE)))
        await until_async(lambda: peer.connection.client.authentication.state is State.FAILED)  # type: ignore[union-attr]
        world.connections.close(at_once=True)

    in_loop(scenario)
    assert logged(caplog) == []


def test_clients_that_connect_at_once_all_authenticate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_MAX", 3)

    async def scenario() -> None:
        world = World()
        peers = [world.connect() for _ in range(8)]
        assert [peer.transport.is_reading_now for peer in peers] == [True] * 3 + [False] * 5
        for peer in peers:
            assert peer.transport.is_reading_now
            await peer.handshake()
            assert (await peer.authenticate()).error_code == 0
        assert {peer.transport.state for peer in peers} == {"open"}
        assert not world.connections.entrance.active

    in_loop(scenario)


def test_a_client_that_ends_while_it_waits_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_MAX", 1)

    async def scenario() -> None:
        world = World()
        first, gone, last = world.connect(), world.connect(), world.connect()
        gone.transport.lose()
        first.transport.lose()
        assert list(world.connections.entrance.active) == [last.connection]
        assert not world.connections.entrance.waiting
        await last.handshake()
        assert (await last.authenticate()).error_code == 0

    in_loop(scenario)


def test_the_number_of_waiting_clients_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_MAX", 3)
    monkeypatch.setattr(connections, "WAITING_MAX", 2)

    async def scenario() -> None:
        world = World()
        peers = [world.connect() for _ in range(7)]
        assert [peer.transport.state for peer in peers] == ["aborted"] * 2 + ["open"] * 5
        assert [peer.transport.is_reading_now for peer in peers[2:]] == [True] * 3 + [False] * 2

    in_loop(scenario)


def test_silent_and_slow_clients_give_their_places_to_waiting_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_MAX", 3)
    monkeypatch.setattr(connections, "ROUND_S", 3_600.0)  # the test begins the rounds

    async def scenario() -> None:
        world = World()
        entrance = world.connections.entrance
        talking, silent, second = (world.connect() for _ in range(3))
        talking.connection.data_received((100_000).to_bytes(4, "big"))  # the beginning of a frame

        def pass_rounds(count: int) -> list[str]:
            for _ in range(count):
                talking.connection.data_received(b"\0")
                entrance.make_room()
            return [peer.transport.state for peer in (talking, silent, second)]

        late = world.connect()
        assert pass_rounds(module.SILENT_ROUNDS - 1) == ["open", "open", "open"]
        assert pass_rounds(1) == ["open", "aborted", "open"], "one client waits, so one has to go"
        silent.transport.lose()
        assert late.transport.is_reading_now

        later = world.connect()
        pass_rounds(1)
        assert second.transport.state == "aborted"
        second.transport.lose()
        assert later.transport.is_reading_now

        last = world.connect()
        late.connection.data_received((100_000).to_bytes(4, "big"))
        later.connection.data_received((100_000).to_bytes(4, "big"))
        while entrance.round < module.CROWDED_ROUNDS:
            assert talking.transport.state == "open"
            for peer in (late, later):
                peer.connection.data_received(b"\0")
            pass_rounds(1)
        assert talking.transport.state == "aborted", "it sends, but it does not authenticate"
        talking.transport.lose()
        assert last.transport.is_reading_now
        assert (late.transport.state, later.transport.state) == ("open", "open")

    in_loop(scenario)
