"""Run a command, and turn errors into messages and exit codes.

Only the module of the requested command is imported (``up`` needs no client, ``topics`` no supervisor). For help and
for unknown commands all modules are imported. A HeadraceError prints one line to stderr, and the exit code is 1; with
HEADRACE_DEBUG=1 the error's traceback is printed too. A wrong command line exits with 2, Ctrl-C with 130.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from headrace_core.errors import HeadraceError

from .pipes import broken_pipe


def run(arguments: list[str] | None = None, *, begin: Callable[[], object] = lambda: None) -> int:
    """Parse and execute ``arguments`` (default: the arguments of the process); return the exit code. ``begin`` is
    called after the import of the command's module, before the command starts. The exit code is 141 if the reader of
    stdout has closed the pipe."""
    code = _run(arguments, begin)
    try:
        sys.stdout.flush()  # flush here, because this may be the first write to a closed pipe
    except BrokenPipeError:
        return broken_pipe()
    return code


def _run(arguments: list[str] | None, begin: Callable[[], object]) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    from .root import build

    # A process under nohup ignores SIGHUP, and must continue to ignore it.
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ends:
        signal.signal(number, _on_end)
    try:
        app = build(given)
        begin()
        app(args=list(given), prog_name="headrace", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except HeadraceError as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        return _fail(f"{error.message} [{error.code}]")
    except BrokenPipeError:
        return broken_pipe()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        return _fail(str(error))
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)
    return 0


def _fail(message: str) -> int:
    from headrace_core.visible import escaped

    print(escaped(f"headrace: {message}"), file=sys.stderr)
    return 1


def _on_end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
