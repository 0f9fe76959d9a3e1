"""SCRAM's arithmetic and messages (RFC 5802, RFC 7677), with SHA-256 and SHA-512.

    SaltedPassword = PBKDF2(password, salt, iterations)
    ClientKey      = HMAC(SaltedPassword, "Client Key");   StoredKey = H(ClientKey)
    ServerKey      = HMAC(SaltedPassword, "Server Key")
    AuthMessage    = client-first-bare "," server-first "," client-final-without-proof
    ClientProof    = ClientKey XOR HMAC(StoredKey, AuthMessage)

The server keeps the stored key and the server key, never the password. As in Kafka, passwords are taken as UTF-8
without SASLprep.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from ...errors import SaslAuthenticationFailedError
from .exchange import SCRAM_SHA_256, SCRAM_SHA_512, failed

#: Kafka's limits for the number of iterations of a new credential, and the default.
ITERATIONS_MIN, ITERATIONS_MAX, ITERATIONS_DEFAULT = 4_096, 16_384, 4_096
SALT_BYTES = 32
SALT_BYTES_MAX = 1_024
#: Maximum number of iterations that a client computes for a server, so that a false server cannot keep the client busy.
CLIENT_ITERATIONS_MAX = 1_000_000
NONCE_CHARS_MAX = 1_024
_GS2_CHARS_MAX = 4_096
TOKEN_EXTENSION = "tokenauth"  #: Kafka's extension: the user is a delegation token's id (KIP-48).


@dataclass(frozen=True, slots=True)
class ScramMechanism:
    """``number``: the mechanism's number in Kafka's records (KIP-554)."""

    name: str
    number: int
    hash_name: str

    @property
    def hash_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size


SHA_256 = ScramMechanism(SCRAM_SHA_256, 1, "sha256")
SHA_512 = ScramMechanism(SCRAM_SHA_512, 2, "sha512")
SCRAM = {each.name: each for each in (SHA_256, SHA_512)}
SCRAM_BY_NUMBER = {each.number: each for each in (SHA_256, SHA_512)}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The data that a server stores for a password. ``is_real`` is False for the made-up credential of an unknown
    user."""

    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int
    is_real: bool = True


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations) of RFC 5802; takes milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return _mac(mechanism, salted, b"Client Key")


def stored_key(mechanism: ScramMechanism, key: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, key).digest()


def server_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return _mac(mechanism, salted, b"Server Key")


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Compute the credential from a salted password."""
    stored = stored_key(mechanism, client_key(mechanism, salted))
    return ScramCredential(salt, stored, server_key(mechanism, salted), iterations)


def new_credential(mechanism: ScramMechanism, password: str, iterations: int = ITERATIONS_DEFAULT) -> ScramCredential:
    """Make a credential with a random salt."""
    salt = secrets.token_bytes(SALT_BYTES)
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def has_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Whether the credential belongs to ``password``. Takes the same time for every password and for made-up
    credentials."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    found = stored_key(mechanism, client_key(mechanism, salted))
    return hmac.compare_digest(found, credential.stored_key) and credential.is_real


def signature(mechanism: ScramMechanism, key: bytes, auth_message: bytes) -> bytes:
    """ClientSignature (with the stored key) or ServerSignature (with the server key)."""
    return _mac(mechanism, key, auth_message)


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def _mac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.hash_name)


def new_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(24)).decode()


# -- messages


def attributes(message: str, mechanism: str) -> list[tuple[str, str]]:
    """Split ``r=…,s=…`` into pairs. (Kafka's extensions have names of several letters.) Raises
    SaslAuthenticationFailedError."""
    pairs = []
    for part in message.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.isascii() or not name.isalpha():
            raise failed(mechanism, "a SCRAM message does not have the form of RFC 5802")
        pairs.append((name, value))
    return pairs


def text_of(data: bytes, mechanism: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise failed(mechanism, "a SCRAM message is not UTF-8") from None
    if "\0" in text:
        raise failed(mechanism, "a SCRAM message has a NUL character")
    return text


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def decoded(text: str, mechanism: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise failed(mechanism, "a value in a SCRAM message is not base64") from None


def sasl_name(user: str) -> str:
    """Encode a user name, because ``=`` and ``,`` are syntax in messages."""
    return user.replace("=", "=3D").replace(",", "=2C")


def from_sasl_name(name: str, mechanism: str) -> str:
    """The inverse of ``sasl_name``. Raises SaslAuthenticationFailedError for another use of ``=``."""
    plain = name.replace("=2C", ",").replace("=3D", "\0")
    if "=" in plain:
        raise failed(mechanism, "a user name has '=' that is not =2C or =3D")
    return plain.replace("\0", "=")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The first message of a client, which is ``gs2_header`` followed by ``bare``. ``is_token``: the message has
    Kafka's extension tokenauth=true (KIP-48)."""

    gs2_header: str
    bare: str
    user: str
    nonce: str
    is_token: bool


def parse_client_first(data: bytes, mechanism: str) -> ClientFirst:
    """Parse ``n,[a=authzid],n=user,r=nonce[,extensions]``. Raises SaslAuthenticationFailedError.

    The server offers no mechanism with channel binding (-PLUS). The server accepts the flags ``n`` (the client has no
    channel binding) and ``y`` (the client has it, and believes that the server has none), and refuses ``p=``.
    """
    text = text_of(data, mechanism)
    binding, comma, rest = text.partition(",")
    authzid, comma2, bare = rest.partition(",")
    if not (comma and comma2) or len(binding) + len(authzid) > _GS2_CHARS_MAX:
        raise failed(mechanism, "the client's first message does not begin with a header as in RFC 5802")
    if binding.startswith("p="):
        raise failed(mechanism, "channel binding is not offered by this server; authenticate without channel binding")
    if binding not in ("n", "y"):
        raise failed(mechanism, "the client's first message does not begin with a header as in RFC 5802")
    pairs = attributes(bare, mechanism)
    if pairs[0][0] == "m":
        raise failed(mechanism, "the client's first message has an extension that this server does not support")
    if len(pairs) < 2 or pairs[0][0] != "n" or pairs[1][0] != "r":
        raise failed(mechanism, "the client's first message must contain n=USER,r=NONCE")
    user, nonce = from_sasl_name(pairs[0][1], mechanism), _checked_nonce(pairs[1][1], mechanism)
    if authzid and (not authzid.startswith("a=") or from_sasl_name(authzid[2:], mechanism) != user):
        raise failed(mechanism, "the authorization id must be the user itself; leave it out")
    extensions = dict(pairs[2:])
    return ClientFirst(
        f"{binding},{authzid},", bare, user, nonce, extensions.get(TOKEN_EXTENSION, "").lower() == "true"
    )


def _checked_nonce(nonce: str, mechanism: str) -> str:
    if not nonce or len(nonce) > NONCE_CHARS_MAX or not all("!" <= each <= "~" for each in nonce):
        raise failed(mechanism, f"a nonce has 1 to {NONCE_CHARS_MAX} printable ASCII characters")
    return nonce


def check_same(found: bytes, expected: bytes, error: SaslAuthenticationFailedError) -> None:
    """Raise ``error`` unless the secrets are equal; the time does not depend on where they differ."""
    if not hmac.compare_digest(found, expected):
        raise error
