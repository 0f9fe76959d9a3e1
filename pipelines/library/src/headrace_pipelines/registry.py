"""The pipelines that ``headrace-pipelines`` knows."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from .outcome import Outcome
from .show import Show
from .stopping import Stop


class Job(Protocol):
    """The interface of a pipeline's module. ``SOURCES``: the topics whose bad records become dead letters."""

    SOURCES: Sequence[str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the pipeline's own flags."""

    def run(self, arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
        """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline. ``module`` is a Job, or has the function ``start`` (jobs.py)."""

    name: str
    about: str
    module: str

    def job(self) -> Job:
        """The job; imports Spark."""
        if str(Path.cwd()) not in sys.path:  # put the directory last, so that no file there hides an installed module
            sys.path.append(str(Path.cwd()))
        module = importlib.import_module(self.module)
        if not hasattr(module, "start"):
            return cast(Job, module)
        from .jobs import StreamingJob

        return StreamingJob(self.name, module)


#: The pipelines of the library.
LIBRARY = (
    Pipeline(
        "clickstream",
        "a real web log by its own clock: requests, visits, top pages, funnel, conversions",
        "headrace_pipelines.clickstream.job",
    ),
    Pipeline(
        "fraud",
        "payments with planted fraud: alerts exactly once, precision and recall against the truth",
        "headrace_pipelines.fraud.job",
    ),
    Pipeline(
        "lake",
        "flights, weather and planes to bronze, silver and gold tables, in Delta Lake and Iceberg",
        "headrace_pipelines.lake.job",
    ),
    Pipeline(
        "cdc",
        "tables of PostgreSQL as lake tables, row by row: Debezium, inserts, updates, deletes, a new column",
        "headrace_pipelines.cdc.job",
    ),
    Pipeline(
        "logs",
        "files of forty hosts, shipped exactly once: error rates, alerts, an archive with search",
        "headrace_pipelines.logs.job",
    ),
    Pipeline(
        "telemetry",
        "10,000 devices: three grains, alarms of silent devices by timers, twins in a compacted topic",
        "headrace_pipelines.telemetry.job",
    ),
    Pipeline(
        "orders",
        "event sourcing: commands, events, tables in SQLite or PostgreSQL, and their rebuild beside the live ones",
        "headrace_pipelines.orders.job",
    ),
    Pipeline(
        "scaling",
        "a growing lag: members, partitions, batches, concurrency, a cache, an autoscaler, beside a Spark job",
        "headrace_pipelines.scaling.job",
    ),
)


def pipelines() -> Mapping[str, Pipeline]:
    """The pipelines of the library, and the packages in the working directory that have ``job.py`` and a docstring. The
    first line of the docstring says what the pipeline does."""
    found = {pipeline.name: pipeline for pipeline in LIBRARY}
    for job in sorted(Path.cwd().glob("*/job.py")):
        package = job.parent
        if not package.name.isidentifier() or not (package / "__init__.py").exists():
            continue
        try:
            about = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
        except (SyntaxError, UnicodeDecodeError):
            continue
        if about and package.name not in found:
            found[package.name] = Pipeline(package.name, about.splitlines()[0], f"{package.name}.job")
    return found
