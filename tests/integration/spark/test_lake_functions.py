"""The lake's pure functions on small static frames, and one batch that is written twice."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Observation

from headrace_pipelines.errors import PipelineFailedError
from headrace_pipelines.lake import gold, lakes
from headrace_pipelines.lake.feed import BROKEN_FLIGHTS, records
from headrace_pipelines.lake.figures import figures
from headrace_pipelines.lake.job import check_no_open_batch
from headrace_pipelines.lake.schema import FLIGHTS, PLANES, WEATHER, Source
from headrace_pipelines.lake.silver import bronze, judged, quarantine, silver
from headrace_pipelines.tables.streams import frame_of
from headrace_pipelines.tables.table import Batch

pytestmark = pytest.mark.timeout(300)

RAW = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, partition INT, "
    "offset BIGINT, timestamp TIMESTAMP"
)
HEADERS = [("origin", b"\xff")]
NOON = datetime(2013, 7, 1, 12)
FLIGHT = {"day": "2013-07-01", "hour": "2013-07-01T12:00:00Z", "carrier": "UA", "flight": 1, "origin": "EWR"}
FLIGHT |= {"dest": "IAH", "tailnum": "N1", "dep_delay": 5, "arr_delay": 7, "air_time": 200}


def raw(spark: Any, *values: dict[str, Any] | str | bytes | None) -> Any:
    """Records with a key and a header that are no text."""
    rows = []
    for offset, value in enumerate(values):
        text = json.dumps(value) if isinstance(value, dict) else value
        rows.append((b"\xfe", text.encode() if isinstance(text, str) else text, HEADERS, "t", 0, offset, NOON))
    return spark.createDataFrame(rows, RAW)


def test_records_become_typed_rows_and_bad_ones_get_a_reason(spark: Any) -> None:
    seen = Observation()
    unknown = FLIGHT | {"tailnum": None, "dep_delay": None}
    values = (FLIGHT, unknown, FLIGHT | {"dest": "EWR"}, *BROKEN_FLIGHTS, b"\xff{", None)
    rows = judged(raw(spark, *values), FLIGHTS, 2, seen).toArrow()
    good = silver(rows, FLIGHTS).to_pylist()
    assert [row["dep_delay"] for row in good] == [5, None]
    assert good[0]["day"] == date(2013, 7, 1)
    assert good[0]["arr_delay"] == 7
    assert [(row["offset"], row["reason"]) for row in quarantine(rows).to_pylist()] == [
        (2, "expectation: a flight goes elsewhere"),
        (3, "value: malformed JSON"),
        (4, 'flight: expected int, found string "one"'),
        (5, "carrier: missing"),
        (6, "value: not UTF-8"),
        (7, "value: null"),
    ]
    kept = bronze(rows).to_pylist()
    assert [row["value"] for row in kept[3:]] == [*[text.encode() for text in BROKEN_FLIGHTS], b"\xff{", None]
    assert {(row["key"], row["topic"], row["partition"]) for row in kept} == {(b"\xfe", "t", 0)}
    assert kept[0]["headers"] == [{"key": "origin", "value": b"\xff"}]
    assert quarantine(rows).to_pylist()[4] == kept[6] | {"reason": "value: not UTF-8"}
    counts = FLIGHTS.rules.observed(seen.get)
    assert counts.rows == 3
    assert counts.violations["the plane is known"] == 1


def test_a_flight_in_a_year_that_no_lake_has_is_quarantined(spark: Any) -> None:
    far = (FLIGHT | {"day": "+12345-01-01"}, FLIGHT | {"hour": "+12345-01-01T00:00:00Z"}, FLIGHT)
    rows = judged(raw(spark, *far), FLIGHTS, 1).toArrow()
    reason = "expectation: the time is in the years 1 to 9999"
    assert [(row["offset"], row["reason"]) for row in quarantine(rows).to_pylist()] == [(0, reason), (1, reason)]
    assert silver(rows, FLIGHTS).num_rows == 1


def test_release_1_does_not_have_the_columns_of_release_2(spark: Any) -> None:
    rows = judged(raw(spark, FLIGHT), FLIGHTS, 1).toArrow()
    assert "arr_delay" not in silver(rows, FLIGHTS).column_names


def test_silver_has_the_last_record_of_a_key(spark: Any) -> None:
    plane = {"tailnum": "N1", "year": 1999, "manufacturer": "BOEING", "model": "737"}
    rows = judged(raw(spark, plane, plane | {"tailnum": "N2"}, plane | {"year": 2000}), PLANES, 1).toArrow()
    backwards = rows.take(pa.array([2, 1, 0]))
    for collected in (rows, backwards):
        found = {row["tailnum"]: row["year"] for row in silver(collected, PLANES).to_pylist()}
        assert found == {"N1": 2000, "N2": 1999}


def test_the_records_of_a_plane_have_its_tail_number_as_their_key() -> None:
    rows = pa.table({"tailnum": ["N1"], "year": [1999], "manufacturer": ["A"], "model": ["B"], "seats": [2]})
    rows = rows.append_column("engine", pa.array(["jet"]))
    for release in (1, 2):
        assert records(rows, "planes", release)["key"].to_pylist() == ["N1"]


def test_delays_by_day_and_airport_with_the_weather_of_the_hour(spark: Any) -> None:
    hours = [datetime(2013, 7, 1, 12), datetime(2013, 7, 1, 13)]
    flights = spark.createDataFrame(
        [
            (NOON.date(), hours[0], "EWR", 10, 20),
            (NOON.date(), hours[1], "EWR", None, None),
            (NOON.date(), hours[1], "EWR", 20, 10),
            (NOON.date(), hours[1], "JFK", 1, 2),
        ],
        "day DATE, hour TIMESTAMP, origin STRING, dep_delay INT, arr_delay INT",
    )
    weather = spark.createDataFrame(
        [("EWR", hours[0], 10.0, 0.0, 9.0), ("EWR", hours[1], 12.0, 0.5, 2.0), ("EWR", hours[1], 12.0, 0.5, 2.0)],
        "origin STRING, hour TIMESTAMP, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE",
    )
    found = {row["origin"]: row.asDict() for row in gold.delays(flights, weather).collect()}
    assert found["EWR"] == {
        "day": NOON.date(), "origin": "EWR", "flights": 3, "cancelled": 1, "mean_dep_delay": 15.0,
        "arrivals": 2, "mean_arr_delay": 15.0, "wind_speed_max": 12.0, "precip_max": 0.5, "visib_min": 2.0,
    }  # fmt: skip
    assert found["JFK"]["flights"] == 1
    assert found["JFK"]["precip_max"] is None
    assert "mean_arr_delay" not in gold.delays(flights.drop("arr_delay"), weather).columns


def test_flights_and_seats_by_manufacturer(spark: Any) -> None:
    flights = spark.createDataFrame(
        [("N1", 0), ("N1", 5), ("N2", 1), ("N3", None), ("N9", 1)], "tailnum STRING, dep_delay INT"
    )
    planes = spark.createDataFrame(
        [("N1", "A", 100), ("N2", "A", 50), ("N3", "B", 10)], "tailnum STRING, manufacturer STRING, seats INT"
    )
    rows = [row.asDict() for row in gold.makers(flights, planes).collect()]
    assert rows == [{"manufacturer": "A", "planes": 2, "flights": 3, "seats": 250}]
    assert "seats" not in gold.makers(flights, planes.drop("seats")).columns


@pytest.mark.long
def test_batches_of_both_releases_reach_both_lakes_once(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch is written twice, as Spark does after a failure; gold is written twice."""
    both = lakes.lakes(tmp_path)
    weather = {"hour": "2013-07-01T12:00:00Z", "origin": "EWR", "temp": 80.0, "wind_speed": 10.0, "precip": 0.2}
    weather |= {"visib": 3.0, "pressure": 1000.5}
    plane = {"tailnum": "N1", "year": None, "manufacturer": "BOEING", "model": "737", "seats": 100, "engine": "jet"}
    old = [{name: value for name, value in row.items() if name not in ("arr_delay", "air_time", "pressure", "seats")}
           for row in (FLIGHT, weather, plane)]  # fmt: skip
    for release, content in ((1, old), (2, [FLIGHT | {"flight": 2, "dep_delay": None}, weather, plane])):
        for source, row in zip((FLIGHTS, WEATHER, PLANES), content, strict=True):
            extra = [BROKEN_FLIGHTS[0]] if source is FLIGHTS else []
            extra += [json.dumps(row | {"wind_speed": 1048.0})] if source is WEATHER else []
            batch = Batch(source.name, release)
            monkeypatch.setattr(lakes, "batch_of", lambda frame, number, batch=batch: batch)
            write = lakes.write_batch(both, source, release)
            for _ in range(2):
                write(raw(spark, row, *extra), release)
        for lake in both:
            lakes.refine(spark, lake)
            lakes.refine(spark, lake)
    delta, iceberg = (figures(lake) for lake in both)
    assert delta == iceberg
    assert delta == {
        "flights": 2, "cancelled": 1, "flights_with_arrival": 1, "weather": 2, "planes": 1, "planes_with_seats": 1,
        "quarantined": {"expectation: the wind is possible": 2, "value: malformed JSON": 2},
        "violations": {
            "a flight goes elsewhere": 0, "the delay is possible": 0, "the plane is known": 0,
            "the temperature is known": 0, "the time is in the years 1 to 9999": 0, "the wind is possible": 2,
            "the year is known": 2,
        },
        "delays_by_origin": {"EWR": {"flights": 2, "mean_departure_delay_min": 5.0}},
        "flights_by_maker": {"BOEING": 1},
    }  # fmt: skip


