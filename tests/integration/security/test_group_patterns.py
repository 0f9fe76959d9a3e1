"""What a user of a secured cluster learns of others by patterns and lists: only what the user may describe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, ScramMechanism, TopicPartition, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclBindingFilter, AclOperation, ResourceType
from headrace.errors import TopicAuthorizationFailedError
from tests.integration.security.test_sasl_cluster import PASSWORD, PLAIN, login
from tests.worlds.waiting import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {
        "super.users": "User:root",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": PLAIN,
    }
    few: dict[str, Any] = {"brokers": 1, "controllers": 1, "coordinators": 1, "mode": "inprocess"}
    with LocalCluster(**few, secure=True, config=config) as running:
        yield running


def test_a_pattern_names_only_topics_that_the_user_may_describe(cluster: LocalCluster) -> None:
    with Admin(login(cluster, "PLAIN", "root", "r00t")) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("ann", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
        )
        admin.create_topics(["team-orders", "team-payroll", "other"])
        admin.create_acls([_reads("g", ResourceType.GROUP), _reads("team-orders")])
        config = login(cluster, "SCRAM-SHA-512", "ann", PASSWORD) | {"group.id": "g"}
        with Consumer(config) as consumer:
            consumer.subscribe(pattern=".*")

            def assigned() -> set[str]:
                with contextlib.suppress(TopicAuthorizationFailedError):  # a fetch may be faster than the new target
                    consumer.poll(timeout=0.1)
                return {each.topic for each in consumer.assignment()}

            until(lambda: assigned() == {"team-orders"}, "the topic of the ACL is assigned")
            admin.create_topics(["team-secret", "team-new"])
            admin.create_acls([_reads("team-new")])
            until(lambda: assigned() == {"team-orders", "team-new"}, "the topic of the new ACL is assigned")
            admin.delete_acls([AclBindingFilter(resource_name="team-orders")])
            until(lambda: assigned() == {"team-new"}, "the topic without an ACL is given back")


def test_a_user_lists_the_groups_of_his_acls_without_a_right_on_internal_topics(cluster: LocalCluster) -> None:
    with Admin(login(cluster, "PLAIN", "root", "r00t")) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("ann", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
        )
        admin.create_topics(["listed"])
        admin.create_acls([_reads("ann-group", ResourceType.GROUP)])
        for group in ("ann-group", "bob-group"):
            with Consumer(login(cluster, "PLAIN", "root", "r00t") | {"group.id": group}) as consumer:
                consumer.commit({TopicPartition("listed", 0): 0})
        assert {"ann-group", "bob-group"} <= {each.group_id for each in admin.list_groups()}
    with Admin(login(cluster, "SCRAM-SHA-512", "ann", PASSWORD)) as ann:
        until(lambda: "ann-group" in {each.group_id for each in ann.list_groups()}, "the group of the ACL is listed")
        assert "bob-group" not in {each.group_id for each in ann.list_groups()}
        assert ann.list_transactions() == []


def _reads(name: str, kind: ResourceType = ResourceType.TOPIC) -> AclBinding:
    return AclBinding(resource_type=kind, resource_name=name, principal="User:ann", operation=AclOperation.READ)
