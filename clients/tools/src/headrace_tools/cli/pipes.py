"""Handling of a closed output pipe."""

from __future__ import annotations

import os
import signal
import sys


def broken_pipe() -> int:
    """End quietly when the reader of our output is gone, with the exit code of a process killed by SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards buffered output
    return 128 + signal.SIGPIPE
