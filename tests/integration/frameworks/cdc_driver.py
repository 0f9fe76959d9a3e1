"""The driver of the query ``replica``: python cdc_driver.py BOOTSTRAP DIRECTORY TOPIC|KEY=VALUE...

The driver runs until the file DIRECTORY/finish exists, processes what the topics then have, and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace_pipelines.cdc.replica import QUERY, replicate
from headrace_pipelines.lake.lakes import lakes
from headrace_pipelines.local_spark import local_spark
from headrace_pipelines.queries import LOOK_S, Queries
from headrace_pipelines.sites import Site
from headrace_pipelines.stopping import Stop


def main(servers: str, directory: Path, rest: Sequence[str]) -> None:
    topics = [each for each in rest if "=" not in each]
    keys = dict(each.split("=", 1) for each in rest if "=" in each)  # client keys, such as schema.registry.url
    pause = Stop()
    with local_spark("cdc driver") as spark:
        query = replicate(spark, Site("cdc", servers, directory, keys=keys), topics, lakes(directory))
        with Queries({QUERY: query}) as queries:
            while not (directory / "finish").exists():
                queries.look()
                pause.wait(LOOK_S)
            queries.drain([QUERY], lambda: True)
            queries.stop_after_batch()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
