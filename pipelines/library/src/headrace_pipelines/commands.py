"""``headrace-pipelines status``, ``stop``, ``replay``, ``new`` and ``pack``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import keyword
import signal
import sys
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from headrace import Admin
from headrace_core.errors import HeadraceError, InvalidArgumentError
from headrace_tools.cli.output import print_table

from .access import Access, access_of, named_servers
from .checkpoints import Checkpoint, checkpoints
from .lags import TIMEOUT_S, Lag, lags
from .registry import LIBRARY, Pipeline
from .runs import Run, find

#: Seconds that ``stop`` waits for the end of a run: batches end, Spark and the cluster stop.
STOP_S = 180.0
#: The name of the package that ``new`` copies.
_SKELETON = "skeleton"
_COLUMNS = ("QUERY", "BATCH", "POSITION", "BEHIND", "LAG", "WATERMARK", "STATE", "CHECKPOINT")


def status(pipeline: Pipeline, arguments: argparse.Namespace) -> int:
    """Print the run, and the checkpoint and lag of each query."""
    out: Path = arguments.out.resolve()
    run = _run_of(pipeline, out)
    found = checkpoints(out / "checkpoints")
    behind = _lags(_access(pipeline, run, arguments), pipeline.name, [each.query for each in found])
    if arguments.output == "json":
        print(json.dumps(_document(pipeline.name, run, found, behind)))
        return 0
    print(_heading(pipeline.name, out, run))
    if found:
        print_table(_COLUMNS, [_row(each, behind.get(each.query)) for each in found])
    return 0


def _run_of(pipeline: Pipeline, out: Path) -> Run | None:
    run = find(out)
    if run is not None and run.pipeline != pipeline.name:
        raise InvalidArgumentError(
            f"{out} has a run of {run.pipeline}, not of {pipeline.name}; use the command with "
            f"{run.pipeline}, or give another directory with --out"
        )
    return run


def _access(pipeline: Pipeline, run: Run | None, arguments: argparse.Namespace) -> Access | None:
    """The cluster that the flags name, otherwise the cluster of the run; None if there is none.

    A cluster that a run has started ends with the run, and has no logins. The command ignores keys in the environment
    for such a cluster.
    """
    if (servers := named_servers(arguments)) is not None:
        return access_of(arguments, servers)
    if run is None or run.bootstrap_servers is None:
        return None
    if pipeline in LIBRARY and run.flags.get("--bootstrap-servers", "None") == "None":
        return Access(run.bootstrap_servers) if run.state == "running" else None
    return access_of(arguments, run.bootstrap_servers)


def _lags(access: Access | None, pipeline: str, queries: list[str]) -> dict[str, Lag]:
    if access is None or not queries:
        return {}
    try:
        with Admin(access.admin() | {"default.api.timeout.ms": str(int(TIMEOUT_S * 1000))}) as admin:
            return lags(admin, pipeline, queries)
    except HeadraceError as error:
        print(f"headrace-pipelines: the consumer lags of the queries are unknown: {error.message}", file=sys.stderr)
        return {}


def _document(name: str, run: Run | None, found: list[Checkpoint], behind: dict[str, Lag]) -> dict[str, Any]:
    queries = []
    for each in found:
        lag = behind.get(each.query)
        records, seconds = (None, None) if lag is None else (lag.records, lag.seconds)
        queries.append(each.document() | {"lag_records": records, "lag_s": seconds})
    return {
        "pipeline": name,
        "state": run.state if run is not None else None,
        "pid": run.process.pid if run is not None and run.state == "running" else None,
        "bootstrap_servers": run.bootstrap_servers if run is not None else None,
        "began_ms": run.began_ms if run is not None else None,
        "ended_ms": run.ended_ms if run is not None else None,
        "queries": queries,
    }


def _heading(name: str, out: Path, run: Run | None) -> str:
    if run is None:
        return f"{name}: no run in {out}"
    text = f"{name}: {run.state}, began {_time(run.began_ms)}"
    if run.state == "running":
        return f"{text}, pid {run.process.pid}, cluster {run.bootstrap_servers or 'is starting'}"
    return text if run.ended_ms is None else f"{text}, ended {_time(run.ended_ms)}"


def _row(each: Checkpoint, lag: Lag | None) -> tuple[str, ...]:
    return (
        each.query,
        "-" if each.batch is None else str(each.batch),
        str(each.position),
        "-" if lag is None else str(lag.records),
        "-" if lag is None or lag.seconds is None else f"{lag.seconds:.1f} s",
        "-" if each.watermark_ms is None else _time(each.watermark_ms),
        f"{each.state_bytes / 1e6:.1f} MB",
        str(each.directory),
    )


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def stop(pipeline: Pipeline, arguments: argparse.Namespace) -> int:
    """Send SIGTERM to the process of the run, and wait until it has ended."""
    out: Path = arguments.out.resolve()
    run = _run_of(pipeline, out)
    if run is None or run.state != "running" or not run.process.signal(signal.SIGTERM):
        raise InvalidArgumentError(f"no pipeline runs in {out}; give the directory of the run with --out")
    if arguments.output == "text":
        print(f"{pipeline.name}: asked process {run.process.pid} to stop after its batches", file=sys.stderr)
    if not run.process.wait(arguments.timeout):
        raise InvalidArgumentError(
            f"process {run.process.pid} has not ended within {arguments.timeout:g} s; it stops when its batches end"
        )
    ended = find(out) or run
    if arguments.output == "json":
        print(json.dumps(_document(pipeline.name, ended, checkpoints(out / "checkpoints"), {})))
    else:
        print(_heading(pipeline.name, out, ended))
    return 0


def replay(pipeline: Pipeline, arguments: argparse.Namespace) -> int:
    """Replay the dead letters of the pipeline's source topics; print what happened to them."""
    from .dead_letters import dead_letter_topic
    from .replays import DeadLetter, waiting_before
    from .replays import replay as replayed

    run = _run_of(pipeline, arguments.out.resolve())
    access = _access(pipeline, run, arguments)
    sources = pipeline.job().SOURCES
    if not sources:
        raise InvalidArgumentError(f"{pipeline.name} has no dead-letter topics, so there is nothing to replay")
    if access is None:
        raise InvalidArgumentError(
            f"no pipeline runs in {arguments.out}; give --bootstrap-servers, or the directory of a run with --out (a "
            "cluster that a run has started ends with the run)"
        )
    from_ms: int = arguments.from_ms

    def is_wanted(letter: DeadLetter) -> bool:
        return letter.written_ms >= from_ms

    with Admin(access.admin()) as admin:
        there = set(admin.list_topics())
    topics = [dead_letter_topic(topic) for topic in sources]
    older = {
        topic: waiting_before(topic, from_ms, bootstrap_servers=access.servers, keys=access.keys)
        for topic in topics
        if from_ms and topic in there
    }
    if (count := sum(older.values())) and not arguments.skip_older:
        raise InvalidArgumentError(
            f"{count} dead letters from before --from are not replayed yet, and later replays would skip "
            "them; leave out --from to replay them too, or add --skip-older"
        )
    document = {
        topic: dataclasses.asdict(
            replayed(
                topic, bootstrap_servers=access.servers, keys=access.keys, tries_max=arguments.tries_max, only=is_wanted
            )
        )
        for topic in topics
        if topic in there
    }
    if arguments.output == "json":
        print(json.dumps(document))
        return 0
    for topic in topics:
        counts = document.get(topic)
        figures = "no such topic" if counts is None else ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"{topic}: {figures}")
    return 0


