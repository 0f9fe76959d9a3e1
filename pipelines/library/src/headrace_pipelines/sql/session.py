"""What the statements of a shell share: the cluster, Spark, the catalog, the views of a statement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headrace import Admin, Consumer
from headrace_core.errors import HeadraceError

from ..sites import Site
from .catalog import Catalog, ContinuousQuery, Table
from .continuous import Continuous
from .faults import Source, SqlError
from .frames import Ends, Frames, ends_as_of, ends_of
from .parsing import parse
from .rewriting import Rewritten, Use, rewrite
from .spark_faults import be_quiet, pointing
from .statements import Query, Select
from .tokens import Token

#: The name of the shell among pipelines: the prefix of the groups of its queries.
NAME = "sql"
#: The group of Spark's jobs of the statement that runs.
_GROUP = "headrace-sql"
#: Settings of a shell: rows of a SELECT, whether a SELECT waits for continuous queries, where EMIT CHANGES begins.
SETTINGS = {"rows.max": "1000", "wait": "on", "emit.from": "latest"}


class Session:
    """A shell's connection. ``close`` ends it; ``resume`` starts the continuous queries of the catalog."""

    def __init__(self, spark: SparkSession, servers: str, directory: Path, registry: str | None = None) -> None:
        be_quiet()
        self.spark, self.servers, self.registry = spark, servers, registry
        self.site = Site(NAME, servers, directory)
        self.catalog = Catalog.open(directory)
        self.frames = Frames(spark, self.site, registry)
        self.is_cancelled = threading.Event()
        self.continuous = Continuous(self.site, self.catalog, registry, self.is_cancelled)
        self.settings = dict(SETTINGS)
        self.admin = Admin({"bootstrap.servers": servers})
        self.consumer = Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"})

    def begin(self) -> None:
        """Call in the thread of a statement: ``cancel`` stops its jobs."""
        self.is_cancelled.clear()
        self.spark.sparkContext.setJobGroup(_GROUP, "a statement of the shell", interruptOnCancel=True)

    def cancel(self) -> None:
        """Stop the running statement, from another thread. Continuous queries go on."""
        self.is_cancelled.set()
        self.spark.sparkContext.cancelJobGroup(_GROUP)

    def close(self) -> None:
        """Stop the continuous queries after their batches, and close the connections."""
        try:
            self.continuous.stop_all()
        finally:
            self.consumer.close()
            self.admin.close()

    def resume(self) -> list[str]:
        """Create the functions of the catalog, and let its continuous queries go on. Returns what failed."""
        faults = []
        for text in self.catalog.functions.values():
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {text}")
        for query in self.catalog.queries.values():
            try:
                self.run(query)
            except HeadraceError as error:
                faults.append(f"query {query.id} does not run: {error.message}")
        return faults

    def run(self, query: ContinuousQuery, select: Query | None = None) -> None:
        """Start a continuous query of the catalog. ``select``: its SELECT in the user's text, if there is one; errors
        point into it."""
        found = select or select_of(query.text, f"query {query.id}")
        with pointing(found):
            self.continuous.start(query, lambda: self.streaming(found, query.id)[0], self.catalog.tables[query.target])

    # -- frames of a SELECT

    def bounded(self, query: Query) -> tuple[DataFrame, Rewritten]:
        """The frame of a SELECT of what is there now. All views of the statement share the same ends of topics."""
        known: dict[str, Ends] = {}

        def ends(topic: str) -> Ends:
            if topic not in known:
                known[topic] = ends_of(self.consumer, self.servers, topic)
            return known[topic]

        def make(table: Table, use: Use, rewritten: Rewritten) -> DataFrame:
            if self.settings["wait"] == "on" and use.as_of is None:
                self.wait_for(table.name)
            now = ends(table.topic)
            upto: Mapping[int, int] = now.ends
            if use.as_of is not None:
                try:
                    upto = ends_as_of(self.consumer, table.topic, now, use.as_of)
                except HeadraceError as error:
                    raise SqlError(error.message, rewritten.source, use.as_of.at, use.as_of.end) from None
            return self.frames.batch(table, upto, rewritten.words)

        return self._frame(query, make)

    def streaming(self, query: Query, name: str) -> tuple[DataFrame, Rewritten]:
        """The frame of the continuous query ``name``."""

        def make(table: Table, use: Use, rewritten: Rewritten) -> DataFrame:
            self._check_stream(table, use, rewritten)
            return self.frames.stream(table, name, rewritten.words)

        return self._frame(query, make)

    def live(self, query: Query) -> tuple[DataFrame, Rewritten]:
        """The frame of a SELECT of what arrives."""

        def make(table: Table, use: Use, rewritten: Rewritten) -> DataFrame:
            self._check_stream(table, use, rewritten)
            return self.frames.live(table, rewritten.words, self.settings["emit.from"])

        return self._frame(query, make)

    def _check_stream(self, table: Table, use: Use, rewritten: Rewritten) -> None:
        if use.as_of is not None:
            raise SqlError("a query of what arrives has no AS OF", rewritten.source, use.as_of.at, use.as_of.end)
        if table.is_latest:
            raise SqlError(
                f"{table.name} has a primary key: its rows change, and Spark's streams take no changed row back. Read "
                "the stream that it is made of, or write CREATE VIEW, which is calculated when it is read",
                rewritten.source, use.at, use.end,
            )  # fmt: skip

    def _frame(self, query: Query, make: Callable[[Table, Use, Rewritten], DataFrame]) -> tuple[DataFrame, Rewritten]:
        rewritten = rewrite(query, self.catalog.names)
        with pointing(query, rewritten):
            for use in rewritten.uses:
                self._view(use, rewritten, make).createOrReplaceTempView(f"`{use.view}`")
            return self.spark.sql(rewritten.text), rewritten

    def _view(self, use: Use, rewritten: Rewritten, make: Callable[[Table, Use, Rewritten], DataFrame]) -> DataFrame:
        if use.name in self.catalog.tables:
            return make(self.catalog.tables[use.name], use, rewritten)
        if use.as_of is not None:
            what = f"{use.name} is a view; write AS OF behind the tables in its SELECT"
            raise SqlError(what, rewritten.source, use.as_of.at, use.as_of.end)
        return self._frame(select_of(self.catalog.views[use.name], f"view {use.name}"), make)[0]

    # -- what a query reads

    def tables_in(self, query: Query) -> set[str]:
        """The tables that a query reads, also through views."""
        found: set[str] = set()
        for use in rewrite(query, self.catalog.names).uses:
            if use.name in self.catalog.views:
                found |= self.tables_in(select_of(self.catalog.views[use.name], f"view {use.name}"))
            else:
                found.add(use.name)
        return found

    def wait_for(self, table: str) -> None:
        """Wait until the continuous queries that write ``table`` have processed what their topics have now."""
        for query in self.catalog.writer_of(table):
            for source in query.reads:
                self.wait_for(source)
            topics = {self.catalog.tables[name].topic for name in query.reads}
            self.continuous.wait(
                query.id, {topic: ends_of(self.consumer, self.servers, topic) for topic in sorted(topics)}
            )

    def table(self, name: Token, source: Source) -> Table:
        """The table ``name``. Raises SqlError."""
        found = self.catalog.tables.get(name.value.lower())
        if found is None:
            what = f"there is no table {name.value}; SHOW TABLES lists the tables, CREATE TABLE declares one"
            raise SqlError(what, source, name.at, name.end)
        return found


def select_of(text: str, name: str) -> Query:
    """The query of a stored text."""
    (statement,) = parse(Source(text, name))
    assert isinstance(statement, Select)
    return statement.query
