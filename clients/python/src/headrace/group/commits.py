"""Commit a group's offsets in call order, and fetch them. Runs on the I/O thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace_core.errors import HeadraceError, RequestTimedOutError, UnknownTopicOrPartitionError, from_number
from headrace_core.rpc.limits import pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2

from ..engine.client import Engine, FinalError
from ..engine.coordinators import Coordinators, raise_first
from ..models import OffsetAndMetadata

logger = logging.getLogger("headrace")


class Who(NamedTuple):
    """The identity of a commit. A non-member has an empty id and epoch -1."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


NO_MEMBER = Who()


class Commits:
    """Commits and fetches. ``who()`` is the member's identity when a commit is requested; retries keep it. In a newer
    epoch another member may own the partitions and have read further. The coordinator accepts a commit of an older
    epoch only for partitions that the member still has (KIP-1251).

    ``topic_id_of``: the id of the topic that was read; b"": unknown. A topic that was deleted and created again has the
    same name, but offsets of the old one mean nothing in it.
    """

    def __init__(
        self,
        engine: Engine,
        coordinators: Coordinators,
        group_id: str,
        who: Callable[[], Who],
        topic_id_of: Callable[[TopicPartition], bytes] = lambda _: b"",
    ) -> None:
        self._engine = engine
        self._coordinators = coordinators
        self._group_id = group_id
        self._who = who
        self._topic_id_of = topic_id_of
        self._turn = asyncio.Lock()

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float | None = None,
        final: tuple[type[HeadraceError], ...] = (),
    ) -> None:
        """Commit; returns when all offsets are on all in-sync replicas of the group's shard. Retries until the timeout.
        ``final``: retriable errors that end the retries. Raises UnknownTopicOrPartitionError at once for a topic that
        the brokers do not know either.

        Raises UnknownMemberIdError, FencedMemberEpochError, FencedInstanceIdError, StaleMemberEpochError (the caller is
        no longer a member, or has lost the partition); InvalidCommitOffsetSizeError, OffsetMetadataTooLargeError,
        UnknownTopicIdError; RequestTimedOutError (outcome unknown).
        """
        if not offsets:
            return
        deadline = self._engine.deadline(timeout_s)
        who = self._who()
        for page in pages(list(offsets.items())):
            await self._commit(dict(page), who, deadline, final)

    async def _commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        who: Who,
        deadline: float,
        final: tuple[type[HeadraceError], ...],
    ) -> None:
        """Commit as many as one request may name."""
        request = groups_pb2.CommitOffsetsRequest(
            group_id=self._group_id, member_id=who.member_id, member_epoch=who.epoch, instance_id=who.instance_id
        )
        for tp, each in offsets.items():
            request.offsets.add(
                topic=tp.topic,
                partition=tp.partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
                topic_id=self._topic_id_of(tp),
            )

        looked_into: tuple[type[HeadraceError], ...] = (*final, UnknownTopicOrPartitionError)

        def check(answer: Any) -> None:
            try:
                raise_first(answer.results, f"group {self._group_id!r}")
            except looked_into as error:
                raise FinalError(error) from None

        what = f"committing to {self._group_id!r}"
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.01)):
                await self._turn.acquire()
        except TimeoutError:
            raise RequestTimedOutError(f"{what}: timed out waiting for an earlier commit") from None
        try:
            while True:
                try:
                    await self._coordinators.call(self._group_id, "CommitOffsets", request, deadline, what, check)
                    return
                except UnknownTopicOrPartitionError as error:
                    if isinstance(error, final) or await self._is_any_gone(offsets, deadline):
                        raise
                # The topic is new: the coordinator's metadata are older than the brokers'.
                await asyncio.sleep(self._engine.backoff.longest_s)
        finally:
            self._turn.release()

    async def _is_any_gone(self, partitions: Iterable[TopicPartition], deadline: float) -> bool:
        """Whether the brokers' current metadata lack a partition; True if there is no time to retry."""
        if time.monotonic() + self._engine.backoff.longest_s >= deadline:
            return True
        wanted = list(partitions)
        metadata = self._engine.metadata
        try:
            await metadata.refresh(sorted({tp.topic for tp in wanted}), deadline=deadline)
        except HeadraceError as error:
            logger.info("group %r: whether its topics are still there is not known: %s", self._group_id, error)
            return False
        known = metadata.snapshot.topics
        return any(tp.topic not in known or tp.partition >= len(known[tp.topic].partitions) for tp in wanted)

    async def fetch(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None: no offset."""
        deadline = self._engine.deadline(timeout_s)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for page in pages(list(partitions)):
            found.update(await self._fetch(page, deadline))
        return found

    async def _fetch(
        self, wanted: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Fetch as many as one request may name."""
        request = groups_pb2.FetchOffsetsRequest(require_stable=True)
        of_group = request.groups.add(group_id=self._group_id, member_epoch=-1)
        of_group.partitions.SetInParent()
        for tp in wanted:
            of_group.partitions.partitions.add(topic=tp.topic, partition=tp.partition)

        def check(answer: Any) -> None:
            (result,) = answer.groups
            if result.error.code:
                raise from_number(result.error.code, f"group {self._group_id!r}: {result.error.message}")
            raise_first(result.offsets, f"group {self._group_id!r}")

        what = f"fetching the offsets of {self._group_id!r}"
        answer = await self._coordinators.call(self._group_id, "FetchOffsets", request, deadline, what, check)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(wanted)
        for each in answer.groups[0].offsets:
            if each.offset >= 0:
                tp = TopicPartition(each.topic, each.partition)
                found[tp] = OffsetAndMetadata(each.offset, each.metadata, each.leader_epoch)
        return found
