"""TLS: keys and certificates from files, their reload, and the credentials that gRPC and HTTP take from them.

A ``TlsSource`` holds the key material of one listener or of one client. The source checks the files at most once a
second, and loads changed files when they are complete: the key fits the certificate, and the certificate has not
expired. Until the changed files are complete, the old material stays in use. New handshakes of a server use the new
material at once. Existing channels keep the old material; ``generation`` shows their owners when to replace them.

gRPC takes unencrypted PEM. Encrypted keys and PKCS12 files need the package ``cryptography``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfigError, MissingDependencyError
from .certificates import Certificate, read_certificates

if TYPE_CHECKING:
    import grpc

logger = logging.getLogger("headrace.tls")

LOOK_S = 1.0  #: Seconds between two checks of the files of a TlsSource.
#: Seconds after which a server on Python's sockets replaces its TLS context, so that every client's certificate is
#: verified again. The server does not verify a resumed session, and OpenSSL lets clients resume for two hours and
#: longer.
CONTEXT_S_MAX = 300.0
FILE_BYTES_MAX = 4 * 1024 * 1024  #: Maximum size of a file with keys or certificates.
#: TLS 1.3 suites, which gRPC always offers: gRPC's list of ciphers applies only to TLS 1.2.
TLS_13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
CIPHERS_VARIABLE = "GRPC_SSL_CIPHER_SUITES"  #: gRPC reads this variable once in a process, at the first use of TLS.
#: Maps Java's name of each TLS 1.2 suite that gRPC has to OpenSSL's name.
TLS_12_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
_KEY = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.+?-----END \1PRIVATE KEY-----\s*", re.DOTALL)
_CERTIFICATES = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s*", re.DOTALL)
_READABLE_BY_OTHERS = stat.S_IRWXO | stat.S_IWGRP


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The values of the keys ``ssl.*`` of one listener or client."""

    keystore_type: str = "PEM"
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    certificate_chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str = "PEM"
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    identification: str = "https"
    client_auth: str = "none"
    mapping_rules: str = "DEFAULT"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TlsSettings:
        """Take the settings from typed values by key. Raises InvalidConfigError for keys that exclude each other."""
        get = values.get
        settings = cls(
            keystore_type=str(get("ssl.keystore.type") or "PEM").upper(),
            keystore_location=get("ssl.keystore.location"),
            keystore_password=get("ssl.keystore.password"),
            certificate_chain=get("ssl.keystore.certificate.chain"),
            key=get("ssl.keystore.key"),
            key_password=get("ssl.key.password"),
            truststore_type=str(get("ssl.truststore.type") or "PEM").upper(),
            truststore_location=get("ssl.truststore.location"),
            truststore_password=get("ssl.truststore.password"),
            truststore_certificates=get("ssl.truststore.certificates"),
            ca_location=get("ssl.ca.location"),
            certificate_location=get("ssl.certificate.location"),
            key_location=get("ssl.key.location"),
            enabled_protocols=tuple(get("ssl.enabled.protocols") or ("TLSv1.2", "TLSv1.3")),
            cipher_suites=tuple(get("ssl.cipher.suites") or ()),
            identification=get("ssl.endpoint.identification.algorithm") or "https",
            client_auth=get("ssl.client.auth") or "none",
            mapping_rules=get("ssl.principal.mapping.rules") or "DEFAULT",
        )
        settings._check()
        return settings

    def _check(self) -> None:
        for what, given in (
            (
                "this side's certificate",
                {
                    "ssl.keystore.location": self.keystore_location,
                    "ssl.keystore.certificate.chain": self.certificate_chain,
                    "ssl.certificate.location": self.certificate_location,
                },
            ),
            (
                "the trusted authorities",
                {
                    "ssl.truststore.location": self.truststore_location,
                    "ssl.truststore.certificates": self.truststore_certificates,
                    "ssl.ca.location": self.ca_location,
                },
            ),
        ):
            named = [key for key, value in given.items() if value]
            if len(named) > 1:
                raise InvalidConfigError(f"{' and '.join(named)} both name {what}; keep one of them")
        for key, value, needed, other in (
            ("ssl.keystore.key", self.key, self.certificate_chain, "ssl.keystore.certificate.chain"),
            ("ssl.keystore.certificate.chain", self.certificate_chain, self.key, "ssl.keystore.key"),
            ("ssl.key.location", self.key_location, self.certificate_location, "ssl.certificate.location"),
            ("ssl.certificate.location", self.certificate_location, self.key_location, "ssl.key.location"),
        ):
            if value and not needed:
                raise InvalidConfigError(f"{key} needs {other}")

    @property
    def has_key(self) -> bool:
        return bool(self.keystore_location or self.certificate_chain or self.certificate_location)

    @property
    def has_trust(self) -> bool:
        return bool(self.truststore_location or self.truststore_certificates or self.ca_location)

    def files(self) -> tuple[str, ...]:
        named = (
            self.keystore_location,
            self.certificate_location,
            self.key_location,
            self.truststore_location,
            self.ca_location,
        )
        return tuple(dict.fromkeys(each for each in named if each))

    def check_for_grpc(self) -> None:
        """Raise InvalidConfigError for values that gRPC cannot honour."""
        if set(self.enabled_protocols) != {"TLSv1.2", "TLSv1.3"}:
            raise InvalidConfigError(
                f"ssl.enabled.protocols={','.join(self.enabled_protocols)}: gRPC always offers TLSv1.2 and TLSv1.3; "
                "name both, or leave the key out"
            )
        if self.client_auth == "requested":
            raise InvalidConfigError(
                "ssl.client.auth=requested: gRPC supports only required and none; choose one of them"
            )
        if self.cipher_suites:
            grpc_ciphers(self.cipher_suites)


