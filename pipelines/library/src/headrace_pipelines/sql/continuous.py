"""The continuous queries of a shell: each writes the changes of its SELECT to the topic of a table, exactly once.

The sink commits each batch once: the batch's number is a version of the application ``ContinuousQuery.application``. A
query continues from the checkpoint DIR/checkpoints/ID.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace_core.errors import InvalidArgumentError, RequestTimedOutError
from headrace_spark.causes import cause

from ..access import Registry
from ..checkpoints import checkpoints
from ..errors import QueryFailedError
from ..queries import Progress, Queries, started
from ..sites import Site
from .catalog import ContinuousQuery, Table
from .frames import Ends
from .naming import is_name
from .writing import with_records

#: Seconds between two reads of a query's checkpoint, and maximum seconds to wait for its progress.
_LOOK_S, WAIT_S = 0.05, 60.0


class Continuous:
    """The running queries by their ids."""

    def __init__(self, site: Site, registry: Registry) -> None:
        self._site, self._registry = site, registry
        self._running: dict[str, StreamingQuery] = {}
        self._progress: defaultdict[str, Progress] = defaultdict(Progress)

    def start(self, query: ContinuousQuery, frame: Callable[[], DataFrame], target: Table) -> None:
        """Start a query, or continue it from its checkpoint. ``frame`` makes the streaming frame. Raises
        QueryFailedError."""

        def start() -> StreamingQuery:
            made = frame()
            stream = made.writeStream.foreachBatch(self._writer(query, target)).queryName(query.id)
            directory = str(self.checkpoint(query.id))
            mode = "update" if is_aggregate(made) else "append"
            return stream.outputMode(mode).option("checkpointLocation", directory).trigger(**self._site.trigger).start()

        self._progress.pop(query.id, None)
        (self._running[query.id],) = started(start)
        self.check(query.id)

    def _writer(self, query: ContinuousQuery, target: Table) -> Callable[[DataFrame, int], None]:
        options = {
            **self._site.access.sink(),
            "headrace.delivery": "exactly-once",
            "headrace.txn.app.id": query.application,
            "topic": target.topic,
        }

        def write(batch: DataFrame, number: int) -> None:
            self._look(query.id)
            records = with_records(batch, target, self._registry)
            version = {"headrace.txn.version": str(number)}
            records.write.format("headrace").options(**options, **version).mode("append").save()

        return write

    def checkpoint(self, query: str) -> Path:
        """The directory of a query's checkpoint. Raises InvalidArgumentError for an id that would lead to another
        directory."""
        parent = self._site.directory / "checkpoints"
        found = parent / query
        if not is_name(query) or found.parent != parent:
            raise InvalidArgumentError(
                f"{query!r} is not the id of a query: ids have letters, digits and underscores only"
            )
        return found

    def forget(self, query: str) -> None:
        """Delete the checkpoint of a query that does not run."""
        path = self.checkpoint(query)
        if path.exists():
            shutil.rmtree(path)

    def state(self, query: str) -> str:
        """``running``, or ``failed``."""
        running = self._running.get(query)
        return "running" if running is not None and running.isActive else "failed"

    def late(self, query: str) -> int:
        """Groups that the batches since the query's start left out, because their rows came after the WATERMARK."""
        self._look(query)
        return self._progress[query].late

    def _look(self, query: str) -> None:
        """Add the last batch of a query to its progress."""
        running = self._running.get(query)
        last = None if running is None else running.lastProgress
        if last is not None:
            self._progress[query].take(last)

    def check(self, query: str) -> None:
        """Raises QueryFailedError if the query has failed, or could not start."""
        running = self._running.get(query)
        if running is None:
            raise QueryFailedError(f"query {query} does not run; start the shell again, or TERMINATE {query}")
        error = running.exception()
        if error is not None:
            raise QueryFailedError(f"query {query}: {cause(str(error))}")

    def wait(
        self, query: str, ends: dict[str, Ends], is_cancelled: threading.Event, *, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until the query has processed its topics up to ``ends``, or until ``is_cancelled`` is set.

        Raises QueryFailedError, and RequestTimedOutError.
        """
        deadline = time.monotonic() + timeout_s
        while not self._has_processed(query, ends):
            self.check(query)
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"query {query} has not processed the records of {', '.join(ends)} within {timeout_s:g} s; "
                    "SHOW QUERIES shows the progress of the query; after SET wait = off, a SELECT reads the "
                    "table as it is now"
                )
            if is_cancelled.wait(_LOOK_S):
                raise QueryFailedError(f"the wait for query {query} was cancelled")

    def _has_processed(self, query: str, ends: dict[str, Ends]) -> bool:
        done = {each.query: each.offsets for each in checkpoints(self._site.directory / "checkpoints")}.get(query, {})
        return all(
            done.get(topic, {}).get(str(number), 0) >= end
            for topic, each in ends.items()
            for number, end in each.ends.items()
            if end > each.begins[number]
        )

    def stop(self, queries: Iterable[str]) -> None:
        """Stop queries after their batches; a query that has failed is only removed from the list."""
        stopped = {name: self._running.pop(name) for name in list(queries) if name in self._running}
        threads = [threading.Thread(target=_stop, args=(name, each), daemon=True) for name, each in stopped.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stop_all(self) -> None:
        self.stop(list(self._running))


def _stop(name: str, query: StreamingQuery) -> None:
    try:
        Queries({name: query}).stop_after_batch()
    except QueryFailedError:
        return  # SHOW QUERIES has shown the failure; the query continues from its checkpoint at the next start


def is_aggregate(frame: DataFrame) -> bool:
    """Whether a streaming frame has an aggregate, whose rows change."""
    return has_aggregate(frame._jdf.queryExecution().analyzed())


def has_aggregate(plan: Any) -> bool:
    """Whether a node of Spark's plan is an aggregate."""
    return plan.nodeName() == "Aggregate" or any(map(has_aggregate, _each(plan.children())))


def _each(sequence: object) -> list:  # type: ignore[type-arg]
    """The elements of a Scala sequence as a Python list."""
    return [sequence.apply(at) for at in range(sequence.size())]  # type: ignore[attr-defined]
