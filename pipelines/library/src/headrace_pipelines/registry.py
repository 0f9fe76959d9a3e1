"""The pipelines that ``headrace-pipelines`` knows."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from .show import Show
from .stopping import Stop


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found. ``summary`` is the last line of the output and summary.json; ``details`` is details.json."""

    summary: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)


class Job(Protocol):
    """The functions that the module of a pipeline must have."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the pipeline's own flags."""

    @staticmethod
    def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
        """Run to the end. Raises HeadraceError, and StoppedError after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline of the library. ``module`` names a module with the functions of Job."""

    name: str
    about: str
    module: str

    def job(self) -> Job:
        """The module; imports Spark."""
        return cast(Job, importlib.import_module(self.module))


PIPELINES: Mapping[str, Pipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        Pipeline(
            "clickstream",
            "a real web log by its own clock: requests, visits, top pages, funnel, conversions",
            "headrace_pipelines.clickstream.job",
        ),
    )
}
