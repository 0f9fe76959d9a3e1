"""Delegation tokens (KIP-48) on a secured cluster: made by a user, used by another process, ended; also while the
leadership of the controllers moves."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, DelegationToken, LocalCluster, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.errors import (
    DelegationTokenAuthorizationFailedError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    DelegationTokenRequestNotAllowedError,
    HeadraceError,
    InvalidPrincipalTypeError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
)
from headrace_core.security.sasl.tokens import token_hmac
from headrace_tools.cli.app import run
from tests.integration.security.test_sasl_cluster import PASSWORD, PLAIN, login
from tests.worlds.waiting import until

SECRET = "pl4nted-master-key"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {
        "super.users": "User:root",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": PLAIN,
        "delegation.token.secret.key": SECRET,
        "delegation.token.expiry.time.ms": "60000",
        "delegation.token.max.lifetime.ms": "120000",
        "delegation.token.expiry.check.interval.ms": "200",
    }
    few: dict[str, Any] = {"brokers": 1, "controllers": 3, "coordinators": 0, "mode": "inprocess"}
    with LocalCluster(**few, secure=True, config=config) as running:
        with Admin(login(running, "PLAIN", "root", "r00t")) as admin:
            admin.alter_user_scram_credentials(
                [
                    UserScramCredentialUpsertion(user, PASSWORD, ScramMechanism.SCRAM_SHA_512)
                    for user in ("ann", "bob", "eve")
                ]
            )
            admin.create_topics(["orders", "payroll"])
            admin.create_acls([_may("ann", ResourceType.TOPIC, "orders", AclOperation.WRITE)])
        yield running


def _may(user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(resource_type=kind, resource_name=name, principal=f"User:{user}", operation=operation)


def _user(cluster: LocalCluster, user: str, address: str | None = None) -> Admin:
    config = login(cluster, "SCRAM-SHA-512", user, PASSWORD)
    return Admin(config if address is None else config | {"bootstrap.servers": address})


def _controllers(cluster: LocalCluster) -> list[str]:
    paths = sorted(cluster.directory.glob("controller-*/node.json"))
    return [json.loads(path.read_text())["listeners"]["client"] for path in paths]


def _by_token(cluster: LocalCluster, token: DelegationToken, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
    config = login(cluster, mechanism, "", "")
    del config["sasl.username"], config["sasl.password"]
    return config | {"sasl.jaas.config": token.jaas_config}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_holder_acts_as_the_owner_and_makes_no_tokens(cluster: LocalCluster, mechanism: str) -> None:
    with _user(cluster, "ann") as ann:
        token = ann.create_delegation_token(["User:bob"])
        assert (token.owner, token.requester, token.renewers) == ("User:ann", "User:ann", ("User:bob",))
        assert token.expires_at_ms - token.issued_at_ms == 60_000
        assert token.max_lifetime_at_ms - token.issued_at_ms == 120_000
        assert token.password not in repr(token)
    config = _by_token(cluster, token, mechanism)
    with Producer(config) as producer:
        assert producer.send("orders", b"x").result(timeout=30).offset >= 0
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("payroll", b"x").result(timeout=30)
    with Admin(config) as admin:
        for call in (
            admin.create_delegation_token,
            admin.describe_delegation_token,
            lambda: admin.renew_delegation_token(token.hmac),
            lambda: admin.expire_delegation_token(token.hmac),
        ):
            with pytest.raises(DelegationTokenRequestNotAllowedError):
                call()


def test_tokens_of_other_users_need_a_right(cluster: LocalCluster) -> None:
    with _user(cluster, "eve") as eve, Admin(login(cluster, "PLAIN", "root", "r00t")) as root:
        with pytest.raises(DelegationTokenAuthorizationFailedError):
            eve.create_delegation_token(owner="User:ann")
        root.create_acls([_may("eve", ResourceType.USER, "User:ann", AclOperation.CREATE_TOKENS)])

        def made() -> DelegationToken | None:
            with contextlib.suppress(DelegationTokenAuthorizationFailedError):
                return eve.create_delegation_token(owner="User:ann")
            return None

        until(lambda: made() is not None, "the ACL is followed")
        token = made()
        assert token is not None
        assert (token.owner, token.requester) == ("User:ann", "User:eve")
        assert token.token_id in {each.token_id for each in eve.describe_delegation_token()}
        with _user(cluster, "bob") as bob:
            assert token.token_id not in {each.token_id for each in bob.describe_delegation_token()}
            root.create_acls([_may("bob", ResourceType.USER, "User:ann", AclOperation.DESCRIBE_TOKENS)])
            until(
                lambda: token.token_id in {each.token_id for each in bob.describe_delegation_token()},
                "tokens of the user are described",
            )
        with pytest.raises(DelegationTokenOwnerMismatchError):  # the requester sees the token, and may not change it
            eve.expire_delegation_token(token.hmac)
        with pytest.raises(InvalidPrincipalTypeError):
            root.create_delegation_token(["Group:x"])


def test_an_expired_token_opens_nothing_and_ends_its_sessions(cluster: LocalCluster) -> None:
    with _user(cluster, "ann") as ann:
        token, failure = until(lambda: _used_until_it_ends(cluster, ann), "a record is sent before the token ends")
        assert failure is not None, "the session outlives its token"
        _refused(cluster, token)
        with pytest.raises((DelegationTokenExpiredError, DelegationTokenNotFoundError)):
            ann.renew_delegation_token(token.hmac)
        until(
            lambda: token.token_id not in {each.token_id for each in ann.describe_delegation_token()},
            "the expired token is removed",
        )


def _used_until_it_ends(cluster: LocalCluster, ann: Admin) -> tuple[DelegationToken, HeadraceError | None] | None:
    """Send records by a new token that ends after 1.5 s; returns the token and the first error. None: on a slow machine
    the token ended before the first record was sent."""
    token = ann.create_delegation_token()
    ends_s = time.monotonic() + 1.5
    ann.expire_delegation_token(token.hmac, period_ms=1_500)
    sent = 0
    with Producer(_by_token(cluster, token), request_timeout_ms=2_000, delivery_timeout_ms=5_000) as producer:
        while time.monotonic() < ends_s + 30:
            try:
                producer.send("orders", b"x").result(timeout=30)
                sent += 1
            except HeadraceError as error:
                return (token, error) if sent else None
    return token, None


def test_every_controller_forwards_who_asks(cluster: LocalCluster) -> None:
    addresses = _controllers(cluster)
    assert len(addresses) == 3
    for address in addresses:
        with _user(cluster, "ann", address) as ann, _user(cluster, "eve", address) as eve:
            token = ann.create_delegation_token()
            assert (token.owner, token.requester) == ("User:ann", "User:ann")
            with pytest.raises(DelegationTokenOwnerMismatchError):
                eve.renew_delegation_token(token.hmac)
            assert token.token_id in {each.token_id for each in ann.describe_delegation_token()}
            assert token.token_id not in {each.token_id for each in eve.describe_delegation_token()}
            ann.expire_delegation_token(token.hmac)


def test_a_new_leader_knows_the_tokens_and_removes_the_expired_ones(cluster: LocalCluster) -> None:
    with _user(cluster, "ann") as ann, Admin(login(cluster, "PLAIN", "root", "r00t")) as root:
        token = ann.create_delegation_token()
        leaders = set()
        for _ in range(6):
            leaders.add(root.transfer_leadership())
            renewed_ms = ann.renew_delegation_token(token.hmac)
            (shown,) = (each for each in ann.describe_delegation_token() if each.token_id == token.token_id)
            assert shown.expires_at_ms == renewed_ms
        assert len(leaders) > 1
        ann.expire_delegation_token(token.hmac, period_ms=300)
        root.transfer_leadership()
        until(
            lambda: token.token_id not in {each.token_id for each in ann.describe_delegation_token()},
            "the new leader removes the expired token",
        )


def test_the_command_line_shows_a_secret_only_when_asked(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = ["-b", cluster.bootstrap_servers, "--command-config", str(tmp_path / "ann.properties")]
    for name, config in (
        ("ann", login(cluster, "SCRAM-SHA-512", "ann", PASSWORD)),
        ("tls", login(cluster, "", "", "")),
    ):
        lines = [f"{key}={value}" for key, value in config.items() if value and key != "bootstrap.servers"]
        (tmp_path / f"{name}.properties").write_text("\n".join(lines) + "\n")
    out = tmp_path / "token.properties"

    def headrace(*words: str) -> tuple[int, str]:
        code = run([*words, *of, "-o", "json"])
        return code, capsys.readouterr().out

    code, made = headrace("tokens", "create", "--renewer", "User:bob", "--max-lifetime", "90s", "--out", str(out))
    assert code == 0
    token = json.loads(made)["token"]
    assert out.stat().st_mode & 0o777 == 0o600
    (hmac,) = re.findall(r'password="([^"]+)"', out.read_text())
    code, listed = headrace("tokens", "list", "--owner", "User:ann")
    assert [each["renewers"] for each in json.loads(listed) if each["token"] == token] == [["User:bob"]]
    with out.open("a") as file:
        file.write((tmp_path / "tls.properties").read_text())
    by_token = ["-b", cluster.bootstrap_servers, "--command-config", str(out)]
    assert run(["topics", "list", *by_token]) == 0
    assert "orders" in capsys.readouterr().out
    assert headrace("tokens", "renew", token, "--period", "20s")[0] == 0
    assert headrace("tokens", "create", "--out", str(out))[0] == 2, "no file is replaced"
    assert headrace("tokens", "expire", token)[0] == 0
    assert headrace("tokens", "expire", token)[0] != 0
    assert run(["topics", "list", *by_token]) != 0
    printed = capsys.readouterr()
    assert hmac not in made + listed + printed.out + printed.err
    code, made = headrace("tokens", "create", "--renewer-principal", "User:bob")
    assert code == 0
    assert base64.b64decode(json.loads(made)["hmac"]) == token_hmac(SECRET, json.loads(made)["token"])
    assert run(["tokens", "list", *of]) == 0
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == ["token", "owner", "requester", "renewers", "issued", "expires", "ends"]
    assert [row.split()[3] for row in rows if row.startswith(json.loads(made)["token"])] == ["User:bob"]
    assert run(["tokens", "create", "--renewer", "User:bob", "--renewer", "User:eve", *of]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split() == [
        "TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE"
    ]  # fmt: skip
    assert "User:bob, User:eve" in row


def _refused(cluster: LocalCluster, token: DelegationToken) -> None:
    with Admin(_by_token(cluster, token)) as admin, pytest.raises(SaslAuthenticationFailedError) as caught:
        admin.list_topics()
    assert token.password not in str(caught.value)
    assert SECRET not in str(caught.value)
