"""The root of the command tree: which command lives where, and ``--version``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated

import typer

#: Top-level command -> module that registers it, in the order of the help.
_HOMES = {
    "up": "local",
    "ps": "local",
    "down": "local",
    "restart": "local",
    "format": "format",
    "random-uuid": "format",
    "topics": "topics",
    "configs": "configs",
    "records": "records",
    "produce": "produce",
    "consume": "consume",
    "groups": "groups",
    "partitions": "partitions",
    "brokers": "brokers",
    "cluster": "describe",
    "doctor": "doctor",
    "top": "top",
    "log": "log",
    "log-dirs": "log_dirs",
    "quorum": "quorum",
    "features": "features",
    "metadata": "metadata",
    "bench": "bench",
}


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command tree that ``arguments`` need: one module's commands, or all of them for help and mistakes."""
    app = typer.Typer(
        name="headrace",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help"], "max_content_width": 110},
    )
    app.callback(
        epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 141 the reader of a pipe has gone, "
        "143 SIGTERM. Every command has --help with examples."
    )(_root)
    first = next((word for word in arguments if not word.startswith("-")), None)
    for home in [_HOMES[first]] if first in _HOMES else dict.fromkeys(_HOMES.values()):
        importlib.import_module(f"{__package__}.{home}").register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        print(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Headrace: a durable, Kafka-format log behind gRPC."""
