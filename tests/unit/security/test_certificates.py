"""What is read from certificates: names as Java writes them, validity, the role and id of a node."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import SaslAuthenticationFailedError
from headrace_core.security.certificates import (
    NodeIdentity,
    node_identity,
    parse_node_uri,
    read_certificates,
    read_der,
    split_pem,
    subject_name,
)
from tests.worlds.security import TestAuthority
from tests.worlds.this_process import examples


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


def attribute(oid: x509.ObjectIdentifier, value: str) -> x509.NameAttribute:
    return x509.NameAttribute(oid, value)


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ([(NameOID.COUNTRY_NAME, "CH"), (NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "alice")], None),
        ([(NameOID.COMMON_NAME, 'a, b+c="d"; <e>#\\')], r"CN=a\, b\+c\=\"d\"\; \<e\>\#\\"),
        ([(NameOID.COMMON_NAME, " lead and trail ")], r"CN=\ lead and trail\ "),
        ([(NameOID.COMMON_NAME, "Jürg 東京")], "CN=Jürg 東京"),
        ([(NameOID.EMAIL_ADDRESS, "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
        ([(NameOID.SERIAL_NUMBER, "7")], "2.5.4.5=#130137"),
        (
            [(NameOID.USER_ID, "u"), (NameOID.DOMAIN_COMPONENT, "x"), (NameOID.STREET_ADDRESS, "s")],
            "STREET=s,DC=x,UID=u",
        ),
        (
            [
                (NameOID.STATE_OR_PROVINCE_NAME, "S"),
                (NameOID.LOCALITY_NAME, "L"),
                (NameOID.ORGANIZATIONAL_UNIT_NAME, "U"),
            ],
            "OU=U,L=L,ST=S",
        ),
    ],
)
def test_a_subject_is_written_as_java_writes_it(
    authority: TestAuthority, attributes: list[tuple[x509.ObjectIdentifier, str]], name: str | None
) -> None:
    """The expected texts are those of X500Principal.getName() in Java 17."""
    made = x509.Name([attribute(oid, value) for oid, value in attributes])
    pem = authority.issue("subject.pem", name=made).read_bytes()
    assert subject_name(pem) == (name or made.rfc4514_string())


def test_several_values_of_one_part_stand_together(authority: TestAuthority) -> None:
    part = x509.RelativeDistinguishedName([attribute(NameOID.COMMON_NAME, "a"), attribute(NameOID.USER_ID, "b")])
    made = x509.Name([x509.RelativeDistinguishedName([attribute(NameOID.COUNTRY_NAME, "CH")]), part])
    assert subject_name(authority.issue("parts.pem", name=made).read_bytes()) in ("CN=a+UID=b,C=CH", "UID=b+CN=a,C=CH")


def test_names_and_times_are_read(authority: TestAuthority) -> None:
    pem = authority.issue("n.pem", hosts=["b1.example.com", "10.0.0.5", "::1"], uris=["headrace:broker:1"]).read_bytes()
    (found,) = read_certificates(pem)
    other = x509.load_pem_x509_certificate(pem)
    assert found.dns_names == ("b1.example.com",)
    assert found.addresses == ("10.0.0.5", "::1")
    assert found.uris == ("headrace:broker:1",)
    assert (found.not_before, found.not_after) == (other.not_valid_before_utc, other.not_valid_after_utc)
    assert found.serial == other.serial_number
    assert found.issuer == "CN=test authority"
    assert not found.is_authority
    assert read_certificates(authority.ca.read_bytes())[0].is_authority


def test_a_time_after_2049_is_read(authority: TestAuthority) -> None:
    pem = authority.issue("late.pem", ends_in=timedelta(days=365 * 40)).read_bytes()
    assert read_certificates(pem)[0].not_after > datetime(2060, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("uri", "identity"),
    [
        ("headrace:broker:1", NodeIdentity("broker", 1)),
        ("headrace:controller:0", NodeIdentity("controller", 0)),
        ("headrace:coordinator", NodeIdentity("coordinator", None)),
        ("headrace:broker:01", None),
        ("headrace:broker:-1", None),
        ("headrace:broker:", None),
        ("headrace:broker:1\n", None),
        ("headrace:Broker:1", None),
        ("headrace:user:alice", None),
        ("xheadrace:broker:1", None),
        ("headrace:broker:٣", None),
    ],
)
def test_a_node_uri_has_one_form(uri: str, identity: NodeIdentity | None) -> None:
    assert parse_node_uri(uri) == identity


def test_a_node_has_exactly_one_identity(authority: TestAuthority) -> None:
    def identity(*uris: str) -> NodeIdentity:
        return node_identity(authority.issue("x.pem", uris=uris).read_bytes())

    assert identity("headrace:broker:1") == NodeIdentity("broker", 1)
    assert identity("spiffe://example/x", "headrace:registry") == NodeIdentity("registry", None)
    for uris in ((), ("headrace:broker:1", "headrace:controller:1"), ("headrace:admin:1",), ("spiffe://x/y",)):
        with pytest.raises(SaslAuthenticationFailedError, match="is not a node's"):
            identity(*uris)


def test_text_that_is_no_certificate_is_refused() -> None:
    for pem in (b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(SaslAuthenticationFailedError, match="cannot read the client"):
            node_identity(pem)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_damaged_bytes_raise_only_value_errors(authority: TestAuthority, data: st.DataObject) -> None:
    path: Path = authority.directory / "fuzz.pem"
    if not path.exists():
        authority.issue("fuzz.pem", uris=["headrace:broker:1"])
    der = bytearray(split_pem(path.read_bytes())[0])
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(der)))
    for damaged in (bytes(der), bytes(der[:cut])):
        with contextlib.suppress(ValueError):
            read_der(damaged)
