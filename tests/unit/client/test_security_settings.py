"""The keys of TLS on a client that does not encrypt, which imports TLS only to refuse them."""

from __future__ import annotations

import pytest

from headrace import Producer
from headrace_core.errors import InvalidConfigError


def _producer(protocol: str, **keys: str) -> Producer:
    login = (
        {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"} if "SASL" in protocol else {}
    )
    named = {key.replace("_", "."): value for key, value in keys.items()}
    return Producer({"bootstrap.servers": "127.0.0.1:1", "security.protocol": protocol, **login, **named})


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"ssl_ca_location": "ca.pem"}, "ssl.ca.location has no effect with security.protocol={}: set .*SSL"),
        ({"ssl_truststore_location": "ca.pem"}, "ssl.truststore.location has no effect with security.protocol={}"),
        ({"ssl_keystore_location": "key.pem"}, "ssl.keystore.location has no effect with security.protocol={}"),
        ({"ssl_key_location": "key.pem"}, "ssl.key.location needs ssl.certificate.location"),
        ({"ssl_certificate_location": "a.pem"}, "ssl.certificate.location needs ssl.key.location"),
        ({"ssl_keystore_key": "KEY"}, "ssl.keystore.key needs ssl.keystore.certificate.chain"),
        ({"ssl_keystore_certificate_chain": "PEM"}, "ssl.keystore.certificate.chain needs ssl.keystore.key"),
        (
            {"ssl_truststore_certificates": "PEM", "ssl_ca_location": "ca.pem"},
            "ssl.truststore.certificates and ssl.ca.location both name the trusted authorities",
        ),
    ],
)
def test_keys_of_tls_are_refused_without_encryption(protocol: str, keys: dict[str, str], fault: str) -> None:
    with pytest.raises(InvalidConfigError, match=fault.format(protocol)):
        _producer(protocol, **keys)


@pytest.mark.parametrize(
    "keys", [{}, {"ssl_key_password": "x"}, {"ssl_truststore_certificates": "PEM"}, {"ssl_cipher_suites": "x"}]
)
def test_keys_of_tls_without_material_are_ignored_without_encryption(keys: dict[str, str]) -> None:
    _producer("PLAINTEXT", **keys).close()
