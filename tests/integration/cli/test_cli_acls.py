"""Access control entries at the command line, on a cluster with an authorizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import LocalCluster

Cli = Callable[..., Any]

AUTHORIZER = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(brokers=1, controllers=1, coordinators=0, mode="inprocess", config=AUTHORIZER) as cluster:
        yield cluster.bootstrap_servers


def test_a_pattern_type_without_a_resource_limits_what_is_deleted(bare_cli: Cli, bootstrap: str) -> None:
    def acls(*words: str) -> list[tuple[str, str]]:
        rows = bare_cli("acls", *words, "-o", "json", bootstrap=bootstrap).json()
        return [(row["pattern_type"], row["resource_name"]) for row in rows]

    alice = ("--allow-principal", "User:alice")
    acls("create", *alice, "--operation", "Read", "--topic", "orders")
    acls("create", *alice, "--operation", "Read", "--topic", "logs-", "--resource-pattern-type", "prefixed")

    prefixed = acls("delete", *alice, "--resource-pattern-type", "prefixed")
    assert prefixed == [("PREFIXED", "logs-")]
    assert acls("list") == [("LITERAL", "orders")]
    assert acls("delete", *alice) == [("LITERAL", "orders")]
