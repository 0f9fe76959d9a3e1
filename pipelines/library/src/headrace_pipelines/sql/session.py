"""The state that all statements of a shell share: the cluster, Spark, the catalog, the views of a statement."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace import Admin, Consumer
from headrace_core.errors import HeadraceError, UnknownTopicOrPartitionError

from ..access import Access
from ..checkpoints import remove_unbegun
from ..errors import QueryFailedError
from ..sites import Site
from .catalog import Catalog, ContinuousQuery, Table
from .continuous import Continuous
from .cycles import check_acyclic
from .faults import Source, SqlError
from .frames import Ends, Frames, ends_as_of, ends_of
from .keeping import Fault, Shape, not_continuous, shape_of, time_of_now
from .naming import quoted
from .parsing import select_of
from .plans import columns_of, judged, tree_of
from .rewriting import Rewritten, Use, rewrite
from .spark_faults import be_quiet, message_of, pointing
from .statements import Query
from .tokens import Token, tokens
from .uses import uses_of, with_uses
from .writing import fitted, key_of

#: The name of the shell among the pipelines; the consumer groups of the shell's queries have this prefix.
NAME = "sql"
#: The job group in Spark for the jobs of the running statement.
_GROUP = "headrace-sql"
#: Settings of a shell and their defaults: the maximum rows of a SELECT, whether a SELECT waits for queries, and where
#: EMIT CHANGES begins.
SETTINGS = {"rows.max": "1000", "wait": "on", "emit.from": "latest"}
#: With ``allow.auto.create.topics=false``, a query fails if its target topic was deleted. Otherwise the query's next
#: batch would create the topic again, without the rows of earlier batches.
_NO_NEW_TOPICS = {"allow.auto.create.topics": "false"}
_ZONE = "spark.sql.session.timeZone"


class Session:
    """The state of one shell, from its start to ``close``. ``resume`` starts the continuous queries of the catalog."""

    def __init__(self, spark: SparkSession, access: Access, directory: Path, registry: str | None = None) -> None:
        be_quiet()
        self.spark, self.registry = spark, access.registry(registry)
        self.site = Site(NAME, access.servers, directory, keys=_NO_NEW_TOPICS | dict(access.keys))
        self.access = access = self.site.access
        self.catalog = Catalog.open(directory)
        self.frames = Frames(spark, self.site, self.registry)
        self.is_cancelled = threading.Event()
        self.continuous = Continuous(self.site, self.registry)
        self.settings = dict(SETTINGS)
        #: Settings of Spark that SET has changed.
        self.spark_settings: dict[str, str] = {}
        self.admin = Admin(access.admin())
        self.consumer = Consumer(access.consumer() | {"isolation.level": "read_committed"})

    def next_statements(self) -> threading.Event:
        """Call this method before statements run, in the thread that may cancel the statements. Returns the event that
        ``cancel`` sets."""
        self.is_cancelled = threading.Event()
        return self.is_cancelled

    def begin(self) -> None:
        """Let ``cancel`` stop the Spark jobs of the calling thread, which must be the thread that runs statements."""
        self.spark.sparkContext.setJobGroup(_GROUP, "a statement of the shell", interruptOnCancel=True)

    def cancel(self) -> None:
        """Stop the running statements, from another thread. Continuous queries continue. A job that begins after this
        call is stopped only by a later call."""
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
        """Create the functions of the catalog, and continue its continuous queries. Returns messages about failures."""
        faults = [
            f"function {name} cannot be created: {why}; DROP FUNCTION {name} removes it"
            for name, why in in_rounds(self.catalog.functions, self._create_function).items()
        ]
        remove_unbegun(self.site.directory / "checkpoints")
        for query in list(self.catalog.queries.values()):
            try:
                self.catalog.queries[query.id] = found = with_uses(query, self.catalog)
                check_acyclic(found, self.catalog, Source(found.text, f"query {found.id}"), 0, len(found.text))
                if not found.settings:
                    self._check_keys(found)
                    self.catalog.queries[query.id] = found = replace(found, settings=self.settings_of_queries())
                    self.catalog.save()
                self.run(found)
            except HeadraceError as error:
                faults.append(f"query {query.id} does not run: {error.message}")
        return faults

    def _check_keys(self, query: ContinuousQuery) -> None:
        """Check the keys of a query without settings: the version that made it wrote the times of keys in the session's
        zone. Raises QueryFailedError if rows with keys in UTC would stand beside them."""
        table = self.catalog.tables[query.target]
        schema = self.frames.schema(table)
        if not table.is_latest or not any("timestamp" in schema[name].dataType.simpleString() for name in table.key):
            return
        with pointing(select_of(query.text, f"query {query.id}")):
            rows = self.frames.batch(table, self.ends_of(table.topic).ends, ("_key",))
            found = rows.where(~key_of(rows, table).cast("string").eqNullSafe(F.col("_key"))).limit(1).collect()
        if found:
            raise QueryFailedError(
                f"the table {table.name} has keys with times in another zone than UTC, such as {found[0]['_key']}, "
                f"from an earlier version, so it would get a second row for each; TERMINATE {query.id}, DROP TABLE "
                f"{table.name} DELETE TOPIC, and create the table again"
            )

    def _create_function(self, text: str) -> str | None:
        try:
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {text}")
        except PySparkException as error:
            return message_of(error)
        return None

    def run(self, query: ContinuousQuery, select: Query | None = None) -> None:
        """Start a continuous query of the catalog. ``select``: its SELECT in the user's text, if there is one, so that
        errors can point into the text."""
        found = select or select_of(query.text, f"query {query.id}")
        target = self.catalog.tables[query.target]

        def frame() -> DataFrame:
            made, shape = self.streaming(found, query.id)
            return fitted(judged(made) if shape.drops else made, target, self.frames.schema(target))

        with pointing(found), self._under(query.settings):
            self.continuous.start(query, frame, target)

    def settings_of_queries(self) -> tuple[str, ...]:
        """The settings that a query keeps: the time zone, and what SET has changed of Spark's SQL."""
        changed = {name: value for name, value in self.spark_settings.items() if name.startswith("spark.sql.")}
        kept = {_ZONE: str(self.spark.conf.get(_ZONE))} | changed
        return tuple(f"{name}={value}" for name, value in sorted(kept.items()))

    @contextlib.contextmanager
    def _under(self, settings: Iterable[str]) -> Iterator[None]:
        """Spark has these settings in this block. A query keeps those under which it starts."""
        before = {name: self.spark.conf.get(name, None) for name, _, _ in (each.partition("=") for each in settings)}
        try:
            for each in settings:
                name, _, value = each.partition("=")
                self.spark.conf.set(name, value)
            yield
        finally:
            for name, former in before.items():
                if former is None:
                    self.spark.conf.unset(name)
                else:
                    self.spark.conf.set(name, former)

    # -- frames of a SELECT

    def bounded(self, query: Query) -> tuple[DataFrame, Rewritten]:
        """The frame of a SELECT over the current records. All views of the statement use the same ends of topics."""
        known: dict[str, Ends] = {}

        def ends(topic: str) -> Ends:
            if topic not in known:
                known[topic] = self.ends_of(topic)
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

    def streaming(self, query: Query, name: str) -> tuple[DataFrame, Shape]:
        """The frame of the continuous query ``name``, and what it writes. Raises NotContinuousError if a table could
        not follow its rows."""

        def make(table: Table, use: Use, rewritten: Rewritten) -> DataFrame:
            self._check_stream(table, use, rewritten)
            return self.frames.stream(table, name, rewritten.words)

        frame, _ = self._frame(query, make)
        uses = uses_of(query, self.catalog)
        texts = [self.catalog.views[each] for each in uses.views] + [
            self.catalog.functions[each] for each in uses.functions
        ]
        read = [query.piece.tokens[query.first : query.last], *(tuple(tokens(Source(text))) for text in texts)]
        shape = next(filter(None, map(time_of_now, read)), None) or shape_of(
            tree_of(frame, lambda view: view.lower() in self.catalog.tables), columns_of(frame)
        )
        if isinstance(shape, Fault):
            raise not_continuous(shape, query)
        return frame, shape

    def live(self, query: Query) -> tuple[DataFrame, Rewritten]:
        """The frame of a SELECT over the records that arrive."""

        def make(table: Table, use: Use, rewritten: Rewritten) -> DataFrame:
            self._check_stream(table, use, rewritten)
            return self.frames.live(table, rewritten.words, self.settings["emit.from"])

        return self._frame(query, make)

    def _check_stream(self, table: Table, use: Use, rewritten: Rewritten) -> None:
        if use.as_of is not None:
            raise SqlError(
                "a query with EMIT CHANGES and a continuous query cannot have AS OF; leave AS OF out",
                rewritten.source,
                use.as_of.at,
                use.as_of.end,
            )
        if table.is_latest:
            raise SqlError(
                f"{table.name} has a primary key: its rows change, and Spark's streams cannot retract a row. Read the "
                "stream from which the table is computed, or use CREATE VIEW: each read computes the view",
                rewritten.source, use.at, use.end,
            )  # fmt: skip

    def _frame(
        self, query: Query, make: Callable[[Table, Use, Rewritten], DataFrame], within: tuple[str, ...] = ()
    ) -> tuple[DataFrame, Rewritten]:
        """The frame of a query that is nested in the views ``within``."""
        rewritten = rewrite(query, self.catalog.names)
        with pointing(query, rewritten):
            # Make the frames of nested views first, because Spark resolves the names in this query with these frames.
            frames = {use.view: self._view(use, rewritten, make, within) for use in rewritten.uses}
            return self._analyzed(rewritten.text, frames), rewritten

    def _analyzed(self, text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The frame of a text for Spark, in which the names of ``frames`` are tables. Spark resolves these names during
        this call, and not again later."""
        try:
            for name, frame in frames.items():
                frame.createOrReplaceTempView(quoted(name))
            return self.spark.sql(text)
        finally:
            for name in frames:
                self.spark.catalog.dropTempView(name)

    def _view(
        self,
        use: Use,
        rewritten: Rewritten,
        make: Callable[[Table, Use, Rewritten], DataFrame],
        within: tuple[str, ...],
    ) -> DataFrame:
        if use.name in self.catalog.tables:
            return make(self.catalog.tables[use.name], use, rewritten)
        if use.as_of is not None:
            what = f"{use.name} is a view; write AS OF after the tables in its SELECT"
            raise SqlError(what, rewritten.source, use.as_of.at, use.as_of.end)
        if use.name in within:
            what = f"the view {use.name} reads itself: {' -> '.join((*within, use.name))}; DROP VIEW {use.name}"
            raise SqlError(what, rewritten.source, use.at, use.end)
        select = select_of(self.catalog.views[use.name], f"view {use.name}")
        return self._frame(select, make, (*within, use.name))[0]

    # -- waits

    def ends_of(self, topic: str) -> Ends:
        """The offsets that a reader of committed records can read in a topic now. Raises HeadraceError."""
        return ends_of(self.consumer, self.admin, topic, self.is_cancelled)

    def wait_for(self, table: str) -> None:
        """Wait until the continuous queries that write ``table`` have processed all records that their topics have
        now."""
        for query in self.catalog.writers_of(table):
            topics = {self.catalog.tables[name].topic for name in query.reads}
            self.continuous.wait(query.id, {topic: self.ends_of(topic) for topic in sorted(topics)}, self.is_cancelled)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, if there is one. Raises HeadraceError."""
        with contextlib.suppress(UnknownTopicOrPartitionError):
            self.admin.delete_topics([topic])

    def table(self, name: Token, source: Source) -> Table:
        """The table ``name``. Raises SqlError."""
        found = self.catalog.tables.get(name.value.lower())
        if found is None:
            what = f"there is no table {name.value}; SHOW TABLES lists the tables, CREATE TABLE declares one"
            raise SqlError(what, source, name.at, name.end)
        return found


def in_rounds(texts: Mapping[str, str], create: Callable[[str], str | None]) -> dict[str, str]:
    """Create objects that may depend on each other, in any order. Calls ``create`` for each text; ``create`` returns an
    error message or None. Repeats the failed calls as long as at least one of them then succeeds. Returns the messages
    of the calls that still fail, by the names of ``texts``."""
    left = dict(texts)
    while True:
        faults = {name: why for name, text in left.items() if (why := create(text)) is not None}
        if len(faults) == len(left):
            return faults
        left = {name: texts[name] for name in faults}
