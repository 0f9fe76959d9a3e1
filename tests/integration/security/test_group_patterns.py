"""Members that subscribe by a pattern, on a secured cluster: a pattern names no topic that its user may not see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, ScramMechanism, UserScramCredentialUpsertion
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


def _reads(name: str, kind: ResourceType = ResourceType.TOPIC) -> AclBinding:
    return AclBinding(resource_type=kind, resource_name=name, principal="User:ann", operation=AclOperation.READ)
