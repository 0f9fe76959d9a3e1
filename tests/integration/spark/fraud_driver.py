"""A driver for test_fraud.py: the fraud pipeline's query alone, until it has read as many records as DIRECTORY/records
says and its last timers have fired.

    fraud_driver.py BOOTSTRAP DIRECTORY

After each look the driver writes the sum of the offsets that are behind the query to DIRECTORY/position.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from headrace_pipelines.fraud.detector import ACCOUNT_WAIT_MS
from headrace_pipelines.fraud.job import QUERY, Job
from headrace_pipelines.local_spark import local_spark
from headrace_pipelines.places import Places
from headrace_pipelines.queries import LOOK_S
from headrace_pipelines.show import Show
from headrace_pipelines.stopping import Stop
from headrace_spark import low_latency_session


def main() -> None:
    bootstrap, directory = sys.argv[1], Path(sys.argv[2])
    with local_spark("headrace fraud", low_latency_session) as spark:
        job = Job(spark, bootstrap, Places(directory), Show(), Stop())
        with job.start() as queries:
            read_s: float | None = None
            while read_s is None or queries.progress[QUERY].began_s < read_s + ACCOUNT_WAIT_MS / 1000:
                queries.look()
                position = behind(queries.last(QUERY))
                (directory / "position").write_text(str(position))
                total = directory / "records"
                if read_s is None and total.exists() and position >= int(total.read_text()):
                    read_s = time.time()
                time.sleep(LOOK_S)


def behind(progress: dict[str, Any] | None) -> int:
    """The sum of the offsets at which the last batch ended."""
    end = None if progress is None else progress["sources"][0]["endOffset"]
    if isinstance(end, str):
        end = json.loads(end)
    return sum(offset for partitions in (end or {}).values() for offset in partitions.values())


if __name__ == "__main__":
    main()
