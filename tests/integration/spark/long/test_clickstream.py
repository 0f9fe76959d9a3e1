"""``headrace-pipelines run clickstream`` as a user runs it: its numbers equal those that pandas computes from the
log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace_pipelines import cli

pytestmark = pytest.mark.timeout(540)

ROOT = Path(__file__).resolve().parents[4]
LOG = ROOT / "pipelines/library/src/headrace_pipelines/clickstream/data/web_access.log.gz"
RUN = [sys.executable, "-m", "headrace_pipelines", "run", "clickstream"]

#: The keys of the summary; other programs read them.
CONTRACT = ("requests", "crawler_requests", "visitors", "sessions", "views_by_page", "errors")


def run(directory: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """The summary of a run in ``directory``, and the output of the run."""
    done = subprocess.run([*RUN, *flags], cwd=directory, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def by_pandas(log: Path) -> dict[str, Any]:
    """The summary and some details, computed from the log file without the code of the pipeline."""
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
    assert summary == {key: expected[key] for key in CONTRACT}
    details = json.loads((out / "details.json").read_text())
    others = {key: value for key, value in expected.items() if key not in CONTRACT}
    assert {key: details[key] for key in others} == others
    assert details["dead_letters"] == {}
    assert details["repeats_dropped"] == details["repeats_sent"] == 100
    assert set(details["late_dropped"].values()) == {0}
    pictures = sorted(out.glob("*.png"))
    assert [picture.name for picture in pictures] == ["traffic.png", "visits.png"]
    assert all(picture.stat().st_size > 20_000 and str(picture) in said for picture in pictures)
    for word in ("lines: ", "lag ", "watermark ", "state ", " left"):
        assert word in said
    assert cluster_processes(out) == []


def test_a_run_is_watched_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``status`` shows the checkpoints and the groups of a run, and ``stop`` ends it after its batches."""
    where = ["clickstream", "--out", str(tmp_path), "-o", "json"]

    def status() -> dict[str, Any]:
        assert cli.main(["status", *where]) == 0
        return dict(json.loads(capsys.readouterr().out))

    with (tmp_path / "said").open("w") as said:
        running = subprocess.Popen([*RUN, "--out", str(tmp_path), "--speed", "500"], stdout=said)
    try:
        names = {"requests", "sessions", "counts", "conversions"}
        queries: dict[str, Any] = {}
        while set(queries) != names or not any(
            each["lag_s"] is not None and each["batch"] for each in queries.values()
        ):
            assert running.poll() is None, (tmp_path / "said").read_text()[-3000:]
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(1)
            queries = {query["query"]: query for query in status()["queries"]}
            assert set(queries) <= names
        assert cli.main(["stop", *where]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "stopped"
        assert running.wait(60) == 143
    finally:
        running.kill()
        running.wait()
    said_last = json.loads((tmp_path / "said").read_text().splitlines()[-1])
    after = {query["query"]: query for query in status()["queries"]}
    assert set(after) == names
    # A tick and transaction markers are records of the log too, so the position is not smaller than the rows.
    assert after["requests"]["position"] >= said_last["queries"]["requests"]["rows"] > 0
    assert all(query["next_batch"] is None or query["next_batch"] == query["batch"] + 1 for query in after.values())
    assert cluster_processes(tmp_path) == []


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
