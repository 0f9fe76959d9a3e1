"""Channels of an authenticated client: they authenticate, renew, and replace the session of a restarted server."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_core.config.client_keys import ADMIN
from headrace_core.errors import (
    HeadraceError,
    InvalidConfigError,
    NetworkError,
    SaslAuthenticationFailedError,
    ServerBusyError,
)
from headrace_core.rpc import session_channel
from headrace_core.rpc.channel import ChannelPurpose
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.server import Listener
from headrace_core.rpc.session_channel import SessionChannels
from headrace_core.rpc.status import abort
from headrace_core.security.sasl.client import Login
from headrace_protos.v1 import node_pb2, node_pb2_grpc, security_pb2, security_pb2_grpc
from tests.unit.security.test_sasl_sessions import IMAGE, serving
from tests.worlds.this_process import free_port
from tests.worlds.waiting import check_in_time, in_loop, until_async

P = {"sasl_mechanism": "PLAIN"}
SCRAM_LOGIN = 'a.ScramLoginModule required username="a";'
JAAS = "org.apache.kafka.common.security.{}.{} required {};"


def login(**keys: Any) -> Login:
    return Login(ADMIN.parse({name.replace("_", "."): value for name, value in keys.items()}))


def scram(password: str = "s3cret") -> Login:
    return login(sasl_mechanism="SCRAM-SHA-512", sasl_username="alice", sasl_password=password)


async def ask(channel: Any, timeout: float = 5.0) -> Any:
    return await node_pb2_grpc.NodeStub(channel).DescribeNode(node_pb2.DescribeNodeRequest(), timeout=timeout)


@in_loop
async def test_calls_authenticate_by_themselves_and_share_one_session() -> None:
    async with serving() as (listener, sessions):
        channel = SessionChannels(None, scram()).open(listener.address, ChannelPurpose.CONTROL)
        answers = await asyncio.gather(*(ask(channel) for _ in range(20)))
        assert {each.role for each in answers} == {"broker"}
        assert len(sessions) == 1
        await channel.close()


@in_loop
async def test_wrong_credentials_are_final_and_typed_and_tried_once() -> None:
    attempts: list[Any] = []
    async with serving(on_attempt=lambda *attempt: attempts.append(attempt)) as (listener, _):
        channel = SessionChannels(None, scram("wrong")).open(listener.address, ChannelPurpose.CONTROL)
        for _ in range(3):
            with pytest.raises(SaslAuthenticationFailedError, match="credentials are wrong") as caught:
                await ask(channel)
            assert not caught.value.retriable
            assert "wrong" not in caught.value.message.replace("credentials are wrong", "")
        assert len(attempts) == 1
        await channel.close()


@in_loop
async def test_a_call_on_a_closed_channel_fails_at_once() -> None:
    async with serving() as (listener, _):
        channel = SessionChannels(None, scram()).open(listener.address, ChannelPurpose.CONTROL)
        await channel.close()
        with pytest.raises(NetworkError, match="the connection is closed"):
            await ask(channel)


@in_loop
async def test_a_refusal_that_calls_repeat_all_the_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is made after the client started can work: the client's own calls do not prolong the refusal."""
    monkeypatch.setattr(session_channel, "REFUSED_S", 0.2)
    attempts: list[Any] = []
    async with serving(on_attempt=lambda *attempt: attempts.append(attempt)) as (listener, _):
        channel = SessionChannels(None, scram("wrong")).open(listener.address, ChannelPurpose.CONTROL)
        began_s = time.monotonic()
        while len(attempts) < 3:
            check_in_time(began_s, 60, f"{len(attempts)} attempts")
            with pytest.raises(SaslAuthenticationFailedError):
                await ask(channel)
        await channel.close()


@in_loop
async def test_a_node_that_does_not_know_the_users_yet_asks_to_retry() -> None:
    known: list[Any] = []

    def image() -> Any:
        if not known:
            raise ServerBusyError("this node does not know the users yet; retry")
        return IMAGE

    async with serving(static=False, image=image) as (listener, _):
        channel = SessionChannels(None, scram()).open(listener.address, ChannelPurpose.CONTROL)
        with pytest.raises(ServerBusyError):
            await ask(channel)
        known.append(True)
        assert (await ask(channel)).role == "broker"  # at once: no refusal is remembered
        await channel.close()


