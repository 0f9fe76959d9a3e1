"""``log dump``: segments and indexes, read without a broker."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Read log files without a broker.", no_args_is_help=True)
    app.add_typer(group, name="log")
