"""A certificate authority in a directory, for development, and for clusters of organizations without their own
authority.

    DIR/ca.pem          the authority's certificate, for ssl.truststore.location and ssl.ca.location
    DIR/ca.key          its private key: its owner can be any node and any user
    DIR/broker-1.pem    private key and certificate of a node or a user, in one file that one rename replaces

Every file with a key has mode 0600. A node's certificate is valid for both sides of a connection. A user's certificate
is valid only for clients, so a user cannot pose as a server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_core.errors import InvalidArgumentError, MissingDependencyError
from headrace_core.security.certificates import (
    NODE_ROLES,
    Certificate,
    NodeIdentity,
    parse_node_uri,
    read_certificates,
)

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

USER = "user"  #: The kind of a Subject that is a user.
KINDS = (*NODE_ROLES, USER)
AUTHORITY_DAYS = 3_650
DAYS = 365  #: The default lifetime of a certificate.
CA, CA_KEY = "ca.pem", "ca.key"
#: Certificates are valid from some minutes before they are made, because clocks of machines differ.
_BACKDATED = timedelta(minutes=5)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Subject:
    """The node or user for which a certificate is issued. ``kind``: a role of nodes, or USER. ``name``: the user's
    name, or the id of the node; empty for a certificate of all nodes of the role. ``hosts``: names and addresses at
    which the node is reached."""

    kind: str
    name: str
    hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise InvalidArgumentError for an invalid subject."""
        if self.kind not in KINDS:
            raise InvalidArgumentError(
                f"{self.kind!r} is neither a role nor user; it must be one of {', '.join(KINDS)}"
            )
        if self.kind == USER and not _NAME.match(self.name):
            raise InvalidArgumentError(
                f"user name {self.name!r}: must have 1 to 63 letters, digits, dots, @, - or _, such as alice"
            )
        if self.kind != USER and self.name and parse_node_uri(self.uri) is None:
            raise InvalidArgumentError(
                f"{self.name!r} is not the id of a {self.kind}; give a number, such as 1, or leave it out"
            )

    @property
    def uri(self) -> str:
        """The URI in a node's certificate."""
        return str(NodeIdentity(self.kind, int(self.name) if self.name.isdecimal() else None)) + (
            "" if not self.name or self.name.isdecimal() else f":{self.name}"
        )

    @property
    def common_name(self) -> str:
        return self.name if self.kind == USER else self.file_name

    @property
    def file_name(self) -> str:
        """The name of the file without its suffix: ``broker-1``, ``coordinator``, ``alice``."""
        return self.name if self.kind == USER else f"{self.kind}-{self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class Issued:
    path: Path
    certificate: Certificate


