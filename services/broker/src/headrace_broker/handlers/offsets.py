"""The Offsets service: it finds offsets by time, epoch, start or end, and deletes records before an offset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError, InvalidTopicError, RequestTimedOutError
from headrace_core.item_errors import error_to_proto
from headrace_core.metadata.shards import INTERNAL_TOPICS
from headrace_core.rpc.turns import Turns
from headrace_core.telemetry import RecordsDeleted
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, NO_EPOCH, TopicPartition
from headrace_protos.v1 import common_pb2, offsets_pb2, offsets_pb2_grpc

from ..context import BrokerContext
from ..leader_replica import LeaderReplica
from ..partition import PartitionLeader
from ..partition.versions import check_epoch

_HIGH_WATERMARK = -1  #: before_offset in DeleteRecords for the high watermark.
#: Maximum number of partitions of all DeleteRecords requests whose records are deleted at the same time.
_DELETING_MAX = 100


class OffsetsService(offsets_pb2_grpc.OffsetsServicer):
    """headrace.v1.Offsets."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._deleting = asyncio.Semaphore(_DELETING_MAX)

    async def ListOffsets(self, request: Any, context: Any) -> Any:
        read_committed = request.isolation_level == common_pb2.ISOLATION_LEVEL_READ_COMMITTED

        async def one(item: Any, turns: Turns) -> Any:
            replica = self._leader(item, item.current_leader_epoch)
            offset, timestamp_ms, epoch = await _find(replica, item.timestamp_ms, read_committed, turns)
            return offsets_pb2.ListOffsetsResult(
                topic=item.topic, partition=item.partition, offset=offset, timestamp_ms=timestamp_ms, leader_epoch=epoch
            )

        def refused(item: Any, error: HeadraceError) -> Any:
            return offsets_pb2.ListOffsetsResult(
                topic=item.topic,
                partition=item.partition,
                error=error_to_proto(error),
                offset=-1,
                timestamp_ms=-1,
                leader_epoch=NO_EPOCH,
            )

        response = offsets_pb2.ListOffsetsResponse()
        await self._each(request.partitions, response.results, one, refused)
        return response

    async def OffsetForLeaderEpoch(self, request: Any, context: Any) -> Any:
        async def one(item: Any, turns: Turns) -> Any:
            replica = self._leader(item, item.current_leader_epoch)
            epoch, end_offset = replica.epoch_end(item.leader_epoch)
            past_gap = replica.past_gap(end_offset)
            if past_gap is not None:
                end_offset = await turns.outside(past_gap)
            return offsets_pb2.OffsetForLeaderEpochResult(
                topic=item.topic, partition=item.partition, leader_epoch=epoch, end_offset=end_offset
            )

        def refused(item: Any, error: HeadraceError) -> Any:
            return offsets_pb2.OffsetForLeaderEpochResult(
                topic=item.topic,
                partition=item.partition,
                error=error_to_proto(error),
                leader_epoch=NO_EPOCH,
                end_offset=-1,
            )

        response = offsets_pb2.OffsetForLeaderEpochResponse()
        await self._each(request.partitions, response.results, one, refused)
        return response

    async def DeleteRecords(self, request: Any, context: Any) -> Any:
        if request.timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms={request.timeout_ms}: must not be negative")
        timeout_ms = request.timeout_ms or self._broker.limits.request_timeout_ms
        deadline_ms = self._broker.clock.monotonic_ms() + timeout_ms

        def left_s() -> float:
            return max(deadline_ms - self._broker.clock.monotonic_ms(), 0) / 1000

        def too_late(item: Any) -> RequestTimedOutError:
            return RequestTimedOutError(
                f"{item.topic}-{item.partition}: timed out deleting records: the log start did not move within "
                f"{timeout_ms} ms; retry"
            )

        async def deleted(item: Any) -> tuple[LeaderReplica, int]:
            if item.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(
                    f'cannot delete records of topic "{item.topic}": it is internal, and the coordinators would '
                    "lose their groups; delete single groups instead (`headrace groups delete`)"
                )
            replica = self._leader(item, NO_EPOCH)
            before = replica.leader.high_watermark if item.before_offset == _HIGH_WATERMARK else item.before_offset
            # Shield the deletion of records, because a deletion that has begun must finish even if the caller
            # disconnects.
            deleting = asyncio.ensure_future(replica.delete_records(before))
            done, _ = await asyncio.wait([deleting], timeout=left_s())
            if not done:
                raise too_late(item)
            deleting.result()
            return replica, before

        async def one(place: _Place, item: Any, turns: Turns) -> Any:
            try:
                replica, before = await deleted(item)
            finally:
                place.leave()
            self._broker.events.emit(
                RecordsDeleted(partition=replica.partition, log_start_offset=replica.leader.log_start)
            )
            low_watermark = await _deleted_by_all(replica.leader, before, left_s())
            return offsets_pb2.DeleteRecordsResult(
                topic=item.topic, partition=item.partition, low_watermark=low_watermark
            )

        def refused(item: Any, error: HeadraceError) -> Any:
            return offsets_pb2.DeleteRecordsResult(
                topic=item.topic, partition=item.partition, error=error_to_proto(error), low_watermark=-1
            )

        # Delete the records of many partitions at the same time, because each deletion waits for the other replicas.
        # Thousands of tasks that begin, or of deletions that end, in one pass of the event loop would block it.
        room = self._deleting
        results: list[list[Any]] = [[] for _ in request.partitions]
        async with asyncio.TaskGroup() as group:
            for item, into in zip(request.partitions, results, strict=True):
                try:
                    async with asyncio.timeout(left_s()):
                        await room.acquire()
                except TimeoutError:  # the deletions of other requests wait for a slow disk
                    into.append(refused(item, too_late(item)))
                else:
                    place = _Place(room)
                    task = group.create_task(self._each([item], into, partial(one, place), refused))
                    task.add_done_callback(place.leave)  # also if it was cancelled before it began
        return offsets_pb2.DeleteRecordsResponse(results=[result for (result,) in results])

    def _leader(self, item: Any, current_leader_epoch: int) -> LeaderReplica:
        replica = self._broker.partitions.leader(TopicPartition(item.topic, item.partition))
        check_epoch(replica.leader, current_leader_epoch)
        return replica

    async def _each(
        self,
        items: Any,
        results: Any,
        one: Callable[[Any, Turns], Awaitable[Any]],
        refused: Callable[[Any, HeadraceError], Any],
    ) -> None:
        """Append one result for each item to ``results``, in order; the result of a failed item contains its error.
        ``results`` is a list, or directly the response's field, because copying 10,000 results into a response blocks
        the event loop for 8 ms. ``one`` handles one item. In a request with many items, ``one`` must wait only inside
        ``Turns.outside``: otherwise no other request can run during the wait."""
        async with Turns(len(items)) as turns:
            for item in items:
                if turns.is_over():
                    await turns.next()
                try:
                    results.append(await one(item, turns))
                except HeadraceError as error:
                    partition = TopicPartition(item.topic, item.partition)
                    results.append(refused(item, self._broker.partitions.for_clients(partition, error)))


