"""Certificates of peers: names, validity, and the role and id of a node.

The module reads what it needs from the DER bytes of an X.509 certificate (RFC 5280). TLS has already verified the
certificate; a certificate that cannot be read raises ValueError.

    Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm, signatureValue }
    TBSCertificate ::= SEQUENCE { [0] version, serialNumber, signature, issuer, validity, subject, publicKey, ...,
                                  [3] extensions }

**Nodes.** The certificate of a node has one URI among its subject alternative names: ``headrace:ROLE:ID``, such as
``headrace:broker:1``. Without ``:ID`` the certificate is valid for every node of the role. Nodes that get their id when
they register need a certificate without ``:ID``. A certificate without such a URI belongs to a user.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from ..errors import SaslAuthenticationFailedError

#: Roles that a node's certificate may have.
NODE_ROLES = ("controller", "broker", "coordinator", "registry", "console")
URI_SCHEME = "headrace"
_NODE_URI = re.compile(rf"{URI_SCHEME}:({'|'.join(NODE_ROLES)})(?::(0|[1-9]\d{{0,9}}))?\Z", re.ASCII)

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
CERTIFICATE_BYTES_MAX = 64 * 1024  #: Maximum size of one certificate; larger certificates are not read.

_SUBJECT_ALT_NAME = bytes.fromhex("551d11")
_BASIC_CONSTRAINTS = bytes.fromhex("551d13")
_SEQUENCE, _SET, _OID, _BOOLEAN = 0x30, 0x31, 0x06, 0x01
_EMAIL, _DNS, _URI, _IP = 0x81, 0x82, 0x86, 0x87
#: Attribute types that have a name in RFC 2253.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: Encodings of the string types of ASN.1: UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString.
_STRINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "latin-1", 0x1E: "utf-16-be"}
_ESCAPED = frozenset(',=+<>#;"\\')


@dataclass(frozen=True, slots=True)
class Certificate:
    """The parts of a certificate that Headrace uses. ``subject`` and ``issuer`` are distinguished names as Java's
    X500Principal.getName() writes them: in reverse order of the attributes, such as ``CN=alice,O=Example``."""

    subject: str
    issuer: str
    serial: int
    not_before: datetime
    not_after: datetime
    dns_names: tuple[str, ...]
    addresses: tuple[str, ...]
    uris: tuple[str, ...]
    is_authority: bool


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The role of a node, and its id; None: any id."""

    role: str
    node_id: int | None

    def __str__(self) -> str:
        return f"{URI_SCHEME}:{self.role}" + ("" if self.node_id is None else f":{self.node_id}")


def parse_node_uri(uri: str) -> NodeIdentity | None:
    """Parse ``headrace:broker:1``; None for any other text."""
    match = _NODE_URI.match(uri)
    if match is None:
        return None
    return NodeIdentity(match[1], None if match[2] is None else int(match[2]))


def node_identity(pem: bytes) -> NodeIdentity:
    """Return the role and the id of the node whose certificate is ``pem``. Raises SaslAuthenticationFailedError for a
    certificate that is not a node's, or that names several nodes."""
    certificate = _read_peer(pem)
    found = [each for each in certificate.uris if each.startswith(f"{URI_SCHEME}:")]
    identity = parse_node_uri(found[0]) if len(found) == 1 else None
    if identity is None:
        raise SaslAuthenticationFailedError(
            f"the certificate of {certificate.subject or 'the client'} is not a node's: it must have one URI such as "
            f"headrace:broker:1 among its alternative names; issue a node's certificate with "
            "`headrace certs issue broker`"
        )
    return identity


def is_node(pem: bytes) -> bool:
    """Whether the certificate ``pem`` has a node's URI. Raises SaslAuthenticationFailedError."""
    return any(each.startswith(f"{URI_SCHEME}:") for each in _read_peer(pem).uris)


def subject_name(pem: bytes) -> str:
    """Return the distinguished name of the certificate ``pem``, to which principal mapping rules apply. Raises
    SaslAuthenticationFailedError for a certificate without a name."""
    subject = _read_peer(pem).subject
    if not subject:
        raise SaslAuthenticationFailedError("the client's certificate has no distinguished name; issue one with a name")
    return subject


def check_not_expired(pem: bytes) -> None:
    """Raise SaslAuthenticationFailedError if the certificate ``pem`` has expired."""
    certificate = _read_peer(pem)
    if certificate.not_after <= datetime.now(UTC):
        raise SaslAuthenticationFailedError(
            f"the certificate of {certificate.subject or 'the client'} expired on "
            f"{certificate.not_after:%Y-%m-%d %H:%M} UTC; renew it, and connect again"
        )