@dataclass(frozen=True, slots=True)
class Material:
    """PEM texts: the trusted authorities, the private key (unencrypted), and the certificate chain; None: not set."""

    roots: bytes | None
    key: bytes | None = field(repr=False)
    chain: bytes | None


def grpc_ciphers(suites: tuple[str, ...]) -> str:
    """Return gRPC's list of ciphers for suites by Java's or OpenSSL's names. Raises InvalidConfigError."""
    missing = [suite for suite in TLS_13_SUITES if suite not in suites]
    if missing:
        raise InvalidConfigError(
            f"ssl.cipher.suites lacks {', '.join(missing)}: gRPC always offers the three suites of TLS 1.3; add them"
        )
    known = {name: name for name in TLS_12_SUITES.values()} | TLS_12_SUITES
    chosen = [suite for suite in suites if suite not in TLS_13_SUITES]
    unknown = [suite for suite in chosen if suite not in known]
    if unknown:
        raise InvalidConfigError(f"ssl.cipher.suites: {', '.join(unknown)}: not one of {', '.join(TLS_12_SUITES)}")
    if not chosen:
        raise InvalidConfigError(f"ssl.cipher.suites has no suite of TLS 1.2: add one of {', '.join(TLS_12_SUITES)}")
    return ":".join(known[suite] for suite in chosen)


def set_ciphers(suites: tuple[str, ...]) -> None:
    """Set gRPC's list of ciphers for this process; call the function before the first use of TLS. Raises
    InvalidConfigError if the process has another list already."""
    if not suites:
        return
    wanted = grpc_ciphers(suites)
    present = os.environ.setdefault(CIPHERS_VARIABLE, wanted)
    if present != wanted:
        raise InvalidConfigError(
            f"ssl.cipher.suites: this process already uses the ciphers {present} ({CIPHERS_VARIABLE}), and gRPC has "
            "one list for each process; give all clients and nodes of the process the same list"
        )