class _Place:
    """One of the places for deletions at the same time. ``leave`` may be called again."""

    __slots__ = ("_room",)

    def __init__(self, room: asyncio.Semaphore) -> None:
        self._room: asyncio.Semaphore | None = room

    def leave(self, *_: object) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.release()


async def _find(replica: LeaderReplica, timestamp_ms: int, read_committed: bool, turns: Turns) -> tuple[int, int, int]:
    """Find the offset for a timestamp: (offset, its timestamp, its leader epoch), with offset -1 if no record is that
    late. Raises OffsetNotAvailableError after an election, until the new leader knows the committed end (KIP-207)."""
    leader = replica.leader
    end = replica.last_stable_offset if read_committed else leader.high_watermark
    if timestamp_ms == LATEST_TIMESTAMP:
        leader.check_latest_known()
        return end, -1, leader.leader_epoch
    if timestamp_ms == EARLIEST_TIMESTAMP:
        # As in Kafka, the start of a log without records has the epoch of the log's next record.
        is_empty = leader.log_start >= replica.log.log_end_offset
        return leader.log_start, -1, leader.leader_epoch if is_empty else replica.epoch_at(leader.log_start)
    if timestamp_ms == MAX_TIMESTAMP:
        found = await turns.outside(replica.max_timestamp_offset(end))
    elif timestamp_ms >= 0:
        found = await turns.outside(replica.timestamp_offset(timestamp_ms, end))
    else:
        raise InvalidRequestError(
            f"{replica.partition}: timestamp_ms={timestamp_ms} must be a time (ms since 1970), -1 (end), -2 (start) "
            "or -3 (largest timestamp)"
        )
    if found is None:
        # After an election, records above the new leader's high watermark may have been committed by the former leader.
        leader.check_latest_known()
        return -1, -1, NO_EPOCH
    return found.offset, found.timestamp_ms, found.leader_epoch


async def _deleted_by_all(leader: PartitionLeader, offset: int, timeout_s: float) -> int:
    """Return the low watermark when every replica that limits the low watermark has deleted the records below
    ``offset`` (KIP-107). A replica that joins later, and still has some of the records, does not change the returned
    low watermark.

    Raises RequestTimedOutError if some replicas are late: the leader has deleted its records, and the followers will
    delete theirs. ``_deleted_by_all`` also raises the error with which the leader resigned.
    """
    reached: asyncio.Future[HeadraceError | int] = asyncio.get_running_loop().create_future()

    def done(error: HeadraceError | None) -> None:
        if not reached.done():
            reached.set_result(leader.low_watermark if error is None else error)

    leader.when_deleted(offset, done)
    try:
        async with asyncio.timeout(timeout_s):
            outcome = await reached
    except TimeoutError:
        behind = leader.yet_to_delete(offset)
        raise RequestTimedOutError(
            f"{leader.partition}: the leader deleted the records before {offset}, but the replicas {behind} did not "
            "within the request's timeout; these replicas delete the records when they catch up: retry"
        ) from None
    finally:
        leader.forget_deletion(done)
    if isinstance(outcome, HeadraceError):
        raise outcome.copy()  # raise a copy, whose traceback does not keep this frame in a cycle
    return outcome
