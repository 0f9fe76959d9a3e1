"""The command line: ``headrace <noun> <verb>``. ``main`` is the console script; other modules are imported on demand.

This file and ``headrace_tools/__init__.py`` import nothing, because Ctrl-C during an import would print a traceback
until ``interruptible`` has installed its signal handler.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Run the command line of this process; return the exit code (0 done, 1 failed, 2 wrong usage, 130 Ctrl-C)."""
    return interruptible(_command)


def interruptible(command: Callable[[Callable[[], object]], int]) -> int:
    """Call ``command(begin)``; return its exit code. The command imports its modules, and then calls ``begin()``.

    Ctrl-C ends the process at once while modules are imported, and after the command has ended. After ``begin()``,
    Ctrl-C raises KeyboardInterrupt, so that the command can clean up. If SIGINT is ignored at the start (nohup), the
    command ignores SIGINT too.
    """
    import _signal as signals  # type: ignore[import-not-found] # built in; ``signal`` imports other modules

    raising = signals.default_int_handler
    is_ours = signals.getsignal(signals.SIGINT) is raising
    if is_ours:
        signals.signal(signals.SIGINT, _end)
    code = command(lambda: is_ours and signals.signal(signals.SIGINT, raising))
    if is_ours:
        signals.signal(signals.SIGINT, _end)
    return code


def _command(begin: Callable[[], object]) -> int:
    import sys

    if sys.argv[1:] in (["--version"], ["version"]):  # scripts ask for the version often, so import nothing else
        from headrace import __version__

        return _print(__version__)

    from .app import run

    return run(begin=begin)


def _end(number: int, frame: object) -> None:
    import os

    os._exit(128 + number)


def _print(line: str) -> int:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        from .pipes import broken_pipe

        return broken_pipe()
    return 0