class TlsSource:
    """The key material of one listener or client, loaded again when its files change. Usable from any thread."""

    def __init__(
        self,
        settings: TlsSettings,
        *,
        needs_key: bool = False,
        needs_trust: bool = False,
        where: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``where``: text before the keys in errors, such as "listener internal: ". Raises InvalidConfigError if the
        files cannot be used."""
        if needs_key and not settings.has_key:
            raise InvalidConfigError(
                f"{where}no certificate: set ssl.keystore.location to a file with a key and a certificate chain "
                "(`headrace certs issue` makes one)"
            )
        if needs_trust and not settings.has_trust:
            raise InvalidConfigError(
                f"{where}no trusted authority: set ssl.truststore.location to the file of the authority that issues "
                "the certificates (`headrace certs init` makes one)"
            )
        self.settings = settings
        self._where = where
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._material = self._load()
        self._generation = 1
        self._looked_at = clock()
        self._complaint = ""
        self._channel_credentials: grpc.ChannelCredentials | None = None
        self._contexts: dict[str, tuple[int, ssl.SSLContext]] = {}

    @property
    def generation(self) -> int:
        """A number that grows when the material changes."""
        self.look()
        return self._generation

    @property
    def material(self) -> Material:
        self.look()
        return self._material

    def look(self, *, at_once: bool = False) -> None:
        """Load changed files, unless the last check was less than LOOK_S ago. A file that cannot be used is logged
        once, and checked again later."""
        with self._lock:
            now = self._clock()
            if not at_once and now - self._looked_at < LOOK_S:
                return
            self._looked_at = now
            stamp = self._stamp()
            if stamp == self._seen:
                return
            try:
                material = self._load()
            except InvalidConfigError as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    logger.warning(
                        "the changed certificates are not used, and the old certificates stay in use: %s", error
                    )
                return
            self._seen, self._complaint = stamp, ""
            if material != self._material:
                self._material = material
                self._generation += 1
                self._channel_credentials = None
                logger.info("%scertificates loaded again: %s", self._where, ", ".join(self.settings.files()))

    def certificate(self) -> Certificate | None:
        """This side's certificate."""
        chain = self.material.chain
        return read_certificates(chain)[0] if chain else None

    # -- gRPC

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for new channels. Returns the same object until the material changes, so that channels can share
        a connection."""
        import grpc

        material = self.material
        with self._lock:
            if self._channel_credentials is None:
                self._channel_credentials = grpc.ssl_channel_credentials(material.roots, material.key, material.chain)
            return self._channel_credentials

    def server_credentials(self, *, requires_client: bool) -> grpc.ServerCredentials:
        """Credentials for a server's port; every handshake uses the present material."""
        import grpc

        used = self.generation

        def configuration() -> Any:
            material = self._material
            return grpc.ssl_server_certificate_configuration(
                [(material.key, material.chain)], material.roots if requires_client else None
            )

        def fetch() -> Any:
            nonlocal used
            present = self.generation
            if present == used:
                return None
            used = present
            return configuration()

        return grpc.dynamic_ssl_server_credentials(
            configuration(), fetch, require_client_authentication=requires_client
        )

    # -- ssl

    def client_context(self) -> ssl.SSLContext:
        """A context for client connections over Python's sockets."""
        return self._context("client", self._new_client_context)

    def server_context(self, *, wants_client: bool) -> ssl.SSLContext:
        """A context for a server on Python's sockets; every handshake uses the present material. ``wants_client``: ask
        clients for a certificate and verify it; clients without one are accepted, unless the caller sets
        ``verify_mode``."""
        return _ServerContext(self, wants_client)

    def new_server_context(self, *, wants_client: bool) -> ssl.SSLContext:
        """A TLS context for a server with the present key material; later changes of the files do not affect it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._configure(context)
        if wants_client:
            context.verify_mode = ssl.CERT_OPTIONAL
            if self._material.roots is not None:
                context.load_verify_locations(cadata=_text(self._material.roots))
        return context

    @property
    def now_s(self) -> float:
        """Seconds of the source's clock."""
        return self._clock()

    def _context(self, kind: str, new: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        generation = self.generation
        found = self._contexts.get(kind)
        if found is None or found[0] != generation:
            found = self._contexts[kind] = (generation, new())
        return found[1]

    def _new_client_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=_text(self._material.roots))
        context.check_hostname = self.settings.identification.lower() == "https"
        self._configure(context)
        return context

    def _configure(self, context: ssl.SSLContext) -> None:
        versions = self.settings.enabled_protocols
        context.minimum_version = ssl.TLSVersion.TLSv1_2 if "TLSv1.2" in versions else ssl.TLSVersion.TLSv1_3
        context.maximum_version = ssl.TLSVersion.TLSv1_3 if "TLSv1.3" in versions else ssl.TLSVersion.TLSv1_2
        context.set_ciphers(
            grpc_ciphers(self.settings.cipher_suites)
            if self.settings.cipher_suites
            else ":".join(TLS_12_SUITES.values())
        )
        if self._material.chain is not None:
            _load_chain(context, self._material)

    # -- files

    def _stamp(self) -> tuple[object, ...]:
        return tuple(_stamp(name) for name in self.settings.files())

    def _load(self) -> Material:
        try:
            return load(self.settings)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{self._where}{error.message}") from None


class _ServerContext(ssl.SSLContext):
    """The TLS context of a server, which makes each connection with an inner context that has the present key material.

    A session that a client resumes is not verified again. A session belongs to the context of its first handshake, so
    another context ends all sessions: at once when the material changes, and otherwise after CONTEXT_S_MAX. A client
    whose authority is no longer trusted thus cannot resume a session. A client whose certificate has expired can resume
    for at most CONTEXT_S_MAX. (Replacing the context in ``sni_callback`` is not enough: sessions stay with the first
    context.)
    """

    _source: TlsSource
    _wants_client: bool
    _present: tuple[int, ssl.VerifyMode, float, ssl.SSLContext] | None

    def __new__(cls, source: TlsSource, wants_client: bool) -> _ServerContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context._source, context._wants_client, context._present = source, wants_client, None
        context.verify_mode = ssl.CERT_OPTIONAL if wants_client else ssl.CERT_NONE
        return context

    def present(self) -> ssl.SSLContext:
        """The context for the next handshake."""
        source = self._source
        generation, mode, now_s = source.generation, self.verify_mode, source.now_s
        found = self._present
        if found is None or found[:2] != (generation, mode) or now_s - found[2] >= CONTEXT_S_MAX:
            context = source.new_server_context(wants_client=self._wants_client)
            context.verify_mode = mode
            found = self._present = generation, mode, now_s, context
        return found[3]

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.present().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self.present().wrap_socket(*args, **options)


def load(settings: TlsSettings, *, now: datetime | None = None) -> Material:
    """Read and check the key material. Raises InvalidConfigError, which names the key and the file, for a file that
    cannot be read, a private key that others may read, a key that does not fit its certificate, and an expired
    certificate."""
    material = Material(_roots(settings), *_key_and_chain(settings))
    if material.chain is not None:
        _check_pair(settings, material)
        certificate = read_certificates(material.chain)[0]
        if certificate.not_after <= (now or datetime.now(UTC)):
            raise InvalidConfigError(
                f"{_chain_key(settings)}: the certificate of {certificate.subject or certificate.uris} expired on "
                f"{certificate.not_after:%Y-%m-%d %H:%M} UTC; renew it (`headrace certs renew`)"
            )
    return material


def _chain_key(settings: TlsSettings) -> str:
    if settings.keystore_location:
        return f"ssl.keystore.location={settings.keystore_location}"
    if settings.certificate_location:
        return f"ssl.certificate.location={settings.certificate_location}"
    return "ssl.keystore.certificate.chain"


def _roots(settings: TlsSettings) -> bytes | None:
    if settings.truststore_certificates:
        return _certificates(_inline(settings.truststore_certificates), "ssl.truststore.certificates")
    if settings.ca_location:
        name = f"ssl.ca.location={settings.ca_location}"
        return _certificates(_read(settings.ca_location, name), name)
    if not settings.truststore_location:
        return None
    name = f"ssl.truststore.location={settings.truststore_location}"
    data = _read(settings.truststore_location, name)
    if settings.truststore_type == "PKCS12":
        _, chain, others = _pkcs12(data, settings.truststore_password, name, "ssl.truststore.password")
        data = chain + others
    return _certificates(data, name)


def _key_and_chain(settings: TlsSettings) -> tuple[bytes | None, bytes | None]:
    if settings.certificate_chain and settings.key:
        chain = _certificates(_inline(settings.certificate_chain), "ssl.keystore.certificate.chain")
        return _private_key(_inline(settings.key), settings.key_password, "ssl.keystore.key"), chain
    if settings.certificate_location and settings.key_location:
        name = f"ssl.certificate.location={settings.certificate_location}"
        chain = _certificates(_read(settings.certificate_location, name), name)
        name = f"ssl.key.location={settings.key_location}"
        return _private_key(_read(settings.key_location, name, secret=True), settings.key_password, name), chain
    if not settings.keystore_location:
        return None, None
    name = f"ssl.keystore.location={settings.keystore_location}"
    data = _read(settings.keystore_location, name, secret=True)
    if settings.keystore_type == "PKCS12":
        key, chain, others = _pkcs12(data, settings.keystore_password, name, "ssl.keystore.password")
        if key is None:
            raise InvalidConfigError(f"{name}: the file has no private key")
        return key, chain + others
    return _private_key(data, settings.key_password, name), _certificates(data, name)


def _inline(text: str) -> bytes:
    """The bytes of a PEM text in a configuration value; ``\\n`` written as two characters is a line break."""
    return text.replace("\\n", "\n").encode()


def read_secret_file(location: str, name: str) -> bytes:
    """Read a file with secrets. ``name``: the key and the file, for errors. Raises InvalidConfigError for a file that
    cannot be read, or that other users may read or replace."""
    return _read(location, name, secret=True)


def _read(location: str, name: str, *, secret: bool = False) -> bytes:
    try:
        with open(location, "rb") as file:
            status = os.fstat(file.fileno())
            if secret and status.st_mode & _READABLE_BY_OTHERS:
                raise InvalidConfigError(
                    f"{name}: other users may read the secrets in it or replace it (mode "
                    f"{stat.S_IMODE(status.st_mode):04o}); run: chmod 600 {location}"
                )
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfigError(f"{name}: cannot read the file: {error.strerror or error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfigError(f"{name}: the file has more than {FILE_BYTES_MAX} bytes; name a PEM or PKCS12 file")
    return data


def _certificates(data: bytes, name: str) -> bytes:
    found = b"".join(each[0].rstrip() + b"\n" for each in _CERTIFICATES.finditer(data))
    try:
        damaged = not read_certificates(found)
    except ValueError:
        damaged = True
    if damaged:
        raise InvalidConfigError(f"{name}: no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
    return found


def _private_key(data: bytes, password: str | None, name: str) -> bytes:
    match = _KEY.search(data)
    if match is None:
        raise InvalidConfigError(f"{name}: no private key in PEM form (-----BEGIN PRIVATE KEY-----)")
    if match[1] != b"ENCRYPTED " and b"Proc-Type: 4,ENCRYPTED" not in match[0]:
        return match[0].rstrip() + b"\n"
    if password is None:
        raise InvalidConfigError(f"{name}: the private key is encrypted; set ssl.key.password")
    serialization = _cryptography("an encrypted private key")
    try:
        key = serialization.load_pem_private_key(match[0], password.encode())
    except (ValueError, TypeError):
        raise InvalidConfigError(f"{name}: ssl.key.password does not open the private key") from None
    return _key_pem(key, serialization)


def _key_pem(key: Any, serialization: Any) -> bytes:
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem


def _pkcs12(data: bytes, password: str | None, name: str, key: str) -> tuple[bytes | None, bytes, bytes]:
    """The private key, the certificate and the other certificates of a PKCS12 file, as PEM."""
    serialization = _cryptography("a PKCS12 file")
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        found = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        raise InvalidConfigError(f"{name}: not a PKCS12 file, or {key} does not open it") from None
    pem = serialization.Encoding.PEM
    own = b"" if found.cert is None else found.cert.certificate.public_bytes(pem)
    others = b"".join(each.certificate.public_bytes(pem) for each in found.additional_certs)
    return None if found.key is None else _key_pem(found.key, serialization), own, others


def _cryptography(what: str) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise MissingDependencyError(
            f"{what} needs the package cryptography: pip install 'headrace-core[tls]', or use an unencrypted PEM file"
        ) from None
    return serialization


def _check_pair(settings: TlsSettings, material: Material) -> None:
    try:
        _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), material)
    except ssl.SSLError as error:
        reason = "the private key does not belong to the certificate" if "MISMATCH" in str(error) else str(error)
        raise InvalidConfigError(f"{_chain_key(settings)}: {reason}") from None


def _load_chain(context: ssl.SSLContext, material: Material) -> None:
    """Load key and chain from memory. Python accepts only files, so the function uses a file in memory where
    possible."""
    assert material.key is not None
    assert material.chain is not None
    with _private_file(material.key + material.chain) as path:
        context.load_cert_chain(path)


@contextlib.contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        descriptor = os.memfd_create("headrace-tls")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(prefix="headrace-tls-") as file:  # mode 0600
        file.write(data)
        file.flush()
        yield file.name


def _stamp(name: str) -> object:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _text(pem: bytes | None) -> str | None:
    return None if pem is None else pem.decode("ascii")
