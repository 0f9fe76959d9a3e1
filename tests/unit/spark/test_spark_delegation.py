"""The driver's delegation token for tasks: when it is made, renewed and replaced, and who may read it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace import Admin, DelegationToken
from headrace.cluster_models import ClusterDescription
from headrace.errors import (
    DelegationTokenNotFoundError,
    HeadraceError,
    InvalidConfigError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    ServerBusyError,
)
from headrace.models import BrokerInfo
from headrace_spark import delegation, sdk_cluster, sink_topics
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
        self.refusal: HeadraceError = SaslAuthenticationFailedError("the credentials are wrong")
        self.failure: HeadraceError | None = None  # of requests that change tokens
        self.logins: list[Mapping[str, str]] = []
        self.timeouts: list[float | None] = []

    @property
    def _ms(self) -> int:
        return int((self.now_s + 3_600) * 1_000)

    @contextlib.contextmanager
    def open(self, client: Mapping[str, str]) -> Iterator[Admin]:
        self.logins.append(client)
        yield cast(Admin, self)

    def create_delegation_token(self, *, timeout: float | None) -> DelegationToken:
        self._change(timeout)
        self.made += 1
        ends_ms, last_ms = self._ms + DAY_S * 1_000, self._ms + 7 * DAY_S * 1_000
        who = "User:etl"
        token = DelegationToken(f"t{self.made}", b"m" * 64, who, who, (), self._ms, ends_ms, last_ms)
        self.tokens[token.token_id] = token
        return token

    def renew_delegation_token(self, hmac: bytes, *, timeout: float | None) -> int:
        self._change(timeout)
        self.renewed += 1
        token = self.tokens[f"t{self.made}"]
        return min(self._ms + DAY_S * 1_000, token.max_lifetime_at_ms)

    def _change(self, timeout: float | None) -> None:
        self.timeouts.append(timeout)
        if self.failure is not None:
            raise self.failure

    def describe_delegation_token(self) -> list[DelegationToken]:
        self.asked += 1
        return list(self.tokens.values())

    def describe_cluster(self, *, timeout: float) -> ClusterDescription:
        return ClusterDescription("c", 1, (BrokerInfo(1, "b1", 9095), BrokerInfo(2, "b2", 9095)))

    def describe_node(self, address: str, *, timeout: float) -> None:
        assert timeout == delegation.NODE_S
        if self.unknown_for:
            self.unknown_for -= 1
            raise self.refusal


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


@pytest.mark.parametrize("error", [RequestTimedOutError, NetworkError, NotControllerError])
def test_a_node_that_does_not_answer_is_not_waited_for(
    cluster: Tokens, place: Path, error: type[HeadraceError]
) -> None:
    cluster.unknown_for, cluster.refusal = 1, error("b1:9095 does not answer")
    assert token(cluster, place) == "t1"
    assert [each["bootstrap.servers"] for each in cluster.logins[1:]] == ["b1:9095", "b2:9095"]


def test_a_busy_node_is_asked_again_with_growing_pauses(
    cluster: Tokens, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(delegation, "_PAUSE_S", 0.1)
    monkeypatch.setattr(delegation, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    cluster.unknown_for, cluster.refusal = 6, ServerBusyError("too many logins")
    assert token(cluster, place) == "t1"
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_a_node_that_stays_busy_fails_no_batch(cluster: Tokens, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation, "KNOWN_S_MAX", 0.01)
    cluster.unknown_for, cluster.refusal = 10**9, ServerBusyError("too many logins")
    assert token(cluster, place) == "t1"


def test_repeated_tries_wait_for_the_same_token(cluster: Tokens, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation, "KNOWN_S_MAX", 0.01)
    cluster.unknown_for = 10**9
    for _ in range(3):
        with pytest.raises(SaslAuthenticationFailedError):
            token(cluster, place)
    assert (cluster.made, list(cluster.tokens)) == (1, ["t1"])
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    cluster.unknown_for = 0
    assert token(cluster, place) == "t1"
    assert {path.suffix for path in place.iterdir()} == {".json", ".lock"}


def test_a_token_that_nodes_refused_is_replaced_once_the_cluster_no_longer_has_it(
    cluster: Tokens, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "KNOWN_S_MAX", 0.01)
    cluster.unknown_for = 10**9
    with pytest.raises(SaslAuthenticationFailedError):
        token(cluster, place)
    cluster.unknown_for = 0
    cluster.tokens.clear()
    assert token(cluster, place) == "t2"


def test_a_failed_renewal_keeps_a_usable_token(cluster: Tokens, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    token(cluster, place)
    cluster.now_s += 0.8 * DAY_S
    cluster.failure = NotControllerError("the controllers have no leader")
    assert [token(cluster, place) for _ in range(2)] == ["t1", "t1"]
    assert cluster.timeouts == [None, delegation.CHANGE_S, delegation.CHANGE_S], "each batch tries, for a short time"
    assert "tasks use it for now" in caplog.text
    cluster.failure = None
    assert token(cluster, place) == "t1"
    assert cluster.renewed == 1


def test_a_failed_renewal_raises_near_the_token_s_end(cluster: Tokens, place: Path) -> None:
    token(cluster, place)
    cluster.now_s += (delegation.KEEP_UNTIL + 0.01) * DAY_S
    cluster.failure = NotControllerError("the controllers have no leader")
    with pytest.raises(NotControllerError):
        token(cluster, place)
    assert cluster.timeouts[-1] is None, "the client's own timeout holds"


def test_a_usable_token_stays_until_all_nodes_know_its_successor(
    cluster: Tokens, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):  # at the end the token cannot be renewed, and has a fifth of a day left
        assert token(cluster, place) == "t1"
        cluster.now_s += 0.8 * DAY_S
    monkeypatch.setattr(delegation, "KNOWN_S_MAX", 0.01)
    cluster.unknown_for = 10**9
    assert [token(cluster, place) for _ in range(3)] == ["t1"] * 3
    assert cluster.made == 2
    cluster.unknown_for = 0
    assert token(cluster, place) == "t2"
    assert cluster.made == 2


def test_a_token_that_is_gone_at_its_renewal_is_replaced(
    cluster: Tokens, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token(cluster, place)
    cluster.now_s += 0.8 * DAY_S

    def renew(hmac: bytes, *, timeout: float | None) -> int:
        raise DelegationTokenNotFoundError("there is no such token")

    monkeypatch.setattr(cluster, "renew_delegation_token", renew)
    assert token(cluster, place) == "t2"


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


class Closing:
    """A client that remembers whether it is closed."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self.config, self.is_closed = config, False

    def close(self) -> None:
        self.is_closed = True


def test_a_worker_closes_the_clients_of_former_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk_cluster, "_of_worker", {})
    monkeypatch.setattr(sdk_cluster, "SdkCluster", Closing)
    monkeypatch.setattr(sink_topics, "_admins", {})
    monkeypatch.setattr(sink_topics, "_topics", {})
    monkeypatch.setattr(sink_topics, "open_admin", Closing)
    logins = [{"sasl.jaas.config": f"t{number}"} for number in range(sink_topics.KEPT + 2)]
    for client in (sdk_cluster.worker_cluster, sink_topics.worker_admin):
        first = cast(Any, client(logins[0]))
        others = [cast(Any, client(login)) for login in logins[1:-1] if client(logins[0]) is first]
        last = cast(Any, client(logins[-1]))
        closed = [each.config for each in (first, *others, last) if each.is_closed]
        assert closed == logins[1:3], "the least recently used ones"
        assert client(logins[0]) is first

    kept = sink_topics.worker_topics(logins[0], 1.0)
    for login in logins[1:]:
        sink_topics.worker_topics(login, 1.0)
        assert len(sink_topics._topics) <= len(sink_topics._admins) == sink_topics.KEPT
    assert sink_topics.worker_topics(logins[0], 1.0) is not kept
