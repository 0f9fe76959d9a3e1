"""Writers of lake tables in processes of their own, which are killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.integration.pipelines.test_lake_tables import keys_of, opened

WRITER = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from headrace_pipelines.tables.table import Batch
kind, directory, dies_after = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
if kind == "delta":
    from headrace_pipelines.tables.delta import DeltaLakeTable
    table = DeltaLakeTable(directory / "delta" / "t")
else:
    from headrace_pipelines.tables.iceberg import IcebergTable, local_catalog
    table = IcebergTable(local_catalog(directory / "iceberg"), "lake.t")
done = directory / "done"                               # what Spark's commit log is: written after the batch
first = int(done.read_text()) + 1 if done.exists() else 0
for number in range(first, 10_000):
    rows = pa.table({"k": range(10 * number, 10 * number + 10), "v": [number] * 10})
    batch = Batch("q", number)
    print(number, table.merge(rows, ["k"], batch) if number % 3 == 2 else table.append(rows, batch), flush=True)
    if number == dies_after:
        os.kill(os.getpid(), signal.SIGKILL)            # the table has the batch, and the log does not
    (directory / "done.new").write_text(str(number))
    (directory / "done.new").replace(done)              # a kill between truncation and write would leave it empty
"""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_writer_killed_at_any_point_loses_and_repeats_nothing(kind: str, tmp_path: Path) -> None:
    """The writer is killed right after a commit, and then at random points of a write. Each restart repeats the batch
    that the writer's log lacks."""
    random = Random(kind)
    repeated = 0
    for dies_after in (4, -1, -1):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, kind, str(tmp_path), str(dies_after)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            said = []
            for line in writer.stdout:
                said.append(line.split()[1])
                if dies_after < 0 and len(said) == 4:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        writer.wait(random.uniform(0, 0.05))
                    writer.kill()
            assert writer.wait() == -signal.SIGKILL
        assert set(said[1:]) == {"True"}, "only the first batch of a driver may be a repeated one"
        repeated += said[0] == "False"
    assert repeated, "the kill right after a commit made the next driver repeat the batch"
    table = opened(kind, tmp_path)
    found = keys_of(table)
    last = int((tmp_path / "done").read_text())
    assert found in (list(range(10 * last + 10)), list(range(10 * last + 20)))
