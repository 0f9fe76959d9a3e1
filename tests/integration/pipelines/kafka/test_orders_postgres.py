"""The tables of the pipeline orders in PostgreSQL: a whole run, and readers during a rebuild."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_pipelines.cdc.postgres import Postgres
from headrace_pipelines.orders.database import Database
from tests.worlds.pipelines_world import Run

#: Not Kafka, but PostgreSQL is in CI only where Kafka is.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Postgres(tmp_path / "postgres.log") as postgres:
        yield f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"


def test_a_run_with_postgresql_has_every_row_and_readers_see_no_older_state(
    headrace: Any, url: str, tmp_path: Path
) -> None:
    flags = ["--bootstrap-servers", headrace.bootstrap_servers, "--database", url, "--orders", "600"]
    sums: list[int] = []
    generations: set[int | None] = set()
    ended = threading.Event()

    def read() -> None:
        with Database(url) as database:
            while not ended.is_set():
                with database.reading():
                    generation = database.generation()
                    generations.add(generation)
                    if generation is not None:
                        ((found,),) = database.rows("SELECT SUM(version) FROM orders")
                        sums.append(int(found or 0))

    reader = threading.Thread(target=read)
    reader.start()  # before the run: on a fast machine the first generation is short
    run = Run("orders", tmp_path, flags)
    try:
        summary = run.summary()  # the run compares every row with the commands
    finally:
        ended.set()
        run.kill()
        reader.join(60)
    assert (summary["orders"], summary["generation"]) == (600, 2)
    assert generations >= {1, 2}
    assert sums == sorted(sums)
    assert sums[-1] == summary["events"]
