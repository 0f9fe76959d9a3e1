"""The archive of all requests: Parquet by day, each batch once, with retention; and search in it with DuckDB.

    DIR/archive/day=2015-05-18/batch-000003.parquet

A batch writes one file for each of its days. The file's name contains the number of the batch; the file gets this name
only when it is complete. Spark repeats a batch that failed with the same number and the same rows, so a repeated batch
replaces its own files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from headrace_core.errors import InvalidArgumentError

from ..places import whole

#: Maximum number of lines that a search prints, unless --limit says otherwise.
LIMIT = 20


def write_batch(archive: Path, keep_days: int) -> Callable[[DataFrame, int], None]:
    """The function for ``foreachBatch``: ``rows`` has the columns of a request. ``keep_days``: 0 keeps all days."""

    def write(rows: DataFrame, batch: int) -> None:
        put(archive, rows.where("host IS NOT NULL").toArrow(), batch, keep_days)

    return write


def put(archive: Path, rows: pa.Table, batch: int, keep_days: int) -> None:
    """Write a batch, then delete the days that are older than the newest ``keep_days`` days of the archive."""
    days = pc.strftime(rows["time"], format="%Y-%m-%d")
    for day in sorted(day.as_py() for day in days.unique()):
        directory = archive / f"day={day}"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"batch-{batch:06}.parquet"
        part = rows.filter(pc.equal(days, day)).sort_by([("host", "ascending"), ("time", "ascending")])
        new = path.with_suffix(".new")
        pq.write_table(part, new, compression="zstd")
        os.replace(new, path)
    if keep_days:
        delete_old(archive, keep_days)


def delete_old(archive: Path, keep_days: int) -> list[str]:
    """Delete the old days; returns their names."""
    days = sorted(path.name.removeprefix("day=") for path in archive.glob("day=*"))
    if not days:
        return []
    newest = date.fromisoformat(days[-1]).toordinal()
    oldest = date.fromordinal(max(1, newest - keep_days + 1)).isoformat()
    old = [day for day in days if day < oldest]
    for day in old:
        shutil.rmtree(archive / f"day={day}")
    return old


def count(archive: Path) -> dict[str, int]:
    """The number of rows of each day."""
    return {
        directory.name.removeprefix("day="): sum(
            pq.read_metadata(path).num_rows for path in directory.glob("*.parquet")
        )
        for directory in sorted(archive.glob("day=*"))
    }


def search(
    archive: Path,
    text: str = "",
    *,
    host: str = "",
    status: int = 0,
    since: str = "",
    until: str = "",
    limit: int = LIMIT,
) -> Iterator[tuple[Any, ...]]:
    """Rows (time, host, status, text) whose line contains ``text``, in the order of their times. ``since`` and
    ``until``: ISO 8601, in UTC unless they have an offset; the search reads only the days between ``since`` and
    ``until``. A pipeline may write the archive during the search. Raises InvalidArgumentError."""
    import duckdb

    first, last = _time("since", since), _time("until", until)
    files = sorted(str(path) for path in archive.glob("day=*/*.parquet") if _is_near(path, first, last))
    if not archive.is_dir():
        raise InvalidArgumentError(f"there is no directory {archive}; a run of `logs` writes DIR/archive")
    if not files:
        between = f"from {since or 'the first day'} to {until or 'the last day'}"
        raise InvalidArgumentError(f"{archive} has no archived lines {between}")
    wanted: list[tuple[str, Any]] = [("contains(text, ?)", text)] if text else []
    wanted += [("host = ?", host)] if host else []
    wanted += [("status = ?", status)] if status else []
    wanted += [("time >= ?", first)] if first else []
    wanted += [("time < ?", last)] if last else []
    where = " AND ".join(condition for condition, _ in wanted) or "TRUE"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            found = connection.execute(
                f"SELECT CAST(time AS TIMESTAMP) AS time, host, status, text FROM read_parquet(?) WHERE {where} "
                "ORDER BY time, host, text LIMIT ?",
                [files, *(value for _, value in wanted), limit],
            ).fetchall()
        except duckdb.IOException:
            if all(os.path.exists(file) for file in files):
                raise
            found = None  # retention has deleted a day during the search
    if found is None:
        yield from search(archive, text, host=host, status=status, since=since, until=until, limit=limit)
    else:
        yield from found


def _time(name: str, value: str) -> datetime | None:
    """The time in UTC; None for an empty text. Raises InvalidArgumentError."""
    if not value:
        return None
    try:
        time = datetime.fromisoformat(value)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{name}={value!r}: must be a date or a time such as 2015-05-18 or 2015-05-18T08:00"
        ) from None


def _is_near(path: Path, first: datetime | None, last: datetime | None) -> bool:
    day = path.parent.name.removeprefix("day=")
    return (not first or day >= first.date().isoformat()) and (not last or day <= last.date().isoformat())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace_pipelines.logs.archive", description="Search the archive of the pipeline logs."
    )
    parser.add_argument("archive", type=Path, help="the directory of the archive, such as build/pipelines/logs/archive")
    parser.add_argument("text", nargs="?", default="", help="only lines that contain this text")
    parser.add_argument("--host", default="", help="only lines of this host, such as web-07")
    parser.add_argument("--status", type=int, default=0, help="only lines with this HTTP status, such as 503")
    parser.add_argument(
        "--since", default="", metavar="TIME", help="only lines from this time on, such as 2015-05-18T08:00 (UTC)"
    )
    parser.add_argument("--until", default="", metavar="TIME", help="only lines before this time")
    parser.add_argument("--limit", type=whole, default=LIMIT, help="maximum number of lines (default %(default)s)")
    given = parser.parse_args(arguments)
    try:
        for _, host, _, text in search(**vars(given)):
            print(f"{host} {text}")
    except InvalidArgumentError as error:
        print(f"search: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
