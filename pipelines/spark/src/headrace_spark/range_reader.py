"""The work of a task: read one range of one partition as Arrow batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from headrace_core.errors import (
    InconsistentTopicIdError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from headrace_core.types import TopicPartition

from .cluster import Cluster
from .errors import FAIL_ON_DATA_LOSS_FALSE, FAIL_ON_DATA_LOSS_TRUE, DataLossError
from .offsets import EARLIEST, LATEST
from .planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

#: Pause before the next attempt to read records that a lagging leader does not return yet.
LAG_PAUSE_S = 0.1


def read_range(
    cluster: Cluster,
    wanted: OffsetRange,
    *,
    columns: Sequence[str],
    fail_on_data_loss: bool,
    timeout_ms: int,
    topic_id: str = "",
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """The records of the range ``wanted``. Gaps left by compaction are not a data loss. Offsets missing in the log are
    a loss, and so is a deleted topic, even if a new topic has the same name (``topic_id`` differs).

    With ``fail_on_data_loss`` a loss of records raises DataLossError. Without ``fail_on_data_loss`` the reader logs a
    warning and continues at the next existing offset of the range. Raises RequestTimedOutError when the cluster sends
    no answer for ``timeout_ms``, and OffsetOutOfRangeError when a leader lacks existing records for ``timeout_ms``.
    """
    where = TopicPartition(wanted.topic, wanted.partition)
    asked = list(columns)
    with_offset = asked if "offset" in asked else [*asked, "offset"]
    position, end = wanted.start, wanted.end
    lags_since: float | None = None
    while position < end:
        rest = wanted._replace(start=position, end=end)
        try:
            for batch in cluster.read(rest, topic_id=topic_id, columns=with_offset, timeout_ms=timeout_ms):
                position, lags_since = batch.column("offset")[-1].as_py() + 1, None
                yield batch if with_offset is asked else batch.select(asked)
            return
        except InconsistentTopicIdError as error:
            message = f"{where}: offsets {position} to {end} were not read: the topic was deleted and created again"
            if fail_on_data_loss:
                raise DataLossError(f"{message}. {FAIL_ON_DATA_LOSS_TRUE}") from error
            logger.warning(
                "data loss: %s: %d offsets are skipped. %s", message, end - position, FAIL_ON_DATA_LOSS_FALSE
            )
            return
        except (OffsetOutOfRangeError, RequestTimedOutError, UnknownTopicOrPartitionError) as error:
            try:
                earliest = cluster.list_offsets({where: EARLIEST})[where]
                latest = cluster.list_offsets({where: LATEST})[where]
            except UnknownTopicOrPartitionError:  # deleted after planning
                message = f"{where}: offsets {position} to {end} were not read: the topic no longer exists"
                if fail_on_data_loss:
                    raise DataLossError(f"{message}. {FAIL_ON_DATA_LOSS_TRUE}") from error
                logger.warning(
                    "data loss: %s: %d offsets are skipped. %s", message, end - position, FAIL_ON_DATA_LOSS_FALSE
                )
                return
            if earliest <= position and end <= latest and not isinstance(error, RequestTimedOutError):
                # The records exist, so nothing is lost: a node lags. A new leader learns its high watermark only from
                # its followers (KIP-207), and until then has fewer records for readers.
                lags_since = now() if lags_since is None else lags_since
                if isinstance(error, UnknownTopicOrPartitionError) or (now() - lags_since) * 1_000 > timeout_ms:
                    raise
                sleep(LAG_PAUSE_S)
                continue
            if isinstance(error, RequestTimedOutError) and latest >= end:
                raise  # raise, because the records exist: the cluster is slow, and nothing is lost
            message = f"{where}: offsets {position} to {end} were not read: the log has {earliest} to {latest}"
            if fail_on_data_loss:
                raise DataLossError(f"{message}. {FAIL_ON_DATA_LOSS_TRUE}") from error
            missing = end - position
            position = next_available(wanted._replace(start=position, end=end), (earliest, latest))
            end = min(end, max(latest, position))
            missing -= end - position
            logger.warning(
                "data loss: %s: %d offsets are skipped, continuing at offset %d. %s",
                message,
                missing,
                position,
                FAIL_ON_DATA_LOSS_FALSE,
            )


def next_available(wanted: OffsetRange, available: tuple[int, int]) -> int:
    """The first offset of ``wanted`` within ``available`` (start, end); ``wanted.end`` if no offset of ``wanted`` is
    available."""
    earliest, latest = available
    if wanted.start >= latest or earliest >= wanted.end:
        return wanted.end
    return max(wanted.start, earliest)
