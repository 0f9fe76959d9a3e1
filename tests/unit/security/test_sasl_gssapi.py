"""GSSAPI without Kerberos: its configuration, the missing extra, and the errors by their numbers."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.config.client_keys import PRODUCER
from headrace_core.config.server_keys import SERVER, listener_values
from headrace_core.errors import HeadraceError, InvalidConfigError, MissingDependencyError, NetworkError
from headrace_core.metadata.security import SecurityImage
from headrace_core.security.sasl.client import Login
from headrace_core.security.sasl.exchange import GSSAPI
from headrace_core.security.sasl.jaas import parse_jaas
from headrace_core.security.sasl.kerberos import Acceptor, Initiator, TicketSource
from headrace_core.security.sasl.mechanisms import Mechanisms

KRB5 = "com.sun.security.auth.module.Krb5LoginModule required "
SERVER_JAAS = f'{KRB5}useKeyTab=true storeKey=true keyTab="/k/kafka.keytab" principal="kafka/host@R.TEST";'


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)


def source(**keys: Any) -> TicketSource:
    config = PRODUCER.parse({"sasl_mechanism": GSSAPI} | keys)
    jaas = config["sasl.jaas.config"]
    return TicketSource.of(parse_jaas(jaas) if jaas else None, config)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"sasl_kerberos_service_name": "kafka"}, TicketSource("kafka", None, None)),
        (
            {"sasl_kerberos_service_name": "kafka", "sasl_kerberos_principal": "alice@R.TEST"},
            TicketSource("kafka", "alice@R.TEST", None),
        ),
        (
            {
                "sasl_kerberos_service_name": "kafka",
                "sasl_kerberos_principal": "alice",
                "sasl_kerberos_keytab": "file:///k/alice.keytab",
            },
            TicketSource("kafka", "alice", "/k/alice.keytab"),
        ),
        (
            {"sasl_jaas_config": f'{KRB5}useKeyTab=true serviceName=kafka keyTab="/k/a" principal="a/h@R.TEST";'},
            TicketSource("kafka", "a/h@R.TEST", "/k/a"),
        ),
        (
            {"sasl_jaas_config": f"{KRB5}useTicketCache=true serviceName=kafka;"},
            TicketSource("kafka", None, None),
        ),
        (
            {"sasl_jaas_config": f'{KRB5}useTicketCache=true serviceName=kafka ticketCache="FILE:/c" principal=a;'},
            TicketSource("kafka", "a", None, "FILE:/c"),
        ),
    ],
)
def test_a_clients_tickets_come_from_a_keytab_or_a_cache(keys: dict[str, Any], expected: TicketSource) -> None:
    assert source(**keys) == expected


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, r"sasl.mechanism=GSSAPI \(Kafka's default\) needs sasl.kerberos.service.name"),
        ({"sasl_kerberos_service_name": "kafka/host"}, "write only the first part of the principal"),
        ({"sasl_kerberos_service_name": "kafka", "sasl_kerberos_keytab": "/k/a"}, "needs the client's principal"),
        (
            {"sasl_kerberos_service_name": "kafka", "sasl_kerberos_principal": "a/b/c"},
            "sasl.kerberos.principal: 'a/b/c' is not",
        ),
        (
            {
                "sasl_kerberos_service_name": "kafka",
                "sasl_jaas_config": f"{KRB5}useTicketCache=true serviceName=other;",
            },
            "serviceName=other, but sasl.kerberos.service.name is kafka",
        ),
        ({"sasl_jaas_config": f"{KRB5}serviceName=kafka;"}, "needs useKeyTab=true with keyTab"),
        ({"sasl_jaas_config": f"{KRB5}useKeyTab=true serviceName=kafka;"}, "needs the option keyTab"),
    ],
)
def test_a_client_without_a_usable_login_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why):
        source(**keys)


def test_another_mechanisms_module_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"sasl.mechanism=GSSAPI needs Krb5LoginModule"):
        Login(
            PRODUCER.parse({"sasl_mechanism": GSSAPI, "sasl_jaas_config": 'a.PlainLoginModule required username="a";'})
        )


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({}, (0.8, 0.85)),
        (
            {"sasl_kerberos_ticket_renew_window_factor": "0.5", "sasl_kerberos_ticket_renew_jitter": "0.25"},
            (0.5, 0.75),
        ),
        ({"sasl_kerberos_ticket_renew_window_factor": "1"}, (1.0, 1.0)),
    ],
)
def test_a_session_is_renewed_in_the_configured_window(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], window: tuple[float, float]
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", SimpleNamespace(MechType=SimpleNamespace(kerberos=None)))
    login = Login(PRODUCER.parse({"sasl_mechanism": GSSAPI, "sasl_kerberos_service_name": "kafka"} | keys))
    assert (login.renew_from, login.renew_to) == pytest.approx(window)


@pytest.mark.usefixtures("without_extra")
def test_a_missing_extra_is_named_to_the_client() -> None:
    with pytest.raises(MissingDependencyError, match=r"libkrb5-dev .*pip install 'headrace-core\[kerberos\]'"):
        Login(PRODUCER.parse({"sasl_mechanism": GSSAPI, "sasl_kerberos_service_name": "kafka"}))


@pytest.mark.usefixtures("without_extra")
def test_a_missing_extra_is_named_to_the_server() -> None:
    values = listener_values(SERVER.parse({"listener.name.client.gssapi.sasl.jaas.config": SERVER_JAAS}), "client")
    with pytest.raises(MissingDependencyError, match=r"libkrb5-dev .*pip install 'headrace-core\[kerberos\]'"):
        Mechanisms(values, SecurityImage, lambda: 0.0)


@pytest.mark.parametrize(
    ("jaas", "keys", "why"),
    [
        (None, {}, "GSSAPI .* needs gssapi.sasl.jaas.config=.*; or set sasl.enabled.mechanisms to SCRAM-SHA-512"),
        ('a.PlainLoginModule required user_a="b";', {}, "GSSAPI needs Krb5LoginModule"),
        (f"{KRB5}useTicketCache=true;", {}, "needs useKeyTab=true"),
        (f'{KRB5}useKeyTab=true keyTab="/k";', {}, "needs the option principal"),
        (f'{KRB5}useKeyTab=true principal="kafka/h";', {}, "needs the option keyTab"),
    ],
)
def test_a_listener_without_a_keytab_is_refused(jaas: str | None, keys: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why):
        Acceptor(None if jaas is None else parse_jaas(jaas), SERVER.parse(keys))


def test_the_general_login_module_serves_gssapi_if_it_is_kerberos() -> None:
    plain = SERVER.parse({"sasl.jaas.config": 'a.PlainLoginModule required user_a="b";'})
    with pytest.raises(InvalidConfigError, match=r"needs gssapi.sasl.jaas.config"):
        Mechanisms(plain, SecurityImage, lambda: 0.0)
    kerberos = SERVER.parse({"sasl.jaas.config": f"{KRB5}useTicketCache=true;"})
    with pytest.raises(InvalidConfigError, match="needs useKeyTab=true"):
        Mechanisms(kerberos, SecurityImage, lambda: 0.0)


class _GssError(Exception):
    """An error of the library: ``number`` as in RFC 4120."""

    def __init__(self, number: int) -> None:
        self.min_code, self.maj_code = (number - 1765328384) % 2**32, 0xD0000

    def gen_message(self) -> str:
        return f"Major ({self.maj_code}): Unspecified GSS failure, Minor ({self.min_code}): the library's words"


class _OtherError(Exception):
    pass


_LIBRARY = SimpleNamespace(
    exceptions=SimpleNamespace(
        ExpiredCredentialsError=_OtherError, ExpiredContextError=_OtherError, MissingCredentialsError=_OtherError
    )
)


def failure(number: int, keytab: str | None) -> HeadraceError:
    initiator = Initiator.__new__(Initiator)
    initiator.source, initiator.gssapi = TicketSource("kafka", "alice", keytab), _LIBRARY
    return initiator.failure(_GssError(number), "broker1")


@pytest.mark.parametrize(
    ("number", "keytab", "why"),
    [
        (6, None, "does not know the client alice"),
        (7, None, "does not know the service kafka/broker1"),
        (24, "/k", "refuses the key in /k; get a new keytab for alice"),
        (32, None, "has expired; run kinit"),
        (37, None, r"clocks .* differ too much; synchronize them \(NTP\)"),
        (141, None, "there is no ticket for alice in the default ticket cache .*; run kinit"),
        (154, None, "krb5.conf does not know the realm"),
        (60, None, "GSSAPI: kafka/broker1: the library's words"),
    ],
)
def test_a_clients_error_says_what_is_wrong(number: int, keytab: str | None, why: str) -> None:
    error = failure(number, keytab)
    assert not error.retriable
    with pytest.raises(HeadraceError, match=why):
        raise error


def test_only_an_unreachable_kdc_is_tried_again() -> None:
    error = failure(156, None)
    assert isinstance(error, NetworkError)
    assert error.retriable


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (31, "the ticket is not for kafka/host@R.TEST, or the server's keytab has an older key"),
        (32, "the ticket has expired; run kinit"),
        (33, "the ticket is not valid yet"),
        (34, "a replay of an earlier one"),
        (37, "the clocks of client and server differ too much"),
        (44, "older key"),
        (60, "the client's message was refused: the library's words"),
    ],
)
def test_a_servers_refusal_says_what_is_wrong(number: int, why: str) -> None:
    acceptor = Acceptor.__new__(Acceptor)
    acceptor.principal, acceptor.gssapi = "kafka/host@R.TEST", _LIBRARY
    assert why in str(acceptor.refusal(_GssError(number)))
