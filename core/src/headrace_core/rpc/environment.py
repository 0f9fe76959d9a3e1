"""Process-wide settings that must be made early.

``GRPC_EXPERIMENTS``: on grpcio 1.85 the event engine's client and listener cost a third of the requests per second and
0.2 ms of latency; measure again at each upgrade of grpcio. Effective only before grpc is imported.

``GRPC_ENABLE_FORK_SUPPORT``: gRPC's fork handlers take its pollers apart in the child. One fork in ten beside an open
client aborted there (SIGABRT) before it became another program: ``subprocess`` with a ``preexec_fn``, which is how
PySpark starts Java. Without them such a child works, and the SDK handles a child that stays Python
(engine/io_thread.py). Effective only before gRPC is first used.

``tune_malloc``: record batches are large short-lived buffers. By default glibc maps and unmaps each, and the kernel
zeroes its pages every time. Only our own processes call it; a library must not change its host's allocator.

``tune_interpreter``: a thread that returns from a flush waits for the GIL until the event loop releases it, which a
busy loop does every switch interval: 5 ms by default, many times the flush.
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
    """Keep large buffers in the heap instead of mapping each. False where libc has no mallopt."""
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
    """Give threads that return from the disk the interpreter soon. For a server's process."""
    sys.setswitchinterval(0.0005)
