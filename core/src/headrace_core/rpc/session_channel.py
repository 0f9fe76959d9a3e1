"""Channels of an authenticated client: every channel has a connection and a SASL session of its own.

The session is a call of Authenticate that stays open (node/sasl_sessions.py). Every other call waits until the channel
has a session, and carries the session's token. If the session has ended, for example because the server restarted, the
next call opens another session. Shortly before a session expires, the client authenticates again on the session's call,
so that its streams continue (KIP-368).

Wrong credentials end a call at once with SaslAuthenticationFailedError. The client then starts no other exchange for
REFUSED_S.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from headrace_protos.v1 import security_pb2, security_pb2_grpc

from ..errors import HeadraceError, NetworkError, SaslAuthenticationFailedError, UnsupportedVersionError
from ..security.sasl.client import Login
from ..security.sasl.exchange import NO_SASL, ClientExchange
from .call_end import CALL_ENDED, CallEnd, is_cancelled
from .channel import ChannelPurpose, Channels, Credentials, open_channel

SESSION_KEY = "headrace-session"
REFUSED_S = 2.0
EXCHANGE_S_MAX = 30.0
CLOSE_S = 1.0  #: Seconds that ``close`` waits for the session's task, before and after it cancels the task.

_Result = TypeVar("_Result")


class SessionChannels(Channels):
    """Opens the channels of a client with a ``login``."""

    def __init__(self, credentials: Credentials | None, login: Login, client_id: str = "") -> None:
        super().__init__(credentials)
        self._login, self._client_id = login, client_id
        self._window = login.renew_from, login.renew_to
        self._refused: tuple[float, SaslAuthenticationFailedError] | None = None

    def open(self, address: str, purpose: ChannelPurpose) -> Any:
        channel = open_channel(address, purpose, self.credentials, has_own_connection=True)
        return SessionChannel(
            channel, _Session(channel, address, self._start, self._client_id, self._note, self._window)
        )

    def _start(self, host: str) -> ClientExchange:
        if (refusal := self._refusal()) is not None:
            raise refusal.copy()
        return self._login.start(host)

    def _note(self, error: SaslAuthenticationFailedError) -> None:
        if self._refusal() is None:  # do not extend REFUSED_S when this code only repeats an earlier refusal
            self._refused = time.monotonic(), error

    def _refusal(self) -> SaslAuthenticationFailedError | None:
        """The error with which the server refused a login in the last REFUSED_S seconds; None if it refused none."""
        if self._refused is None or time.monotonic() - self._refused[0] >= REFUSED_S:
            return None
        return self._refused[1]


class _Session:
    """The session of one channel."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        start: Callable[[str], ClientExchange],
        client_id: str,
        refused: Callable[[SaslAuthenticationFailedError], None],
        window: tuple[float, float],
    ) -> None:
        self._channel, self._address = channel, address
        self._start, self._client_id, self._refused, self._window = start, client_id, refused, window
        self._end: CallEnd | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[str] | None = None
        self._is_closed = False

    async def token(self) -> str:
        """The token of the present session; the method authenticates first if there is no session. Raises
        HeadraceError."""
        if self._is_closed:
            raise NetworkError(f"{self._address}: the connection is closed")
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._ready), name=f"session {self._address}")
        return await asyncio.shield(self._ready)

    def forget(self, token: str) -> None:
        """Close the session that has this token, because the server does not know the token; the next call opens a new
        session."""
        ready = self._ready
        is_open = ready is not None and ready.done() and not ready.cancelled() and not ready.exception()
        if is_open and ready is not None and ready.result() == token:
            self._ready = None
            if self._end is not None:
                self._end.cancel()

    async def close(self) -> None:
        self._is_closed = True
        if self._end is not None:
            self._end.cancel()
        if self._task is not None:
            _, waiting = await asyncio.wait({self._task}, timeout=CLOSE_S)
            if waiting:  # The task waits for the user's code, such as a token callback.
                self._task.cancel()
                await asyncio.wait(waiting, timeout=CLOSE_S)

    async def _run(self, ready: asyncio.Future[str]) -> None:
        try:
            call = security_pb2_grpc.AuthenticationStub(self._channel).Authenticate()  # type: ignore[no-untyped-call]
        except grpc.aio.UsageError:  # the client closed the channel
            ready.set_exception(NetworkError(f"{self._address}: the connection is closed"))
            ready.exception()  # a caller may have been cancelled
            return
        end = self._end = CallEnd(call, self._address)
        pending: asyncio.Task[Any] | None = None
        failure: HeadraceError = NetworkError(
            f"{self._address}: the SASL session ended; the next call opens another session"
        )
        is_too_slow = False

        def give_up() -> None:
            nonlocal is_too_slow
            is_too_slow = True
            end.cancel()

        timer = asyncio.get_running_loop().call_later(EXCHANGE_S_MAX, give_up)
        try:
            while True:
                answer = await self._exchange(call, pending)
                timer.cancel()
                if not ready.done():
                    ready.set_result(answer.session_token)
                life_s = answer.session_lifetime_ms / 1_000
                pending = asyncio.create_task(call.read())
                pause_s = life_s * random.uniform(*self._window) if life_s else None
                done, _ = await asyncio.wait({pending}, timeout=pause_s)
                if done:
                    return
        except HeadraceError as error:
            failure = error
        except (*CALL_ENDED, asyncio.CancelledError):
            if is_cancelled():
                raise
            failure = self._failure(await end.error())
            if is_too_slow:
                failure = NetworkError(f"{self._address}: no authentication within {EXCHANGE_S_MAX:g} s")
        finally:
            timer.cancel()
            end.cancel()
            if pending is not None and pending.done() and not pending.cancelled():
                pending.exception()
            if self._ready is ready:
                self._ready = None
            # a session that ended near its expiry may have expired, so the next call authenticates again
            if not ready.done():
                if isinstance(failure, SaslAuthenticationFailedError):
                    self._refused(failure)
                ready.set_exception(failure)
                ready.exception()  # a caller may have been cancelled

    async def _exchange(self, call: Any, pending: asyncio.Task[Any] | None) -> Any:
        host = self._address.rpartition(":")[0].strip("[]")
        client = await _in_thread(self._start, host)
        data = await _in_thread(client.first)
        request = security_pb2.AuthenticateRequest(mechanism=client.mechanism, data=data, client_id=self._client_id)
        while True:
            await call.write(request)
            answer = await (call.read() if pending is None else pending)
            pending = None
            if answer is grpc.aio.EOF or answer is None:
                raise NetworkError(f"{self._address}: the server ended the authentication")
            reply = await _in_thread(client.step, answer.data)
            if answer.complete:
                if not client.is_complete:
                    raise SaslAuthenticationFailedError(
                        f"{client.mechanism}: {self._address} did not prove its identity"
                    )
                if not (answer.session_token.isascii() and answer.session_token.isprintable()):  # it is a header
                    raise SaslAuthenticationFailedError(
                        f"{client.mechanism}: {self._address} sent a session token with characters that are not allowed"
                    )
                return answer
            request = security_pb2.AuthenticateRequest(data=reply or b"")

    def _failure(self, found: HeadraceError) -> HeadraceError:
        if isinstance(found, UnsupportedVersionError):
            return SaslAuthenticationFailedError(
                f"the listener at {self._address} {NO_SASL}; check security.protocol and the port"
            )
        return found