@pytest.mark.parametrize(
    ("answer", "expected", "text"),
    [
        (None, SaslAuthenticationFailedError, "does not use SASL"),
        (SaslAuthenticationFailedError("too many failures"), SaslAuthenticationFailedError, "too many failures"),
        (ServerBusyError("too many sessions"), ServerBusyError, "too many sessions"),
    ],
    ids=["without SASL", "refuses", "is busy"],
)
@pytest.mark.parametrize("when", ["before the first message", "between two messages"])
def test_why_a_node_ended_the_authentication_is_known_also_while_the_client_prepares_its_answer(
    answer: HeadraceError | None, expected: type[HeadraceError], text: str, when: str
) -> None:
    """gRPC then refuses the client's next message, and does not say why."""
    is_first = when == "before the first message"

    class Ends(security_pb2_grpc.AuthenticationServicer):
        async def Authenticate(self, requests: Any, context: Any) -> Any:
            if not is_first:
                await context.read()
                await context.write(security_pb2.AuthenticateResponse(data=b"r="))
            if answer is None:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
            await abort(context, answer)

    class Slow:
        mechanism, is_complete = "PLAIN", False

        def __init__(self) -> None:
            self.channel: Any = None

        def first(self) -> bytes:
            return self._late() if is_first else b"n,,"

        def step(self, data: bytes) -> bytes:
            return self._late()

        def _late(self) -> bytes:
            began_s = time.monotonic()
            while not self.channel._session._end.is_over:
                check_in_time(began_s, 10, "the node did not end the call")
                time.sleep(0.001)
            return b"late"

    @in_loop
    async def run() -> None:
        listener = Listener("client")
        listener.add(security_pb2_grpc.add_AuthenticationServicer_to_server, Ends(), "headrace.v1.Authentication")
        await listener.start()
        try:
            channels, slow = SessionChannels(None, scram()), Slow()
            channels._start = lambda host: slow  # type: ignore[method-assign,assignment,return-value]
            slow.channel = channel = channels.open(listener.address, ChannelPurpose.CONTROL)
            with pytest.raises(expected, match=text):
                await ask(channel)
            await channel.close()
        finally:
            await listener.stop(0)

    run()


class Fails:
    """A login whose first step raises ``error``."""

    mechanism, is_complete = "PLAIN", False

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def first(self) -> bytes:
        if self._error is not None:
            raise self._error
        return b"n,,"


class Silent(security_pb2_grpc.AuthenticationServicer):
    async def Authenticate(self, requests: Any, context: Any) -> Any:
        await context.read()
        await asyncio.sleep(60)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied"),
        asyncio.InvalidStateError("of the user's own loop"),
        grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "no token today"),
    ],
    ids=lambda error: type(error).__name__,
)
@in_loop
async def test_a_login_that_cannot_be_prepared_is_not_taken_for_the_end_of_the_session(error: Exception) -> None:
    async with serving() as (listener, _):
        channels = SessionChannels(None, scram())
        channels._start = lambda host: Fails(error)  # type: ignore[method-assign,assignment,return-value]
        channel = channels.open(listener.address, ChannelPurpose.CONTROL)
        with pytest.raises(
            SaslAuthenticationFailedError, match=f"cannot begin the login: {type(error).__name__}"
        ) as failed:
            await ask(channel)
        assert failed.value.__cause__ is error
        await channel.close()


def test_a_node_that_never_answers_an_authentication_is_named_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_core.rpc.session_channel.EXCHANGE_S_MAX", 0.2)

    @in_loop
    async def run() -> None:
        listener = Listener("client")
        listener.add(security_pb2_grpc.add_AuthenticationServicer_to_server, Silent(), "headrace.v1.Authentication")
        await listener.start()
        try:
            channels = SessionChannels(None, scram())
            channels._start = lambda host: Fails(None)  # type: ignore[method-assign,assignment,return-value]
            channel = channels.open(listener.address, ChannelPurpose.CONTROL)
            with pytest.raises(NetworkError, match=r"no authentication within 0\.2 s"):
                await ask(channel)
            await channel.close()
        finally:
            await listener.stop(0)

    run()


