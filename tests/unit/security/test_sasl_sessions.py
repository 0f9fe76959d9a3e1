"""Sessions over a real listener: tokens are of one connection, exchanges are bounded, streams end with the session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_core.clock import SystemClock
from headrace_core.config.server_keys import SERVER
from headrace_core.errors import InvalidConfigError, ServerBusyError
from headrace_core.metadata.records import ScramCredentialRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.metadata.sorted_map import SortedMap
from headrace_core.node import sasl_sessions as module
from headrace_core.node.sasl_sessions import FAILURES_PER_CONNECTION_MAX, Sessions
from headrace_core.rpc import server
from headrace_core.rpc.channel import ChannelPurpose, open_channel
from headrace_core.rpc.server import Listener
from headrace_core.rpc.streams import PushHandler, ServerPush
from headrace_core.security.gate import SESSION_KEY, Gate
from headrace_core.security.sasl.mechanisms import Mechanisms
from headrace_core.security.sasl.plain import PlainClient
from headrace_core.security.sasl.scram import SHA_512, new_credential
from headrace_core.security.sasl.scram_exchange import ScramClient
from headrace_protos.v1 import (
    metadata_pb2,
    metadata_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    security_pb2,
    security_pb2_grpc,
)
from tests.worlds.waiting import LoopClock, in_loop, until_async

STATIC = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="s3cret" user_bob="b0b";'
CREDENTIAL = new_credential(SHA_512, "s3cret")
IMAGE = SecurityImage(
    scram=SortedMap(
        {
            ("alice", 2): ScramCredentialRecord(
                "alice", 2, CREDENTIAL.salt, CREDENTIAL.stored_key, CREDENTIAL.server_key, CREDENTIAL.iterations
            )
        }
    )
)


class Node(node_pb2_grpc.NodeServicer):
    async def DescribeNode(self, request: Any, context: Any) -> Any:
        return node_pb2.DescribeNodeResponse(role="broker")


@contextlib.asynccontextmanager
async def serving(
    *,
    static: bool = True,
    port: int = 0,
    image: Callable[[], Any] = lambda: IMAGE,
    metadata: Any = None,
    **options: Any,
) -> AsyncIterator[tuple[Listener, Sessions]]:
    values = SERVER.parse({"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512"})
    if static:
        values["plain.sasl.jaas.config"] = STATIC
    clock = SystemClock()
    sessions = Sessions(
        "client",
        Mechanisms(values, image, clock.now_ms),
        now_ms=clock.now_ms,
        **{"failed_delay_s": 0.0, **options},
    )
    listener = Listener("client", port=port, gate=Gate("client", "SASL_PLAINTEXT", sessions=sessions))
    listener.add(node_pb2_grpc.add_NodeServicer_to_server, Node(), "headrace.v1.Node")
    if metadata is not None:
        listener.add(metadata_pb2_grpc.add_MetadataServicer_to_server, metadata, "headrace.v1.Metadata")
    await listener.start()
    try:
        yield listener, sessions
    finally:
        await listener.stop(0)


@contextlib.asynccontextmanager
async def connected(listener: Listener) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(listener.address, ChannelPurpose.PRODUCE, has_own_connection=True) as channel:
        yield channel


async def exchange(channel: grpc.aio.Channel, client: Any, call: Any = None) -> tuple[Any, Any]:
    """Authenticate; returns the last answer and the call, which the caller keeps open."""
    call = call or security_pb2_grpc.AuthenticationStub(channel).Authenticate()
    request = security_pb2.AuthenticateRequest(mechanism=client.mechanism, data=client.first())
    while True:
        await call.write(request)
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise await _failure(call)
        data = client.step(answer.data)
        if answer.complete:
            assert client.is_complete
            return answer, call
        request = security_pb2.AuthenticateRequest(data=data)


async def end_of(call: Any) -> None:
    """Raise the status with which the server ends a call."""
    if await call.read() is grpc.aio.EOF:
        raise await _failure(call)


async def _failure(call: Any) -> Exception:
    return Refused(await call.code(), await call.details())


class Refused(Exception):
    """A call ended with an error status: (code, details)."""


async def ask(channel: grpc.aio.Channel, token: str = "") -> Any:
    metadata = ((SESSION_KEY, token),) if token else ()
    return await node_pb2_grpc.NodeStub(channel).DescribeNode(node_pb2.DescribeNodeRequest(), metadata=metadata)


async def refused(work: Any) -> str:
    with pytest.raises((grpc.aio.AioRpcError, Refused)) as caught:
        await work
    error = caught.value
    code, details = (error.code(), error.details()) if isinstance(error, grpc.aio.AioRpcError) else error.args
    assert code is grpc.StatusCode.UNAUTHENTICATED
    return str(details)


@pytest.mark.parametrize(
    "client", [PlainClient("alice", "s3cret"), ScramClient(SHA_512, "alice", "s3cret")], ids=lambda each: each.mechanism
)
@in_loop
async def test_a_session_opens_every_call_of_its_connection(client: Any) -> None:
    async with serving() as (listener, sessions), connected(listener) as channel:
        assert "not authenticated" in await refused(ask(channel))
        answer, _call = await exchange(channel, client)
        assert answer.principal == "User:alice"
        assert answer.session_lifetime_ms == 0
        assert (await ask(channel, answer.session_token)).role == "broker"
        assert len(sessions) == 1


@in_loop
async def test_plain_checks_the_scram_users_of_the_metadata() -> None:
    async with serving(static=False) as (listener, _), connected(listener) as channel:
        answer, _call = await exchange(channel, PlainClient("alice", "s3cret"))
        assert answer.principal == "User:alice"
        assert "credentials are wrong" in await refused(exchange(channel, PlainClient("alice", "other")))


@in_loop
async def test_a_stolen_token_is_worthless_on_another_connection_and_at_another_listener() -> None:
    async with serving() as (listener, _), serving() as (other, _), connected(listener) as channel:
        answer, _call = await exchange(channel, PlainClient("alice", "s3cret"))
        async with connected(listener) as thief, connected(other) as elsewhere:
            assert "authenticate again" in await refused(ask(thief, answer.session_token))
            assert "authenticate again" in await refused(ask(elsewhere, answer.session_token))
        assert (await ask(channel, answer.session_token)).role == "broker"


@in_loop
async def test_a_token_ends_with_the_call_that_opened_it() -> None:
    async with serving() as (listener, sessions), connected(listener) as channel:
        answer, call = await exchange(channel, PlainClient("alice", "s3cret"))
        call.cancel()
        await until_async(lambda: not len(sessions), "the session has ended")
        assert "authenticate again" in await refused(ask(channel, answer.session_token))


@in_loop
async def test_a_session_expires_and_ends_its_streams_unless_it_is_renewed() -> None:
    async with serving(max_reauth_ms=400_000) as (listener, _), connected(listener) as channel:
        clock = LoopClock()
        answer, call = await exchange(channel, PlainClient("alice", "s3cret"))
        assert answer.session_lifetime_ms == 400_000
        for _ in range(3):  # renewed before its end, the session outlives it
            clock.forward(200)
            again, _same = await exchange(channel, PlainClient("alice", "s3cret"), call)
            assert again.session_token == answer.session_token
        assert (await ask(channel, answer.session_token)).role == "broker"
        clock.forward(400)
        assert "expired" in await refused(end_of(call))
        await refused(ask(channel, answer.session_token))


class Waiting(metadata_pb2_grpc.MetadataServicer):
    """A stream that begins late, as a WatchMetadata that waits for an offset of the metadata."""

    def __init__(self) -> None:
        self.arrived, self.go = asyncio.Event(), asyncio.Event()

    async def WatchMetadata(self, request: Any, context: Any) -> None:
        self.arrived.set()
        await self.go.wait()
        await ServerPush(context).run(Silent(), idle_s=10.0)


class Silent(PushHandler[Any]):
    def next(self, is_due: bool) -> None:
        return None

    def on_closed(self) -> None:
        pass


@in_loop
async def test_a_stream_that_begins_after_the_end_of_its_session_ends_at_once() -> None:
    waiting = Waiting()
    async with serving(max_reauth_ms=300_000, metadata=waiting) as (listener, sessions), connected(listener) as channel:
        clock = LoopClock()
        answer, _call = await exchange(channel, PlainClient("alice", "s3cret"))
        watch = metadata_pb2_grpc.MetadataStub(channel).WatchMetadata(
            metadata_pb2.MetadataRequest(), metadata=((SESSION_KEY, answer.session_token),)
        )
        await waiting.arrived.wait()
        clock.forward(300)
        await until_async(lambda: not len(sessions), "the session has ended")
        waiting.go.set()
        async with asyncio.timeout(60):
            assert "expired" in await refused(end_of(watch))


@in_loop
async def test_a_connection_cannot_become_another_user() -> None:
    async with serving() as (listener, _), connected(listener) as channel:
        answer, call = await exchange(channel, PlainClient("alice", "s3cret"))
        assert "same user" in await refused(exchange(channel, PlainClient("bob", "b0b"), call))
        await refused(ask(channel, answer.session_token))


@in_loop
async def test_an_unknown_mechanism_names_those_that_there_are() -> None:
    class Other(PlainClient):
        mechanism = "CRAM-MD5"

    async with serving() as (listener, _), connected(listener) as channel:
        details = await refused(exchange(channel, Other("alice", "s3cret")))
        assert details.startswith("UNSUPPORTED_SASL_MECHANISM")
        assert "PLAIN, SCRAM-SHA-512" in details


@in_loop
async def test_a_connection_that_fails_too_often_is_refused_before_anything_is_computed() -> None:
    async with serving() as (listener, _), connected(listener) as channel:
        for _ in range(FAILURES_PER_CONNECTION_MAX):
            assert "credentials are wrong" in await refused(exchange(channel, PlainClient("alice", "guess")))
        assert "too often" in await busy(channel)
        async with connected(listener) as fresh:
            await exchange(fresh, PlainClient("alice", "s3cret"))


@in_loop
async def test_a_good_client_on_the_port_of_a_failed_connection_gets_in_soon() -> None:
    """gRPC names connections by their ports, which clients use again. The refusal was final, and each attempt made it
    longer."""
    async with serving() as (listener, _), connected(listener) as channel:
        clock = LoopClock()
        for _ in range(FAILURES_PER_CONNECTION_MAX):
            await refused(exchange(channel, PlainClient("alice", "guess")))
        clock.forward(module.FAILURES_KEPT_S / 2)
        assert await busy(channel)
        clock.forward(module.FAILURES_KEPT_S / 2)
        answer, _call = await exchange(channel, PlainClient("alice", "s3cret"))
        assert answer.complete


async def busy(channel: grpc.aio.Channel) -> str:
    """The refusal of a good login, which clients retry."""
    with pytest.raises((grpc.aio.AioRpcError, Refused)) as caught:
        await exchange(channel, PlainClient("alice", "s3cret"))
    assert "SERVER_BUSY" in str(caught.value)
    return str(caught.value)


async def turned_away(channel: grpc.aio.Channel) -> str:
    """The refusal of a new call, which clients retry. (The server does not wait for a message. If the client wrote one
    at the same time, gRPC could report an internal error in place of the server's status.)"""
    with pytest.raises((grpc.aio.AioRpcError, Refused), match="SERVER_BUSY") as caught:
        await end_of(security_pb2_grpc.AuthenticationStub(channel).Authenticate())
    return str(caught.value)


@in_loop
async def test_half_an_exchange_ends_in_time_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXCHANGES_PER_HOST_MAX", 1)
    async with serving() as (listener, _), connected(listener) as channel:
        clock = LoopClock()
        half = security_pb2_grpc.AuthenticationStub(channel).Authenticate()
        client = ScramClient(SHA_512, "alice", "s3cret")
        await half.write(security_pb2.AuthenticateRequest(mechanism=client.mechanism, data=client.first()))
        await half.read()
        assert "too many authentications are in progress" in await turned_away(channel)
        clock.forward(module.EXCHANGE_S_MAX)
        assert "took longer" in await refused(end_of(half))
        answer, _call = await exchange(channel, PlainClient("alice", "s3cret"))
        assert answer.complete


@in_loop
async def test_calls_without_a_first_message_are_exchanges_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call costs a node memory before its client has sent a message, so silent calls need a limit, too."""
    monkeypatch.setattr(module, "EXCHANGES_PER_HOST_MAX", 3)
    async with serving() as (listener, sessions), connected(listener) as channel, connected(listener) as other:
        first, *_ = silent = [security_pb2_grpc.AuthenticationStub(channel).Authenticate() for _ in range(3)]
        await until_async(lambda: len(sessions._calls) == 3)
        assert "too many authentications" in await turned_away(other)
        first.cancel()
        await until_async(lambda: len(sessions._calls) == 2)
        answer, call = await exchange(other, PlainClient("alice", "s3cret"))
        assert answer.complete, "a call that has ended makes room"
        again, _ = await exchange(other, PlainClient("alice", "s3cret"), call)
        assert again.session_token == answer.session_token, "an open session takes no room, and is renewed"
        silent.append(security_pb2_grpc.AuthenticationStub(channel).Authenticate())
        await until_async(lambda: len(sessions._calls) == 4)
        assert "too many authentications" in await turned_away(other)


@in_loop
async def test_the_addresses_of_one_machine_are_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine may use all addresses of an IPv6 network of 64 bits, so these addresses share one limit."""
    monkeypatch.setattr(module, "EXCHANGES_PER_HOST_MAX", 1)
    async with serving() as (_, sessions):
        calls = []

        def has_room(peer: str) -> bool:
            try:
                calls.append(module._Call(sessions, cast("Any", None), peer))
            except ServerBusyError:
                return False
            return True

        assert has_room("ipv6:%5B2001:db8::1%5D:4711")
        assert not has_room("ipv6:%5B2001:db8::2%5D:4711")
        assert has_room("ipv6:%5B2001:db8:0:1::2%5D:4711")
        assert has_room("ipv4:10.0.0.1:4711")
        assert has_room("ipv4:10.0.0.2:4711")
        assert not has_room("ipv6:%5B::ffff:10.0.0.2%5D:4711")
        for each in calls:
            each.on_closed()
        assert has_room("ipv6:%5B2001:db8::2%5D:4711")
        calls[-1].on_closed()


@in_loop
async def test_health_watches_of_a_listener_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch needs no login and never ends; a check ends at once, and is always served."""
    monkeypatch.setattr(server, "HEALTH_WATCHES_MAX", 2)
    async with serving() as (listener, _), connected(listener) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        watches = [stub.Watch(asked) for _ in range(2)]
        for each in watches:
            assert (await each.read()).status is not None
        with pytest.raises(grpc.aio.AioRpcError, match="SERVER_BUSY"):
            await stub.Watch(asked).read()
        await stub.Check(asked)
        watches[0].cancel()

        async with asyncio.timeout(10):
            while True:  # until the node knows of the end of the watch
                with contextlib.suppress(grpc.aio.AioRpcError):
                    if await stub.Watch(asked).read() is not grpc.aio.EOF:
                        break
                await asyncio.sleep(0.01)


@in_loop
async def test_messages_out_of_order_are_refused() -> None:
    async with serving() as (listener, _), connected(listener) as channel:
        call = security_pb2_grpc.AuthenticationStub(channel).Authenticate()
        await call.write(security_pb2.AuthenticateRequest(data=b"x"))
        assert (await refused(end_of(call))).startswith("ILLEGAL_SASL_STATE")


@in_loop
async def test_failed_logins_in_masses_do_not_keep_a_good_client_out() -> None:
    """500 wrong passwords with PBKDF2, from many connections: the good client is served between them."""
    async with serving(static=False) as (listener, sessions):
        async with contextlib.AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(connected(listener)) for _ in range(20)]

            async def attack(channel: grpc.aio.Channel) -> None:
                for _ in range(25):
                    with contextlib.suppress(Refused, grpc.aio.AioRpcError):
                        await exchange(channel, PlainClient("alice", "guess"))

            attacks = [asyncio.create_task(attack(each)) for each in channels]
            async with connected(listener) as channel, asyncio.timeout(10):
                answer, _call = await exchange(channel, ScramClient(SHA_512, "alice", "s3cret"))
                assert (await ask(channel, answer.session_token)).role == "broker"
            for each in attacks:
                await each
        async with asyncio.timeout(5):
            while len(sessions):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_a_listener_with_gssapi_and_without_a_keytab_does_not_start() -> None:
    """GSSAPI is Kafka's default."""
    with pytest.raises(
        InvalidConfigError, match=r"GSSAPI .* needs .*keyTab=.*; or set sasl.enabled.mechanisms to SCRAM"
    ):
        Mechanisms(SERVER.parse({}), lambda: IMAGE, SystemClock().now_ms)
