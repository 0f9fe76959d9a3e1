"""The commands ``metadata dump``, ``ls`` and ``cat``: read a node's metadata log without a controller."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import CorruptLogError, HeadraceError, InvalidArgumentError, MissingDependencyError

from .output import Output, OutputFormat, note, print_json
from .paths import DataPath, path_of

if TYPE_CHECKING:
    from headrace_core.log.dump import Problem
    from headrace_core.shell.tree import Node

_Path = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH", help="A node's directory, or its directory __cluster_metadata-0. Leave PATH out with --data."
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Read the files of a metadata log, without a running controller.", no_args_is_help=True)
    group.callback()(_group)
    group.command("dump")(dump)
    group.command("ls")(ls)
    group.command("cat")(cat)
    app.add_typer(group, name="metadata")


def _group() -> None:
    """Read the files of a metadata log, without a controller.

    The commands change nothing and take no lock, so they can read the directory of a running node. The last records of
    a controller's log may not be committed yet: a record is committed when a majority of the controllers has it.
    """


def dump(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH", help="A node's directory, its __cluster_metadata-0, or a .log or .checkpoint file in it."
        ),
    ] = None,
    data: DataPath = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Print every record of all snapshots and of the log, as one JSON object per line, control records included.

    Exit code 1 means damage; each problem is a line on stderr with file, position and offset.

    \b
    Examples:
      headrace metadata dump ./cluster/controller-1
      headrace metadata dump ./cluster/controller-1/__cluster_metadata-0/00000000000000000000.log -o json
    """
    path = path_of(path, data)
    reading, fs = _room(), _files()
    from headrace_core.log.dump import Note, Problem
    from headrace_core.shell.state import document

    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    notes: list[Note] = []
    for found in reading.read(fs, str(path)):
        if isinstance(found, Note):
            notes.append(found)
        elif isinstance(found, Problem):
            problems.append(found)
        else:
            try:
                row = document(found)
            except HeadraceError as error:
                problems.append(Problem(found.path, found.position, found.record.offset, error.message))
                continue
            if output is OutputFormat.JSON:
                rows.append(row)
            else:
                print(json.dumps(row), flush=True)
    if output is OutputFormat.JSON:
        print_json(
            {
                "path": str(path),
                "sound": not problems,
                "records": rows,
                "problems": [_problem(each) for each in problems],
                "notes": [_problem(each) for each in notes],
            }
        )
    _tell(problems, notes)


def ls(
    path: _Path = None,
    place: Annotated[
        str | None,
        typer.Argument(metavar="[PLACE]", help="The directory to list, such as /topics/orders, /brokers or /configs."),
    ] = None,
    data: DataPath = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the names at a path of the cluster's metadata, as kafka-metadata-shell does.

    \b
    Examples:
      headrace metadata ls ./cluster/controller-1
      headrace metadata ls ./cluster/controller-1 /topics/orders
    """
    path, place = _path_and_place(path, place, data, default="/")
    node, problems, notes = _at(path, place)
    names = [place.rstrip("/").rpartition("/")[2]] if _is_file(node) else node.names()  # type: ignore[union-attr]
    if output is OutputFormat.JSON:
        print_json(names)
    else:
        for name in names:
            print(name, flush=True)
    _tell(problems, notes)


def cat(
    path: _Path = None,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="PLACE", help="The file to print, such as /topics/orders/0, /brokers/1 or /local/quorum."
        ),
    ] = None,
    data: DataPath = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Print one entry of the cluster's metadata.

    \b
    Examples:
      headrace metadata cat ./cluster/controller-1 /topics/orders/0
      headrace metadata cat ./cluster/controller-1 /local/quorum -o json
    """
    path, place = _path_and_place(path, place, data)
    node, problems, notes = _at(path, place)
    if not _is_file(node):
        raise InvalidArgumentError(f"{place} is a directory; `headrace metadata ls {path} {place}` lists it")
    value = node.value  # type: ignore[union-attr]
    if output is OutputFormat.JSON:
        print_json(value)
    elif isinstance(value, dict | list):
        print(json.dumps(value, indent=2), flush=True)
    else:
        print(str(value), flush=True)
    _tell(problems, notes)


def _path_and_place(
    path: Path | None, place: str | None, data: Path | None, default: str | None = None
) -> tuple[Path, str]:
    """The values of the arguments PATH and PLACE; with --data the first argument is the PLACE."""
    if data is not None and path is not None and place is None:
        path, place = None, str(path)
    found, place = path_of(path, data), place or default
    if place is None:
        raise typer.BadParameter("Missing argument 'PLACE'.")
    return found, place


def _room() -> Any:
    try:
        from headrace_core.shell import reading
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise MissingDependencyError(
            "reading metadata needs msgspec, which is not installed; get it with: pip install 'headrace[cluster]'"
        ) from None
    return reading


def _files() -> Any:
    from headrace_core.log.files import RealFileSystem

    return RealFileSystem()


def _at(path: Path, place: str) -> tuple[Node, list[Any], list[Any]]:
    _room()
    from headrace_core.shell.state import load
    from headrace_core.shell.tree import resolve, tree

    state = load(_files(), str(path))
    try:
        node = resolve(tree(state), place)
    except InvalidArgumentError:
        _print(state.problems, state.notes)
        raise
    return node, state.problems, state.notes


def _is_file(node: Node) -> bool:
    from headrace_core.shell.tree import File

    return isinstance(node, File)


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "path": problem.path,
        "position": None if problem.position < 0 else problem.position,
        "offset": None if problem.offset < 0 else problem.offset,
        "what": problem.what,
        "cure": problem.cure,
    }


def _print(problems: Iterable[Problem], notes: Iterable[Problem]) -> None:
    for each in notes:
        note(f"headrace: {each}; {each.cure}")
    for each in problems:
        note(f"headrace: {each} [{CorruptLogError.code}]")


def _tell(problems: list[Problem], notes: Iterable[Problem]) -> None:
    _print(problems, notes)
    if problems:
        raise typer.Exit(1)
