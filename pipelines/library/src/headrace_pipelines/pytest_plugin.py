"""pytest fixtures for streaming jobs; installed with the package, and imported at first use.

    def test_my_job(pipeline_harness):
        pipeline_harness.topic("clicks")

``pipeline_harness``: a Harness on the cluster of the fixture ``headrace``, with topics and checkpoints of its own.
``pipeline_spark``: the Spark session of all tests of this process.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Harness


@pytest.fixture(scope="session")
def pipeline_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark session in UTC with ``format("headrace")``; if a session is already active, that session is
    returned unchanged."""
    from pyspark.sql import SparkSession

    from headrace_spark import session

    from .jobs import SETTINGS

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    spark = session("pipelines", master="local[2]", **SETTINGS, **warehouse)
    yield spark
    spark.stop()


@pytest.fixture
def pipeline_harness(pipeline_spark: Any, headrace: Any, tmp_path: Path) -> Harness:
    """A Harness with its own topics and checkpoints."""
    from .sites import Site
    from .testing import Harness

    prefix = f"{secrets.token_hex(4)}-"
    return Harness(pipeline_spark, Site("tests", headrace.bootstrap_servers, tmp_path / "site", prefix, ends=True))
