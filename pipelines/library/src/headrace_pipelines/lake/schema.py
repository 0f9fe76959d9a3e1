"""The sources of the lake. Release 2 of each source has more fields; silver gets their columns with the first record of
release 2.

lake.flights, lake.weather, lake.planes     topics of JSON
  `-> bronze.flights ...                    each record as it came, with its position
  `-> silver.flights, silver.weather        good rows, typed
  `-> silver.planes                         the latest row of each plane: merged by tail number
  `-> checks.quarantine                     bad records with the reason and the position
  `-> checks.quality                        rows and violations of each rule, by batch
silver ---> gold.delays, gold.makers        written again after each release
"""

from __future__ import annotations

from dataclasses import dataclass

from ..expectations import Expectation, Expectations

RELEASES = (1, 2)


@dataclass(frozen=True, slots=True)
class Source:
    """A source. ``fields`` are the fields of release 1; ``more`` are the fields that release 2 adds. With ``keys``
    silver has the latest row of each key; without ``keys``, silver has all rows."""

    name: str
    fields: str
    more: str
    rules: Expectations
    keys: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        return f"lake.{self.name}"

    def schema(self, release: int) -> str:
        """The fields of a release, as DDL."""
        return self.fields if release == 1 else f"{self.fields}, {self.more}"


def _in_calendar(*columns: str) -> Expectation:
    """JSON may have any year, and a lake table has the years 1 to 9999 (tables/columns.py)."""
    condition = " AND ".join(f"year(data.{column}) BETWEEN 1 AND 9999" for column in columns)
    return Expectation("the time is in the years 1 to 9999", condition, "quarantine")


FLIGHTS = Source(
    "flights",
    "day DATE NOT NULL, hour TIMESTAMP NOT NULL, carrier STRING NOT NULL, flight INT NOT NULL, origin STRING NOT NULL, "
    "dest STRING NOT NULL, tailnum STRING, dep_delay INT",
    "arr_delay INT, air_time INT",
    Expectations(
        Expectation("the plane is known", "data.tailnum IS NOT NULL", "warn"),
        _in_calendar("day", "hour"),
        Expectation("a flight goes elsewhere", "data.origin != data.dest", "quarantine"),
        Expectation("the delay is possible", "data.dep_delay IS NULL OR data.dep_delay BETWEEN -60 AND 1440", "fail"),
    ),
)
WEATHER = Source(
    "weather",
    "hour TIMESTAMP NOT NULL, origin STRING NOT NULL, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE",
    "pressure DOUBLE",
    Expectations(
        _in_calendar("hour"),
        Expectation("the wind is possible", "data.wind_speed IS NULL OR data.wind_speed < 150", "quarantine"),
        Expectation("the temperature is known", "data.temp IS NOT NULL", "warn"),
    ),
)
PLANES = Source(
    "planes",
    "tailnum STRING NOT NULL, year INT, manufacturer STRING NOT NULL, model STRING NOT NULL",
    "seats INT, engine STRING",
    Expectations(Expectation("the year is known", "data.year IS NOT NULL", "warn")),
    keys=("tailnum",),
)
SOURCES = (FLIGHTS, WEATHER, PLANES)
