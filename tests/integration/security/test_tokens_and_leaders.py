"""Delegation tokens while the leadership of the controllers moves: every controller forwards the calls, and a new
leader knows all tokens and removes the expired ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, LocalCluster, ScramMechanism, UserScramCredentialUpsertion
from headrace.errors import DelegationTokenOwnerMismatchError
from tests.integration.security.test_sasl_cluster import PASSWORD, PLAIN, login
from tests.worlds.waiting import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {
        "super.users": "User:root",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": PLAIN,
        "delegation.token.secret.key": "pl4nted-master-key",
        "delegation.token.expiry.check.interval.ms": "200",
    }
    few: dict[str, Any] = {"brokers": 1, "controllers": 3, "coordinators": 0, "mode": "inprocess"}
    with LocalCluster(**few, secure=True, config=config) as running:
        with Admin(login(running, "PLAIN", "root", "r00t")) as root:
            root.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(each, PASSWORD, ScramMechanism.SCRAM_SHA_512) for each in ("ann", "eve")]
            )
        yield running


def user(cluster: LocalCluster, name: str, address: str | None = None) -> Admin:
    config = login(cluster, "SCRAM-SHA-512", name, PASSWORD)
    return Admin(config if address is None else config | {"bootstrap.servers": address})


def controllers(cluster: LocalCluster) -> list[str]:
    paths = sorted(cluster.directory.glob("controller-*/node.json"))
    return [json.loads(path.read_text())["listeners"]["client"] for path in paths]


def test_every_controller_forwards_who_asks(cluster: LocalCluster) -> None:
    addresses = controllers(cluster)
    assert len(addresses) == 3
    for address in addresses:
        with user(cluster, "ann", address) as ann, user(cluster, "eve", address) as eve:
            token = ann.create_delegation_token()
            assert (token.owner, token.requester) == ("User:ann", "User:ann")
            with pytest.raises(DelegationTokenOwnerMismatchError):
                eve.renew_delegation_token(token.hmac)
            assert token.token_id in {each.token_id for each in ann.describe_delegation_token()}
            assert token.token_id not in {each.token_id for each in eve.describe_delegation_token()}
            ann.expire_delegation_token(token.hmac)


def test_a_new_leader_knows_the_tokens_and_removes_the_expired_ones(cluster: LocalCluster) -> None:
    with user(cluster, "ann") as ann, Admin(login(cluster, "PLAIN", "root", "r00t")) as root:
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
        until(lambda: ann.describe_delegation_token() == [], "the new leader removes the expired token")
