"""The numbers of a run. DuckDB reads the tables through Arrow, separately for each format."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from .lakes import DELAYS, MAKERS, QUALITY, QUARANTINE, Lake

MAKERS_SHOWN = 8


def figures(lake: Lake) -> dict[str, Any]:
    """Count the rows of silver, the cancelled flights, the violations of each rule and the reasons of the quarantine,
    and sum up the gold tables."""
    names = {
        "flights": "silver.flights", "weather": "silver.weather", "planes": "silver.planes",
        "quarantine": QUARANTINE, "quality": QUALITY, "delays": DELAYS, "makers": MAKERS,
    }  # fmt: skip
    with duckdb.connect() as connection:
        for view, name in names.items():
            connection.register(view, lake.table(name).read())

        def rows(query: str) -> list[tuple[Any, ...]]:
            return connection.execute(query).fetchall()

        ((flights, cancelled, with_arrival),) = rows(
            "SELECT count(*), count(*) FILTER (dep_delay IS NULL), count(arr_delay) FROM flights"
        )
        ((weather,),) = rows("SELECT count(*) FROM weather")
        ((planes, with_seats),) = rows("SELECT count(*), count(seats) FROM planes")
        return {
            "flights": flights,
            "cancelled": cancelled,
            "flights_with_arrival": with_arrival,
            "weather": weather,
            "planes": planes,
            "planes_with_seats": with_seats,
            "quarantined": dict(rows("SELECT reason, count(*) FROM quarantine GROUP BY reason ORDER BY reason")),
            "violations": dict(rows("SELECT rule, CAST(sum(violations) AS BIGINT) FROM quality GROUP BY 1 ORDER BY 1")),
            "delays_by_origin": {
                origin: {"flights": count, "mean_departure_delay_min": mean}
                for origin, count, mean in rows(
                    "SELECT origin, CAST(sum(flights) AS BIGINT), "
                    "round(sum(mean_dep_delay * (flights - cancelled)) / sum(flights - cancelled), 3) "
                    "FROM delays GROUP BY 1 ORDER BY 1"
                )
            },
            "flights_by_maker": dict(
                rows(f"SELECT manufacturer, flights FROM makers ORDER BY flights DESC, 1 LIMIT {MAKERS_SHOWN}")
            ),
        }


def days(lake: Lake) -> pa.Table:
    """For each day: the mean delay at departure and at arrival, and the most rain in an hour."""
    with duckdb.connect() as connection:
        connection.register("delays", lake.table(DELAYS).read())
        return connection.sql(
            "SELECT day, sum(mean_dep_delay * (flights - cancelled)) / sum(flights - cancelled) AS departure, "
            "sum(mean_arr_delay * arrivals) / sum(arrivals) AS arrival, "
            "max(precip_max) AS precip FROM delays GROUP BY day ORDER BY day"
        ).to_arrow_table()
