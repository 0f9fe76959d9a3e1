"""Process-wide settings that must be made before other imports.

``GRPC_EXPERIMENTS``: the event engine's client and listener of grpcio 1.85 reduce the requests per second by a third
and add 0.2 ms of latency, so both are switched off. Measure both settings of ``GRPC_EXPERIMENTS`` again at each upgrade
of grpcio. ``GRPC_EXPERIMENTS`` works only if it is set before grpc is imported.

``GRPC_ENABLE_FORK_SUPPORT`` is false unless the user sets it: gRPC's fork handlers shut down gRPC's pollers in the
child. With an open client, one fork in ten aborted in the child (SIGABRT) before the child could start another program.
PySpark starts its Java process by a fork (``subprocess`` with a ``preexec_fn``). Without gRPC's fork handlers, the
child of a fork can start another program. The SDK itself handles a child that continues in Python
(engine/io_thread.py). ``GRPC_ENABLE_FORK_SUPPORT`` works only if it is set before gRPC is first used.

``tune_malloc``: record batches are large short-lived buffers. By default glibc maps and unmaps each buffer, and the
kernel zeroes the buffer's pages every time. Only Headrace's server processes call ``tune_malloc``, because a library
must not change the allocator of the program that uses it.

``tune_interpreter``: a thread that returns from a flush waits until the event loop releases the GIL. A busy loop
releases the GIL once every switch interval, by default 5 ms, which is many times the duration of a flush.
"""

from __future__ import annotations

import ctypes
import os
import sys

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def tune_malloc() -> bool:
    """Let malloc keep large buffers in the heap instead of mapping each buffer. Returns False where libc has no
    mallopt."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    done = [
        mallopt(_M_MMAP_THRESHOLD, 32 << 20),
        mallopt(_M_TRIM_THRESHOLD, 1 << 30),
        mallopt(_M_TOP_PAD, 64 << 20),
    ]
    return all(done)


def tune_interpreter() -> None:
    """Shorten the switch interval, so that threads that return from the disk soon get the GIL. Call
    ``tune_interpreter`` only in server processes."""
    sys.setswitchinterval(0.0005)
