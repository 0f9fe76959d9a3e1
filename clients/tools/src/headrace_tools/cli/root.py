"""The root of the command tree: the module of each command, the short name ``ls`` for ``list``, and ``--version``.

The command ``up`` imports no grpc (a test checks the imports), so that it starts quickly and a later fork is safe.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .pipes import broken_pipe

#: Maps each top-level command to the module that registers it, in the order of the help.
_HOMES = {
    "up": "local",
    "ps": "local",
    "down": "local",
    "restart": "local",
    "console": "console",
    "format": "format",
    "random-uuid": "format",
    "topics": "topics",
    "configs": "configs",
    "acls": "acls",
    "users": "users",
    "tokens": "tokens",
    "quotas": "quotas",
    "records": "records",
    "produce": "produce",
    "consume": "consume",
    "ship": "ship",
    "groups": "groups",
    "transactions": "transactions",
    "schemas": "schemas",
    "connectors": "connectors",
    "partitions": "partitions",
    "brokers": "brokers",
    "cluster": "describe",
    "doctor": "doctor",
    "lag": "lag",
    "top": "top",
    "log": "log",
    "log-dirs": "log_dirs",
    "quorum": "quorum",
    "features": "features",
    "certs": "certs",
    "profile": "profiles",
    "metadata": "metadata",
    "bench": "bench",
    "version": "version",
}


class _Root(TyperGroup):
    """The root command; its exit code is 141 when the reader of a pipe closes it. (Typer's own exit code for a closed
    pipe would be 1.)"""

    def make_context(self, *given: Any, **more: Any) -> Any:
        try:
            return super().make_context(*given, **more)
        except BrokenPipeError:
            sys.exit(broken_pipe())

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            sys.exit(broken_pipe())


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command tree for ``arguments``: only the commands of one module, or all commands for help and wrong names."""
    app = typer.Typer(
        name="headrace",
        cls=_Root,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(
        epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a condition of --fail-on holds, 130 Ctrl-C, "
        "141 the reader of a pipe has closed it, 143 SIGTERM. "
        "Every command has -h with examples; `ls` is short for `list`."
    )(_root)
    first = _first_command(_words_to_complete() or arguments)
    for home in [_HOMES[first]] if first in _HOMES else dict.fromkeys(_HOMES.values()):
        importlib.import_module(f"{__package__}.{home}").register(app)
    _add_what_all_share(app)
    return app


def _words_to_complete() -> list[str]:
    """The complete words of a command line during shell completion; empty otherwise."""
    if "_HEADRACE_COMPLETE" not in os.environ:
        return []
    text = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = text.split()[1:]
    return words if text[-1:].isspace() else words[:-1]


def _first_command(arguments: Sequence[str]) -> str | None:
    words = iter(arguments)
    for word in words:
        if word == "--profile":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def _add_what_all_share(app: typer.Typer) -> None:
    """Add ``--profile`` to each command with ``--bootstrap``, and the short name ``ls`` to each command ``list``."""
    for command in list(app.registered_commands):
        if command.callback is not None and "bootstrap" in inspect.signature(command.callback).parameters:
            if command.callback.__module__.endswith(".profiles"):
                continue  # in `profile set`, --bootstrap is a value of the profile, not of the command
            from .client import finds_cluster

            command.callback = finds_cluster(command.callback)
        if command.name == "list" and command.callback is not None:
            app.command("ls", hidden=True)(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _add_what_all_share(group.typer_instance)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        print(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="The profile to use: see `headrace profile`.")
    ] = None,
) -> None:
    """Headrace: a durable, Kafka-format log behind gRPC."""
