"""Feature levels (KIP-584). A level is raised if all nodes support it, and lowered if no data is lost. Written records
obey the level."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_controller.cluster.requests import (
    AllocateProducerIds,
    AssignDirectories,
    DrainBroker,
    FeatureUpdate,
    Placement,
    RegisterBroker,
    RegisterController,
    Registered,
    UnregisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    UnsupportedVersionError,
)
from headrace_core.metadata import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    BrokerEndpoint,
    ClusterRecord,
    FeatureRange,
    MetadataImage,
    PartitionChangeRecord,
)
from headrace_core.metadata.features import SUPPORTED_FEATURES, level_needed
from headrace_core.metadata.snapshot import image_records
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, MovesWorld, id16

OLD = (FeatureRange(METADATA_VERSION_FEATURE, 1, 1),)


def old_cluster(**settings: Any) -> ClusterWorld:
    """A cluster whose metadata log began with a version that supported only level 1."""
    world = ClusterWorld(**settings)
    world.log[:] = [ClusterRecord(CLUSTER, 1)]
    world.core.committed = world.core.speculative = MetadataImage().apply(world.log, 1)
    return world


def update(world: ClusterWorld, level: int, how: UpgradeType = UpgradeType.UPGRADE, **options: Any) -> None:
    (result,) = world.ask(UpdateFeatures((FeatureUpdate(METADATA_VERSION_FEATURE, level, how),), **options))
    if result.error is not None:
        raise result.error


def register(world: ClusterWorld, number: int, features: tuple[FeatureRange, ...]) -> Any:
    return world.ask(
        RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=id16(1_000 * number),
            directory_ids=(id16(number),),
            endpoints=(BrokerEndpoint("client", "h", number),),
            features=features,
        )
    )


def test_a_fresh_cluster_is_at_the_newest_level() -> None:
    world = ClusterWorld()
    assert world.image.metadata_version == METADATA_VERSION == 3
    before = len(world.log)
    update(world, METADATA_VERSION)
    assert len(world.log) == before, "it is there already"


def test_an_old_log_opens_and_goes_on_at_its_level_until_it_is_raised() -> None:
    world = old_cluster()
    broker = world.live_broker(1)
    world.live_broker(2)  # this controller could become the leader
    world.create("t", partitions=3)
    with pytest.raises(UnsupportedVersionError, match=r"needs metadata.version 2.*is at 1.*UpdateFeatures"):
        world.ask(AllocateProducerIds(broker.broker_id, broker.broker_epoch))
    with pytest.raises(UnsupportedVersionError):
        world.ask(DrainBroker(1, draining=True))
    world.beat(broker, want_fence=True)
    world.beat(broker)
    assert all(level_needed(record) == 1 for record in world.log)
    assert all(level_needed(record) == 1 for record in image_records(world.image))
    update(world, 2)
    assert world.image.metadata_version == 2
    assert world.ask(AllocateProducerIds(broker.broker_id, broker.broker_epoch)).first == 0


def test_at_level_1_a_partition_has_no_eligible_leader_replicas_and_its_log_no_such_field() -> None:
    world = old_cluster()
    brokers = [world.live_broker(number) for number in (1, 2)]
    world.create("t", partitions=4, replication_factor=2, configs={"min.insync.replicas": "2"})
    for broker in brokers:
        world.beat(broker, want_fence=True)
    changes = [record for record in world.log if isinstance(record, PartitionChangeRecord)]
    assert changes
    assert not any(record.elr or record.last_known_elr for record in changes)


def test_a_disk_that_is_replaced_after_the_upgrade_does_not_lead_what_was_led_from_it_at_level_1() -> None:
    """At level 1 the last in-sync replica stays in the ISR when it fails. After a new registration the replica is not
    the last known leader either: it would lead with an empty log, and the other replicas would truncate their
    records."""
    world = old_cluster()
    brokers = {number: _commits(world, number) for number in (1, 2)}
    topic = world.create("t", partitions=-1, assignments={0: (1, 2)})
    for number in (2, 1):
        world.beat(brokers[number], want_fence=True)
    assert (world.partition("t").leader, world.partition("t").isr) == (-1, (1,))
    update(world, 2)
    world.now_ms += 10_000
    again = _commits(world, 1, life=1, disk=101, unfence=False)
    placement = Placement(topic.topic_id, 0, id16(101), fresh=True)
    world.ask(AssignDirectories(broker_id=1, broker_epoch=again.broker_epoch, placements=(placement,)))
    world.beat(again)
    partition = world.partition("t")
    assert not world.image.brokers[1].fenced
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (-1, (), (), ())


def _commits(world: ClusterWorld, number: int, *, life: int = 0, disk: int = 0, unfence: bool = True) -> Registered:
    """A broker that flushes what it acknowledges."""
    reply = world.ask(
        RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=id16(1_000 * number + life),
            directory_ids=(id16(disk or number),),
            endpoints=(BrokerEndpoint("client", "h", number),),
            wanted_broker_id=number,
            default_log_flush="commit",
        )
    )
    assert isinstance(reply, Registered)
    if unfence:
        assert not world.beat(reply).fenced
    return reply


def test_the_level_is_not_raised_over_the_head_of_a_node_that_does_not_know_it() -> None:
    world = old_cluster()
    register(world, 1, OLD)
    register(world, 2, SUPPORTED_FEATURES)
    with pytest.raises(InvalidUpdateVersionError, match="broker 1 does not support"):
        update(world, 2)
    world = old_cluster()
    register(world, 1, ())
    with pytest.raises(InvalidUpdateVersionError, match="broker 1 does not support"):
        update(world, 2)


def test_a_broker_that_is_gone_for_good_does_not_hold_an_old_cluster_at_its_level() -> None:
    """Below level 2 there is no record that unregisters a broker, so the level could never be raised."""
    world = old_cluster()
    register(world, 1, ())
    world.now_ms += 10_000
    register(world, 2, SUPPORTED_FEATURES)
    with pytest.raises(UnsupportedVersionError, match=r"needs metadata.version 2"):
        world.ask(UnregisterBroker(1))
    update(world, 2)
    assert set(world.image.brokers) == {2}
    with pytest.raises(UnsupportedVersionError, match=r"broker supports metadata.version 1 to 1.*at level 2"):
        register(world, 1, ())


def test_an_old_broker_that_may_come_up_or_has_replicas_still_counts() -> None:
    world = old_cluster()
    broker = register(world, 1, ())
    for _ in ("it starts just now", "it serves"):
        with pytest.raises(InvalidUpdateVersionError, match="broker 1 does not support"):
            update(world, 2)
        world.beat(broker)
    world.create("t", partitions=1)
    world.now_ms += 10_000
    world.tick()
    assert world.image.brokers[1].fenced
    with pytest.raises(InvalidUpdateVersionError, match="broker 1 does not support"):
        update(world, 2)


def test_a_controller_says_what_it_understands_and_counts_too() -> None:
    world = ClusterWorld()
    world.ask(RegisterController(3, id16(3), SUPPORTED_FEATURES))
    before = len(world.log)
    world.ask(RegisterController(3, id16(3), SUPPORTED_FEATURES))
    assert len(world.log) == before, "what is known is not written again"
    with pytest.raises(UnsupportedVersionError, match="controller 4 supports"):
        world.ask(RegisterController(4, id16(4), OLD))
    with pytest.raises(InvalidRequestError):
        world.ask(RegisterController(4, b"", SUPPORTED_FEATURES))
    assert sorted(world.image.ledger.controllers) == [3]
    only_new = (FeatureRange(METADATA_VERSION_FEATURE, 2, METADATA_VERSION),)
    world.ask(RegisterController(5, id16(5), only_new))
    with pytest.raises(InvalidUpdateVersionError, match="controller 5 does not support"):
        update(world, 1, UpgradeType.SAFE_DOWNGRADE)


def test_a_node_that_does_not_know_the_level_is_not_registered() -> None:
    world = ClusterWorld()
    for features in (OLD, ()):
        with pytest.raises(UnsupportedVersionError, match="but the cluster is at level 3"):
            register(world, 1, features)
    twice = (*SUPPORTED_FEATURES, *SUPPORTED_FEATURES)
    with pytest.raises(InvalidRequestError, match="each only once"):
        register(world, 1, twice)
    assert not world.image.brokers
    register(world, 1, (*SUPPORTED_FEATURES, FeatureRange("something.newer", 0, 7)))


def test_the_level_is_lowered_while_nothing_would_be_lost_and_raised_again() -> None:
    world = ClusterWorld()
    world.live_broker(1)
    world.create("t")
    world.ask(RegisterController(3, id16(3), SUPPORTED_FEATURES))
    with pytest.raises(InvalidUpdateVersionError, match="safe downgrade"):
        update(world, 1)
    update(world, 1, UpgradeType.SAFE_DOWNGRADE)
    assert world.image.metadata_version == 1
    assert all(level_needed(record) == 1 for record in image_records(world.image)), "an old node can read a snapshot"
    with pytest.raises(InvalidUpdateVersionError, match="use an upgrade"):
        update(world, 2, UpgradeType.SAFE_DOWNGRADE)
    update(world, 2)


def test_the_level_is_not_lowered_while_something_needs_it() -> None:
    world = MovesWorld(3)
    world.topic("t", [(1, 2)])
    world.ask(DrainBroker(3, draining=True))
    with pytest.raises(InvalidUpdateVersionError, match="broker 3 is drained"):
        update(world, 1, UpgradeType.SAFE_DOWNGRADE)
    with pytest.raises(InvalidUpdateVersionError, match="unsafe downgrade is not supported"):
        update(world, 1, UpgradeType.UNSAFE_DOWNGRADE)
    world.ask(DrainBroker(3, draining=False))
    world.move("t", 0, (1, 3))
    with pytest.raises(InvalidUpdateVersionError, match="partitions are being reassigned"):
        update(world, 1, UpgradeType.SAFE_DOWNGRADE)
    world.settle()
    update(world, 1, UpgradeType.SAFE_DOWNGRADE)
    update(world, 2)
    world.ask(AllocateProducerIds(1, world.brokers[1].broker_epoch))
    with pytest.raises(InvalidUpdateVersionError, match="producer ids were assigned"):
        update(world, 1, UpgradeType.SAFE_DOWNGRADE)


@pytest.mark.parametrize(
    ("name", "level"), [("kraft.version", 1), (METADATA_VERSION_FEATURE, 0), (METADATA_VERSION_FEATURE, 99)]
)
def test_unknown_features_and_levels_are_refused(name: str, level: int) -> None:
    world = ClusterWorld()
    (result,) = world.ask(UpdateFeatures((FeatureUpdate(name, level),)))
    assert isinstance(result.error, InvalidUpdateVersionError)


def test_a_check_changes_nothing_and_a_feature_is_named_once() -> None:
    world = old_cluster()
    update(world, 2, validate_only=True)
    assert world.image.metadata_version == 1
    item = FeatureUpdate(METADATA_VERSION_FEATURE, 2)
    errors: list[HeadraceError | None] = [each.error for each in world.ask(UpdateFeatures((item, item)))]
    assert [type(error) for error in errors] == [InvalidRequestError] * 2
    assert world.image.metadata_version == 1
