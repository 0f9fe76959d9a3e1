"""The driver's delegation token for tasks: when it is made, renewed and replaced, and who may read it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from headrace import Admin, DelegationToken
from headrace.errors import InvalidConfigError, SaslAuthenticationFailedError
from headrace.models import BrokerInfo, ClusterDescription
from headrace_spark import delegation
from headrace_spark.delegation import TokenStore, take_mechanism, without_login
from headrace_spark.options import parse_options
from headrace_spark.sink_options import parse_sink_options

DAY_S = 86_400
LOGIN = {
    "bootstrap.servers": "b1:9095",
    "security.protocol": "SASL_SSL",
    "ssl.ca.location": "/ca.pem",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "etl",
    "sasl.password": "pl4nted",
}


class Tokens:
    """A cluster that makes tokens for one day, at most seven; its clock is an hour ahead of the driver's."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0
        self.tokens: dict[str, DelegationToken] = {}
        self.made = self.renewed = self.asked = 0
        self.unknown_for = 0  # the number of logins with a token that a node refuses, because it does not know it yet
        self.logins: list[Mapping[str, str]] = []

    @property
    def _ms(self) -> int:
        return int((self.now_s + 3_600) * 1_000)

    @contextlib.contextmanager
    def open(self, client: Mapping[str, str]) -> Iterator[Admin]:
        self.logins.append(client)
        yield cast(Admin, self)

    def create_delegation_token(self) -> DelegationToken:
        self.made += 1
        ends_ms, last_ms = self._ms + DAY_S * 1_000, self._ms + 7 * DAY_S * 1_000
        who = "User:etl"
        token = DelegationToken(f"t{self.made}", b"m" * 64, who, who, (), self._ms, ends_ms, last_ms)
        self.tokens[token.token_id] = token
        return token

    def renew_delegation_token(self, hmac: bytes) -> int:
        self.renewed += 1
        token = self.tokens[f"t{self.made}"]
        return min(self._ms + DAY_S * 1_000, token.max_lifetime_at_ms)

    def describe_delegation_token(self) -> list[DelegationToken]:
        self.asked += 1
        return list(self.tokens.values())

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", 1, (BrokerInfo(1, "b1", 9095), BrokerInfo(2, "b2", 9095)))

    def describe_node(self, address: str) -> None:
        if self.unknown_for:
            self.unknown_for -= 1
            raise SaslAuthenticationFailedError("the credentials are wrong")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    monkeypatch.setattr(delegation, "_PAUSE_S", 0.0)
    return Tokens()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def token(cluster: Tokens, place: Path, client: Mapping[str, str] = LOGIN) -> str:
    """The token of a process that plans a batch now; each process has a store of its own."""
    store = TokenStore(client, "SCRAM-SHA-512", directory=place, now_s=lambda: cluster.now_s, admin=cluster.open)
    return store.token().token_id


def test_all_batches_of_a_day_use_one_token(cluster: Tokens, place: Path) -> None:
    assert {token(cluster, place) for _ in range(50)} == {"t1"}
    cluster.now_s += 0.7 * DAY_S
    assert token(cluster, place) == "t1"
    assert (cluster.made, cluster.renewed) == (1, 0)


def test_the_token_is_renewed_after_three_quarters_of_its_life_and_replaced_near_the_end(
    cluster: Tokens, place: Path
) -> None:
    seen = []
    for _ in range(100):  # 25 days
        seen.append(token(cluster, place))
        cluster.now_s += DAY_S / 4
    assert list(dict.fromkeys(seen)) == [f"t{number}" for number in range(1, cluster.made + 1)]
    assert 4 <= cluster.made <= 5  # each lasts between five and seven days
    assert cluster.renewed > 20


def test_a_token_that_expired_while_no_batch_was_planned_is_replaced(cluster: Tokens, place: Path) -> None:
    assert token(cluster, place) == "t1"
    cluster.now_s += 2 * DAY_S
    assert token(cluster, place) == "t2"
    assert cluster.renewed == 0


