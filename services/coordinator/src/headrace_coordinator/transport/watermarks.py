"""Query the leaders for the high watermarks of partitions that groups read, from which the groups' lag is computed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

import grpc.aio

from headrace_core.errors import HeadraceError
from headrace_core.rpc.outage import Outage
from headrace_core.rpc.status import error_from_rpc
from headrace_core.types import TopicPartition
from headrace_protos.v1 import offsets_pb2

from ..offsets.messages import PartitionEnd, WatermarksSeen
from .brokers import Brokers

logger = logging.getLogger("headrace.coordinator.lag")

#: Special timestamps of ListOffsets, which mean the high watermark and the log start.
_LATEST, _EARLIEST = -1, -2
_TIMEOUT_S = 10.0
_BATCH = 2_000  #: Maximum number of partitions in one ListOffsets request.

#: The partitions that a shard watches, and the callback for their high watermarks.
Watched = tuple[Collection[TopicPartition], Callable[[WatermarksSeen], None]]


class Watermarks:
    """``run`` is a task that runs as long as the coordinator."""

    def __init__(self, brokers: Brokers, watched: Callable[[], Iterable[Watched]], *, interval_s: float) -> None:
        """``watched`` returns one item for each shard."""
        self._brokers = brokers
        self._watched = watched
        self._interval_s = interval_s
        self._outages: dict[str, Outage] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    async def look(self) -> None:
        """Query the leaders once, and pass to every shard the high watermarks of the partitions that the shard watches.
        A failed query for high watermarks is repeated at the next interval."""
        wanted = list(self._watched())
        ends = await self._ends({partition for partitions, _ in wanted for partition in partitions})
        for partitions, put in wanted:
            seen = tuple(ends[partition] for partition in partitions if partition in ends)
            if seen:
                put(WatermarksSeen(seen))

    async def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionEnd]:
        by_leader: dict[str, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            try:
                by_leader.setdefault(self._brokers.leader_of(partition).client, []).append(partition)
            except HeadraceError:
                continue  # the partition has no leader now, or was deleted
        asked = [
            self._ask(address, some[start : start + _BATCH])
            for address, some in by_leader.items()
            for start in range(0, len(some), _BATCH)
        ]
        return {_partition_of(end): end for found in await asyncio.gather(*asked) for end in found}

    async def _ask(self, address: str, partitions: list[TopicPartition]) -> list[PartitionEnd]:
        request = offsets_pb2.ListOffsetsRequest()
        for time in (_LATEST, _EARLIEST):
            for partition in partitions:
                request.partitions.add(
                    topic=partition.topic, partition=partition.partition, timestamp_ms=time, current_leader_epoch=-1
                )
        outage = self._outages.setdefault(address, Outage(logger, "high watermarks", whom="the broker"))
        try:
            answer = await self._brokers.offsets(address).ListOffsets(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            outage.failed(address, error_from_rpc(failure, address))
            return []
        outage.over()
        count = len(partitions)
        return [
            PartitionEnd(last.topic, last.partition, last.offset, max(first.offset, 0))
            for last, first in zip(answer.results[:count], answer.results[count:], strict=True)
            if not (last.error.code or first.error.code)
        ]


def _partition_of(end: PartitionEnd) -> TopicPartition:
    return TopicPartition(end.topic, end.partition)
