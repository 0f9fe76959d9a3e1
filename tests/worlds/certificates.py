"""Certificates for tests, including certificates that `headrace certs` does not make: expired, for other names, without
a role."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOSTS = ("127.0.0.1", "localhost")


class TestAuthority:
    """An authority in a directory: ``ca`` is the path of its certificate."""

    __test__ = False

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._build(self._name, self._key, timedelta(days=1), timedelta(days=-1)).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _build(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, ends_in: timedelta, begins_in: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        ends = now + ends_in
        # A certificate has whole seconds. Cut off, a life of one second could have only a millisecond left.
        ends = ends.replace(microsecond=0) + timedelta(seconds=1 if ends.microsecond else 0)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins_in)
            .not_valid_after(ends)
        )

    def issue(
        self,
        file: str,
        *,
        name: x509.Name | str = "someone",
        hosts: Iterable[str] = HOSTS,
        uris: Iterable[str] = (),
        ends_in: timedelta = timedelta(days=1),
        begins_in: timedelta = timedelta(days=-1),
        only_client: bool = False,
    ) -> Path:
        """Make a key and a certificate in one PEM file."""
        key = ec.generate_private_key(ec.SECP256R1())
        whole = name if isinstance(name, x509.Name) else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[Any] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([] if only_client else [ExtendedKeyUsageOID.SERVER_AUTH])]
        builder = self._build(whole, key, ends_in, begins_in).add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self.directory / file
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        path.chmod(0o600)
        return path
