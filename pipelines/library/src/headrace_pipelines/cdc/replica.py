"""Replicate tables: one query reads the topics of all tables, and writes each batch to the lakes, exactly once.

    every = lakes(directory)
    query = replicate(spark, site, ["shop.public.orders"], every)     # writes the tables public.orders of each lake

The query's function for ``foreachBatch`` finds the schemas in the batch, and has Spark parse the events of each schema.
Then the function computes the changes of each table, and merges the changes into the table. Each table stores the batch
in the transaction of its rows, so a batch that Spark repeats changes nothing. Events that cannot be applied are in the
table ``cdc.dead_letters`` of each lake, once, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace.schemas import SchemaRegistry
from headrace_core.errors import InvalidArgumentError

from ..access import Registry
from ..crash_points import crash_point
from ..expectations import REASON
from ..lake.lakes import Lake
from ..queries import started
from ..sites import Site
from ..tables.streams import batch_of, frame_of
from ..tables.table import Batch
from .changes import REFUSED, Version, changes
from .columns import EventSchemaError, columns_of_key, columns_of_row
from .events import RECORD, events
from .rows import typed_rows

QUERY = "replica"
DEAD_LETTERS = "cdc.dead_letters"
#: Maximum number of records in a batch, which the driver collects table by table.
EVENTS_OF_A_BATCH = 5_000
#: Maximum number of schemas of one table in a batch. The events of further schemas are dead letters.
SCHEMAS_MAX = 32


def replicate(
    spark: SparkSession,
    site: Site,
    topics: Sequence[str],
    every: Sequence[Lake],
    *,
    query: str = QUERY,
    registry: SchemaRegistry | Registry = None,
) -> StreamingQuery:
    """Start the query that replicates the tables of ``topics`` into each lake.

    ``registry``: the schema registry of events in Avro: a client, its settings, or its URL. Without ``registry``, the
    keys of ``site`` name the schema registry (``schema.registry.url``); if they name no registry, events in Avro become
    dead letters. Raises InvalidArgumentError if two topics have the same table.
    """
    doubled = [name for name, count in Counter(map(table_of, topics)).items() if count > 1]
    if doubled:
        raise InvalidArgumentError(f"two topics have the table {doubled[0]}; replicate them into different lakes")
    records = (
        spark.readStream.format("headrace")
        .options(**site.read(*topics, query=query))
        .option("maxOffsetsPerTrigger", EVENTS_OF_A_BATCH)
        .load()
    )
    writer = (
        records.writeStream.foreachBatch(write_batch(every, _client(site, registry)))
        .queryName(query)
        .option("checkpointLocation", f"{site.checkpoints or site.directory / 'checkpoints'}/{query}")
        .trigger(**site.trigger)
    )
    (running,) = started(writer.start)
    return running


def _client(site: Site, registry: SchemaRegistry | Registry) -> SchemaRegistry | None:
    """The client of the registry that the arguments of ``replicate`` name; None if they name no registry."""
    if isinstance(registry, SchemaRegistry):
        return registry
    settings = registry if isinstance(registry, Mapping) else site.access.registry(registry)
    return None if settings is None else SchemaRegistry(settings)


def table_of(topic: str) -> str:
    """The name of the lake's table (``schema.table``) for a topic of Debezium (``prefix.schema.table``). Raises
    InvalidArgumentError."""
    parts = topic.split(".")
    if len(parts) < 2 or not all(parts):
        raise InvalidArgumentError(
            f"{topic!r} is not the topic of a table: topics of Debezium are named PREFIX.SCHEMA.TABLE"
        )
    return ".".join(parts[-2:])


def write_batch(every: Sequence[Lake], registry: SchemaRegistry | None = None) -> Callable[[DataFrame, int], None]:
    """The function of ``foreachBatch``. ``registry``: the registry with the schemas of events in Avro."""

    def write(records: DataFrame, number: int) -> None:
        batch = batch_of(records, number)
        found = events(records, registry).persist()
        try:
            tables = by_topic(found)
            for lake in every:
                refused = [_with_topic(REFUSED.empty_table(), "")]  # a batch may consist of tombstones only
                refused += [each for _, bad in tables.values() for each in bad]
                for topic, (versions, _) in sorted(tables.items()):
                    refused.append(_with_topic(write_changes(lake, topic, versions, batch), topic))
                    crash_point(f"{lake.format} {table_of(topic)}", number)
                lake.table(DEAD_LETTERS).append(records_of(found, pa.concat_tables(refused)), batch)
                crash_point(f"{lake.format} {DEAD_LETTERS}", number)
        finally:
            found.unpersist()

    return write


def by_topic(found: DataFrame) -> dict[str, tuple[list[Version], list[pa.Table]]]:
    """For each topic of a batch: the typed rows of each schema, and the events that cannot be read. The schemas are in
    the order of their first events."""
    tables: dict[str, tuple[list[Version], list[pa.Table]]] = {}
    place = F.struct("partition", "offset")
    schemas = found.groupBy("topic", "key_schema", "value_schema", F.col(REASON)).agg(
        F.min(F.struct("offset", "partition")).alias("first"), F.collect_list(place).alias("places")
    )
    for each in schemas.orderBy("topic", "first").collect():
        versions, refused = tables.setdefault(each["topic"], ([], []))
        try:
            if each[REASON] is not None:
                raise EventSchemaError(each[REASON])
            if len(versions) == SCHEMAS_MAX:
                raise EventSchemaError(f"the events of the batch have more than {SCHEMAS_MAX} schemas of this table")
            key, row = columns_of_key(each["key_schema"]), columns_of_row(each["value_schema"])
        except EventSchemaError as error:
            places = [(*place, str(error)) for place in each["places"]]
            columns = zip(*places, strict=True)
            refused.append(
                _with_topic(pa.table(dict(zip(REFUSED.names, columns, strict=True))).cast(REFUSED), each["topic"])
            )
            continue
        same = [F.col(name) == each[name] for name in ("topic", "key_schema", "value_schema")]
        events_of_schema = found.where(F.col(REASON).isNull() & same[0] & same[1] & same[2])
        versions.append(Version(key, row, typed_rows(events_of_schema, key, row).toArrow()))
    return tables


def write_changes(lake: Lake, topic: str, versions: Sequence[Version], batch: Batch) -> pa.Table:
    """Write the changes of a batch to one table; returns the events that the table refuses (REFUSED)."""
    table = lake.table(table_of(topic))
    found = changes(versions, table.columns(), table.name)
    if found.rows.num_rows or found.deleted.num_rows:
        table.merge(found.rows, found.keys, batch, deleted=found.deleted)
    return found.refused


def records_of(found: DataFrame, refused: pa.Table) -> pa.Table:
    """The unchanged records of refused events, with the reason."""
    if not refused.num_rows:
        return pa.table({})
    places = F.broadcast(frame_of(found.sparkSession, refused))
    return found.select(*RECORD).join(places, ["topic", "partition", "offset"]).select(*RECORD, REASON).toArrow()


def _with_topic(refused: pa.Table, topic: str) -> pa.Table:
    return refused.append_column("topic", pa.array([topic] * refused.num_rows, pa.string()))
