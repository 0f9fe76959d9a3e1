"""Sessions of authenticated connections, and the service Authentication that opens them.

A session lasts as long as the call Authenticate that opened it: the client keeps the call open. A session therefore
ends with its connection, and no other connection can inherit the session. The session's token is a random number, of
which the node keeps only a hash. The token is valid only on the connection (gRPC's ``peer``) of the call, at this
listener of this node. On the same call a client authenticates again before the session expires (KIP-368); the token and
the principal stay the same.

    NEW --first request--> EXCHANGING --complete--> OPEN --first request--> EXCHANGING AGAIN --complete--> OPEN
                               | failed: the call ends         | expired or the call ends: the session is over

A session that a client opened with a delegation token also ends within TOKENS_LOOK_S of the token's removal. A token is
removed because it was stolen, or because its job is over. (In Kafka, a session continues after its delegation token was
removed.)

Limits apply to the exchanges in progress of the listener and of each host, and to the time and the messages of an
exchange. An exchange is in progress from the beginning of its call, so that calls without a request are limited, too.
Sessions and failed exchanges of a connection have limits of their own. Slow steps (PBKDF2) run in one thread, which
serves the clients' hosts in turn.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from headrace_protos.v1 import security_pb2, security_pb2_grpc

from ..errors import (
    HeadraceError,
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    ServerBusyError,
    UnknownServerError,
)
from ..rpc.streams import ServerStream, StreamHandler
from ..security.acl_types import host_of, network_of
from ..security.sasl.exchange import Identity, ServerExchange
from ..security.sasl.mechanisms import Mechanisms
from ..security.sasl.slow_steps import SlowSteps
from ..security.session import Session, set_session
from ..unexpected import log_fields, request_id_of

logger = logging.getLogger("headrace.security")

SERVICE = "headrace.v1.Authentication"
TOKEN_BYTES = 32
CLIENT_ID_CHARS_MAX = 255
EXCHANGE_S_MAX = 30.0  #: Seconds that one exchange may take.
STEPS_MAX = 12  #: Maximum number of messages of a client in one exchange.
#: Maximum number of exchanges in progress: at one listener, and from one host (for IPv6: from one /64 network).
EXCHANGES_MAX, EXCHANGES_PER_HOST_MAX = 1_000, 100
SESSIONS_PER_CONNECTION_MAX = 8
TOKENS_LOOK_S = 1.0  #: Seconds between two checks whether the delegation tokens of the sessions are still valid.
#: After this number of failed exchanges on one connection, the node refuses further exchanges for FAILURES_KEPT_S,
#: without a check of credentials. (A check can be slow, such as PBKDF2.) gRPC names a connection only by its client's
#: host and port, and does not report the connection's end. The node therefore also refuses exchanges on the next
#: connection from the same host and port, which may belong to another client. Because another client may be refused,
#: the refusal is short, and clients retry.
FAILURES_PER_CONNECTION_MAX = 10
FAILURES_KEPT_S, FAILURES_KEPT_MAX = 10.0, 10_000


class Failures:
    """Counts the failed exchanges of connections."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, peer: str) -> None:
        count = self.count(peer) + 1
        self._counts[peer] = count, self._now_s()
        self._counts.move_to_end(peer)
        while len(self._counts) > FAILURES_KEPT_MAX:
            self._counts.popitem(last=False)

    def count(self, peer: str) -> int:
        count, at_s = self._counts.get(peer, (0, 0.0))
        return count if self._now_s() - at_s < FAILURES_KEPT_S else 0


