"""The two sides of a SCRAM exchange (RFC 5802, section 5).

    client-first   n,,n=USER,r=CNONCE[,tokenauth=true]
    server-first   r=CNONCE SNONCE,s=SALT,i=ITERATIONS
    client-final   c=biws,r=CNONCE SNONCE,p=PROOF
    server-final   v=SERVER SIGNATURE

For an unknown user the server continues with a made-up credential and fails at the proof. An unknown user and a wrong
password thus produce the same messages at the same cost.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from .exchange import Identity, Step, check_user, failed
from .scram import (
    CLIENT_ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    TOKEN_EXTENSION,
    ScramCredential,
    ScramMechanism,
    attributes,
    check_same,
    client_key,
    decoded,
    encoded,
    new_nonce,
    parse_client_first,
    salted_password,
    sasl_name,
    server_key,
    signature,
    stored_key,
    text_of,
    xor,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """The identity that authenticates with ``credential``: the user, or the owner of a delegation token."""

    credential: ScramCredential
    user: str
    token_id: str | None = None
    expires_at_ms: int | None = None


#: Returns the subject for a name. The name is a token's id if the flag is True, else a user's name. The subject of an
#: unknown name has a made-up credential.
Lookup = Callable[[str, bool], Subject]


class ScramServer:
    """The server's side. ``is_slow(name, is_token)``: whether the lookup takes milliseconds."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        lookup: Lookup,
        *,
        is_slow: Callable[[str, bool], bool] = lambda name, is_token: False,
        nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self._mechanism = mechanism
        self._lookup = lookup
        self._is_slow = is_slow
        self._nonce = nonce
        self._subject: Subject | None = None
        self._header = self._bare = self._server_first = self._all_nonce = ""

    def is_slow(self, data: bytes) -> bool:
        if self._subject is not None:
            return False
        first = parse_client_first(data, self._mechanism.name)
        return self._is_slow(first.user, first.is_token)

    def step(self, data: bytes) -> Step:
        return self._first(data) if self._subject is None else self._final(data, self._subject)

    def _first(self, data: bytes) -> Step:
        first = parse_client_first(data, self._mechanism.name)
        check_user(first.user, self._mechanism.name)
        self._subject = self._lookup(first.user, first.is_token)
        credential = self._subject.credential
        self._header, self._bare, self._all_nonce = first.gs2_header, first.bare, first.nonce + self._nonce()
        self._server_first = f"r={self._all_nonce},s={encoded(credential.salt)},i={credential.iterations}"
        return Step(self._server_first.encode())

    def _final(self, data: bytes, subject: Subject) -> Step:
        name = self._mechanism.name
        text = text_of(data, name)
        without_proof, comma, proof_text = text.rpartition(",")
        pairs = attributes(without_proof, name) if comma else []
        if len(pairs) < 2 or [each for each, _ in pairs[:2]] != ["c", "r"] or not proof_text.startswith("p="):
            raise failed(name, "the client's final message must have the form c=…,r=…,p=…")
        # The header must equal the header of the first message, so that an attacker cannot change a flag in between.
        # The nonce must be the server's own (CVE-2024-56128).
        is_same = hmac.compare_digest(decoded(pairs[0][1], name), self._header.encode())
        is_ours = hmac.compare_digest(pairs[1][1].encode(), self._all_nonce.encode())
        if not (is_same and is_ours):
            raise failed(name, "the client's final message does not belong to this exchange")
        proof = decoded(proof_text[2:], name)
        credential = subject.credential
        message = f"{self._bare},{self._server_first},{without_proof}".encode()
        client_signature = signature(self._mechanism, credential.stored_key, message)
        if len(proof) != len(client_signature):
            raise failed(name)
        found = stored_key(self._mechanism, xor(proof, client_signature))
        if not (hmac.compare_digest(found, credential.stored_key) and credential.is_real):
            raise failed(name)
        verifier = encoded(signature(self._mechanism, credential.server_key, message))
        return Step(f"v={verifier}".encode(), Identity(subject.user, name, subject.expires_at_ms, subject.token_id))


class ScramClient:
    """The client's side of a SCRAM exchange, which refuses a server whose nonce, iterations or signature are wrong.

    The client accepts only 4,096 iterations or more: with a single iteration, a false server could quickly guess the
    password from its hash. ``is_token``: the user is the id of a delegation token, and the password its HMAC as base64.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        *,
        is_token: bool = False,
        iterations_min: int = ITERATIONS_MIN,
        nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._iterations_min = iterations_min
        self._nonce = nonce()
        extension = f",{TOKEN_EXTENSION}=true" if is_token else ""
        self._bare = f"n={sasl_name(user)},r={self._nonce}{extension}"
        self._verifier: bytes | None = None
        self.is_complete = False

    @property
    def mechanism(self) -> str:
        return self._mechanism.name

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def step(self, data: bytes) -> bytes | None:
        if self._verifier is None:
            return self._answer(data)
        self._check(data, self._verifier)
        return None

    def _answer(self, data: bytes) -> bytes:
        name = self._mechanism.name
        text = text_of(data, name)
        pairs = attributes(text, name)
        if pairs[0][0] == "e":
            raise failed(name, f"the server refused the exchange: {pairs[0][1][:100]}")
        if [each for each, _ in pairs[:3]] != ["r", "s", "i"]:
            raise failed(name, "the server's message must have the form r=…,s=…,i=…")
        nonce, salt = pairs[0][1], decoded(pairs[1][1], name)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise failed(name, "the server's nonce does not continue the client's; another server may be listening")
        is_number = pairs[2][1].isascii() and pairs[2][1].isdigit() and len(pairs[2][1]) < 20
        iterations = int(pairs[2][1]) if is_number else 0
        if not self._iterations_min <= iterations <= CLIENT_ITERATIONS_MAX or not 0 < len(salt) <= SALT_BYTES_MAX:
            raise failed(
                name,
                f"the server asks for {pairs[2][1][:20]} iterations, but only {self._iterations_min} to "
                f"{CLIENT_ITERATIONS_MAX} are accepted; set the user's password again with more iterations",
            )
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{text},{without_proof}".encode()
        key = client_key(self._mechanism, salted)
        proof = xor(key, signature(self._mechanism, stored_key(self._mechanism, key), message))
        self._verifier = signature(self._mechanism, server_key(self._mechanism, salted), message)
        return f"{without_proof},p={encoded(proof)}".encode()

    def _check(self, data: bytes, verifier: bytes) -> None:
        name = self._mechanism.name
        pairs = attributes(text_of(data, name), name)
        if pairs[0][0] == "e":
            raise failed(name)
        if pairs[0][0] != "v":
            raise failed(name, "the server's last message must have the form v=…")
        check_same(
            decoded(pairs[0][1], name),
            verifier,
            failed(name, "the server has not proved that it knows the password; another server may be listening"),
        )
        self.is_complete = True
