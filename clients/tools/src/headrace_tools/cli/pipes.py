"""What a command does when the reader of its output has gone."""

from __future__ import annotations

import os
import signal
import sys


def broken_pipe() -> int:
    """The reader of our output has gone: end quietly, with the exit code of a process that died of SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
    return 128 + signal.SIGPIPE
