"""The command ``headrace-pipelines``: list the pipelines, and run one."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

from headrace_core.errors import HeadraceError

from .errors import StoppedError
from .registry import PIPELINES, Pipeline
from .show import Show
from .stopping import EXIT_CODE, Stop

SUMMARY, DETAILS = "summary.json", "details.json"


def main(words: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = sys.argv[1:] if words is None else words
    arguments = _parser(words).parse_args(words)
    if arguments.command == "list":
        return _list(arguments.output)
    return _run(PIPELINES[arguments.name], arguments)


def _parser(words: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace-pipelines", description="Pipelines on Headrace and Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the pipelines of the library")
    _add_output(listing)
    running = commands.add_parser("run", help="run a pipeline to its end")
    names = running.add_subparsers(dest="name", required=True, metavar="NAME")
    for pipeline in PIPELINES.values():
        named = names.add_parser(pipeline.name, help=pipeline.about, description=pipeline.about)
        named.add_argument(
            "--out", type=Path, metavar="DIR", default=Path("build/pipelines") / pipeline.name,
            help="directory of the summary, the pictures, the checkpoints and the cluster (%(default)s)",
        )  # fmt: skip
        _add_output(named)
        if pipeline.name in words:  # only then import Spark
            pipeline.job().add_arguments(named)
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text",
        help="json: one JSON document on stdout, progress on stderr",
    )  # fmt: skip


def _list(output: str) -> int:
    if output == "json":
        print(json.dumps([{"name": each.name, "about": each.about} for each in PIPELINES.values()]))
        return 0
    width = max(map(len, PIPELINES))
    for each in PIPELINES.values():
        print(f"{each.name:{width}}  {each.about}")
    return 0


def _run(pipeline: Pipeline, arguments: argparse.Namespace) -> int:
    # pandas 3 is newer than pyspark's own tests; the pipelines use no pandas.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    stop = Stop()
    stop.listen()
    show = Show(on_stderr=arguments.output == "json")
    out: Path = arguments.out.resolve()
    try:
        outcome = pipeline.job().run(arguments, out, show, stop)
    except KeyboardInterrupt:
        show.line("interrupted: Spark and the cluster are stopped")
        return 130
    except StoppedError as stopped:
        show.line(stopped.message)
        print(json.dumps({"pipeline": pipeline.name, "stopped": True, **stopped.progress}), flush=True)
        return EXIT_CODE
    except HeadraceError as error:
        print(f"headrace-pipelines: {pipeline.name} failed: {error.code}: {error.message}", file=sys.stderr)
        return 1
    (out / DETAILS).write_text(json.dumps(outcome.details, indent=2) + "\n")
    line = json.dumps(outcome.summary)
    (out / SUMMARY).write_text(line + "\n")
    print(line, flush=True)
    return 0
