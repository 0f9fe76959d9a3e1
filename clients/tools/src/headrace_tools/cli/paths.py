"""The option ``--data``: the directory of a node or of a cluster, for commands that read its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataPath = Annotated[
    Path | None, typer.Option("--data", metavar="PATH", help="The path to read, in place of the argument PATH.")
]


def path_of(path: Path | None, data: Path | None) -> Path:
    """Return PATH or the value of --data, whichever was given; raises a usage error unless exactly one of them was
    given."""
    if path is None and data is None:
        raise typer.BadParameter("Missing argument 'PATH' (or --data PATH).")
    if path is not None and data is not None:
        raise typer.BadParameter("pass PATH or --data, not both", param_hint="--data")
    found = path if data is None else data
    assert found is not None
    return found