class Sessions:
    """The sessions of one listener. ``now_ms``: milliseconds since 1970, for the expiry of credentials.

    ``max_reauth_ms``: connections.max.reauth.ms; 0: sessions last as long as their credentials. ``failed_delay_s``:
    how long the answer to a failed exchange waits. ``on_attempt(peer, mechanism, user or None, error or None)`` is
    called after each exchange, for metrics and the audit log.
    """

    def __init__(
        self,
        listener: str,
        mechanisms: Mechanisms,
        *,
        now_ms: Callable[[], float],
        max_reauth_ms: int = 0,
        failed_delay_s: float = 0.1,
        receive_bytes_max: int = 524_288,
        on_attempt: Callable[[str, str, str | None, HeadraceError | None], None] = lambda *_: None,
    ) -> None:
        self.listener = listener
        self.mechanisms = mechanisms
        self.now_ms = now_ms
        self.max_reauth_ms = max_reauth_ms
        self.failed_delay_s = failed_delay_s
        self.receive_bytes_max = receive_bytes_max
        self.on_attempt = on_attempt
        self._slow_steps = SlowSteps()
        self._sessions: dict[bytes, Session] = {}
        self._of_peer: dict[str, int] = {}
        self._exchanges: dict[str, int] = {}  # exchanges in progress by host
        self._in_progress = 0
        self._calls: dict[_Call, None] = {}
        self._by_token: dict[_Call, Identity] = {}  # the calls whose session was opened with a delegation token
        self._look: asyncio.TimerHandle | None = None
        self._mechanisms_task: asyncio.Task[None] | None = None
        self._failures: Failures | None = None
        self._closing: HeadraceError | None = None

    def __len__(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    @property
    def failures(self) -> Failures:
        if self._failures is None:
            self._failures = Failures(asyncio.get_running_loop().time)
        return self._failures

    def start(self) -> None:
        """Start the background work of the mechanisms."""
        if self._mechanisms_task is None:
            self._mechanisms_task = asyncio.get_running_loop().create_task(self.mechanisms.run(), name="sasl keys")

    def register(self, listener: Any) -> None:
        """Serve Authentication on ``listener`` (rpc.server.Listener); call ``serve`` before the listener starts."""
        listener.add(security_pb2_grpc.add_AuthenticationServicer_to_server, AuthenticationService(self), SERVICE)

    def session_of(self, token: str, peer: str) -> Session:
        """Return the session of a call's token, and set it for the current task, so that the call's streams end with
        the session. Raises SaslAuthenticationFailedError for a token that is unknown at the listener, belongs to
        another connection, or has expired."""
        session = self._sessions.get(_hash(token))
        if session is None or session.peer != peer:
            raise SaslAuthenticationFailedError(
                f"the session does not belong to this connection to listener {self.listener}; authenticate again"
            )
        if self.mechanisms.is_revoked(session.identity):
            raise _revoked()
        if session.expires_s is not None and asyncio.get_running_loop().time() >= session.expires_s:
            raise _expired()
        set_session(session)
        return session

    def open(self, identity: Identity, peer: str, client_id: str) -> tuple[Session, str]:
        """Open a session; returns the session and its token. Raises ServerBusyError when the connection has
        SESSIONS_PER_CONNECTION_MAX sessions already."""
        if self._of_peer.get(peer, 0) >= SESSIONS_PER_CONNECTION_MAX:
            raise ServerBusyError(
                f"the connection has {SESSIONS_PER_CONNECTION_MAX} sessions; close one of its Authenticate calls"
            )
        token = base64.urlsafe_b64encode(secrets.token_bytes(TOKEN_BYTES)).rstrip(b"=").decode()
        session = Session(identity, peer, client_id[:CLIENT_ID_CHARS_MAX], _hash(token))
        self._sessions[session.token_hash] = session
        self._of_peer[peer] = self._of_peer.get(peer, 0) + 1
        return session, token

    def lifetime_ms(self, identity: Identity) -> int:
        """How long a session may last from now; 0: until its connection ends."""
        limits = [self.max_reauth_ms] if self.max_reauth_ms else []
        if identity.expires_at_ms is not None:
            limits.append(max(int(identity.expires_at_ms - self.now_ms()), 1))
        return min(limits, default=0)

    def end(self, session: Session, why: HeadraceError) -> None:
        """End a session and its streams."""
        if self._sessions.pop(session.token_hash, None) is None:
            return
        left = self._of_peer[session.peer] - 1
        if left:
            self._of_peer[session.peer] = left
        else:
            del self._of_peer[session.peer]
        session.over(why)

    def begin(self, host: str) -> None:
        """Count a new exchange of ``host``. Raises ServerBusyError when the host, or all hosts together, have too many
        exchanges in progress, and the error of ``close`` after ``close``."""
        if self._closing is not None:
            raise self._closing.copy()
        if self._in_progress >= EXCHANGES_MAX or self._exchanges.get(host, 0) >= EXCHANGES_PER_HOST_MAX:
            raise ServerBusyError("too many authentications are in progress; retry")
        self._in_progress += 1
        self._exchanges[host] = self._exchanges.get(host, 0) + 1

    def done(self, host: str) -> None:
        """Count an exchange of ``host`` as ended."""
        self._in_progress -= 1
        left = self._exchanges[host] - 1
        if left:
            self._exchanges[host] = left
        else:
            del self._exchanges[host]

    async def step(self, exchange: ServerExchange, data: bytes, host: str) -> Any:
        """Run one step of an exchange; slow steps run in the thread for slow steps."""
        return await self._slow_steps.run(exchange, data, host) if exchange.is_slow(data) else exchange.step(data)

    def close(self, why: HeadraceError) -> None:
        """End all calls of Authenticate, because the listener stops. Sessions end with their calls; the owners of the
        sessions' streams end the streams."""
        self._closing = why
        if self._mechanisms_task is not None:
            self._mechanisms_task.cancel()
            self._mechanisms_task = None
        if self._look is not None:
            self._look.cancel()
        for call in list(self._calls):
            call.finish(why.copy())
        self._slow_steps.close()

    def add_call(self, call: _Call) -> None:
        self._calls[call] = None

    def remove_call(self, call: _Call) -> None:
        self._calls.pop(call, None)
        self._by_token.pop(call, None)

    def watch_token(self, call: _Call, identity: Identity) -> None:
        """End the call after the token of ``identity`` has been removed; never for an identity without a token."""
        if identity.token_id is None or self._closing is not None:
            self._by_token.pop(call, None)
            return
        self._by_token[call] = identity
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(TOKENS_LOOK_S, self._look_at_tokens)

    def _look_at_tokens(self) -> None:
        self._look = None
        for call, identity in list(self._by_token.items()):
            if self.mechanisms.is_revoked(identity):
                del self._by_token[call]
                call.finish(_revoked())
        if self._by_token:
            self._look = asyncio.get_running_loop().call_later(TOKENS_LOOK_S, self._look_at_tokens)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _revoked() -> SaslAuthenticationFailedError:
    return SaslAuthenticationFailedError("the delegation token has been removed or has expired; get another one")


def _expired() -> SaslAuthenticationFailedError:
    return SaslAuthenticationFailedError("the session has expired; authenticate again")


class AuthenticationService(security_pb2_grpc.AuthenticationServicer):
    """headrace.v1.Authentication of one listener."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def Authenticate(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        call = _Call(self._sessions, stream, context.peer())
        self._sessions.add_call(call)
        await stream.run(call)


class _Call(StreamHandler[Any]):
    """One call of Authenticate: exchanges, and the session that they open and renew."""

    def __init__(self, sessions: Sessions, stream: ServerStream[Any, Any], peer: str) -> None:
        """Raises the errors of ``Sessions.begin``."""
        self._sessions, self._stream, self._peer = sessions, stream, peer
        self._host = network_of(host_of(peer))
        sessions.begin(self._host)
        self._is_counted = True  # as an exchange in progress, which the client may not have begun yet
        self._exchange: ServerExchange | None = None
        self._mechanism = ""
        self._client_id = ""
        self._steps = 0
        self._session: Session | None = None
        self._token = ""
        self._task: asyncio.Task[None] | None = None
        loop = self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = loop.call_later(EXCHANGE_S_MAX, self._too_slow)
        self._expiry: asyncio.TimerHandle | None = None

    def on_request(self, request: Any) -> None:
        if self._task is not None:
            raise IllegalSaslStateError(
                "wait for the answer of the server before you send the next message of the exchange"
            )
        if len(request.data) > self._sessions.receive_bytes_max:
            raise SaslAuthenticationFailedError(
                f"the message has {len(request.data)} bytes, at most {self._sessions.receive_bytes_max} are accepted "
                "(sasl.server.max.receive.size)"
            )
        if request.mechanism:
            if self._exchange is not None:
                raise IllegalSaslStateError("an exchange is in progress; only its first message names a mechanism")
            self._begin(request)
        elif self._exchange is None:
            raise IllegalSaslStateError("the first message of an exchange must name the mechanism")
        self._stream.pause()
        self._task = self._loop.create_task(self._step(bytes(request.data)))

    def is_idle(self) -> bool:
        """When the client closes its side of the call, its session ends."""
        return self._task is None

    def _begin(self, request: Any) -> None:
        if not self._is_counted:
            self._sessions.begin(self._host)
            self._is_counted = True
        self._steps = 0
        self._mechanism = request.mechanism
        self._client_id = request.client_id
        self._exchange = _REFUSED
        if self._timer is None:
            self._timer = self._loop.call_later(EXCHANGE_S_MAX, self._too_slow)

    async def _step(self, data: bytes) -> None:
        sessions = self._sessions
        try:
            if sessions.failures.count(self._peer) >= FAILURES_PER_CONNECTION_MAX:
                raise ServerBusyError(
                    f"the connection has failed to authenticate too often; use another connection, or retry in "
                    f"{FAILURES_KEPT_S:g} s"
                )
            if self._steps == 0:
                self._exchange = sessions.mechanisms.start(self._mechanism)
            self._steps += 1
            if self._steps > STEPS_MAX:
                raise SaslAuthenticationFailedError(
                    f"the exchange of {self._mechanism} has more than {STEPS_MAX} messages"
                )
            assert self._exchange is not None
            step = await sessions.step(self._exchange, data, self._host)
            answer = security_pb2.AuthenticateResponse(data=step.data)
            if step.identity is not None:
                self._complete(step.identity, answer)
            self._task = None
            self._stream.send(answer, len(step.data) + 64)
            self._stream.resume()
        except HeadraceError as error:
            await self._failed(error)
        except Exception as error:  # a bug in a mechanism must not leave the call waiting
            exchange = f"an exchange of {self._mechanism[:40]}"
            logger.exception("%s failed", exchange, extra=log_fields(error))
            id_ = request_id_of(error)
            # Do not send the exception's text, because this client is not authenticated.
            await self._failed(UnknownServerError(f"{exchange}: {type(error).__name__} (request id {id_})"))

    def _complete(self, identity: Identity, answer: Any) -> None:
        sessions = self._sessions
        if self._session is None:
            self._session, self._token = sessions.open(identity, self._peer, self._client_id)
        elif identity.user != self._session.identity.user or identity.mechanism != self._session.identity.mechanism:
            raise SaslAuthenticationFailedError(
                "a connection must authenticate again with the same mechanism and as the same user (KIP-368)"
            )
        else:
            self._session.identity = identity
        lifetime_ms = sessions.lifetime_ms(identity)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._session.expires_s = None
        if lifetime_ms:
            self._session.expires_s = self._loop.time() + lifetime_ms / 1_000
            self._expiry = self._loop.call_at(self._session.expires_s, self.finish, _expired())
        sessions.watch_token(self, identity)
        self._done()
        answer.complete = True
        answer.session_token = self._token
        answer.session_lifetime_ms = lifetime_ms
        answer.principal = str(identity.principal)
        sessions.on_attempt(self._peer, self._mechanism, identity.user, None)

    async def _failed(self, error: HeadraceError) -> None:
        """Answer a failed exchange, with a delay. A failed renewal also ends the session."""
        sessions = self._sessions
        if not error.retriable:
            sessions.failures.add(self._peer)
        sessions.on_attempt(self._peer, self._mechanism, None, error)
        await asyncio.sleep(sessions.failed_delay_s)
        self.finish(error)

    def _done(self) -> None:
        self._exchange = None
        if self._is_counted:
            self._is_counted = False
            self._sessions.done(self._host)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self.finish(SaslAuthenticationFailedError(f"the authentication took longer than {EXCHANGE_S_MAX:g} s"))

    def finish(self, why: HeadraceError) -> None:
        """End the session and the call."""
        self._end_session(why)
        self._stream.finish(why)

    def _end_session(self, why: HeadraceError) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._sessions.end(session, why)

    def on_closed(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self._done()
        self._end_session(SaslAuthenticationFailedError("the call that opened the session has ended"))
        self._sessions.remove_call(self)


class _Refused:
    """Placeholder for an exchange until its mechanism is known to exist."""

    def is_slow(self, data: bytes) -> bool:
        return False

    def step(self, data: bytes) -> Any:
        raise IllegalSaslStateError("the exchange has not begun")


_REFUSED = _Refused()
