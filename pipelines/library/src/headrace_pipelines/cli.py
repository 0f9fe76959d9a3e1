"""The command ``headrace-pipelines``: list, run, watch and stop pipelines, replay dead letters, run the SQL shell."""

from __future__ import annotations

import argparse
import errno
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_tools.cli.times import time_ms

from . import access, commands
from .errors import StoppedError
from .registry import Pipeline, pipelines
from .runs import recorded
from .show import Show
from .sql import command as sql
from .stopping import EXIT_CODE, Stop

SUMMARY, DETAILS = "summary.json", "details.json"
#: The commands that take the name of a pipeline, with their help texts.
_NAMED = {
    "run": "run a pipeline to its end, or until it is stopped",
    "status": "show the run of a pipeline, and the checkpoint and lag of each query",
    "stop": "stop a running pipeline after its batches",
    "replay": "send dead letters of a pipeline to their source topics again, each once",
}


def main(words: list[str] | None = None, *, begin: Callable[[], object] = lambda: None) -> int:
    """Run the command; returns its exit code. ``begin`` is called after the imports, before the command starts."""
    words = _joined(sys.argv[1:] if words is None else words)
    known = pipelines()
    parser = _parser(words, known)
    if (unknown := _unknown(words, known)) is not None:
        parser.error(unknown)
    arguments = parser.parse_args(words)
    try:
        begin()
        match arguments.command:
            case "list":
                return _list(known, arguments.output)
            case "new":
                return commands.new(arguments)
            case "pack":
                return commands.pack(arguments)
            case "sql":
                return sql.main(arguments)
            case "run":
                return _run(known[arguments.name], arguments)
            case "status":
                return commands.status(known[arguments.name], arguments)
            case "stop":
                return commands.stop(known[arguments.name], arguments)
            case _:
                return commands.replay(known[arguments.name], arguments)
    except HeadraceError as error:
        name = getattr(arguments, "name", arguments.command)
        print(f"headrace-pipelines: {name}: {error.code}: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        if (why := _place_fault(error, getattr(arguments, "out", None))) is None:
            raise
        print(f"headrace-pipelines: {getattr(arguments, 'name', arguments.command)}: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _ends_with(out: Path, summary: dict[str, Any]) -> None:
    line = json.dumps(summary)
    (out / SUMMARY).write_text(line + "\n")
    print(line, flush=True)


def _place_fault(error: OSError, out: Path | None) -> str | None:
    """The message for a directory of a run that cannot be written: a full disk, a missing permission, or a file of the
    same name. None for any error that does not concern the directory."""
    if out is None:
        return None
    place = Path(error.filename).absolute() if isinstance(error.filename, str) and error.filename else None
    is_there = place is not None and (out.absolute().is_relative_to(place) or place.is_relative_to(out.absolute()))
    if not is_there and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return None
    at = str(place) if is_there else str(out)
    return (
        f"cannot write to {at}: {error.strerror}; free space or change the permissions there, or choose another "
        "directory with --out"
    )


def _joined(words: list[str]) -> list[str]:
    """Replace ``--from -2h`` by ``--from=-2h``, because argparse takes a separate ``-2h`` for a flag."""
    if "--from" not in words[:-1]:
        return words
    at = words.index("--from")
    return [*words[:at], f"--from={words[at + 1]}", *words[at + 2 :]]


def _unknown(words: list[str], known: Mapping[str, Pipeline]) -> str | None:
    """The message for an unknown pipeline. If a directory has this name, the message says what the directory lacks."""
    if len(words) < 2 or words[0] not in _NAMED or words[1].startswith("-") or words[1] in known:
        return None
    name = words[1]
    message = f"{words[0]}: there is no pipeline {name!r}; the pipelines are {', '.join(known)}. "
    if Path(name).is_dir():
        return f"{message}The directory {name} is not a pipeline: it needs job.py, and __init__.py with a docstring"
    return f"{message}A pipeline of your own is a package in the working directory: `headrace-pipelines new NAME`"


def _parser(words: list[str], known: Mapping[str, Pipeline]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace-pipelines", description="Pipelines on Headrace and Spark.")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = subcommands.add_parser("list", help="list the pipelines of the library and of the working directory")
    _add_output(listing)
    making = subcommands.add_parser("new", help="make a pipeline with a test in the working directory")
    making.add_argument("name", metavar="NAME", help="name of the new package and of its source topic")
    packing = subcommands.add_parser("pack", help="pack the Python packages that Spark's executors need into one file")
    packing.add_argument("file", type=Path, metavar="FILE", help="the archive to write; its name ends with .tar.gz")
    packing.add_argument(
        "packages",
        type=Path,
        nargs="*",
        metavar="PACKAGE",
        help="directory of your own package, such as a pipeline",
    )
    _add_output(packing)
    sql.add_arguments(subcommands.add_parser("sql", help=sql.ABOUT, description=sql.ABOUT))
    for command, about in _NAMED.items():
        sentence = f"{about[0].upper()}{about[1:]}."
        flags = f"To see the flags: headrace-pipelines {command} NAME --help"
        named_parser = subcommands.add_parser(command, help=about, description=sentence, epilog=flags)
        names = named_parser.add_subparsers(dest="name", required=True, metavar="NAME")
        for pipeline in known.values():
            described = f"{sentence} The pipeline {pipeline.name}: {pipeline.about}."
            named = names.add_parser(pipeline.name, help=pipeline.about, description=described)
            named.add_argument(
                "--out", type=Path, metavar="DIR", default=Path("build/pipelines") / pipeline.name,
                help="directory of the run: summary, pictures, checkpoints, cluster (%(default)s)",
            )  # fmt: skip
            _add_output(named)
            if command == "run" and words[:2] == ["run", pipeline.name]:  # import Spark only for this command
                pipeline.job().add_arguments(named)
            elif command == "stop":
                named.add_argument(
                    "--timeout", type=float, default=commands.STOP_S, metavar="SECONDS",
                    help="seconds to wait for the end of the run (default %(default)g)",
                )  # fmt: skip
            elif command in ("status", "replay"):
                access.add_arguments(named, "the cluster of the run")
            if command == "replay":
                _add_replay(named)
    return parser


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="from_ms", type=_time, default=0, metavar="TIME",
        help="replay only dead letters written since TIME: 2026-11-21T08:00:00 (UTC), -2h (two hours ago), or "
        "milliseconds; needs --skip-older if older dead letters are not replayed yet",
    )  # fmt: skip
    parser.add_argument(
        "--skip-older",
        action="store_true",
        help="with --from: skip older dead letters, in this replay and in later replays",
    )
    parser.add_argument(
        "--tries-max", type=int, default=3, metavar="N", help="replay a record at most N times (default %(default)s)"
    )


def _time(text: str) -> int:
    try:
        return time_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text",
        help="json: one JSON document on stdout, progress on stderr",
    )  # fmt: skip


def _list(known: Mapping[str, Pipeline], output: str) -> int:
    if output == "json":
        print(json.dumps([{"name": each.name, "about": each.about} for each in known.values()]))
        return 0
    width = max(map(len, known))
    for each in known.values():
        print(f"{each.name:{width}}  {each.about}")
    return 0


def _run(pipeline: Pipeline, arguments: argparse.Namespace) -> int:
    # pyspark warns of pandas 3, with which it was not tested; the pipelines use no pandas.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    stop = Stop()
    stop.listen()
    show = Show(on_stderr=arguments.output == "json")
    out: Path = arguments.out.resolve()
    own = {"command", "name", "out", "output", "master", "restart", *access.PRIVATE}
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in vars(arguments).items() if name not in own}
    if "bootstrap_servers" in arguments and (servers := access.named_servers(arguments)) is not None:
        flags["--bootstrap-servers"] = servers  # the file of --command-config, or -X, may name the servers
    restart = getattr(arguments, "restart", False)
    try:
        with recorded(out, pipeline.name, flags, restart=restart) as ends:
            try:
                outcome = pipeline.job().run(arguments, out, show, stop)
            except StoppedError as stopped:
                ends("stopped")
                show.line(stopped.message)
                _ends_with(out, {"pipeline": pipeline.name, "stopped": True, **stopped.progress})
                return EXIT_CODE
            except HeadraceError as error:
                print(f"headrace-pipelines: {pipeline.name} failed: {error.code}: {error.message}", file=sys.stderr)
                return 1
            (out / DETAILS).write_text(json.dumps(outcome.details, indent=2) + "\n")
            _ends_with(out, outcome.summary)
            ends("done")
            return 0
    except KeyboardInterrupt:
        show.line("interrupted: the processes of the run are stopped")
        return 130
