"""A follower of the metadata lets its node's other work run while it catches up, and stops before records that it does
not understand."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from headrace_core.errors import UnsupportedVersionError
from headrace_core.membership.controllers import Controllers
from headrace_core.membership.metadata_follower import REPLAY_STEP_RECORDS, MetadataFollower
from headrace_core.metadata import METADATA_VERSION, METADATA_VERSION_FEATURE, FeatureLevelRecord, PartitionRecord
from headrace_core.metadata.codec import encode_decision
from headrace_core.metadata.records import TopicRecord
from headrace_core.rpc import ChannelPurpose, Channels
from tests.worlds.controllers_world import FOLLOWED_CLUSTER, Member, Quorum, running_task, serving
from tests.worlds.waiting import in_loop

TOPIC = b"t" * 16


def partition(number: int) -> PartitionRecord:
    return PartitionRecord(TOPIC, number, (1,), (1,), 1, 0, 0)


@pytest.mark.parametrize("batch", [1, 1_000, 20_000], ids=["many small decisions", "some", "one large decision"])
def test_others_have_their_turn_again_and_again_while_much_is_applied(batch: int) -> None:
    count = 20_000
    quorum = Quorum()
    quorum.commit(TopicRecord("t", TOPIC))
    records = b"".join(
        encode_decision(
            [partition(number) for number in range(first, first + batch)],
            timestamp_ms=1,
            base_offset=quorum.end + first,
            epoch=1,
        )
        for first in range(0, count, batch)
    )

    async def work() -> None:
        follower = MetadataFollower(["127.0.0.1:1"], FOLLOWED_CLUSTER, image=quorum.image)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async with running_task(others()):
            before = turns
            image, delta = await follower._replayed(records)
            assert turns - before >= count // REPLAY_STEP_RECORDS - 1
        assert len(image.topics[TOPIC].partitions) == len(delta.partitions[TOPIC]) == count
        assert image.next_offset == quorum.end + count
        assert follower.records_read == count
        assert follower.image is quorum.image, "it is published as a whole"

    asyncio.run(work())


@in_loop
async def test_a_level_that_this_version_does_not_know_ends_the_node_before_anything_is_misunderstood() -> None:
    quorum = Quorum()
    async with serving([Member(quorum, 1)]) as (controller,):
        follower = MetadataFollower([controller.member.address], FOLLOWED_CLUSTER)
        async with running_task(_outcome(follower)) as task:
            known = await follower.wait_applied(quorum.end)
            quorum.commit(FeatureLevelRecord(METADATA_VERSION_FEATURE, METADATA_VERSION + 1))
            async with asyncio.timeout(60):
                end = await task
        assert isinstance(end, UnsupportedVersionError)
        assert f"level {METADATA_VERSION + 1}" in end.message
        assert "upgrade this node" in end.message
        assert follower.image is known


def test_nodes_begin_at_different_controllers() -> None:
    """With random choices, all nodes were finally connected to the same controller (37 to 39 descriptors in a soak
    test)."""
    controllers = [f"127.0.0.1:{port}" for port in (1, 2, 3)]
    begun: list[str] = []

    class _Begun(Exception):
        pass

    class Watched(Channels):
        def open(self, address: str, purpose: ChannelPurpose) -> NoReturn:
            begun.append(address)
            raise _Begun

    known = Controllers(controllers, Watched())
    for node_id in range(1, 7):
        with pytest.raises(_Begun):
            asyncio.run(MetadataFollower(known, FOLLOWED_CLUSTER, node_id=node_id).run())
    with pytest.raises(_Begun):
        asyncio.run(MetadataFollower(known, FOLLOWED_CLUSTER).run())
    assert sorted(begun[:6]) == sorted(controllers * 2)
    assert begun[6] in controllers


async def _outcome(follower: MetadataFollower) -> BaseException | None:
    return (await asyncio.gather(follower.run(), return_exceptions=True))[0]
