"""Access control entries: the controllers' decisions."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_controller.cluster import acls
from headrace_controller.cluster.requests import CreateAcls, DeleteAcls, FeatureUpdate, UpdateFeatures, UpgradeType
from headrace_core.errors import (
    InvalidRequestError,
    PolicyViolationError,
    SecurityDisabledError,
    UnsupportedVersionError,
)
from headrace_core.metadata import METADATA_VERSION_FEATURE
from headrace_core.metadata.records import AclRecord
from headrace_core.security.acl import AclFilter
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from tests.worlds.cluster_world import ClusterWorld


def entry(**fields: Any) -> AclRecord:
    values = {
        "acl_id": b"",
        "resource_type": int(ResourceType.TOPIC),
        "resource_name": "orders",
        "pattern_type": int(PatternType.LITERAL),
        "principal": "User:alice",
        "host": "*",
        "operation": int(Operation.READ),
        "permission": int(Permission.ALLOW),
    }
    return AclRecord(**values | fields)  # type: ignore[arg-type]


def create(world: ClusterWorld, *entries: AclRecord) -> list[Any]:
    return [result.error for result in world.ask(CreateAcls(entries))]


def delete(world: ClusterWorld, *filters: AclFilter) -> list[Any]:
    return [(len(result.removed), result.error) for result in world.ask(DeleteAcls(filters))]


def test_an_entry_exists_once_and_is_removed_once() -> None:
    world = ClusterWorld()
    assert create(world, entry(), entry(), entry(operation=int(Operation.WRITE))) == [None, None, None]
    assert len(world.image.security.acls) == 2
    before = len(world.log)
    assert create(world, entry()) == [None]
    assert len(world.log) == before, "it is there already"
    assert delete(world, AclFilter(resource_name="orders"), AclFilter(principal="User:bob")) == [(2, None), (0, None)]
    assert not world.image.security.acls


def test_overlapping_filters_remove_each_entry_once() -> None:
    world = ClusterWorld()
    create(world, entry(), entry(resource_name="payments"))
    assert delete(world, AclFilter(), AclFilter(resource_name="orders")) == [(2, None), (1, None)]
    assert not world.image.security.acls


def test_a_match_filter_finds_what_concerns_a_name() -> None:
    world = ClusterWorld()
    create(
        world,
        entry(resource_name="*"),
        entry(resource_name="ord", pattern_type=int(PatternType.PREFIXED)),
        entry(resource_name="orders"),
        entry(resource_name="ordinary"),
    )
    wanted = AclFilter(resource_type=ResourceType.TOPIC, resource_name="orders", pattern_type=PatternType.MATCH)
    assert {each.resource_name for each in acls.described(world.image, wanted)} == {"*", "ord", "orders"}


def test_a_host_has_one_form() -> None:
    world = ClusterWorld()
    assert create(world, entry(host="::ffff:10.0.0.1"), entry(host="10.0.0.1")) == [None, None]
    assert [each.host for each in world.image.security.acls.values()] == ["10.0.0.1"]


def test_a_network_is_found_and_removed_as_it_was_written() -> None:
    """Kafka 4.4 keeps 10.0.0.1/8 as it is (KIP-1276), so its tools list and remove it by this text."""
    world = ClusterWorld()
    assert create(world, entry(host="10.0.0.1/8"), entry(host="10.0.0.0/8")) == [None, None]
    assert [each.host for each in acls.described(world.image, AclFilter(host="10.0.0.1/8"))] == ["10.0.0.0/8"]
    assert delete(world, AclFilter(host="10.1.2.3")) == [(0, None)], "a filter names an entry, not an address in it"
    assert delete(world, AclFilter(host="10.0.0.1/8")) == [(1, None)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resource_type": 1}, "resource type 1"),
        ({"pattern_type": 2}, "pattern type 2"),
        ({"operation": 1}, "operation 1"),
        ({"permission": 1}, "permission 1"),
        ({"resource_name": ""}, "resource name is empty"),
        ({"principal": "alice"}, "write TYPE:NAME"),
        ({"host": "example.org"}, "write an IP address"),
        ({"host": "10.0.0.0/255.0.0.0"}, "write an IP address, a network such as 10.0.0.0/8"),
        ({"resource_type": int(ResourceType.CLUSTER)}, "only resource of type CLUSTER is kafka-cluster"),
    ],
)
def test_an_impossible_entry_is_named_and_others_are_made(fields: dict[str, Any], words: str) -> None:
    world = ClusterWorld()
    wrong, right = create(world, entry(**fields), entry())
    assert isinstance(wrong, InvalidRequestError)
    assert words in wrong.message
    assert right is None
    assert len(world.image.security.acls) == 1


def test_a_cluster_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "ACLS_MAX", 2)
    world = ClusterWorld()
    errors = create(world, *(entry(resource_name=name) for name in "abc"))
    assert [type(error) for error in errors] == [type(None), type(None), PolicyViolationError]


def test_an_older_log_takes_none() -> None:
    world = ClusterWorld()
    update = FeatureUpdate(METADATA_VERSION_FEATURE, 2, UpgradeType.SAFE_DOWNGRADE)
    (lowered,) = world.ask(UpdateFeatures((update,)))
    assert lowered.error is None
    with pytest.raises(UnsupportedVersionError, match=r"need metadata\.version 3, but the cluster has 2"):
        create(world, entry())


def test_without_an_authorizer_security_is_disabled() -> None:
    acls.check_enabled(True)
    with pytest.raises(SecurityDisabledError, match=r"authorizer\.class\.name=StandardAuthorizer"):
        acls.check_enabled(False)
