"""Run a pipeline that is a function ``start(spark, site)``: make its session and topics, show progress, and end it."""

from __future__ import annotations

import argparse
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace import Admin, NewTopic
from headrace_core.errors import HeadraceError, InvalidArgumentError
from headrace_spark import session

from .access import access_of
from .access import add_arguments as add_access
from .checkpoints import remove_unbegun
from .dead_letters import create_dead_letter_topics
from .errors import StoppedError
from .lags import Lag, lags
from .outcome import Outcome
from .packing import settings, unpack
from .queries import LOOK_S, Queries, Started, started
from .runs import serving
from .show import Show
from .sites import Site
from .stopping import Stop

#: The function of a pipeline that starts its queries.
Start = Callable[[SparkSession, Site], Started]
#: Settings of the Spark sessions of pipelines.
SETTINGS = {"spark.sql.session.timeZone": "UTC"}
#: Seconds between two requests for the consumer lags of the queries.
_ASK_S = 2.0
#: Number of samples of progress over which the rate of a run is measured.
_LOOKS = 20


class StreamingJob:
    """A pipeline in a module with ``start`` and ``SOURCES``, the topics that it reads."""

    def __init__(self, name: str, module: Any) -> None:
        self._name = name
        self.start: Start = module.start
        self.SOURCES: Sequence[str] = module.SOURCES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags of ``run``."""
        add_access(parser)
        parser.add_argument(
            "--master", metavar="URL", help="Spark's master (default: the master of spark-submit, or local[*])"
        )
        parser.add_argument(
            "--checkpoints", metavar="URL",
            help="directory of the checkpoints, on a file system of all machines of Spark's cluster "
            "(default: DIR/checkpoints)",
        )  # fmt: skip
        parser.add_argument(
            "--packed", type=Path, metavar="FILE",
            help="the Python packages for Spark's executors: a file of `headrace-pipelines pack`",
        )  # fmt: skip
        parser.add_argument(
            "--once",
            action="store_true",
            help="end when the queries have processed all records that the topics have now",
        )

    def run(self, arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
        """Run until the queries end, or until SIGTERM (StoppedError). Raises HeadraceError."""
        access = access_of(arguments)
        servers = access.servers
        with Admin(access.admin()) as admin:
            create_topics(admin, self.SOURCES)
            show.step(f"starting Spark, for the cluster {servers}")
            spark = session(self._name, master=arguments.master, **SETTINGS, **_packed(arguments.packed, out))
            logging.getLogger("py4j").setLevel(logging.ERROR)
            spark.sparkContext.setLogLevel("ERROR")
            serving(out, servers)
            site = Site(
                self._name, servers, out, ends=arguments.once, checkpoints=arguments.checkpoints, keys=access.keys
            )
            try:
                check_checkpoints(spark.sparkContext.master or "", arguments.checkpoints)
                # The lock of the run guards its directory only: in a directory of --checkpoints, another run may begin.
                remove_unbegun(out / "checkpoints")
                return self._follow(spark, site, admin, show, stop)
            finally:
                spark.stop()

    def _follow(self, spark: SparkSession, site: Site, admin: Admin, show: Show, stop: Stop) -> Outcome:
        named = by_name(started(lambda: self.start(spark, site)))
        with stop.after_batch(), Queries(named) as queries:
            show.step(f"running: {', '.join(queries.progress)}")
            progress = ProgressLine(queries, admin, self._name)
            with show.live() as live:
                while queries.is_active and not stop.wait(LOOK_S):
                    queries.look()
                    live(progress.text())
            queries.stop_after_batch()
            show.note(progress.text(at_once=True))
        if stop.is_asked:
            raise StoppedError({"queries": queries.totals()})
        return Outcome(queries.totals())


def _packed(archive: Path | None, out: Path) -> dict[str, str]:
    """Spark's settings for ``--packed``."""
    if archive is None:
        return {}
    unpack(archive, out / "packages")
    return settings(str(archive.resolve()), out / "packages")


class ProgressLine:
    """The progress line of a run: rows, lag, watermark, state, and the time left at the present rate."""

    def __init__(self, queries: Queries, admin: Admin, pipeline: str) -> None:
        self._queries, self._admin, self._pipeline = queries, admin, pipeline
        self._lags: dict[str, Lag] = {}
        self._asked_s = 0.0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    def text(self, *, at_once: bool = False) -> str:
        """The line. The lag in the line is up to 2 seconds old; ``at_once`` requests the current lag."""
        now_s = time.monotonic()
        if at_once or now_s - self._asked_s >= _ASK_S:
            self._asked_s = now_s
            try:
                self._lags = lags(self._admin, self._pipeline, self._queries.progress)
            except HeadraceError:  # ignore the error: the queries have their own connections, and report errors
                self._lags = {}
        rows = sum(each.rows for each in self._queries.progress.values())
        self._seen.append((now_s, rows))
        watermark = self._queries.watermark
        at = "none" if watermark is None else f"{watermark:%d %b %H:%M:%S}"
        state_rows, state_bytes = self._queries.state
        return (
            f"{rows:,} rows, {self._lag(rows, now_s)}, watermark {at}, "
            f"state {state_rows:,} rows {state_bytes / 1e6:.1f} MB"
        )

    def _lag(self, rows: int, now_s: float) -> str:
        if len(self._lags) < len(self._queries.progress):
            return "lag unknown"
        behind = sum(each.records for each in self._lags.values())
        ages = [each.seconds if each.records else 0.0 for each in self._lags.values()]
        known = [age for age in ages if age is not None]
        lag = "lag unknown" if len(known) < len(ages) else f"lag {max(known):.1f} s"
        began_s, before = self._seen[0]
        rate = (rows - before) / (now_s - began_s) if now_s > began_s else 0.0
        left = "0 s left" if not behind else f"{behind / rate:.0f} s left" if rate else "time left unknown"
        return f"{lag} ({behind:,} records), {left}"


def check_checkpoints(master: str, checkpoints: str | None) -> None:
    """Refuse checkpoints in a local directory for a Spark cluster of several machines: another driver or executor would
    not find them."""
    if not master.startswith("local") and (checkpoints is None or "://" not in checkpoints):
        raise InvalidArgumentError(
            f"the Spark master {master} cannot use checkpoints in a directory of this machine; give "
            "--checkpoints URL, such as hdfs://..., or file:///... on a shared file system"
        )


def by_name(queries: Sequence[StreamingQuery]) -> dict[str, StreamingQuery]:
    """The queries by their names. If two queries have the same name, or a query has no name, stop all queries and raise
    InvalidArgumentError."""
    named = {query.name: query for query in queries if query.name}
    if len(named) < len(queries):
        for query in queries:
            query.stop()
        raise InvalidArgumentError(
            "two queries have the same name, or a query has no name; start each with .options(**site.write(query=NAME))"
        )
    return named


def create_topics(admin: Admin, sources: Sequence[str]) -> None:
    """Create the missing source topics with the cluster's defaults, and their dead-letter topics."""
    there = set(admin.list_topics())
    if missing := [NewTopic(name) for name in sources if name not in there]:
        admin.create_topics(missing)
    create_dead_letter_topics(admin, sources)