def test_the_close_of_a_channel_leaves_no_login_that_waits_for_the_users_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a login was left alone after a second: "Task was destroyed but it is pending"."""
    monkeypatch.setattr(session_channel, "CLOSE_S", 0.1)
    is_begun, is_over = threading.Event(), threading.Event()

    class Waits(Fails):
        def first(self) -> bytes:
            is_begun.set()
            is_over.wait(60)
            return b""

    @in_loop
    async def run() -> None:
        async with serving() as (listener, _):
            channels = SessionChannels(None, scram())
            channels._start = lambda host: Waits(None)  # type: ignore[method-assign,assignment,return-value]
            channel = channels.open(listener.address, ChannelPurpose.CONTROL)
            asking = asyncio.create_task(ask(channel, timeout=60.0))
            try:
                await until_async(is_begun.is_set)
                await channel.close()
                assert [each for each in asyncio.all_tasks() if each.get_name().startswith("session ")] == []
                with pytest.raises(NetworkError):
                    await asking
            finally:
                is_over.set()

    run()


@in_loop
async def test_a_closed_channel_begins_no_login() -> None:
    """A call that the close had interrupted logged in again, and the close did not wait for this login."""
    async with serving() as (listener, _):
        channel = SessionChannels(None, scram()).open(listener.address, ChannelPurpose.CONTROL)
        await ask(channel)
        session = channel._session
        await session.close()
        with pytest.raises(NetworkError, match="the connection is closed"):
            await session.token()
        await channel.close()
        assert [each for each in asyncio.all_tasks() if each.get_name().startswith("session ")] == []


@in_loop
async def test_a_stream_that_waits_for_a_login_without_an_answer_ends_when_it_is_cancelled() -> None:
    """Found by an attacker: a stream with a limit of one second ended after 30 s."""
    listener = Listener("client")
    listener.add(security_pb2_grpc.add_AuthenticationServicer_to_server, Silent(), "headrace.v1.Authentication")
    await listener.start()
    channels = SessionChannels(None, scram())
    channels._start = lambda host: Fails(None)  # type: ignore[method-assign,assignment,return-value]
    stream: Duplex[Any, Any] = Duplex(
        listener.address,
        ChannelPurpose.CONTROL,
        lambda channel: security_pb2_grpc.AuthenticationStub(channel).Authenticate(),  # type: ignore[no-untyped-call]
        channels,
    )

    async def read() -> None:
        await stream.read()

    async def connect() -> None:
        async with asyncio.timeout(0.2):
            await stream.connected()

    try:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            await stream.run(read(), connect())
        check_in_time(begun, 5)
    finally:
        await listener.stop(0)


@in_loop
async def test_a_session_token_that_is_no_header_is_refused() -> None:
    class Answers(security_pb2_grpc.AuthenticationServicer):
        async def Authenticate(self, requests: Any, context: Any) -> Any:
            await context.read()
            await context.write(security_pb2.AuthenticateResponse(complete=True, session_token="a\nb"))
            await asyncio.sleep(60)

    class Accepts(Fails):
        is_complete = True

        def step(self, data: bytes) -> bytes:
            return b""

    listener = Listener("client")
    listener.add(security_pb2_grpc.add_AuthenticationServicer_to_server, Answers(), "headrace.v1.Authentication")
    await listener.start()
    try:
        channels = SessionChannels(None, scram())
        channels._start = lambda host: Accepts(None)  # type: ignore[method-assign,assignment,return-value]
        channel = channels.open(listener.address, ChannelPurpose.CONTROL)
        with pytest.raises(SaslAuthenticationFailedError, match="session token with characters"):
            await ask(channel)
        await channel.close()
    finally:
        await listener.stop(0)


@in_loop
async def test_sessions_are_renewed_under_load_without_an_error() -> None:
    async with serving(max_reauth_ms=250) as (listener, sessions):
        channels = SessionChannels(None, scram())
        start, exchanges = channels._start, []

        def counted(host: str) -> Any:
            exchanges.append(host)
            return start(host)

        channels._start = counted  # type: ignore[method-assign]
        channel = channels.open(listener.address, ChannelPurpose.CONTROL)
        while len(exchanges) < 6:
            await ask(channel)
        assert len(sessions) <= 1, "a renewal ends the former session"
        await channel.close()


@in_loop
async def test_a_renewal_that_comes_too_late_is_no_refusal_of_the_credentials() -> None:
    async with serving(max_reauth_ms=100) as (listener, sessions):
        channels = SessionChannels(None, scram())
        start, late = channels._start, []

        def start_late(host: str) -> Any:
            if len(sessions):  # this is a renewal
                late.append(host)
                while len(sessions):
                    time.sleep(0.001)
            return start(host)

        channels._start = start_late  # type: ignore[method-assign]
        channel = channels.open(listener.address, ChannelPurpose.CONTROL)
        began_s = time.monotonic()
        while len(late) < 5:
            check_in_time(began_s, 10, f"{len(late)} late renewals")
            assert (await ask(channel)).role == "broker"
        await channel.close()


@in_loop
async def test_a_server_that_restarted_gets_a_new_exchange() -> None:
    port = free_port()
    async with serving(port=port) as (listener, _):
        channel = SessionChannels(None, scram()).open(listener.address, ChannelPurpose.CONTROL)
        await ask(channel)
    async with serving(port=port) as (listener, sessions):
        began_s = time.monotonic()
        while True:
            try:
                answer = await ask(channel)
                break
            except SaslAuthenticationFailedError:
                raise
            except (grpc.aio.AioRpcError, HeadraceError):
                check_in_time(began_s, 10, "the server has not answered")
                await asyncio.sleep(0.05)
        assert answer.role == "broker"
        assert len(sessions) == 1
        await channel.close()


@pytest.mark.parametrize(
    "keys",
    [
        {
            "sasl_mechanism": "PLAIN",
            "sasl_jaas_config": JAAS.format("plain", "PlainLoginModule", 'username="alice" password="s3cret"'),
        },
        {"sasl_mechanisms": "PLAIN", "sasl_username": "alice", "sasl_password": "s3cret"},
        {
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_jaas_config": JAAS.format(
                "scram", "ScramLoginModule", 'username="alice" password="${env:HEADRACE_TEST_SECRET}"'
            ),
        },
        {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "alice", "sasl_password": "${env:HEADRACE_TEST_SECRET}"},
    ],
)
def test_the_common_forms_of_credentials(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "s3cret")

    @in_loop
    async def run() -> None:
        async with serving() as (listener, _):
            channel = SessionChannels(None, login(**keys)).open(listener.address, ChannelPurpose.CONTROL)
            assert (await ask(channel)).role == "broker"
            await channel.close()

    run()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (P, "sasl.username and sasl.password"),
        ({**P, "sasl_jaas_config": SCRAM_LOGIN}, "needs PlainLoginModule"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "oauth_cb"),
        ({"sasl_mechanism": "GSSAPI"}, r"sasl.mechanism=GSSAPI .* needs sasl.kerberos.service.name"),
        ({**P, "sasl_username": "a", "sasl_password": "${env:HEADRACE_NO_SUCH}"}, "HEADRACE_NO_SUCH is not set"),
        ({**P, "sasl_jaas_config": 'a.PlainLoginModule required username="x" password="hush'}, "not closed"),
        ({**P, "sasl_jaas_config": 'a.PlainLoginModule required username="x" password="hush"'}, "semicolon"),
    ],
)  # fmt: skip
def test_wrong_credentials_are_named_before_any_connection(keys: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why) as caught:
        login(**keys)
    assert "hush" not in caught.value.message


@in_loop
async def test_login_at_the_end_of_the_interpreter_needs_no_thread() -> None:
    """A producer logs in to send its last records, when Python's pools refuse work."""
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, int)
    await loop.shutdown_default_executor()
    assert await session_channel._in_thread(lambda data: data + b"!", b"first message") == b"first message!"
