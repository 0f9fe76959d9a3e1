"""Commit a group's offsets in the order of the calls, and fetch committed offsets. The module runs on Headrace's I/O
thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace_core.errors import HeadraceError, RequestTimedOutError, UnknownTopicOrPartitionError, from_number
from headrace_core.rpc.limits import limit_of, pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2

from ..engine.client import Engine, FinalError
from ..engine.coordinators import Coordinators, raise_first
from ..models import GroupMetadata, OffsetAndMetadata

logger = logging.getLogger("headrace")


class Who(NamedTuple):
    """The member on whose behalf offsets are committed. A program that is not a member has an empty id and epoch -1."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


NO_MEMBER = Who()
#: The commits of this process's members, by member id.
_OF_MEMBERS: weakref.WeakValueDictionary[str, Commits] = weakref.WeakValueDictionary()
#: (group id, member id, commits) of each commit of this process that is in flight, or waits for an earlier one.
_IN_FLIGHT: list[tuple[str, str, Commits]] = []


def next_number(member_id: str) -> int:
    """The next of the member's commit numbers, for a transaction with the member's offsets; 0: the member of this
    process, if it is one, has sent no commit. An attempt of a commit may arrive after its caller gave it up, and would
    set back what the transaction has committed meanwhile; by the number, the coordinator refuses it."""
    commits = _OF_MEMBERS.get(member_id)
    return 0 if commits is None else next(commits.numbers)


async def none_in_flight(group: GroupMetadata) -> None:
    """Wait until this process has no commit of the member in flight; without a member id, none of the group. A commit
    that waits for an earlier one has no number yet, so the coordinator could not tell that it was asked for before the
    transaction's offsets."""
    for group_id, member_id, commits in tuple(_IN_FLIGHT):
        if group_id == group.group_id and group.member_id in ("", member_id):
            await commits.none_in_flight()


class GroupOffsets(NamedTuple):
    """Offsets to commit in a transaction, and the group member that commits them. ``topic_ids``: the known ids of the
    topics that the member read. ``refusal``: the error if the member may not commit the offsets. ``end_auto_commits``:
    stops the consumer's auto-commits, and waits for its commits in flight, because a commit must not arrive after the
    transaction's offsets."""

    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    topic_ids: Mapping[TopicPartition, bytes] = {}
    refusal: HeadraceError | None = None
    end_auto_commits: Callable[[], Awaitable[None]] | None = None


