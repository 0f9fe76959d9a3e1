"""The doctor's words for refused logins, and the place of a finding when one node of a cluster refuses the client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from headrace.admin import Admin
from headrace.cluster_models import ClusterDescription
from headrace.errors import (
    ClusterAuthorizationFailedError,
    HeadraceError,
    NetworkError,
    SaslAuthenticationFailedError,
)
from headrace.models import BrokerInfo
from headrace_tools.doctor.diagnosis import diagnose, is_healthy
from headrace_tools.doctor.facts import THE_QUORUM, Facts, Refusal, Tried, Trouble
from headrace_tools.doctor.gathering import Gathering
from headrace_tools.doctor.logins import LoginKeys, Logins, refusal_of
from headrace_tools.local import ports
from tests.unit.client.test_doctor_gathering import Cluster
from tests.worlds.security import listening

HERE = "broker-1:9095"
KERBEROS = LoginKeys("SASL_SSL", "GSSAPI", "alice@EXAMPLE.COM")


@pytest.mark.parametrize(
    ("error", "rule", "cure"),
    [
        (NetworkError("GSSAPI: no KDC answers (Cannot contact any KDC); check krb5.conf"), "kerberos-kdc", "krb5.conf"),
        (NetworkError(f"{HERE}: no authentication within 5 s"), "kerberos-kdc", "port 88"),
        (
            SaslAuthenticationFailedError(
                "GSSAPI: the clocks of client and KDC or server differ too much; synchronize them (NTP)"
            ),
            "kerberos-clock",
            "NTP",
        ),
        (
            SaslAuthenticationFailedError(f"GSSAPI: the ticket has expired; run kinit (from {HERE})"),
            "kerberos-ticket",
            "run kinit",
        ),
        (SaslAuthenticationFailedError("GSSAPI: kafka/broker-1: no rule applies"), "login-failed", "keytab"),
    ],
)
def test_kerberos_names_what_is_missing(error: HeadraceError, rule: str, cure: str) -> None:
    refusal = refusal_of(error, HERE, KERBEROS)
    assert refusal is not None
    assert refusal.rule == rule
    assert cure in refusal.cure
    assert "(from" not in str(refusal)


def test_a_clock_that_differs_shows_in_the_age_of_a_bearer_token() -> None:
    keys = LoginKeys("SASL_SSL", "OAUTHBEARER", bearer_ends_s=time.time() + 3_600)
    error = SaslAuthenticationFailedError(f"OAUTHBEARER: the token expired 10 s ago; get a new one (from {HERE})")
    refusal = refusal_of(error, HERE, keys)
    assert refusal is not None
    assert "one of the clocks is wrong" in refusal.what


def test_a_node_that_cannot_be_reached_is_no_matter_of_logins() -> None:
    keys = LoginKeys("SASL_SSL", "SCRAM-SHA-512", "alice")
    assert refusal_of(NetworkError(f"{HERE}: connection lost"), HERE, keys) is None
    assert refusal_of(NetworkError(f"{HERE}: connection lost"), HERE, LoginKeys("PLAINTEXT", "GSSAPI")) is None


class OneRefuses(Cluster):
    """A cluster with two brokers; the second one refuses the client's login."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self._brokers = [
            BrokerInfo(number, host, int(port))
            for number, (host, port) in enumerate((each.split(":") for each in addresses), start=1)
        ]

    def describe_cluster(self, **_: Any) -> ClusterDescription:
        return ClusterDescription("ours", 1, tuple(self._brokers))

    def describe_log_dirs(self, brokers: list[int], **_: Any) -> dict[int, list[Any]]:
        return {each: [] for each in brokers}

    def describe_node(self, address: str, **_: Any) -> None:
        if address == self._brokers[1].address:
            raise SaslAuthenticationFailedError(f"SCRAM-SHA-512: the credentials are wrong (from {address})")

    def describe_quorum(self, **_: Any) -> Any:
        raise ClusterAuthorizationFailedError("User:alice is not authorized to DESCRIBE the cluster")


def test_the_node_that_refuses_is_named_once_and_what_the_user_may_not_read_is_no_fault() -> None:
    with listening(None) as one, listening(None) as two:
        client = OneRefuses(one, two)

        @contextlib.contextmanager
        def opened(address: str) -> Iterator[Admin]:
            yield cast(Admin, client)

        logins = Logins(opened, LoginKeys("SASL_SSL", "SCRAM-SHA-512", "alice"))
        gathering = Gathering(cast(Admin, client), timeout_s=5.0, look_s=0, logins=logins)
        facts = gathering.facts([one, two])
    (finding,) = diagnose(facts)
    assert (finding.rule, finding.where) == ("login-refused", f"broker 2 at {two}")
    assert [each.what for each in facts.not_asked if not each.is_no_fault] == [
        "broker 2 about itself",
        "the disks of broker 2",
    ]
    assert THE_QUORUM in {each.what for each in facts.not_asked if each.is_no_fault}


def test_a_cluster_that_refuses_the_client_gets_only_the_reason() -> None:
    (port,) = ports.pick(1)
    address = f"127.0.0.1:{port}"
    refusal = Refusal("certificate-expired", "the server's certificate expired", "renew it")
    tried = Tried(address=address, trouble=Trouble.TLS, refusal=refusal)
    facts = Facts(now_ms=0, bootstrap=(tried,))
    assert [(each.rule, each.where) for each in diagnose(facts)] == [("certificate-expired", address)]
    assert not is_healthy(facts)
