"""The hosts of the pipeline logs and their files; the archive by day, its batches, its retention, and search."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines.clickstream.replay import web_log
from headrace_pipelines.logs import archive
from headrace_pipelines.logs.hosts import FILE, HOSTS, ROTATE_LINES, SICK_HOST, Hosts, host_lines, rotate


def rows(*each: tuple[str, str, int, str]) -> pa.Table:
    """Rows of a batch: (time, host, status, text)."""
    times = [datetime.fromisoformat(time).replace(tzinfo=UTC) for time, _, _, _ in each]
    return pa.table(
        {
            "host": [host for _, host, _, _ in each],
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "status": pa.array([status for _, _, status, _ in each], pa.int32()),
            "text": [text for _, _, _, text in each],
        }
    )


def texts(where: Path, text: str = "", **wanted: object) -> list[str]:
    return [row[3] for row in archive.search(where, text, **wanted)]  # type: ignore[arg-type]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    archive.put(
        tmp_path,
        rows(
            ("2015-05-17T23:59:59", "web-02", 200, "GET /late"),
            ("2015-05-18T00:00:00", "web-01", 503, "GET /early"),
            ("2015-05-18T12:00:00", "web-02", 404, "GET /noon it's 100%"),
        ),
        0,
        0,
    )
    archive.put(tmp_path, rows(("2015-05-19T08:00:00", "web-01", 200, "GET /next")), 1, 0)
    return tmp_path


def test_each_day_has_a_file_for_each_batch(filled: Path) -> None:
    found = sorted(str(path.relative_to(filled)) for path in filled.rglob("*") if path.is_file())
    assert found == [
        "day=2015-05-17/batch-000000.parquet",
        "day=2015-05-18/batch-000000.parquet",
        "day=2015-05-19/batch-000001.parquet",
    ]
    assert archive.count(filled) == {"2015-05-17": 1, "2015-05-18": 2, "2015-05-19": 1}


def test_a_repeated_batch_replaces_its_own_files(filled: Path) -> None:
    before = texts(filled)
    archive.put(filled, rows(("2015-05-19T08:00:00", "web-01", 200, "GET /next")), 1, 0)
    assert texts(filled) == before


def test_a_file_that_was_not_finished_is_not_read(filled: Path) -> None:
    (filled / "day=2015-05-19" / "batch-000002.new").write_bytes(b"PAR1")
    assert len(texts(filled)) == 4
    archive.put(filled, rows(("2015-05-19T09:00:00", "web-01", 200, "GET /again")), 2, 0)
    assert not list(filled.rglob("*.new"))


def test_retention_keeps_the_newest_days(tmp_path: Path) -> None:
    for number, day in enumerate(("17", "18", "19", "21")):
        archive.put(tmp_path, rows((f"2015-05-{day}T08:00:00", "web-01", 200, day)), number, 3)
    assert list(archive.count(tmp_path)) == ["2015-05-19", "2015-05-21"], "three days, of which the 20th has no lines"


@pytest.mark.parametrize(("day", "keep_days"), [("2015-05-17", 1_000_000), ("0001-01-02", 5)])
def test_retention_may_keep_more_days_than_the_calendar_has(tmp_path: Path, day: str, keep_days: int) -> None:
    archive.put(tmp_path, rows((f"{day}T12:00:00", "web-01", 200, "GET /")), 0, keep_days)
    assert archive.count(tmp_path) == {day: 1}


def test_a_line_of_a_day_that_is_gone_does_not_bring_it_back(tmp_path: Path) -> None:
    archive.put(tmp_path, rows(("2015-05-21T08:00:00", "web-01", 200, "new")), 0, 2)
    archive.put(tmp_path, rows(("2015-05-18T08:00:00", "web-01", 200, "old")), 1, 2)
    assert texts(tmp_path) == ["new"]


def test_a_batch_without_rows_writes_nothing(tmp_path: Path) -> None:
    archive.put(tmp_path, rows(), 0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("", {}, ["GET /late", "GET /early", "GET /noon it's 100%", "GET /next"]),
        ("/n", {}, ["GET /noon it's 100%", "GET /next"]),
        ("it's 100%", {}, ["GET /noon it's 100%"]),
        ("%", {}, ["GET /noon it's 100%"]),
        ("' OR 1=1 --", {}, []),
        ("", {"status": 503}, ["GET /early"]),
        ("", {"host": "web-02"}, ["GET /late", "GET /noon it's 100%"]),
        ("", {"since": "2015-05-18", "until": "2015-05-18T12:00:00"}, ["GET /early"]),
        ("", {"since": "2015-05-18T00:00:01"}, ["GET /noon it's 100%", "GET /next"]),
        ("", {"limit": 2}, ["GET /late", "GET /early"]),
        ("", {"since": "2015-05-18T01:00+02:00", "limit": 1}, ["GET /late"]),
        ("", {"until": "2015-05-17T20:00-05:00"}, ["GET /late", "GET /early"]),
        ("", {"since": "20150518T06", "until": "20150519"}, ["GET /noon it's 100%"]),
    ],
)
def test_search_finds_the_lines(filled: Path, text: str, wanted: dict[str, object], expected: list[str]) -> None:
    assert texts(filled, text, **wanted) == expected


def test_the_command_prints_lines_with_their_hosts(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert archive.main([str(filled), "/n", "--host", "web-01"]) == 0
    assert capsys.readouterr().out == "web-01 GET /next\n"
    assert archive.main([str(filled / "day=2015-05-18")]) == 1
    assert "has no archived lines from the first day to the last day" in capsys.readouterr().err
    assert archive.main([str(filled / "nothing")]) == 1
    assert f"there is no directory {filled / 'nothing'}" in capsys.readouterr().err


def test_a_time_that_is_none_is_refused(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="since='yesterday'"):
        texts(filled, since="yesterday")
    assert archive.main([str(filled), "--until", "13"]) == 1
    assert "until='13': must be a date or a time such as 2015-05-18 or 2015-05-18T08:00" in capsys.readouterr().err


def test_a_search_beside_a_retention_finds_what_is_left(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    connect = duckdb.connect

    def late(*given: object) -> duckdb.DuckDBPyConnection:
        """The retention comes between the look at the directory and the read."""
        archive.delete_old(filled, 1)
        return connect(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(duckdb, "connect", late)
    assert texts(filled) == ["GET /next"]


def test_a_negative_limit_is_refused(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        archive.main([str(filled), "--limit", "-1"])
    assert ended.value.code == 2
    assert "--limit: -1: must be a whole number, 0 or more" in capsys.readouterr().err


# -- hosts -------------------------------------------------------------------------------------------------------------


def test_forty_hosts_write_all_lines_in_order_over_rotated_files(tmp_path: Path) -> None:
    lines = host_lines(web_log())
    expected: dict[str, list[bytes]] = defaultdict(list)
    for line in lines:
        expected[line.host].append(line.text)
    assert (len(lines), len(expected)) == (10_000, HOSTS)
    hosts = Hosts(tmp_path, lines, speed=1e9)
    hosts.prepare()
    hosts.start()
    hosts.result()
    assert hosts.written == len(lines)
    for host, texts_of in expected.items():
        rotated = sorted((tmp_path / host).glob(f"{FILE}.*"), key=lambda path: -int(path.name.split(".")[-1]))
        files = [*rotated, tmp_path / host / FILE]
        assert b"".join(path.read_bytes() for path in files).splitlines() == texts_of
        assert all(path.read_bytes().count(b"\n") <= ROTATE_LINES for path in files)
    assert len(list(tmp_path.rglob(f"{FILE}.*"))) > 40, "files rotate"


def test_a_second_thread_writes_only_what_is_missing(tmp_path: Path) -> None:
    lines = host_lines(web_log())
    for part in (lines[:3_333], lines):
        hosts = Hosts(tmp_path, part, speed=1e9)
        hosts.prepare()
        hosts.start()
        hosts.result()
    written = sum(path.read_bytes().count(b"\n") for path in tmp_path.rglob(f"{FILE}*"))
    assert written == len(lines)


def test_the_sick_host_fails_for_half_a_day() -> None:
    failed = [line for line in host_lines(web_log()) if b'" 503 ' in line.text]
    assert len(failed) >= 10
    assert {line.host for line in failed} == {SICK_HOST}
    hours = [datetime.fromtimestamp(line.time_ms / 1000, UTC) for line in failed]
    assert (min(hours).isoformat()[:13], max(hours).isoformat()[:13]) >= ("2015-05-18T08", "2015-05-18T08")
    assert max(hours) < datetime(2015, 5, 18, 20, tzinfo=UTC)


def test_rotation_renames_and_never_copies(tmp_path: Path) -> None:
    path = tmp_path / FILE
    inodes = []
    for number in range(3):
        path.write_text(f"{number}\n")
        inodes.append(path.stat().st_ino)
        rotate(path)
    assert [(tmp_path / f"{FILE}.{number}").read_text() for number in (1, 2, 3)] == ["2\n", "1\n", "0\n"]
    assert [(tmp_path / f"{FILE}.{number}").stat().st_ino for number in (3, 2, 1)] == inodes
    assert path.read_bytes() == b""


def test_the_schema_of_an_archived_file_has_the_time_in_utc(filled: Path) -> None:
    (path, *_) = sorted(filled.rglob("*.parquet"))
    assert pq.read_schema(path).field("time").type == pa.timestamp("us", "UTC")