def test_a_token_that_the_cluster_no_longer_has_is_replaced_within_a_minute(cluster: Tokens, place: Path) -> None:
    token(cluster, place)
    cluster.tokens.clear()
    cluster.now_s += delegation.CHECK_S + 1
    assert token(cluster, place) == "t2"
    asked = cluster.asked
    assert {token(cluster, place) for _ in range(10)} == {"t2"}
    assert cluster.asked == asked, "the cluster is asked once a minute, and not for each batch"


def test_tasks_get_a_new_token_only_when_all_nodes_know_it(cluster: Tokens, place: Path) -> None:
    cluster.unknown_for = 3
    assert token(cluster, place) == "t1"
    assert cluster.unknown_for == 0
    assert {each["bootstrap.servers"] for each in cluster.logins[1:]} == {"b1:9095", "b2:9095"}
    assert all("sasl.password" not in each for each in cluster.logins[1:])


def test_a_node_that_never_takes_the_token_is_named(
    cluster: Tokens, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "KNOWN_S_MAX", 0.01)
    cluster.unknown_for = 10**9
    with pytest.raises(SaslAuthenticationFailedError, match=r"b1:9095 .*delegation.token.secret.key on all nodes"):
        token(cluster, place)


def test_only_the_user_reads_the_token_and_other_logins_have_others(cluster: Tokens, place: Path) -> None:
    token(cluster, place)
    assert token(cluster, place, {**LOGIN, "sasl.username": "other"}) == "t2"
    kept = [path for path in place.iterdir() if path.suffix == ".json"]
    assert len(kept) == 2
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    assert not any("pl4nted" in path.read_text() for path in place.iterdir())
    kept[0].write_text("{")
    kept[1].write_text("{}")
    assert token(cluster, place) == "t3"


def test_a_directory_that_others_may_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert delegation._private_directory() == tmp_path / f"headrace-spark-{os.geteuid()}"
    delegation._private_directory().chmod(0o755)
    with pytest.raises(InvalidConfigError, match="only this user may read"):
        delegation._private_directory()


def test_tasks_keep_the_authorities_and_no_key_that_proves_an_identity() -> None:
    secret = {
        "sasl.jaas.config": "…",
        "sasl.kerberos.keytab": "/etl.keytab",
        "sasl.oauthbearer.client.credentials.client.secret": "…",
        "ssl.keystore.location": "/etl.pem",
        "ssl.keystore.key": "…",
        "ssl.key.password": "…",
        "ssl.certificate.location": "/etl.pem",
    }
    kept = {"ssl.truststore.location": "/ca.pem", "fetch.max.bytes": "1", "bootstrap.servers": "b1:9095"}
    assert without_login({**secret, **kept}) == kept


@pytest.mark.parametrize("parse", [lambda given: parse_options(given, streaming=True), parse_sink_options])
def test_the_options_are_checked_before_any_connection(parse: Any) -> None:
    given = {"subscribe": "orders", "topic": "orders", **{f"kafka.{name}": value for name, value in LOGIN.items()}}
    given.pop("topic" if parse is not parse_sink_options else "subscribe")
    assert parse(given).token_mechanism is None
    on = {**given, "headrace.delegation.token.enabled": "true"}
    assert parse(on).token_mechanism == "SCRAM-SHA-512"
    assert parse({**on, "kafka.sasl.token.mechanism": "SCRAM-SHA-256"}).token_mechanism == "SCRAM-SHA-256"
    assert not [key for key in parse(on).client if "token" in key]
    for wrong, why in (
        ({"headrace.delegation.token.enabled": "yes"}, "must be true or false"),
        ({"kafka.sasl.token.mechanism": "PLAIN"}, "SCRAM-SHA-256 or SCRAM-SHA-512"),
        ({"kafka.security.protocol": "SSL"}, "set security.protocol=SASL_SSL"),
    ):
        with pytest.raises(InvalidConfigError, match=why):
            parse({**on, **wrong})


def take(**keys: str) -> str | None:
    return take_mechanism({name.replace("_", "."): value for name, value in keys.items()}, where="test")


def test_the_option_is_off_unless_it_is_set() -> None:
    assert take(security_protocol="PLAINTEXT") is None
    assert take(delegation_token_enabled="false", security_protocol="SSL") is None