async def _in_thread(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run the client's part of an exchange, which may read files or call the user's code. Raises HeadraceError."""
    step = partial(contextvars.copy_context().run, work, *arguments)
    try:
        try:
            running = asyncio.get_running_loop().run_in_executor(None, step)
        except RuntimeError:  # the interpreter is ending and starts no more threads: a producer sends its last records
            return step()
        return await running
    except HeadraceError:
        raise
    except Exception as error:
        # The text of an exception other than OSError may contain a secret, so show only the exception's type.
        why = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__
        raise SaslAuthenticationFailedError(f"cannot begin the login: {why}") from error


class SessionChannel:
    """A gRPC channel whose calls carry the session's token, with the methods of grpc.aio.Channel that stubs, Duplex and
    pools use."""

    def __init__(self, channel: grpc.aio.Channel, session: _Session) -> None:
        self._channel, self._session = channel, session

    def unary_unary(self, *args: Any, **options: Any) -> Callable[..., Any]:
        method = self._channel.unary_unary(*args, **options)
        session = self._session

        async def call(request: Any, *, timeout: float | None = None, metadata: Any = None, **more: Any) -> Any:
            ends_s = None if timeout is None else time.monotonic() + timeout
            for attempt in range(2):
                try:
                    async with asyncio.timeout(timeout):
                        token = await session.token()
                except TimeoutError:
                    raise NetworkError(f"{session._address}: no authentication within {timeout:g} s") from None
                left_s = None if ends_s is None else max(ends_s - time.monotonic(), 0.001)
                try:
                    return await method(request, timeout=left_s, metadata=_with(metadata, token), **more)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAUTHENTICATED or attempt:
                        raise
                    session.forget(token)  # the call was refused before it had an effect
            raise AssertionError("unreachable")

        return call

    def unary_stream(self, *args: Any, **options: Any) -> Callable[..., Any]:
        method = self._channel.unary_stream(*args, **options)
        return lambda request, *, metadata=None, **more: _Stream(
            self._session, lambda token: method(request, metadata=_with(metadata, token), **more)
        )

    def stream_stream(self, *args: Any, **options: Any) -> Callable[..., Any]:
        method = self._channel.stream_stream(*args, **options)
        return lambda *, metadata=None, **more: _Stream(
            self._session, lambda token: method(metadata=_with(metadata, token), **more)
        )

    def stream_unary(self, *args: Any, **options: Any) -> Callable[..., Any]:
        raise NotImplementedError("stream-unary calls are not supported, because no service has them")

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def close(self, grace: float | None = None) -> None:
        if not grace:
            await self._session.close()
        await self._channel.close(grace)


class _Stream:
    """A streaming call that begins when there is a session. The status UNAUTHENTICATED means that the session has
    ended. The caller sees UNAVAILABLE instead, so that it connects again."""

    def __init__(self, session: _Session, begin: Callable[[str], Any]) -> None:
        self._session, self._begin = session, begin
        self._call: Any = None
        self._token = ""
        self._cancelled = asyncio.get_running_loop().create_future()
        self._callbacks: list[Callable[[Any], None]] = []

    async def _opened(self) -> Any:
        if self._call is None:
            token = await self._session_token()
            if self._call is None:  # the reading and the writing task may both have waited
                self._token = token
                self._call = self._begin(token)
                self._call.add_done_callback(self._done)
        return self._call

    async def _session_token(self) -> str:
        """Wait for the session, or until ``cancel``: a node may leave a login unanswered for EXCHANGE_S_MAX."""
        waiting = asyncio.create_task(self._session.token())
        try:
            await asyncio.wait({waiting, self._cancelled}, return_when=asyncio.FIRST_COMPLETED)
            if self._cancelled.done():
                raise asyncio.InvalidStateError("the call was cancelled before it had a session")
            return waiting.result()
        finally:
            if not waiting.cancel() and not waiting.cancelled():
                waiting.exception()  # a cancelled call does not report it

    def _done(self, call: Any) -> None:
        for each in self._callbacks:
            each(self)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def cancel(self) -> bool:
        if not self._cancelled.done():
            self._cancelled.set_result(None)
        return False if self._call is None else bool(self._call.cancel())

    async def wait_for_connection(self) -> None:
        await (await self._opened()).wait_for_connection()

    async def write(self, request: Any) -> None:
        await (await self._opened()).write(request)

    async def read(self) -> Any:
        return await (await self._opened()).read()

    async def done_writing(self) -> None:
        await (await self._opened()).done_writing()

    async def code(self) -> grpc.StatusCode:
        code = await self._call.code()
        if code is grpc.StatusCode.UNAUTHENTICATED:
            self._session.forget(self._token)
            return grpc.StatusCode.UNAVAILABLE
        return code

    async def details(self) -> str:
        details = await self._call.details() or ""
        return str(details).removeprefix("SASL_AUTHENTICATION_FAILED: ")

    async def trailing_metadata(self) -> Any:
        return await self._call.trailing_metadata()


def _with(metadata: Any, token: str) -> tuple[tuple[str, str], ...]:
    return (*(metadata or ()), (SESSION_KEY, token))
