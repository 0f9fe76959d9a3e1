"""``headrace-pipelines run telemetry``: its topics equal what pandas computes from the records of the fleet."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headrace_pipelines.telemetry import fleet, grains, job
from tests.worlds import pipelines_world
from tests.worlds.pipelines_world import records_of

pytestmark = pytest.mark.timeout(540)

#: Minutes of test_state_memory_and_checkpoint_stay_flat; `make verify` sets 60. In an hour of real time the grain of 15
#: minutes would have four batches, which are too few for a slope. So the devices' time is faster than the clock.
REAL_MINUTES, REAL_SPEED = int(os.environ.get("HEADRACE_TELEMETRY_MINUTES", "0")), 6
SEED, DEVICES, MINUTES = 8, 600, 10
FLAGS = ["--seed", str(SEED), "--devices", str(DEVICES), "--minutes", str(MINUTES), "--speed", "20"]
RUN = [sys.executable, "-m", "headrace_pipelines", "run", "telemetry"]
WIDTHS = {"minutes": "1min", "fives": "5min", "quarters": "15min"}


def good_readings() -> pd.DataFrame:
    """The good readings by their values and times of arrival alone, each once. It ignores what was planted."""
    rows = []
    for each in fleet.deliveries(SEED, DEVICES, MINUTES):
        try:
            row = json.loads(each.value)
        except ValueError:
            continue
        rows.append({**row, "key": each.device, "age_ms": each.at_ms - row["time_ms"], "text": each.value.decode()})
    frame = pd.DataFrame(rows)
    is_good = frame["age_ms"].between(-5_000, 60_000) & frame["centi_celsius"].between(-10_000, 20_000)
    found = frame[is_good].drop_duplicates(["key", "time_ms"]).sort_values(["key", "time_ms"])
    found["time"] = pd.to_datetime(found["time_ms"], unit="ms", utc=True)
    return found


def by_pandas() -> dict[str, Any]:
    """What the topics must have."""
    good = good_readings()
    grains = {}
    for name, width in WIDTHS.items():
        groups = good.groupby(["key", good["time"].dt.floor(width)])
        rows = groups.agg(
            readings=("time_ms", "size"), low=("centi_celsius", "min"), high=("centi_celsius", "max"),
            total=("centi_celsius", "sum"), battery=("battery", "min"),
        )  # fmt: skip
        grains[name] = {(key, at.timestamp(), *map(int, row)) for (key, at), *row in rows.itertuples()}
    end_ms = fleet.START_MS + MINUTES * 60_000
    alarms = set()
    for key, times in good.groupby("key")["time_ms"]:
        for last, following in zip(times, [*times[1:], None], strict=True):
            if (following or end_ms) - last >= 90_000 and following != last + 90_000:
                alarms.add((key, "silent", last, last + 90_000))
                if following is not None:
                    alarms.add((key, "cleared", last, following))
    twins = good.groupby("key").last()["text"].to_dict()
    return {**grains, "alarms": alarms, "twins": twins}


def written(servers: str) -> dict[str, Any]:
    """What the topics have."""
    found: dict[str, Any] = {}
    for name in WIDTHS:
        rows = [json.loads(each.value) for each in records_of(servers, f"telemetry.{name}") if each.value is not None]
        keys = ("readings", "low", "high", "total", "battery")
        made = [(row["device"], pd.Timestamp(row["window"]).timestamp(), *(row[key] for key in keys)) for row in rows]
        found[name] = set(made)
        assert len(found[name]) == len(made), f"{name}: each row once"
    alarms = [tuple(json.loads(each.value).values()) for each in records_of(servers, "telemetry.alarms")]
    found["alarms"] = set(alarms)
    assert len(found["alarms"]) == len(alarms), "each alarm once"
    found["twins"] = {each.key.decode(): each.value.decode() for each in records_of(servers, "telemetry.twins")}
    return found


def check(servers: str, out: Path, summary: dict[str, Any]) -> None:
    """Every row of every topic is the one that pandas computes."""
    expected, found = by_pandas(), written(servers)
    for name, rows in expected.items():
        assert found[name] == rows, name
    good = good_readings()
    total = sum(1 for _ in fleet.deliveries(SEED, DEVICES, MINUTES))
    assert (summary["records"], summary["readings"], summary["twins"]) == (total, len(good), DEVICES)
    letters = records_of(servers, "telemetry.readings.dead-letters")
    assert summary["dead_letters"] == len(letters) == total - len(good) - summary["doubled"]
    assert summary["silent"] > summary["cleared"] > 5
    assert json.loads((out / "summary.json").read_text()) == summary
    assert (out / "telemetry.png").stat().st_size > 20_000


def test_every_row_is_the_one_that_pandas_computes(headrace: Any, tmp_path: Path) -> None:
    servers = headrace.bootstrap_servers
    command = [*RUN, *FLAGS, "--out", str(tmp_path), "--bootstrap-servers", servers, "-o", "json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, env={**os.environ, "TZ": "UTC"}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    check(servers, tmp_path, json.loads(done.stdout.splitlines()[-1]))
    details = json.loads((tmp_path / "details.json").read_text())
    assert set(details["late_dropped"].values()) == {0}
    assert len(details["dead_letters"]) >= 3


def test_each_hostile_record_is_a_dead_letter_and_ends_no_query(spark: Any) -> None:
    from headrace_pipelines.telemetry.readings import judged

    now = datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.UTC)
    now_ms = int(now.timestamp() * 1000)
    good = {"device": "d1", "time_ms": now_ms, "centi_celsius": 2_000, "battery": 50, "firmware": "1"}
    years_ms = 50 * 365 * 86_400_000

    def with_(**fields: Any) -> bytes:
        return json.dumps(good | fields).encode()

    late, ahead = "time_ms: more than 60 s before the record", "time_ms: more than 5 s after the record"
    shape = "value: not a JSON object with device, time_ms, centi_celsius, battery and firmware"
    cases: list[tuple[bytes | None, bytes | None, str | None]] = [
        (b"d1", with_(), None),
        (b"d1", None, None),  # a tick
        (b"d1", with_(firmware="é"), None),
        (b"d1", with_(firmware="?").replace(b"?", b"\xff"), "value: not UTF-8"),
        (b"d1", with_(more="?").replace(b"?", b"\xc3"), "value: not UTF-8"),
        (b"d1", b"x" * 5_000_000, "value: more than 4096 bytes"),
        (b"d1", b"[" * 4_000, shape),
        (b"d1", with_(time_ms="soon"), shape),
        (b"d1", with_(time_ms=2**63), shape),
        (b"d1", with_(centi_celsius=2**31), shape),
        (b"d1", with_(time_ms=-(2**63)), late),
        (b"d1", with_(time_ms=2**63 - 1), ahead),
        (b"d1", with_(time_ms=now_ms - years_ms), late),
        (b"d1", with_(time_ms=now_ms + years_ms), ahead),
        (b"d1", with_(time_ms=now_ms - 60_000), None),
        (b"d1", with_(time_ms=now_ms + 5_000), None),
        (b"\xff", with_(), "device: not the key of the record"),
        (None, with_(), "device: not the key of the record"),
    ]
    rows = [(key, value, "r", 0, number, now, []) for number, (key, value, _) in enumerate(cases)]
    columns = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    found = judged(spark.createDataFrame(rows, columns)).select("offset", "reason").collect()
    assert {row["offset"]: row["reason"] for row in found} == {
        number: reason for number, (_, _, reason) in enumerate(cases)
    }


@pytest.mark.parametrize(("span", "lost"), [(job.BATCH_MINUTES + 1, 0), (20, 14)])
def test_a_coarser_grain_may_see_a_batch_of_the_finer_one_in_parts(
    spark: Any, tmp_path: Path, span: int, lost: int
) -> None:
    """A batch with the minutes of two devices, of which the first is visible before the second. A batch that spans more
    than the watermark would lose rows: the second case shows that this test sees it."""
    begin = datetime.datetime(2026, 11, 27, 12, 1, tzinfo=datetime.UTC)

    def row(device: str, minute: int) -> dict[str, Any]:
        at = (begin + datetime.timedelta(minutes=minute)).isoformat()
        numbers = {"readings": 2, "low": 1, "high": 3, "total": 4, "battery": 50}
        return {"value": json.dumps({"device": device, "window": at, **numbers}), "timestamp": at}

    tick = {"timestamp": (begin + datetime.timedelta(days=30)).isoformat()}
    parts = [[row(device, minute) for minute in range(span)] for device in ("first", "second")]
    (tmp_path / "rows").mkdir()
    reader = spark.readStream.schema("value STRING, timestamp TIMESTAMP").json(str(tmp_path / "rows"))
    stream = grains.coarser(grains.finer(reader), grains.FIVE).writeStream.format("memory").queryName("seen_in_parts")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for number, rows in enumerate([*parts, [tick]]):
            (tmp_path / "rows" / f"{number}.json").write_text("".join(json.dumps(each) + "\n" for each in rows))
            query.processAllAvailable()
        found = spark.table("seen_in_parts").groupBy("device").sum("readings").collect()
    finally:
        query.stop()
    assert dict(found) == {"first": 2 * span, "second": 2 * (span - lost)}


@pytest.mark.timeout(int(REAL_MINUTES * 60) + 1500)  # on a busy machine the fleet waits, and sends later
@pytest.mark.skipif(not REAL_MINUTES, reason="`make verify` runs it for an hour")
def test_state_memory_and_checkpoint_stay_flat(headrace: Any, tmp_path: Path) -> None:
    """HEADRACE_TELEMETRY_MINUTES: minutes of 10,000 devices, 2,000 records in a second."""
    flags = ["--minutes", str(REAL_MINUTES * REAL_SPEED), "--speed", str(REAL_SPEED)]
    command = [*RUN, *flags, "--bootstrap-servers", headrace.bootstrap_servers]
    command += ["--out", str(tmp_path / "out"), "-o", "json"]
    flat = pipelines_world.followed(command, tmp_path, tmp_path / "out/checkpoints")
    print(json.dumps({"grown": flat.grown, "last": {what: values[-1] for what, values in flat.figures.items()}}))
    assert flat.summary["twins"] == 10_000, "the run has checked its numbers, too"
    if REAL_MINUTES >= 10:  # in the first minutes the heap of the JVM grows, and windows open
        assert all(growth < pipelines_world.GROWTH_MAX for growth in flat.grown.values()), flat.grown
