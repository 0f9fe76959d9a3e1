"""A follower replica; stand-ins take the place of its log and of the directory's writer."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

from headrace_broker.partition import PartitionFollower
from headrace_broker.replication.follower_replica import FollowerReplica
from headrace_broker.traffic import TopicTraffic
from headrace_core.errors import StorageError
from headrace_core.log.epochs import EpochEnd
from headrace_core.types import TopicPartition
from tests.worlds.replication_messages import a_divergence, an_answer


def test_a_cut_that_fails_with_its_directory_leaves_no_unread_error() -> None:
    """The directory fails. The replica ends first, and then the writer answers the truncation (seed 20261128248)."""
    assert asyncio.run(_errors_of_a_cut_that_fails()) == []


async def _errors_of_a_cut_that_fails() -> list[dict[str, Any]]:
    """The errors that the event loop reports."""
    loop = asyncio.get_running_loop()
    logged: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: logged.append(context))
    cuts: list[asyncio.Future[None]] = []

    def run(action: object, *, log: object) -> asyncio.Future[None]:
        cuts.append(loop.create_future())
        return cuts[-1]

    log: Any = SimpleNamespace(log_end_offset=69, epoch_end_offset=lambda epoch: EpochEnd(epoch, 69))
    writer: Any = SimpleNamespace(directory=SimpleNamespace(truncate=print), run=run, space=None)
    follower = PartitionFollower(
        TopicPartition("orders", 0),
        topic_id=b"o" * 16,
        leader_id=2,
        leader_epoch=3,
        log_start=0,
        log_end=69,
        durable_end=69,
        last_epoch=2,
        high_watermark=60,
    )
    replica = FollowerReplica(log, follower, writer, SimpleNamespace(), lambda log, error: None, TopicTraffic())  # type: ignore[arg-type]
    replica.join(1)
    replica.joined(an_answer(1, diverging=a_divergence(2, 67)))
    failure = StorageError("the log directory failed")
    replica.end(failure)
    cuts.pop().set_exception(failure)
    await asyncio.sleep(0)
    gc.collect()
    return logged
