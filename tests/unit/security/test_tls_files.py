"""Keys and certificates from files: what is refused, and with which words; what happens when files change."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace_core.errors import InvalidConfigError
from headrace_core.security.tls import LOOK_S, TlsSettings, TlsSource, grpc_ciphers, load
from tests.worlds.security import TestAuthority

Pem = serialization.Encoding.PEM


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


def settings(**keys: Any) -> TlsSettings:
    return TlsSettings.of({name.replace("_", "."): str(value) for name, value in keys.items()})


def refused(words: str, **keys: Any) -> str:
    with pytest.raises(InvalidConfigError, match=words) as caught:
        load(settings(**keys))
    return str(caught.value)


def parts(path: Path) -> tuple[bytes, bytes]:
    """The key and the certificate of a file."""
    data = path.read_bytes()
    at = data.index(b"-----BEGIN CERTIFICATE")
    return data[:at], data[at:]


def test_every_form_gives_the_same_material(authority: TestAuthority, tmp_path: Path) -> None:
    path = authority.issue("forms.pem", name="forms")
    key, chain = parts(path)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "key.pem").chmod(0o600)
    (tmp_path / "chain.pem").write_bytes(chain)
    private = serialization.load_pem_private_key(key, None)
    locked = serialization.BestAvailableEncryption(b"secret")
    encrypted = private.private_bytes(Pem, serialization.PrivateFormat.PKCS8, locked)
    (tmp_path / "encrypted.pem").write_bytes(encrypted + chain)
    (tmp_path / "encrypted.pem").chmod(0o600)
    own = x509.load_pem_x509_certificate(chain)
    ca = x509.load_pem_x509_certificate(authority.ca.read_bytes())
    (tmp_path / "s.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(b"x", private, own, [ca], locked)  # type: ignore[arg-type]
    )
    (tmp_path / "s.p12").chmod(0o600)
    whole = load(settings(ssl_keystore_location=path, ssl_ca_location=authority.ca))
    assert whole.roots == authority.ca.read_bytes()
    assert whole.chain == chain
    for found in (
        load(settings(ssl_certificate_location=tmp_path / "chain.pem", ssl_key_location=tmp_path / "key.pem")),
        load(settings(ssl_keystore_certificate_chain=chain.decode(), ssl_keystore_key=key.decode())),
        load(
            settings(ssl_keystore_certificate_chain=chain.decode(), ssl_keystore_key=key.decode().replace("\n", "\\n"))
        ),
        load(settings(ssl_keystore_location=tmp_path / "encrypted.pem", ssl_key_password="secret")),
    ):
        assert (found.key, found.chain) == (whole.key, whole.chain)
    store = load(
        settings(
            ssl_keystore_type="PKCS12",
            ssl_keystore_location=tmp_path / "s.p12",
            ssl_keystore_password="secret",
            ssl_truststore_type="pkcs12",
            ssl_truststore_location=tmp_path / "s.p12",
            ssl_truststore_password="secret",
        )
    )
    assert (store.key, store.chain) == (whole.key, chain + authority.ca.read_bytes())
    assert store.roots is not None
    assert authority.ca.read_bytes() in store.roots
    refused(
        "does not open", ssl_keystore_type="PKCS12", ssl_keystore_location=tmp_path / "s.p12", ssl_keystore_password="x"
    )
    refused("set ssl.key.password", ssl_keystore_location=tmp_path / "encrypted.pem")
    said = refused("does not open the", ssl_keystore_location=tmp_path / "encrypted.pem", ssl_key_password="hunter2")
    assert "hunter2" not in said
    assert "hunter2" not in repr(settings(ssl_key_password="hunter2", ssl_keystore_password="hunter2"))
    assert "PRIVATE" not in repr(whole)


def test_a_key_that_others_may_read_is_named_with_its_mode(authority: TestAuthority) -> None:
    path = authority.issue("open.pem")
    for mode in (0o644, 0o604, 0o660):
        path.chmod(mode)
        assert f"mode {mode:04o}" in refused("chmod 600", ssl_keystore_location=path)
    path.chmod(0o640)  # for a group, as Kubernetes mounts secrets
    load(settings(ssl_keystore_location=path))


def test_files_that_cannot_be_used_are_named(authority: TestAuthority, tmp_path: Path) -> None:
    good, other = authority.issue("good.pem"), authority.issue("other.pem")
    mixed = tmp_path / "mixed.pem"
    mixed.write_bytes(parts(good)[0] + parts(other)[1])
    mixed.chmod(0o600)
    assert str(mixed) in refused("the private key does not belong to the certificate", ssl_keystore_location=mixed)
    old = authority.issue("old.pem", ends_in=timedelta(seconds=-1), begins_in=timedelta(days=-2))
    assert str(old) in refused("expired on", ssl_keystore_location=old)
    refused("No such file", ssl_keystore_location=tmp_path / "missing.pem")
    keyless = tmp_path / "keyless.pem"
    keyless.write_bytes(authority.ca.read_bytes())
    keyless.chmod(0o600)
    refused("no private key in PEM form", ssl_keystore_location=keyless)
    refused("no certificate in PEM form", ssl_ca_location=os.devnull)
    refused("both name this side's certificate", ssl_keystore_location=good, ssl_certificate_location=good)
    refused("both name the trusted", ssl_ca_location=good, ssl_truststore_location=good)
    refused("ssl.certificate.location needs ssl.key.location", ssl_certificate_location=good)
    with pytest.raises(InvalidConfigError, match="listener x: no certificate"):
        TlsSource(TlsSettings(), needs_key=True, where="listener x: ")
    with pytest.raises(InvalidConfigError, match="no trusted authority"):
        TlsSource(settings(ssl_keystore_location=good), needs_trust=True)


def test_a_changed_file_is_taken_when_it_is_whole(
    authority: TestAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    path = tmp_path / "node.pem"
    first, second = (authority.issue(name).read_bytes() for name in ("first.pem", "second.pem"))
    path.write_bytes(first)
    path.chmod(0o600)
    source = TlsSource(settings(ssl_keystore_location=path, ssl_ca_location=authority.ca), clock=lambda: now[0])
    assert source.generation == 1
    credentials = source.channel_credentials()
    assert source.channel_credentials() is credentials  # channels can share a connection
    path.write_bytes(second[: len(second) // 2])  # a program copies the file in place
    now[0] += LOOK_S / 2
    assert source.generation == 1
    for _ in range(3):
        now[0] += LOOK_S
        assert source.generation == 1
    assert caplog.text.count("the old certificates stay in use") == 1
    assert source.channel_credentials() is credentials
    path.write_bytes(second)
    now[0] += LOOK_S
    assert source.generation == 2
    assert source.material.key == load(settings(ssl_keystore_location=path)).key
    assert source.channel_credentials() is not credentials
    path.unlink()
    now[0] += LOOK_S
    assert source.generation == 2  # a missing file changes nothing either
    path.write_bytes(second)
    path.chmod(0o600)
    now[0] += LOOK_S
    assert source.generation == 2  # the same certificate again


def test_ciphers_have_names_of_java_and_openssl_and_keep_those_of_tls_13() -> None:
    thirteen = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
    suites = (*thirteen, "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256")
    assert grpc_ciphers(suites) == "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256"
    for wrong, words in (
        (("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",), "lacks TLS_AES_128_GCM_SHA256"),
        ((*thirteen, "TLS_RSA_WITH_3DES_EDE_CBC_SHA"), "3DES_EDE_CBC_SHA: not one of"),
        (thirteen, "has no suite of TLS 1.2"),
    ):
        with pytest.raises(InvalidConfigError, match=words):
            grpc_ciphers(wrong)
