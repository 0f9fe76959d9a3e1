"""The command ``version``: print the version of the command line. Without -o the function ``main`` prints the version
itself, which is faster."""

from __future__ import annotations

import platform

import typer

from .output import Output, OutputFormat, show


def register(app: typer.Typer) -> None:
    app.command("version")(version)


def version(output: Output = OutputFormat.TEXT) -> None:
    """Print the version, like `headrace --version`.

    \b
    Examples:
      headrace version
      headrace version -o json        {"version", "python"}
    """
    from headrace import __version__

    show(output, {"version": __version__, "python": platform.python_version()}, __version__)