POINTS = [f"{lake} {table}" for lake in ("delta", "iceberg") for table in ("bronze", "silver", "quarantine", "quality")]


@pytest.mark.long
@pytest.mark.parametrize("source", [FLIGHTS, PLANES], ids=lambda source: source.name)
def test_a_batch_that_failed_between_any_two_tables_is_completed_once(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    """Batch N fails after the N-th write, and is written again. At the end each table has every batch once."""
    both = lakes.lakes(tmp_path)
    plane = {"year": 1999, "manufacturer": "BOEING", "model": "737"}

    def fail(name: str, number: int) -> None:
        if name == POINTS[number]:
            raise OSError(name)

    monkeypatch.setattr(lakes, "batch_of", lambda frame, number: Batch("q", number))
    write = lakes.write_batch(both, source, 1)
    for number in range(len(POINTS)):
        row = FLIGHT | {"flight": number} if source is FLIGHTS else plane | {"tailnum": f"N{number}"}
        batch = raw(spark, row, "broken")
        monkeypatch.setattr(lakes, "crash_point", fail)
        with pytest.raises(OSError, match=POINTS[number]):
            write(batch, number)
        monkeypatch.setattr(lakes, "crash_point", lambda name, number: None)
        write(batch, number)
    for lake in both:
        assert lake.table(f"bronze.{source.name}").read().num_rows == 2 * len(POINTS)
        names = lake.table(f"silver.{source.name}").read()["flight" if source is FLIGHTS else "tailnum"].to_pylist()
        assert len(names) == len(set(names)) == len(POINTS)
        assert lake.table(lakes.QUARANTINE).read().num_rows == len(POINTS)
        counts = lake.table(lakes.QUALITY).read()
        assert sorted(set(counts["batch"].to_pylist())) == list(range(len(POINTS)))
        assert counts.num_rows == len(POINTS) * len(source.rules.expectations)


def test_a_new_release_is_refused_while_a_batch_is_open(tmp_path: Path) -> None:
    checkpoint = tmp_path / "flights"
    for directory in ("offsets", "commits"):
        (checkpoint / directory).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"1"}')
    offsets = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"lake.flights":{"0":5}}'
    for number in (0, 1):
        (checkpoint / "offsets" / str(number)).write_text(offsets)
    (checkpoint / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(PipelineFailedError, match="query flights: batch 1 is not committed"):
        check_no_open_batch(tmp_path)
    (checkpoint / "commits" / "1").write_text('v1\n{"nextBatchWatermarkMs":0}')
    check_no_open_batch(tmp_path)
    check_no_open_batch(tmp_path / "none")


@pytest.mark.long
@pytest.mark.parametrize("source", [FLIGHTS, WEATHER, PLANES], ids=lambda source: source.name)
def test_the_feed_makes_records_that_the_schema_of_their_release_accepts(spark: Any, source: Source) -> None:
    from headrace_pipelines.lake.feed import tables

    rows = tables()[source.name]
    some = pa.concat_tables([rows.slice(0, 40), rows.slice(rows.num_rows - 40)])
    for release in (1, 2):
        texts = records(some, source.name, release)["value"].to_pylist()
        wrong = judged(raw(spark, *texts), source, release).where("reason IS NOT NULL").collect()
        assert [row["value"] for row in wrong if row["value"].decode() not in BROKEN_FLIGHTS] == []


def test_a_frame_has_the_rows_behind_an_empty_chunk(spark: Any) -> None:
    """pyspark 4.3 lost them: gold would have been written from a part of silver."""
    chunks = [pa.table({"a": [1]}), pa.table({"a": pa.array([], pa.int64())}), pa.table({"a": [2, 3]})]
    found = frame_of(spark, pa.concat_tables(chunks))
    assert sorted(row.a for row in found.collect()) == [1, 2, 3]
    assert frame_of(spark, chunks[1]).collect() == []
