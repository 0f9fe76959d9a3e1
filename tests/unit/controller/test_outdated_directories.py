"""A broker returns with an older copy of a log directory, such as a snapshot of its machine or a restored backup."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_controller.applying import events_of
from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    ConfigOp,
    ElectionType,
    ElectLeaders,
    FeatureUpdate,
    OpKind,
    RegisterBroker,
    Registered,
    UpdateFeatures,
    UpgradeType,
)
from headrace_core.metadata import (
    EMPTY_IMAGE,
    METADATA_VERSION_FEATURE,
    BrokerEndpoint,
    ClusterRecord,
    ConfigResourceType,
    DirectoryEpoch,
    FeatureLevelRecord,
    FoundEpochs,
    MetadataDelta,
    MetadataImage,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace_core.metadata.codec import decode_record, encode_record
from headrace_core.metadata.snapshot import image_records
from headrace_core.telemetry import BrokerDirectoriesOutdated, UncleanLeaderElected
from tests.worlds.cluster_world import CLUSTER, MovesWorld, id16

#: The files of a log directory that prove its age: (started epoch, stopped epoch).
Disk = dict[bytes, tuple[int, int]]


class Machines:
    """Three brokers whose directories are data, so that a test can copy and restore them. ``level``: the
    metadata.version, if an older release has begun the log."""

    def __init__(self, *, directories: int = 1, level: int | None = None, **settings: Any) -> None:
        self.world = MovesWorld(0, **settings)
        if level is not None:
            self.world.log[:] = [ClusterRecord(CLUSTER, level)]
            self.world.core.committed = self.world.core.speculative = EMPTY_IMAGE.apply(self.world.log, 1)
        self.lives = 0
        self.up: dict[int, Registered] = {}
        self.disks: dict[int, Disk] = {
            number: {id16(100 * at + number): (-1, -1) for at in range(directories)} for number in (1, 2, 3)
        }
        for number in self.disks:
            self.start(number)

    def register(self, number: int, *, writes: bool = True, flush: str = "commit") -> Registered:
        """A start up to the registration."""
        disk = self.disks[number]
        stops = {stopped for _, stopped in disk.values()}
        self.lives += 1
        reply = self.world.ask(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=id16(500 + self.lives),
                directory_ids=tuple(disk),
                endpoints=(BrokerEndpoint("client", "127.0.0.1", 9_000),),
                wanted_broker_id=number,
                previous_broker_epoch=stops.pop() if len(stops) == 1 else -1,
                default_log_flush=flush,
                directory_epochs=tuple(FoundEpochs(each, *disk[each]) for each in disk) if writes else (),
            )
        )
        assert isinstance(reply, Registered)
        self.up[number] = reply
        return reply

    def start(self, number: int, *, writes: bool = True, flush: str = "commit") -> None:
        broker = self.register(number, writes=writes, flush=flush)
        disk = self.disks[number]
        self.disks[number] = {each: (broker.broker_epoch if writes else disk[each][0], -1) for each in disk}
        assert not self.world.beat(broker).fenced

    def kill(self, number: int) -> None:
        """The broker is silent for longer than its session."""
        del self.up[number]
        self.world.now_ms += 9_001
        for each in self.up.values():
            self.world.beat(each)
        self.world.upkeep()

    def stop(self, number: int) -> None:
        """A clean stop."""
        epoch = self.up[number].broker_epoch
        self.kill(number)
        self.disks[number] = {each: (started, epoch) for each, (started, _) in self.disks[number].items()}

    def in_sync(self, number: int, *isr: int) -> None:
        self.world.alter_isr(self.world.image.topic_ids["t"], number, list(isr))

    @property
    def state(self) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        state = self.world.partition("t")
        return state.leader, state.isr, state.elr, state.last_known_elr

    def outdated(self, number: int) -> tuple[bytes, ...]:
        return self.world.image.brokers[number].outdated_directories


def three(*, minimum: int = 2, replicas: tuple[int, ...] = (1, 2, 3), **more: Any) -> Machines:
    machines = Machines(**more)
    machines.world.create("t", partitions=-1, assignments={0: replicas}, configs={"min.insync.replicas": str(minimum)})
    return machines


def all_stopped_with_a_copy_of_3(*, clean_copy: bool, minimum: int = 2, **more: Any) -> tuple[Machines, Disk]:
    """Broker 3 was copied, ran again, and stopped last."""
    machines = three(minimum=minimum, **more)
    if clean_copy:
        machines.stop(3)
    else:
        machines.kill(3)
    copy = dict(machines.disks[3])
    machines.start(3)
    machines.in_sync(0, 1, 2, 3)
    for number in (1, 2, 3):
        machines.stop(number)
    return machines, copy


@pytest.mark.parametrize("clean_copy", [True, False], ids=["copied while stopped", "copied while it ran"])
def test_an_older_copy_waits_for_the_eligible_replica(clean_copy: bool) -> None:
    machines, copy = all_stopped_with_a_copy_of_3(clean_copy=clean_copy)
    assert machines.state == (-1, (), (2, 3), (3,))
    machines.disks[3] = copy
    machines.start(3)
    assert machines.state == (-1, (), (2,), ()), "3 is up, lacks records, and is no last known leader any more"
    machines.start(1)
    assert machines.state == (-1, (), (2,), ()), "1 left when it was not needed"
    machines.start(2)
    assert machines.state == (2, (2,), (), ())
    assert not machines.world.partition("t").recovering, "nothing was lost"


def test_only_an_operator_elects_an_older_copy() -> None:
    machines, copy = all_stopped_with_a_copy_of_3(clean_copy=True, minimum=1)
    assert machines.state == (-1, (), (3,), (3,)), "3 alone had everything"
    machines.disks[3] = copy
    machines.start(3)
    machines.start(1)
    assert machines.state == (-1, (), (), ())
    machines.world.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),)))
    assert machines.state[0] == 1
    assert machines.world.partition("t").recovering


def test_without_the_copy_the_same_order_loses_nothing() -> None:
    machines, _ = all_stopped_with_a_copy_of_3(clean_copy=True)
    machines.start(3)
    assert machines.state[0] == 3
    assert machines.outdated(3) == ()


def test_a_partition_with_one_replica_leads_at_once_with_a_warning() -> None:
    machines = three(replicas=(3,), minimum=1)
    copy = dict(machines.disks[3])
    machines.stop(3)
    machines.start(3)
    machines.kill(3)
    machines.disks[3] = copy
    before = machines.world.image
    machines.start(3)
    assert machines.state == (3, (3,), (), ())
    image = machines.world.image
    assert image.partition(*_key(image)).recovering, "it may have lost records, and says so"  # type: ignore[union-attr]
    events = list(events_of(MetadataDelta.between(before, image), before, image))
    (warning,) = [each for each in events if isinstance(each, BrokerDirectoriesOutdated)]
    assert warning.broker_id == 3
    assert len(warning.directory_ids) == 1
    assert not [each for each in events if isinstance(each, UncleanLeaderElected)], "no other replica lost an election"


def _key(image: MetadataImage) -> tuple[bytes, int]:
    return image.topic_ids["t"], 0


def test_a_leader_that_was_reverted_within_its_session_leads_no_more() -> None:
    machines = three()
    copy = dict(machines.disks[1])
    machines.stop(1)
    machines.start(1)
    machines.in_sync(0, 2, 3, 1)
    machines.kill(2)
    machines.kill(3)
    assert machines.state == (1, (1,), (3,), ())
    machines.world.now_ms += 9_001  # it is silent, and returns before the controllers look
    del machines.up[1]
    machines.disks[1] = copy
    machines.start(1)
    leader, isr, elr, last_known = machines.state
    assert (leader, isr, last_known) == (-1, (), ())
    assert 1 not in elr


# -- metadata.version 1: without eligible leader replicas, the last member of an ISR stays in it ----------------------


def test_at_level_1_the_last_isr_member_is_elected_only_by_an_operator_if_it_is_an_older_copy() -> None:
    machines, copy = all_stopped_with_a_copy_of_3(clean_copy=True, level=1)
    assert machines.state == (-1, (3,), (), ())
    machines.disks[3] = copy
    broker = machines.register(3)
    machines.disks[3] = dict.fromkeys(copy, (broker.broker_epoch, -1))
    machines.kill(3)
    machines.start(3)  # its epochs are those of its last registration now
    machines.start(1)
    assert machines.state == (-1, (), (), ())
    machines.world.ask(UpdateFeatures((FeatureUpdate(METADATA_VERSION_FEATURE, 2, UpgradeType.UPGRADE),)))
    machines.world.upkeep()
    assert machines.state == (-1, (), (), ()), "with eligible replicas neither"
    machines.world.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),)))
    assert machines.state[0] == 1


def test_at_level_1_the_replica_that_was_in_sync_last_leads_if_it_is_no_copy() -> None:
    machines, _ = all_stopped_with_a_copy_of_3(clean_copy=True, level=1)
    machines.start(1)
    assert machines.state == (-1, (3,), (), ())
    machines.start(3)
    assert machines.state == (3, (3,), (), ())


@pytest.mark.parametrize("levels", [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("restarts", [0, 1])
def test_at_each_level_an_older_copy_that_is_the_only_replica_leads_and_its_followers_may_truncate(
    levels: tuple[int, int], restarts: int
) -> None:
    machines = three(replicas=(3,), minimum=1, level=levels[0])
    epoch = machines.world.partition("t").leader_epoch
    copy = dict(machines.disks[3])
    machines.stop(3)
    machines.start(3)
    machines.stop(3)
    machines.disks[3] = copy
    for _ in range(restarts):  # before it is unfenced
        broker = machines.register(3)
        machines.disks[3] = dict.fromkeys(copy, (broker.broker_epoch, -1))
        machines.kill(3)
    machines.world.ask(UpdateFeatures((FeatureUpdate(METADATA_VERSION_FEATURE, levels[1], UpgradeType.UPGRADE),)))
    machines.start(3)
    assert machines.state == (3, (3,), (), ())
    assert machines.world.partition("t").clean_since > epoch, "records of the lost end are of earlier epochs"


# -- what is no older copy --------------------------------------------------------------------------------------------


def test_clean_stops_and_crashes_are_no_older_copies() -> None:
    machines = three()
    for ends in (machines.stop, machines.kill, machines.stop, machines.kill):
        ends(3)
        machines.start(3)
        assert machines.outdated(3) == ()


def test_a_stop_between_the_registration_and_the_write_of_the_epoch_is_no_older_copy() -> None:
    """The new epoch never served, so nothing can be missing; twice, and with the marker of the last clean stop."""
    for end in ("kill", "stop"):
        machines = three()
        getattr(machines, end)(3)
        for _ in range(2):
            machines.register(3)
            machines.kill(3)
        machines.start(3)
        assert machines.outdated(3) == ()


def test_a_start_that_wrote_its_epoch_and_never_served_does_not_hide_an_older_copy() -> None:
    """The partition changes of the older copy are written, or remembered, before the next start proves a newer
    epoch."""
    machines, copy = all_stopped_with_a_copy_of_3(clean_copy=True)
    machines.disks[3] = copy
    broker = machines.register(3)
    machines.disks[3] = dict.fromkeys(copy, (broker.broker_epoch, -1))
    machines.kill(3)
    machines.start(3)
    assert machines.state == (-1, (), (2,), ())


@pytest.mark.parametrize("level", [1, 2])
def test_the_changes_of_many_partitions_go_on_after_another_restart(level: int) -> None:
    machines = Machines(metadata_max_records_per_request=2, level=level)
    for name in ("t", "u", "v", "w", "x", "y"):
        machines.world.create(name, partitions=-1, assignments={0: (1, 2, 3)})
    copy = dict(machines.disks[3])
    machines.stop(3)
    machines.start(3)
    machines.world.catch_up()
    for number in (1, 2, 3):
        machines.kill(number)
    machines.disks[3] = copy
    for _ in range(2):
        machines.world.now_ms += 9_001  # no upkeep between the two
        broker = machines.register(3)
        machines.disks[3] = dict.fromkeys(copy, (broker.broker_epoch, -1))
    assert machines.world.image.brokers[3].elections_pending
    machines.world.upkeep()
    for topic in machines.world.image.topics.values():
        for partition in topic.partitions:
            assert 3 not in (*partition.isr, *partition.elr, *partition.last_known_elr)


# -- several directories, other releases, replaced disks ---------------------------------------------------------------


def test_only_the_replicas_in_the_restored_directory_are_affected() -> None:
    machines = Machines(directories=2)
    machines.world.create("t", partitions=-1, assignments={0: (1, 2, 3), 1: (1, 2, 3), 2: (1, 2, 3)})
    first, second = machines.disks[3]
    topic = machines.world.image.topic("t")
    assert topic is not None
    machines.world.assign(machines.up[3], topic, first, 0)
    machines.world.assign(machines.up[3], topic, second, 1)
    copy = machines.disks[3][second]
    machines.stop(3)
    machines.start(3)
    machines.in_sync(0, 1, 2, 3)
    machines.in_sync(1, 1, 2, 3)
    machines.in_sync(2, 1, 2, 3)
    for number in (1, 2, 3):
        machines.stop(number)
    machines.disks[3][second] = copy
    machines.register(3)
    assert machines.outdated(3) == (second,)
    elrs = [3 in machines.world.partition("t", number).elr for number in range(3)]
    assert elrs == [True, False, False], "the third is in an unknown directory, which may be the restored one"


def test_a_directory_that_had_failed_is_found_too_when_a_backup_replaces_it() -> None:
    machines = Machines(directories=2)
    machines.world.create("t", partitions=-1, assignments={0: (3, 1)})
    first, second = machines.disks[3]
    backup = machines.disks[3][second]
    machines.stop(3)
    machines.start(3)
    machines.world.beat(machines.up[3], offline_directories=(second,))
    machines.stop(3)
    whole = machines.disks[3]
    machines.disks[3] = {first: whole[first]}
    machines.start(3)
    machines.stop(3)
    machines.disks[3] |= {second: backup}
    machines.start(3)
    assert machines.outdated(3) == (second,)


def test_a_new_empty_disk_is_no_older_copy() -> None:
    machines = three()
    machines.stop(3)
    machines.disks[3] = {id16(999): (-1, -1)}
    machines.start(3)
    assert machines.outdated(3) == ()


def test_the_first_start_of_a_release_that_writes_epochs_is_as_before() -> None:
    machines = Machines()
    machines.kill(3)
    machines.disks[3] = dict.fromkeys(machines.disks[3], (-1, -1))
    machines.start(3, writes=False)
    machines.kill(3)
    machines.start(3)
    assert machines.outdated(3) == (), "nobody knows how old it is"
    machines.kill(3)
    machines.disks[3] = dict.fromkeys(machines.disks[3], (-1, -1))
    machines.start(3)
    assert machines.outdated(3) == tuple(machines.disks[3]), "from now on, a directory without an epoch is older"


def test_a_marker_of_a_release_without_epochs_proves_its_age() -> None:
    machines = Machines()
    machines.stop(3)
    machines.start(3, writes=False)
    machines.stop(3)
    copy = {each: (-1, stopped) for each, (_, stopped) in machines.disks[3].items()}
    machines.start(3, writes=False)
    machines.kill(3)
    machines.disks[3] = copy
    machines.start(3)
    assert machines.outdated(3) == tuple(copy)


def test_a_step_back_to_a_release_without_epochs_and_a_crash_is_no_older_copy() -> None:
    machines = Machines()
    machines.kill(3)
    machines.start(3, writes=False)
    machines.kill(3)
    machines.start(3)
    assert machines.outdated(3) == ()


def test_a_snapshot_keeps_what_each_directory_proved() -> None:
    machines, copy = all_stopped_with_a_copy_of_3(clean_copy=True)
    machines.disks[3] = copy
    machines.start(3)
    image = machines.world.image
    again = EMPTY_IMAGE.apply([decode_record(encode_record(each)) for each in image_records(image)], image.next_offset)
    assert again.brokers == image.brokers
    assert again.brokers[3].outdated_directories == tuple(copy)


def test_a_snapshot_of_an_earlier_release_knows_nothing() -> None:
    record = RegisterBrokerRecord(1, 7, id16(1), (id16(2),), ())
    image = EMPTY_IMAGE.apply([decode_record(encode_record(record))], 8)
    assert image.brokers[1].directory_epochs == ()
    assert not image.brokers[1].writes_epochs


def test_the_registration_of_an_earlier_release_keeps_what_is_known() -> None:
    machines = Machines()
    epoch = machines.up[3].broker_epoch
    (directory,) = machines.disks[3]
    machines.kill(3)
    machines.register(3, writes=False)
    assert machines.world.image.brokers[3].directory_epochs == (DirectoryEpoch(directory, epoch, True),)


@pytest.mark.parametrize("flush", ["commit", "os"])
def test_no_flush_policy_vouches_for_an_older_copy(flush: str) -> None:
    machines, copy = all_stopped_with_a_copy_of_3(clean_copy=True)
    machines.disks[3] = copy
    machines.start(3, flush=flush)
    assert machines.state == (-1, (), (2,), ())


def test_a_cluster_that_allows_unclean_elections_elects_the_copy() -> None:
    machines = three(minimum=1)
    op = ConfigOp(OpKind.SET, "unclean.leader.election.enable", "true")
    machines.world.ask(AlterConfigs((AlterResource((ConfigResourceType.TOPIC, "t"), (op,)),)))
    copy = dict(machines.disks[3])
    machines.stop(3)
    machines.start(3)
    machines.in_sync(0, 1, 2, 3)
    for number in (1, 2, 3):
        machines.stop(number)
    machines.disks[3] = copy
    machines.start(3)
    assert machines.state == (3, (3,), (), ())
    assert machines.world.partition("t").recovering


# -- a copy in the present epoch, which only the followers recognize ---------------------------------------------------


def led_by_3(*, minimum: int = 2, replicas: tuple[int, ...] = (1, 2, 3)) -> Machines:
    """Broker 3 was copied while it ran. All stopped, 3 last; with the copy it is eligible, and leads."""
    machines = three(minimum=minimum, replicas=replicas)
    copy = dict(machines.disks[3])
    for number in (1, 2, 3):
        machines.kill(number)
    machines.disks[3] = copy
    machines.start(3)
    assert machines.outdated(3) == ()
    assert machines.state[:2] == (3, (3,))
    return machines


def report(machines: Machines, number: int, *, epoch: int | None = None) -> None:
    state = machines.world.partition("t")
    lacking = (machines.world.image.topic_ids["t"], 0, state.leader_epoch if epoch is None else epoch)
    machines.world.beat(machines.up[number], lacking_leaders=(lacking, (b"?" * 16, 0, 0), (lacking[0], 7, 0)))


def test_a_leader_that_lacks_records_gives_way_to_the_eligible_replica() -> None:
    machines = led_by_3()
    machines.start(1)
    assert machines.state == (3, (3,), (2,), ())
    report(machines, 1)
    assert machines.state == (-1, (), (2,), ()), "1 has more, and maybe not all: 2 is waited for"
    machines.start(2)
    assert machines.state == (2, (2,), (), ())
    assert machines.world.partition("t").clean_since == 0, "nothing was lost"


def test_a_report_of_an_eligible_replica_elects_it() -> None:
    machines = led_by_3()
    machines.start(2)
    report(machines, 2)
    assert machines.state == (2, (2,), (), ())


def test_a_reporting_replica_in_the_isr_leads() -> None:
    machines = three(minimum=3)
    report(machines, 2)
    assert machines.state == (2, (2,), (), ())


def test_without_eligible_replicas_the_leader_stays() -> None:
    """It may have acknowledged records alone."""
    machines = led_by_3(minimum=1)
    machines.start(2)
    report(machines, 2)
    assert machines.state == (3, (3,), (), ())


def test_an_unclean_election_does_not_elect_the_leader_that_lacks_records() -> None:
    """It stayed the leader in the same epoch, so the followers refused to truncate for good, and the ELR was empty."""
    machines = led_by_3(replicas=(3, 1, 2))
    machines.start(1)
    op = ConfigOp(OpKind.SET, "unclean.leader.election.enable", "true")
    machines.world.ask(AlterConfigs((AlterResource((ConfigResourceType.TOPIC, "t"), (op,)),)))
    epoch = machines.world.partition("t").leader_epoch
    report(machines, 1)
    assert machines.state == (1, (1,), (), ())
    state = machines.world.partition("t")
    assert (state.leader_epoch, state.clean_since, state.recovering) == (epoch + 1, epoch + 1, True)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_reports_about_another_epoch_or_about_oneself_are_ignored(number: int) -> None:
    machines = led_by_3()
    machines.start(1)
    machines.start(2)
    before = machines.state
    epoch = machines.world.partition("t").leader_epoch
    report(machines, number, epoch=epoch - 1 if number < 3 else epoch)
    assert machines.state == before


@pytest.mark.parametrize("faulty", [1, 2])
def test_false_reports_of_one_broker_end_with_a_leader_that_has_every_committed_record(faulty: int) -> None:
    """Each costs a leader its place, and the last eligible one stays."""
    machines = three(minimum=3)
    for number in (1, 2):
        machines.kill(number)
    eligible = {3, *machines.state[2]}
    for number in (1, 2):
        machines.start(number)
    for _ in range(5):
        report(machines, faulty)
        assert machines.state[0] in eligible
    settled = machines.state
    report(machines, faulty)
    assert machines.state == settled
    assert machines.world.partition("t").clean_since == 0, "nothing was lost"


def test_a_fenced_broker_reports_in_vain() -> None:
    machines = led_by_3()
    machines.register(2)
    machines.world.beat(machines.up[2], want_fence=True)
    state = machines.world.partition("t")
    lacking = (machines.world.image.topic_ids["t"], 0, state.leader_epoch)
    machines.world.beat(machines.up[2], want_fence=True, lacking_leaders=(lacking,))
    assert machines.state == (3, (3,), (2,), ())


def test_many_reports_are_decided_in_portions() -> None:
    machines = Machines(metadata_max_records_per_request=3)
    names = [f"t{number}" for number in range(5)]
    for name in names:
        configs = {"min.insync.replicas": "3"}
        machines.world.create(name, partitions=-1, assignments={0: (1, 2, 3)}, configs=configs)
    lacking = tuple((machines.world.image.topic_ids[name], 0, 0) for name in names)
    for _ in range(2):
        machines.world.beat(machines.up[2], lacking_leaders=lacking)
    assert [machines.world.partition(name).leader for name in names] == [2] * 5


# -- the last unclean election ----------------------------------------------------------------------------------------


def test_each_unclean_election_is_remembered_and_no_clean_one() -> None:
    machines = three(minimum=1)
    machines.kill(1)
    machines.start(1)
    assert machines.world.partition("t").leader_epoch > 0
    assert machines.world.partition("t").clean_since == 0
    for number in (2, 3):
        machines.kill(number)
    for leader, gone in ((1, 3), (2, 1)):  # the second one while the first one recovers
        if gone in machines.up:
            machines.start(leader)
            machines.kill(gone)
        machines.world.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),)))
        state = machines.world.partition("t")
        assert (state.leader, state.recovering, state.clean_since) == (leader, True, state.leader_epoch)
    image = machines.world.image
    again = EMPTY_IMAGE.apply([decode_record(encode_record(each)) for each in image_records(image)], image.next_offset)
    assert again.topics == image.topics


def test_the_election_of_a_last_known_leader_counts_as_unclean() -> None:
    machines = Machines()
    machines.kill(1)
    machines.start(1, flush="os")
    machines.world.create("t", partitions=-1, assignments={0: (1,)})
    machines.kill(1)
    machines.start(1, flush="os")
    state = machines.world.partition("t")
    assert state.recovering
    assert state.clean_since == state.leader_epoch


def test_a_snapshot_of_an_earlier_release_allows_the_cuts_that_were_right_before_it() -> None:
    topic = TopicRecord("t", b"t" * 16)
    image = EMPTY_IMAGE.apply([topic, PartitionRecord(b"t" * 16, 0, (1, 2), (1,), 1, 6, 9)], 8)
    assert image.topics[b"t" * 16].partitions[0].clean_since == 6


def test_without_eligible_leader_replicas_any_election_may_have_lost_records() -> None:
    """At the first level, the members of an ISR stay in it whatever they lost in a crash."""
    history = [
        ClusterRecord("c", 1),
        TopicRecord("t", b"t" * 16),
        PartitionRecord(b"t" * 16, 0, (1, 2), (1, 2), 1, 0, 0),
        PartitionChangeRecord(b"t" * 16, 0, 1, leader=2, leader_epoch=1),
    ]
    image = EMPTY_IMAGE.apply(history, 4)
    assert image.topics[b"t" * 16].partitions[0].clean_since == 1
    later = [
        FeatureLevelRecord(METADATA_VERSION_FEATURE, 2),
        PartitionChangeRecord(b"t" * 16, 0, 2, leader=1, leader_epoch=2),
    ]
    assert image.apply(later, 6).topics[b"t" * 16].partitions[0].clean_since == 1
