"""The command ``ship``: follow log files, and send each line once."""

from __future__ import annotations

import re
import socket
import threading
from typing import Annotated

import typer

from headrace_core.errors import HeadraceError
from headrace_core.plurals import counted

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, Properties, client_config
from .output import Output, OutputFormat, note, print_json

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")


def register(app: typer.Typer) -> None:
    app.command("ship")(ship)


def ship(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, or quoted patterns such as '/var/log/app/*.log'.")
    ],
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic.", autocompletion=complete.topics)],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="The shipper's name, under which it stores its positions; default: HOST-TOPIC.",
        ),
    ] = None,
    from_end: Annotated[
        bool,
        typer.Option(
            "--from-end", help="Begin at the end of files without a stored position; default: at their first line."
        ),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Exit when all existing lines are sent.")] = False,
    host: Annotated[str | None, typer.Option("--host", help="The host name in the records' keys and headers.")] = None,
    properties: Properties = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Follow log files and send each line exactly once, in order for each file, until Ctrl-C.

    A transaction has the lines of a batch and the positions of their files (topic headrace-ship-positions), so after a
    crash, readers with read_committed see no lost or repeated lines. A file is followed through renames and truncation;
    a new file under a path or a pattern is read from its first line on. Copytruncate can lose lines that are written
    between the copy and the truncation: rotate by renaming.

    \b
    A record: value = the line without its end, key = HOST:PATH, headers host, path, position (bytes).
    One shipper of a NAME runs at a time: a second one fences the first.

    \b
    Examples:
      headrace ship /var/log/nginx/access.log -t web
      headrace ship '/var/log/app/*.log' -t app --name app-logs -X compression.type=zstd
      headrace ship import.log -t import --once -o json      {"lines", "bytes", "files", "seconds"}
    """
    import time

    from ..ship.shipper import Settings, Shipper, warn_on_stderr
    from ..ship.tail import check_paths

    host = host or socket.gethostname()
    name = name if name is not None else f"{host}-{topic}"
    if not _NAME.match(name):
        raise typer.BadParameter(
            f"{name!r}: must have 1 to 200 of the characters A-Z a-z 0-9 . _ -", param_hint="--name"
        )
    try:
        checked = check_paths(paths)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="PATH...") from None
    settings = Settings(
        config=client_config(bootstrap, None),
        producer=client_config(bootstrap, properties, kind="producer"),
        topic=topic,
        paths=checked,
        name=name,
        host=host,
        from_end=from_end,
        once=once,
    )
    warn_on_stderr()
    shipper = Shipper(settings, threading.Event(), lambda shipped: None)
    began = time.monotonic()
    try:
        shipper.run()
    except HeadraceError as error:
        if error.code in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"):
            raise type(error)(
                f"another shipper has taken over the name {name}; give one of the two shippers another --name "
                f"({error.message})"
            ) from error
        raise
    finally:
        seconds, shipped = time.monotonic() - began, shipper.shipped
        if output is OutputFormat.JSON:
            print_json(
                {
                    "lines": shipped.lines,
                    "bytes": shipped.bytes,
                    "files": len(shipped.files),
                    "seconds": round(seconds, 3),
                }
            )
        else:
            note(
                f"shipped {counted(shipped.lines, 'line')} of {counted(len(shipped.files), 'file')} to {topic} in "
                f"{seconds:.1f} s"
            )
