"""Look up offsets at partition leaders: by time, end of a leader epoch, log start or log end. The module runs on
Headrace's I/O thread."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from headrace_core.errors import HeadraceError, from_number
from headrace_core.rpc.limits import ITEMS_MAX
from headrace_core.types import TopicPartition
from headrace_protos.v1 import common_pb2, offsets_pb2

from ..models import OffsetAndTimestamp
from .client import Engine
from .connections import call

#: isolation.level -> its number in requests.
ISOLATION = {
    "read_uncommitted": common_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
    "read_committed": common_pb2.ISOLATION_LEVEL_READ_COMMITTED,
}


class EpochEnd(NamedTuple):
    """``leader_epoch``: the log's largest leader epoch that is not above the requested epoch; ``end_offset``: one past
    the last record of that epoch. ``leader_epoch`` and ``end_offset`` are -1 if the log has no epoch at or below the
    requested one.
    """

    leader_epoch: int
    end_offset: int


async def end_of_epoch(engine: Engine, tp: TopicPartition, epoch: int, deadline: float) -> EpochEnd:
    """Ask a partition's leader for the end offset of a leader epoch (KIP-101). Raises the error that the leader
    returned for the partition."""

    async def attempt(timeout_s: float) -> EpochEnd:
        address, current = await engine.at_leader(*tp, max(deadline - time.monotonic(), 0.01))
        request = offsets_pb2.OffsetForLeaderEpochRequest()
        request.partitions.add(topic=tp.topic, partition=tp.partition, leader_epoch=epoch, current_leader_epoch=current)
        answer = await call(engine.connections.offsets(address).OffsetForLeaderEpoch, request, address, timeout_s)
        result = answer.results[0]
        if result.error.code:
            engine.metadata.invalidate()
            raise from_number(result.error.code, f"{tp}: {result.error.message}")
        return EpochEnd(result.leader_epoch, result.end_offset)

    found: EpochEnd = await engine.retrying(attempt, deadline, "reading the end offset of a leader epoch")
    return found


async def list_offsets(
    engine: Engine, timestamps: dict[TopicPartition, int], isolation: Any, deadline: float
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Look up an offset for each partition by time, or by -1 (log end), -2 (log start), -3 (largest timestamp). Each
    leader gets one request per 10,000 partitions; failures are retried until ``deadline``.

    An offset of -1 in the result means that the log has no record for the lookup. Raises the first error of a
    partition.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}

    async def attempt(timeout_s: float) -> None:
        by_leader: dict[str, list[Any]] = {}
        for tp, timestamp in timestamps.items():
            if tp in found:
                continue
            address, epoch = await engine.at_leader(*tp, max(deadline - time.monotonic(), 0.01))
            requests = by_leader.setdefault(address, [])
            if not requests or len(requests[-1].partitions) >= ITEMS_MAX:
                requests.append(offsets_pb2.ListOffsetsRequest(isolation_level=isolation))
            requests[-1].partitions.add(
                topic=tp.topic, partition=tp.partition, timestamp_ms=timestamp, current_leader_epoch=epoch
            )
        answers = await asyncio.gather(
            *(
                call(engine.connections.offsets(address).ListOffsets, request, address, timeout_s)
                for address, requests in by_leader.items()
                for request in requests
            ),
            return_exceptions=True,
        )
        failure: BaseException | None = None
        for answer in answers:
            if isinstance(answer, BaseException):
                failure = answer
                continue
            for result in answer.results:
                tp = TopicPartition(result.topic, result.partition)
                if result.error.code:
                    detail = result.error.message
                    failure = from_number(
                        result.error.code, detail if detail.startswith(str(tp)) else f"{tp}: {detail}"
                    )
                else:
                    found[tp] = OffsetAndTimestamp(result.offset, result.timestamp_ms, result.leader_epoch)
        if failure is not None:
            if isinstance(failure, HeadraceError) and failure.retriable:
                engine.metadata.invalidate()
            try:
                raise failure
            finally:
                del failure, answer, answers  # the error's traceback keeps this frame: a reference cycle

    await engine.retrying(attempt, deadline, "listing offsets")
    return found