def new(arguments: argparse.Namespace) -> int:
    """Copy the package ``skeleton`` to the working directory, with another name."""
    name: str = arguments.name
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise InvalidArgumentError(f"{name!r} is not a valid name; use small letters, digits and _")
    directory = Path.cwd() / name
    if directory.exists():
        raise InvalidArgumentError(f"{directory} exists; choose another name, or move it away")
    if name in {each.name for each in LIBRARY} or importlib.util.find_spec(name) is not None:
        raise InvalidArgumentError(f"a pipeline or a Python package {name} already exists; choose another name")
    directory.mkdir()
    for source in files("headrace_pipelines.skeleton").iterdir():
        if source.name.endswith((".py", ".md")):
            text = source.read_text().replace(_SKELETON, name)
            (directory / source.name.replace(_SKELETON, name)).write_text(text)
    print(f"{directory}: try it with `python -m pytest {name}`, then change rows.py and job.py")
    return 0


def pack(arguments: argparse.Namespace) -> int:
    """Write the archive of packages for Spark's executors; print how to use it."""
    from . import packing

    file: Path = arguments.file
    packed = packing.pack(file, arguments.packages)
    if arguments.output == "json":
        print(json.dumps({"file": str(file), "bytes": packed.size, "distributions": packed.distributions}))
        return 0
    own = "".join(f", {package.name}" for package in arguments.packages)
    print(f"{file}: {packed.size / 1e6:.0f} MB, {len(packed.distributions)} distributions{own}")
    print(f"run a pipeline with `--packed {file}`, or start Spark with these settings:")
    for key, value in packing.settings(str(file)).items():
        print(f"  --conf {key}={value}")
    return 0