class Authority:
    """The authority in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def ca_path(self) -> Path:
        return self.directory / CA

    def init(self, name: str = "Headrace development CA", *, days: int = AUTHORITY_DAYS, force: bool = False) -> Issued:
        """Make the authority's key and certificate. Raises InvalidArgumentError if the directory has an authority;
        ``force`` replaces it, and every certificate that the old authority has issued becomes invalid."""
        lib, _ = _cryptography()
        key = _new_key()
        subject = _name(name)
        certificate = (
            _builder(subject, subject, key, days)
            .add_extension(lib.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(lib.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, _sha256())
        )
        _make_directory(self.directory)
        _refuse_existing((self.directory / CA_KEY, self.ca_path), force)
        _write(self.directory / CA_KEY, _key_pem(key), force=force)
        _write(self.ca_path, _pem(certificate), force=force, mode=0o644)
        return Issued(self.ca_path, read_certificates(_pem(certificate))[0])

    def issue(self, subject: Subject, *, days: int = DAYS, out: Path | None = None, force: bool = False) -> Issued:
        """Make a key and a certificate for ``subject``, in ``out`` or in the authority's directory. Raises
        InvalidArgumentError if the file exists and ``force`` is False."""
        subject.check()
        path = out or self.directory / f"{subject.file_name}.pem"
        if path.resolve() in (self.ca_path.resolve(), (self.directory / CA_KEY).resolve()):
            raise InvalidArgumentError(f"{path} is a file of the authority itself; choose another name")
        _refuse_existing((path,), force)
        return self._sign(subject, path, days, force=force)

    def renew(self, path: Path, *, days: int | None = None) -> Issued:
        """Replace the key and the certificate in ``path`` by new ones for the same subject, names and lifetime
        (``days``: another lifetime). One rename replaces the file, so a node never reads an incomplete file."""
        present = read_file(path)[0]
        if present.is_authority:
            raise InvalidArgumentError(
                f"{path} is the certificate of an authority, which cannot be renewed; make a new authority with "
                "`headrace certs init` in another directory"
            )
        subject = subject_of(present, path)
        lifetime = present.not_after - present.not_before - _BACKDATED
        if days is None:
            days = max(round(lifetime / timedelta(days=1)), 1)
        return self._sign(subject, path, days, force=True)

    def _sign(self, subject: Subject, path: Path, days: int, *, force: bool) -> Issued:
        lib, _ = _cryptography()
        from cryptography.x509.oid import ExtendedKeyUsageOID

        ca, ca_key = self._load()
        key = _new_key()
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        names: list[Any] = []
        if subject.kind != USER:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names.append(lib.UniformResourceIdentifier(subject.uri))
            names += [_general_name(host) for host in dict.fromkeys(subject.hosts)]
        builder = (
            _builder(_name(subject.common_name), ca.subject, key, days, most=ca.not_valid_after_utc)
            .add_extension(lib.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(lib.ExtendedKeyUsage(uses), critical=False)
            .add_extension(lib.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(lib.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(lib.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(ca_key, _sha256())
        _make_directory(path.parent)
        _write(path, _key_pem(key) + _pem(certificate), force=force)
        return Issued(path, read_certificates(_pem(certificate))[0])

    def _load(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        lib, serialization = _cryptography()
        try:
            certificate = lib.load_pem_x509_certificate(self.ca_path.read_bytes())
            key = serialization.load_pem_private_key((self.directory / CA_KEY).read_bytes(), None)
        except FileNotFoundError:
            raise InvalidArgumentError(
                f"{self.directory} has no authority ({CA}, {CA_KEY}); make one with `headrace certs init --dir "
                f"{self.directory}`, or pass --dir"
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidArgumentError(f"{self.directory}: {CA} or {CA_KEY} cannot be read: {error}") from None
        if certificate.not_valid_after_utc <= datetime.now(UTC):
            raise InvalidArgumentError(
                f"the authority in {self.directory} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; make a new "
                "one with `headrace certs init` in another directory, and let all nodes trust both "
                "authorities during the change"
            )
        return certificate, key


def read_file(path: Path) -> list[Certificate]:
    """The certificates in a PEM file. Raises InvalidArgumentError."""
    try:
        found = read_certificates(path.read_bytes())
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: the certificate is damaged ({error}); issue it again") from None
    if not found:
        raise InvalidArgumentError(f"{path} has no certificate in PEM form; give a PEM file")
    return found


def identity_of(certificate: Certificate) -> NodeIdentity | None:
    """The role and id in a node's certificate; None for a user's certificate."""
    return next((identity for uri in certificate.uris if (identity := parse_node_uri(uri)) is not None), None)


def subject_of(certificate: Certificate, path: Path) -> Subject:
    """The subject of a certificate that this module issued. Raises InvalidArgumentError for a certificate from another
    issuer."""
    identity = identity_of(certificate)
    if identity is not None:
        name = "" if identity.node_id is None else str(identity.node_id)
        return Subject(identity.role, name, (*certificate.dns_names, *certificate.addresses))
    name = certificate.subject.removeprefix("CN=")
    if not _NAME.match(name):
        raise InvalidArgumentError(
            f"{path}: {certificate.subject} was not issued by `headrace certs`; renew it with the tool that issued it"
        )
    return Subject(USER, name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int, most: datetime | None = None
) -> x509.CertificateBuilder:
    lib, _ = _cryptography()
    if not 1 <= days <= AUTHORITY_DAYS:
        raise InvalidArgumentError(f"--days {days}: must be between 1 and {AUTHORITY_DAYS}")
    now = datetime.now(UTC).replace(microsecond=0)
    ends = now + timedelta(days=days)
    builder: x509.CertificateBuilder = (
        lib.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(lib.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(ends if most is None else min(ends, most))
    )
    return builder


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    lib, _ = _cryptography()
    usage: x509.KeyUsage = lib.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
    return usage


def _name(common_name: str) -> x509.Name:
    lib, _ = _cryptography()
    from cryptography.x509.oid import NameOID

    name: x509.Name = lib.Name([lib.NameAttribute(NameOID.COMMON_NAME, common_name)])
    return name


def _general_name(host: str) -> x509.GeneralName:
    lib, _ = _cryptography()
    name: x509.GeneralName
    try:
        name = lib.IPAddress(ipaddress.ip_address(host.strip("[]")))
        return name
    except ValueError:
        pass
    try:
        name = lib.DNSName(host)
        return name
    except ValueError as error:
        raise InvalidArgumentError(f"--host {host!r}: {error}; give a host name or an IP address") from None


def _new_key() -> EllipticCurvePrivateKey:
    _cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _sha256() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    _, serialization = _cryptography()
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem


def _pem(certificate: x509.Certificate) -> bytes:
    _, serialization = _cryptography()
    pem: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return pem


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise MissingDependencyError(
            "making certificates needs the package cryptography: pip install 'headrace-tools[tls]'"
        ) from None
    return x509, serialization


def _make_directory(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def _refuse_existing(paths: Sequence[Path], force: bool) -> None:
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise InvalidArgumentError(f"{', '.join(there)} already exists; pass --force to replace it")


def _write(path: Path, data: bytes, *, force: bool, mode: int = 0o600) -> None:
    """Write a file that other users cannot read, even for a moment. Without ``force``, an existing file is an error,
    even if another program creates the file during the call."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise InvalidArgumentError(f"{path} already exists; pass --force to replace it") from None
            os.unlink(temporary)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