class Commits:
    """Commits and fetches. ``who()`` returns the member's identity when a commit is requested, and ``ended()`` the
    epochs of the partitions that the member must release (group/member.py); the retries of that commit use the same
    identity and epochs. Retries with a newer member epoch could overwrite the commit of another member, which owns the
    partitions now and has read further. The coordinator accepts a commit with an older member epoch only for partitions
    that the member still owns (KIP-1251).

    ``topic_id_of`` returns the id of the topic that was read; b"" if the id is unknown. A topic that was deleted and
    created again has the same name and another id. Offsets of the old topic mean nothing in the new topic.
    """

    def __init__(
        self,
        engine: Engine,
        coordinators: Coordinators,
        group_id: str,
        who: Callable[[], Who],
        topic_id_of: Callable[[TopicPartition], bytes] = lambda _: b"",
        ended: Callable[[], Mapping[TopicPartition, int]] = dict,
    ) -> None:
        self._engine = engine
        self._coordinators = coordinators
        self._group_id = group_id
        self._who = who
        self._topic_id_of = topic_id_of
        self._ended = ended
        self._turn = asyncio.Lock()
        self.numbers = itertools.count(1)  # also for transactions, on the I/O thread of their producer

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float | None = None,
        final: tuple[type[HeadraceError], ...] = (),
        traceparent: str | None = None,
    ) -> None:
        """Commit offsets; return when all in-sync replicas of the group's partition of ``__consumer_offsets`` have
        them. Failed attempts are retried until the timeout. ``final``: retriable errors that are raised instead of
        retried. ``traceparent``: the context of the program's span. Raises UnknownTopicOrPartitionError without further
        retries if neither the coordinator nor the brokers know the topic.

        Raises UnknownMemberIdError, FencedMemberEpochError, FencedInstanceIdError, StaleMemberEpochError (the caller is
        no longer a member, or has lost the partition); InvalidCommitOffsetSizeError, OffsetMetadataTooLargeError,
        UnknownTopicIdError; RequestTimedOutError (the outcome is unknown).
        """
        if not offsets:
            return
        deadline = self._engine.deadline(timeout_s)
        by_member = self._by_member(offsets)
        what = f"committing to {self._group_id!r}"
        async with self._in_turn(by_member[0][0].member_id, deadline, what):
            for who, theirs in by_member:
                for page in pages(list(theirs.items()), limit_of("Groups/CommitOffsets", "offsets")):
                    await self._commit(dict(page), who, deadline, what, final, traceparent)

    @contextlib.asynccontextmanager
    async def _in_turn(self, member_id: str, deadline: float, what: str) -> AsyncIterator[None]:
        in_flight = self._group_id, member_id, self
        _IN_FLIGHT.append(in_flight)
        try:
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0.01)):
                    await self._turn.acquire()
            except TimeoutError:
                raise RequestTimedOutError(f"{what}: timed out waiting for an earlier commit") from None
            try:
                yield
            finally:
                self._turn.release()
        finally:
            _IN_FLIGHT.remove(in_flight)

    def _by_member(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> list[tuple[Who, Mapping[TopicPartition, OffsetAndMetadata]]]:
        """The offsets by the identity that commits them, those of the newest epoch first: a refusal of the others must
        not keep them from being committed."""
        who, ended = self._who(), self._ended()
        if not ended:
            return [(who, offsets)]
        by_epoch: dict[int, dict[TopicPartition, OffsetAndMetadata]] = {}
        for tp, each in offsets.items():
            by_epoch.setdefault(ended.get(tp, who.epoch), {})[tp] = each
        return [(who._replace(epoch=epoch), theirs) for epoch, theirs in sorted(by_epoch.items(), reverse=True)]

    async def _commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        who: Who,
        deadline: float,
        what: str,
        final: tuple[type[HeadraceError], ...],
        traceparent: str | None,
    ) -> None:
        """Send one OffsetCommit request, and repeat it until it succeeds. By the request's number, the coordinator
        recognizes an attempt that arrives too late."""
        number = 0
        if who.member_id:
            _OF_MEMBERS[who.member_id] = self
            number = next(self.numbers)
        request = groups_pb2.CommitOffsetsRequest(
            group_id=self._group_id,
            member_id=who.member_id,
            member_epoch=who.epoch,
            instance_id=who.instance_id,
            sequence=number,
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

        while True:
            try:
                await self._coordinators.call(
                    self._group_id, "CommitOffsets", request, deadline, what, check, traceparent=traceparent
                )
                return
            except UnknownTopicOrPartitionError as error:
                if isinstance(error, final) or await self._is_any_gone(offsets, deadline):
                    raise
            # The topic is new: the brokers know the topic, but the coordinator does not know the topic yet.
            await asyncio.sleep(self._engine.backoff.longest_s)

    def close(self) -> None:
        """Drop the references to the consumer, which has left its group: without reference cycles, Python frees a
        closed consumer at once."""
        self._who, self._topic_id_of, self._ended = lambda: NO_MEMBER, lambda _: b"", dict

    async def none_in_flight(self) -> None:
        """Wait until no commit is in flight."""
        async with self._turn:
            pass

    async def _is_any_gone(self, partitions: Iterable[TopicPartition], deadline: float) -> bool:
        """Whether one of the partitions is missing in the brokers' current metadata; also True if there is no time for
        a retry."""
        if time.monotonic() + self._engine.backoff.longest_s >= deadline:
            return True
        wanted = list(partitions)
        metadata = self._engine.metadata
        try:
            await metadata.refresh(sorted({tp.topic for tp in wanted}), deadline=deadline)
        except HeadraceError as error:
            logger.info("group %r: cannot check whether its topics still exist: %s", self._group_id, error)
            return False
        known = metadata.snapshot.topics
        return any(tp.topic not in known or tp.partition >= len(known[tp.topic].partitions) for tp in wanted)

    async def fetch(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None for a partition without a committed offset."""
        deadline = self._engine.deadline(timeout_s)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for page in pages(list(partitions), limit_of("Groups/FetchOffsets", "groups.partitions.partitions")):
            found.update(await self._fetch(page, deadline))
        return found

    async def _fetch(
        self, wanted: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Send one OffsetFetch request, and return the committed offsets in the response."""
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
