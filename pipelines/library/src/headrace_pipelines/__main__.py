"""The console script ``headrace-pipelines``, and ``python -m headrace_pipelines``. This file imports nothing before
``interruptible`` handles Ctrl-C."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Run the command line of this process; return the exit code (130 after Ctrl-C)."""
    from headrace_tools.cli import interruptible

    return interruptible(_command)


def _command(begin: Callable[[], object]) -> int:
    from .cli import main as run

    return run(begin=begin)


if __name__ == "__main__":
    import sys

    sys.exit(main())
