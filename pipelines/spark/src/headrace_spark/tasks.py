"""Common part of batch and stream readers: a task reads one range of offsets.

Workers receive plain data (options, columns, ranges); only ``read``, which runs in a worker, opens gRPC channels.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace.settings import CONSUMER

from .delegation import task_login, without_login
from .options import SourceOptions, parse_options
from .planning import OffsetRange
from .range_reader import read_range
from .schema import check_schema
from .shipping import settle, ship

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The input of one task: a range of offsets of a topic, and the topic's id at planning. ``login``: the keys with
    which the task logs in (a delegation token); None: the task uses the query's own keys."""

    def __init__(self, wanted: OffsetRange, topic_id: str = "", login: Mapping[str, str] | None = None) -> None:
        super().__init__((*wanted, topic_id) if login is None else (*wanted, topic_id, dict(login)))

    @property
    def wanted(self) -> OffsetRange:
        return OffsetRange(*self.value[:4])

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle a partition as PySpark's own class with plain values, which a worker without this package can load. The
        # reader then explains what is missing (shipping.py).
        return InputPartition, (self.value,)


def checked(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Check the options of source and client, so that errors occur before any connection."""
    parsed = parse_options(options, streaming=streaming)
    CONSUMER.parse(parsed.client, defaults=False)
    return parsed


class RangeTask:
    """Common part of batch and stream readers: options, columns, and reading a range in a worker."""

    def __init__(self, options: dict[str, str], schema: StructType, *, streaming: bool) -> None:
        self.options = checked(options, streaming=streaming)
        self.columns = tuple(check_schema(schema, self.options.include_headers).fieldNames())
        for note in self.options.notes:
            logger.warning("headrace source: %s", note)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. ``read`` runs in a worker process, which opens one gRPC channel and keeps the
        channel."""
        from .sdk_cluster import worker_cluster

        if partition.value is None:  # Spark's value for "no partition at all"
            return
        topic, number, start, end, topic_id = cast("tuple[str, int, int, int, str]", partition.value[:5])
        login: Mapping[str, str] = partition.value[5] if len(partition.value) > 5 else {}
        yield from read_range(
            worker_cluster({**self.options.client, **login}),
            OffsetRange(topic, number, start, end),
            topic_id=topic_id,
            columns=self.columns,
            fail_on_data_loss=self.options.fail_on_data_loss,
            timeout_ms=self.options.poll_timeout_ms,
        )
        settle()

    def task_login(self) -> dict[str, str] | None:
        """The keys with which the tasks that are planned now log in; None: the query's own keys. Raises
        HeadraceError."""
        mechanism = self.options.token_mechanism
        return None if mechanism is None else task_login(self.options.client, mechanism)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the reader, without the login if tasks log in with a token. Spark pickles a reader before it plans the
        tasks, and each task has the token in its input."""
        options = self.options
        if options.token_mechanism is not None:
            options = replace(options, client=without_login(options.client))
        return ship(self, {"options": options, "columns": self.columns})
