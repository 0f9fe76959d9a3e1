"""The command line: ``headrace <noun> <verb>``. ``main`` is the console script; all else is imported on demand."""

from __future__ import annotations


def main() -> int:
    """Run the command line of this process; returns the exit code (0 done, 1 failed, 2 wrong usage, 130 Ctrl-C)."""
    from .app import run

    return run()
