"""Handling of an output pipe whose reader has closed it."""

from __future__ import annotations

import os
import signal
import sys


def broken_pipe() -> int:
    """End without an error message when the reader of the output has closed the pipe. The exit code is that of a
    process killed by SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards buffered output
    return 128 + signal.SIGPIPE
