"""The run of ``cdc``: a PostgreSQL server under pgbench, Debezium, a cluster, and the query.

    PostgreSQL --> Debezium in Kafka Connect --> shop.public.* --> replica --> the tables of two lakes

The load runs for ``--seconds``; in the middle, ALTER TABLE adds a column. Then the run waits until the query has
processed the last change. The run compares each table of both lakes with its table in PostgreSQL, row by row. The run
fails if a row differs.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace import Admin, Consumer, LocalCluster, NewTopic
from headrace.schemas import SchemaRegistry
from headrace_core.errors import InvalidConfigError

from ..access import Access, given_access
from ..access import add_arguments as add_access
from ..errors import PipelineFailedError, StoppedError
from ..lags import group_of
from ..lake.lakes import Lake, lakes
from ..local_spark import local_spark
from ..outcome import Outcome
from ..places import Places, positive, whole
from ..queries import LOOK_S, Queries
from ..runs import serving
from ..show import Show
from ..sites import Site
from ..stopping import Stop
from ..topics import records_in_topic
from . import pictures
from .avro import Converter, payload_of
from .comparison import Comparison, compare
from .connect import GROUP, STATE_TOPICS, Worker, avro_converters, debezium, fetch_jars, java_keys
from .pictures import OPERATIONS
from .postgres import Postgres
from .replica import DEAD_LETTERS, QUERY, replicate
from .workload import KEYS, MARKER, PREFIX, TABLES, TOPICS, Workload

#: No topic of this pipeline has dead letters: events that cannot be applied are in the table cdc.dead_letters.
SOURCES: tuple[str, ...] = ()
PARTITIONS = 2
#: Seconds that Debezium may take to write the workload's last change to its topic, and seconds that the query may take
#: to process this change.
ARRIVAL_S = 180.0
_REGISTRY_URL = "schema.registry.url"
#: Prefixes of the keys for a registry with TLS or a login.
_REGISTRY_LOGIN = ("schema.registry.ssl", "schema.registry.basic", "schema.registry.bearer")
_MARKER_TOPIC = f"{PREFIX}.{MARKER}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run cdc``."""
    parser.add_argument(
        "--seconds", type=whole, default=20, metavar="S", help="seconds of pgbench's changes (default %(default)s)"
    )
    parser.add_argument(
        "--rate", type=positive, default=40.0, metavar="T", help="transactions a second (default %(default)g)"
    )
    add_access(
        parser,
        f"the command starts a cluster in DIR; in a cluster that a flag names, the run replaces topics {PREFIX}.* and "
        f"{GROUP}-*",
    )
    parser.add_argument(
        "--kafka-bootstrap-servers", metavar="HOST:PORT,...",
        help="the brokers' addresses for Kafka's clients, which Kafka Connect uses; needed with --bootstrap-servers",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("json", "avro"), default="json",
        help="how Debezium writes events: JSON with a schema in each event, or Avro with a registry (default "
        "%(default)s)",
    )  # fmt: skip
    parser.add_argument("--jars", type=Path, metavar="DIR", help="Debezium's jars (default: DIR/jars of --out)")


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    given, is_avro = given_access(arguments), arguments.format == "avro"
    _check(arguments, given)
    places = Places(out)
    places.clear("delta", "iceberg", "pgbench.log", "connect.log", "postgres.log")
    show.step("fetching Kafka Connect and Debezium with Maven, unless they are there")
    jars = fetch_jars(arguments.jars or out / "jars", with_avro=is_avro)
    with ExitStack() as stack:
        show.step("starting PostgreSQL, and a cluster of real processes")
        postgres = stack.enter_context(Postgres(out / "postgres.log"))
        workload = Workload(postgres, out, arguments.rate)
        workload.create_tables()
        where = _Cluster.of(given, arguments) if given else stack.enter_context(_started(places, is_avro=is_avro))
        converters = avro_converters(where.registry_urls) if is_avro else {}
        registry = stack.enter_context(SchemaRegistry(where.registry_urls)) if is_avro else None
        site = Site("cdc", where.access.servers, out, keys=where.access.keys)
        serving(out, site.bootstrap_servers)
        remove_topics(site.access)
        create_topics(site.access)
        show.step("starting Kafka Connect with Debezium, and Spark")
        worker = stack.enter_context(Worker(jars, out, where.kafka_servers, java_keys(where.access.keys)))
        spark = stack.enter_context(local_spark("headrace cdc"))
        worker.run_connector(debezium(postgres.port, PREFIX, [*TABLES, MARKER]) | converters)
        stack.callback(workload.stop)
        job = Job(spark, site, postgres, workload, show, stop, registry)
        outcome = job.run(arguments.seconds)
    outcome.details["seconds"] = round(time.perf_counter() - began, 3)
    show.step("done")
    return outcome


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster of a run. ``kafka_servers``: the brokers' addresses for Kafka's clients. ``registry_urls``: URLs
    of the schema registry for events in Avro."""

    access: Access
    kafka_servers: str
    registry_urls: str = ""

    @classmethod
    def of(cls, given: Access, arguments: argparse.Namespace) -> _Cluster:
        return cls(given, arguments.kafka_bootstrap_servers, given.keys.get(_REGISTRY_URL, ""))


def _check(arguments: argparse.Namespace, given: Access | None) -> None:
    """Raises InvalidConfigError for flags that contradict each other."""
    if given is None:
        if arguments.kafka_bootstrap_servers:
            raise InvalidConfigError(
                "--kafka-bootstrap-servers names brokers, but no flag names their cluster; add --bootstrap-servers "
                "HOST:PORT,..."
            )
        return
    if not arguments.kafka_bootstrap_servers:
        raise InvalidConfigError(
            "Kafka Connect is a client of Kafka's protocol; add --kafka-bootstrap-servers HOST:PORT,..."
        )
    java_keys(given.keys)
    if arguments.format != "avro":
        return
    if not given.keys.get(_REGISTRY_URL):
        raise InvalidConfigError("--format avro needs a schema registry; add -X schema.registry.url=http://HOST:PORT")
    if "https:" in given.keys[_REGISTRY_URL] or any(name.startswith(_REGISTRY_LOGIN) for name in given.keys):
        raise InvalidConfigError(
            "--format avro: the Avro converter in Kafka Connect supports neither https nor a login; set -X "
            "schema.registry.url to the http URL of a registry without a login, on a private address, and leave out "
            "the keys schema.registry.ssl..., schema.registry.basic... and schema.registry.bearer..."
        )


@contextmanager
def _started(places: Places, *, is_avro: bool) -> Iterator[_Cluster]:
    more: dict[str, Any] = {"registries": int(is_avro), "data": places.cluster}
    with LocalCluster(brokers=3, controllers=1, kafka=True, **more) as cluster:
        urls = cluster.registry_urls if is_avro else ""
        yield _Cluster(Access(cluster.bootstrap_servers), cluster.kafka_bootstrap_servers, urls)


def remove_topics(access: Access) -> None:
    """Delete the topics and groups of an earlier run, including those of Kafka Connect, which creates its topics
    itself."""
    names, groups = {*TOPICS, _MARKER_TOPIC, *STATE_TOPICS}, {group_of("cdc", QUERY), GROUP}
    with Admin(access.admin()) as admin:
        if old := names & set(admin.list_topics()):
            admin.delete_topics(sorted(old))
        if old_groups := groups & {group.group_id for group in admin.list_groups()}:
            admin.delete_groups(sorted(old_groups))


def create_topics(access: Access, *more: str) -> None:
    """Create the topics of the tables and the topics ``more``. A query needs its topics at its start, but Debezium
    creates a topic only with its first event."""
    names = [*TOPICS, _MARKER_TOPIC, *more]
    with Admin(access.admin()) as admin:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS, config={"retention.ms": "-1"}) for name in names])


def has_arrived(access: Access, mark: int, registry: SchemaRegistry | None = None) -> bool:
    """Whether the marker with the value ``mark`` is in its topic. If the marker is there, all changes that were
    committed before the marker are in their topics, too. Debezium sends the changes in the order of PostgreSQL's log,
    each change once. ``registry``: the registry for events in Avro."""
    converter = None if registry is None else Converter(registry)
    with reader(access) as consumer:
        values = [record.value for records in records_in_topic(consumer, _MARKER_TOPIC) for record in records]
    return any(payload_of(value, converter)["after"]["at"] >= mark for value in values if value is not None)


def reader(access: Access) -> Consumer:
    """A consumer of committed events, from the start of a topic."""
    return Consumer(access.consumer() | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"})


class Job:
    """The load, the query, and the comparison."""

    def __init__(
        self,
        spark: SparkSession,
        site: Site,
        postgres: Postgres,
        workload: Workload,
        show: Show,
        stop: Stop,
        registry: SchemaRegistry | None = None,
    ) -> None:
        self._spark, self._site, self._postgres, self._workload = spark, site, postgres, workload
        self._show, self._stop, self._registry = show, stop, registry
        self._lakes = lakes(site.directory)

    def run(self, seconds: int) -> Outcome:
        """Run the load for ``seconds``, and compare the tables. Raises StoppedError and PipelineFailedError."""
        with self._stop.after_batch(), Queries({QUERY: self._replicate()}) as queries:
            added_s = self._load(queries, seconds)
            self._show.step("waiting until the last change is in both lakes")
            self._finish(queries)
            totals = queries.totals()[QUERY]
        self._show.step("comparing each row of both lakes with PostgreSQL")
        return self._compare(added_s, totals)

    def _replicate(self) -> StreamingQuery:
        return replicate(self._spark, self._site, TOPICS, self._lakes, registry=self._registry)

    def _load(self, queries: Queries, seconds: int) -> float:
        """Change rows for ``seconds``; in the middle, add a column. Returns the time when the column was added, in
        seconds since 1970."""
        self._show.step(f"pgbench changes rows for {seconds} s; after {seconds // 2} s, ALTER TABLE adds a column")
        self._workload.start(seconds)
        self._follow(queries, until_s=time.monotonic() + seconds // 2)
        self._workload.add_column(seconds - seconds // 2)
        added_s = time.time()
        self._follow(queries, until_s=time.monotonic() + seconds - seconds // 2)
        self._workload.wait(0)
        return added_s

    def _finish(self, queries: Queries) -> None:
        """Wait until all changes of the load are in their topics, and then in the lakes."""
        mark = self._workload.mark()
        deadline_s = time.monotonic() + ARRIVAL_S
        while not has_arrived(self._site.access, mark, self._registry):
            if time.monotonic() > deadline_s:
                raise PipelineFailedError(
                    f"Debezium has not sent the last change within {ARRIVAL_S:.0f} s; see connect.log in "
                    f"{self._site.directory}"
                )
            self._follow(queries, until_s=time.monotonic() + LOOK_S)
        if not queries.drain([QUERY], lambda: not self._stop.is_asked):
            self._end(queries)

    def _follow(self, queries: Queries, *, until_s: float) -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            queries.look()
            if self._stop.wait(min(LOOK_S, left_s)):
                self._end(queries)

    def _end(self, queries: Queries) -> NoReturn:
        queries.stop_after_batch()
        raise StoppedError({"queries": queries.totals()})

    def _compare(self, added_s: float, totals: dict[str, int]) -> Outcome:
        found: dict[str, list[Comparison]] = {
            lake.format: [compare(self._postgres, lake.table(name), name, keys) for name, keys in KEYS.items()]
            for lake in self._lakes
        }
        dead = {lake.format: dead_letters(lake) for lake in self._lakes}
        for each in found["delta"]:
            self._show.note(str(each))
        wrong = [f"{name}: {each}" for name, every in found.items() for each in every if each.different]
        wrong += [f"{name}: {count} dead letters" for name, count in dead.items() if count]
        if wrong:
            raise PipelineFailedError("; ".join(wrong))
        events = operations(self._site.access, self._registry)
        counts = {word: sum(each[code] for each in events.values()) for code, word in OPERATIONS.items()}
        rows = {each.table: each.rows for each in found["delta"]}
        path = pictures.draw(events, added_s, rows, self._site.directory / "cdc.png")
        self._show.note(f"picture: {path}")
        summary = {"rows": rows, "differences": 0, "dead_letters": 0, "events": counts}
        return Outcome(summary, {"batches": totals["batches"], "records": totals["rows"]})


def dead_letters(lake: Lake) -> int:
    """The number of events that could not be applied to a lake."""
    table = lake.table(DEAD_LETTERS)
    return table.read(columns=["offset"]).num_rows if table.exists() else 0


def operations(access: Access, registry: SchemaRegistry | None = None) -> dict[int, Counter[str]]:
    """The number of events by second (since 1970) and operation. ``registry``: the registry for events in Avro."""
    converter = None if registry is None else Converter(registry)
    found: dict[int, Counter[str]] = {}
    with reader(access) as consumer:
        for topic in TOPICS:
            for record in (record for records in records_in_topic(consumer, topic) for record in records):
                if record.value is not None:
                    payload = payload_of(record.value, converter)
                    found.setdefault(payload["source"]["ts_ms"] // 1000, Counter())[payload["op"]] += 1
    return found
