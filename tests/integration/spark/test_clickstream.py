"""``headrace-pipelines run clickstream`` as a user runs it: its numbers are those of pandas straight from the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import Consumer, LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(540)]

ROOT = Path(__file__).resolve().parents[3]
LOG = ROOT / "pipelines/library/src/headrace_pipelines/clickstream/data/web_access.log.gz"
RUN = [sys.executable, "-m", "headrace_pipelines", "run", "clickstream"]


def run(directory: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """The summary of a run in ``directory``, and what the run said."""
    done = subprocess.run([*RUN, *flags], cwd=directory, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def by_pandas(log: Path) -> dict[str, Any]:
    """The summary of the contract and what we add to it, computed from the file; no code of the pipeline."""
    import gzip

    import pandas as pd

    lines = pd.Series(gzip.decompress(log.read_bytes()).decode().splitlines())
    head = lines.str.extract(
        r'^(?P<address>\S+) .*?\[(?P<time>[^]]+)\] "(?P<request>[^"]+)" (?P<status>\d{3}) \S+(?P<rest>.*)'
    )
    rows = head.dropna(subset=["address", "time", "request", "status"]).reset_index(drop=True)
    rows["time"] = pd.to_datetime(rows["time"], format="%d/%b/%Y:%H:%M:%S %z")
    rows["status"] = rows["status"].astype(int)
    quoted = rows["rest"].str.split('"')
    rows["referrer"] = quoted.str[1]
    rows["agent"] = [parts[3] if len(parts) == 5 and parts[3] else "-" for parts in quoted]
    agent = rows["agent"].str.lower()
    rows["crawler"] = agent == "-"
    for word in ("bot", "crawl", "spider", "slurp", "feed", "archiver"):
        rows["crawler"] |= agent.str.contains(word, regex=False)
    words = rows["request"].str.split(" ")
    rows["path"] = words.str[1].str.split("?").str[0]
    assets = (".png", ".jpg", ".jpeg", ".gif", ".ico", ".css", ".js", ".svg", ".ttf", ".woff", ".eot")
    is_view = (words.str[0] == "GET") & ~rows["crawler"] & rows["status"].isin([200, 304])
    views = rows[is_view & ~rows["path"].str.lower().str.endswith(assets)].sort_values(["address", "time"])
    views = views.reset_index(drop=True)

    gap = views.groupby("address")["time"].diff()
    views["session"] = (gap.isna() | (gap > pd.Timedelta(minutes=30))).cumsum()
    name = views["path"].str.rsplit("/", n=1).str[1]
    is_file = name.str.contains(".", regex=False) & ~name.str.endswith((".htm", ".html", "."))
    views["download"] = views["path"].str.startswith("/files/") & is_file
    views["read"] = views["path"].str.split("/").str[1].isin(["articles", "blog", "presentations", "projects"])
    views["read"] &= views["path"].str.split("/", n=2).str[2].fillna("") != ""
    first_read = views[views["read"]].groupby("session")["time"].min()
    downloads = views[views["download"]]
    after = downloads["time"] >= downloads["session"].map(first_read)

    pages = views[~views["download"]]
    pairs = downloads.merge(pages, on="address", suffixes=("", "_page"))
    before = pairs["time"] - pairs["time_page"]
    return {
        "requests": len(rows),
        "crawler_requests": int(rows["crawler"].sum()),
        "visitors": int(rows[~rows["crawler"]]["address"].nunique()),
        "sessions": int(views["session"].nunique()),
        "views_by_page": {str(path): int(count) for path, count in views["path"].value_counts().items()},
        "errors": int((rows["status"] >= 400).sum()),
        "views": len(views),
        "funnel": {
            "arrived": int(views["session"].nunique()),
            "read": len(first_read),
            "downloaded": int(downloads[after]["session"].nunique()),
        },
        "conversions": int(((before >= pd.Timedelta(0)) & (before <= pd.Timedelta(minutes=30))).sum()),
        "lines": len(lines),
    }


def test_the_numbers_are_those_of_the_web_log(tmp_path: Path) -> None:
    summary, said = run(tmp_path, "-o", "json")
    out = tmp_path / "build/pipelines/clickstream"
    assert json.loads((out / "summary.json").read_text()) == summary
    expected = by_pandas(LOG)
    assert expected["requests"] == 10_000
    assert {key: summary[key] for key in expected} == expected
    assert summary["dead_letters"] == {}
    assert summary["repeats_dropped"] == summary["repeats_sent"] == 100
    assert set(summary["late_dropped"].values()) == {0}
    pictures = sorted(out.glob("*.png"))
    assert [picture.name for picture in pictures] == ["traffic.png", "visits.png"]
    assert all(picture.stat().st_size > 20_000 and str(picture) in said for picture in pictures)
    for word in ("lines: ", "lag ", "watermark ", "state ", " left"):
        assert word in said
    assert cluster_processes(out) == []


GOOD = '10.0.0.{} - - [17/May/2015:{}:05:00 +0000] "GET /about/ HTTP/1.1" 200 54 "-" "Firefox"'


@pytest.mark.long
def test_bad_lines_become_dead_letters_and_copies_multiply_every_number(
    headrace_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Twice on one cluster: the second run replaces the topics of the first."""
    bad = ["rubbish", GOOD.format(1, 12).replace("2015", "2065"), "x" * 70_000]
    log = tmp_path / "some.log"
    log.write_text("\n".join([GOOD.format(1, 10), bad[0], GOOD.format(2, 11), *bad[1:], GOOD.format(1, 12)]) + "\n")
    flags = ("--bootstrap-servers", headrace_cluster.bootstrap_servers, "--log", str(log), "--speed", "100000")
    run(tmp_path, *flags)
    summary, _ = run(tmp_path, *flags, "--multiply", "3", "--repeat-every", "1", "--out", "three")
    assert (summary["requests"], summary["visitors"], summary["sessions"]) == (9, 6, 9)
    assert summary["views_by_page"] == {"/about/": 9}
    assert (summary["lines"], summary["repeats_dropped"], sum(summary["dead_letters"].values())) == (18, 18, 9)
    letters = []
    config = {"bootstrap.servers": headrace_cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer({**config, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(consumer.partitions_for("clickstream.dead-letters"))
        while len(letters) < 9:
            letters += [json.loads(record.value or b"") for record in consumer.poll(timeout=30)]
    assert {(each["reason"][:20], each["value"][:7]) for each in letters} == {
        ("no line of Apache's ", "rubbish"),
        ("the time is more tha", "10.0.0."),
        ("the time is more tha", "10.1.0."),
        ("the time is more tha", "10.2.0."),
        ("the line is longer t", "xxxxxxx"),
    }
    assert {each["topic"] for each in letters} == {"clickstream.log"}
    assert len({(each["partition"], each["offset"]) for each in letters}) == 9


@pytest.mark.long
def test_sigterm_stops_after_the_batch_and_leaves_nothing_behind(tmp_path: Path) -> None:
    job = subprocess.Popen([*RUN, "--speed", "100"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    try:
        until(job.stdout, lambda line: "lines: " in line and "lines: 0 of" not in line)
        family = psutil.Process(job.pid).children(recursive=True)
        job.send_signal(signal.SIGTERM)
        rest = job.stdout.read()
        assert job.wait(timeout=120) == 143
        last = json.loads(rest.splitlines()[-1])
        assert last["stopped"]
        queries = last["queries"]
        assert 0 < queries["requests"]["rows"] <= last["sent"] < 10_100
        out = tmp_path / "build/pipelines/clickstream"
        assert not (out / "summary.json").exists()
        for name, progress in queries.items():  # each batch that began has ended, but for one that begins at the stop
            begun, ended = (len(batches(out / "checkpoints" / name / part)) for part in ("offsets", "commits"))
            assert progress["batches"] <= ended <= begun <= ended + 1
        assert cluster_processes(out) == []
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive
    finally:
        if job.poll() is None:
            os.kill(job.pid, signal.SIGKILL)


def until(lines: Any, is_it: Callable[[str], bool]) -> None:
    assert any(is_it(line) for line in lines), "the run ended before"


def batches(part: Path) -> list[Path]:
    return [path for path in part.iterdir() if path.name.isdecimal()]


def cluster_processes(out: Path) -> list[int]:
    """Processes of ours whose command line names the cluster of the run."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(out / "cluster") in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