@lru_cache(maxsize=1_024)
def _read_peer(pem: bytes) -> Certificate:
    try:
        return read_certificates(pem)[0]
    except (ValueError, IndexError):
        raise SaslAuthenticationFailedError(
            "cannot read the client's certificate: it is not a valid X.509 certificate"
        ) from None


def read_certificates(pem: bytes) -> list[Certificate]:
    """Read every certificate of a PEM text, in its order. Raises ValueError if a certificate is damaged."""
    return [read_der(der) for der in split_pem(pem)]


def split_pem(pem: bytes) -> list[bytes]:
    """Return the DER bytes of each certificate of a PEM text. Raises ValueError."""
    return [base64.b64decode(b"".join(match[1].split()), validate=True) for match in _PEM.finditer(pem)]


def read_der(der: bytes) -> Certificate:
    """Read one certificate. Raises ValueError."""
    if len(der) > CERTIFICATE_BYTES_MAX:
        raise ValueError(f"a certificate has {len(der)} bytes, at most {CERTIFICATE_BYTES_MAX} are allowed")
    try:
        return _read(der)
    except (IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"not a certificate: {error}") from None


def _read(der: bytes) -> Certificate:
    ((_, whole),) = _elements(der)
    to_be_signed = _first(whole)
    fields = list(_elements(to_be_signed))
    if fields[0][0] == 0xA0:  # the version
        del fields[0]
    serial, _, issuer, validity, subject = (content for _, content in fields[:5])
    begins, ends = _elements(validity)
    dns: list[str] = []
    addresses: list[str] = []
    uris: list[str] = []
    is_authority = False
    for oid, value in _extensions(fields[6:]):
        if oid == _SUBJECT_ALT_NAME:
            for tag, content in _elements(_first(value)):
                if tag == _DNS:
                    dns.append(content.decode("ascii"))
                elif tag == _URI:
                    uris.append(content.decode("ascii"))
                elif tag == _IP:
                    addresses.append(str(ipaddress.ip_address(content)))
        elif oid == _BASIC_CONSTRAINTS:
            first = next(_elements(_first(value)), (0, b""))
            is_authority = first[0] == _BOOLEAN and first[1] != b"\0"
    return Certificate(
        subject=_name(subject),
        issuer=_name(issuer),
        serial=int.from_bytes(serial, "big", signed=True),
        not_before=_time(*begins),
        not_after=_time(*ends),
        dns_names=tuple(dns),
        addresses=tuple(addresses),
        uris=tuple(uris),
        is_authority=is_authority,
    )


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Iterate over (tag, content) of DER elements. Raises ValueError or IndexError for damaged bytes."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if tag & 0x1F == 0x1F:
            raise ValueError("a DER element has a tag of several bytes")
        if length & 0x80:
            count = length & 0x7F
            if not 0 < count <= 4:
                raise ValueError("a DER element has a length of indefinite form")
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + length > len(data):
            raise ValueError("a DER element is longer than the element that contains it")
        yield tag, data[position : position + length]
        position += length


def _first(data: bytes) -> bytes:
    """The content of the first DER element. Raises ValueError or IndexError."""
    for _, content in _elements(data):
        return content
    raise ValueError("a DER element is empty")


def _extensions(rest: list[tuple[int, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for tag, content in rest:
        if tag == 0xA3:
            for _, extension in _elements(_first(content)):
                parts = list(_elements(extension))
                yield parts[0][1], parts[-1][1]


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == 0x17:  # UTCTime: two digits of the year, 1950 to 2049
        text = ("20" if int(text[:2]) < 50 else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _name(content: bytes) -> str:
    relative = ["+".join(_attribute(each) for _, each in _elements(names)) for _, names in _elements(content)]
    return ",".join(reversed(relative))


def _attribute(content: bytes) -> str:
    (_, oid), (tag, value) = _elements(content)
    dotted = _dotted(oid)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or tag not in _STRINGS:
        return f"{keyword or dotted}=#{_der(tag, value).hex()}"
    return f"{keyword}={_escaped(value.decode(_STRINGS[tag]))}"


def _escaped(text: str) -> str:
    characters = ["\\" + each if each in _ESCAPED else "\\00" if each == "\0" else each for each in text]
    lead = 0
    while lead < len(characters) and characters[lead] in (" ", "\r"):
        characters[lead] = "\\" + characters[lead]
        lead += 1
    trail = len(characters) - 1
    while trail >= lead and characters[trail] in (" ", "\r"):
        characters[trail] = "\\" + characters[trail]
        trail -= 1
    return "".join(characters)


def _dotted(oid: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + content
