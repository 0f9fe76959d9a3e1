"""The streaming queries of a pipeline: their progress, their failures, and their end after a batch."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.causes import cause
from headrace_spark.offsets import from_json

from .errors import QueryFailedError

#: Seconds between two checks of the queries.
LOOK_S = 0.5
#: Seconds that a batch may take to end after a stop request.
STOP_S = 120.0
#: Maximum number of starts of a query whose Python process does not connect in time.
START_ATTEMPTS = 5
_POLL_S = 0.02
_WORKER_WAS_LATE = "Python worker failed to connect back"


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a query: rows read, rows dropped as late or repeated, the watermark, and the size of the state.
    The progress also has the sums of the values that ``DataFrame.observe`` counts, and the start of the last batch
    (seconds since 1970)."""

    rows: int = 0
    batches: int = 0
    late: int = 0
    repeats: int = 0
    watermark: datetime | None = None
    state_rows: int = 0
    state_bytes: int = 0
    began_s: float = 0.0
    observed: Counter[str] = field(default_factory=Counter)
    last_batch: int = field(default=-1, repr=False)

    def take(self, batch: Mapping[str, Any]) -> None:
        """Add the progress of a batch (Spark's dictionary). A batch that was added before is ignored."""
        if batch["batchId"] <= self.last_batch:
            return
        self.last_batch = batch["batchId"]
        self.batches += 1
        self.began_s = datetime.fromisoformat(batch["timestamp"]).timestamp()
        self.rows += batch["numInputRows"]
        watermark = (batch.get("eventTime") or {}).get("watermark")
        if watermark and not watermark.startswith("1970"):
            self.watermark = datetime.fromisoformat(watermark)
        for metrics in (batch.get("observedMetrics") or {}).values():
            self.observed.update(metrics.asDict())
        states = batch["stateOperators"]
        self.late += sum(state["numRowsDroppedByWatermark"] for state in states)
        self.repeats += sum((state.get("customMetrics") or {}).get("numDroppedDuplicateRows", 0) for state in states)
        self.state_rows = sum(state["numRowsTotal"] for state in states)
        self.state_bytes = sum(state["memoryUsedBytes"] for state in states)


class Queries:
    """The running queries of a pipeline by their names. At the end of the block all queries are stopped."""

    def __init__(self, queries: Mapping[str, StreamingQuery]) -> None:
        self._queries = dict(queries)
        self.progress = {name: Progress() for name in queries}

    def look(self) -> None:
        """Update ``progress``. Raises QueryFailedError."""
        for name, query in self._queries.items():
            last = query.lastProgress
            if last is not None and last["batchId"] > self.progress[name].last_batch:
                # Look through the last hundred batches, which costs more than ``lastProgress``.
                for batch in query.recentProgress:
                    self.progress[name].take(batch)
            error = query.exception()
            if error is not None:
                raise QueryFailedError(f"query {name}: {cause(str(error))}")

    def last(self, name: str) -> dict[str, Any] | None:
        """Spark's progress of the last batch of a query."""
        return self._queries[name].lastProgress

    def position(self, name: str) -> int:
        """The sum of the offsets at which the last batch of a query ended; 0 before its first batch."""
        last = self.last(name)
        ends = [] if last is None else [source["endOffset"] for source in last["sources"]]
        known = [from_json(json.loads(end) if isinstance(end, str) else end) for end in ends if end]
        return sum(sum(end.values()) for end in known)

    @property
    def is_active(self) -> bool:
        """Whether a query runs."""
        return any(query.isActive for query in self._queries.values())

    def totals(self) -> dict[str, dict[str, int]]:
        """Batches and rows of each query."""
        return {name: {"batches": each.batches, "rows": each.rows} for name, each in self.progress.items()}

    @property
    def watermark(self) -> datetime | None:
        """The smallest watermark of the queries that have a watermark."""
        known = [each.watermark for each in self.progress.values() if each.watermark is not None]
        return min(known, default=None)

    @property
    def state(self) -> tuple[int, int]:
        """Rows and bytes of the state of all queries."""
        every = self.progress.values()
        return sum(each.state_rows for each in every), sum(each.state_bytes for each in every)

    def drain(self, names: list[str], on_look: Callable[[], bool]) -> bool:
        """Wait until the given queries have processed all records that are in the log now.

        After each check, calls ``on_look``; if ``on_look`` returns False, the method returns False, too. Raises
        QueryFailedError.
        """
        pool = ThreadPoolExecutor(len(names), "drain")
        try:
            waiting = {pool.submit(_process_all, self._queries[name]) for name in names}
            while waiting:
                _, waiting = wait(waiting, LOOK_S)
                self.look()
                if not on_look():
                    return False
            return True
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def stop_after_batch(self) -> None:
        """Stop each query when its running batch has ended."""
        threads = [threading.Thread(target=_stop, args=(query,), daemon=True) for query in self._queries.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.look()

    def __enter__(self) -> Queries:
        return self

    def __exit__(self, *exception: object) -> None:
        for query in self._queries.values():
            with contextlib.suppress(PySparkException):  # suppress this error, so that the error of the block is shown
                query.stop()


#: The result of a function that starts queries.
Started = StreamingQuery | Iterable[StreamingQuery]


def started(start: Callable[[], Started]) -> list[StreamingQuery]:
    """Call ``start``, and wait until the sources of the queries are ready.

    Spark starts a Python process for each source, and the process must connect within ten seconds (a constant of
    Spark). On a busy machine the process may need more time. If a process was late, all queries are stopped and started
    again, at most START_ATTEMPTS times in all.
    """
    for attempt in range(1, START_ATTEMPTS + 1):
        made = start()
        queries = list(made) if isinstance(made, Iterable) else [made]
        for query in queries:
            while query.isActive and query.status["message"].startswith("Initializing"):
                time.sleep(_POLL_S)
        is_late = any(_WORKER_WAS_LATE in str(query.exception() or "") for query in queries)
        if attempt == START_ATTEMPTS or not is_late:
            break
        for query in queries:
            query.stop()
    return queries


def _process_all(query: StreamingQuery) -> None:
    with contextlib.suppress(PySparkException):  # ``look`` raises the query's error
        query.processAllAvailable()


def _stop(query: StreamingQuery) -> None:
    """Wait until no batch runs, or until a further batch has begun; then stop the query. An exactly-once sink repeats a
    batch that was stopped."""
    last = query.lastProgress
    deadline = time.monotonic() + STOP_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        now = query.lastProgress
        if now is not None and (last is None or now["batchId"] > last["batchId"]):
            break
        time.sleep(_POLL_S)
    with contextlib.suppress(PySparkException):
        query.stop()
