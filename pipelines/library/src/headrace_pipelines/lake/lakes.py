"""The tables of both formats, and the rows that one batch writes to the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession

from ..crash_points import crash_point
from ..expectations import Counts
from ..tables.delta import DeltaLakeTable
from ..tables.iceberg import IcebergTable, local_catalog
from ..tables.streams import batch_of, frame_of
from ..tables.table import Batch, LakeTable
from . import gold
from .schema import FLIGHTS, PLANES, WEATHER, Source
from .silver import bronze, judged, quarantine, silver

QUARANTINE, QUALITY = "checks.quarantine", "checks.quality"
DELAYS, MAKERS = "gold.delays", "gold.makers"


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables of one format. ``table`` opens a table by its name, ``layer.table``."""

    format: str
    table: Callable[[str], LakeTable]


def lakes(directory: Path) -> tuple[Lake, Lake]:
    """One lake with Delta Lake tables, and one with the same tables in Iceberg."""

    def delta(name: str) -> LakeTable:
        return DeltaLakeTable(directory / "delta" / name.replace(".", "/"), name=name)

    catalog = local_catalog(directory / "iceberg")
    return Lake("delta", delta), Lake("iceberg", lambda name: IcebergTable(catalog, name))


def write_batch(every: tuple[Lake, ...], source: Source, release: int) -> Callable[[DataFrame, int], None]:
    """The function of ``foreachBatch``: one Spark job collects the batch, then each table takes its rows once."""

    def write(records: DataFrame, number: int) -> None:
        seen = Observation()
        rows = judged(records, source, release, seen).toArrow()
        batch = batch_of(records, number)
        counts = quality(source, batch, source.rules.observed(seen.get))
        for lake in every:
            lake.table(f"bronze.{source.name}").append(bronze(rows), batch)
            crash_point(f"{lake.format} bronze", number)
            good = lake.table(f"silver.{source.name}")
            if source.keys:
                good.merge(silver(rows, source), source.keys, batch)
            else:
                good.append(silver(rows, source), batch)
            crash_point(f"{lake.format} silver", number)
            lake.table(QUARANTINE).append(quarantine(rows), batch)
            crash_point(f"{lake.format} quarantine", number)
            lake.table(QUALITY).append(counts, batch)
            crash_point(f"{lake.format} quality", number)

    return write


def quality(source: Source, batch: Batch, counts: Counts) -> pa.Table:
    """The rows of the quality table for a batch: one for each rule."""
    rules = source.rules.expectations
    return pa.table(
        {
            "source": [source.name] * len(rules),
            "batch": pa.array([batch.number] * len(rules), pa.int64()),
            "rule": [rule.name for rule in rules],
            "action": [rule.action for rule in rules],
            "rows": pa.array([counts.rows] * len(rules), pa.int64()),
            "violations": pa.array([counts.violations[rule.name] for rule in rules], pa.int64()),
        }
    )


def refine(spark: SparkSession, lake: Lake) -> None:
    """Write gold again from silver. Repeated calls have the same effect as one call. Groups that are no longer in
    silver disappear from gold."""

    def frame(source: Source, *left_out: str) -> DataFrame:
        rows = lake.table(f"silver.{source.name}").read()
        return frame_of(spark, rows.drop_columns([name for name in left_out if name in rows.column_names]))

    flights = frame(FLIGHTS, "carrier", "flight", "dest", "air_time").cache()
    delays = gold.delays(flights, frame(WEATHER, "temp", "pressure")).toArrow()
    makers = gold.makers(flights, frame(PLANES, "year", "model", "engine")).toArrow()
    flights.unpersist()
    lake.table(DELAYS).replace(delays)
    lake.table(MAKERS).replace(makers)
