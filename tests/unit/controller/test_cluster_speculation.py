"""Decide, then replay: speculation, commit and resignation. A replay of the log gives the state of its writer."""

from __future__ import annotations

import random
import typing
from collections import Counter
from collections.abc import Iterator

import pytest

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    Bootstrap,
    ConfigOp,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FenceSilentBrokers,
    Heartbeat,
    HeartbeatsEnded,
    MorePartitions,
    NewTopic,
    OpKind,
    RegisterBroker,
    Request,
)
from headrace_core.errors import InconsistentClusterIdError, UnsupportedVersionError
from headrace_core.metadata import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    BrokerEndpoint,
    ClusterRecord,
    ConfigResourceType,
    MetadataImage,
    MetadataRecord,
)
from headrace_core.metadata.codec import decode_batches, encode_decision
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, id16


def test_nothing_decided_is_seen_before_it_is_committed() -> None:
    world = ClusterWorld()
    world.live_broker(1)
    world.ask(CreateTopics((NewTopic(name="t"),)), in_flight=True)
    assert world.image.topic("t") is None
    assert world.core.speculative.topic("t") is not None
    world.commit()
    assert world.image == world.core.speculative


def test_decisions_are_committed_one_by_one() -> None:
    world = ClusterWorld()
    world.live_broker(1)
    ends = []
    for name in "abc":
        world.ask(CreateTopics((NewTopic(name=name),)), in_flight=True)
        ends.append(len(world.log))
    done = world.core.commit(ends[1])
    assert [image.next_offset for image, _ in done] == ends[:2]
    assert sorted(world.image.topic_ids) == ["a", "b"]
    assert [len(delta.created_topics) for _, delta in done] == [1, 1]


def test_half_a_decision_is_never_committed() -> None:
    world = ClusterWorld()
    world.live_broker(1)
    before = world.image
    world.ask(CreateTopics((NewTopic(name="t", partitions=3),)), in_flight=True)
    assert world.core.commit(len(world.log) - 1) == []
    assert world.image is before


def test_resigning_drops_what_was_in_flight() -> None:
    world = ClusterWorld()
    world.live_broker(1)
    before = world.image
    world.ask(CreateTopics((NewTopic(name="t"),)), in_flight=True)
    world.core.resign()
    assert world.core.speculative is before
    assert world.image is before
    del world.log[before.next_offset :]
    world.core.lead(world.now_ms)
    assert world.create("t").name == "t"


def test_a_log_belongs_to_one_cluster_and_feature_level() -> None:
    world = ClusterWorld()
    assert world.log == [ClusterRecord(CLUSTER, METADATA_VERSION)]
    assert world.decide(Bootstrap(CLUSTER)).records == ()
    with pytest.raises(InconsistentClusterIdError):
        world.ask(Bootstrap("other"))
    core = ClusterCore(ClusterSettings(), new_id=lambda: b"")
    core.replay(EMPTY_IMAGE.apply([ClusterRecord(CLUSTER, 99)], 1))
    assert isinstance(core.decide(Bootstrap(CLUSTER), 0).failure, UnsupportedVersionError)


def test_replaying_the_log_gives_the_image_of_its_writer(seed: int) -> None:
    """Random requests, mixed with commits, pauses and resignations: the committed image always equals the replay of the
    committed log, byte for byte. A decision changes no state until it is accepted."""
    kinds: Counter[type] = Counter()
    for schedule in range(40):
        print(f"schedule {schedule}")
        kinds.update(_run_schedule(random.Random(seed + schedule)))
    # Records of moves, drains, shards and features have histories of their own (test_cluster_histories.py).
    first_kinds = {kind for kind in typing.get_args(MetadataRecord) if kind.__struct_config__.tag <= 8}
    assert set(kinds) == first_kinds, "a kind of record was never written"
    assert min(kinds.values()) >= 20, kinds


def _run_schedule(rng: random.Random) -> Iterator[type]:
    """Run one schedule with a check after each step. Return the kinds of records that the schedule committed."""
    core = ClusterCore(ClusterSettings(num_partitions=2), new_id=lambda: rng.randbytes(16))
    log: list[bytes] = []  # one batch for each decision
    ends = [0]
    now_ms, committed = 0.0, 0
    core.lead(now_ms)
    for _ in range(150):
        now_ms += rng.choice([0, 10, 500, 1_000, 4_000])
        request: Request = _random_request(rng, core.speculative)
        before = core.speculative
        decision = core.decide(request, now_ms)
        assert core.speculative is before
        if decision.records:
            log.append(encode_decision(decision.records, timestamp_ms=0, base_offset=ends[-1], epoch=1))
            ends.append(ends[-1] + len(decision.records))
        core.accept(decision, ends[-1], epoch=1)
        fate = rng.random()
        if fate < 0.4:
            committed = rng.randint(committed, len(log))
            core.commit(ends[committed])
        elif fate < 0.43:
            core.resign()
            del log[committed:], ends[committed + 1 :]
            core.lead(now_ms)
        assert core.committed == _replayed(log[:committed])
    assert core.committed.next_offset == ends[committed]
    return (type(record) for batch in decode_batches(b"".join(log[:committed])) for record in batch.records)


def _replayed(log: list[bytes]) -> MetadataImage:
    image = EMPTY_IMAGE
    for batch in decode_batches(b"".join(log)):
        image = image.apply(batch.records, batch.next_offset, batch.epoch)
    return image


def _random_request(rng: random.Random, image: MetadataImage) -> Request:
    names = [f"t{number}" for number in range(6)]
    brokers = list(image.brokers.values())
    kind = rng.randrange(10)
    if kind == 0 or not image.cluster_id:
        return Bootstrap(CLUSTER)
    if kind <= 1 or not brokers:
        directory = rng.randrange(4)
        return RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=rng.randbytes(16),
            directory_ids=(id16(directory),),
            endpoints=(BrokerEndpoint("client", "h", directory),),
            rack=rng.choice([None, "a", "b"]),
        )
    if kind <= 4:
        broker = rng.choice(brokers)
        return Heartbeat(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch - rng.choice([0, 0, 0, 1]),
            metadata_offset=rng.choice([image.next_offset, broker.broker_epoch]),
            want_shutdown=rng.random() < 0.1,
            want_fence=rng.random() < 0.1,
        )
    if kind == 5:
        broker = rng.choice(brokers)
        return rng.choice([FenceSilentBrokers(), HeartbeatsEnded(broker.broker_id, broker.broker_epoch)])
    if kind == 6:
        return DeleteTopics(tuple(rng.sample(names, 2)))
    if kind == 7:
        return CreatePartitions((MorePartitions(topic=rng.choice(names), total=rng.randint(1, 5)),))
    if kind == 8:
        op = ConfigOp(rng.choice(list(OpKind)), "cleanup.policy", rng.choice(["compact", "delete", "x"]))
        return AlterConfigs((AlterResource((ConfigResourceType.TOPIC, rng.choice(names)), (op,)),))
    return CreateTopics(
        tuple(
            NewTopic(name=name, partitions=rng.randint(-1, 4), replication_factor=rng.randint(1, 3))
            for name in rng.sample(names, 2)
        )
    )
