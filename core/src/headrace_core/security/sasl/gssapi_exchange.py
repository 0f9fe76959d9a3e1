"""GSSAPI (RFC 4752) with Kerberos 5: tickets in place of passwords.

    client  AP-REQ (the ticket)                      ->
                                                     <-  AP-REP (the server proves that it has the service's key)
            empty                                    ->
                                                     <-  wrapped: the security layers (1: none), 3 bytes of size (0)
            wrapped: 1, 3 bytes of size, authzid     ->  complete

TLS protects the connection, so "no security layer" is the only offer, as in Kafka. The ticket's session key protects
the wrapped messages, so a message of another exchange is refused.
"""

from __future__ import annotations

from typing import Any

from .exchange import GSSAPI, Identity, Step, failed
from .kerberos import Acceptor, Initiator

NO_LAYER = 1
OFFER = bytes((NO_LAYER, 0, 0, 0))
AUTHZID_BYTES_MAX = 1_000


class GssapiServer:
    """The server's side. Each step reads a file (the keytab or the replay cache), so each step is slow."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._error = acceptor.gssapi.exceptions.GSSError
        self._context: Any = None
        self._has_offered = False

    def is_slow(self, data: bytes) -> bool:
        return True

    def step(self, data: bytes) -> Step:
        try:
            if self._context is None or not self._context.complete:
                return self._accept(data)
            if not self._has_offered:
                if data:
                    raise failed(GSSAPI, "the client's second message must be empty")
                return self._offer()
            return self._finish(data)
        except self._error as error:
            raise self._acceptor.refusal(error) from None

    def _accept(self, data: bytes) -> Step:
        if not data:
            raise failed(GSSAPI, "the client's first message is empty; it must contain a Kerberos ticket")
        if self._context is None:
            self._context = self._acceptor.context()
        token = self._context.step(data)
        if token or not self._context.complete:
            return Step(token or b"")
        return self._offer()  # the client did not ask for mutual authentication

    def _offer(self) -> Step:
        self._has_offered = True
        return Step(self._context.wrap(OFFER, False).message)

    def _finish(self, data: bytes) -> Step:
        try:
            message = self._context.unwrap(data).message
        except self._error:
            raise failed(GSSAPI, "the client's last message does not belong to this exchange") from None
        if not 4 <= len(message) <= 4 + AUTHZID_BYTES_MAX:
            raise failed(
                GSSAPI,
                f"the client's last message has {len(message)} bytes; it must have 4 bytes, then the authorization id "
                f"of at most {AUTHZID_BYTES_MAX} bytes",
            )
        if message[0] != NO_LAYER:
            raise failed(
                GSSAPI,
                "the client chose a SASL security layer (integrity or confidentiality), which this server does not "
                "support; set the client's quality of protection (QOP) to auth, and use TLS for encryption",
            )
        principal = str(self._context.initiator_name)
        user = self._acceptor.names.user_of(principal)
        try:
            authzid = message[4:].decode()
        except UnicodeDecodeError:
            raise failed(GSSAPI, "the client's authorization id is not UTF-8") from None
        if authzid and authzid not in (principal, user):
            raise failed(GSSAPI, f"the authorization id must be the ticket's principal ({principal}); leave it out")
        return Step(b"", Identity(user, GSSAPI, self._acceptor.end_of(self._context)))


class GssapiClient:
    """The client's side of a GSSAPI exchange, which refuses a server that does not prove its identity."""

    mechanism = GSSAPI

    def __init__(self, initiator: Initiator, host: str) -> None:
        self._initiator, self._host = initiator, host
        self._error = initiator.gssapi.exceptions.GSSError
        self._context: Any = None
        self.is_complete = False

    def first(self) -> bytes:
        self._context, data = self._initiator.begin(self._host)
        return data

    def step(self, data: bytes) -> bytes | None:
        if self.is_complete:
            if data:
                raise failed(GSSAPI, "the server sent a message after the end of the exchange")
            return None
        try:
            if self._context.complete:
                return self._answer(data)
            token = self._context.step(data)
            is_proved = not self._context.complete or self._initiator.is_mutual(self._context)
        except self._error as error:
            raise self._initiator.failure(error, self._host) from None
        if not is_proved:
            raise failed(GSSAPI, f"{self._host} did not prove its identity; another server may be listening")
        return token or b""

    def _answer(self, data: bytes) -> bytes:
        offer = self._context.unwrap(data).message
        if len(offer) != 4 or not offer[0] & NO_LAYER:
            raise failed(GSSAPI, "the server requires a SASL security layer, which Kafka does not support; use TLS")
        self.is_complete = True
        return bytes(self._context.wrap(OFFER, False).message)
