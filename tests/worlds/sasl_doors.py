"""SASL exchanges by hand at the two doors of a secured cluster: a node's gRPC port, and a gateway's port for Kafka.

A door carries the attacker's bytes. A refusal has Kafka's name of the error at both doors.
"""

from __future__ import annotations

import queue
import ssl
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from headrace import LocalCluster
from headrace_core.errors import IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.security.gate import SESSION_KEY
from headrace_core.security.sasl.exchange import ClientExchange
from headrace_gateway.wire.apis import Api
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, security_pb2, security_pb2_grpc
from tests.worlds.kafka_protocol import ClosedError, KafkaWire

CLOSED = "closed"  #: The code of a refusal if the server only closes the connection.
FAILED, UNSUPPORTED, ILLEGAL = (
    each.code for each in (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError)
)
_CODES = {
    each.number: each.code
    for each in (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError)
}


class Refused(Exception):
    """``code``: Kafka's name of the error, or CLOSED."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Door(Protocol):
    """One connection. Its methods raise Refused."""

    def begin(self, mechanism: str, data: bytes) -> bytes:
        """Send the first message of an exchange; returns the server's answer."""

    def proceed(self, data: bytes) -> bytes:
        """Send the next message."""

    @property
    def is_open(self) -> bool:
        """Whether the exchange is complete, and the client has a session."""

    def topics(self) -> list[str]:
        """The topics that the client sees, as the authenticated user or without authentication."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class _Closing:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


def channel(cluster: LocalCluster, address: str = "") -> grpc.Channel:
    """A separate connection to a node's port; without ``address``, to the first broker's client port."""
    ca = (cluster.directory / "security" / "ca.pem").read_bytes()
    options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address or cluster.bootstrap_servers, grpc.ssl_channel_credentials(ca), options)


class SdkDoor(_Closing):
    """The door for the SDK, used without the SDK: gRPC's Authenticate on a separate connection."""

    def __init__(self, cluster: LocalCluster, *, through: grpc.Channel | None = None, address: str = "") -> None:
        self.channel = through or channel(cluster, address)
        self._own = through is None
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stub = security_pb2_grpc.AuthenticationStub(self.channel)  # type: ignore[no-untyped-call]
        self._answers = stub.Authenticate(iter(self._requests.get, None))
        self.token = ""

    def begin(self, mechanism: str, data: bytes) -> bytes:
        return self._ask(security_pb2.AuthenticateRequest(mechanism=mechanism, data=data))

    def proceed(self, data: bytes) -> bytes:
        return self._ask(security_pb2.AuthenticateRequest(data=data))

    def _ask(self, request: Any) -> bytes:
        self._requests.put(request)
        try:
            answer = next(self._answers)
        except grpc.RpcError as error:
            raise _refused(error) from None
        if answer.complete:
            self.token = answer.session_token
        return bytes(answer.data)

    @property
    def is_open(self) -> bool:
        return bool(self.token)

    def topics(self) -> list[str]:
        return topics_of(self.channel, self.token)

    def close(self) -> None:
        self._requests.put(None)
        self._answers.cancel()
        if self._own:
            self.channel.close()


def topics_of(made: grpc.Channel, token: str, *more: tuple[str, str]) -> list[str]:
    """The topics that a session sees. ``more``: further gRPC metadata of the call. Raises Refused."""
    metadata = [*([(SESSION_KEY, token)] if token else []), *more]
    try:
        stub = metadata_pb2_grpc.MetadataStub(made)  # type: ignore[no-untyped-call]
        answer = stub.GetMetadata(metadata_pb2.MetadataRequest(all_topics=True), metadata=metadata, timeout=10)
    except grpc.RpcError as error:
        raise _refused(error) from None
    return sorted(each.name for each in answer.topics)


def _refused(error: Any) -> Refused:
    code, colon, message = str(error.details()).partition(": ")
    return Refused(code, message) if colon else Refused(CLOSED, code)


class KafkaDoor(_Closing):
    """The door for Kafka's clients: SaslHandshake and SaslAuthenticate at a gateway."""

    def __init__(self, cluster: LocalCluster) -> None:
        context = ssl.create_default_context(cafile=str(cluster.directory / "security" / "ca.pem"))
        self.wire = KafkaWire(cluster.kafka_bootstrap_servers, tls=context)
        self._has_answered = False

    def begin(self, mechanism: str, data: bytes) -> bytes:
        answer = self._ask(Api.SASL_HANDSHAKE, mechanism=mechanism)
        if answer.error_code:
            raise Refused(_CODES[answer.error_code])
        return self.proceed(data)

    def proceed(self, data: bytes) -> bytes:
        answer = self._ask(Api.SASL_AUTHENTICATE, auth_bytes=data)
        if answer.error_code:
            raise Refused(_CODES[answer.error_code], answer.error_message or "")
        return bytes(answer.auth_bytes)

    def _ask(self, api: Api, **fields: Any) -> Any:
        try:
            return self.wire.ask(api, **fields)
        except ClosedError as error:
            raise Refused(CLOSED, str(error)) from None

    @property
    def is_open(self) -> bool:
        """Whether the gateway answers a request that needs authentication. (It closes the connection otherwise.)"""
        try:
            self.topics()
        except Refused:
            return False
        return True

    def topics(self) -> list[str]:
        answer = self._ask(Api.METADATA, topics=None, allow_auto_topic_creation=False)
        return sorted(each.name for each in answer.topics)

    def close(self) -> None:
        self.wire.__exit__(None, None, None)


def log_in(door: Door, client: ClientExchange) -> list[bytes]:
    """Authenticate; returns the client's messages. Raises Refused, or the error of a client that refuses the server."""
    sent = [client.first()]
    answer = door.begin(client.mechanism, sent[0])
    while not client.is_complete:
        data = client.step(answer)
        if data is None:
            break
        sent.append(data)
        answer = door.proceed(data)
    assert client.is_complete
    return sent
